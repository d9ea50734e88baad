//! What the control plane is told of an exceeded limit (LIMIT-6, BAN-4).

use http::HeaderValue;
use http::header::{HOST, USER_AGENT};
use http::request::Parts;
use weir_shared::ban::RequestNote;
use weir_shared::client::Client;
use weir_shared::event::LimitExceeded;
use weir_shared::verdict::LimitKind;

use crate::clients::entry::Exceeded;

/// Bytes of each text of a request that a ban's notes keep (TELL-3): with 100,000 bans a client
/// could otherwise fill memory, and bans.json beyond what a start reads.
const MAX_NOTE: usize = 256;

/// The report of a limit that a request exceeded at `at_ms`, after the percentage that was applied.
pub fn report(
    limit: LimitKind,
    exceeded: &Exceeded,
    limit_percent: u8,
    at_ms: u64,
    client: Client,
    head: &Parts,
    request_id: &HeaderValue,
) -> LimitExceeded {
    let text = |value: &HeaderValue| note(&String::from_utf8_lossy(value.as_bytes()));
    LimitExceeded {
        client,
        limit,
        limit_value: exceeded.value,
        limit_percent,
        at_ms,
        request: RequestNote {
            method: Some(note(head.method.as_str())),
            host: head.headers.get(HOST).map(text),
            path: Some(note(head.uri.path())),
            user_agent: head.headers.get(USER_AGENT).map(text),
            request_id: Some(text(request_id)),
        },
    }
}

fn note(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_NOTE);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TELL-3: a text of a note is cut at 256 bytes, between two characters.
    #[test]
    fn texts_of_a_note_are_cut() {
        assert_eq!(note("short"), "short");
        assert_eq!(note(&"x".repeat(5000)).len(), 256);
        let cut = note(&format!("x{}", "é".repeat(5000)));
        assert_eq!(cut, format!("x{}", "é".repeat(127)));
        assert_eq!(note(&"\u{1f980}".repeat(100)).chars().count(), 64);
    }
}
