//! The answer of `GET /v1/groups` (CONTROL-2).

use serde::{Deserialize, Serialize};

use crate::units::Time;

/// Sums of clients by a common value.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Groups {
    /// `netblock`, `asn` or `country`.
    pub by: String,
    /// How many groups there are.
    pub held: u64,
    /// The first groups in the chosen order.
    pub groups: Vec<Group>,
}

/// The sums of a group of clients.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// The common value; none for clients that no lookup knows.
    pub group: Option<String>,
    /// The name of an AS.
    pub name: Option<String>,
    /// The number of clients.
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
