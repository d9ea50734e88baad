//! The limits of a client, and the bucket of its requests a second.

use weir_shared::verdict::AppliedPercent;
use weir_shared::window::{PerSpan, Span, Window};

/// Adds to the three windows; names the shortest that is over, and its limit.
pub fn charge(
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

/// What is left of a bucket from which something was taken.
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
