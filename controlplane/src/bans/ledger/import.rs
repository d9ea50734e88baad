//! Many bans that the ledger takes in together, all or none (CONTROL-9).

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;
use weir_shared::ban::{Ban, Cause};

use super::{BanKey, Full, Ledger, Order};

/// Bans that are taken in together, checked.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Batch {
    /// As bans.json has them.
    Bans(Vec<Arc<Ban>>),
    /// Of a plain list of netblocks.
    Orders(Vec<Order>),
}

impl Batch {
    /// How many.
    const fn len(&self) -> usize {
        match self {
            Self::Bans(bans) => bans.len(),
            Self::Orders(orders) => orders.len(),
        }
    }
}

/// What became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Imported {
    /// Bans that were taken in.
    pub(crate) imported: usize,
    /// Those of them that were not held before.
    pub(crate) new: usize,
    /// Bans that were dropped for them.
    pub(crate) dropped: u64,
}

impl Ledger {
    /// Takes many bans in, as one change. One of a document replaces the one that is held of the
    /// same netblock and start, whatever became of that; one of a list is made as an
    /// administrator's (BAN-3). Others are dropped for them as BAN-5 has it.
    ///
    /// # Errors
    /// [`Full`]: they do not fit beside what may not be dropped, and the ledger is as it was.
    pub(crate) fn import(&mut self, batch: Batch, now_ms: u64) -> Result<Imported, Full> {
        let (imported, held) = (batch.len(), self.bans.len());
        let most = self.rules.max_bans;
        if imported > most {
            return Err(Full);
        }
        let before = (held + imported > most).then(|| (self.bans.clone(), self.made));
        let (dropped, told) = (self.dropped, self.fresh_drops.len());
        self.indexed_once(|ledger| ledger.take_batch(batch, now_ms));
        let new = self.bans.len().saturating_sub(held);
        let fits = self.indexed_once(|ledger| {
            while ledger.bans.len() > most {
                ledger.drop_one(now_ms)?;
            }
            Ok::<_, Full>(())
        });
        if let (Err(Full), Some((bans, made))) = (fits, before) {
            (self.bans, self.made, self.dropped) = (bans, made, dropped);
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
        let bans = match batch {
            Batch::Bans(bans) => bans,
            Batch::Orders(orders) => {
                for order in orders {
                    self.put_order(order, now_ms);
                }
                return;
            }
        };
        let mut taken = HashSet::with_capacity(bans.len());
        for mut ban in bans {
            let mut key = BanKey::of(&ban);
            // Written by hand: one without a start begins now, and two alike are two.
            if ban.ban_started.is_none() || taken.contains(&key) {
                let at_ms = ban.ban_started.map_or(now_ms, |start| start.0);
                key = self.free_key(ban.netblock, at_ms);
                Arc::make_mut(&mut ban).ban_started = Some(key.ban_started);
            }
            taken.insert(key);
            if !self.bans.contains_key(&key) {
                // Whoever made it once, here an administrator did.
                self.count_made(Cause::Admin);
            }
            self.insert(key, ban);
        }
    }
}

#[cfg(test)]
mod tests;
