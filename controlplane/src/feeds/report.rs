//! What is told of a feed (FEED-8).

use std::sync::Arc;

use weir_shared::rules::Feed;
use weir_shared::units::Time;

use super::wanted::Use;

/// How a fetch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Its version holds.
    Taken,
    /// The version that holds is the current one.
    Unchanged,
    /// Its version is not taken (FEED-5).
    Refused,
    /// Nothing whole came.
    Failed,
}

impl Outcome {
    /// All of them, in the order of the metrics.
    pub(crate) const ALL: [Self; 4] = [Self::Taken, Self::Unchanged, Self::Refused, Self::Failed];

    /// As answers and metrics have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// What is told of a feed (FEED-8).
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) used: Option<Use>,
    /// The version that holds.
    pub(crate) feed: Arc<Feed>,
    /// When it was asked for last.
    pub(crate) checked: Option<Time>,
    pub(crate) outcome: Option<Outcome>,
    /// Why it was not taken, or nothing came.
    pub(crate) error: Option<String>,
    pub(crate) next: Time,
    /// By [`Outcome::ALL`].
    pub(crate) fetches: [u64; Outcome::ALL.len()],
}

/// Why no version is accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// There is no such feed.
    #[error("no feed has this name")]
    Unknown,
    /// No version waits, or the one that came is no list or too large.
    #[error("there is no version of it that could be accepted")]
    Nothing,
    /// It cannot be taken even so.
    #[error("it cannot be taken: {0}")]
    Unfit(String),
}
