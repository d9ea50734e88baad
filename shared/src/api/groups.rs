//! The answer of `GET /v1/groups` (CONTROL-2).

use serde::{Deserialize, Serialize};

use crate::units::Time;

/// Clients added up by what they share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Groups {
    /// `netblock`, `asn` or `country`.
    pub by: String,
    /// How many groups there are.
    pub held: u64,
    /// Those that come first.
    pub groups: Vec<Group>,
}

/// What the clients of a group have together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// What they share; none of those that no lookup knows.
    pub group: Option<String>,
    /// The name of an AS.
    pub name: Option<String>,
    /// How many they are.
    pub clients: u64,
    /// How many of them are banned.
    pub banned: u64,
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests of the last day, as the limits count them.
    pub requests: u64,
    /// Bytes of the last day.
    pub bytes: u64,
    /// Their latest request.
    pub last_seen: Time,
}
