//! The client table as the control plane sees it: what its loop reads out, resets and puts in; and
//! what the fleet's thread is given of a client and learns of it (FLEET-5 to FLEET-9).

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded};
use weir_shared::ban::FleetNote;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::LimitExceeded;
use weir_shared::fleet::{
    Changed, CountOf, FleetCounts, Report, Reporting, SharedCount, Sum, ValueHash,
};
use weir_shared::lookup::Lookup;
use weir_shared::netblock::Netblock;
use weir_shared::proof::NamesAnswer;
use weir_shared::rules::MAX_NAMES;
use weir_shared::snapshot::Snapshot;
use weir_shared::table::{
    ClientRow, ClientTable, KnownRow, MAX_RULE_COUNTS, OtherSites, RuleCount, SharedCountsUse,
    SharedRefusal, SharedRow,
};
use weir_shared::units::Time;
use weir_shared::window::{PerSpan, Span};

use crate::clients::entry::Entry;
use crate::clients::entry::judging::{Judging, Learned};
use crate::clients::table::Table;
use crate::worker::InForce;

/// Netblocks with at most this many clients are summed client by client, wider ones by a pass over
/// the table.
const FEW_CLIENTS: u64 = 1024;

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
        self.shared().forget_netblock_of(client, banned, epoch_ms);
    }

    fn seen_since(&self, wall_ms: u64) -> u64 {
        let mut seen = 0;
        self.each(|_, entry| seen += u64::from(entry.last_seen_ms >= wall_ms));
        seen
    }

    fn release(&self, client: Client) {
        self.get(client, Entry::release);
    }

    fn row(&self, client: Client) -> Option<ClientRow> {
        self.get(client, |entry| row(client, entry))
    }

    fn rows(&self) -> Vec<ClientRow> {
        // Some megabytes: neither grown step by step nor copied to be sorted.
        let kept = usize::try_from(self.kept()).unwrap_or_default();
        let mut rows: Vec<(u64, ClientRow)> = Vec::with_capacity(kept);
        self.each(|client, entry| rows.push((entry.seen_ns, row(client, entry))));
        rows.sort_unstable_by_key(|(seen_ns, row)| (*seen_ns, row.last_seen, row.client));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn forget_idle(&self, now: Now) {
        let size = self.bucket.load().as_deref().copied();
        self.each(|_, entry| entry.forget_idle(size, now));
    }

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
        if self.get(row.client, fill).is_none() {
            self.put_older(row.client, fill);
        }
    }

    fn forget(&self, client: Client) {
        self.remove(client);
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
        self.shared().usage(now_ms)
    }

    fn take_shared_refusals(&self) -> Vec<SharedRefusal> {
        self.shared().take_refusals()
    }

    fn tell_values_by(&self, hash: ValueHash) {
        self.shared().tell_values_by(hash);
    }

    fn shared_rows(&self) -> Vec<SharedRow> {
        self.shared().rows()
    }

    fn put_shared(&self, row: SharedRow) {
        self.shared().put(&row);
    }

    fn remember_after(&self, after: Option<Duration>) {
        self.known().remember_after(after);
    }

    fn known_rows(&self) -> Vec<KnownRow> {
        self.known().rows()
    }

    fn put_known(&self, row: KnownRow) {
        self.known().put(row);
    }

    fn known_len(&self) -> u64 {
        self.known().count()
    }

    fn netblock_requests(&self, netblock: Netblock, span: Span, now_ms: u64) -> u64 {
        let estimate = |entry: &mut Entry| entry.requests.get(span).estimate(span, now_ms);
        let prefix = netblock.net();
        let free_bits = match prefix {
            ipnet::IpNet::V4(v4) => 32 - u32::from(v4.prefix_len()),
            ipnet::IpNet::V6(v6) => 64u32.saturating_sub(u32::from(v6.prefix_len())),
        };
        let clients = 1u64.checked_shl(free_bits).unwrap_or(u64::MAX);
        if clients <= FEW_CLIENTS {
            let first = Client::of(prefix.network());
            return (0..clients)
                .filter_map(|offset| self.get(nth_after(first, offset), estimate))
                .sum();
        }
        let mut sum = 0;
        self.each(|client, entry| {
            if netblock.covers_client(client) {
                sum += estimate(entry);
            }
        });
        sum
    }
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

fn nth_after(first: Client, offset: u64) -> Client {
    match first {
        Client::V4(bits) => {
            Client::V4(bits.wrapping_add(u32::try_from(offset).unwrap_or(u32::MAX)))
        }
        Client::V6(bits) => Client::V6(bits.wrapping_add(offset)),
    }
}

/// Since when a client is known is kept to the minute.
const MINUTE_MS: u64 = 60_000;

/// The counts of this instance.
pub struct Counts {
    /// The clients.
    pub table: Arc<Table>,
    /// The limits of the settings.
    pub in_force: Arc<ArcSwap<InForce>>,
    /// Those of rules.json.
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    /// Takes limits that are broken by what was learned.
    pub breaks: Sender<LimitExceeded>,
    changed: Receiver<Client>,
    /// Counts that clients share which were taken from there and not named yet. Their lock is that
    /// of every request that they count: it is taken once for all of them.
    shared: Mutex<Vec<SharedCount>>,
    /// Whether what others count holds.
    heeds: AtomicBool,
}

