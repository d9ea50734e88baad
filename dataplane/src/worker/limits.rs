//! The bounds on connections, across workers: in all, of a client, of a netblock, and of a
//! netblock that is banned, at a time and a second (CONN-2, CONN-3, CONN-16).
//!
//! Eight connections at a time (CONN-3) do not bound how often each of them is opened anew, and
//! each costs a task, and over TLS a handshake, which is a hundred times what a refusal costs.

use std::cell::Cell;
use std::cmp::Ordering;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use ahash::RandomState;
use dashmap::DashMap;
use weir_shared::client::Client;
use weir_shared::netblock::Netblock;
use weir_shared::settings::ConnectionSettings;
use weir_shared::totals::ConnectionError;

use crate::worker::counters::Counters;

/// Connections of a netblock whose peers are banned or denied (CONN-3).
const MAX_REFUSED: usize = 8;

/// Who goes first: the connection of the larger netblock, and of one netblock the older one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Connections of its netblock; 0 for trusted proxies, which go last.
    pub size: usize,
    /// Since when it may give way, on the monotonic clock.
    pub since_ns: u64,
}

impl Rank {
    /// Where nobody may give way: behind every other.
    pub const NOBODY: Self = Self {
        size: 0,
        since_ns: u64::MAX,
    };
}

/// The greatest goes first.
impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_size = self.size.cmp(&other.size);
        by_size.then(other.since_ns.cmp(&self.since_ns))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

type Counts<K> = DashMap<K, usize, RandomState>;

/// The bounds on connections, across workers. Touched at accept and close, and on a worker's tick.
///
/// All of it is relaxed: each number decides for itself, no other memory hangs on it.
pub struct ConnectionLimits {
    open: AtomicUsize,
    by_client: Counts<Client>,
    by_netblock: Counts<Netblock>,
    /// `WAF_MAX_CONNECTIONS`
    max: AtomicUsize,
    /// `WAF_MAX_CONNECTIONS_PER_CLIENT`
    max_per_client: AtomicUsize,
    /// `WAF_MAX_CONNECTIONS_PER_NETBLOCK`
    max_per_netblock: AtomicUsize,
    /// New connections of the refused.
    refused_rate: RefusedRate,
    idle: Vec<IdleConnections>,
}

/// What a worker tells the others of its idle connections. It alone writes all but the last.
struct IdleConnections {
    /// Since when the one that goes first has been idle, as of the last tick; `u64::MAX` where none
    /// was.
    since_ns: AtomicU64,
    /// Connections of its netblock.
    size: AtomicUsize,
    /// How many there are.
    count: AtomicUsize,
    /// How often one began to be idle; wraps.
    begun: AtomicUsize,
    /// How many the others want closed.
    wanted: AtomicUsize,
}

impl IdleConnections {
    /// Whether one is left that nobody wants closed yet.
    fn has_one(&self) -> bool {
        self.count.load(Relaxed) > self.wanted.load(Relaxed)
    }
}

/// The peer of a connection. Trusted proxies stand for many and have none.
pub struct Peer {
    /// The client.
    pub client: Client,
    /// What a ban of the client would cover.
    pub netblock: Netblock,
    /// It is banned or denied, in enforce mode.
    pub is_refused: bool,
}

impl ConnectionLimits {
    /// Limits under which nothing is open yet.
    pub fn new(settings: &ConnectionSettings, workers: usize) -> Self {
        let nothing_idle = || IdleConnections {
            since_ns: AtomicU64::new(u64::MAX),
            size: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            wanted: AtomicUsize::new(0),
        };
        Self {
            open: AtomicUsize::new(0),
            by_client: DashMap::default(),
            by_netblock: DashMap::default(),
            max: AtomicUsize::new(settings.max),
            max_per_client: AtomicUsize::new(settings.max_per_client),
            max_per_netblock: AtomicUsize::new(settings.max_per_netblock),
            refused_rate: RefusedRate::new(),
            idle: (0..workers).map(|_| nothing_idle()).collect(),
        }
    }

    /// Other bounds, for connections to come: nobody is closed for them.
    pub fn set(&self, settings: &ConnectionSettings) {
        self.max.store(settings.max, Relaxed);
        self.max_per_client.store(settings.max_per_client, Relaxed);
        self.max_per_netblock
            .store(settings.max_per_netblock, Relaxed);
    }

