//! How many connections a second a netblock may open whose peers are banned or denied (CONN-16).
//!
//! Eight at a time (CONN-3) do not bound how often each of them is opened anew, and each costs a
//! task, and over TLS a handshake, which is a hundred times what a refusal costs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;
use weir_shared::netblock::Netblock;

/// Connections a second.
const PER_SECOND: u64 = 20;
/// Connections at once, by who had none for a while.
const BURST: u64 = 40;
/// One connection takes the bucket so long to fill again.
const COST_NS: u64 = 1_000_000_000 / PER_SECOND;
/// Buckets. Netblocks with the same hash share one: so all that are refused together are bounded,
/// too, however many netblocks somebody has, and nobody can empty a bucket by filling a table.
const BUCKETS: usize = 1024;

/// The buckets of all refused netblocks.
pub struct RefusedRate {
    /// When each is full again, nanoseconds on the monotonic clock (the generic cell rate
    /// algorithm). Relaxed: each number decides for itself.
    full_at_ns: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl RefusedRate {
    /// All buckets are full.
    pub fn new() -> Self {
        Self {
            full_at_ns: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Whether the netblock may open one more connection now; it is counted then.
    pub fn takes(&self, netblock: Netblock, now_ns: u64) -> bool {
        let at = (self.hasher.hash_one(netblock) % BUCKETS as u64) as usize;
        let Some(full_at) = self.full_at_ns.get(at) else {
            return true;
        };
        let take = |full_at: u64| {
            let next = full_at.max(now_ns).saturating_add(COST_NS);
            (next.saturating_sub(now_ns) <= BURST * COST_NS).then_some(next)
        };
        full_at.fetch_update(Relaxed, Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONN-16: forty at once, then twenty a second; another netblock has its own, and the number
    /// of buckets bounds all of them together.
    #[test]
    fn a_refused_netblock_opens_twenty_a_second() {
        let rate = RefusedRate::new();
        let taken = |netblock: Netblock, now_ns| {
            let tries = 0..1_000;
            tries.filter(|_| rate.takes(netblock, now_ns)).count()
        };
        let one: Netblock = "192.0.2.0/24".parse().unwrap();
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(taken(one, 5 * SECOND), 40);
        assert_eq!(taken(one, 5 * SECOND + COST_NS - 1), 0);
        assert_eq!(taken(one, 6 * SECOND), 20);
        assert_eq!(taken(one, 6 * SECOND + 3 * COST_NS), 3);
        assert_eq!(taken(one, 60 * SECOND), 40);
        // A worker whose clock is a tick behind gains nothing.
        assert_eq!(taken(one, 60 * SECOND - 50_000_000), 0);
        let all: usize = (0..u32::from(u16::MAX))
            .map(|number| {
                let [_, _, high, low] = number.to_be_bytes();
                let netblock = format!("198.{high}.{low}.0/24").parse().unwrap();
                (0..50)
                    .filter(|_| rate.takes(netblock, 90 * SECOND))
                    .count()
            })
            .sum();
        assert_eq!(all, BUCKETS * 40);
    }
}
