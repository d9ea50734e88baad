//! Keeps lists.json and the fleet's lists the same (FLEET-18). Pure: takes the file's content,
//! returns the changes to write; the thread of the rules writes them.
//!
//! An edit is a difference between the file and its earlier content, except for what this instance
//! wrote itself. The earlier content and the pending writes are saved before anything is written.
//! So an edit made while the service is down, or a kill in the middle of a write, can be told from
//! a write of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::core::Core;
use crate::rules::{Entries, Entry, Expected, FileChange, ListKey, SharedLists};

/// The known state of the file.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Filing {
    /// Its content when it was last read.
    held: Entries,
    /// Entries that this instance has ordered to write; they may be written or not.
    sent: BTreeMap<ListKey, Option<Entry>>,
    /// The number of list changes at the last comparison; none if the file must be compared again.
    looked: Option<u64>,
}

/// The part that fleet.json keeps.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct KeptFiling {
    held: Vec<(ListKey, Entry)>,
    sent: Vec<(ListKey, Option<Entry>)>,
}

impl KeptFiling {
    /// The content of the file.
    #[cfg(feature = "fleet")]
    pub(crate) fn into_held(self) -> Entries {
        self.held.into_iter().collect()
    }
}

impl Filing {
    /// Starts from the kept part, and the file as it is now.
    pub(crate) fn begin(
        kept: Option<KeptFiling>,
        file: &SharedLists,
        core: &mut Core,
        now_ms: u64,
    ) -> Self {
        let Some(kept) = kept else {
            // Nothing was kept: the entries of the file count as the oldest possible.
            for (key, entry) in &file.entries {
                core.found_list(*key, entry);
            }
            return Self {
                held: file.entries.clone(),
                ..Self::default()
            };
        };
        let mut filing = Self {
            held: kept.held.into_iter().collect(),
            sent: kept.sent.into_iter().collect(),
            looked: None,
        };
        if file.is_there {
            filing.read(file, core, now_ms);
        } else {
            // A missing file removes nothing (STATE-11).
            filing.held.clear();
        }
        filing.sent.clear();
        filing
    }

    /// The part to keep in fleet.json.
    pub(crate) fn kept(&self) -> KeptFiling {
        let sent = self.sent.iter();
        KeptFiling {
            held: (self.held.iter())
                .map(|(key, entry)| (*key, entry.clone()))
                .collect(),
            sent: sent.map(|(key, entry)| (*key, entry.clone())).collect(),
        }
    }

    /// Takes the content of the file. Returns whether anything has changed.
    pub(crate) fn read(&mut self, file: &SharedLists, core: &mut Core, now_ms: u64) -> bool {
        if self.held == file.entries {
            return false;
        }
        let keys: BTreeSet<ListKey> = (self.held.keys())
            .chain(file.entries.keys())
            .copied()
            .collect();
        for key in keys {
            let found = in_force(file.entries.get(&key), now_ms);
            let is_own =
                (self.sent.get(&key)).is_some_and(|sent| in_force(sent.as_ref(), now_ms) == found);
            let is_new = in_force(self.held.get(&key), now_ms) != found;
            if is_new && !is_own && core.listed(key, now_ms) != found {
                core.edit_list(key, found.cloned(), now_ms);
            }
        }
        self.held = file.entries.clone();
        self.looked = None;
        true
    }

    /// The changes to write to the file, which must be kept in fleet.json first. Empty while a
    /// write is under way.
    pub(crate) fn due(&mut self, core: &Core, now_ms: u64) -> Vec<FileChange> {
        let changes = core.list_changes();
        if !self.sent.is_empty() || self.looked == Some(changes) {
            return Vec::new();
        }
        self.looked = Some(changes);
        let mut keys: BTreeSet<ListKey> = core.list_keys().collect();
        keys.extend(self.held.keys());
        let mut due = Vec::new();
        for key in keys {
            let (held, wanted) = (self.held.get(&key), core.listed(key, now_ms));
            if in_force(held, now_ms) != wanted {
                self.sent.insert(key, wanted.cloned());
                due.push(FileChange {
                    key,
                    expected: Expected::Is(held.cloned()),
                    entry: wanted.cloned(),
                });
            }
        }
        due
    }

    /// Notes that a write has ended, with or without success: the file is compared again.
    pub(crate) fn has_written(&mut self) {
        self.sent.clear();
        self.looked = None;
    }
}

fn in_force(entry: Option<&Entry>, now_ms: u64) -> Option<&Entry> {
    entry.filter(|entry| !entry.has_ended(now_ms))
}
