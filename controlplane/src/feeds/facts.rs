//! The facts about a feed for the metrics (FEED-8).

use super::report::{Outcome, Report};

/// The facts of one feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FeedFacts {
    /// Its name.
    pub(crate) name: String,
    /// The number of entries in force.
    pub(crate) entries: usize,
    /// How long ago its version was fetched or confirmed; none without a version.
    pub(crate) age_ms: Option<u64>,
    /// Fetches by position in [`Outcome::ALL`].
    pub(crate) fetches: [u64; Outcome::ALL.len()],
}

impl FeedFacts {
    /// The facts at `now_ms`, in milliseconds since 1970.
    pub(crate) fn of(name: String, report: &Report, now_ms: u64) -> Self {
        let confirmed_ms = report.feed.confirmed_ms();
        Self {
            name,
            entries: report.feed.entries(),
            age_ms: confirmed_ms.map(|at| now_ms.saturating_sub(at)),
            fetches: report.fetches,
        }
    }
}
