//! A plain request's head, as `httparse` finds it in what was read. What hyper could take for
//! anything else than this file does is unusual, and left to hyper.

use std::mem::MaybeUninit;

use http::{HeaderName, Method, Version};
use httparse::{Header, Status};

use crate::head::{Fields, Head};
use crate::headers::is_host;

/// Fields that a plain request has at most.
pub const MAX_FIELDS: usize = 32;
/// Methods are words like `GET`; longer ones are unusual.
const MAX_METHOD: usize = 16;

/// A plain request's head.
pub struct Plain<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    fields: &'a [Header<'a>],
    host: &'a [u8],
    /// `Connection: close`
    pub closes: bool,
}

/// What stands at the beginning of what was read.
pub enum Parsed<'a> {
    /// A plain head of this length.
    Whole(Plain<'a>, usize),
    /// The beginning of a head.
    Partial,
    /// Something else.
    Unusual,
}

impl<'a> Plain<'a> {
    /// Reads the head that `bytes` begin with.
    pub fn parse(
        bytes: &'a [u8],
        fields: &'a mut [MaybeUninit<Header<'a>>; MAX_FIELDS],
    ) -> Parsed<'a> {
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(bytes, fields) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => return Parsed::Partial,
            Err(_) => return Parsed::Unusual,
        };
        let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version)
        else {
            return Parsed::Unusual;
        };
        let is_word = method.len() <= MAX_METHOD && method.bytes().all(|b| b.is_ascii_uppercase());
        if !is_word || method == "CONNECT" || !is_plain_target(target.as_bytes()) {
            return Parsed::Unusual;
        }
        // The target is ASCII; a search for a character costs more than a look at its bytes.
        let (path, query) = match target.bytes().position(|byte| byte == b'?') {
            Some(at) => (target.get(..at).unwrap_or_default(), target.get(at + 1..)),
            None => (target, None),
        };
        let Some((host, closes)) = connection(request.headers) else {
            return Parsed::Unusual;
        };
        let head = Self {
            method,
            path,
            query,
            fields: request.headers,
            host,
            closes,
        };
        Parsed::Whole(head, length)
    }

    /// CHECK-1
    pub fn is_health_check(&self) -> bool {
        self.path == "/_waf/health" && (self.method == "GET" || self.method == "HEAD")
    }

    /// Whether its answer is a head alone.
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The line of `X-Forwarded-For` that the peer itself added to (CLIENT-7).
    pub fn last_forwarded_for(&self) -> Option<&'a [u8]> {
        let mut lines = self.fields.iter().rev();
        let last = lines.find(|field| field.name.eq_ignore_ascii_case("x-forwarded-for"));
        last.map(|field| field.value)
    }
}

/// A target in origin form, of bytes that no reader of it changes or refuses.
fn is_plain_target(target: &[u8]) -> bool {
    let is_plain = |byte: &u8| {
        let unusual = matches!(
            byte,
            b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
        );
        matches!(byte, b'!'..=b'~') && !unusual
    };
    target.first() == Some(&b'/') && target.iter().all(is_plain)
}

/// The host, and whether the client asks to close the connection; none where a field makes the
/// request unusual: it has a body or may have one, asks for another protocol, or does not name one
/// host.
fn connection<'a>(fields: &[Header<'a>]) -> Option<(&'a [u8], bool)> {
    let (mut host, mut connection) = (None, None);
    for field in fields {
        let only = match field.name.len() {
            2 if field.name.eq_ignore_ascii_case("te") => return None,
            4 if field.name.eq_ignore_ascii_case("host") => &mut host,
            6 if field.name.eq_ignore_ascii_case("expect") => return None,
            7 if field.name.eq_ignore_ascii_case("upgrade")
                || field.name.eq_ignore_ascii_case("trailer") =>
            {
                return None;
            }
            10 if field.name.eq_ignore_ascii_case("connection") => &mut connection,
            14 if field.name.eq_ignore_ascii_case("content-length") => return None,
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => return None,
            _ => continue,
        };
        if only.replace(field.value).is_some() {
            return None;
        }
    }
    let host = host.filter(|host| is_host(host))?;
    match connection {
        None => Some((host, false)),
        Some(value) if value.eq_ignore_ascii_case(b"keep-alive") => Some((host, false)),
        Some(value) if value.eq_ignore_ascii_case(b"close") => Some((host, true)),
        Some(_) => None,
    }
}