    /// Takes a slot, and counts the connection. `make_room` is asked where every slot is taken: it
    /// closes another connection, which has its slot until it has ended.
    ///
    /// # Errors
    /// The bound that is reached.
    pub fn enter(
        self: &Arc<Self>,
        worker: usize,
        peer: Option<&Peer>,
        counters: &Arc<Counters>,
        make_room: impl FnOnce() -> bool,
    ) -> Result<ConnectionSlot, ConnectionError> {
        let mut slot = ConnectionSlot {
            limits: Arc::clone(self),
            client: None,
            netblock: None,
            gave_way: Cell::new(false),
            counters: None,
            worker,
            is_idle: Cell::new(false),
        };
        if let Some(peer) = peer {
            let max = self.max_per_client.load(Relaxed);
            if !take(&self.by_client, peer.client, max) {
                return Err(ConnectionError::TooManyClient);
            }
            slot.client = Some(peer.client);
            let max = self.max_per_netblock.load(Relaxed);
            let (max, kind) = if peer.is_refused {
                (max.min(MAX_REFUSED), ConnectionError::Banned)
            } else {
                (max, ConnectionError::TooManyNetblock)
            };
            if !take(&self.by_netblock, peer.netblock, max) {
                return Err(kind);
            }
            slot.netblock = Some(peer.netblock);
        }
        if self.open.fetch_add(1, Relaxed) >= self.max.load(Relaxed) && !make_room() {
            self.open.fetch_sub(1, Relaxed);
            return Err(ConnectionError::TooMany);
        }
        counters.connection_opened();
        slot.counters = Some(Arc::clone(counters));
        Ok(slot)
    }

    /// Whether every slot is taken.
    pub fn is_full(&self) -> bool {
        self.open.load(Relaxed) >= self.max.load(Relaxed)
    }

    /// Whether this peer opens no more connections than the refused may; it is counted then.
    pub fn is_within_rate(&self, peer: &Peer, now_ns: u64) -> bool {
        !peer.is_refused || self.refused_rate.takes(peer.netblock, now_ns)
    }

    /// A worker tells which of its connections goes first. Says how many of them the others want
    /// closed.
    pub fn tell_idle(&self, worker: usize, first: Rank) -> usize {
        let Some(own) = self.idle.get(worker) else {
            return 0;
        };
        own.since_ns.store(first.since_ns, Relaxed);
        own.size.store(first.size, Relaxed);
        own.wanted.swap(0, Relaxed)
    }

    /// The other worker that has the connection that goes first, and which that is.
    pub fn idle_elsewhere(&self, worker: usize) -> Option<(usize, Rank)> {
        let others = self.idle.iter().enumerate();
        let rank = |idle: &IdleConnections| Rank {
            size: idle.size.load(Relaxed),
            since_ns: idle.since_ns.load(Relaxed),
        };
        others
            .filter(|(index, idle)| *index != worker && idle.has_one())
            .map(|(index, idle)| (index, rank(idle)))
            .max_by_key(|(_, rank)| *rank)
    }

    /// How often a connection of the worker began to be idle.
    pub fn idle_begun(&self, worker: usize) -> usize {
        let own = self.idle.get(worker);
        own.map_or(0, |own| own.begun.load(Relaxed))
    }

    /// Has a worker close the next connection that is idle, on its tick.
    pub fn want_closed(&self, worker: usize, count: usize) {
        if let Some(other) = self.idle.get(worker) {
            other.wanted.fetch_add(count, Relaxed);
        }
    }
}

/// Counts one more of `key`, unless there are `max`.
fn take<K: Hash + Eq>(counts: &Counts<K>, key: K, max: usize) -> bool {
    let mut count = counts.entry(key).or_insert(0);
    let fits = *count < max;
    *count += usize::from(fits);
    fits
}

fn give_back<K: Hash + Eq>(counts: &Counts<K>, key: &K) {
    if let Some(mut count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
    }
    counts.remove_if(key, |_, count| *count == 0);
}

/// A slot among the connections, given back when dropped: also by a panic.
pub struct ConnectionSlot {
    limits: Arc<ConnectionLimits>,
    client: Option<Client>,
    netblock: Option<Netblock>,
    /// Its place in the netblock was given up: it closes.
    gave_way: Cell<bool>,
    /// None while it is not known whether there is room for it.
    counters: Option<Arc<Counters>>,
    /// Whose connection it is.
    worker: usize,
    is_idle: Cell<bool>,
}

