//! What a replica knows of lists, and how it forgets what only it has.

use super::{Effect, Item, Replica};
use crate::fleet::entry::{Entry, EntryId};
use crate::fleet::event::Rejected;
use crate::fleet::lists::{ListRecord, Lists, TooMany};
use crate::fleet::stamp::Stamp;
use crate::rules::{Entry as ListEntry, ListKey};

impl Replica {
    /// A ban as it is held.
    pub(in crate::fleet) fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// As if it had never been heard of. Tells what the ledger is to do.
    pub(in crate::fleet) fn drop_item(&mut self, item: &Item) -> Vec<Effect> {
        self.kept_changes += 1;
        match item {
            Item::Entry(id) => {
                let gone = self.entries.remove(id);
                self.gone -= usize::from(gone.is_some_and(|entry| entry.is_gone()));
                return self.show(id.netblock);
            }
            Item::Lift(stamp) => drop(self.lifts.remove(stamp)),
            Item::List(key) => self.lists.drop_record(*key),
        }
        Vec::new()
    }

    /// The lists.
    pub(in crate::fleet) fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Takes in what somebody says. Tells whether it is news.
    pub(super) fn join_list(&mut self, said: &ListRecord) -> Result<bool, Rejected> {
        let joined = self.lists.join(said.clone());
        joined.map_err(|TooMany| Rejected::Size)
    }

    /// Somebody changes a list here; none takes the entry out.
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

    /// What lists.json held before there was a fleet: whatever somebody changed is later.
    pub fn found_list(&mut self, key: ListKey, entry: &ListEntry) {
        let record = ListRecord::new(key, Some(entry.clone()), Stamp::of_time(0));
        self.kept_changes += u64::from(self.lists.join(record).unwrap_or(false));
    }
}
