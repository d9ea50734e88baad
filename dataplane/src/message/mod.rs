//! HTTP of no version and of no socket: the head of a request (`head.rs`), the table of the fields
//! that mean something, how long a body is.

pub mod fields;
pub mod head;
pub mod trailers;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The fields of a head.
pub trait Fields {
    /// The values of one field, in their order.
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]>;
    /// Every field, its name in small letters or not.
    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])>;
}

impl Fields for HeaderMap {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let values = self.get_all(name).into_iter();
        values.map(HeaderValue::as_bytes)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let fields = self.iter();
        fields.map(|(name, value)| (name.as_str(), value.as_bytes()))
    }
}

/// How long the body of a request is. No request's body lasts until its connection closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RequestLength {
    /// Nothing is said: there is no body.
    #[default]
    Empty,
    /// `Content-Length`
    Exact(u64),
    /// Known at its end alone: `Transfer-Encoding: chunked`, or a stream of HTTP/2 without a
    /// length.
    Chunked,
}

impl RequestLength {
    /// Whether no byte of a body follows.
    pub const fn is_empty(self) -> bool {
        matches!(self, Self::Empty | Self::Exact(0))
    }

    /// The length that was announced.
    pub const fn announced(self) -> Option<u64> {
        match self {
            Self::Exact(length) => Some(length),
            Self::Empty | Self::Chunked => None,
        }
    }
}

/// The fields that mean something to the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    Authorization,
    CacheControl,
    Connection,
    ContentLength,
    ContentType,
    Cookie,
    Date,
    Expect,
    Forwarded,
    ForwardedFor,
    ForwardedHost,
    ForwardedProto,
    Host,
    KeepAlive,
    Location,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyConnection,
    Referer,
    RequestId,
    SecFetchSite,
    Te,
    TransferEncoding,
    Upgrade,
    UserAgent,
    Other,
}

impl Name {
    /// The field of this name, in any spelling of its letters.
    pub fn of(name: &str) -> Self {
        let name = name.as_bytes();
        let first = name.first().copied().unwrap_or_default();
        // The length and the first letter leave one name to compare with.
        match (name.len(), first | 0x20) {
            (2, b't') if is(name, b"te") => Self::Te,
            (4, b'd') if is(name, b"date") => Self::Date,
            (4, b'h') if is(name, b"host") => Self::Host,
            (6, b'c') if is(name, b"cookie") => Self::Cookie,
            (6, b'e') if is(name, b"expect") => Self::Expect,
            (7, b'r') if is(name, b"referer") => Self::Referer,
            (7, b'u') if is(name, b"upgrade") => Self::Upgrade,
            (8, b'l') if is(name, b"location") => Self::Location,
            (9, b'f') if is(name, b"forwarded") => Self::Forwarded,
            (10, b'c') if is(name, b"connection") => Self::Connection,
            (10, b'k') if is(name, b"keep-alive") => Self::KeepAlive,
            (10, b'u') if is(name, b"user-agent") => Self::UserAgent,
            (12, b'c') if is(name, b"content-type") => Self::ContentType,
            (12, b'x') if is(name, b"x-request-id") => Self::RequestId,
            (13, b'a') if is(name, b"authorization") => Self::Authorization,
            (13, b'c') if is(name, b"cache-control") => Self::CacheControl,
            (14, b'c') if is(name, b"content-length") => Self::ContentLength,
            (14, b's') if is(name, b"sec-fetch-site") => Self::SecFetchSite,
            (15, b'x') if is(name, b"x-forwarded-for") => Self::ForwardedFor,
            (16, b'p') if is(name, b"proxy-connection") => Self::ProxyConnection,
            (16, b'x') if is(name, b"x-forwarded-host") => Self::ForwardedHost,
            (17, b't') if is(name, b"transfer-encoding") => Self::TransferEncoding,
            (17, b'x') if is(name, b"x-forwarded-proto") => Self::ForwardedProto,
            (18, b'p') if is(name, b"proxy-authenticate") => Self::ProxyAuthenticate,
            (19, b'p') if is(name, b"proxy-authorization") => Self::ProxyAuthorization,
            _ => Self::Other,
        }
    }

