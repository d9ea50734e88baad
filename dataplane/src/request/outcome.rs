//! How a request ends. Why it is refused, in the words of the log; what the control plane is told
//! of an offence (LIMIT-6, BAN-4); and one pure step from its end to what is counted, charged and
//! logged.

use std::sync::Arc;

use http::header::{HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, StatusCode};
use weir_shared::ban::{Expiry, RequestNote, Scope};
use weir_shared::client::Client;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::rules::{Quota, Rule};
use weir_shared::settings::{BanResponse, BanSettings, BytesCount, LogRequests, Settings};
use weir_shared::snapshot::ActiveBan;
use weir_shared::verdict::{Action, AppliedPercent, History, LimitHit};

use crate::clients::entry::Exceeded;
use crate::message::{Fields as _, Form, Head};

/// The settings that the outcome depends on.
#[derive(Clone, Copy, Debug)]
pub struct Accounting {
    /// `WAF_MODE=observe`
    pub observe: bool,
    /// `WAF_BYTES_COUNT`
    pub bytes_count: BytesCount,
    /// `WAF_LOG_REQUESTS`
    pub log_requests: LogRequests,
    /// `WAF_LOG_REFUSED_RATE`
    pub log_refused_rate: Option<u32>,
    /// `WAF_MAX_BODY_SIZE`
    pub max_body_size: Option<u64>,
}

/// A request at its end.
#[derive(Clone, Copy, Debug)]
pub struct AtEnd {
    /// How it ended.
    pub action: Action,
    /// In observe mode, the refusal that enforce mode would have made (CHECK-3).
    pub shadow_action: Option<Action>,
    /// The entry in the client's history, where the action does not decide it.
    pub history: Option<History>,
    /// Passed on to the application.
    pub forwarded: bool,
    /// The rate limits counted it.
    pub counted: bool,
    /// It asked for a WebSocket.
    pub websocket: bool,
    /// Body or WebSocket bytes from the client.
    pub request_bytes: u64,
    /// Body or WebSocket bytes to the client.
    pub response_bytes: u64,
}

/// The consequences of the end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The action that is logged and counted.
    pub action: Action,
    /// False where observe mode let through what enforce mode would have refused.
    pub enforced: bool,
    /// What the client's history counts (CHECK-4).
    pub history: History,
    /// Bytes that are charged to the client (LIMIT-5).
    pub charged_bytes: Option<u64>,
    /// Whether the request is logged (LOG).
    pub logged: bool,
}

impl Accounting {
    /// Those among the settings.
    pub const fn of(settings: &Settings) -> Self {
        Self {
            observe: settings.observe,
            bytes_count: settings.limits.bytes_count,
            log_requests: settings.log.requests,
            log_refused_rate: settings.log.refused_rate,
            max_body_size: settings.limits.max_body_size,
        }
    }

    /// The outcome of a request.
    pub fn outcome(&self, request: &AtEnd) -> Outcome {
        let too_large = self.observe && self.is_too_large(request);
        let shadow_action = request
            .shadow_action
            .or(too_large.then_some(Action::BodyTooLarge));
        let action = shadow_action.unwrap_or(request.action);
        // In observe mode what enforce mode would have refused is not charged (CHECK-3).
        let charges = request.forwarded && request.counted && shadow_action.is_none();
        Outcome {
            action,
            enforced: shadow_action.is_none(),
            history: request.history.unwrap_or_else(|| request.action.history()),
            charged_bytes: charges.then(|| self.bytes(request)),
            logged: self.logs(action),
        }
    }

    /// Whether a request that ends so is logged.
    pub fn logs(&self, action: Action) -> bool {
        match self.log_requests {
            LogRequests::All => true,
            LogRequests::Refused => {
                let is_refused = matches!(action, Action::Unauthorized | Action::Overloaded);
                action.is_refusal() || is_refused
            }
            LogRequests::Off => false,
        }
    }

