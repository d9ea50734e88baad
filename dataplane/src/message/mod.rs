//! The head of a request as those read it who only look: in the bytes that it came in, or as a text
//! of its own (`request_head.rs`).

pub mod fields;
pub mod head;
pub mod trailers;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use weir_shared::rules::Sent;

/// The fields of a head.
pub trait Fields {
    /// The values of one field, in their order.
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]>;
    /// Every field, its name in small letters or not.
    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])>;
}

/// The head of a request.
pub trait Head: Fields + Sent {
    /// Its method.
    fn method(&self) -> &Method;
    /// The path of its target.
    fn path(&self) -> &str;
    /// What follows the `?`.
    fn query(&self) -> Option<&str>;
    /// Of HTTP.
    fn version(&self) -> Version;
    /// `Host`, or the host of an absolute target, which replaces it.
    fn host(&self) -> Option<&[u8]>;
    /// How long the body is.
    fn length(&self) -> RequestLength;
    /// Which of the rare fields are there.
    fn known(&self) -> Known;
}

/// What the rules ask of a head is what it says.
macro_rules! sent_by_head {
    ($head:ty) => {
        impl weir_shared::rules::Sent for $head {
            fn host_sent(&self) -> Option<&[u8]> {
                $crate::message::Head::host(self)
            }

            fn query_sent(&self) -> weir_shared::rules::Told<Option<&str>> {
                weir_shared::rules::Told::Known($crate::message::Head::query(self))
            }

            fn each_line(
                &self,
                name: &http::HeaderName,
                see: &mut dyn FnMut(&[u8]),
            ) -> weir_shared::rules::Told<()> {
                // The application gets the host of an absolute target, whatever the field says.
                if *name == http::header::HOST {
                    $crate::message::Head::host(self).into_iter().for_each(see);
                } else {
                    $crate::message::Fields::values_of(self, name).for_each(see);
                }
                weir_shared::rules::Told::Known(())
            }

            fn each_spelling(
                &self,
                name: &http::HeaderName,
                see: &mut dyn FnMut(&[u8]),
            ) -> weir_shared::rules::Told<()> {
                if *name == http::header::HOST {
                    return weir_shared::rules::Sent::each_line(self, name, see);
                }
                let fields = $crate::message::Fields::fields(self);
                let is_it = |field: &str| weir_shared::rules::is_read_as(field, name.as_str());
                fields
                    .filter(|(field, _)| is_it(field))
                    .for_each(|(_, value)| see(value));
                weir_shared::rules::Told::Known(())
            }
        }
    };
}
pub(crate) use sent_by_head;

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
    /// `Expect`, whatever it says.
    pub expect: bool,
    /// `Expect: 100-continue`
    pub expects_continue: bool,
    /// A `Connection` that names fields (RFC 9110 §7.6.1).
    pub names_fields: bool,
}

impl Known {
    /// Notes a field, if it is one of those; `Connection` is read by who knows what it means.
    pub fn note(&mut self, name: &str, value: &[u8]) {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        // The length tells most names apart at once.
        match name.len() {
            2 => self.te |= is("te"),
            6 if is("expect") => {
                self.expect = true;
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            7 => self.upgrade |= is("upgrade"),
            12 => self.request_id |= is("x-request-id"),
            14 if is("sec-fetch-site") => {
                self.other_site |= matches!(value, b"cross-site" | b"same-site");
            }
            15 => self.forwarded_for |= is("x-forwarded-for"),
            17 => self.forwarded_proto |= is("x-forwarded-proto"),
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
            ("Expect", "x", noted(|known| known.expect = true)),
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
        let expects = of("expect", "100-Continue");
        assert!(expects.expect && expects.expects_continue);
    }
}
