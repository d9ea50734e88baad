//! Trailer fields on their way through: none whose name would be removed or replaced as a header
//! field, in either spelling of dash and underscore (FORWARD-1, RFC 9110 §6.5.1).

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, MAX_FORWARDS,
    SET_COOKIE, TRAILER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue};
use hyper::body::Frame;

use crate::headers::{
    Stripped, X_CLIENT_ASN, X_CLIENT_COUNTRY, is_forwarding, is_hop_by_hop, naming_tokens,
    nominated, read_as,
};
use crate::identity::X_REQUEST_ID;

/// Which trailer fields of a message go on.
pub struct TrailerFilter {
    /// The lines of `Connection` that name fields.
    connection: Vec<HeaderValue>,
    /// In an answer the fields that name the client mean nothing.
    stripped: Option<Stripped>,
}

impl TrailerFilter {
    /// For a request with these fields.
    pub fn of_request(headers: &HeaderMap, stripped: &Stripped) -> Self {
        Self {
            connection: nominating_lines(headers),
            stripped: Some(stripped.clone()),
        }
    }

    /// For an answer with these fields, as the application sent them.
    pub fn of_answer(headers: &HeaderMap) -> Self {
        Self {
            connection: nominating_lines(headers),
            stripped: None,
        }
    }

    /// Removes what does not go on from a frame that holds trailer fields.
    pub fn apply_to_frame(&self, frame: &mut Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_mut() {
            self.apply(trailers);
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
                line.as_bytes().iter().map(|byte| match byte {
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
        is_hop_by_hop(name)
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
fn nominating_lines(headers: &HeaderMap) -> Vec<HeaderValue> {
    let lines = headers.get_all(CONNECTION).into_iter();
    lines
        .filter(|line| naming_tokens(line.as_bytes()).next().is_some())
        .cloned()
        .collect()
}