impl Counts {
    /// From now on what the table counts is shared. Of what it holds already nobody knows whether
    /// an engine has it: it is not sent (FLEET-6).
    pub fn of(
        table: Arc<Table>,
        in_force: Arc<ArcSwap<InForce>>,
        snapshots: Arc<ArcSwap<Snapshot>>,
        breaks: Sender<LimitExceeded>,
    ) -> Self {
        let (named, changed) = bounded(table.capacity);
        let _ = table.fleet.set(named);
        table.shared().share();
        table.each(|_, entry| entry.is_sent());
        table.shared().are_sent();
        Self {
            changed,
            table,
            in_force,
            snapshots,
            breaks,
            shared: Mutex::default(),
            heeds: AtomicBool::new(true),
        }
    }

    /// Another instance knows a client: since when it does not say, but for long enough.
    fn know(&self, client: Client, now: Now) {
        if let Some(after) = self.snapshots.load().rules.remembers_after() {
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            let since_ms = now
                .wall_ms
                .saturating_sub(after_ms)
                .saturating_sub(MINUTE_MS);
            self.table.known().put(KnownRow {
                client,
                since: Time(since_ms),
                lead: 1,
            });
        }
    }

    fn with<R>(
        &self,
        client: Client,
        work: impl FnOnce(&mut Entry, Judging<'_>) -> R,
    ) -> Option<R> {
        let in_force = self.in_force.load();
        let snapshot = self.snapshots.load();
        let judging = Judging {
            terms: &in_force.rules.terms,
            on_limit: in_force.rules.charging.on_limit,
            rules: &snapshot.rules,
        };
        self.table.get(client, |entry| work(entry, judging))
    }
}

impl FleetCounts for Counts {
    fn tell_values_by(&self, hash: ValueHash) {
        self.table.shared().tell_values_by(hash);
    }

    fn changed(&self, wait: Duration) -> Option<Changed> {
        let shared = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            if shared.is_empty() {
                *shared = self.table.shared().take_changed();
            }
            shared.pop().map(Changed::Shared)
        };
        // Whoever counts for a shared limit counts as a client, too.
        shared.or_else(|| self.changed.recv_timeout(wait).ok().map(Changed::Client))
    }

    fn all(&self) -> Vec<Changed> {
        let mut all: Vec<Changed> = self.table.shared().all().map(Changed::Shared).collect();
        self.table
            .each(|client, _| all.push(Changed::Client(client)));
        all
    }

    fn reports(&self, of: &Changed, reporting: Reporting, now: Now) -> Vec<Report> {
        match of {
            Changed::Client(client) => {
                // After the shortest time that a limit asks for (SHARE-4).
                let after = self.snapshots.load().rules.remembers_after();
                let known = after.is_some_and(|after| self.table.is_known(*client, after, now));
                let reports = self.with(*client, |entry, judging| {
                    let mut reports = entry.reports(*client, judging, &reporting, now);
                    for report in &mut reports {
                        report.known = known;
                    }
                    reports
                });
                reports.unwrap_or_default()
            }
            Changed::Shared(count) => {
                let report = self.table.shared().report(count, &reporting, now);
                report.into_iter().collect()
            }
        }
    }

    fn learn(&self, report: &Report, is_taken: bool, sum: &Sum, instances: u64, now: Now) {
        // Relaxed: a sum that is on its way is taken out again with the next one.
        let heeds = self.heeds.load(Ordering::Relaxed);
        let client = match &report.of {
            CountOf::Client(client) | CountOf::Rule(client, _) => *client,
            CountOf::Shared(count) => {
                let told = (report, is_taken);
                return self.table.shared().learn(count, told, (sum, heeds), now);
            }
        };
        if sum.known && !report.known {
            self.know(client, now);
        }
        let learned = self.with(client, |entry, judging| {
            entry.learn((report, is_taken), (sum, heeds), judging, now)
        });
        let Some(Learned { offence, note }) = learned.flatten() else {
            return;
        };
        let broken = LimitExceeded {
            client,
            offence,
            at_ms: now.wall_ms,
            request: None,
            fleet: Some(FleetNote { instances, ..note }),
        };
        if self.breaks.try_send(broken).is_err() {
            self.table.get(client, Entry::release);
        }
    }

    fn lost(&self) {
        self.table.each(|_, entry| entry.is_lost());
        self.table.shared().are_lost();
    }

    fn may_be_sent(&self) {
        self.table.each(|_, entry| entry.may_be_sent());
        self.table.shared().may_be_sent();
    }

    fn heed(&self, others: bool) {
        self.heeds.store(others, Ordering::Relaxed);
        if !others {
            self.table.each(|_, entry| entry.forgets_others());
            self.table.shared().forget_others();
        }
    }
}
