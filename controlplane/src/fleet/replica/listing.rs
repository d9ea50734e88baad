//! Lists in a replica, and dropping items that only it has.

use super::{Effect, Item, Replica};
use crate::fleet::entry::{Entry, EntryId};
use crate::fleet::event::Rejected;
use crate::fleet::lists::{ListRecord, Lists, TooMany};
use crate::fleet::stamp::Stamp;
use crate::rules::{Entry as ListEntry, ListKey};

impl Replica {
    /// The entry of a ban.
    pub(in crate::fleet) fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Removes an item without a trace. Returns the effects for the ledger.
    pub(in crate::fleet) fn drop_item(&mut self, item: &Item) -> Vec<Effect> {
        self.kept_changes += 1;
        match item {
            Item::Entry(id) => {
                let gone = self.entries.remove(id);
                self.gone -= usize::from(gone.is_some_and(|entry| entry.is_gone()));
                self.show(id.netblock)
            }
            Item::Lift(stamp) => {
                drop(self.lifts.remove(stamp));
                let by_it =
                    |entry: &Entry| entry.lift.as_ref().is_some_and(|(held, _)| held == stamp);
                self.lift_anew(by_it)
            }
            Item::List(key) => {
                self.lists.drop_record(*key);
                Vec::new()
            }
        }
    }

    /// The lists.
    pub(in crate::fleet) fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Joins a record. Returns whether it is news.
    pub(super) fn join_list(&mut self, said: &ListRecord) -> Result<bool, Rejected> {
        let joined = self.lists.join(said.clone());
        joined.map_err(|TooMany| Rejected::Size)
    }

    /// A change of a list at this instance; none removes the entry.
    ///
    /// # Errors
    /// [`Rejected::Size`]
    pub fn edit_list(
        &mut self,
        key: ListKey,
        entry: Option<ListEntry>,
        now_ms: u64,
    ) -> Result<Item, Rejected> {
        let stamp = self.clock.next(now_ms);
        let record = ListRecord::new(key, entry, stamp);
        self.join_list(&record)?;
        self.kept_changes += 1;
        Ok(Item::List(key))
    }

    /// Takes an entry that lists.json held before there was a fleet: any change counts as later.
    pub fn found_list(&mut self, key: ListKey, entry: &ListEntry) {
        let record = ListRecord::new(key, Some(entry.clone()), Stamp::of_time(0));
        self.kept_changes += u64::from(self.lists.join(record).unwrap_or(false));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use weir_shared::ban::Ban;
    use weir_shared::units::Time;

    use super::*;
    use crate::bans::Subject;
    use crate::bans::document::BanKey;
    use crate::fleet::replica::Kept;
    use crate::fleet::stamp::Origin;
    use crate::testing::NOW;

    /// FLEET-17: a lift that is put aside has lifted nothing: a later lift of the fleet counts, or
    /// none (seed 1016).
    #[test]
    fn a_lift_that_is_put_aside_lifts_nothing() {
        let ban: Arc<Ban> = serde_json::from_value(json!({
            "netblock": "203.0.113.0/24", "client": null, "ban_started": Time(NOW),
            "ban_expires": "permanent", "cause": "admin", "reason": "r"}))
        .map(Arc::new)
        .unwrap();
        let (key, origin) = (BanKey::of(&ban), Origin::new("a", 1).unwrap());
        let mut replica = Replica::restored(origin, Kept::default(), std::slice::from_ref(&ban));
        let lifted = |replica: &Replica| replica.held(key).unwrap().lifted;
        let lift = |replica: &mut Replica, at| {
            let outcome = replica.lift(Subject::Netblock(ban.netblock), at);
            outcome.items.into_iter().next().unwrap()
        };
        let first = lift(&mut replica, NOW + 1000);
        let second = lift(&mut replica, NOW + 2000);
        assert_eq!(lifted(&replica), Some(Time(NOW + 1000)));
        assert_eq!(replica.drop_item(&first).len(), 1);
        assert_eq!(lifted(&replica), Some(Time(NOW + 2000)));
        assert_eq!(replica.drop_item(&second).len(), 1);
        assert_eq!(lifted(&replica), None);
        assert!(replica.drop_item(&second).is_empty());
    }
}
