//! When a feed is fetched next (FEED-3): pure.

use std::time::Duration;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE_MS: u64 = 60_000;
/// The longest pause after a failure, and the longest that a publisher may ask for.
const MAX_PAUSE_MS: u64 = 86_400_000;

/// A random number from 0 to the given one, inclusive.
pub(super) type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

/// The schedule of one feed, in milliseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Due {
    /// When the version in force was last confirmed.
    confirmed_ms: Option<u64>,
    next_ms: u64,
    /// The pause after the last failure; 0 after an answer.
    pause_ms: u64,
    /// The publisher asked for no fetch before this time.
    not_before_ms: u64,
}

impl Due {
    /// The schedule of a feed, from the time of its copy.
    pub(super) fn begin(
        every: Duration,
        confirmed_ms: Option<u64>,
        now_ms: u64,
        random: Random<'_>,
    ) -> Self {
        let mut due = Self {
            confirmed_ms,
            ..Self::default()
        };
        due.set_every(every, now_ms, random);
        due
    }

    /// Applies a new `every`.
    pub(super) fn set_every(&mut self, every: Duration, now_ms: u64, random: Random<'_>) {
        if self.pause_ms == 0 {
            let from = self.confirmed_ms;
            let next_ms = from.map_or(now_ms, |from_ms| later(from_ms, every, random));
            self.next_ms = next_ms.max(self.not_before_ms);
        }
        self.event(every, now_ms);
    }

    /// After a start, a reload or an edit: a feed that is too old becomes due at once, unless its
    /// publisher asked for a pause.
    pub(super) fn event(&mut self, every: Duration, now_ms: u64) {
        let is_fresh = |confirmed_ms: u64| now_ms < confirmed_ms.saturating_add(millis(every));
        if !self.confirmed_ms.is_some_and(is_fresh) {
            self.next_ms = self.next_ms.min(now_ms.max(self.not_before_ms));
        }
    }

    /// Makes the feed due now, because an operator asked for it.
    pub(super) fn ask(&mut self, now_ms: u64) {
        self.next_ms = now_ms;
        self.not_before_ms = 0;
    }

    /// The fetched version is in force.
    pub(super) fn confirm(&mut self, every: Duration, now_ms: u64, random: Random<'_>) {
        *self = Self {
            confirmed_ms: Some(now_ms),
            next_ms: later(now_ms, every, random),
            ..Self::default()
        };
    }

    /// The fetched version is refused.
    pub(super) fn refuse(&mut self, every: Duration, now_ms: u64, random: Random<'_>) {
        *self = Self {
            confirmed_ms: self.confirmed_ms,
            next_ms: later(now_ms, every, random),
            ..Self::default()
        };
    }

    /// The fetch failed. `asked` is the pause that the publisher asks for.
    pub(super) fn fail(&mut self, asked: Option<Duration>, now_ms: u64, random: Random<'_>) {
        self.pause_ms = match self.pause_ms {
            0 => FIRST_PAUSE_MS,
            pause_ms => pause_ms.saturating_mul(2).min(MAX_PAUSE_MS),
        };
        let asked_ms = asked.map_or(0, millis).min(MAX_PAUSE_MS);
        self.not_before_ms = now_ms.saturating_add(asked_ms);
        let pause_ms = self.pause_ms + random(self.pause_ms / 10);
        self.next_ms = now_ms.saturating_add(pause_ms.max(asked_ms));
    }

    /// When the feed is fetched next.
    pub(super) const fn next_ms(&self) -> u64 {
        self.next_ms
    }

    /// How long until the next fetch. A clock that was set back does not make the wait longer.
    pub(super) fn wait_ms(&self, every: Duration, now_ms: u64) -> u64 {
        let wait_ms = self.next_ms.saturating_sub(now_ms);
        let longest = millis(every).max(MAX_PAUSE_MS);
        if wait_ms > longest.saturating_add(longest / 10) {
            return 0;
        }
        wait_ms
    }
}

