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
    /// The lines of `Connection` that name fields.
    connection: Vec<Vec<u8>>,
    /// In an answer the fields that name the client mean nothing, and the application's own does.
    stripped: Option<Stripped>,
}

impl TrailerFilter {
    /// For a request with these fields.
    pub fn of_request(headers: &impl Fields, stripped: &Stripped) -> Self {
        Self {
            connection: nominating_lines(headers),
            stripped: Some(stripped.clone()),
        }
    }

    /// For an answer with these fields, as the application sent them. `withheld` reaches no client
    /// (APP-1).
    pub fn of_answer(headers: &HeaderMap, withheld: Option<&Stripped>) -> Self {
        Self {
            connection: nominating_lines(headers),
            stripped: withheld.cloned(),
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
        let lines: Vec<Vec<u8>> = self
            .connection
            .iter()
            .map(|line| {
                line.iter().map(|byte| match byte {
                    b',' | b' ' | b'\t' => *byte,
                    byte if byte.is_ascii_alphanumeric() => *byte,
                    _ => b'-',
                })
            })
            .map(Iterator::collect)
            .collect();
        let nominated = nominated(
            lines.iter().map(Vec::as_slice),
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

/// The lines of `Connection` that name fields; usually none.
fn nominating_lines(headers: &impl Fields) -> Vec<Vec<u8>> {
    let lines = headers.values_of(&CONNECTION);
    let naming = lines.filter(|line| naming_tokens(line).next().is_some());
    naming.map(<[u8]>::to_vec).collect()
}