impl ConnectionSlot {
    /// That of a stream, which takes none: the connection has one for all of them.
    pub fn of_stream(&self) -> Self {
        Self {
            limits: Arc::clone(&self.limits),
            client: None,
            netblock: None,
            gave_way: Cell::new(false),
            counters: None,
            // No worker's: nothing is told of it.
            worker: usize::MAX,
            is_idle: Cell::new(false),
        }
    }

    /// How many connections its netblock has; 0 for a trusted proxy, which has none. More than any
    /// where the connection closes for a ban: it goes before all others.
    pub fn netblock_size(&self) -> usize {
        if self.gave_way.get() {
            return usize::MAX;
        }
        let count = |netblock| Some(*self.limits.by_netblock.get(&netblock)?);
        self.netblock.and_then(count).unwrap_or(0)
    }

    /// Whether nothing is under way on the connection. Called on the thread of its worker.
    pub fn set_idle(&self, is_idle: bool) {
        if self.is_idle.replace(is_idle) != is_idle
            && let Some(own) = self.limits.idle.get(self.worker)
        {
            // One thread alone writes it: no locked instruction.
            let by = if is_idle { 1 } else { usize::MAX };
            let count = own.count.load(Relaxed).wrapping_add(by);
            own.count.store(count, Relaxed);
            let begun = own.begun.load(Relaxed).wrapping_add(usize::from(is_idle));
            own.begun.store(begun, Relaxed);
        }
    }

