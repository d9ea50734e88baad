//! What the control plane is told of an offence: an exceeded limit, a broken rule (LIMIT-6, BAN-4).

use std::sync::Arc;

use http::header::{HOST, USER_AGENT};
use http::{HeaderName, HeaderValue};
use weir_shared::ban::{RequestNote, Scope};
use weir_shared::client::Client;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::rules::{Quota, Rule};
use weir_shared::verdict::LimitHit;

use crate::clients::entry::Exceeded;
use crate::head::Head;

/// Bytes of each text of a request that a ban's notes keep (TELL-3): with 100,000 bans a client
/// could otherwise fill memory, and bans.json beyond what a start reads.
const MAX_NOTE: usize = 256;

/// The offence of who asked for a path of a trap.
pub fn trapped(trap: Option<&Arc<Rule>>, scope: Scope) -> Option<Offence> {
    trap.map(|trap| Offence::Rule {
        rule: Arc::clone(trap),
        quota: None,
        scope,
    })
}

/// The offence of who filled a jail.
pub fn jailed(exceeded: &Exceeded, jail: &Arc<Rule>, scope: Scope) -> Option<Offence> {
    match offence(exceeded, 100, Some(jail))? {
        Offence::Rule { rule, quota, .. } => Some(Offence::Rule { rule, quota, scope }),
        limit @ Offence::Limit { .. } => Some(limit),
    }
}

/// The offence of an exceeded limit, after the percentage that was applied; none where the limit
/// only refuses.
pub fn offence(exceeded: &Exceeded, percent: u8, rule: Option<&Arc<Rule>>) -> Option<Offence> {
    let value = exceeded.value;
    match (exceeded.limit, rule) {
        (LimitHit::Window(kind), _) => Some(Offence::Limit {
            kind,
            value,
            percent,
        }),
        (LimitHit::Rule(span), Some(rule)) => Some(Offence::Rule {
            rule: Arc::clone(rule),
            quota: Some(Quota { span, limit: value }),
            scope: Scope::Netblock,
        }),
        (LimitHit::Rule(_) | LimitHit::Second | LimitHit::Concurrent, _) => None,
    }
}

/// The report of an offence at `at_ms`.
pub fn report(
    offence: Offence,
    at_ms: u64,
    client: Client,
    head: &impl Head,
    request_id: &HeaderValue,
) -> LimitExceeded {
    let text = |value: &[u8]| note(&String::from_utf8_lossy(value));
    let first = |name: &HeaderName| head.values_of(name).next().map(text);
    LimitExceeded {
        client,
        offence,
        at_ms,
        request: RequestNote {
            method: Some(note(head.method())),
            host: first(&HOST),
            path: Some(note(head.path())),
            user_agent: first(&USER_AGENT),
            request_id: Some(text(request_id.as_bytes())),
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
