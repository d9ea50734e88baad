//! The clients: which are kept (`table.rs`), what is kept of each (`entry.rs`), what a lookup
//! changes for one (`terms.rs`), how a request and its answer are charged (`charging.rs`), what
//! clients count together (`shared_counts.rs`), which of them are known (`known.rs`), and what the
//! control plane asks of all that (`control_plane.rs`).
//!
//! Here is what all counts consist of: windows and their limits, the bucket of the requests a
//! second, and what the fleet knows of a window (FLEET-7).

pub mod charging;
pub mod control_plane;
pub mod entry;
pub mod known;
pub mod shared_counts;
pub mod table;
pub mod terms;

use weir_shared::clock::Now;
use weir_shared::fleet::{InFleet, Report, Reporting, span_at};
use weir_shared::verdict::AppliedPercent;
use weir_shared::window::{Length, PerSpan, Span, Window};

/// Adds to the three windows; names the shortest that is over, and its limit.
pub fn charge_windows(
    windows: &mut PerSpan<Window>,
    limits: &PerSpan<Option<u64>>,
    wall_ms: u64,
    amount: u64,
) -> Option<(Span, u64)> {
    let mut over = None;
    for span in Span::ALL {
        let window = windows.get_mut(span);
        window.add(span, wall_ms, amount);
        if let Some(limit) = *limits.get(span)
            && over.is_none()
            && window.is_over(span, wall_ms, limit)
        {
            over = Some((span, limit));
        }
    }
    over
}

/// Of windows of which one is `over`, the shortest that is over without a part of what they have
/// counted, and its limit.
pub fn own_break(
    over: (Span, u64),
    windows: &PerSpan<Window>,
    part: Option<&PerSpan<Window>>,
    limits: &PerSpan<Option<u64>>,
    wall_ms: u64,
) -> Option<(Span, u64)> {
    let Some(part) = part else {
        return Some(over);
    };
    Span::ALL.into_iter().find_map(|span| {
        let limit = (*limits.get(span))?;
        let own = windows.get(span).without(*part.get(span), span, wall_ms);
        own.is_over(span, wall_ms, limit).then_some((span, limit))
    })
}

/// The estimates of the three windows, rounded down.
pub fn estimates(windows: &PerSpan<Window>, wall_ms: u64) -> PerSpan<u64> {
    windows.map(|span, window| window.estimate(span, wall_ms))
}

/// Each limit times the percentage, rounded down; `off` stays off (LIMIT-4).
pub fn lowered(
    limits: &PerSpan<Option<u64>>,
    applied: Option<AppliedPercent>,
) -> PerSpan<Option<u64>> {
    let percent = applied.map_or(100, |applied| u128::from(applied.percent.min(100)));
    // At most the limit itself, so it fits again.
    let lowered = |limit| u64::try_from(u128::from(limit) * percent / 100).unwrap_or(limit);
    limits.map(|_, limit| limit.map(lowered))
}

/// Billionths of a token.
const TOKEN: u64 = 1_000_000_000;

/// `WAF_RATE_LIMIT_PER_SECOND` and `WAF_RATE_LIMIT_BURST`. Each is at most a million, so that no
/// product here overflows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketSize {
    /// Tokens that come in a second, from 1.
    pub per_second: u32,
    /// Tokens that it holds, from 1.
    pub burst: u32,
}

impl BucketSize {
    const fn full(self) -> u64 {
        self.burst as u64 * TOKEN
    }
}

/// A bucket from which something was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Billionths of tokens at `at_ns`.
    left: u64,
    /// Monotonic time, nanoseconds.
    at_ns: u64,
}

impl Bucket {
    /// A bucket from which nothing was taken yet.
    pub const fn full(size: BucketSize, now_ns: u64) -> Self {
        Self {
            left: size.full(),
            at_ns: now_ns,
        }
    }

