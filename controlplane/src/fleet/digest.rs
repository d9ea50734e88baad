//! A digest of all bans that are not over: the same at all instances that hold the same bans
//! (FLEET-16). It is updated with each change, so reading it is cheap.

use std::collections::{BTreeSet, HashMap};

use weir_shared::ban::Ban;

use super::entry::EntryId;
use crate::bans::document::BanKey;

/// Bans that ended longer ago than this are removed for good: clocks are assumed to be set back by
/// less.
const PAST_MS: u64 = 3_600_000;

/// The digest, and what it is computed from.
#[derive(Clone, Default, Debug)]
pub(super) struct Digest {
    sum: u64,
    hashes: HashMap<BanKey, (u64, u64)>,
    /// By their end.
    ends: BTreeSet<(u64, BanKey)>,
}

impl Digest {
    /// Adds a ban, or replaces the one of its key.
    pub(super) fn put(&mut self, key: BanKey, id: EntryId, ban: &Ban) {
        self.remove(key);
        let (end_ms, hash) = (ban.ban_expires.end_ms(), hash(&(id, ban)));
        self.sum = self.sum.wrapping_add(hash);
        self.hashes.insert(key, (end_ms, hash));
        self.ends.insert((end_ms, key));
    }

    /// Removes a ban.
    pub(super) fn remove(&mut self, key: BanKey) {
        if let Some((end_ms, hash)) = self.hashes.remove(&key) {
            self.sum = self.sum.wrapping_sub(hash);
            self.ends.remove(&(end_ms, key));
        }
    }

    /// The digest at this time.
    pub(super) fn at(&self, now_ms: u64) -> u64 {
        let past = self.ends.iter().take_while(|(end_ms, _)| *end_ms <= now_ms);
        past.fold(self.sum, |sum, (_, key)| {
            let hash = self.hashes.get(key).map_or(0, |(_, hash)| *hash);
            sum.wrapping_sub(hash)
        })
    }

    /// Removes bans that ended long ago.
    pub(super) fn forget_past(&mut self, now_ms: u64) {
        let past_ms = now_ms.saturating_sub(PAST_MS);
        while let Some((end_ms, key)) = self.ends.first().copied()
            && end_ms <= past_ms
        {
            self.remove(key);
        }
    }
}

/// FNV-1a of a ban's JSON.
fn hash(ban: &(EntryId, &Ban)) -> u64 {
    let text = serde_json::to_vec(ban).unwrap_or_default();
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
