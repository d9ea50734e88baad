//! The answers of `/v1/feeds` (FEED-8).

use serde::{Deserialize, Serialize};

use crate::units::Time;

/// The feeds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FeedList {
    /// By name.
    pub feeds: Vec<Feed>,
}

/// One feed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Feed {
    /// Its name in rules.json.
    pub name: String,
    /// `deny` or `allow`; none if only other rules refer to it.
    #[serde(rename = "use")]
    pub used: Option<String>,
    /// The number of entries in force.
    pub entries: u64,
    /// When the version in force was taken.
    pub taken: Option<Time>,
    /// When it was last fetched; none if never.
    pub checked: Option<Time>,
    /// The result: `taken`, `unchanged`, `refused` or `failed`; none before the first fetch of this
    /// process.
    pub outcome: Option<String>,
    /// Why the version was refused, or the fetch failed.
    pub error: Option<String>,
    /// When it is fetched next.
    pub next: Time,
}

/// The answer to a requested fetch, and to an accepted version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FeedAsked {
    /// Its name.
    pub name: String,
    /// For an accepted version: the number of entries in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
}

impl Feed {
    /// Whether its last fetch succeeded.
    pub fn is_well(&self) -> bool {
        matches!(self.outcome.as_deref(), Some("taken" | "unchanged"))
    }
}
