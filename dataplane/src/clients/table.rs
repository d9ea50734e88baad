//! The client table: a dashmap behind closures, with an exact bound (LIMIT-7).
//!
//! A client that is already kept costs one shard lock and no other. New clients pass one admission
//! lock, which alone adds and removes, so the bound is exact. No guard ever leaves this file: a
//! dashmap guard held across an `.await` would deadlock.
//!
//! Which client was seen longest ago is found without a list that every request would have to
//! touch. Each entry has the time it was last seen; the admission keeps a short queue of the
//! oldest, taken in one pass over the table. An entry that was seen since has another time than the
//! queue holds, and is skipped: whatever is not in the queue is younger than all of it. One pass
//! serves [`CANDIDATES`] evictions, so an eviction costs a constant number of visits.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use arc_swap::ArcSwapOption;
use crossbeam_channel::Sender;
use dashmap::DashMap;
use weir_shared::ban::FleetNote;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::netblock::PrefixLengths;
use weir_shared::rules::{Rule, Sent};
use weir_shared::table::MAX_CLIENTS;

use crate::clients::BucketSize;
use crate::clients::entry::Entry;
use crate::clients::known::KnownClients;
use crate::clients::shared_counts::{SharedCounts, Sharing};

/// How many of the oldest clients one pass over the table finds. A fifth of the table: five visits
/// an eviction.
const CANDIDATES: usize = MAX_CLIENTS / 5;

/// Locks that the clients are spread over: enough that two workers seldom meet at one. dashmap's
/// own choice, four a core, lets two workers collide at every eighth request.
const SHARDS: usize = 256;

/// Clients that come from a file were not seen by this process; their order lies below every
/// monotonic time.
const SEEN_BASE: u64 = 1 << 32;

/// The clients that are kept.
pub struct Table {
    /// Keyed with random state: nobody outside can aim at one shard.
    map: DashMap<Client, Entry, RandomState>,
    admission: Mutex<Admission>,
    pub(super) capacity: usize,
    /// The size of the clients' buckets: one that is full again is given back.
    pub(super) bucket: ArcSwapOption<BucketSize>,
    /// What clients count together; a copy that is only asked has those of its original.
    shared: Arc<SharedCounts>,
    /// Who is known; a copy that is only asked has those of its original.
    known: Arc<KnownClients>,
    /// Takes clients that counted something; none where nothing is shared with other instances.
    pub(super) fleet: OnceLock<Sender<Client>>,
    /// It is a copy: nothing is counted in what it shares with its original.
    only_asks: bool,
    /// Written under the admission lock; read by metrics, where a moment's delay does not matter
    /// (relaxed).
    len: AtomicU64,
    evicted: AtomicU64,
}

impl Default for Table {
    fn default() -> Self {
        Self::with_capacity(MAX_CLIENTS)
    }
}

impl Table {
    /// A table for at most `capacity` clients; production uses [`MAX_CLIENTS`].
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            map: DashMap::with_capacity_and_hasher_and_shard_amount(
                capacity,
                RandomState::new(),
                SHARDS,
            ),
            admission: Mutex::new(Admission::new(capacity.max(1))),
            capacity: capacity.max(1),
            bucket: ArcSwapOption::empty(),
            shared: Arc::default(),
            known: Arc::default(),
            fleet: OnceLock::new(),
            only_asks: false,
            len: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Buckets have this size from now on; none is no limit a second.
    pub fn set_bucket(&self, size: Option<BucketSize>) {
        self.bucket.store(size.map(Arc::new));
    }

    /// A table with a copy of this client alone, if it is kept: what is asked of the copy changes
    /// nothing here (CONTROL-5).
    pub fn copy_of(&self, client: Client) -> Self {
        let copy = Self {
            shared: Arc::clone(&self.shared),
            known: Arc::clone(&self.known),
            only_asks: true,
            ..Self::with_capacity(1)
        };
        if let Some(entry) = self.get(client, |entry| entry.clone()) {
            copy.map.insert(client, entry);
            copy.len.store(1, Ordering::Relaxed);
        }
        copy
    }

    /// Who is known, and whom the application trusts.
    pub fn known(&self) -> &KnownClients {
        &self.known
    }

    /// What clients count together.
    pub fn shared(&self) -> &SharedCounts {
        &self.shared
    }

