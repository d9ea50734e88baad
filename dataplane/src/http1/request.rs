//! The head of a request, read from bytes (RFC 9112 §2.2, §3, §5, §6.3). Pure: no socket, no clock.
//!
//! `httparse` reads the lines. This file decides what they say: the target, the host, how long the
//! body is, whether the connection is kept, and which rare fields are there.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use http::uri::PathAndQuery;
use http::{Method, Uri, Version};
use httparse::{Header, Status};

use crate::http1::{MAX_FIELDS, MAX_HEAD};
use crate::message::fields::{decimal, has_token, is_host, naming_tokens};
use crate::message::{Head, Known, Read, RequestLength, is};

/// Room for the fields of a head.
pub type Space<'a> = [MaybeUninit<Header<'a>>; MAX_FIELDS];

/// Why bytes are not the head of a request that is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRequest {
    /// A line is not one of HTTP/1: 400.
    #[error("the head is not one of HTTP/1.1")]
    Syntax,
    /// More than [`MAX_HEAD`] bytes or [`MAX_FIELDS`] fields: 431.
    #[error("the head is larger than {MAX_HEAD} bytes, or has more than {MAX_FIELDS} fields")]
    TooLarge,
    /// The target does not end within [`MAX_HEAD`] bytes: 414 (RFC 9112 §3).
    #[error("the target is longer than a head of {MAX_HEAD} bytes leaves room for")]
    TargetTooLong,
    /// A target in a form that its method does not have (RFC 9112 §3.2): 400.
    #[error("the target has not the form that its method asks for")]
    Target,
    /// HTTP/1.1 without `Host`, or with two, or one that is no authority, whatever the target is
    /// (RFC 9112 §3.2); a target whose host is none: 400.
    #[error("there is not exactly one valid Host")]
    Host,
    /// A body that two readers could end at different places (RFC 9112 §6.1, §6.3): a coding other
    /// than one plain `chunked`, a coding in HTTP/1.0 or beside a length, lengths that differ: 400.
    #[error("the body is not framed in one plain way")]
    Framing,
}

/// What the fields say, noted while they are read.
#[derive(Default)]
struct Said<'a> {
    known: Known,
    host: Option<&'a [u8]>,
    hosts: usize,
    length: Option<u64>,
    codings: usize,
    is_chunked: bool,
    close: bool,
    keep_alive: bool,
}

/// Reads the head that `bytes` begin with, and says how long it is; none where it is not whole.
/// Empty lines before it are left out (RFC 9112 §2.2).
///
/// # Errors
/// [`BadRequest`] where they are no request, or none that is answered.
pub fn parse<'a>(
    bytes: &'a [u8],
    space: &'a mut Space<'a>,
) -> Result<Option<(Head<Read<'a>>, usize)>, BadRequest> {
    // What lies behind the bound does not count, however much was read at once.
    let bytes = bytes.get(..MAX_HEAD).unwrap_or(bytes);
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, space) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(Status::Partial) if request.method.is_some() && request.path.is_none() => {
            return Err(BadRequest::TargetTooLong);
        }
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(BadRequest::TooLarge);
        }
        Err(_) => return Err(BadRequest::Syntax),
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(BadRequest::Syntax);
    };
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| BadRequest::Syntax)?;
    let version = match request.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let fields: &'a [Header<'a>] = request.headers;
    let mut said = Said::default();
    for field in fields {
        said.note(field.name, field.value)?;
    }
    let Target {
        text,
        path,
        authority,
    } = Target::of(&method, target)?;
    said.check(version)?;
    let head = Head {
        method,
        version,
        length: match said.length {
            _ if said.codings > 0 => RequestLength::Chunked,
            Some(length) => RequestLength::Exact(length),
            None => RequestLength::Empty,
        },
        known: said.known,
        keeps: !said.close && (version == Version::HTTP_11 || said.keep_alive),
        path,
        form: Read {
            bytes: bytes.get(..length).unwrap_or_default(),
            target: text,
            host: said.host,
            authority,
            fields,
        },
    };
    Ok(Some((head, length)))
}

impl<'a> Said<'a> {
    /// Notes what a field says.
    fn note(&mut self, name: &str, value: &'a [u8]) -> Result<(), BadRequest> {
        // The length tells most names apart at once.
        match name.len() {
            4 if is(name, b"host") => {
                self.hosts += 1;
                self.host = Some(value);
            }
            10 if is(name, b"connection") => self.note_connection(value),
            14 if is(name, b"content-length") => {
                let length = decimal(value).ok_or(BadRequest::Framing)?;
                if self.length.replace(length).is_some_and(|one| one != length) {
                    return Err(BadRequest::Framing);
                }
            }
            17 if is(name, b"transfer-encoding") => {
                self.codings += 1;
                self.is_chunked = value.eq_ignore_ascii_case(b"chunked");
            }
            _ => self.known.note(name, value),
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else if value.eq_ignore_ascii_case(b"close") {
            self.close = true;
        } else {
            // A line that some readers leave out as a whole may close a connection, not keep it.
            self.keep_alive |= value.is_ascii() && has_token(value, "keep-alive");
            self.close |= has_token(value, "close");
            self.known.names_fields |= naming_tokens(value).next().is_some();
        }
    }

    /// Checks the host and the framing.
    fn check(&self, version: Version) -> Result<(), BadRequest> {
        let host_fits = match self.host {
            Some(host) => self.hosts == 1 && is_host(host),
            None => version < Version::HTTP_11,
        };
        if !host_fits {
            return Err(BadRequest::Host);
        }
        let is_framed_once = match self.codings {
            0 => true,
            1 => self.is_chunked && self.length.is_none() && version == Version::HTTP_11,
            _ => false,
        };
        is_framed_once.then_some(()).ok_or(BadRequest::Framing)
    }
}

/// A target as it goes on.
struct Target<'a> {
    text: Cow<'a, str>,
    path: usize,
    authority: Option<Box<str>>,
}

