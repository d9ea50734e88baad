//! The data plane's counts of the last minutes: its totals, read every ten seconds.

use std::collections::VecDeque;

use weir_shared::clock::Now;
use weir_shared::totals::Totals;

/// Between two looks.
const EVERY_NS: u64 = 10_000_000_000;
/// Looks that are kept: five minutes.
const KEPT: usize = 30;

/// Totals of the last minutes, oldest first.
#[derive(Default)]
pub(crate) struct Recent {
    looks: VecDeque<(u64, Totals)>,
}

/// Earlier totals, and how long ago they were read.
pub(crate) struct Since {
    pub(crate) seconds: u64,
    pub(crate) totals: Totals,
}

impl Recent {
    /// Reads the totals if it is time. The first look is in the first turn; counts from before it
    /// belong to the last minutes, too.
    pub(crate) fn turn(&mut self, now: Now, totals: impl FnOnce() -> Totals) {
        let newest = self.looks.back();
        if newest.is_some_and(|(at, _)| now.mono_ns.saturating_sub(*at) < EVERY_NS) {
            return;
        }
        let totals = newest.map_or_else(Totals::default, |_| totals());
        self.looks.push_back((now.mono_ns, totals));
        if self.looks.len() > KEPT {
            self.looks.pop_front();
        }
    }

    /// The oldest look; without one, the current totals.
    pub(crate) fn since(&self, now: Now, totals: Totals) -> Since {
        let (at, totals) = *self.looks.front().unwrap_or(&(now.mono_ns, totals));
        Since {
            seconds: now.mono_ns.saturating_sub(at) / 1_000_000_000,
            totals,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now {
            wall_ms: 0,
            mono_ns: seconds * 1_000_000_000,
        }
    }

    fn clients(clients: u64) -> Totals {
        Totals {
            clients,
            ..Totals::default()
        }
    }

    /// CONTROL-2: the last five minutes, a look every ten seconds.
    #[test]
    fn five_minutes_are_kept() {
        let mut recent = Recent::default();
        let since = recent.since(at(1000), clients(7));
        assert_eq!((since.seconds, since.totals.clients), (0, 7));
        for second in 1000..=1400 {
            recent.turn(at(second), || clients(second));
            if second == 1005 {
                let since = recent.since(at(second), clients(9));
                assert_eq!((since.seconds, since.totals.clients), (5, 0));
            }
        }
        let since = recent.since(at(1403), clients(0));
        assert_eq!((since.seconds, since.totals.clients), (293, 1110));
    }
}
