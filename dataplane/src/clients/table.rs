//! The client table: a dashmap behind closures, with an exact bound (LIMIT-7).
//!
//! A client that is already kept costs one shard lock and no other. New clients pass one admission
//! lock, which alone adds and removes, so the bound is exact. No guard ever leaves this file: a
//! dashmap guard held across an `.await` would deadlock.
//!
//! Which client was seen longest ago is found without a list that every request would have to
//! touch. Each entry has the time it was last seen; the admission (`admission.rs`) keeps a short
//! queue of the oldest, taken in one pass over the table. An entry that was seen since has another
//! time than the queue holds, and is skipped: whatever is not in the queue is younger than all of
//! it. One pass serves [`CANDIDATES`] evictions, so an eviction costs a constant number of visits.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use arc_swap::ArcSwapOption;
use crossbeam_channel::Sender;
use dashmap::DashMap;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::fleet::ValueHash;
use weir_shared::lookup::Lookup;
use weir_shared::netblock::Netblock;
use weir_shared::proof::NamesAnswer;
use weir_shared::rules::MAX_NAMES;
use weir_shared::table::{
    ClientRow, ClientTable, KnownRow, MAX_CLIENTS, MAX_RULE_COUNTS, OtherSites, RuleCount,
    SharedCountsUse, SharedRefusal, SharedRow,
};
use weir_shared::units::Time;
use weir_shared::window::{PerSpan, Span};

use crate::clients::BucketSize;
use crate::clients::admission::{Admission, Network};
use crate::clients::entry::Entry;
use crate::clients::known::KnownClients;
use crate::clients::shared_counts::SharedCounts;

mod sharing;

/// How many of the oldest clients one pass over the table finds. A fifth of the table: five visits
/// an eviction.
const CANDIDATES: usize = MAX_CLIENTS / 5;

/// Locks that the clients are spread over: enough that two workers seldom meet at one. dashmap's
/// own choice, four a core, lets two workers collide at every eighth request.
const SHARDS: usize = 256;

/// Clients that come from a file were not seen by this process; their order lies below every
/// monotonic time.
const SEEN_BASE: u64 = 1 << 32;

/// Netblocks with at most this many clients are summed client by client, wider ones by a pass over
/// the table.
const FEW_CLIENTS: u64 = 1024;

/// The clients that are kept.
pub struct Table {
    /// Keyed with random state: nobody outside can aim at one shard.
    map: DashMap<Client, Entry, RandomState>,
    admission: Mutex<Admission>,
    capacity: usize,
    /// The size of the clients' buckets: one that is full again is given back.
    bucket: ArcSwapOption<BucketSize>,
    /// What clients count together; a copy that is only asked has those of its original.
    shared: Arc<SharedCounts>,
    /// Who is known; a copy that is only asked has those of its original.
    known: Arc<KnownClients>,
    /// Takes clients that counted something; none where nothing is shared with other instances.
    fleet: OnceLock<Sender<Client>>,
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