impl<'a> Target<'a> {
    fn of(method: &Method, target: &'a str) -> Result<Self, BadRequest> {
        if is_plain(target.as_bytes()) {
            // A search for a character in ASCII costs more than a look at its bytes.
            let path = target.bytes().position(|byte| byte == b'?');
            return Ok(Self {
                path: path.unwrap_or(target.len()),
                text: Cow::Borrowed(target),
                authority: None,
            });
        }
        Self::of_uri(method, target)
    }

    /// Every other form, and every other byte, as the library reads them.
    fn of_uri(method: &Method, target: &str) -> Result<Self, BadRequest> {
        let uri = Uri::try_from(target).map_err(|_| BadRequest::Syntax)?;
        if !fits_method(&uri, method) {
            return Err(BadRequest::Target);
        }
        let authority = match uri.authority() {
            None => None,
            Some(authority) => {
                // What stands after an `@` alone names the host.
                let host = authority.as_str().rsplit('@').next().unwrap_or_default();
                // An empty host is no origin (RFC 9110 §4.2.1).
                if !is_host(host.as_bytes()) || host.is_empty() || host.starts_with(':') {
                    return Err(BadRequest::Host);
                }
                Some(host.into())
            }
        };
        let is_authority_alone = uri.authority().is_some() && uri.scheme().is_none();
        let text = match is_authority_alone {
            true => String::new(),
            false => origin_form(method, &uri).into_owned(),
        };
        Ok(Self {
            path: text.find('?').unwrap_or(text.len()),
            text: Cow::Owned(text),
            authority,
        })
    }
}

/// Whether a target is in origin form, of bytes that no reader of it changes or refuses.
fn is_plain(target: &[u8]) -> bool {
    let is_plain = |byte: &u8| {
        let unusual = matches!(
            byte,
            b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
        );
        matches!(byte, b'!'..=b'~') && !unusual
    };
    target.first() == Some(&b'/') && target.iter().all(is_plain)
}

/// Whether a method has a target of this form: `*` is for OPTIONS, an authority alone for CONNECT
/// (RFC 9112 §3.2.3, §3.2.4). An authority would otherwise replace `Host`, and lead around a front
/// end that routes by it.
fn fits_method(uri: &Uri, method: &Method) -> bool {
    if uri.authority().is_some() {
        uri.scheme().is_some() || *method == Method::CONNECT
    } else {
        uri.path() != "*" || *method == Method::OPTIONS
    }
}

/// The target the application is asked for: origin-form, or `*`.
fn origin_form<'a>(method: &Method, uri: &'a Uri) -> Cow<'a, str> {
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if uri.authority().is_some() {
        // RFC 9112 §3.2.4: OPTIONS of an origin without a path is OPTIONS of the whole server.
        if *method == Method::OPTIONS && target == "/" && !has_path(uri) {
            return Cow::Borrowed("*");
        }
        // A query may follow the authority at once.
        if !target.starts_with('/') {
            return Cow::Owned(format!("/{target}"));
        }
    }
    Cow::Borrowed(target)
}

/// Whether an absolute target has a path. The library gives an absent one as a `/` of its own; one
/// that was sent stands in memory where it stood in the head: right behind the authority.
fn has_path(uri: &Uri) -> bool {
    uri.authority().is_some_and(|authority| {
        authority.as_str().as_bytes().as_ptr_range().end == uri.path().as_ptr()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absolute_target_becomes_origin_form() {
        let asked = |method, uri: &str| origin_form(&method, &uri.parse().unwrap()).to_string();
        assert_eq!(asked(Method::GET, "http://user@example.org:81/a?b"), "/a?b");
        assert_eq!(asked(Method::GET, "http://example.org"), "/");
        assert_eq!(asked(Method::GET, "http://example.org#x"), "/");
        assert_eq!(asked(Method::OPTIONS, "*"), "*");
        // FORWARD-3
        assert_eq!(asked(Method::OPTIONS, "http://example.org"), "*");
        assert_eq!(asked(Method::OPTIONS, "http://example.org/"), "/");
        assert_eq!(asked(Method::OPTIONS, "http://example.org?a"), "/?a");
    }
}
