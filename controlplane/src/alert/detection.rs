//! From finished requests to alerts: each request is counted for the anomalies, a count over its
//! threshold becomes an alert, and alerts.json holds counters, cooldowns and alerts.

use crossbeam_channel::{Receiver, Sender, TryRecvError, never};
use weir_shared::clock::Now;
use weir_shared::event::Finished;
use weir_shared::settings::Settings;
use weir_shared::table::SharedRefusal;
use weir_shared::units::Time;

use super::Alerts;
use super::document::{AlertsEntry, AlertsFile, AlertsKey};
use super::shared_cooldowns::SharedCooldowns;
use crate::anomaly::shared::{Elsewhere, Sums};
use crate::anomaly::{Anomalies, Over, Scope};
use crate::certificates::Watched;
use crate::state::Change;

/// The most batches of finished requests that one turn counts, some 16,000 requests in a few
/// milliseconds; then the loop looks at exceeded limits again.
const MAX_FINISHED_A_TURN: usize = 64;

/// Anomalies and the alerts that follow from them.
pub(crate) struct Detection {
    /// The alerts of every kind. The control loop raises those that are no anomaly.
    pub(crate) alerts: Alerts,
    /// Watches for certificates that expire soon or cannot be read again.
    pub(crate) certificates: Watched,
    /// Cooldowns of shared limits.
    shared: SharedCooldowns,
    /// Counters, cooldowns and thresholds.
    anomalies: Anomalies,
    /// Finished requests in batches. The data plane bounds the channel, and drops batches if it is
    /// full.
    finished: Receiver<Vec<Finished>>,
    /// Counts that went over a threshold and have no alert yet.
    over: Vec<Over>,
    /// Whether more batches wait than one turn takes.
    more: bool,
}

impl Detection {
    /// `entries` are those of alerts.json at the start.
    pub(crate) fn new(
        settings: &Settings,
        finished: Receiver<Vec<Finished>>,
        lines: Sender<Vec<u8>>,
        entries: Vec<AlertsEntry>,
        now: Now,
    ) -> Self {
        let mut detection = Self {
            alerts: Alerts::new(lines),
            certificates: Watched::default(),
            shared: SharedCooldowns::new(settings.anomalies.cooldown),
            anomalies: Anomalies::new(settings, now.wall_ms),
            finished,
            over: Vec::new(),
            more: false,
        };
        for entry in entries {
            detection.put(entry);
        }
        detection
    }

    /// Applies these settings, among them the thresholds.
    pub(crate) fn take_settings(&mut self, settings: &Settings) {
        self.anomalies.take_settings(settings);
        self.shared.set_length(settings.anomalies.cooldown);
    }

    /// Raises an alert for each key of a shared limit that began to refuse and is in no cooldown.
    pub(crate) fn shared_limits(&mut self, refusals: &[SharedRefusal], now: Now) {
        for refusal in refusals {
            if let Some(ends) = self.shared.begin(&refusal.rule, refusal.key, now.wall_ms) {
                self.alerts.shared_limit(refusal, ends, now.wall_ms);
            }
        }
    }

    /// Counts finished requests, a bounded number of them.
    pub(crate) fn count(&mut self, now: Now) {
        self.more = false;
        // First, so that no count of the new hour or minute is reported with the previous one.
        if let Some(summary) = self.anomalies.turn(now.wall_ms) {
            self.alerts.summary(&summary, now.wall_ms);
        }
        self.alerts.turn(now.wall_ms);
        self.certificates.turn(&mut self.alerts, now.wall_ms);
        for _ in 0..MAX_FINISHED_A_TURN {
            let batch = match self.finished.try_recv() {
                Ok(batch) => batch,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.finished = never();
                    return;
                }
            };
            for finished in &batch {
                let over = &mut self.over;
                (self.anomalies).count(finished, now.wall_ms, |passed| over.push(passed));
            }
        }
        self.more = !self.finished.is_empty();
    }

    /// The counts that went over a threshold outside of a cooldown since the last call.
    pub(crate) fn take_over(&mut self) -> Vec<Over> {
        std::mem::take(&mut self.over)
    }

    /// Raises the alert of a count over its threshold.
    pub(crate) fn tell(&mut self, over: &Over, now: Now) {
        self.alerts.anomaly(over, now.wall_ms);
    }

    /// Notes that another instance of the fleet has raised the alert: its cooldown holds for all
    /// instances (FLEET-19).
    pub(crate) fn told_elsewhere(&mut self, scope: Scope, ends: Time) {
        self.anomalies.cooldowns().ends_by(scope, ends);
    }

    /// The counts of this instance that the other instances need.
    pub(crate) fn totals(
        &mut self,
        instances: u64,
        elsewhere: &Elsewhere,
        now: Now,
    ) -> Vec<(Scope, Sums)> {
        self.anomalies.totals(instances, elsewhere, now.wall_ms)
    }

    /// Takes the counts of other instances.
    pub(crate) fn learn(&mut self, elsewhere: &Elsewhere, now: Now) {
        let over = &mut self.over;
        (self.anomalies).learn(elsewhere, now.wall_ms, |passed| over.push(passed));
    }

    /// Whether more batches wait than one turn counts.
    pub(crate) fn has_more(&self) -> bool {
        self.more
    }

    /// The entries to write to alerts.json.
    pub(crate) fn entries(&mut self) -> Vec<AlertsEntry> {
        let counters = self.anomalies.counters().rows().into_iter();
        let mut entries: Vec<_> = counters
            .map(|(scope, counter)| AlertsEntry::Counter(scope, counter))
            .collect();
        let cooldowns = self.anomalies.cooldowns().rows().into_iter();
        entries.extend(cooldowns.map(|(scope, cooldown)| AlertsEntry::Cooldown(scope, cooldown)));
        entries.extend(self.alerts.recent().cloned().map(AlertsEntry::Alert));
        entries
    }

    /// Applies an edit of alerts.json.
    pub(crate) fn edit(&mut self, changes: &[Change<AlertsFile>]) {
        for change in changes {
            match change {
                Change::Remove(AlertsKey::Counter(scope)) => {
                    self.anomalies.counters().remove(*scope);
                }
                Change::Remove(AlertsKey::Cooldown(scope)) => {
                    self.anomalies.cooldowns().remove(*scope);
                }
                Change::Remove(AlertsKey::Alert(time)) => self.alerts.remove(*time),
                Change::Put { after, .. } => self.put(after.row.clone()),
            }
        }
    }

    fn put(&mut self, entry: AlertsEntry) {
        match entry {
            AlertsEntry::Counter(scope, counter) => self.anomalies.counters().put(scope, counter),
            AlertsEntry::Cooldown(scope, cooldown) => {
                self.anomalies.cooldowns().put(scope, cooldown);
            }
            AlertsEntry::Alert(alert) => self.alerts.put(alert),
        }
    }
}
