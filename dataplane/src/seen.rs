//! Which fields a request's head has of those that are seldom there and asked for by many: seen in
//! one pass, where each look into the map would cost a hash.

use crate::head::Fields;

/// Which of them are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// `Transfer-Encoding`
    pub transfer_encoding: bool,
    /// `Upgrade`
    pub upgrade: bool,
    /// `X-Forwarded-For`
    pub forwarded_for: bool,
    /// `X-Forwarded-Proto`
    pub forwarded_proto: bool,
    /// `X-Request-ID`
    pub request_id: bool,
    /// `Sec-Fetch-Site` with the value of a request that the page of another site had a browser
    /// make, be it a site of the same owner (Fetch Metadata, section 2.4).
    pub other_site: bool,
}

impl Seen {
    /// Looks at the names once.
    pub fn of(head: &impl Fields) -> Self {
        let mut seen = Self::default();
        for (name, value) in head.fields() {
            // The length tells most names apart at once.
            let is = |expected: &str| name.eq_ignore_ascii_case(expected);
            match name.len() {
                7 => seen.upgrade |= is("upgrade"),
                12 => seen.request_id |= is("x-request-id"),
                14 if is("sec-fetch-site") => {
                    seen.other_site |= matches!(value, b"cross-site" | b"same-site");
                }
                15 => seen.forwarded_for |= is("x-forwarded-for"),
                17 => {
                    seen.transfer_encoding |= is("transfer-encoding");
                    seen.forwarded_proto |= is("x-forwarded-proto");
                }
                _ => {}
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use http::header::{TRANSFER_ENCODING, UPGRADE};
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::identity::{X_FORWARDED_FOR, X_FORWARDED_PROTO, X_REQUEST_ID};

    /// What is seen is what the map has, field by field.
    #[test]
    fn what_is_there_is_seen() {
        let of = |name: &HeaderName| {
            let mut headers = HeaderMap::new();
            headers.insert("user-agent", HeaderValue::from_static("x"));
            headers.insert("x-forwarded-host2", HeaderValue::from_static("x"));
            headers.insert(name, HeaderValue::from_static("x"));
            Seen::of(&headers)
        };
        let none = Seen::default();
        assert_eq!(of(&HeaderName::from_static("x-request-i2")), none);
        let seen = [
            of(&TRANSFER_ENCODING),
            of(&UPGRADE),
            of(&X_FORWARDED_FOR),
            of(&X_FORWARDED_PROTO),
            of(&X_REQUEST_ID),
        ];
        let transfer_encoding = Seen {
            transfer_encoding: true,
            ..none
        };
        let upgrade = Seen {
            upgrade: true,
            ..none
        };
        let forwarded_for = Seen {
            forwarded_for: true,
            ..none
        };
        let forwarded_proto = Seen {
            forwarded_proto: true,
            ..none
        };
        let request_id = Seen {
            request_id: true,
            ..none
        };
        let wanted = [
            transfer_encoding,
            upgrade,
            forwarded_for,
            forwarded_proto,
            request_id,
        ];
        assert_eq!(seen, wanted);
    }
}
