//! The answer of `GET /v1/fleet` (FLEET-29).

use serde::{Deserialize, Serialize};

/// Several instances that act as one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Fleet {
    /// Its name.
    pub fleet: String,
    /// The instance that answers.
    pub instance: String,
    /// The engine's address.
    pub engine: String,
    /// `live`, `joining` or `alone`.
    pub state: String,
    /// Whether all instances hold the same bans.
    pub in_step: bool,
    /// Events that wait for the engine.
    pub waiting: u64,
    /// The last round trip to the engine.
    pub round_trip_ms: u64,
    /// The digest of all bans that are not over, in hexadecimal.
    pub digest: String,
    /// The instances: the answering one first, then the others by name.
    pub instances: Vec<Instance>,
    /// The shared counts; none if counts are not shared.
    pub counts: Option<Counts>,
    /// A warning, if the engine could evict the log when its memory is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<String>,
    /// Of `alone`: for how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_seconds: Option<u64>,
    /// Of `alone`: why the engine does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One instance. The members from its beat are missing if that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// Whether it is the one that answers.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// `live`, `joining`, `alone`, `gone`, `other_key` or `unknown`.
    pub state: String,
    /// The age of its last beat.
    pub lag_ms: u64,
    /// Whether it holds the same bans as the one that answers.
    pub in_step: bool,
    /// Settings that should be the same and differ.
    pub settings: Vec<Differing>,
    /// Its events that wait for the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// How far its clock is ahead of the engine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<i64>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Bans that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bans: Option<u64>,
}

/// A setting that differs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Differing {
    /// Of the setting.
    pub name: String,
    /// Its value at the one that answers.
    pub here: String,
    /// Its value at the other.
    pub there: String,
}

/// What was shared of counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Counts that the engine has taken.
    pub sent: u64,
    /// Counts that the engine refused: from a clock that is ahead, or from before a ban.
    pub stale: u64,
    /// Clients whose counts wait, since `WAF_FLEET_RATE` is reached.
    pub held: u64,
    /// Whether the counts of others are used.
    pub heeded: bool,
}

impl Instance {
    /// Whether its last beat is recent and can be read.
    pub fn lives(&self) -> bool {
        matches!(self.state.as_str(), "live" | "joining")
    }
}
