//! An instance that was away for so long that the fleet has forgotten removals meanwhile: items
//! that only it holds are put aside (FLEET-17).

use super::{Core, Stale};
use crate::fleet::event::Event;
use crate::fleet::replica::{Effect, Item};

impl Core {
    /// When it was last in contact with the fleet.
    pub fn contact_ms(&self) -> Option<u64> {
        self.contact_ms
    }

    /// Notes that the engine worked at this time. Ignored while items must be put aside.
    pub fn note_contact(&mut self, at_ms: u64) {
        if self.stale.is_none() && self.aside.is_empty() {
            self.contact_ms = self.contact_ms.max(Some(at_ms));
        }
    }

    /// Whether items must be put aside.
    pub fn has_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// The items to put aside.
    pub fn aside(&self) -> Vec<Event> {
        let aside = self.aside.iter();
        aside.filter_map(|item| self.replica.event(item)).collect()
    }

    /// Removes these items, once they are in a file. Returns the effects for the ledger.
    pub fn put_aside(&mut self) -> Vec<Effect> {
        let aside = std::mem::take(&mut self.aside);
        let effects = aside.iter().map(|item| self.replica.drop_item(item));
        effects.flatten().collect()
    }

    /// Whether only this instance holds the item, and has not changed it since the last contact.
    pub(super) fn is_aside(&self, item: &Item, stale: &Stale) -> bool {
        let event = self.replica.event(item);
        let is_old = |event: &Event| event.stamps().all(|stamp| stamp.ms() <= stale.contact_ms);
        !stale.named.contains(item) && event.is_some_and(|event| is_old(&event))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_shared::ban::Ban;

    use super::*;
    use crate::fleet::core::SNAPSHOT_AFTER;
    use crate::fleet::engine::{Cursor, Logged, Welcome};
    use crate::fleet::stamp::Origin;

    const DAY: u64 = 86_400_000;
    const MET: u64 = 1_795_276_800_000;

    /// FLEET-17: an engine that answers hello but gives nothing of its log is no contact with the
    /// fleet. After seven days of that, entries that only this instance holds are put aside: they
    /// go into no snapshot, and into no batch when the log is read again.
    #[test]
    fn hello_alone_is_no_contact() {
        let ban: Ban = serde_json::from_str(
            r#"{"netblock":"203.0.113.0/24","ban_started":"2026-11-01T16:00:00Z","ban_expires":"permanent"}"#,
        )
        .unwrap();
        for (days, is_put_aside) in [(7, false), (8, true)] {
            let (mut core, _) = Core::new(Origin::new("a", 1).unwrap(), &[Arc::new(ban.clone())]);
            let welcome = |last, time_ms| Welcome {
                generation: 1,
                hello: 1,
                last,
                last_by: (last > 0).then_some(1),
                at_cursor: None,
                is_whole: true,
                time_ms,
            };
            core.welcome(welcome(0, MET));
            core.at_the_end();
            assert_eq!(core.next_batch(|_| true).map(|batch| batch.seq), Some(1));
            core.appended(1, 1);
            for day in 1..=days {
                core.welcome(welcome(1, MET + day * DAY));
            }
            for seq in 1..=SNAPSHOT_AFTER {
                core.has_read(Logged {
                    at: Cursor { ms: seq, count: 0 },
                    origin: Origin::new("b", 1).unwrap(),
                    seq,
                    sealed: Vec::new(),
                });
            }
            core.at_the_end();
            assert_eq!(core.has_aside(), is_put_aside, "{days}");
            assert!(core.is_in_step());
            assert_eq!(core.snapshot().is_none(), is_put_aside, "{days}");
            core.resync();
            core.at_the_end();
            assert_eq!(core.is_in_step(), is_put_aside, "{days}");
            core.put_aside();
            assert_eq!(core.snapshot().is_some(), is_put_aside, "{days}");
        }
    }
}