    /// A body that proved too large on its way. What a WebSocket carries is no body.
    fn is_too_large(&self, request: &AtEnd) -> bool {
        let checked = request.forwarded && request.counted && !request.websocket;
        checked
            && self
                .max_body_size
                .is_some_and(|limit| request.request_bytes > limit)
    }

    fn bytes(&self, request: &AtEnd) -> u64 {
        match self.bytes_count {
            BytesCount::Both => request.request_bytes.saturating_add(request.response_bytes),
            BytesCount::Request => request.request_bytes,
            BytesCount::Response => request.response_bytes,
        }
    }
}

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
    match offence(exceeded, [None; 2], Some(jail))? {
        Offence::Rule { rule, quota, .. } => Some(Offence::Rule { rule, quota, scope }),
        other @ (Offence::Limit { .. } | Offence::Application(_)) => Some(other),
    }
}

/// The offence of an exceeded limit, with the percentage that lowered it: the first one lowers
/// limits of requests, the second one those of bytes. None where the limit only refuses.
pub fn offence(
    exceeded: &Exceeded,
    [limit_percent, bytes_percent]: [Option<AppliedPercent>; 2],
    rule: Option<&Arc<Rule>>,
) -> Option<Offence> {
    let value = exceeded.value;
    match (exceeded.limit, rule) {
        (LimitHit::Window(kind), _) => {
            let applied = if kind.counts_bytes() {
                bytes_percent
            } else {
                limit_percent
            };
            Some(Offence::Limit {
                kind,
                value,
                percent: applied.map_or(100, |applied| applied.percent),
            })
        }
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
    head: &Head<impl Form>,
    request_id: &HeaderValue,
) -> LimitExceeded {
    let text = |value: &[u8]| note(&String::from_utf8_lossy(value));
    let first = |name: &HeaderName| head.values_of(name).next().map(text);
    LimitExceeded {
        client,
        offence,
        at_ms,
        fleet: None,
        request: Some(RequestNote {
            method: Some(note(head.method.as_str())),
            host: first(&HOST),
            path: Some(note(head.path())),
            user_agent: first(&USER_AGENT),
            request_id: Some(text(request_id.as_bytes())),
        }),
    }
}

fn note(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_NOTE);
    text.get(..end).unwrap_or_default().to_owned()
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// `WAF_DENY_NETS`
    DeniedNet,
    /// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES`
    DeniedCountry,
    /// `WAF_DENY_ASNS` (MATCH-5)
    DeniedAsn,
    /// An entry of `denials`, with the answer that it gives; none for `WAF_DENY_RESPONSE`
    /// (MATCH-3).
    DeniedRule(Option<BanResponse>),
    /// An active ban.
    Banned(ActiveBan),
    /// An exceeded limit.
    RateLimited {
        /// Which.
        exceeded: Exceeded,
        /// The end of the ban that follows; none where no ban can be made.
        ban: Option<Expiry>,
    },
    /// A path of a trap (RULE-3).
    Trapped {
        /// What a ban covers by the rule; none where the page of another site asked, and no ban
        /// follows (RULE-8).
        bans: Option<Scope>,
        /// Whether nobody was told of an offence of this client yet.
        first: bool,
        /// The end of the ban that follows; none where no ban can be made.
        ban: Option<Expiry>,
    },
    /// `Content-Length` over `WAF_MAX_BODY_SIZE`.
    BodyTooLarge,
}

impl Refusal {
    /// Whether it stands for whatever the client asks for.
    pub const fn is_of_the_client(self) -> bool {
        match self {
            Self::DeniedNet | Self::DeniedCountry | Self::DeniedAsn | Self::Banned(_) => true,
            Self::DeniedRule(_)
            | Self::RateLimited { .. }
            | Self::Trapped { .. }
            | Self::BodyTooLarge => false,
        }
    }

