//! Step 10: one request against every limit of its client (LIMIT, RULE-5). Pure but for the entry
//! that it charges.
//!
//! A limit bans or only refuses. One that bans counts every request, also one that another limit
//! refuses (LIMIT-2), and its ban comes before every 429. Those that only refuse count nothing but
//! what passes all of them, so that the time that they name is true: they are all asked first, and
//! charged together.

use weir_shared::clock::Now;
use weir_shared::settings::{LimitSettings, OnLimit};
use weir_shared::verdict::{LimitHit, LimitKind, Limits};
use weir_shared::window::Span;

use super::bucket::{Bucket, BucketSize};
use super::entry::{Entry, Exceeded};

/// A request under way ends nobody knows when: the shortest time that `Retry-After` can name.
const SOON_MS: u64 = 1000;

/// What the settings say of step 10 besides the limits themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charging {
    /// `WAF_ON_LIMIT`
    pub on_limit: OnLimit,
    /// `WAF_RATE_LIMIT_PER_SECOND`, `WAF_RATE_LIMIT_BURST`
    pub bucket: Option<BucketSize>,
    /// `WAF_MAX_REQUESTS_PER_CLIENT`
    pub max_under_way: Option<u32>,
}

impl Charging {
    /// Those among the settings.
    pub fn of(limits: &LimitSettings) -> Self {
        Self {
            on_limit: limits.on_limit,
            bucket: limits.per_second.map(|per_second| BucketSize {
                per_second,
                burst: limits.burst.unwrap_or(per_second),
            }),
            max_under_way: limits.max_under_way,
        }
    }

    /// Charges one request; gives the limit that refuses it.
    pub fn charge(&self, entry: &mut Entry, limits: &Limits, now: Now) -> Option<Exceeded> {
        if self.on_limit == OnLimit::Ban
            && let Some(exceeded) = entry.charge_request(limits, now.wall_ms)
        {
            return Some(exceeded);
        }
        if *self == Self::default() {
            return None;
        }
        let refused = self.refused(entry, limits, now);
        if refused.is_none() {
            self.take(entry, now);
        }
        refused
    }

    /// The first of the limits that only refuse which has no room for one more request, with the
    /// time until all of them have.
    fn refused(&self, entry: &Entry, limits: &Limits, now: Now) -> Option<Exceeded> {
        let windows = match self.on_limit {
            OnLimit::Ban => [None; 6],
            OnLimit::Refuse => LimitKind::ALL.map(|kind| full_window(entry, limits, kind, now)),
        };
        [self.concurrent(entry), self.second(entry, now)]
            .into_iter()
            .chain(windows)
            .flatten()
            .reduce(|first, next| Exceeded {
                fits_in_ms: first.fits_in_ms.zip(next.fits_in_ms).map(|(a, b)| a.max(b)),
                ..first
            })
    }

    fn concurrent(&self, entry: &Entry) -> Option<Exceeded> {
        let max = self.max_under_way?;
        (entry.under_way() >= max).then_some(Exceeded {
            limit: LimitHit::Concurrent,
            value: max.into(),
            bans: false,
            first: false,
            fits_in_ms: Some(SOON_MS),
        })
    }

    fn second(&self, entry: &Entry, now: Now) -> Option<Exceeded> {
        let size = self.bucket?;
        let wait_ns = entry.bucket()?.at(size, now.mono_ns).wait_ns(size);
        (wait_ns > 0).then(|| Exceeded {
            limit: LimitHit::Second,
            value: size.per_second.into(),
            bans: false,
            first: false,
            fits_in_ms: Some(wait_ns.div_ceil(1_000_000)),
        })
    }

    /// Counts a request that passes.
    fn take(&self, entry: &mut Entry, now: Now) {
        if let Some(size) = self.bucket {
            let bucket = entry.bucket().map_or_else(
                || Bucket::full(size, now.mono_ns),
                |bucket| bucket.at(size, now.mono_ns),
            );
            entry.further().bucket = Some(bucket.take());
        }
        if self.on_limit == OnLimit::Refuse {
            for span in Span::ALL {
                entry.requests.get_mut(span).add(span, now.wall_ms, 1);
            }
        }
    }

    /// Charges the bytes of one request whose answer has ended; gives the limit that bans for them
    /// (LIMIT-5). Where limits only refuse, the next request is told.
    pub fn charge_bytes(
        &self,
        entry: &mut Entry,
        limits: &Limits,
        wall_ms: u64,
        bytes: u64,
    ) -> Option<Exceeded> {
        match self.on_limit {
            OnLimit::Ban => entry.charge_bytes(limits, wall_ms, bytes),
            OnLimit::Refuse => {
                for span in Span::ALL {
                    entry.bytes.get_mut(span).add(span, wall_ms, bytes);
                }
                None
            }
        }
    }
}

/// A window of requests without room for one more, or one of bytes that is over its limit: what a
/// request will carry is not known before.
fn full_window(entry: &Entry, limits: &Limits, kind: LimitKind, now: Now) -> Option<Exceeded> {
    let limit = (*limits.get(kind))?;
    let (windows, amount) = if kind.counts_bytes() {
        (&entry.bytes, 0)
    } else {
        (&entry.requests, 1)
    };
    let (span, mut window) = (kind.span(), *windows.get(kind.span()));
    window.add(span, now.wall_ms, amount);
    window.is_over(span, now.wall_ms, limit).then(|| Exceeded {
        limit: LimitHit::Window(kind),
        value: limit,
        bans: false,
        first: false,
        fits_in_ms: windows.get(span).fits_in(span, now.wall_ms, limit, amount),
    })
}

#[cfg(test)]
mod tests;
