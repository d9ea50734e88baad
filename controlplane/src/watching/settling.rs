//! When a change of files is settled: pure, but for the instants it is given.
//!
//! Editors write a file in pieces, or remove it before the new one is there. So a state counts only
//! once it was seen unchanged for a while; the caller decides how long.

use std::time::{Duration, Instant};

/// Measures how long something has been in the same state.
pub(crate) struct Stillness<S>(Option<(S, Instant)>);

impl<S> Default for Stillness<S> {
    fn default() -> Self {
        Self(None)
    }
}

impl<S: PartialEq> Stillness<S> {
    /// The time since the current state was first seen.
    pub(crate) fn of(&mut self, state: S, now: Instant) -> Duration {
        match &self.0 {
            Some((held, since)) if *held == state => now.saturating_duration_since(*since),
            _ => {
                self.0 = Some((state, now));
                Duration::ZERO
            }
        }
    }

    /// Forgets the state, so that the next one is new.
    pub(crate) fn settle(&mut self) {
        self.0 = None;
    }
}

/// A known state, and how long another one has been seen instead.
pub(crate) struct Settling<S> {
    known: S,
    still: Stillness<S>,
}

impl<S: PartialEq> Settling<S> {
    /// Starts with a known state.
    pub(crate) fn new(known: S) -> Self {
        Self {
            known,
            still: Stillness::default(),
        }
    }

    /// The state that was read, or tried, last.
    pub(crate) const fn known(&self) -> &S {
        &self.known
    }

    /// How long this state has been seen; none if it is the known one.
    pub(crate) fn look(&mut self, state: S, now: Instant) -> Option<Duration> {
        if state == self.known {
            self.still.settle();
            return None;
        }
        Some(self.still.of(state, now))
    }

    /// Sets the known state.
    pub(crate) fn take(&mut self, known: S) {
        self.known = known;
        self.still.settle();
    }

    /// Whether the last look found the known state.
    pub(crate) const fn is_settled(&self) -> bool {
        self.still.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All looks since a state was last taken, gone through anew at each look.
    #[derive(Default)]
    struct Naive {
        known: u8,
        looks: Vec<(u8, u64)>,
    }

    impl Naive {
        fn look(&mut self, state: u8, now: u64) -> Option<u64> {
            self.looks.push((state, now));
            let same = self.looks.iter().rev().take_while(|look| look.0 == state);
            let first = same.last().map_or(now, |look| look.1);
            (state != self.known).then(|| now - first)
        }

        fn take(&mut self, known: u8) {
            self.known = known;
            self.looks.clear();
        }
    }

    proptest! {
        /// RELOAD-4, LOOKUP-5, STATE-3: the time for which files are unchanged agrees with a walk
        /// over all checks, after any changes; an applied state is not new any more, and a reverted
        /// one never is.
        #[test]
        fn it_is_as_a_naive_twin_says(
            steps in prop::collection::vec((0u8..3, 0u64..4, prop::bool::weighted(0.2)), 1..60),
        ) {
            let start = Instant::now();
            let (mut settling, mut naive, mut now) = (Settling::new(0), Naive::default(), 0);
            for (state, passes, is_taken) in steps {
                now += passes;
                let still = settling.look(state, start + Duration::from_secs(now));
                prop_assert_eq!(still.map(|still| still.as_secs()), naive.look(state, now));
                prop_assert_eq!(settling.is_settled(), still.is_none());
                if is_taken {
                    settling.take(state);
                    naive.take(state);
                    prop_assert_eq!(*settling.known(), state);
                }
            }
        }
    }
}
