//! Trailer fields on their way through: none whose name would be removed or replaced as a header
//! field, in either spelling of dash and underscore (FORWARD-1, RFC 9110 §6.5.1).

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, MAX_FORWARDS,
    SET_COOKIE, TRAILER, WWW_AUTHENTICATE,
};

use crate::message::Fields;
use crate::message::fields::{
    Stripped, X_CLIENT_ASN, X_CLIENT_COUNTRY, is_forwarding, is_of_one_hop, naming_tokens,
    nominated, read_as,
};
use crate::request::identity::X_REQUEST_ID;

/// Which trailer fields of a message go on.
pub struct TrailerFilter {
    /// The lines of `Connection` that name fields, with dashes for all other marks; usually none.
    connection: Vec<Vec<u8>>,
    /// Further fields that end here.
    stripped: Option<Stripped>,
}

impl TrailerFilter {
    /// For a message with these fields. `stripped` are the fields of a request that an untrusted
    /// peer has no say in, or the field of an answer that reaches no client (APP-1).
    pub fn of(fields: &impl Fields, stripped: Option<&Stripped>) -> Self {
        let dashed = |byte: &u8| match byte {
            b',' | b' ' | b'\t' => *byte,
            byte if byte.is_ascii_alphanumeric() => *byte,
            _ => b'-',
        };
        let lines = fields.values_of(&CONNECTION);
        let naming = lines.filter(|line| naming_tokens(line).next().is_some());
        Self {
            connection: naming
                .map(|line| line.iter().map(dashed).collect())
                .collect(),
            stripped: stripped.cloned(),
        }
    }

    /// Removes what does not go on.
    pub fn apply(&self, trailers: &mut HeaderMap) {
        let dashed = |name: &HeaderName| {
            HeaderName::try_from(read_as(name.as_str())).unwrap_or_else(|_| name.clone())
        };
        let names: Vec<(HeaderName, HeaderName)> = trailers
            .keys()
            .map(|name| (name.clone(), dashed(name)))
            .collect();
        let nominated = nominated(
            self.connection.iter().map(Vec::as_slice),
            names.iter().map(|(_, dashed)| dashed),
        );
        for (name, dashed) in names {
            if self.stops(&dashed) || nominated.contains(&dashed) {
                trailers.remove(name);
            }
        }
    }

    /// Whether a field ends here, its name written with dashes.
    fn stops(&self, name: &HeaderName) -> bool {
        is_of_one_hop(name.as_str())
            || is_forwarding(name.as_str())
            || (self.stripped.as_ref()).is_some_and(|stripped| stripped.has(name.as_str()))
            || [
                // Ours.
                X_CLIENT_ASN,
                X_CLIENT_COUNTRY,
                X_REQUEST_ID,
                // Framing and routing (RFC 9110 §6.5.1).
                CONTENT_LENGTH,
                TRAILER,
                EXPECT,
                HOST,
                MAX_FORWARDS,
                // Authentication.
                AUTHORIZATION,
                WWW_AUTHENTICATE,
                COOKIE,
                SET_COOKIE,
            ]
            .contains(name)
    }
}
