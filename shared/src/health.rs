//! The answer to a health check, the same at each entry (CHECK-1, ALIVE-4, ALIVE-7).

use http::StatusCode;

use crate::pulse;

/// Whether the service should get requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// It serves.
    Pass,
    /// It is stopping.
    Draining,
    /// One of its loops hangs.
    Fail,
}

impl Health {
    /// The current health.
    pub fn now(stopping: bool) -> Self {
        match stopping {
            _ if pulse::hangs() => Self::Fail,
            true => Self::Draining,
            false => Self::Pass,
        }
    }

    /// 200 or 503
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Pass => StatusCode::OK,
            Self::Draining | Self::Fail => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Draining => "draining",
            Self::Fail => "fail",
        }
    }

    /// The body of the answer, `application/health+json`.
    pub const fn json(self) -> &'static str {
        match self {
            Self::Pass => r#"{"status":"pass"}"#,
            Self::Draining => r#"{"status":"draining"}"#,
            Self::Fail => r#"{"status":"fail"}"#,
        }
    }
}
