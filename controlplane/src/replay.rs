//! The escalation of bans on requests of the past (CONTROL-6): the ledger, its publishing and the
//! reset of clients are the service's own code, driven by the reader of the log instead of the
//! loop. No file is written.

use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::Receiver;
use weir_shared::clock::Now;
use weir_shared::event::LimitExceeded;
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;

use crate::bans::Bans;
use crate::bans::ledger::LedgerSettings;
use crate::rules;
pub use crate::rules::RulesError;

/// The bans that follow from a log.
pub struct Escalation {
    bans: Bans,
    exceeded: Receiver<LimitExceeded>,
    /// Lists that cannot be used, a sentence each.
    pub bad_lists: Vec<String>,
}

impl Escalation {
    /// Starts without bans, with the current rules of rules.json.
    ///
    /// # Errors
    /// Where rules.json cannot be used.
    pub fn new(
        settings: &Settings,
        exceeded: Receiver<LimitExceeded>,
        table: Arc<dyn ClientTable>,
        snapshots: Arc<ArcSwap<Snapshot>>,
        spared: Arc<Spared>,
        (now, start): (Now, Now),
    ) -> Result<Self, RulesError> {
        let (rules, bad_lists) = rules::read(settings, now)?;
        spared.set_crawler_ranges(rules.crawler_ranges());
        let held = Vec::new();
        let of_settings = LedgerSettings::from(settings);
        let taken = exceeded.clone();
        let bans = Bans::new(of_settings, held, taken, table, snapshots, spared, start);
        #[expect(
            clippy::expect_used,
            reason = "only a ban that is held can be too many"
        )]
        let mut bans = bans.expect("no ban is held");
        bans.publish_rules(rules);
        Ok(Self {
            bans,
            exceeded,
            bad_lists,
        })
    }

    /// Makes bans from the reported limits. They are in force when this returns.
    pub fn turn(&mut self, now: Now) {
        while !self.exceeded.is_empty() {
            self.bans.take(now);
        }
        while self.bans.note_next(now).is_some() {}
        self.bans.publish(now);
    }

    /// Whether exceeded limits were reported.
    pub fn has_work(&self) -> bool {
        !self.exceeded.is_empty()
    }

    /// Bans made so far.
    pub fn made(&self) -> u64 {
        self.bans.ledger().made().iter().sum()
    }
}