/// A plain request's head with a text of its own: what of it outlives the buffer that it was read
/// into.
#[derive(Debug)]
pub struct PlainHead {
    text: Box<str>,
    method: Method,
    /// Where the target stands.
    target: Place,
    /// Bytes of the target that are its path.
    path: usize,
    fields: Vec<(Place, Place)>,
    host: Place,
}

/// A part of a head's text.
#[derive(Clone, Copy, Debug)]
struct Place {
    begin: u16,
    end: u16,
}

impl Place {
    /// Where a part of `text` stands in it.
    fn of(part: &[u8], text: &str) -> Option<Self> {
        let begin = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        Some(Self {
            begin: u16::try_from(begin).ok()?,
            end: u16::try_from(begin + part.len()).ok()?,
        })
    }

    fn text(self, text: &str) -> &str {
        let part = usize::from(self.begin)..usize::from(self.end);
        text.get(part).unwrap_or_default()
    }
}

impl PlainHead {
    /// The head that was found at the front of `bytes`, of this length; none where it is too long
    /// for this, or no UTF-8.
    pub fn of(plain: &Plain<'_>, bytes: &[u8], length: usize) -> Option<Self> {
        let text = std::str::from_utf8(bytes.get(..length)?).ok()?;
        let path = Place::of(plain.path.as_bytes(), text)?;
        let query = plain.query.map_or(0, |query| query.len() + 1);
        let target = Place {
            end: path.end.checked_add(u16::try_from(query).ok()?)?,
            ..path
        };
        let mut fields = Vec::with_capacity(plain.fields.len());
        for field in plain.fields {
            let name = Place::of(field.name.as_bytes(), text)?;
            fields.push((name, Place::of(field.value, text)?));
        }
        Some(Self {
            method: Method::from_bytes(plain.method.as_bytes()).ok()?,
            target,
            path: plain.path.len(),
            host: Place::of(plain.host, text)?,
            fields,
            text: text.into(),
        })
    }

    /// Its method.
    pub const fn verb(&self) -> &Method {
        &self.method
    }

    /// Its `Host`.
    pub fn host(&self) -> &[u8] {
        self.host.text(&self.text).as_bytes()
    }

    /// Its target: path and query.
    pub fn target(&self) -> &str {
        self.target.text(&self.text)
    }
}

impl Head for PlainHead {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn path(&self) -> &str {
        self.target().get(..self.path).unwrap_or_default()
    }

    fn query(&self) -> Option<&str> {
        self.target().get(self.path + 1..)
    }

    fn version(&self) -> Version {
        Version::HTTP_11
    }
}

impl Fields for PlainHead {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let name = name.as_str();
        let places = self.fields.iter();
        let named = places.filter(move |(place, _)| {
            let length = usize::from(place.end.wrapping_sub(place.begin));
            length == name.len() && place.text(&self.text).eq_ignore_ascii_case(name)
        });
        named.map(|(_, value)| value.text(&self.text).as_bytes())
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let places = self.fields.iter();
        places.map(|(name, value)| {
            let value = value.text(&self.text).as_bytes();
            (name.text(&self.text), value)
        })
    }
}

impl Head for Plain<'_> {
    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &str {
        self.path
    }

    fn query(&self) -> Option<&str> {
        self.query
    }

    fn version(&self) -> Version {
        Version::HTTP_11
    }
}

impl Fields for Plain<'_> {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let name = name.as_str();
        let fields = self.fields.iter();
        let named = fields.filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|field| (field.name, field.value))
    }
}

#[cfg(test)]
mod tests;
