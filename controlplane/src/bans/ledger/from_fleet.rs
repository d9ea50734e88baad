//! Changes of the ledger that come from the fleet (FLEET-11): a key, and the ban to hold under it.

use std::sync::Arc;

use weir_shared::ban::Ban;

use super::Ledger;
use super::changes::Happened;
use crate::bans::document::BanKey;

impl Ledger {
    /// Holds this ban under this key, or removes the key. False if there is no room, because no
    /// held ban may be dropped (BAN-5).
    pub(crate) fn take_in(&mut self, key: BanKey, ban: Option<Arc<Ban>>, now_ms: u64) -> bool {
        let Some(ban) = ban else {
            self.remove(key, Happened::Forgotten);
            return true;
        };
        let held = self.bans.get(&key);
        if held == Some(&ban) {
            return true;
        }
        let happened = match held {
            Some(held) if held.lifted.is_none() && ban.lifted.is_some() => Happened::Lifted,
            Some(_) => Happened::Edited,
            None => Happened::Made,
        };
        if happened == Happened::Made && self.make_room(now_ms).is_err() {
            self.dropped += 1;
            self.fresh_drops.push(ban);
            return false;
        }
        self.insert(key, ban, happened);
        true
    }
}
