//! The three-way merge of a state file: base, ours, theirs (STATE-4). Pure: no files, no clock.
//!
//! *Base* is what was last read or written, *ours* is what memory holds, *theirs* is an edit found on disk. The rule,
//! entry by entry (bans are named by netblock and `ban_started`, clients by their address):
//!
//! - What the edit did not touch stays as memory has it: an entry made, changed or dropped since the base is no
//!   business of the edit.
//! - An entry that the edit added is there. An entry that the edit took out is gone, whatever memory did to it meanwhile.
//! - An entry that the edit changed and memory did not is as the edit has it; if memory dropped it, it comes back.
//! - An entry that both changed: for bans each member that the edit changed is as the edit has it, every other as memory
//!   has it, so an edited reason does not undo a lift and a lift in the edit always stands; for clients the edited entry
//!   stands whole, because its counters only make sense together.
//!
//! An edit becomes the base at once and travels to memory as a numbered difference. A document from memory says up to
//! which number it contains the edits; the others are applied to it before it is written.

use std::collections::{HashMap, HashSet};

use super::document::Document;

/// What an edit did to a file.
pub(super) struct Diff<D: Document> {
    pub(super) added: Vec<D::Entry>,
    /// Before and after.
    pub(super) changed: Vec<(D::Entry, D::Entry)>,
    pub(super) removed: Vec<D::Key>,
}

/// One file's base, and the edits that memory may not have taken in yet.
pub(super) struct Base<D: Document> {
    entries: Vec<D::Entry>,
    pending: Vec<(u64, Diff<D>)>,
}

impl<D: Document> Base<D> {
    pub(super) fn new(entries: Vec<D::Entry>) -> Self {
        Self {
            entries,
            pending: Vec::new(),
        }
    }

    /// What was last read or written.
    pub(super) fn entries(&self) -> &[D::Entry] {
        &self.entries
    }

    /// Makes `theirs` the base and returns what it changed, as edit `number`; none if no entry changed.
    pub(super) fn take(&mut self, number: u64, theirs: Vec<D::Entry>) -> Option<&Diff<D>> {
        let diff = Diff::between(&self.entries, &theirs);
        self.entries = theirs;
        if diff.is_empty() {
            return None;
        }
        self.pending.push((number, diff));
        self.pending.last().map(|(_, diff)| diff)
    }

    /// Queues a difference from an older base than the present one, which an editor saved into a file that was replaced
    /// in the meantime. The base stays: it is what the file holds.
    pub(super) fn take_late(&mut self, number: u64, diff: Diff<D>) {
        self.pending.push((number, diff));
    }

    /// A document of memory that contains the edits up to `applied`, with the others applied to it, in file order.
    pub(super) fn merged(&self, ours: &[D::Entry], applied: u64) -> Vec<D::Entry> {
        let mut merged = ours.to_vec();
        for (number, diff) in &self.pending {
            if *number > applied {
                diff.apply(&mut merged);
            }
        }
        D::sort(&mut merged);
        merged
    }

    /// `merged` is on disk, made of a document that contained the edits up to `applied`. Returns the base before.
    pub(super) fn written(&mut self, merged: Vec<D::Entry>, applied: u64) -> Vec<D::Entry> {
        self.pending.retain(|(number, _)| *number > applied);
        std::mem::replace(&mut self.entries, merged)
    }

    /// The file is gone together with its directory: nothing was taken out by anyone.
    pub(super) fn forget(&mut self) -> Vec<D::Entry> {
        std::mem::take(&mut self.entries)
    }
}

impl<D: Document> Diff<D> {
    pub(super) fn between(base: &[D::Entry], theirs: &[D::Entry]) -> Self {
        let mut before: HashMap<D::Key, &D::Entry> =
            base.iter().map(|entry| (D::key(entry), entry)).collect();
        let mut diff = Self {
            added: Vec::new(),
            changed: Vec::new(),
            removed: Vec::new(),
        };
        for entry in theirs {
            match before.remove(&D::key(entry)) {
                None => diff.added.push(entry.clone()),
                Some(old) if old != entry => diff.changed.push((old.clone(), entry.clone())),
                Some(_) => {}
            }
        }
        // In the order of the base, so that two runs report the same.
        diff.removed = base
            .iter()
            .map(D::key)
            .filter(|key| before.contains_key(key))
            .collect();
        diff
    }

    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// "3 added, 1 lifted, 2 removed" (STATE-3).
    pub(super) fn summary(&self) -> String {
        let lifted = self
            .changed
            .iter()
            .filter(|(before, after)| D::lifts(before, after))
            .count();
        let parts: Vec<String> = [
            (self.added.len(), "added"),
            (self.changed.len() - lifted, "changed"),
            (lifted, "lifted"),
            (self.removed.len(), "removed"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if parts.is_empty() {
            "no entry changed".to_owned()
        } else {
            parts.join(", ")
        }
    }

    /// Every entry the edit leaves behind, changed or new.
    pub(super) fn put(&self) -> impl Iterator<Item = &D::Entry> {
        self.changed
            .iter()
            .map(|(_, after)| after)
            .chain(&self.added)
    }

    fn apply(&self, ours: &mut Vec<D::Entry>) {
        let removed: HashSet<D::Key> = self.removed.iter().copied().collect();
        ours.retain(|entry| !removed.contains(&D::key(entry)));
        let mut places: HashMap<D::Key, usize> = ours
            .iter()
            .enumerate()
            .map(|(place, entry)| (D::key(entry), place))
            .collect();
        let changes = self
            .changed
            .iter()
            .map(|(before, after)| (Some(before), after))
            .chain(self.added.iter().map(|after| (None, after)));
        for (before, after) in changes {
            let held = places
                .get(&D::key(after))
                .and_then(|place| ours.get_mut(*place));
            match (held, before) {
                (Some(held), Some(before)) if held != before => {
                    *held = D::merge(before, held, after);
                }
                (Some(held), _) => *held = after.clone(),
                (None, _) => {
                    places.insert(D::key(after), ours.len());
                    ours.push(after.clone());
                }
            }
        }
    }
}
