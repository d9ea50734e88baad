//! What the metrics tell of a feed (FEED-8).

use super::report::{Outcome, Report};

/// One feed's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FeedFacts {
    /// Its name.
    pub(crate) name: String,
    /// The entries that hold.
    pub(crate) entries: usize,
    /// How long ago its version was fetched or confirmed; none where there is none.
    pub(crate) age_ms: Option<u64>,
    /// By [`Outcome::ALL`].
    pub(crate) fetches: [u64; Outcome::ALL.len()],
}

impl FeedFacts {
    /// At a moment, milliseconds since 1970.
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
