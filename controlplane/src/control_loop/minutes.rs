//! Periodic work of the control loop: the history of minutes (CONTROL-11) and shared limits
//! (SHARE-8).

use weir_shared::clock::Now;
use weir_shared::totals::Totals;

use super::Control;
use crate::bans::ledger::Ledger;
use crate::history::Counted;

impl Control {
    /// Folds the counters into the history, once a minute.
    pub(super) fn count_minute(&mut self, now: Now) {
        let (totals, ledger) = (&self.totals, self.bans.ledger());
        self.history.turn(now, || counted(totals(), ledger, now));
    }

    /// Raises alerts about limits that clients share, and saves their counts (SHARE-8).
    pub(super) fn share(&mut self, now: Now) {
        let refusals = self.table.take_shared_refusals();
        self.detection.shared_limits(&refusals, now);
        let interval = self.settings.state.counter_interval;
        (self.shared).turn(&self.table, &self.rules.current(), interval, now);
    }

    pub(super) fn counted(&self, now: Now) -> Counted {
        counted((self.totals)(), self.bans.ledger(), now)
    }
}

fn counted(totals: Totals, ledger: &Ledger, now: Now) -> Counted {
    Counted {
        totals,
        bans_active: ledger.active(now.wall_ms),
        bans_made: ledger.made().iter().sum(),
    }
}
