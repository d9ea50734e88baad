//! The answer of `GET /v1/history`: the counts of each minute.

use serde::{Deserialize, Serialize};

use super::in_order::InOrder;

/// Lists of one length, one number a minute, the oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The seconds from one number to the next: 60.
    pub step_seconds: u64,
    /// The moment of the answer, seconds since 1970.
    pub now: u64,
    /// When each minute began, in seconds since 1970. Minutes in which the service did not run are
    /// missing.
    pub times: Vec<u64>,
    /// All requests.
    pub requests: Vec<u64>,
    /// Those that the checks let through.
    pub passed: Vec<u64>,
    /// Those that the checks refused; in observe mode they passed all the same.
    pub refused: Vec<u64>,
    /// Requests by action, as in the log; actions without requests are left out.
    pub actions: InOrder<Vec<u64>>,
    /// Answers of the application by class of status.
    pub responses: InOrder<Vec<u64>>,
    /// The median of the application's answer times, as a bound of the histogram; none without
    /// answers.
    pub p50_seconds: Vec<Option<f64>>,
    /// The 99th percentile, likewise.
    pub p99_seconds: Vec<Option<f64>>,
    /// Active bans at the end of the minute.
    pub bans_active: Vec<u64>,
    /// Bans that were made in it.
    pub bans_made: Vec<u64>,
    /// Bytes of bodies from clients.
    pub request_bytes: Vec<u64>,
    /// Bytes of bodies to clients.
    pub response_bytes: Vec<u64>,
}
