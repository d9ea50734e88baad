//! What the control plane is told of an exceeded limit (LIMIT-6, BAN-4).

use http::HeaderValue;
use http::header::{HOST, USER_AGENT};
use http::request::Parts;
use weir_shared::ban::RequestNote;
use weir_shared::client::Client;
use weir_shared::event::LimitExceeded;
use weir_shared::verdict::LimitKind;

use crate::clients::entry::Exceeded;

/// Text of a request that a ban's notes keep, characters.
const MAX_NOTE: usize = 1024;

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
    text.chars().take(MAX_NOTE).collect()
}
