//! The outcome of a request: one pure step from how it ended to what is counted, charged and
//! logged.

use weir_shared::settings::{BytesCount, LogRequests, Settings};
use weir_shared::verdict::{Action, History};

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
            LogRequests::Refused => action.is_refusal() || action == Action::Unauthorized,
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

    /// LOG: `refused` logs refusals, those that observe mode let through among them, and 401.
    #[test]
    fn refused_requests_are_logged() {
        let accounting = Accounting {
            log_requests: LogRequests::Refused,
            ..OBSERVE
        };
        for action in Action::ALL {
            let refused = action.is_refusal() || action == Action::Unauthorized;
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