    /// Whether it is a matter of time (TELL-1).
    pub const fn waits(self) -> bool {
        match self {
            Self::Banned(_) | Self::RateLimited { .. } => true,
            Self::DeniedNet
            | Self::DeniedCountry
            | Self::DeniedAsn
            | Self::DeniedRule(_)
            | Self::Trapped { .. }
            | Self::BodyTooLarge => false,
        }
    }

    /// The action that the log, the metrics and the history are told.
    pub const fn action(self) -> Action {
        match self {
            Self::DeniedNet => Action::DeniedNet,
            Self::DeniedCountry => Action::DeniedCountry,
            Self::DeniedAsn => Action::DeniedAsn,
            Self::DeniedRule(_) => Action::DeniedRule,
            Self::Banned(_) => Action::Banned,
            Self::RateLimited { .. } => Action::RateLimited,
            Self::Trapped { .. } => Action::Trapped,
            Self::BodyTooLarge => Action::BodyTooLarge,
        }
    }
}

/// Status or closed connection of bans and denials.
#[derive(Clone, Copy, Debug)]
pub struct Responses {
    /// `WAF_BAN_RESPONSE`
    pub ban: BanResponse,
    /// `WAF_DENY_RESPONSE`
    pub deny: BanResponse,
}

impl Responses {
    /// Those of the settings.
    pub fn of(settings: &BanSettings) -> Self {
        Self {
            ban: settings.response,
            deny: settings.deny_response.unwrap_or(settings.response),
        }
    }

    /// What a refusal gets, and the milliseconds after which a retry makes sense. `can_ban` is
    /// whether a ban that it announces can be made.
    pub fn to(self, refusal: &Refusal, now_ms: u64, can_ban: bool) -> (BanResponse, Option<u64>) {
        match refusal {
            Refusal::RateLimited {
                ban: Some(expiry), ..
            } if can_ban => (self.ban, expiry.remaining_ms(now_ms)),
            Refusal::RateLimited { exceeded, .. } => (
                BanResponse::Status(StatusCode::TOO_MANY_REQUESTS),
                exceeded.fits_in_ms,
            ),
            // Nobody is to be shut out by the page of another site, neither is his connection
            // closed.
            Refusal::Trapped { bans: None, .. } => {
                (BanResponse::Status(StatusCode::TOO_MANY_REQUESTS), None)
            }
            Refusal::BodyTooLarge => (BanResponse::Status(StatusCode::PAYLOAD_TOO_LARGE), None),
            Refusal::DeniedRule(Some(answer)) => (*answer, None),
            of_client => self.to_client(of_client, now_ms),
        }
    }

