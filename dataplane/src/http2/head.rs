//! The head of a request over HTTP/2, made that of HTTP/1.1, which the application speaks (RFC 9113
//! §8.3): pseudo-header fields become target and `Host`, the pieces of `Cookie` one field. What
//! could be read as something else behind it is refused here.
//!
//! The library has checked what a head is made of: names in small letters, no control characters,
//! pseudo-header fields once each and first, no field of the connection, no `te` but `trailers`, a
//! body as long as it says. Here is what it leaves open.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Uri};

/// Fields of a head at most, as over HTTP/1.1 (CONN-1).
const MAX_FIELDS: usize = 100;
/// What a field costs besides its name and value, as the size of a head is counted (RFC 9113
/// §6.5.2).
const FIELD_COST: usize = 32;

/// Why a request is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadHead {
    /// It is malformed (RFC 9113 §8.1.1): 400.
    Malformed,
    /// It has more than 100 fields: 431.
    TooManyFields,
}

/// The size of a head's fields, as a client counts it.
pub fn size(headers: &HeaderMap) -> usize {
    let of = |(name, value): (&http::HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + FIELD_COST
    };
    headers.iter().map(of).sum()
}

/// Makes a head one of HTTP/1.1, but for its version.
///
/// # Errors
/// [`BadHead`] where the request is not taken.
pub fn to_http1(head: &mut Parts) -> Result<(), BadHead> {
    if !head.headers.values().all(is_trimmed) {
        return Err(BadHead::Malformed);
    }
    join_cookies(&mut head.headers)?;
    if head.headers.len() > MAX_FIELDS {
        return Err(BadHead::TooManyFields);
    }
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    if lengths.next().is_some() && lengths.next().is_some() {
        return Err(BadHead::Malformed);
    }
    set_host(head)?;
    if head.method == Method::CONNECT {
        return Ok(());
    }
    let Some(target) = head.uri.path_and_query().cloned() else {
        return Err(BadHead::Malformed);
    };
    if !target.as_str().starts_with('/') && target != "*" {
        return Err(BadHead::Malformed);
    }
    head.uri = Uri::from(target);
    Ok(())
}

/// A value neither begins nor ends with a blank (RFC 9113 §8.2.1).
fn is_trimmed(value: &HeaderValue) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    !is_blank(bytes.first()) && !is_blank(bytes.last())
}

/// One `Cookie` field of its pieces (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) -> Result<(), BadHead> {
    let mut pieces = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (pieces.next(), pieces.next()) else {
        return Ok(());
    };
    let mut joined = first.as_bytes().to_vec();
    for piece in std::iter::once(second).chain(pieces) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(piece.as_bytes());
    }
    let joined = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined));
    headers.insert(COOKIE, joined.map_err(|_| BadHead::Malformed)?);
    Ok(())
}

/// `:authority` becomes `Host`, which may only say the same (RFC 9113 §8.3.1).
fn set_host(head: &mut Parts) -> Result<(), BadHead> {
    let Some(authority) = head.uri.authority() else {
        return Ok(());
    };
    let is_http = head.uri.scheme_str().is_none_or(|scheme| {
        scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
    });
    // Who asks is no part of an authority here, and a host is not empty.
    let names_a_host = !authority.as_str().contains('@') && !authority.host().is_empty();
    let mut hosts = head.headers.get_all(HOST).iter();
    let is_same = |host: &HeaderValue| {
        let host = host.as_bytes();
        host.eq_ignore_ascii_case(authority.as_str().as_bytes())
    };
    let agrees = hosts.next().is_none_or(is_same) && hosts.next().is_none();
    if !is_http || !names_a_host || !agrees {
        return Err(BadHead::Malformed);
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| BadHead::Malformed)?;
    head.headers.insert(HOST, host);
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::{Request, Version};

    use super::*;

    fn head(method: &str, uri: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .version(Version::HTTP_2);
        for (name, value) in fields {
            // As bytes: the library takes blanks at the ends, as that of HTTP/2 does.
            request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        request.body(()).unwrap().into_parts().0
    }

    fn made(method: &str, uri: &str, fields: &[(&str, &str)]) -> Result<Parts, BadHead> {
        let mut head = head(method, uri, fields);
        to_http1(&mut head).map(|()| head)
    }

    /// EDGE-3: target, `Host` and `Cookie` are as HTTP/1.1 has them.
    #[test]
    fn a_head_becomes_one_of_http1() {
        let cookies = [
            ("cookie", "a=1"),
            ("x", "y"),
            ("cookie", "b=2"),
            ("cookie", "c"),
        ];
        let head = made("GET", "https://a.test:8443/p?q=1", &cookies).unwrap();
        assert_eq!(head.uri, "/p?q=1");
        assert_eq!(head.headers[HOST], "a.test:8443");
        let cookies: Vec<_> = head.headers.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c"]);
        let options = made("OPTIONS", "https://a.test/", &[]).unwrap();
        assert_eq!(options.uri, "/");
        let same = made("GET", "http://A.test/", &[("host", "a.TEST")]).unwrap();
        assert_eq!(same.headers.get_all(HOST).iter().count(), 1);
        let without = made("GET", "/p", &[("host", "a.test")]).unwrap();
        assert_eq!(
            (&without.uri, &without.headers[HOST]),
            (&Uri::from_static("/p"), &HeaderValue::from_static("a.test"))
        );
    }

    /// EDGE-3: what RFC 9113 §8 forbids and the library lets through is refused.
    #[test]
    fn what_is_malformed_is_refused() {
        let refused = |uri, fields: &[(&str, &str)]| made("GET", uri, fields).unwrap_err();
        for (uri, fields) in [
            ("http://a.test/", &[("host", "b.test")][..]),
            ("http://a.test/", &[("host", "a.test"), ("host", "a.test")]),
            ("http://a.test/", &[("host", "a.test"), ("host", "b.test")]),
            ("http://me@a.test/", &[]),
            ("ftp://a.test/", &[]),
            ("http://a.test/", &[("x", " y")]),
            ("http://a.test/", &[("x", "y\t")]),
            (
                "http://a.test/",
                &[("content-length", "1"), ("content-length", "2")],
            ),
            ("a.test", &[]),
        ] {
            assert_eq!(refused(uri, fields), BadHead::Malformed, "{uri} {fields:?}");
        }
        let many: Vec<_> = (0..101).map(|_| ("x", "y")).collect();
        assert_eq!(refused("http://a.test/", &many), BadHead::TooManyFields);
        let pieces: Vec<_> = (0..500).map(|_| ("cookie", "y")).collect();
        assert!(made("GET", "http://a.test/", &pieces).is_ok());
    }
}
