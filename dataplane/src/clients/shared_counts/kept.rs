//! What clients count together, over a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_shared::rules::SharedKey;
use weir_shared::table::SharedRow;

use super::count::Count;
use super::{SharedCounts, Which};

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
