//! Publishes bans to the data plane: one immutable snapshot, swapped as a whole.
//!
//! The index is copied only if it changed, so that a change of `can_ban` alone costs nothing.

use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_shared::rules::RuleSet;
use weir_shared::snapshot::{BanIndex, Snapshot};

use super::ledger::Ledger;

/// Publishes the ledger as numbered generations.
pub(crate) struct Publisher {
    snapshots: Arc<ArcSwap<Snapshot>>,
    generation: u64,
    bans: Arc<BanIndex>,
    can_ban: bool,
    rules: Arc<RuleSet>,
    /// How far the data plane's clock is ahead of the ledger's time, in milliseconds (FLEET-22).
    ahead_ms: i64,
}

impl Publisher {
    /// Publishes the ledger as it is.
    pub(crate) fn new(snapshots: Arc<ArcSwap<Snapshot>>, ledger: &mut Ledger, now_ms: u64) -> Self {
        let before = snapshots.load_full();
        let mut publisher = Self {
            generation: before.generation,
            bans: Arc::clone(&before.bans),
            can_ban: before.can_ban,
            rules: Arc::clone(&before.rules),
            snapshots,
            ahead_ms: 0,
        };
        publisher.bans = Arc::new(ledger.take_index().unwrap_or_default());
        publisher.can_ban = ledger.can_ban(now_ms);
        publisher.store();
        publisher
    }

    /// Publishes the changes, if there are any.
    ///
    /// Once it returns, a request that loads the snapshot sees every ban of the ledger: only now
    /// may the counters of their clients be reset (LIMIT-6).
    pub(crate) fn publish(&mut self, ledger: &mut Ledger, now_ms: u64) {
        let index = ledger.take_index();
        let can_ban = ledger.can_ban(now_ms);
        if index.is_none() && can_ban == self.can_ban {
            return;
        }
        if let Some(index) = index {
            self.bans = Arc::new(index.seen_ahead(self.ahead_ms));
        }
        self.can_ban = can_ban;
        self.store();
    }

    /// Sets how far the data plane's clock is ahead.
    pub(crate) fn set_ahead(&mut self, ahead_ms: i64) {
        self.ahead_ms = ahead_ms;
        self.bans = Arc::new(BanIndex::clone(&self.bans).seen_ahead(ahead_ms));
        self.store();
    }

    /// Publishes new rules.
    pub(crate) fn publish_rules(&mut self, rules: Arc<RuleSet>) {
        self.rules = rules;
        self.store();
    }

    /// The generation that requests read now.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    fn store(&mut self) {
        self.generation += 1;
        self.snapshots.store(Arc::new(Snapshot {
            generation: self.generation,
            bans: Arc::clone(&self.bans),
            can_ban: self.can_ban,
            rules: Arc::clone(&self.rules),
        }));
    }
}
