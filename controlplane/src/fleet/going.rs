//! How an instance leaves the fleet at a stop or hand-over, and comes back if the hand-over fails
//! (FLEET-30).

use weir_shared::clock::Now;

use super::part::Fleet;
use super::sharing::Sharing;
use super::words::Order;

impl Fleet {
    /// Whether events must still be sent, and the engine answers.
    pub(crate) fn has_more(&self, now: Now) -> bool {
        let counts = self.sharing.as_ref().is_some_and(|of| !of.rests());
        let waits = self.core.waiting() > 0 || !self.claims.is_empty();
        self.is_linked(now) && (waits || counts)
    }

    /// Whether orders may be sent.
    pub(super) fn sends(&self) -> bool {
        self.standing.is_open() && !self.rests
    }

    /// Reports that the instance leaves, writes fleet.json, and sends nothing more until
    /// [`Fleet::work`].
    pub(crate) fn rest(&mut self, now: Now) {
        if !self.rests {
            self.order(Order::Rest(self.namesakes.others()));
            self.keep(now);
        }
        self.rests = true;
        self.claims.alone();
    }

    /// Whether all writes are done. An edit that came meanwhile is written; the others get it when
    /// the instance is back.
    pub(crate) fn is_at_rest(&mut self, now: Now) -> bool {
        let _ = self.kept.turn(now.mono_ns);
        if self.kept.is_due(self.change(), now.mono_ns) {
            self.keep(now);
        }
        // Answers of a resting instance do not wait for the others.
        self.answer(now);
        !self.kept.is_writing()
    }

    /// Goes on after a rest.
    pub(crate) fn work(&mut self, now: Now) {
        if std::mem::take(&mut self.rests) {
            self.closed("it was not asked".to_owned(), now);
            self.order(Order::Work);
            self.sharing.iter().for_each(Sharing::work);
        }
    }
}
