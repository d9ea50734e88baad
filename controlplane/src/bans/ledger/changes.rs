//! Changes of the ledger, for files, followers and alerts.
//!
//! Changes are kept by key. A ban that changes twice before the changes are taken is one change,
//! with the latest ban.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use crate::bans::document::BanKey;

/// How a ban changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happened {
    /// It was made, or an edit or an import added it.
    Made,
    /// Its notes were added.
    Noted,
    /// An edit or an import changed it.
    Edited,
    /// It was lifted.
    Lifted,
    /// An edit removed it.
    Forgotten,
    /// It was dropped for `max_bans` (BAN-5).
    Dropped,
}

/// One ban that changed.
#[derive(Clone, PartialEq, Debug)]
pub struct LedgerChange {
    pub(crate) key: BanKey,
    pub(crate) happened: Happened,
    /// The ban as it is now; none if it is no longer held.
    pub(crate) ban: Option<Arc<Ban>>,
}

/// The keys of changed bans: at most those of held bans, and of bans removed in the same turn.
#[derive(Clone, Default)]
pub(super) struct Changed(BTreeMap<BanKey, Happened>);

impl Changed {
    /// Takes the changes, by key.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (BanKey, Happened)> {
        std::mem::take(&mut self.0).into_iter()
    }

    pub(super) fn note(&mut self, key: BanKey, happened: Happened) {
        let held = self.0.entry(key).or_insert(happened);
        // Followers do not know a ban that was made since the last take: notes and edits of it are
        // part of `Made`.
        *held = match (*held, happened) {
            (Happened::Made, Happened::Noted | Happened::Edited) => Happened::Made,
            (_, latest) => latest,
        };
    }
}
