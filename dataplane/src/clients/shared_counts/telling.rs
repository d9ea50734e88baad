//! What is told of the counts that clients share: to operators, the refusals and how full they are
//! (SHARE-8); to other instances (FLEET-4); and to the next process, over a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_shared::clock::Now;
use weir_shared::fleet::{CountOf, Report, Reporting, SharedCount, Sum, ValueHash};
use weir_shared::rules::{Rule, SharedKey};
use weir_shared::table::{SharedCountsUse, SharedRefusal, SharedRow, SharedUse};

use super::count::Count;
use super::{Full, Held, MAX_KEYS, SharedCounts, Which};

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

// To other instances.
impl SharedCounts {
    /// From now on other instances are told.
    pub fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Limits by a field's value count under these numbers from now on. What was counted under
    /// others is found no more, and goes when its place is needed.
    pub fn tell_values_by(&self, hash: ValueHash) {
        self.values.store(Some(Arc::new(hash)));
    }

    /// The number that stands for a field's value.
    pub(super) fn hash(&self, value: &[u8]) -> u64 {
        match &*self.values.load() {
            Some(of_fleet) => of_fleet(value),
            None => self.hasher.hash_one(value),
        }
    }

    /// Something was counted there, or found no room.
    pub(super) fn note(&self, held: &mut Held, rule: &Arc<Rule>, key: SharedKey, which: Which) {
        if !self.is_shared.load(Ordering::Relaxed) {
            return;
        }
        if held.changed.len() < MAX_KEYS && held.count(rule, key, which).changes() {
            held.changed.push(SharedCount {
                rule: Arc::clone(rule),
                key,
                is_second: which == Which::Second,
            });
            self.has_changed.store(true, Ordering::Relaxed);
        }
    }

    /// What has counted something since they were named here last. Nobody waits for whoever asks
    /// and hears that there is nothing.
    pub fn take_changed(&self) -> Vec<SharedCount> {
        // Relaxed: what is counted meanwhile is named the next time.
        match self.has_changed.swap(false, Ordering::Relaxed) {
            true => std::mem::take(&mut self.held().changed),
            false => Vec::new(),
        }
    }

    /// All of them that other instances are told of.
    pub fn all(&self) -> impl Iterator<Item = SharedCount> + use<> {
        let held = self.held();
        let of_keys = held.keys.iter();
        let of_keys = of_keys.map(|((_, key, which), count)| (*key, *which, &count.rule));
        let of_all = held.all.iter();
        let of_all = of_all.map(|((_, which), count)| (SharedKey::All, *which, &count.rule));
        let all: Vec<SharedCount> = of_keys
            .chain(of_all)
            .map(|(key, which, rule)| SharedCount {
                rule: Arc::clone(rule),
                key,
                is_second: which == Which::Second,
            })
            .collect();
        all.into_iter()
    }

    /// The counts that are due to be sent of one.
    pub fn report(&self, of: &SharedCount, reporting: &Reporting, now: Now) -> Option<Report> {
        let mut held = self.held();
        let count = held.known(of)?;
        let mut report = count.report(reporting, now)?;
        report.of = CountOf::Shared(of.clone());
        Some(report)
    }

    /// The engine has answered to a report.
    pub fn learn(
        &self,
        of: &SharedCount,
        told: (&Report, bool),
        (sum, heeds): (&Sum, bool),
        now: Now,
    ) {
        if let Some(count) = self.held().known(of) {
            count.learn(told, (sum, heeds), now);
        }
    }

    /// The engine has nothing of what was sent.
    pub fn are_lost(&self) {
        self.held().each(Count::is_lost);
    }

    /// The engine may have any part of what was counted.
    pub fn may_be_sent(&self) {
        self.held().each(Count::may_be_sent);
    }

    /// The engine may have all that was counted so far.
    pub fn are_sent(&self) {
        self.held().each(Count::is_sent);
    }

    /// What others count does not hold.
    pub fn forget_others(&self) {
        self.held().each(Count::forgets_others);
    }
}

impl Held {
    fn known(&mut self, of: &SharedCount) -> Option<&mut Count> {
        let place = Arc::as_ptr(&of.rule).addr();
        let which = match of.is_second {
            true => Which::Second,
            false => Which::First,
        };
        match of.key {
            SharedKey::All => self.all.peek_mut(&(place, which)),
            key => self.keys.peek_mut(&(place, key, which)),
        }
    }

    fn each(&mut self, work: impl Fn(&mut Count)) {
        for (_, count) in &mut self.keys {
            work(count);
        }
        for (_, count) in &mut self.all {
            work(count);
        }
    }
}

// To the next process.
impl SharedCounts {
    /// All of them, those that were seen longest ago first, for a restart.
    pub fn rows(&self) -> Vec<SharedRow> {
        let held = self.held();
        let of_keys = held
            .keys
            .iter()
            .map(|((_, key, which), count)| (*key, *which, count));
        let of_all = held.all.iter();
        let of_all = of_all.map(|((_, which), count)| (SharedKey::All, *which, count));
        let row = |(key, which, count): (SharedKey, Which, &Count)| SharedRow {
            rule: Arc::clone(&count.rule),
            key,
            is_second: which == Which::Second,
            windows: count.windows(),
        };
        let rows = of_keys.chain(of_all).map(row);
        let mut rows: Vec<SharedRow> = rows.filter(|row| !row.windows.is_empty()).collect();
        // The latest come first.
        rows.reverse();
        rows
    }

    /// Puts one in, as the latest seen.
    pub fn put(&self, row: &SharedRow) {
        let which = match row.is_second {
            true => Which::Second,
            false => Which::First,
        };
        let mut held = self.held();
        let is_shared = self.is_shared.load(Ordering::Relaxed);
        let count = held.count(&row.rule, row.key, which);
        count.put(&row.windows);
        if is_shared {
            count.is_sent();
        }
    }
}