    /// The bucket at a later moment. Another worker's clock may be a little ahead: nothing is added
    /// then.
    #[must_use]
    pub fn at(self, size: BucketSize, now_ns: u64) -> Self {
        let elapsed = u128::from(now_ns.saturating_sub(self.at_ns));
        let added = elapsed * u128::from(size.per_second);
        let left = (u128::from(self.left) + added).min(u128::from(size.full()));
        Self {
            left: u64::try_from(left).unwrap_or(size.full()),
            at_ns: self.at_ns.max(now_ns),
        }
    }

    /// Nanoseconds until it holds a whole token; 0 if it does.
    pub fn wait_ns(self, size: BucketSize) -> u64 {
        TOKEN
            .saturating_sub(self.left)
            .div_ceil(u64::from(size.per_second.max(1)))
    }

    /// Without one token; none is left below 0.
    #[must_use]
    pub const fn take(self) -> Self {
        Self {
            left: self.left.saturating_sub(TOKEN),
            at_ns: self.at_ns,
        }
    }

    /// Whether nothing is missing.
    pub const fn is_full(self, size: BucketSize) -> bool {
        self.left >= size.full()
    }
}

/// As long a ban says that what was counted before it is void.
const EPOCH_MS: u64 = 2 * 86_400_000;

/// What the fleet knows of the six windows of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientInFleet {
    /// When the ban began that reset them last; 0 for never.
    pub epoch_ms: u64,
    /// When the engine was asked last, on the monotonic clock; 0 for never.
    pub asked_ns: u64,
    /// Requests.
    pub requests: PerSpan<InFleet>,
    /// Bytes.
    pub bytes: PerSpan<InFleet>,
}

impl ClientInFleet {
    /// Whether it says nothing any more. The windows are those of a client that is not asked for.
    pub fn is_past(&self, wall_ms: u64) -> bool {
        let is_past = |span: Span, in_fleet: &InFleet| {
            // Rolled as the window of a client that asks nothing is.
            let (mut in_fleet, mut window) = (*in_fleet, in_fleet.others());
            window.roll(span, wall_ms);
            in_fleet.roll(&window, span);
            in_fleet.is_empty()
        };
        let all = [&self.requests, &self.bytes];
        let windows = all.map(|windows| windows.map(is_past));
        wall_ms.saturating_sub(self.epoch_ms) > EPOCH_MS
            && windows
                .iter()
                .all(|past| past.minute && past.hour && past.day)
    }

    /// Each window.
    pub fn each(&mut self) -> impl Iterator<Item = &mut InFleet> {
        let all = [&mut self.requests, &mut self.bytes];
        all.into_iter()
            .flat_map(|of| [&mut of.minute, &mut of.hour, &mut of.day])
    }
}

/// A window of a rule, with what others have counted of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuleWindow {
    /// What all have counted.
    pub all: Window,
    /// What others have, as an estimate, and how long ago the engine has said so, milliseconds;
    /// none where it was not asked yet.
    pub elsewhere: Option<(u64, u64)>,
}

impl RuleWindow {
    /// Of which the engine was asked at this time of the monotonic clock; 0 for never.
    pub fn of(
        all: Window,
        of: Option<&InFleet>,
        span: impl Length,
        asked_ns: u64,
        now: Now,
    ) -> Self {
        let elsewhere = of.filter(|_| asked_ns > 0).map(|of| {
            let (mut window, mut of) = (all, *of);
            window.roll(span, now.wall_ms);
            of.roll(&window, span);
            let age_ms = now.mono_ns.saturating_sub(asked_ns) / 1_000_000;
            (of.others().estimate(span, now.wall_ms), age_ms)
        });
        Self { all, elsewhere }
    }
}

/// What the fleet knows of a count that clients share.
#[derive(Clone, Default)]
pub struct CountInFleet {
    /// When the ban began that reset it last; 0 for never.
    pub epoch_ms: u64,
    /// When the engine was asked last, on the monotonic clock; 0 for never.
    pub asked_ns: u64,
    /// Something was counted since it was looked at last.
    pub is_changed: bool,
    /// Its windows.
    pub windows: PerSpan<InFleet>,
}

