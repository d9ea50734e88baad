//! Bounds the bans that follow only because of other instances' counts (FLEET-27): whoever controls
//! the engine could invent counts, and so ban clients.

use weir_shared::ban::FleetNote;
use weir_shared::clock::Now;
use weir_shared::event::{LimitExceeded, Offence};

const MINUTE_NS: u64 = 60_000_000_000;
/// How long the counts of others are ignored after too many such bans.
const REST_NS: u64 = 300_000_000_000;
/// So many such bans a minute are always allowed.
const LEAST: u64 = 60;
/// If more, one in so many of the clients of that minute.
const PART: u64 = 10;

/// Counts the bans that only the counts of others have made.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// When the current minute began, on the monotonic clock.
    minute_ns: u64,
    made: u64,
    /// The most such bans of this minute, as far as that was worked out.
    most: u64,
    /// Until when the counts of others are ignored.
    rests_until_ns: Option<u64>,
    /// Bans since the start that only the counts of others have made.
    decisive: u64,
}

/// Whether the limit is exceeded only because of the counts of others.
pub(super) fn is_decisive(exceeded: &LimitExceeded) -> bool {
    let limit = match &exceeded.offence {
        Offence::Limit { value, .. } => Some(*value),
        Offence::Rule { quota, .. } => quota.map(|quota| quota.limit),
        Offence::Application(_) => None,
    };
    let note: Option<FleetNote> = exceeded.fleet;
    note.zip(limit)
        .is_some_and(|(note, limit)| note.here <= limit)
}

impl Breaker {
    /// Whether one more such ban may be made. `clients` is how many were seen within a minute.
    pub(super) fn admits(&mut self, clients: impl FnOnce() -> u64, now: Now) -> bool {
        if !self.heeds(now) {
            return false;
        }
        if now.mono_ns.saturating_sub(self.minute_ns) >= MINUTE_NS {
            self.minute_ns = now.mono_ns;
            self.made = 0;
            self.most = LEAST;
        }
        if self.made >= self.most.max(LEAST) {
            self.most = (clients() / PART).max(LEAST);
        }
        if self.made >= self.most.max(LEAST) {
            self.rests_until_ns = Some(now.mono_ns.saturating_add(REST_NS));
            return false;
        }
        self.made += 1;
        self.decisive += 1;
        true
    }

    /// Whether the counts of others are used now.
    pub(super) fn heeds(&mut self, now: Now) -> bool {
        self.rests_until_ns.take_if(|until| now.mono_ns >= *until);
        self.rests_until_ns.is_none()
    }

    /// Bans since the start that only the counts of others have made.
    pub(super) fn decisive(&self) -> u64 {
        self.decisive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now {
            wall_ms: 1_795_276_800_000 + seconds * 1000,
            mono_ns: seconds * 1_000_000_000,
        }
    }

    /// FLEET-27: at most sixty such bans a minute, or a tenth of the clients of that minute; after
    /// more, none for five minutes.
    #[test]
    fn too_many_bans_of_a_minute_end_the_counts_of_others() {
        for (clients, most) in [(0, 60), (599, 60), (610, 61), (5000, 500)] {
            let mut breaker = Breaker::default();
            let made = (0..1000)
                .filter(|_| breaker.admits(|| clients, at(100)))
                .count();
            assert_eq!(made, most, "{clients}");
            assert!(!breaker.heeds(at(399)));
            assert!(!breaker.admits(|| 1_000_000, at(399)));
            assert!(breaker.heeds(at(400)) && breaker.admits(|| 0, at(400)));
        }
    }

    /// FLEET-27: each minute counts from zero.
    #[test]
    fn each_minute_has_its_own() {
        let mut breaker = Breaker::default();
        for minute in 1..5 {
            let made = (0..60).filter(|_| breaker.admits(|| 0, at(minute * 60)));
            assert_eq!(made.count(), 60);
        }
        assert_eq!(breaker.decisive(), 240);
    }
}
