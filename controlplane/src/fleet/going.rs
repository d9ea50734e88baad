//! How an instance takes its leave of the fleet, and comes back where a hand-over did not come
//! about (FLEET-30).

use weir_shared::clock::Now;

use super::part::Fleet;
use super::sharing::Sharing;
use super::words::Order;

impl Fleet {
    /// Whether something is still to be sent, to an engine that answers.
    pub(crate) fn has_more(&self, now: Now) -> bool {
        let counts = self.sharing.as_ref().is_some_and(|of| !of.rests());
        let waits = self.core.waiting() > 0 || !self.claims.is_empty();
        self.is_linked(now) && (waits || counts)
    }

    /// Whether something may be ordered.
    pub(super) fn sends(&self) -> bool {
        self.standing.is_open() && !self.rests
    }

    /// Says that the instance goes, writes what it knows, and is silent until [`Fleet::work`].
    pub(crate) fn rest(&mut self, now: Now) {
        if !self.rests {
            self.order(Order::Rest(self.namesakes.others()));
            self.keep(now);
        }
        self.rests = true;
        self.claims.alone();
    }

    /// Whether nothing is being written any more. An edit that came since it was sent to rest is
    /// written: the others hear of it when the instance is back.
    pub(crate) fn is_at_rest(&mut self, now: Now) -> bool {
        let _ = self.kept.turn(now.mono_ns);
        if self.kept.is_due(self.change(), now.mono_ns) {
            self.keep(now);
        }
        // Of an instance that rests nobody waits for the others.
        self.answer(now);
        !self.kept.is_writing()
    }

    /// Goes on.
    pub(crate) fn work(&mut self, now: Now) {
        if std::mem::take(&mut self.rests) {
            self.closed("it was not asked".to_owned(), now);
            self.order(Order::Work);
            self.sharing.iter().for_each(Sharing::work);
        }
    }
}
