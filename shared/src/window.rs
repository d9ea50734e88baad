//! The two-bucket sliding window: pure, exact integer arithmetic (LIMIT-1, LIMIT-3).
//!
//! A window of one length holds the count of the current bucket and of the one before. Buckets
//! begin at multiples of their length since 1970. The estimate is `current + previous × share`,
//! where `share` is the part of the earlier bucket that the sliding window still covers. It is
//! never divided out: comparisons multiply instead, so no rounding decides about a ban.

use serde::{Deserialize, Serialize};

/// A clock that is this far behind a bucket's start is still the same clock; beyond it the window
/// restarts (LIMIT-3).
const STEP_BACK_MS: u64 = 1000;

/// The three window lengths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Span {
    /// 60 seconds.
    Minute,
    /// 3,600 seconds.
    Hour,
    /// 86,400 seconds.
    Day,
}

impl Span {
    /// Shortest first.
    pub const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    /// The length in milliseconds.
    pub const fn ms(self) -> u64 {
        match self {
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
        }
    }

    /// `minute`, `hour`, `day`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

/// The length of a window of a rule: those of the limits, and a second (RULE-2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleSpan {
    /// 1 second.
    Second,
    /// 60 seconds.
    Minute,
    /// 3,600 seconds.
    Hour,
    /// 86,400 seconds.
    Day,
}

impl RuleSpan {
    /// Each of them, the shortest first.
    pub const ALL: [Self; 4] = [Self::Second, Self::Minute, Self::Hour, Self::Day];

    /// `second`, `minute`, `hour`, `day`.
    pub fn name(self) -> &'static str {
        self.of_clients().map_or("second", Span::name)
    }

    /// The window of the six limits that has this length.
    pub const fn of_clients(self) -> Option<Span> {
        match self {
            Self::Second => None,
            Self::Minute => Some(Span::Minute),
            Self::Hour => Some(Span::Hour),
            Self::Day => Some(Span::Day),
        }
    }
}

/// What a [`Window`] can be as long as.
pub trait Length: Copy {
    /// The length in milliseconds.
    fn ms(self) -> u64;
}

impl Length for Span {
    fn ms(self) -> u64 {
        // The inherent one.
        Self::ms(self)
    }
}

impl Length for RuleSpan {
    fn ms(self) -> u64 {
        self.of_clients().map_or(1000, Span::ms)
    }
}

/// One value for each window length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerSpan<T> {
    /// That of 60 seconds.
    pub minute: T,
    /// That of 3,600 seconds.
    pub hour: T,
    /// That of 86,400 seconds.
    pub day: T,
}

impl<T> From<[T; 3]> for PerSpan<T> {
    /// Shortest first, as in [`Span::ALL`].
    fn from([minute, hour, day]: [T; 3]) -> Self {
        Self { minute, hour, day }
    }
}

impl<T> PerSpan<T> {
    /// The value of one length.
    pub const fn get(&self, span: Span) -> &T {
        match span {
            Span::Minute => &self.minute,
            Span::Hour => &self.hour,
            Span::Day => &self.day,
        }
    }

    /// The value of one length, to be changed.
    pub const fn get_mut(&mut self, span: Span) -> &mut T {
        match span {
            Span::Minute => &mut self.minute,
            Span::Hour => &mut self.hour,
            Span::Day => &mut self.day,
        }
    }

    /// Another value for each length.
    pub fn map<U>(&self, mut of: impl FnMut(Span, &T) -> U) -> PerSpan<U> {
        PerSpan {
            minute: of(Span::Minute, &self.minute),
            hour: of(Span::Hour, &self.hour),
            day: of(Span::Day, &self.day),
        }
    }
}

/// One window of one client. What it counts (requests or bytes) and its [`Length`] are the
/// caller's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// Start of the current bucket, milliseconds since 1970; a multiple of the span.
    pub start_ms: u64,
    /// Count of the current bucket.
    pub current: u64,
    /// Count of the bucket before.
    pub previous: u64,
}

