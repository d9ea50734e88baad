//! Lists in the core.

use super::{Core, Outcome};
use crate::rules::{Entry as ListEntry, ListKey};

impl Core {
    /// The entry of a list for this key, if it has not ended.
    pub fn listed(&self, key: ListKey, now_ms: u64) -> Option<&ListEntry> {
        let record = self.replica.lists().record(key)?;
        (record.entry.as_ref()).filter(|entry| !entry.has_ended(now_ms))
    }

    /// The keys of all known list records.
    pub fn list_keys(&self) -> impl Iterator<Item = ListKey> + '_ {
        self.replica.lists().records().map(|record| record.key)
    }

    /// How often the lists have changed.
    pub fn list_changes(&self) -> u64 {
        self.replica.lists().changes()
    }

    /// A change of a list at this instance.
    pub fn edit_list(&mut self, key: ListKey, entry: Option<ListEntry>, now_ms: u64) {
        match self.replica.edit_list(key, entry, now_ms) {
            Ok(item) => {
                let items = vec![item];
                let effects = Vec::new();
                self.send_outcome(Outcome { effects, items }, true);
            }
            Err(rejected) => self.reject(rejected),
        }
    }

    /// Takes an entry that lists.json held before there was a fleet.
    pub fn found_list(&mut self, key: ListKey, entry: &ListEntry) {
        self.replica.found_list(key, entry);
    }
}
