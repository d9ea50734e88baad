//! The client table as the fleet's thread sees it (FLEET-5 to FLEET-9): what is due of a client,
//! and what others have counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender};
use weir_shared::ban::FleetNote;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::LimitExceeded;
use weir_shared::fleet::{FleetCounts, Report, Reporting, Sum};
use weir_shared::snapshot::Snapshot;

use crate::clients::entry::Entry;
use crate::clients::entry::fleet::{Judging, Learned};
use crate::clients::table::Table;
use crate::worker::settings::InForce;

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
    /// Whether what others count holds.
    heeds: AtomicBool,
}

impl Counts {
    /// From now on what the table counts is shared.
    pub fn of(
        table: Arc<Table>,
        in_force: Arc<ArcSwap<InForce>>,
        snapshots: Arc<ArcSwap<Snapshot>>,
        breaks: Sender<LimitExceeded>,
    ) -> Self {
        Self {
            changed: table.share_counts(),
            table,
            in_force,
            snapshots,
            breaks,
            heeds: AtomicBool::new(true),
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
    fn changed(&self, wait: Duration) -> Option<Client> {
        self.changed.recv_timeout(wait).ok()
    }

    fn clients(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        self.table.each(|client, _| clients.push(client));
        clients
    }

    fn reports(&self, client: Client, reporting: Reporting, now: Now) -> Vec<Report> {
        let reports = self.with(client, |entry, judging| {
            entry.reports(client, judging, &reporting, now)
        });
        reports.unwrap_or_default()
    }

    fn learn(&self, report: &Report, is_taken: bool, sum: &Sum, instances: u64, now: Now) {
        // Relaxed: a sum that is on its way is taken out again with the next one.
        let heeds = self.heeds.load(Ordering::Relaxed);
        let client = report.of.client();
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
    }

    fn heed(&self, others: bool) {
        self.heeds.store(others, Ordering::Relaxed);
        if !others {
            self.table.each(|_, entry| entry.forgets_others());
        }
    }
}