    /// Whether it is always of one hop (RFC 9110 §7.6.1).
    pub const fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::KeepAlive
                | Self::ProxyAuthenticate
                | Self::ProxyAuthorization
                | Self::ProxyConnection
                | Self::Te
                | Self::TransferEncoding
                | Self::Upgrade
        )
    }
}

/// Whether a name is this one, in any spelling of its letters: the marks that a name can have are
/// the same in both cases. The length is known, and a few words are compared.
fn is<const LENGTH: usize>(name: &[u8], small: &[u8; LENGTH]) -> bool {
    <&[u8; LENGTH]>::try_from(name).is_ok_and(|name| {
        let bytes = name.iter().zip(small);
        bytes.fold(0, |differs, (byte, small)| {
            differs | ((byte | 0x20) ^ small)
        }) == 0
    })
}

/// The rare fields of a head that many ask for, noted in one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// `X-Forwarded-For`
    pub forwarded_for: bool,
    /// `X-Forwarded-Proto`
    pub forwarded_proto: bool,
    /// `X-Request-ID`
    pub request_id: bool,
    /// `Sec-Fetch-Site` with the value of a request that the page of another site had a browser
    /// make, be it a site of the same owner (Fetch Metadata, section 2.4).
    pub other_site: bool,
    /// `Upgrade`
    pub upgrade: bool,
    /// `TE`
    pub te: bool,
    /// `Expect: 100-continue`
    pub expects_continue: bool,
    /// A `Connection` that names fields (RFC 9110 §7.6.1).
    pub names_fields: bool,
}

impl Known {
    /// Notes a field, if it is one of those; `Connection` is read by who knows what it means.
    pub fn note(&mut self, name: Name, value: &[u8]) {
        match name {
            Name::Te => self.te = true,
            Name::Expect => self.expects_continue = value.eq_ignore_ascii_case(b"100-continue"),
            Name::Upgrade => self.upgrade = true,
            Name::RequestId => self.request_id = true,
            Name::SecFetchSite => self.other_site |= matches!(value, b"cross-site" | b"same-site"),
            Name::ForwardedFor => self.forwarded_for = true,
            Name::ForwardedProto => self.forwarded_proto = true,
            _ => {}
        }
    }

    /// Those among these fields.
    pub fn of(fields: &impl Fields) -> Self {
        let mut known = Self::default();
        for (name, value) in fields.fields() {
            known.note(Name::of(name), value);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the rare fields is noted by its name alone, in any spelling, and nothing else is.
    #[test]
    fn rare_fields_are_noted() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("user-agent", "x"),
                ("x-forwarded-host2", "x"),
                (name, value),
            ] {
                let name = HeaderName::try_from(name).unwrap();
                headers.insert(name, HeaderValue::from_static(value));
            }
            Known::of(&headers)
        };
        assert_eq!(of("x-request-i2", "x"), Known::default());
        assert_eq!(of("sec-fetch-site", "same-origin"), Known::default());
        let noted = |note: fn(&mut Known)| {
            let mut known = Known::default();
            note(&mut known);
            known
        };
        for (name, value, expected) in [
            ("TE", "x", noted(|known| known.te = true)),
            ("Upgrade", "x", noted(|known| known.upgrade = true)),
            ("X-Request-ID", "x", noted(|known| known.request_id = true)),
            (
                "X-Forwarded-For",
                "x",
                noted(|known| known.forwarded_for = true),
            ),
            (
                "X-Forwarded-Proto",
                "x",
                noted(|known| known.forwarded_proto = true),
            ),
            (
                "Sec-Fetch-Site",
                "cross-site",
                noted(|known| known.other_site = true),
            ),
            (
                "sec-fetch-site",
                "same-site",
                noted(|known| known.other_site = true),
            ),
        ] {
            assert_eq!(of(name, value), expected, "{name}");
        }
        assert!(of("expect", "100-Continue").expects_continue);
    }
}
