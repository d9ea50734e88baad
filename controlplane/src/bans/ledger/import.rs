//! Imports many bans into the ledger, all or none (CONTROL-9).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use weir_shared::ban::{Ban, Cause, Expiry};
use weir_shared::ban_origin::BanOrigin;
use weir_shared::units::Time;

use super::{AdminBan, BanKey, Full, Happened, Ledger};
use places::{give_starts, know_again};

mod places;

/// The checked bans of one import.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Batch {
    /// Entries of a bans.json.
    Bans(Vec<Arc<Ban>>),
    /// Bans from a list of netblocks.
    Orders(Vec<AdminBan>),
}

impl Batch {
    /// The number of bans.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Bans(bans) => bans.len(),
            Self::Orders(orders) => orders.len(),
        }
    }
}

/// The result of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Imported {
    /// Bans that were imported.
    pub(crate) imported: usize,
    /// Imported bans that were not held before.
    pub(crate) new: usize,
    /// Bans that were dropped to make room.
    pub(crate) dropped: u64,
}

impl Ledger {
    /// Imports many bans as one change. An entry of a bans.json replaces the held ban of the same
    /// netblock and start, even a lifted one. A netblock of a list becomes an administrator's ban
    /// (BAN-3), or extends the active one. Other bans are dropped for them by BAN-5.
    ///
    /// # Errors
    /// [`Full`]: the bans do not fit beside the undroppable ones. The ledger is unchanged then.
    pub(crate) fn import(&mut self, batch: Batch, now_ms: u64) -> Result<Imported, Full> {
        let (imported, held) = (batch.len(), self.bans.len());
        let most = self.settings.max_bans;
        if imported > most {
            return Err(Full);
        }
        let before =
            (held + imported > most).then(|| (self.bans.clone(), self.made, self.changed.clone()));
        let (dropped, told) = (self.dropped, self.fresh_drops.len());
        self.indexed_once(|ledger| ledger.take_batch(batch, now_ms));
        let new = self.bans.len().saturating_sub(held);
        let fits = self.indexed_once(|ledger| {
            while ledger.bans.len() > most {
                ledger.drop_one(now_ms)?;
            }
            Ok::<_, Full>(())
        });
        if let (Err(Full), Some((bans, made, changed))) = (fits, before) {
            (self.bans, self.made, self.changed) = (bans, made, changed);
            self.dropped = dropped;
            self.fresh_drops.truncate(told);
            self.rebuild();
            return Err(Full);
        }
        Ok(Imported {
            imported,
            new,
            dropped: self.dropped.saturating_sub(dropped),
        })
    }

    fn take_batch(&mut self, batch: Batch, now_ms: u64) {
        let mut bans = match batch {
            Batch::Bans(bans) => bans,
            Batch::Orders(orders) => {
                // Each netblock is looked up once, however often the list contains it.
                let mut taken = BTreeSet::new();
                for order in orders {
                    if taken.insert(order.netblock) {
                        self.take_order(order, now_ms);
                    }
                }
                return;
            }
        };
        know_again(&mut bans, &self.bans);
        give_starts(&mut bans, &self.bans, now_ms);
        for ban in bans {
            let key = BanKey::of(&ban);
            let mut happened = Happened::Edited;
            if !self.bans.contains_key(&key) {
                // Counted as an administrator's ban, whoever made it originally.
                self.count_made(Cause::Admin);
                happened = Happened::Made;
            }
            self.insert(key, ban, happened);
        }
    }

    /// Takes a netblock of a list. If an active ban by hand of exactly this netblock exists, it is
    /// extended instead, so that a nightly import makes no second one.
    fn take_order(&mut self, order: AdminBan, now_ms: u64) {
        let (first, last) = BanOrigin::RANGE;
        let of_netblock =
            BanKey::new(order.netblock, 0, first)..=BanKey::new(order.netblock, u64::MAX, last);
        let standing = self.bans.range(of_netblock).find(|(_, ban)| {
            ban.cause == Cause::Admin
                && ban.client == order.client
                && ban.observed == self.settings.observe
                && ban.is_active(now_ms)
        });
        let Some((key, standing)) = standing.map(|(key, ban)| (*key, Arc::clone(ban))) else {
            self.put_order(order, now_ms);
            return;
        };
        let end = order.duration.map_or(Expiry::Permanent, |length| {
            Expiry::At(Time(now_ms).plus(length))
        });
        if end > standing.ban_expires {
            let longer = Ban {
                ban_expires: end,
                reason: order.reason,
                ..Ban::clone(&standing)
            };
            self.insert(key, Arc::new(longer), Happened::Edited);
        }
    }
}

#[cfg(test)]
mod tests;