impl Window {
    /// Moves the buckets so that `now` lies in the current one.
    ///
    /// A clock more than one second behind the bucket's start restarts the window (LIMIT-3).
    pub fn roll(&mut self, span: impl Length, now_ms: u64) {
        let length = span.ms();
        if now_ms < self.start_ms {
            if now_ms + STEP_BACK_MS < self.start_ms {
                *self = Self {
                    start_ms: now_ms - now_ms % length,
                    current: 0,
                    previous: 0,
                };
            }
            return;
        }
        let behind = now_ms - self.start_ms;
        if behind < length {
            return;
        }
        self.previous = if behind < 2 * length { self.current } else { 0 };
        self.current = 0;
        self.start_ms = now_ms - now_ms % length;
    }

    /// Adds `amount` at `now`.
    pub fn add(&mut self, span: impl Length, now_ms: u64, amount: u64) {
        self.roll(span, now_ms);
        self.current = self.current.saturating_add(amount);
    }

    /// What is left of it at `now` without what `part` has counted of it.
    #[must_use]
    pub fn without(mut self, mut part: Self, span: impl Length, now_ms: u64) -> Self {
        self.roll(span, now_ms);
        // A clock that was set back a little leaves this one ahead of `now`.
        part.roll(span, now_ms.max(self.start_ms));
        Self {
            start_ms: self.start_ms,
            current: self.current.saturating_sub(part.current),
            previous: self.previous.saturating_sub(part.previous),
        }
    }

    /// Whether the estimate at `now` is greater than `limit`. Call it after [`Window::roll`] or
    /// [`Window::add`].
    pub fn is_over(&self, span: impl Length, now_ms: u64, limit: u64) -> bool {
        // The estimate is never more than both buckets, which is all that most requests cost.
        let most = self.current.checked_add(self.previous);
        most.is_none_or(|most| most > limit)
            && self.scaled(span, now_ms) > u128::from(limit) * u128::from(span.ms())
    }

    /// The estimate, rounded down, for people: logs and answers.
    pub fn estimate(&self, span: impl Length, now_ms: u64) -> u64 {
        let mut rolled = *self;
        rolled.roll(span, now_ms);
        if rolled.previous == 0 {
            // Most windows; a logged request asks for nine estimates, and a division is what they
            // cost.
            return rolled.current;
        }
        u64::try_from(rolled.scaled(span, now_ms) / u128::from(span.ms())).unwrap_or(u64::MAX)
    }

    /// Milliseconds until `amount` more would fit under `limit`, if nothing else is counted until
    /// then; `None` if it never will.
    pub fn fits_in(&self, span: impl Length, now_ms: u64, limit: u64, amount: u64) -> Option<u64> {
        let room = u128::from(limit.checked_sub(amount)?);
        let length = u128::from(span.ms());
        let mut rolled = *self;
        rolled.roll(span, now_ms);
        let elapsed = u128::from(now_ms.saturating_sub(rolled.start_ms));
        let (current, previous) = (u128::from(rolled.current), u128::from(rolled.previous));
        // Within the current bucket: current·L + previous·(L − e) ≤ room·L.
        if current <= room {
            let e = needed_elapsed(previous, room - current, length);
            if e < length {
                return u64::try_from(e.saturating_sub(elapsed)).ok();
            }
        }
        // In the next one the current bucket is the earlier: current·(L − e) ≤ room·L; after it
        // nothing is left.
        let e = needed_elapsed(current, room, length);
        u64::try_from(length.saturating_sub(elapsed) + e).ok()
    }

    /// The estimate times the length of the span.
    fn scaled(&self, span: impl Length, now_ms: u64) -> u128 {
        let length = span.ms();
        let elapsed = now_ms.saturating_sub(self.start_ms).min(length);
        u128::from(self.current) * u128::from(length)
            + u128::from(self.previous) * u128::from(length - elapsed)
    }
}