/// A time at least `every` after this one, with jitter, so that instances that started together do
/// not fetch together.
fn later(from_ms: u64, every: Duration, random: Random<'_>) -> u64 {
    let every_ms = millis(every);
    from_ms
        .saturating_add(every_ms)
        .saturating_add(random(every_ms / 10))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_795_276_800_000;
    const HOUR: Duration = Duration::from_secs(3600);
    const HOUR_MS: u64 = 3_600_000;

    fn none(_: u64) -> u64 {
        0
    }

    /// FEED-3: a feed without a copy, or with one that is older than `every`, is fetched at once by
    /// a start, a reload or an edit; a fresh one waits for its time.
    #[test]
    fn what_is_too_old_is_fetched_at_once() {
        let begin = |confirmed| Due::begin(HOUR, confirmed, NOW, &mut none).wait_ms(HOUR, NOW);
        assert_eq!(begin(None), 0);
        assert_eq!(begin(Some(NOW - HOUR_MS)), 0);
        assert_eq!(begin(Some(NOW - HOUR_MS + 1)), 1);
        assert_eq!(begin(Some(NOW)), HOUR_MS);
        let mut due = Due::begin(HOUR, Some(NOW), NOW, &mut none);
        due.event(HOUR, NOW + HOUR_MS - 1);
        assert_eq!(due.next_ms(), NOW + HOUR_MS);
        due.set_every(HOUR / 2, NOW, &mut |_| 7);
        assert_eq!(due.next_ms(), NOW + HOUR_MS / 2 + 7);
        due.set_every(HOUR / 2, NOW + HOUR_MS, &mut none);
        assert_eq!(due.wait_ms(HOUR, NOW + HOUR_MS), 0);
        // The clock was set back by a month.
        let due = Due::begin(HOUR, Some(NOW), NOW, &mut none);
        assert_eq!(due.wait_ms(HOUR, NOW - 30 * 24 * HOUR_MS), 0);
    }

    /// FEED-3: failures double the pause up to a day, an answer ends it; an edit fetches again, but
    /// not before the time that the publisher named, which only an operator can ignore.
    #[test]
    fn failures_double_the_pause() {
        let mut due = Due::begin(HOUR, None, NOW, &mut none);
        let mut pauses = Vec::new();
        for _ in 0..13 {
            due.fail(None, NOW, &mut none);
            pauses.push(due.wait_ms(HOUR, NOW) / 60_000);
        }
        assert_eq!(
            pauses,
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1440, 1440]
        );
        due.event(HOUR, NOW);
        assert_eq!(due.wait_ms(HOUR, NOW), 0);
        due.fail(Some(2 * HOUR), NOW, &mut none);
        due.confirm(HOUR, NOW, &mut none);
        due.fail(Some(2 * HOUR), NOW, &mut none);
        assert_eq!(due.wait_ms(HOUR, NOW), 2 * HOUR_MS);
        due.event(HOUR, NOW + HOUR_MS);
        assert_eq!(due.next_ms(), NOW + 2 * HOUR_MS);
        due.ask(NOW + HOUR_MS);
        assert_eq!(due.next_ms(), NOW + HOUR_MS);
        due.fail(Some(Duration::MAX), NOW, &mut none);
        assert_eq!(due.wait_ms(HOUR, NOW), 24 * HOUR_MS);
        due.refuse(HOUR, NOW, &mut none);
        assert_eq!(due.next_ms(), NOW + HOUR_MS);
        due.fail(None, NOW, &mut none);
        assert_eq!(due.next_ms(), NOW + FIRST_PAUSE_MS);
    }

    proptest! {
        /// FEED-3: jitter is up to a tenth, and never earlier.
        #[test]
        fn jitter_is_later_by_a_tenth_at_most(minutes in 10u64..43_200, share in 0.0f64..=1.0) {
            let every = Duration::from_secs(60 * minutes);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a test")]
            let mut random = |most: u64| (most as f64 * share) as u64;
            let mut due = Due::begin(every, None, NOW, &mut none);
            due.confirm(every, NOW, &mut random);
            let wait = due.wait_ms(every, NOW);
            prop_assert!((millis(every)..=millis(every) / 10 * 11).contains(&wait), "{wait}");
        }
    }
}