    /// Clients kept now.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether no client is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Clients dropped for the bound since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
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
        while self.map_len() >= self.capacity {
            self.evict(admission, wall_ms);
        }
        self.map.insert(client, entry);
        admission.note_in(client);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    fn map_len(&self) -> usize {
        usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
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
                if let Some(wall_ms) = wall_ms {
                    self.remember(client, &entry, wall_ms);
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

fn row(client: Client, entry: &Entry) -> ClientRow {
    let [requests, bytes] = entry.own_windows();
    ClientRow {
        client,
        first_seen: Time(entry.first_seen_ms),
        last_seen: Time(entry.last_seen_ms),
        lookup: entry.lookup.clone(),
        passed: entry.passed,
        refused: entry.refused,
        requests,
        bytes,
        rules: entry.own_rule_counts(),
        other_sites: (entry.other_sites().copied())
            .filter(|part| *part != OtherSites::default())
            .map(Box::new),
        first_passed: entry.first_passed_ms().map(Time),
    }
}

impl Table {
    /// Counts that come from a file, those of one rule with one name in memory. What is over the
    /// bounds of rules.json is of rules that are gone.
    fn counts_of_file(&self, mut counts: Vec<RuleCount>) -> Vec<RuleCount> {
        if counts.is_empty() {
            return counts;
        }
        let rules = &mut self.admission().rules_of_file;
        counts.truncate(MAX_RULE_COUNTS);
        counts.retain_mut(|count| {
            if let Some(known) = rules.iter().find(|rule| **rule == count.rule) {
                count.rule = Arc::clone(known);
                return true;
            }
            if rules.len() == MAX_NAMES {
                rules.retain(|rule| Arc::strong_count(rule) > 1);
            }
            let has_room = rules.len() < MAX_NAMES;
            if has_room {
                rules.push(Arc::clone(&count.rule));
            }
            has_room
        });
        counts
    }
}

impl ClientTable for Table {
    fn reset(&self, client: Client, banned: Netblock, generation: u64, began_ms: u64) {
        let epoch_ms = self.fleet.get().map(|_| began_ms);
        self.get(client, |entry| entry.reset(generation, epoch_ms));
        self.shared.forget_netblock_of(client, banned, epoch_ms);
    }

    fn seen_since(&self, wall_ms: u64) -> u64 {
        let all = self.map.iter();
        all.filter(|entry| entry.value().last_seen_ms >= wall_ms)
            .count() as u64
    }

    fn release(&self, client: Client) {
        self.get(client, Entry::release);
    }

    fn row(&self, client: Client) -> Option<ClientRow> {
        self.map.get(&client).map(|entry| row(client, &entry))
    }

    fn rows(&self) -> Vec<ClientRow> {
        // Some megabytes: neither grown step by step nor copied to be sorted.
        let mut rows: Vec<(u64, ClientRow)> = Vec::with_capacity(self.map.len());
        let each = self.map.iter();
        rows.extend(each.map(|entry| (entry.value().seen_ns, row(*entry.key(), entry.value()))));
        rows.sort_unstable_by_key(|(seen_ns, row)| (*seen_ns, row.last_seen, row.client));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn forget_idle(&self, now: Now) {
        let size = self.bucket.load().as_deref().copied();
        for mut entry in self.map.iter_mut() {
            entry.forget_idle(size, now);
        }
    }

    /// A client that comes from a file was not seen by this process: it stands before all that
    /// were, in the order of the calls.
    fn put(&self, row: ClientRow) {
        let counts = self.counts_of_file(row.rules);
        let fill = |entry: &mut Entry| {
            entry.first_seen_ms = row.first_seen.0;
            entry.last_seen_ms = row.last_seen.0;
            entry.passed = row.passed;
            entry.refused = row.refused;
            entry.requests = row.requests;
            entry.bytes = row.bytes;
            entry.set_rule_counts(counts.clone());
            entry.set_other_sites(row.other_sites.clone());
            entry.set_first_passed(row.first_passed.map(|at| at.0));
            entry.set_over_bytes(row.bytes != PerSpan::default());
            // How old this answer is the file does not say: it holds, and is asked for again.
            match &row.lookup {
                Some(lookup) => entry.attach(Arc::clone(lookup), 0),
                None => entry.forget_lookup(),
            }
            if self.fleet.get().is_some() {
                entry.is_sent();
            }
        };
        if self.get(row.client, fill).is_some() {
            return;
        }
        let mut admission = self.admission();
        admission.from_file = (admission.from_file + 1).min(SEEN_BASE - 1);
        let mut entry = Entry::new(admission.from_file, 0);
        fill(&mut entry);
        self.admit(&mut admission, row.client, entry, None);
        let seen_ns = admission.from_file;
        admission.note_old(seen_ns, row.client);
    }

    fn forget(&self, client: Client) {
        let mut admission = self.admission();
        if self.map.remove(&client).is_some() {
            admission.note_out(client);
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn answer(&self, client: Client, lookup: Arc<Lookup>, until_ns: u64) {
        self.get(client, |entry| entry.attach(lookup, until_ns));
    }

    fn ask_again(&self, client: Client, again_ns: u64) {
        self.get(client, |entry| entry.ask_again(again_ns));
    }

    fn names(&self, address: IpAddr, answer: NamesAnswer) {
        self.get(Client::of(address), |entry| {
            entry.set_names(address, answer);
        });
    }

    fn forget_lookup(&self, client: Client) {
        self.get(client, |entry| {
            entry.forget_lookup();
            entry.ask_again(0);
        });
    }

    fn shared_use(&self, now_ms: u64) -> SharedCountsUse {
        self.shared.usage(now_ms)
    }

    fn take_shared_refusals(&self) -> Vec<SharedRefusal> {
        self.shared.take_refusals()
    }

    fn tell_values_by(&self, hash: ValueHash) {
        self.shared.tell_values_by(hash);
    }

    fn shared_rows(&self) -> Vec<SharedRow> {
        self.shared.rows()
    }

    fn put_shared(&self, row: SharedRow) {
        self.shared.put(&row);
    }

    fn remember_after(&self, after: Option<Duration>) {
        self.known.remember_after(after);
    }

    fn known_rows(&self) -> Vec<KnownRow> {
        self.known.rows()
    }

    fn put_known(&self, row: KnownRow) {
        self.known.put(row);
    }

    fn known_len(&self) -> u64 {
        self.known.count()
    }

    fn netblock_requests(&self, netblock: Netblock, span: Span, now_ms: u64) -> u64 {
        let estimate = |entry: &Entry| entry.requests.get(span).estimate(span, now_ms);
        let prefix = netblock.net();
        let free_bits = match prefix {
            ipnet::IpNet::V4(v4) => 32 - u32::from(v4.prefix_len()),
            ipnet::IpNet::V6(v6) => 64u32.saturating_sub(u32::from(v6.prefix_len())),
        };
        let clients = 1u64.checked_shl(free_bits).unwrap_or(u64::MAX);
        if clients <= FEW_CLIENTS {
            let first = Client::of(prefix.network());
            return (0..clients)
                .filter_map(|offset| {
                    self.map
                        .get(&nth_after(first, offset))
                        .map(|entry| estimate(&entry))
                })
                .sum();
        }
        self.map
            .iter()
            .filter(|entry| netblock.covers_client(*entry.key()))
            .map(|entry| estimate(entry.value()))
            .sum()
    }
}

fn nth_after(first: Client, offset: u64) -> Client {
    match first {
        Client::V4(bits) => {
            Client::V4(bits.wrapping_add(u32::try_from(offset).unwrap_or(u32::MAX)))
        }
        Client::V6(bits) => Client::V6(bits.wrapping_add(offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet, VecDeque};
    use weir_shared::verdict::Limits;

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
                prop_assert_eq!(table.len() as usize, twin.list.len());
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
        assert_eq!(table.len(), MAX_CLIENTS as u64);
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
                assert!(table.len() <= MAX_CLIENTS as u64);
            }
        }
        assert_eq!(table.len(), MAX_CLIENTS as u64);
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
                        assert!(table.len() <= 100);
                    }
                });
            }
        });
        assert_eq!(table.rows().len(), 100);
        assert_eq!(table.len(), 100);
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
            assert_eq!(table.len(), 4);
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
