//! The answer of `GET /v1/history`: what was counted a minute.

use serde::{Deserialize, Serialize};

use super::in_order::InOrder;

/// Lists of one length, one number a minute, the oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// From one to the next: 60.
    pub step_seconds: u64,
    /// The moment of the answer, seconds since 1970.
    pub now: u64,
    /// When the minute began, seconds since 1970; one in which the service did not run is not
    /// there.
    pub times: Vec<u64>,
    /// All requests.
    pub requests: Vec<u64>,
    /// Those that the checks let through.
    pub passed: Vec<u64>,
    /// Those that the checks refused; in observe mode they passed all the same.
    pub refused: Vec<u64>,
    /// Requests by action, as in the log; those that there were none of are left out.
    pub actions: InOrder<Vec<u64>>,
    /// Answers of the application by class of status.
    pub responses: InOrder<Vec<u64>>,
    /// The bound that half of the application's answers stayed within; none without answers.
    pub p50_seconds: Vec<Option<f64>>,
    /// The same of 99 of 100.
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
