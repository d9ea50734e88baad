//! Answers of the endpoints: JSON on success, and problem documents (RFC 9457) for every error
//! (ADMIN-3).

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use weir_shared::handover::OwnResponse;
use weir_shared::verdict::{Action, History};

use crate::refusals::KEPT;

/// What is wrong with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Problem {
    /// The request cannot be understood: 400.
    BadRequest(String),
    /// The token is missing or wrong: 401.
    Unauthorized,
    /// The read token does not allow a change: 401.
    ReadOnly,
    /// No such path: 404.
    NotFound,
    /// No refusal of a request with this id is remembered: 404.
    UnknownRequest,
    /// There is no fleet: 404.
    NoFleet,
    /// The path exists, and does not have this method: 405.
    MethodNotAllowed {
        /// The `Allow` field.
        allow: &'static str,
    },
    /// The ledger is full of bans that may not be dropped: 409.
    Full {
        /// `WAF_MAX_BANS`
        max_bans: usize,
    },
    /// The `Host` field names another host: 421 (CONTROL-1).
    Misdirected,
    /// The body is too large: 413.
    TooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// The body is JSON and has faults: 422.
    DoesNotFit(Vec<Fault>),
    /// The file to change has faults: 409.
    Unfit(String),
    /// A file could not be changed: 500.
    NotWritten(String),
    /// A reload is refused, with its faults: 422.
    NotReloaded(Vec<String>),
    /// No process takes over: 500.
    NotUpgraded(String),
    /// No further listener of the events is allowed: 503.
    TooManyListeners {
        /// The most listeners.
        most: usize,
    },
    /// The control plane is behind or stopping: 503.
    Busy,
    /// Another process takes over at this moment: 503 (RESTART-4).
    HandingOver,
}

/// One fault of a body.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Fault {
    /// JSON pointer (RFC 6901) to the faulty value; empty for the whole body.
    pub(crate) pointer: String,
    /// What is wrong and what is expected.
    pub(crate) detail: String,
}

/// The members of a problem document, in the order they are written.
#[derive(Serialize)]
struct Document<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
}

impl Problem {
    /// The problem document.
    pub(crate) fn answer(&self, request_id: &str) -> OwnResponse {
        let (status, detail) = self.told();
        let faults = self.faults();
        let document = Document {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: &detail,
            request_id,
            errors: &faults,
        };
        let action = match self {
            Self::Unauthorized | Self::ReadOnly => Action::Unauthorized,
            Self::NotFound | Self::UnknownRequest | Self::NoFleet => Action::NotFound,
            Self::BadRequest(_)
            | Self::MethodNotAllowed { .. }
            | Self::Full { .. }
            | Self::TooLarge { .. }
            | Self::DoesNotFit(_)
            | Self::Misdirected
            | Self::Unfit(_)
            | Self::NotWritten(_)
            | Self::NotReloaded(_)
            | Self::NotUpgraded(_)
            | Self::TooManyListeners { .. }
            | Self::Busy
            | Self::HandingOver => Action::Answered,
        };
        let mut answer = answer(
            status,
            "application/problem+json",
            body_of(&document),
            action,
        );
        match self {
            Self::Unauthorized | Self::ReadOnly => {
                let scheme = HeaderValue::from_static("Bearer");
                answer.headers.insert(WWW_AUTHENTICATE, scheme);
            }
            Self::MethodNotAllowed { allow } => {
                let allow = HeaderValue::from_static(allow);
                answer.headers.insert(ALLOW, allow);
            }
            Self::TooManyListeners { .. } | Self::Busy | Self::HandingOver => {
                let seconds = HeaderValue::from_static("1");
                answer.headers.insert(RETRY_AFTER, seconds);
            }
            _ => {}
        }
        answer
    }

    fn faults(&self) -> Vec<Fault> {
        let of_settings = |detail: &String| Fault {
            pointer: String::new(),
            detail: detail.clone(),
        };
        match self {
            Self::DoesNotFit(faults) => faults.clone(),
            Self::NotReloaded(faults) => faults.iter().map(of_settings).collect(),
            _ => Vec::new(),
        }
    }

    // long: a flat list of the problems
    fn told(&self) -> (StatusCode, String) {
        match self {
            Self::BadRequest(detail) => (StatusCode::BAD_REQUEST, detail.clone()),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong: Authorization: Bearer <token> is needed".to_owned(),
            ),
            Self::ReadOnly => (
                StatusCode::UNAUTHORIZED,
                "this token may read and change nothing: that of WAF_ADMIN_TOKEN or WAF_ADMIN_TOKEN_FILE is needed"
                    .to_owned(),
            ),
            Self::NotFound => (StatusCode::NOT_FOUND, "there is nothing here".to_owned()),
            Self::UnknownRequest => (
                StatusCode::NOT_FOUND,
                format!("none of the last {KEPT} refusals and no ban names this request"),
            ),
            Self::NoFleet => (
                StatusCode::NOT_FOUND,
                "this instance is of no fleet: WAF_FLEET is off".to_owned(),
            ),
            Self::MethodNotAllowed { allow } => (
                StatusCode::METHOD_NOT_ALLOWED,
                format!("this method is not allowed here: expected {allow}"),
            ),
            Self::Full { max_bans } => (
                StatusCode::CONFLICT,
                format!(
                    "all {max_bans} bans that WAF_MAX_BANS allows are active and made by an administrator or permanent: \
                     lift one first, or raise the setting"
                ),
            ),
            Self::TooLarge { limit } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is too large: {limit} bytes are allowed"),
            ),
            Self::DoesNotFit(faults) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                match faults.len() {
                    1 => "the body has 1 fault".to_owned(),
                    many => format!("the body has {many} faults"),
                },
            ),
            Self::Unfit(detail) => (StatusCode::CONFLICT, detail.clone()),
            Self::NotWritten(detail) => (StatusCode::INTERNAL_SERVER_ERROR, detail.clone()),
            Self::NotReloaded(faults) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("nothing is changed: {}", faults.join("; ")),
            ),
            Self::NotUpgraded(why) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("this process goes on: {why}"),
            ),
            Self::Misdirected => (
                StatusCode::MISDIRECTED_REQUEST,
                "the Host field must be an address or localhost: a page of another site may be asking"
                    .to_owned(),
            ),
            Self::TooManyListeners { most } => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "{most} others listen to the events, which is the most: try again later"
                ),
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests of this kind are waiting: try again".to_owned(),
            ),
            Self::HandingOver => (
                StatusCode::SERVICE_UNAVAILABLE,
                "a hand-over to another process is under way: try again".to_owned(),
            ),
        }
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> OwnResponse {
    answer(status, "application/json", body_of(value), Action::Answered)
}

/// An answer with `Cache-Control: no-store`: no cache may keep it (ADMIN-3).
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    action: Action,
) -> OwnResponse {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    OwnResponse {
        status,
        headers,
        body,
        action,
        history: action.history(),
    }
}

/// Marks an answer of the metrics endpoint: the client's history counts it neither as passed nor as
/// refused, except a 401, which counts as refused (CHECK-4).
pub(crate) fn of_metrics(mut answer: OwnResponse) -> OwnResponse {
    if answer.action == Action::Answered {
        answer.history = History::Neither;
    }
    answer
}

/// The value as JSON, ended by a newline for those who read it in a terminal.
fn body_of(value: &impl Serialize) -> Bytes {
    // Cannot fail: these values have string keys and no `Serialize` that fails.
    let mut body = serde_json::to_vec(value).unwrap_or_default();
    body.push(b'\n');
    Bytes::from(body)
}