    /// What a request of a client, with these fields, is to the counts that clients share.
    pub fn sharing<'a>(
        &'a self,
        client: Client,
        prefixes: PrefixLengths,
        sent: &'a dyn Sent,
    ) -> Sharing<'a> {
        Sharing {
            counts: &self.shared,
            known: &self.known,
            client,
            prefixes,
            sent,
            only_asks: self.only_asks,
        }
    }

    /// Whether a client is known after this time, by its history or from before it was dropped
    /// (SHARE-4).
    pub fn is_known(&self, client: Client, after: Duration, now: Now) -> bool {
        let standing = self.get(client, |entry| entry.standing());
        standing.is_some_and(|standing| standing.is_known(after, now.wall_ms))
            || self.known.knows(client, after, now.wall_ms)
    }

    /// Marks the client as seen now, admitting it if it is new, and hands its entry to `work`.
    pub fn touch<R>(&self, client: Client, now: Now, work: impl FnOnce(&mut Entry) -> R) -> R {
        if let Some(mut entry) = self.map.get_mut(&client) {
            mark_seen(&mut entry, now);
            return work(&mut entry);
        }
        let mut admission = self.admission();
        self.admit(&mut admission, client, new_entry(now), Some(now.wall_ms));
        let mut entry = self.map.entry(client).or_insert_with(|| new_entry(now));
        // The entry's own lock suffices from here on: other clients come in meanwhile.
        drop(admission);
        mark_seen(&mut entry, now);
        work(&mut entry)
    }

    /// Marks a client as seen now if it is kept, and hands its entry to `work`: nobody is admitted
    /// (LIMIT-9).
    pub fn seen<R>(
        &self,
        client: Client,
        now: Now,
        work: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        self.get(client, |entry| {
            mark_seen(entry, now);
            work(entry)
        })
    }

    /// Hands the entry of a client to `work` if it is kept. It does not count as seen.
    pub fn get<R>(&self, client: Client, work: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.map.get_mut(&client).map(|mut entry| work(&mut entry))
    }

    /// Hands the entry of a client to `work` without marking it as seen; a client that was dropped
    /// since its request began comes back, so that nothing it carried goes uncounted.
    pub fn update<R>(&self, client: Client, now: Now, work: impl FnOnce(&mut Entry) -> R) -> R {
        if let Some(mut entry) = self.map.get_mut(&client) {
            return work(&mut entry);
        }
        self.touch(client, now, work)
    }

    /// Hands every entry to `work`, shard by shard.
    pub fn each(&self, mut work: impl FnMut(Client, &mut Entry)) {
        for mut entry in self.map.iter_mut() {
            work(*entry.key(), entry.value_mut());
        }
    }

    /// How many clients are kept now.
    pub fn kept(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Clients dropped for the bound since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Something of a client was counted that other instances are to know.
    #[inline]
    pub fn changed(&self, client: Client, entry: &mut Entry) {
        if let Some(fleet) = self.fleet.get() {
            entry.name_to(fleet, client);
        }
    }

    /// Who has counted how much of what a client broke; none where no other instance has. How many
    /// instances there are the control plane adds.
    pub fn fleet_note(&self, client: Client, offence: &Offence, now: Now) -> Option<FleetNote> {
        self.fleet.get()?;
        self.get(client, |entry| entry.fleet_note(offence, now))
            .flatten()
    }

    pub(super) fn admission(&self) -> MutexGuard<'_, Admission> {
        // A panic under this lock leaves a queue that is at worst too short; the next pass mends
        // it.
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a client in unless it is there, after making room. Who is dropped for a request is
    /// remembered if it is known by then; a client that comes from a file has no time.
    fn admit(&self, admission: &mut Admission, client: Client, entry: Entry, wall_ms: Option<u64>) {
        if self.map.contains_key(&client) {
            return;
        }
        while self.kept() >= self.capacity as u64 {
            self.evict(admission, wall_ms);
        }
        self.map.insert(client, entry);
        admission.note_in(client);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts in a client that comes from a file, as `fill` makes it. This process has not seen it:
    /// it stands before all clients that were seen, in the order of the calls.
    pub(super) fn put_older(&self, client: Client, fill: impl FnOnce(&mut Entry)) {
        let mut admission = self.admission();
        admission.from_file = (admission.from_file + 1).min(SEEN_BASE - 1);
        let seen_ns = admission.from_file;
        let mut entry = Entry::new(seen_ns, 0);
        fill(&mut entry);
        self.admit(&mut admission, client, entry, None);
        admission.note_old(seen_ns, client);
    }

    /// Drops a client, which is not remembered.
    pub(super) fn remove(&self, client: Client) {
        let mut admission = self.admission();
        if self.map.remove(&client).is_some() {
            admission.note_out(client);
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops the client that was seen longest ago: of the network that has more than its share, of
    /// all where none has (LIMIT-9).
    fn evict(&self, admission: &mut Admission, wall_ms: Option<u64>) {
        let mut of = admission.over_share();
        loop {
            let queue = admission.queue(of);
            let Some((seen_ns, client)) = queue.pop_front() else {
                let oldest = self.find_oldest(of);
                if oldest.is_empty() && of.take().is_none() {
                    return; // The table is empty: nothing to drop.
                }
                *queue = oldest.into();
                continue;
            };
            let dropped = (self.map).remove_if(&client, |_, entry| entry.seen_ns == seen_ns);
            if let Some((_, entry)) = dropped {
                // One that is known by now is remembered (SHARE-4).
                if let Some(wall_ms) = wall_ms.filter(|_| !self.only_asks) {
                    self.known.remember(client, || entry.standing(), wall_ms);
                }
                admission.note_out(client);
                self.len.fetch_sub(1, Ordering::Relaxed);
                self.evicted.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// One pass over the table for the oldest clients, of a network or of all, oldest first.
    fn find_oldest(&self, of: Option<Network>) -> Vec<(u64, Client)> {
        let is_of = |client: &Client| of.is_none_or(|of| Network::of(*client) == of);
        let mut all: Vec<(u64, Client)> = self
            .map
            .iter()
            .filter(|entry| is_of(entry.key()))
            .map(|entry| (entry.value().seen_ns, *entry.key()))
            .collect();
        let wanted = CANDIDATES.min(all.len());
        if wanted < all.len() {
            all.select_nth_unstable(wanted);
            all.truncate(wanted);
        }
        all.sort_unstable();
        all
    }
}

fn seen_at(now: Now) -> u64 {
    SEEN_BASE.saturating_add(now.mono_ns)
}

fn new_entry(now: Now) -> Entry {
    Entry::new(seen_at(now), now.wall_ms)
}

/// The time a client was last seen never goes back: two workers may apply their readings in the
/// other order.
fn mark_seen(entry: &mut Entry, now: Now) {
    entry.seen_ns = entry.seen_ns.max(seen_at(now));
    entry.last_seen_ms = now.wall_ms;
}

/// A network may have one client in so many of the table before its own go first.
const SHARE: usize = 4;

/// An IPv4 /16 or an IPv6 /48.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Network {
    V4(u16),
    V6(u64),
}

impl Network {
    const fn of(client: Client) -> Self {
        match client {
            Client::V4(bits) => Self::V4((bits >> 16) as u16),
            // A client is a /64: its upper half is kept.
            Client::V6(bits) => Self::V6(bits >> 16),
        }
    }
}

/// The oldest clients at the time of a pass over the table, oldest first, with the time they were
/// last seen then.
type Queue = VecDeque<(u64, Client)>;

/// Who goes first where the table is full (LIMIT-7, LIMIT-9): the client that was seen longest ago,
/// of a network that has more than a quarter of the table before all others. A network of this size
/// is cheap to have, and must not push everybody else out.
pub(super) struct Admission {
    capacity: usize,
    /// The oldest of all.
    oldest: Queue,
    /// Clients of each network.
    counts: HashMap<Network, usize, RandomState>,
    /// Networks with more than their share: fewer than [`SHARE`].
    over: Vec<Network>,
    /// The oldest clients of networks that have, or had, more than their share: at most [`SHARE`],
    /// which is how many can be about to.
    oldest_of: Vec<(Network, Queue)>,
    /// Clients put in from a file so far.
    from_file: u64,
    /// Rules of which clients from a file have counts: each once, however many have.
    pub(super) rules_of_file: Vec<Arc<Rule>>,
}

impl Admission {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            oldest: Queue::new(),
            counts: HashMap::default(),
            over: Vec::new(),
            oldest_of: Vec::new(),
            from_file: 0,
            rules_of_file: Vec::new(),
        }
    }

    fn is_over(&self, count: usize) -> bool {
        count.saturating_mul(SHARE) > self.capacity
    }

    /// A client is in the table from now on.
    fn note_in(&mut self, client: Client) {
        let network = Network::of(client);
        let count = self.counts.entry(network).or_default();
        *count += 1;
        let count = *count;
        if self.is_over(count) && !self.over.contains(&network) {
            self.over.push(network);
        }
    }

    /// A client is in it no longer.
    fn note_out(&mut self, client: Client) {
        let network = Network::of(client);
        let count = self.counts.get_mut(&network).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if count == 0 {
            self.counts.remove(&network);
        }
        if !self.is_over(count) {
            self.over.retain(|over| *over != network);
        }
    }

    /// The network with most clients, if that is more than its share.
    fn over_share(&self) -> Option<Network> {
        let over = self.over.iter().copied();
        over.max_by_key(|network| (self.counts.get(network), *network))
    }

    /// The oldest clients that are known, of a network or of all.
    fn queue(&mut self, of: Option<Network>) -> &mut Queue {
        let Some(of) = of else {
            return &mut self.oldest;
        };
        let known = self
            .oldest_of
            .iter()
            .position(|(network, _)| *network == of);
        let at = known.unwrap_or_else(|| {
            if self.oldest_of.len() == SHARE {
                let counts = &self.counts;
                let least = |(_, (network, _)): &(usize, &(Network, Queue))| counts.get(network);
                let least = self.oldest_of.iter().enumerate().min_by_key(least);
                let least = least.map_or(0, |(at, _)| at);
                self.oldest_of.swap_remove(least);
            }
            self.oldest_of.push((of, Queue::new()));
            self.oldest_of.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "found there, or just put there")]
        &mut self.oldest_of[at].1
    }

    /// Notes a client that came in older than others. Who is not in a queue is taken for younger
    /// than all who are: an older one would be passed over until the next pass.
    fn note_old(&mut self, seen_ns: u64, client: Client) {
        let network = Network::of(client);
        note_old(&mut self.oldest, seen_ns, client);
        for (of, queue) in &mut self.oldest_of {
            if *of == network {
                note_old(queue, seen_ns, client);
            }
        }
    }

    /// Whether the counts are those of these clients.
    #[cfg(test)]
    fn check(&self, clients: &[Client]) {
        let mut counts: HashMap<Network, usize, RandomState> = HashMap::default();
        for client in clients {
            *counts.entry(Network::of(*client)).or_default() += 1;
        }
        assert_eq!(self.counts, counts);
        assert!(self.over.len() < SHARE && self.oldest_of.len() <= SHARE);
    }
}

fn note_old(queue: &mut Queue, seen_ns: u64, client: Client) {
    let old = (seen_ns, client);
    let at = queue.partition_point(|held| *held < old);
    if at < queue.len() {
        queue.insert(at, old);
    }
    // Those that were forgotten stay in the queue: it is bounded all the same.
    if queue.len() > MAX_CLIENTS {
        queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use weir_shared::table::ClientTable as _;
    use weir_shared::verdict::Limits;
    use weir_shared::window::Span;

    fn at(step: u64) -> Now {
        Now {
            wall_ms: 1_795_276_800_000 + step,
            mono_ns: step + 1,
        }
    }

    /// The naive twin: a list, most recently seen last.
    struct Twin {
        list: Vec<Client>,
        capacity: usize,
    }

    impl Twin {
        fn seen(&mut self, client: Client) {
            self.list.retain(|kept| *kept != client);
            if self.list.len() == self.capacity {
                let first = self.first_to_go();
                self.list.remove(first);
            }
            self.list.push(client);
        }

        /// LIMIT-9: the oldest of the network with most clients, if that is more than a quarter.
        fn first_to_go(&self) -> usize {
            let mut counts: HashMap<Network, usize> = HashMap::new();
            for client in &self.list {
                *counts.entry(Network::of(*client)).or_default() += 1;
            }
            let (network, count) = counts
                .into_iter()
                .max_by_key(|(network, count)| (*count, *network))
                .unwrap();
            if count * 4 <= self.capacity {
                return 0;
            }
            let is_of = |client: &Client| Network::of(*client) == network;
            self.list.iter().position(is_of).unwrap()
        }
    }

    proptest! {
        /// LIMIT-7: the table keeps exactly the clients that a list in the order of visits keeps.
        #[test]
        fn the_table_agrees_with_its_naive_twin(visits in prop::collection::vec(0u32..60, 1..600), capacity in 1usize..40) {
            let table = Table::with_capacity(capacity);
            let mut twin = Twin { list: Vec::new(), capacity };
            for (step, visit) in visits.into_iter().enumerate() {
                table.touch(Client::V4(visit), at(step as u64), |_| ());
                twin.seen(Client::V4(visit));
                let kept: Vec<Client> = table.rows().into_iter().map(|row| row.client).collect();
                prop_assert_eq!(&kept, &twin.list);
                prop_assert_eq!(table.kept() as usize, twin.list.len());
            }
        }

        /// LIMIT-9: the same with clients of many networks, some of them with many clients, clients
        /// that are forgotten, and refused ones, who admit nobody.
        #[test]
        fn networks_agree_with_the_naive_twin(
            visits in prop::collection::vec((0u8..20, 0u32..12, 0u8..20), 1..900),
            capacity in 4usize..50,
        ) {
            let table = Table::with_capacity(capacity);
            let mut twin = Twin { list: Vec::new(), capacity };
            for (step, (network, host, does)) in visits.into_iter().enumerate() {
                let client = client_of(network, host);
                let now = at(step as u64);
                match does {
                    0 => {
                        table.forget(client);
                        twin.list.retain(|kept| *kept != client);
                    }
                    1..4 => {
                        let seen = table.seen(client, now, |_| ());
                        prop_assert_eq!(seen.is_some(), twin.list.contains(&client));
                        if seen.is_some() {
                            twin.seen(client);
                        }
                    }
                    _ => {
                        table.touch(client, now, |_| ());
                        twin.seen(client);
                    }
                }
                let kept: Vec<Client> = table.rows().into_iter().map(|row| row.client).collect();
                prop_assert_eq!(&kept, &twin.list);
                table.admission().check(&twin.list);
            }
        }
    }

    /// Of a few networks, IPv4 and IPv6; the first of them come most often.
    fn client_of(network: u8, host: u32) -> Client {
        match network {
            0..6 => Client::V4(0x0a00_0000 + host),
            6..11 => Client::V6(0x2001_0db8_0000_0000 + u64::from(host)),
            11..15 => Client::V4(0x0a01_0000 + host),
            _ => Client::V4((u32::from(network) << 16) | (host % 2)),
        }
    }

    /// LIMIT-9: a /48 that comes with more clients than the table has room for drops its own ones
    /// once it has a quarter of the table; the clients that were there before stay.
    #[test]
    fn a_flood_of_one_network_drops_its_own() {
        let table = Table::default();
        let others = 3 * MAX_CLIENTS as u32 / 4 - 1;
        for other in 0..others {
            table.touch(Client::V4(other << 12), at(u64::from(other)), |_| ());
        }
        for flood in 0..60_000 {
            let client = Client::V6(0x2001_0db8_0007_0000 | flood);
            table.touch(client, at(1_000_000 + flood), |_| ());
        }
        let evicted = |other: &u32| table.row(Client::V4(other << 12)).is_none();
        assert_eq!((0..others).filter(evicted).count(), 0);
        assert_eq!(table.kept(), MAX_CLIENTS as u64);
    }

    /// LIMIT-7: 50,000 new clients with some old ones coming back: never more than 20,000 kept,
    /// always the right one dropped.
    #[test]
    fn fifty_thousand_new_clients_never_pass_the_bound() {
        let table = Table::default();
        // The twin in constant time: last visit by client, and the visits in order.
        let mut last_visit = HashMap::new();
        let mut order: VecDeque<(u64, Client)> = VecDeque::new();
        let mut step = 0;
        for new in 0..50_000u32 {
            let returning = new.checked_sub(7 * (new % 1000)).filter(|_| new % 3 == 0);
            for client in [Some(new), returning].into_iter().flatten().map(Client::V4) {
                step += 1;
                table.touch(client, at(step), |_| ());
                last_visit.insert(client, step);
                order.push_back((step, client));
                while last_visit.len() > MAX_CLIENTS {
                    let (visit, oldest) = order.pop_front().unwrap();
                    if last_visit.get(&oldest) == Some(&visit) {
                        last_visit.remove(&oldest);
                        assert!(
                            table.row(oldest).is_none(),
                            "{oldest} should have been dropped at step {step}"
                        );
                    }
                }
                assert!(table.kept() <= MAX_CLIENTS as u64);
            }
        }
        assert_eq!(table.kept(), MAX_CLIENTS as u64);
        let kept: HashSet<Client> = table.rows().into_iter().map(|row| row.client).collect();
        assert_eq!(kept, last_visit.keys().copied().collect());
    }

    /// LIMIT-7: the bound holds while several workers admit at once.
    #[test]
    fn the_bound_holds_across_threads() {
        let table = Table::with_capacity(100);
        std::thread::scope(|scope| {
            for worker in 0..4u32 {
                let table = &table;
                scope.spawn(move || {
                    for visit in 0..5_000u32 {
                        table.touch(
                            Client::V4(visit.wrapping_mul(worker + 1) % 500),
                            at(u64::from(visit)),
                            |_| (),
                        );
                        assert!(table.kept() <= 100);
                    }
                });
            }
        });
        assert_eq!(table.rows().len(), 100);
        assert_eq!(table.kept(), 100);
    }

    /// BAN-4: `netblock_requests` is the sum over the netblock's clients, for narrow and for wide
    /// netblocks.
    #[test]
    fn netblock_requests_sum_the_clients_inside() {
        let table = Table::default();
        let now = at(0);
        for address in [
            "203.0.113.7",
            "203.0.113.8",
            "203.0.114.1",
            "2001:db8:0:1::1",
            "2001:db8:0:2::1",
        ] {
            table.touch(Client::of(address.parse().unwrap()), now, |entry| {
                entry.charge_request(&Limits::default(), now.wall_ms, false);
            });
        }
        let sum = |block: &str| {
            table.netblock_requests(block.parse().unwrap(), Span::Minute, now.wall_ms)
        };
        assert_eq!(
            [
                sum("203.0.113.0/24"),
                sum("203.0.0.0/8"),
                sum("2001:db8::/56"),
                sum("2001:db8::/32")
            ],
            [2, 3, 2, 2]
        );
    }

    /// LIMIT-7: a client from a file is older than any that was seen, also where the oldest are
    /// already known.
    #[test]
    fn a_client_put_in_later_is_the_first_to_go() {
        let table = Table::with_capacity(3);
        for (step, client) in (0..).zip(1..=4) {
            table.touch(Client::V4(client), at(step), |_| ());
        }
        let mut row = table.row(Client::V4(4)).unwrap();
        row.client = Client::V4(5);
        table.put(row);
        table.touch(Client::V4(6), at(9), |_| ());
        let kept = table.rows().into_iter().map(|row| row.client);
        assert_eq!(kept.collect::<Vec<_>>(), [3, 4, 6].map(Client::V4));
    }

    /// SHARE-4: who is known by the time at which the full table drops it is remembered, though all
    /// of its requests ended before; nobody else is, and nobody where no limit asks.
    #[test]
    fn who_is_known_when_it_is_dropped_is_remembered() {
        let minute = Duration::from_secs(60);
        let later = |millis: u64| at(60_000 + millis);
        for asks in [true, false] {
            let table = Table::with_capacity(4);
            table.remember_after(asks.then_some(minute));
            for (client, passed, refused) in [(1u64, 5, 0), (2, 1, 1), (3, 2, 1), (4, 1, 0)] {
                // The last one comes a minute later than the others.
                let came = at(if client == 4 { 60_000 } else { client });
                table.touch(Client::V4(client as u32), came, |entry| {
                    for _ in 0..passed {
                        entry.note_passed(came.wall_ms, false);
                    }
                    entry.refused += refused;
                });
            }
            for flood in 0..4 {
                table.touch(Client::V4((flood + 9) << 16), later(10), |_| ());
            }
            assert_eq!(table.kept(), 4);
            let known = |client| {
                let now_ms = later(10).wall_ms;
                table.known().knows(Client::V4(client), minute, now_ms)
            };
            assert_eq!([1, 2, 3, 4].map(known), [asks, false, asks, false]);
            assert_eq!(table.known().count(), if asks { 2 } else { 0 });
        }
    }

    /// LIMIT-7: while one client's entry is worked on, new clients are admitted.
    #[test]
    fn admission_does_not_wait_for_work() {
        let table = Table::with_capacity(3);
        let free = |_: &mut Entry| table.admission.try_lock().is_ok();
        assert!(table.touch(Client::V4(1), at(0), free), "a new client");
        assert!(table.touch(Client::V4(1), at(1), free), "a kept one");
    }

    /// A client from a file is older than any that was seen, and its history comes back.
    #[test]
    fn a_client_put_in_is_the_first_to_go() {
        let table = Table::with_capacity(2);
        table.touch(Client::V4(1), at(5), |entry| entry.passed = 4);
        let mut row = table.row(Client::V4(1)).unwrap();
        row.client = Client::V4(2);
        table.put(row.clone());
        assert_eq!(table.row(Client::V4(2)), Some(row));
        table.touch(Client::V4(3), at(6), |_| ());
        assert_eq!(table.row(Client::V4(2)), None);
    }
}
