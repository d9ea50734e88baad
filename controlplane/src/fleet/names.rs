//! Translates between the fleet's names of bans and this instance's. In the fleet the origin of a
//! ban always has the name of its instance; an instance's own files and answers leave its own name
//! out.

use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::ban_origin::{BanOrigin, Instance};

use super::replica::Effect;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::LedgerChange;

/// A ban with its name in the fleet.
pub(super) fn in_fleet(me: Instance, ban: &Arc<Ban>) -> Arc<Ban> {
    let origin = ban.origin();
    if origin.instance.is_some() {
        return Arc::clone(ban);
    }
    let mut ban = Ban::clone(ban);
    ban.origin = Some(there(me, origin));
    Arc::new(ban)
}

/// A key with its name in the fleet.
pub(super) fn key_in_fleet(me: Instance, mut key: BanKey) -> BanKey {
    key.origin = there(me, key.origin);
    key
}

/// A change with its name in the fleet.
pub(super) fn change_in_fleet(me: Instance, change: &LedgerChange) -> LedgerChange {
    LedgerChange {
        key: key_in_fleet(me, change.key),
        happened: change.happened,
        ban: change.ban.as_ref().map(|ban| in_fleet(me, ban)),
    }
}

fn there(me: Instance, mut origin: BanOrigin) -> BanOrigin {
    origin.instance.get_or_insert(me);
    origin
}

/// An effect for the ledger, with this instance's names.
pub(super) fn here(me: Instance, effect: Effect) -> Effect {
    let own = |mut origin: BanOrigin| {
        origin.instance = origin.instance.filter(|instance| *instance != me);
        origin
    };
    let mut key = effect.key;
    key.origin = own(key.origin);
    let ban = effect.ban.map(|ban| {
        let origin = ban.origin();
        if origin.instance != Some(me) {
            return ban;
        }
        let mut ban = Ban::clone(&ban);
        ban.origin = Some(own(origin));
        Arc::new(ban)
    });
    Effect { key, ban }
}
