//! HTTP of no version and of no socket: the head of a request (`head.rs`), its fields, its length.

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

/// Whether the name of a field is this one, in any spelling of its letters; no other mark of a name
/// becomes a letter or a dash by the bit. A known length is compared in a few words, where the
/// comparison of the library goes byte by byte.
#[inline(always)]
pub fn is<const LENGTH: usize>(name: &str, small: &[u8; LENGTH]) -> bool {
    <&[u8; LENGTH]>::try_from(name.as_bytes()).is_ok_and(|name| {
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
    pub fn note(&mut self, name: &str, value: &[u8]) {
        // The length tells most names apart at once.
        match name.len() {
            2 => self.te |= is(name, b"te"),
            6 if is(name, b"expect") => {
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            7 => self.upgrade |= is(name, b"upgrade"),
            12 => self.request_id |= is(name, b"x-request-id"),
            14 if is(name, b"sec-fetch-site") => {
                self.other_site |= matches!(value, b"cross-site" | b"same-site");
            }
            15 => self.forwarded_for |= is(name, b"x-forwarded-for"),
            17 => self.forwarded_proto |= is(name, b"x-forwarded-proto"),
            _ => {}
        }
    }

    /// Those among these fields.
    pub fn of(fields: &impl Fields) -> Self {
        let mut known = Self::default();
        for (name, value) in fields.fields() {
            known.note(name, value);
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
