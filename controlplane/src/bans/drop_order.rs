//! Which ban is dropped when the ledger is full (BAN-5, BAN-9).

use std::collections::BTreeSet;

use weir_shared::ban::{Ban, Expiry};

use super::document::BanKey;

/// The bans that may be dropped, in order: [`DropOrder::first`] is the rule of BAN-5 and BAN-9. Of
/// equal ones the lower netblock is dropped first.
#[derive(Default)]
pub(crate) struct DropOrder {
    /// Lifted bans, by the time they stopped refusing.
    lifted: BTreeSet<(u64, BanKey)>,
    /// Automatic bans that are not permanent, by their end.
    automatic: BTreeSet<(u64, BanKey)>,
    /// Permanent automatic bans, by their start.
    permanent: BTreeSet<(u64, BanKey)>,
    /// Other bans that are not permanent, by their end: they may be dropped only once they have
    /// ended.
    kept: BTreeSet<(u64, BanKey)>,
}

impl DropOrder {
    /// The next ban to drop: the ended or lifted one with the oldest end, else the automatic one
    /// that ends soonest, else the oldest permanent automatic one.
    pub(crate) fn first(&self, now_ms: u64) -> Option<BanKey> {
        let ended = |set: &BTreeSet<(u64, BanKey)>| {
            set.first().filter(|(end_ms, _)| *end_ms <= now_ms).copied()
        };
        let over = [
            self.lifted.first().copied(),
            ended(&self.automatic),
            ended(&self.kept),
        ];
        over.into_iter()
            .flatten()
            .min()
            .or_else(|| self.automatic.first().copied())
            .or_else(|| self.permanent.first().copied())
            .map(|(_, key)| key)
    }

    pub(crate) fn add(&mut self, key: BanKey, ban: &Ban) {
        if let Some((set, end_ms)) = self.place(ban) {
            set.insert((end_ms, key));
        }
    }

    pub(crate) fn remove(&mut self, key: BanKey, ban: &Ban) {
        if let Some((set, end_ms)) = self.place(ban) {
            set.remove(&(end_ms, key));
        }
    }

    /// The set and the position of a ban; none if a person made it permanent.
    fn place(&mut self, ban: &Ban) -> Option<(&mut BTreeSet<(u64, BanKey)>, u64)> {
        let end_ms = ban.ban_expires.end_ms();
        match (ban.lifted, ban.ban_expires) {
            (Some(lifted), _) => Some((&mut self.lifted, lifted.0.min(end_ms))),
            (None, Expiry::Permanent) if ban.origin().is_automatic() => {
                let started_ms = ban.ban_started.map_or(0, |started| started.0);
                Some((&mut self.permanent, started_ms))
            }
            (None, Expiry::Permanent) => None,
            (None, Expiry::At(_)) if ban.origin().is_automatic() => {
                Some((&mut self.automatic, end_ms))
            }
            (None, Expiry::At(_)) => Some((&mut self.kept, end_ms)),
        }
    }
}
