//! What the owner of a state file says about it: the names in it, the form of an entry, and the
//! rules that only its owner knows. The rest of this folder works for any such file.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserializer, Serialize};
use weir_shared::units::Time;

use super::schema::{FileSchema, LazySchema, Unknown};

/// An entry as the file holds it.
pub(crate) trait Entry: Clone + PartialEq + Serialize + Send + Sync + 'static {
    /// Members of the entry in the file that this version does not know, empty unless the form of
    /// the entry itself holds them.
    fn unknown(&self) -> &Unknown {
        &None
    }

    /// Keeps them.
    fn keep(&mut self, _: Unknown) {}
}

/// What memory holds as an entry, with the members of the file's entry that memory does not know.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row<T> {
    pub(crate) row: T,
    pub(crate) unknown: Unknown,
}

impl<T> From<T> for Row<T> {
    fn from(row: T) -> Self {
        Self { row, unknown: None }
    }
}

impl<T: Clone + PartialEq + Send + Sync + 'static> Entry for Row<T>
where
    Self: Serialize,
{
    fn unknown(&self) -> &Unknown {
        &self.unknown
    }

    fn keep(&mut self, unknown: Unknown) {
        self.unknown = unknown;
    }
}

/// The schema of a file, to be compiled: what [`Document::schema`] keeps.
pub(crate) const fn schema<D: Document>() -> LazySchema {
    LazySchema::new(|| FileSchema::compile(D::SCHEMA, lists::<D>()))
}

/// What one state file holds. One implementation a file, at its owner.
pub(crate) trait Document: Sized + 'static {
    /// The file's name.
    const FILE: &'static str;
    /// The text of its JSON Schema.
    const SCHEMA: &'static str;
    /// The member that holds the entries.
    const LIST: &'static str;
    /// Further members that hold entries, in the order of the file.
    const MORE: &'static [&'static str] = &[];
    /// One entry.
    type Entry: Entry;
    /// What names an entry in the file and in memory.
    type Key: Copy
        + Eq
        + Hash
        + Ord
        + fmt::Debug
        + fmt::Display
        + Send
        + Sync
        + Serialize
        + DeserializeOwned;

    /// Whether somebody is told that an entry is on disk: what was last written is then kept under
    /// a second name as well, so that no copy saved over the file takes it away (STATE-2). It
    /// doubles the bytes of a write. Other files are counts and answers, of which a kill may lose
    /// the last minute anyway.
    const KEEPS_BASE: bool = false;

    /// Whether a file that is gone while the service runs takes nothing out of memory (STATE-11).
    const REMOVED_IS_NO_EDIT: bool = false;

    /// Its JSON Schema, compiled once in a process: one that takes over compiles it while the one
    /// before still serves (RESTART-1).
    fn schema() -> &'static LazySchema;

    /// The member that holds this entry.
    fn list(_: &Self::Entry) -> &'static str {
        Self::LIST
    }

    /// Reads an entry of the list of this name.
    fn read<'de, T: Deserializer<'de>>(list: &str, entry: T) -> Result<Self::Entry, T::Error>;

    /// The entry's name.
    fn key(entry: &Self::Entry) -> Self::Key;

    /// Refuses an entry that parses but cannot stand beside those `seen` before it.
    fn check(entry: &Self::Entry, seen: &mut HashSet<Self::Key>) -> Result<(), String>;

    /// Refuses an edit with more entries than their owner can hold: `most`, of
    /// [`StateFile::set_most`](super::file::StateFile::set_most).
    fn check_all(_: &[Self::Entry], _most: usize, _now: Time) -> Result<(), String> {
        Ok(())
    }

    /// Completes what was read: members left out, keys made unique, bounds kept. `base` is what was
    /// last read or written, so that an entry which is read twice is completed the same way.
    fn complete(entries: Vec<Self::Entry>, base: &[Self::Entry], now: Time) -> Vec<Self::Entry>;

    /// What an edit means by an entry of which its copy is older than what memory has written
    /// since. Memory's entry stands with the edit's unknown members, unless an owner knows better.
    fn refresh(held: &Self::Entry, stale: &Self::Entry) -> Self::Entry {
        let mut fresh = held.clone();
        fresh.keep(stale.unknown().clone());
        fresh
    }

    /// Whether the change from `before` to `after` lifts the entry.
    fn lifts(_before: &Self::Entry, _after: &Self::Entry) -> bool {
        false
    }

    /// Puts the entries into the order of the file.
    fn sort(entries: &mut [Self::Entry]);
}

/// The members that hold entries.
pub(super) fn lists<D: Document>() -> impl Iterator<Item = &'static str> {
    std::iter::once(D::LIST).chain(D::MORE.iter().copied())
}

/// Refuses a second entry of one name. `what` is the noun for it.
///
/// # Errors
/// One sentence.
pub(crate) fn refuse_duplicate<K: Eq + Hash + Copy + fmt::Display>(
    key: K,
    what: &str,
    seen: &mut HashSet<K>,
) -> Result<(), String> {
    if seen.insert(key) {
        Ok(())
    } else {
        Err(format!("duplicate {what} {key}"))
    }
}

/// Drops what is over the bound, smallest first, with a warning. `what` is the plural of an entry
/// and the order of dropping.
pub(crate) fn drop_over<D: Document, K: Ord>(
    entries: &mut Vec<D::Entry>,
    most: usize,
    (what, order): (&str, &str),
    by: impl FnMut(&D::Entry) -> K,
) {
    let Some(over) = entries.len().checked_sub(most).filter(|over| *over > 0) else {
        return;
    };
    tracing::warn!(
        file = D::FILE,
        "{over} {what} over the bound of {most} were dropped, {order} first"
    );
    entries.sort_by_key(by);
    entries.drain(..over);
}
