//! What is told of a feed (FEED-8).

use std::sync::Arc;

use weir_shared::rules::Feed;
use weir_shared::units::Time;

use super::wanted::Use;

/// How a fetch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// A new version is in force.
    Taken,
    /// The version in force is still current.
    Unchanged,
    /// The version is refused (FEED-5).
    Refused,
    /// Nothing complete was received.
    Failed,
}

impl Outcome {
    /// All outcomes, in the order of the metrics.
    pub(crate) const ALL: [Self; 4] = [Self::Taken, Self::Unchanged, Self::Refused, Self::Failed];

    /// The name in answers and metrics.
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
    /// The version in force.
    pub(crate) feed: Arc<Feed>,
    /// When it was last fetched.
    pub(crate) checked: Option<Time>,
    pub(crate) outcome: Option<Outcome>,
    /// Why the version was refused, or the fetch failed.
    pub(crate) error: Option<String>,
    pub(crate) next: Time,
    /// Fetches by position in [`Outcome::ALL`].
    pub(crate) fetches: [u64; Outcome::ALL.len()],
}

/// Why no version is accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// There is no such feed.
    #[error("no feed has this name")]
    Unknown,
    /// There is no refused version, or it is no list or too large.
    #[error("there is no version of it that could be accepted")]
    Nothing,
    /// The rules cannot take it even if accepted.
    #[error("it cannot be taken: {0}")]
    Unfit(String),
}
