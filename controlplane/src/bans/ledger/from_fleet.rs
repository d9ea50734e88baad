//! What a fleet has the ledger do (FLEET-11): it comes as keys and what they are to hold.

use std::sync::Arc;

use weir_shared::ban::Ban;

use super::Ledger;
use super::changes::Happened;
use crate::bans::document::BanKey;

impl Ledger {
    /// Holds this ban under this key, or none. False where there is no place for it: every ban that
    /// is held is one that may not be dropped (BAN-5).
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