    /// Gives up the place in a netblock that is banned, if the netblock has more than it may: the
    /// connection is to close then (CONN-3).
    pub fn gives_way_to_ban(&self) -> bool {
        let Some(netblock) = self.netblock.filter(|_| !self.gave_way.get()) else {
            return false;
        };
        let Some(mut count) = self.limits.by_netblock.get_mut(&netblock) else {
            return false;
        };
        let is_beyond = *count > MAX_REFUSED;
        if is_beyond {
            *count -= 1;
            self.gave_way.set(true);
        }
        is_beyond
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.set_idle(false);
        if let Some(counters) = &self.counters {
            counters.connection_closed();
            self.limits.open.fetch_sub(1, Relaxed);
        }
        if let Some(client) = self.client {
            give_back(&self.limits.by_client, &client);
        }
        if let Some(netblock) = self.netblock.filter(|_| !self.gave_way.get()) {
            give_back(&self.limits.by_netblock, &netblock);
        }
    }
}

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
    use weir_shared::netblock::PrefixLengths;
    use weir_shared::totals::Totals;

    fn limits(max: usize, max_per_client: usize) -> Arc<ConnectionLimits> {
        let settings = ConnectionSettings {
            max,
            max_per_client,
            max_per_netblock: 10,
            ..ConnectionSettings::default()
        };
        Arc::new(ConnectionLimits::new(&settings, 2))
    }

    fn open(counters: &Counters) -> u64 {
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        totals.connections
    }

    fn peer(address: u32, is_refused: bool) -> Peer {
        let client = Client::V4(address);
        Peer {
            client,
            netblock: Netblock::of(client, PrefixLengths::default()),
            is_refused,
        }
    }

    /// CONN-11: both bounds hold, a trusted proxy has the first alone, and what is closed can be
    /// opened again.
    #[test]
    fn a_slot_is_given_back() {
        let (limits, counters) = (limits(3, 1), Arc::default());
        let enter = |peer: Option<&Peer>| limits.enter(0, peer, &counters, || false);
        let [one, two] = [1, 2].map(|last| peer(last, false));
        let first = enter(Some(&one)).unwrap();
        let refused = |peer| enter(peer).err().unwrap();
        assert_eq!(refused(Some(&one)), ConnectionError::TooManyClient);
        let proxies = [None, None].map(|proxy| enter(proxy).unwrap());
        assert_eq!(refused(Some(&two)), ConnectionError::TooMany);
        assert_eq!(open(&counters), 3);
        drop(first);
        let second = enter(Some(&two)).unwrap();
        drop((second, proxies));
        assert_eq!(open(&counters), 0);
        assert!(limits.by_client.is_empty() && limits.by_netblock.is_empty());
    }

    /// CONN-3: a netblock is bounded, a banned one to eight; what stood before the ban counts, and
    /// gives way.
    #[test]
    fn a_netblock_has_its_bound() {
        let (limits, counters) = (limits(100, 1), Arc::default());
        let enter = |last: u32, is_refused| {
            limits.enter(0, Some(&peer(last, is_refused)), &counters, || false)
        };
        let held: Vec<_> = (0..10).map(|last| enter(last, false).unwrap()).collect();
        let refused = |last, is_refused| enter(last, is_refused).err().unwrap();
        assert_eq!(refused(77, false), ConnectionError::TooManyNetblock);
        assert_eq!(refused(77, true), ConnectionError::Banned);
        assert!(enter(256, false).is_ok(), "another netblock");
        let given_up = held.iter().filter(|slot| slot.gives_way_to_ban()).count();
        assert_eq!(given_up, 2);
        // They go before all others.
        let sizes = held.iter().map(ConnectionSlot::netblock_size);
        let first = sizes.clone().filter(|size| *size == usize::MAX).count();
        assert_eq!((first, sizes.min()), (2, Some(8)));
        assert_eq!(refused(77, true), ConnectionError::Banned);
        drop(held);
        assert!(limits.by_client.is_empty() && limits.by_netblock.is_empty());
        assert!(enter(77, true).is_ok());
    }

    /// CONN-2: a new connection is let in where another is closed for it, also by another worker.
    #[test]
    fn another_connection_gives_way() {
        let (limits, counters) = (limits(1, 1), Arc::default());
        let first = limits.enter(0, None, &counters, || false).unwrap();
        let second = limits.enter(1, None, &counters, || true).unwrap();
        assert_eq!(open(&counters), 2);
        drop(first);
        assert_eq!(
            limits.enter(0, None, &counters, || false).err(),
            Some(ConnectionError::TooMany)
        );

        assert_eq!(limits.idle_elsewhere(0), None);
        second.set_idle(true);
        let rank = |size, since_ns| Rank { size, since_ns };
        assert_eq!(limits.tell_idle(1, rank(3, 70)), 0);
        assert_eq!(limits.idle_elsewhere(0), Some((1, rank(3, 70))));
        assert_eq!(limits.idle_elsewhere(1), None);
        limits.want_closed(1, 1);
        assert_eq!(limits.idle_elsewhere(0), None, "it has no other");
        assert_eq!(limits.tell_idle(1, Rank::NOBODY), 1);
        assert_eq!(limits.tell_idle(1, Rank::NOBODY), 0);
        assert!(limits.idle_elsewhere(0).is_some());
        drop(second);
        assert_eq!(limits.idle_elsewhere(0), None);
    }

    /// CONN-16: the larger netblock goes first, of one the older connection, and nobody last.
    #[test]
    fn the_oldest_of_the_largest_netblock_goes_first() {
        let rank = |size, since_ns| Rank { size, since_ns };
        let mut ranks = [
            Rank::NOBODY,
            rank(0, 3),
            rank(2, 50),
            rank(9, 70),
            rank(2, 40),
            rank(9, 60),
        ];
        ranks.sort_by(|a, b| b.cmp(a));
        let order = [(9, 60), (9, 70), (2, 40), (2, 50), (0, 3)];
        assert_eq!(ranks[..5], order.map(|(size, since)| rank(size, since)));
        assert_eq!(ranks[5], Rank::NOBODY);
    }

    /// CONN-16: the size of a netblock is that of all workers; a trusted proxy has none, and nobody
    /// but the refused has a rate.
    #[test]
    fn a_slot_knows_the_size_of_its_netblock() {
        let (limits, counters) = (limits(2, 9), Arc::default());
        let enter = |worker, peer| limits.enter(worker, peer, &counters, || false).unwrap();
        let (one, other) = (peer(1, false), peer(2, true));
        let slots = [enter(0, Some(&one)), enter(1, Some(&other))];
        assert!(slots.iter().all(|slot| slot.netblock_size() == 2));
        assert!(limits.is_full());
        drop(slots);
        assert!(!limits.is_full());
        assert_eq!(enter(0, None).netblock_size(), 0);
        let passed = |peer: &Peer| (0..100).filter(|_| limits.is_within_rate(peer, 0)).count();
        assert_eq!((passed(&one), passed(&other)), (100, 40));
    }

    /// METRIC: a panic in whatever holds the slot leaves no connection counted that is gone.
    #[test]
    fn a_panic_gives_the_slot_back() {
        let (limits, counters) = (limits(1, 1), Arc::default());
        let slot = limits.enter(0, None, &counters, || false).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = slot;
            panic!("a bug");
        }));
        assert!(outcome.is_err());
        assert_eq!(open(&counters), 0);
        assert!(limits.enter(0, None, &counters, || false).is_ok());
    }
}

#[cfg(test)]
mod refused_rate_tests {
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