    /// The answer to a client that is refused whatever it asks for.
    pub fn to_client(self, refusal: &Refusal, now_ms: u64) -> (BanResponse, Option<u64>) {
        match refusal {
            Refusal::Banned(ban) => (self.ban, ban.expires.remaining_ms(now_ms)),
            _ => (self.deny, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENFORCE: Accounting = Accounting {
        observe: false,
        bytes_count: BytesCount::Both,
        log_requests: LogRequests::All,
        log_refused_rate: None,
        max_body_size: Some(100),
    };
    const OBSERVE: Accounting = Accounting {
        observe: true,
        ..ENFORCE
    };
    const PASSED: AtEnd = AtEnd {
        action: Action::Passed,
        shadow_action: None,
        history: None,
        forwarded: true,
        counted: true,
        websocket: false,
        request_bytes: 7,
        response_bytes: 20,
    };

    /// LIMIT-5: bytes are charged as the setting says, for requests that were passed on and
    /// counted.
    #[test]
    fn bytes_are_charged_as_the_setting_says() {
        for (bytes_count, charged) in [
            (BytesCount::Both, 27),
            (BytesCount::Request, 7),
            (BytesCount::Response, 20),
        ] {
            let accounting = Accounting {
                bytes_count,
                ..ENFORCE
            };
            let outcome = accounting.outcome(&PASSED);
            assert_eq!(outcome.charged_bytes, Some(charged), "{bytes_count:?}");
        }
        for free in [
            AtEnd {
                forwarded: false,
                ..PASSED
            },
            AtEnd {
                counted: false,
                ..PASSED
            },
        ] {
            assert_eq!(ENFORCE.outcome(&free).charged_bytes, None, "{free:?}");
        }
        let endless = AtEnd {
            request_bytes: u64::MAX,
            ..PASSED
        };
        assert_eq!(ENFORCE.outcome(&endless).charged_bytes, Some(u64::MAX));
    }

    /// CHECK-3: in observe mode the refusal that enforce mode would have made is what is counted
    /// and logged; the history counts what happened, and nothing is charged.
    #[test]
    fn observe_mode_says_what_enforce_mode_would_do() {
        let banned = AtEnd {
            shadow_action: Some(Action::Banned),
            ..PASSED
        };
        assert_eq!(
            OBSERVE.outcome(&banned),
            Outcome {
                action: Action::Banned,
                enforced: false,
                history: History::Passed,
                charged_bytes: None,
                logged: true,
            }
        );
    }

    /// CHECK-3, LIMIT-5: a body that proves too large in observe mode is named, unless something
    /// else would have refused the request before, or it is a WebSocket, or nothing checked it.
    #[test]
    fn observe_mode_names_a_body_that_proves_too_large() {
        let large = AtEnd {
            request_bytes: 101,
            ..PASSED
        };
        let action = |accounting: Accounting, request: AtEnd| accounting.outcome(&request).action;
        assert_eq!(action(OBSERVE, large), Action::BodyTooLarge);
        assert_eq!(OBSERVE.outcome(&large).charged_bytes, None);
        assert_eq!(action(ENFORCE, large), Action::Passed);
        for (request, expected) in [
            (
                AtEnd {
                    request_bytes: 100,
                    ..large
                },
                Action::Passed,
            ),
            (
                AtEnd {
                    websocket: true,
                    ..large
                },
                Action::Passed,
            ),
            (
                AtEnd {
                    counted: false,
                    ..large
                },
                Action::Passed,
            ),
            (
                AtEnd {
                    shadow_action: Some(Action::Banned),
                    ..large
                },
                Action::Banned,
            ),
        ] {
            assert_eq!(action(OBSERVE, request), expected, "{request:?}");
        }
    }

    /// CHECK-4: who answers decides what the history counts; otherwise the action does.
    #[test]
    fn the_history_is_the_actions_unless_said_otherwise() {
        for action in Action::ALL {
            let request = AtEnd { action, ..PASSED };
            assert_eq!(ENFORCE.outcome(&request).history, action.history());
            let metrics = AtEnd {
                history: Some(History::Neither),
                ..request
            };
            assert_eq!(ENFORCE.outcome(&metrics).history, History::Neither);
        }
    }

    /// LOG: `refused` logs refusals, those that observe mode let through among them, 401, and what
    /// found no place at the application.
    #[test]
    fn refused_requests_are_logged() {
        let accounting = Accounting {
            log_requests: LogRequests::Refused,
            ..OBSERVE
        };
        for action in Action::ALL {
            let besides = [Action::Unauthorized, Action::Overloaded];
            let refused = action.is_refusal() || besides.contains(&action);
            let request = AtEnd { action, ..PASSED };
            assert_eq!(accounting.outcome(&request).logged, refused, "{action:?}");
            let off = Accounting {
                log_requests: LogRequests::Off,
                ..OBSERVE
            };
            assert!(!off.outcome(&request).logged);
        }
        let shadowed = AtEnd {
            shadow_action: Some(Action::RateLimited),
            ..PASSED
        };
        assert!(accounting.outcome(&shadowed).logged);
    }
}

#[cfg(test)]
mod limit_break_tests {
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