/// The part of what is left of a limit that all instances together hold back: a tenth (FLEET-7).
const HELD_BACK: u64 = 10;

/// How much is due of what was not sent, and how urgently.
pub struct Due<'a> {
    reporting: &'a Reporting,
    urgency: u64,
    asks: bool,
    is_empty: bool,
}

impl<'a> Due<'a> {
    /// Nothing yet.
    pub const fn of(reporting: &'a Reporting) -> Self {
        Self {
            reporting,
            urgency: 0,
            asks: false,
            is_empty: true,
        }
    }

    /// So much of a window was not sent, so much of it is known, and this is its limit.
    pub fn note(&mut self, unsent: Window, known: u64, limit: Option<u64>, refuses: bool) {
        let unsent = unsent.current.saturating_add(unsent.previous);
        self.is_empty &= unsent == 0;
        let Some(limit) = limit else { return };
        let instances = self.reporting.instances.max(1);
        let left = limit.saturating_sub(known);
        self.asks |= refuses && known >= limit / 2;
        if unsent > left / (HELD_BACK * instances) {
            let urgency =
                u128::from(unsent) * u128::from(instances) * 1000 / u128::from(left.max(1));
            let urgency = u64::try_from(urgency).unwrap_or(u64::MAX);
            self.urgency = self.urgency.max(urgency).max(1);
        }
    }

    /// All in all; 0 where nothing is due. The engine was asked then last; what it was told before
    /// a restart is asked for at once.
    pub fn urgency(&self, asked_ns: u64, is_restored: bool, now: Now) -> u64 {
        let asks = self.asks && now.mono_ns.saturating_sub(asked_ns) >= self.reporting.ask_after_ns;
        let is_last = self.reporting.is_last && !self.is_empty;
        let is_unknown = is_restored && asked_ns == 0;
        self.urgency.max(u64::from(asks || is_last || is_unknown))
    }
}

/// All of them in the buckets of the latest.
pub fn aligned(mut windows: Vec<Window>) -> Vec<Window> {
    let latest = windows.iter().map(|window| window.start_ms).max();
    for (place, window) in windows.iter_mut().enumerate() {
        window.roll(span_at(place), latest.unwrap_or_default());
    }
    windows
}

/// Whether the time is over for which the engine keeps a sum that it was asked for then last; 0 is
/// never.
pub fn has_lapsed(asked_ns: u64, report: &Report, now: Now) -> bool {
    let asked_ago = u128::from(now.mono_ns.saturating_sub(asked_ns));
    asked_ns > 0 && asked_ago >= report.keep.as_nanos()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// RULE-5: the bucket passes exactly what a twin passes that remembers every request and
        /// adds fractions up; a request that waits as long as it was told fits, and one nanosecond
        /// sooner it does not.
        #[test]
        fn the_bucket_agrees_with_its_naive_twin(
            per_second in 1u32..2000, burst in 1u32..50,
            steps in prop::collection::vec(prop_oneof![0u64..3, 0u64..30_000_000, 0u64..3_000_000_000], 1..120),
        ) {
            let size = BucketSize { per_second, burst };
            let mut bucket = Bucket::full(size, 0);
            // The twin's tokens, in billionths, as an exact number that is filled up step by step.
            let (mut tokens, full) = (i128::from(burst) * 1_000_000_000, i128::from(burst) * 1_000_000_000);
            let mut now = 0;
            for step in steps {
                now += step;
                tokens = (tokens + i128::from(step) * i128::from(per_second)).min(full);
                bucket = bucket.at(size, now);
                let wait = bucket.wait_ns(size);
                prop_assert_eq!(wait == 0, tokens >= 1_000_000_000);
                if wait == 0 {
                    bucket = bucket.take();
                    tokens -= 1_000_000_000;
                } else {
                    prop_assert_eq!(bucket.at(size, now + wait).wait_ns(size), 0);
                    prop_assert!(bucket.at(size, now + wait - 1).wait_ns(size) > 0);
                }
                prop_assert_eq!(bucket.is_full(size), tokens == full);
            }
        }
    }
}
