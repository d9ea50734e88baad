//! The answer of `GET /v1/status` (CONTROL-2).

use serde::{Deserialize, Serialize};

use super::in_order::InOrder;
use crate::units::Time;

/// The status of the service.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The version of the service.
    pub version: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// When it was started.
    #[serde(default)]
    pub started: Time,
    /// How long ago it was started.
    pub uptime_seconds: u64,
    /// The first address that it listens on.
    pub address: Option<String>,
    /// All of them.
    #[serde(default)]
    pub listen: Vec<String>,
    /// The application.
    pub upstream: String,
    /// Requests of the last minutes.
    pub recent: Counted,
    /// Requests since the start.
    #[serde(default)]
    pub total: Counted,
    /// Bans.
    pub bans: Bans,
    /// The client table.
    pub clients: Clients,
    /// Connections of clients.
    pub connections: Connections,
    /// The use of limits that clients share.
    #[serde(default)]
    pub shared_limits: Vec<SharedLimit>,
    /// Requests that claim to come from a crawler; crawlers without requests are left out.
    #[serde(default)]
    pub crawlers: Vec<Crawler>,
    /// Clients that are remembered as known (SHARE-4).
    #[serde(default)]
    pub known_clients: u64,
    /// Lookups by their outcome; empty if there were none.
    #[serde(default)]
    pub lookups: InOrder<u64>,
    /// Items dropped because a queue was full, by the queue's name.
    #[serde(default)]
    pub dropped: InOrder<u64>,
    /// One sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Requests within a span of time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counted {
    /// The length of the span in seconds; none for the whole time since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// All of them.
    pub requests: u64,
    /// Those that passed.
    pub passed: u64,
    /// Those that were refused; in observe mode, those that would have been.
    pub refused: u64,
    /// All requests by action; actions without requests are left out.
    pub actions: InOrder<u64>,
    /// Bytes of clients.
    pub request_bytes: u64,
    /// Bytes to clients.
    pub response_bytes: u64,
    /// The application.
    pub upstream: Answers,
}

/// Answers of the application.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answers {
    /// By their class: `2xx`, `5xx`, `error`, …
    pub responses: InOrder<u64>,
    /// The 99th percentile of answer times, as a bound of the histogram; none without answers, or
    /// if it is above the last bound.
    pub p99_seconds: Option<f64>,
}

/// Counts of bans.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bans {
    /// Those that refuse now.
    pub active: u64,
    /// `WAF_MAX_BANS`.
    pub max: u64,
    /// Made since the start, by their cause.
    pub made: InOrder<u64>,
    /// Dropped because there were too many.
    pub dropped: u64,
}

/// The client table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// Clients that are kept.
    pub held: u64,
    /// How many can be.
    pub max: u64,
    /// Clients dropped since the start because the table was full.
    pub evicted: u64,
}

/// Connections of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Now.
    pub open: u64,
    /// `WAF_MAX_CONNECTIONS`.
    pub max: u64,
}

/// A limit that clients share (SHARE-8).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedLimit {
    /// Its name.
    pub rule: String,
    /// The use of its fullest count, from 0 to 1.
    pub used: f64,
    /// The number of its counts.
    pub keys: u64,
    /// Requests that it refused.
    pub hits: u64,
}

/// Requests that claim to come from this crawler (CRAWL-7).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Crawler {
    /// Its name.
    pub name: String,
    /// What it crawls for.
    pub purpose: String,
    /// Whether it is the crawler: `verified`, `fake`, …
    pub state: String,
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

impl Status {
    /// Whether a refusal is only noted.
    pub fn observes(&self) -> bool {
        self.mode == "observe"
    }
}

impl Answers {
    /// The numbers of all answers and of the application's errors among them.
    pub fn all_and_errors(&self) -> (u64, u64) {
        let all = self.responses.iter().map(|(_, count)| count).sum();
        (all, self.responses.get("5xx").copied().unwrap_or(0))
    }
}
