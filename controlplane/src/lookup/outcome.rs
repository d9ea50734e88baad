//! The outcomes of lookups, and their counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a lookup ended: `outcome` of `waf_lookups_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// With a country.
    Known,
    /// With an answer, without a country.
    Unknown,
    /// No answer in time.
    TimedOut,
    /// No connection, or no answer that could be used.
    Error,
    /// Not made: a private address, a full queue, an open breaker, a failure not long ago.
    Skipped,
}

impl Outcome {
    /// Every outcome, in the order of the metrics.
    pub(crate) const ALL: [Self; 5] = [
        Self::Known,
        Self::Unknown,
        Self::TimedOut,
        Self::Error,
        Self::Skipped,
    ];

    /// The label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Unknown => "unknown",
            Self::TimedOut => "timeout",
            Self::Error => "error",
            Self::Skipped => "skipped",
        }
    }
}

/// Lookups by outcome.
#[derive(Default)]
pub(super) struct Counts(pub(super) [AtomicU64; Outcome::ALL.len()]);

impl Counts {
    pub(super) fn count(&self, outcome: Outcome) {
        if let Some(counter) = self.0.get(outcome as usize) {
            // Relaxed: the counter only has to add up.
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}
