//! The client table as the fleet's thread sees it (FLEET-5 to FLEET-9): what is due of a client,
//! and what others have counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender};
use weir_shared::ban::FleetNote;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::LimitExceeded;
use weir_shared::fleet::{
    Changed, CountOf, FleetCounts, Report, Reporting, SharedCount, Sum, ValueHash,
};
use weir_shared::snapshot::Snapshot;
use weir_shared::table::KnownRow;
use weir_shared::units::Time;

use crate::clients::entry::Entry;
use crate::clients::entry::judging::{Judging, Learned};
use crate::clients::table::Table;
use crate::worker::settings::InForce;

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
        let changed = table.share_counts();
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

    /// Whether a client is known here, after the shortest time that a limit asks for (SHARE-4).
    fn is_known(&self, client: Client, now: Now) -> bool {
        let after = self.snapshots.load().rules.remembers_after();
        after.is_some_and(|after| {
            let standing = self.table.get(client, |entry| entry.standing());
            standing.is_some_and(|standing| standing.is_known(after, now.wall_ms))
                || self.table.known().knows(client, after, now.wall_ms)
        })
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
                let known = self.is_known(*client, now);
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
