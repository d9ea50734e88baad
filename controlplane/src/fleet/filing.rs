//! How lists.json and what the fleet says become one (FLEET-18). Pure: what the file holds comes
//! in, what it is to hold goes out, and who writes it is elsewhere.
//!
//! An edit is a difference between the file and what it held before, as far as this instance did
//! not have it written. Both are kept, before anything is written: so an edit that is made while
//! the service is down, or is killed in the middle of a write, is told from a write of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::core::Core;
use crate::rules::{Entries, Entry, Expected, FileChange, ListKey, SharedLists};

/// The file as far as it is known.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Filing {
    /// What it held when it was last read.
    held: Entries,
    /// What this instance has it hold, and may be written or not.
    sent: BTreeMap<ListKey, Option<Entry>>,
    /// Since when nothing has changed that the file may lack.
    looked: Option<u64>,
}

/// What is kept of it.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct KeptFiling {
    held: Vec<(ListKey, Entry)>,
    sent: Vec<(ListKey, Option<Entry>)>,
}

impl KeptFiling {
    /// What the file held.
    #[cfg(feature = "fleet")]
    pub(crate) fn into_held(self) -> Entries {
        self.held.into_iter().collect()
    }
}

impl Filing {
    /// Begins with what was kept, and the file as it is now.
    pub(crate) fn begin(
        kept: Option<KeptFiling>,
        file: &SharedLists,
        core: &mut Core,
        now_ms: u64,
    ) -> Self {
        let Some(kept) = kept else {
            // Nothing is known of it: what it holds is as old as can be.
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
            // A file that is gone takes nothing out (STATE-11).
            filing.held.clear();
        }
        filing.sent.clear();
        filing
    }

    /// What is to be kept.
    pub(crate) fn kept(&self) -> KeptFiling {
        let sent = self.sent.iter();
        KeptFiling {
            held: (self.held.iter())
                .map(|(key, entry)| (*key, entry.clone()))
                .collect(),
            sent: sent.map(|(key, entry)| (*key, entry.clone())).collect(),
        }
    }

    /// The file was read. Tells whether that is news.
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

    /// What the file is to hold otherwise; it is to be kept before it is written. Nothing while
    /// something is being written.
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

    /// That was written, or could not be: what the file lacks is looked for again.
    pub(crate) fn has_written(&mut self) {
        self.sent.clear();
        self.looked = None;
    }
}

fn in_force(entry: Option<&Entry>, now_ms: u64) -> Option<&Entry> {
    entry.filter(|entry| !entry.has_ended(now_ms))
}
