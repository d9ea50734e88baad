//! An instance that was away for so long that the fleet has forgotten what was taken out meanwhile:
//! what only it holds is put aside (FLEET-17).

use super::{Core, Stale};
use crate::fleet::event::Event;
use crate::fleet::replica::{Effect, Item};

impl Core {
    /// When the engine last answered.
    pub fn contact_ms(&self) -> Option<u64> {
        self.contact_ms
    }

    /// The engine has answered at this moment. While something is to be put aside it is as if it
    /// had not.
    pub fn note_contact(&mut self, at_ms: u64) {
        if self.stale.is_none() && self.aside.is_empty() {
            self.contact_ms = self.contact_ms.max(Some(at_ms));
        }
    }

    /// Whether something is to be put aside.
    pub fn has_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// What that is.
    pub fn aside(&self) -> Vec<Event> {
        let aside = self.aside.iter();
        aside.filter_map(|item| self.replica.event(item)).collect()
    }

    /// It is in a file, and goes. Tells what the ledger is to do.
    pub fn put_aside(&mut self) -> Vec<Effect> {
        let aside = std::mem::take(&mut self.aside);
        let effects = aside.iter().map(|item| self.replica.drop_item(item));
        effects.flatten().collect()
    }

    /// Whether only this instance holds it, and has not changed it since the last contact.
    pub(super) fn is_aside(&self, item: &Item, stale: &Stale) -> bool {
        let event = self.replica.event(item);
        let is_old = |event: &Event| event.stamps().all(|stamp| stamp.ms() <= stale.contact_ms);
        !stale.named.contains(item) && event.is_some_and(|event| is_old(&event))
    }
}
