//! What changed in the ledger, for everybody who follows it: files, listeners, alerts.
//!
//! Changes are kept by key. A ban that changes twice before they are taken is one change, of which
//! the ban is the last.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use crate::bans::document::BanKey;

/// What became of a ban.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happened {
    /// It was made, or an edit or an import added it.
    Made,
    /// Its circumstances were added.
    Noted,
    /// An edit or an import changed it.
    Edited,
    /// It was lifted.
    Lifted,
    /// It is held no more: taken out by an edit.
    Forgotten,
    /// It is held no more: dropped for the bound (BAN-5).
    Dropped,
}

/// One ban that changed.
#[derive(Clone, PartialEq, Debug)]
pub struct LedgerChange {
    pub(crate) key: BanKey,
    pub(crate) happened: Happened,
    /// As it is now; none where it is held no more.
    pub(crate) ban: Option<Arc<Ban>>,
}

/// The keys of bans that changed. At most those that are held, and those that were forgotten in the
/// same turn.
#[derive(Clone, Default)]
pub(super) struct Changed(BTreeMap<BanKey, Happened>);

impl Changed {
    /// Each change, by key.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (BanKey, Happened)> {
        std::mem::take(&mut self.0).into_iter()
    }

    pub(super) fn note(&mut self, key: BanKey, happened: Happened) {
        let held = self.0.entry(key).or_insert(happened);
        // Who follows has not heard of a ban that was just made: notes and edits are part of that.
        *held = match (*held, happened) {
            (Happened::Made, Happened::Noted | Happened::Edited) => Happened::Made,
            (_, latest) => latest,
        };
    }
}
