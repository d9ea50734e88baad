//! What is told of the counts that clients share: the refusals, and how full they are (SHARE-8).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_shared::rules::SharedKey;
use weir_shared::table::{SharedCountsUse, SharedRefusal, SharedUse};

use super::{Full, Held, SharedCounts, Which};

/// Refusals that wait to be told. Each key has one a minute; one that finds no room is told with
/// the key's next refusal.
pub(super) const MAX_REFUSALS: usize = 1024;

impl SharedCounts {
    /// Keys that began to refuse since this was last asked (SHARE-8).
    pub fn take_refusals(&self) -> Vec<SharedRefusal> {
        if !self.has_refusals.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut held = self.held();
        self.has_refusals.store(false, Ordering::Relaxed);
        std::mem::take(&mut held.refusals)
    }

    /// What they stand at, for the metrics.
    pub fn usage(&self, wall_ms: u64) -> SharedCountsUse {
        let held = self.held();
        let mut rules: Vec<SharedUse> = Vec::new();
        let of_keys = held.keys.iter();
        let of_keys = of_keys.map(|((_, key, which), count)| (key.per(), *which, count));
        let of_all = held.all.iter();
        let of_all = of_all.map(|((_, which), count)| (SharedKey::All.per(), *which, count));
        for (per, which, count) in of_keys.chain(of_all) {
            let is_first = which == Which::First;
            let ratio = if is_first { count.ratio(wall_ms) } else { 0.0 };
            let is_it = |of: &&mut SharedUse| of.per == per && Arc::ptr_eq(&of.rule, &count.rule);
            match rules.iter_mut().find(is_it) {
                Some(of) => {
                    of.ratio = of.ratio.max(ratio);
                    of.keys += u64::from(is_first);
                    of.counts += 1;
                }
                None => rules.push(SharedUse {
                    rule: Arc::clone(&count.rule),
                    per,
                    ratio,
                    keys: u64::from(is_first),
                    counts: 1,
                }),
            }
        }
        SharedCountsUse {
            evicted: held.evicted,
            rules,
        }
    }
}

impl Held {
    /// Keeps a refusal to be told, unless one of its key was told within a minute. Without room it
    /// is as if it had not been asked: the key's next refusal is told.
    pub(super) fn tell(&mut self, full: &Full<'_>, wall_ms: u64) -> bool {
        if self.refusals.len() >= MAX_REFUSALS {
            return false;
        }
        let count = self.count(full.rule, full.key, Which::First);
        let Some((estimate, clients)) = count.tells(full.quota, wall_ms) else {
            return false;
        };
        self.refusals.push(SharedRefusal {
            rule: Arc::clone(full.rule),
            key: full.key,
            quota: full.quota,
            estimate,
            clients,
            at_ms: wall_ms,
        });
        true
    }
}
