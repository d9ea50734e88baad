//! The offset between this instance's clock and the engine's, and its consequences (FLEET-22).

use super::counting::MOST_OFF_MS;
use super::facts::Told;

/// A larger offset is reported.
const TOLD_MS: u64 = 1_000;
/// Bans are written by the engine's clock. Smaller changes of the offset, which each round trip
/// brings, are ignored.
const STEP_MS: u64 = 100;

/// The offset.
#[derive(Default)]
pub(super) struct Clocks {
    /// The offset measured last.
    found_ms: i64,
    /// The offset by which bans are written and judged.
    applied_ms: i64,
    /// The report about a clock that is off, if one was made.
    told: Option<Off>,
}

/// How far it is off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Off {
    /// By more than a second.
    Told,
    /// Too far for counts and for the times of bans.
    TooFar,
}

impl Clocks {
    /// Notes how far this instance's clock is ahead.
    pub(super) fn note(&mut self, ahead_ms: i64) {
        self.found_ms = ahead_ms;
        if ahead_ms.unsigned_abs() > MOST_OFF_MS {
            self.applied_ms = 0;
        } else if ahead_ms.abs_diff(self.applied_ms) > STEP_MS {
            self.applied_ms = ahead_ms;
        }
    }

    /// How far this clock is ahead of the time by which bans are written. That time is the
    /// engine's, or this clock's if the two are too far apart.
    pub(super) fn applied_ms(&self) -> i64 {
        self.applied_ms
    }

    /// Reports once that the clock is off, and the consequence.
    pub(super) fn tell(&mut self) -> Option<Told> {
        let off = match self.found_ms.unsigned_abs() {
            off_ms if off_ms > MOST_OFF_MS => Some(Off::TooFar),
            off_ms if off_ms > TOLD_MS => Some(Off::Told),
            _ => None,
        };
        // Reported again only if the offset has become too large, or the clock was right meanwhile.
        let is_news = off != self.told && !(off.is_some() && self.told == Some(Off::TooFar));
        if off.is_none() || is_news {
            self.told = off;
        }
        let off = off.filter(|_| is_news)?;
        let seconds = std::time::Duration::from_millis(self.found_ms.unsigned_abs()).as_secs_f64();
        let side = if self.found_ms > 0 {
            "ahead of"
        } else {
            "behind"
        };
        let follows = match off {
            Off::Told => "bans are written by the clock of the engine",
            Off::TooFar => "no counts are shared, and bans are written by its own clock",
        };
        let detail = format!(
            "the clock of this instance is {seconds:.1} s {side} that of the engine of the fleet: {follows}"
        );
        tracing::warn!("{detail}");
        let what = "clock";
        Some(Told { what, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-22: an offset of more than a second is reported, and once more if it is too large.
    /// Offsets up to 30 s are used for bans, larger ones are not, and changes within a round trip
    /// have no effect.
    #[test]
    fn an_offset_is_told_and_holds_up_to_a_bound() {
        let mut clocks = Clocks::default();
        for (found_ms, applied_ms, told) in [
            (90, 0, None),
            (-1000, -1000, None),
            (-990, -1000, None),
            (-1001, -1000, Some("1.0 s behind")),
            (29_000, 29_000, None),
            (30_000, 29_000 + 1000, None),
            (30_001, 0, Some("30.0 s ahead of")),
            (31_000, 0, None),
            (2_000, 2_000, None),
            (31_000, 0, None),
            (5, 0, None),
            (2_000, 2_000, Some("2.0 s ahead of")),
        ] {
            clocks.note(found_ms);
            assert_eq!(clocks.applied_ms(), applied_ms, "{found_ms}");
            let detail = clocks.tell().map(|told| told.detail);
            let is_told = match (&detail, told) {
                (Some(detail), Some(told)) => detail.contains(told),
                (None, None) => true,
                _ => false,
            };
            assert!(is_told, "{found_ms}: {detail:?}");
        }
    }
}