/// The least `e` with `count·(length − e) ≤ room·length`.
fn needed_elapsed(count: u128, room: u128, length: u128) -> u128 {
    if count <= room {
        return 0;
    }
    length - room * length / count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length has its own value.
    #[test]
    fn a_value_belongs_to_its_span() {
        let mut values = PerSpan::from([1, 2, 3]);
        assert_eq!(Span::ALL.map(|span| *values.get(span)), [1, 2, 3]);
        *values.get_mut(Span::Hour) = 20;
        let named = values.map(|span, value| format!("{} {value}", span.name()));
        let expected = ["minute 1", "hour 20", "day 3"].map(str::to_owned);
        assert_eq!(named, expected.into());
    }
    use proptest::prelude::*;

    const START: u64 = 1_795_276_800_000;

    /// LIMIT-1: request 1001 exceeds a limit of 1000.
    #[test]
    fn the_request_after_the_limit_breaks_it() {
        let mut window = Window::default();
        for request in 1..=1001 {
            window.add(Span::Minute, START, 1);
            assert_eq!(window.is_over(Span::Minute, START, 1000), request == 1001);
        }
    }

    /// LIMIT-1: the earlier bucket counts by the share the sliding window still covers, without
    /// rounding.
    #[test]
    fn the_earlier_bucket_is_weighted() {
        let mut window = Window::default();
        window.add(Span::Minute, START, 3);
        window.add(Span::Minute, START + 60_000 + 20_000, 1);
        // 1 + 3 × 40/60 = 3 exactly: not over 3. One millisecond earlier it is 3.00005: over.
        assert!(!window.is_over(Span::Minute, START + 80_000, 3));
        assert!(window.is_over(Span::Minute, START + 79_999, 3));
    }

    /// LIMIT-3: with a clock up to one second behind the window continues; further behind it
    /// restarts.
    #[test]
    fn a_clock_set_back_restarts_the_window() {
        let mut window = Window::default();
        window.add(Span::Minute, START, 5);
        window.roll(Span::Minute, START - 1000);
        assert_eq!((window.current, window.start_ms), (5, START));
        window.roll(Span::Minute, START - 1001);
        assert_eq!((window.current, window.start_ms), (0, START - 60_000));
    }

    /// The naive twin: every event with its bucket, summed anew at each question, in exact
    /// fractions.
    fn naive(events: &[(u64, u64)], length: u64, now: u64) -> u128 {
        let bucket = now / length;
        let sum = |wanted: u64| -> u128 {
            events
                .iter()
                .filter(|(at, _)| at / length == wanted)
                .map(|(_, amount)| u128::from(*amount))
                .sum()
        };
        sum(bucket) * u128::from(length)
            + bucket.checked_sub(1).map_or(0, sum) * u128::from(length - now % length)
    }

    proptest! {
        /// LIMIT-1: the window agrees with a twin that remembers every event.
        #[test]
        fn the_window_agrees_with_its_naive_twin(steps in prop::collection::vec((0u64..90_000, 0u64..5_000_000_000), 1..60), limit in 0u64..20_000_000_000) {
            for span in Span::ALL {
                let mut window = Window::default();
                let mut events = Vec::new();
                let mut now = START;
                for (step, amount) in &steps {
                    now += step * (span.ms() / 60_000);
                    window.add(span, now, *amount);
                    events.push((now, *amount));
                    let twin = naive(&events, span.ms(), now);
                    prop_assert_eq!(window.scaled(span, now), twin);
                    // Any limit, and those that the estimate meets or just misses.
                    let met = u64::try_from(twin / u128::from(span.ms())).unwrap();
                    for limit in [limit, met.saturating_sub(1), met, met + 1] {
                        prop_assert_eq!(window.is_over(span, now, limit), twin > u128::from(limit) * u128::from(span.ms()));
                    }
                    prop_assert_eq!(u128::from(window.estimate(span, now)), twin / u128::from(span.ms()));
                }
            }
        }

        /// LIMIT-8: after the wait of the answer one more request fits, and one millisecond sooner
        /// it does not.
        #[test]
        fn the_wait_is_the_shortest(current in 0u64..2000, previous in 0u64..2000, elapsed in 0u64..60_000, limit in 1u64..1000) {
            let window = Window { start_ms: START, current, previous };
            let now = START + elapsed;
            let fits = |at: u64| {
                let mut later = window;
                later.add(Span::Minute, at, 1);
                !later.is_over(Span::Minute, at, limit)
            };
            let wait = window.fits_in(Span::Minute, now, limit, 1).unwrap();
            prop_assert!(fits(now + wait));
            prop_assert!(wait == 0 || !fits(now + wait - 1));
        }
    }
}
