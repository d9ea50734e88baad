//! Remembers the bans of a fleet that this instance left while it ran (FLEET-17). If the instance
//! joins the same fleet again, bans that people edited meanwhile reach the fleet as edits of what
//! it held.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};

/// The fleet that was left.
pub(crate) struct LeftFleet {
    name: String,
    /// The bans at that time, except those edited since.
    held: BTreeMap<BanKey, Arc<Ban>>,
    /// Bans that were edited or removed since, as they were at that time.
    edited: BTreeMap<BanKey, Arc<Ban>>,
}

impl LeftFleet {
    pub(super) fn new(name: String, bans: &[Arc<Ban>]) -> Self {
        let held = bans.iter().map(|ban| (BanKey::of(ban), Arc::clone(ban)));
        Self {
            name,
            held: held.collect(),
            edited: BTreeMap::new(),
        }
    }

    /// Whether the fleet that was left has this name.
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Notes changes of this instance's bans.
    pub(super) fn note(&mut self, changes: &[LedgerChange]) {
        for LedgerChange { key, happened, .. } in changes {
            match happened {
                Happened::Edited | Happened::Forgotten => {
                    self.edited.extend(self.held.remove_entry(key));
                }
                // A ban that was dropped for room stays in the fleet.
                Happened::Dropped => {
                    self.held.remove(key);
                    self.edited.remove(key);
                }
                Happened::Made | Happened::Noted | Happened::Lifted => {}
            }
        }
    }

    /// These bans as they would be without the edits, and the keys of those that were removed.
    pub(super) fn before(mut self, bans: &[Arc<Ban>]) -> (Vec<Arc<Ban>>, Vec<BanKey>) {
        let mut before = |ban: &Arc<Ban>| self.edited.remove(&BanKey::of(ban));
        let mut before: Vec<Arc<Ban>> = (bans.iter())
            .map(|ban| before(ban).unwrap_or_else(|| Arc::clone(ban)))
            .collect();
        let removed = self.edited.keys().copied().collect();
        before.extend(self.edited.into_values());
        (before, removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(number: u8, reason: &str) -> Arc<Ban> {
        let ban = serde_json::json!({
            "netblock": format!("10.0.{number}.0/24"), "client": null,
            "ban_started": weir_shared::units::Time(1), "ban_expires": "permanent",
            "cause": "admin", "reason": reason});
        Arc::new(serde_json::from_value(ban).unwrap())
    }

    fn change(happened: Happened, ban: &Arc<Ban>) -> LedgerChange {
        let is_held = !matches!(happened, Happened::Forgotten | Happened::Dropped);
        LedgerChange {
            key: BanKey::of(ban),
            happened,
            ban: is_held.then(|| Arc::clone(ban)),
        }
    }

    /// FLEET-17: bans edited in the meantime are known as they were when the fleet was left,
    /// removed bans are reported, and bans that were added, lifted or dropped since are as they are
    /// now.
    #[test]
    fn edits_are_known_by_what_was_held() {
        let bans: Vec<_> = (0..5).map(|number| ban(number, "r")).collect();
        let mut left = LeftFleet::new("weir".to_owned(), &bans);
        let (edited, lifted, new) = (ban(1, "e"), ban(2, "l"), ban(9, "n"));
        left.note(&[
            change(Happened::Forgotten, &bans[0]),
            change(Happened::Edited, &edited),
            change(Happened::Lifted, &lifted),
            change(Happened::Edited, &bans[3]),
            change(Happened::Made, &new),
        ]);
        left.note(&[
            change(Happened::Dropped, &bans[3]),
            change(Happened::Edited, &ban(1, "again")),
            change(Happened::Forgotten, &new),
        ]);
        let held = [ban(1, "again"), lifted.clone(), bans[4].clone()];
        let (before, removed) = left.before(&held);
        let expected = [bans[1].clone(), lifted, bans[4].clone(), bans[0].clone()];
        assert_eq!(before, expected);
        assert_eq!(removed, [BanKey::of(&bans[0])]);
    }
}
