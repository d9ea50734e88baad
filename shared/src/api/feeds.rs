//! The answers of `/v1/feeds` (FEED-8).

use serde::{Deserialize, Serialize};

use crate::units::Time;

/// The lists from elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FeedList {
    /// By name.
    pub feeds: Vec<Feed>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Feed {
    /// Its name in rules.json.
    pub name: String,
    /// `deny` or `allow`; none where it is a name for other rules alone.
    #[serde(rename = "use")]
    pub used: Option<String>,
    /// How many hold.
    pub entries: u64,
    /// When the version that holds was taken.
    pub taken: Option<Time>,
    /// When it was asked for last; none if never.
    pub checked: Option<Time>,
    /// How that ended: `taken`, `unchanged`, `refused` or `failed`; none since the start.
    pub outcome: Option<String>,
    /// Why it is not taken, or nothing came.
    pub error: Option<String>,
    /// When it is asked for next.
    pub next: Time,
}

/// The answer of a fetch that was asked for, and of a version that is taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FeedAsked {
    /// Its name.
    pub name: String,
    /// Of a version that was taken: how many hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
}

impl Feed {
    /// Whether its last fetch went well.
    pub fn is_well(&self) -> bool {
        matches!(self.outcome.as_deref(), Some("taken" | "unchanged"))
    }
}
