//! Base, edit, difference (STATE-4). Pure: no files, no clock.
//!
//! The *base* is what a file held when it was last read or written. An edit is the copy that an
//! editor read at some moment, changed, and saved. The file's `written` member says of which moment
//! the copy is, so three things can be told apart entry by entry:
//!
//! - What the editor saw and changed or took out is the edit.
//! - What first stood in the file after that moment the editor never saw: it is kept though the
//!   copy lacks it.
//! - What was changed after that moment the editor saw as it was before: [`Document::refresh`] says
//!   what of the copy still counts. What was dropped after that moment does not come back.
//!
//! A copy without `written` is taken to be of the file as it was last read or written. Of two edits
//! between two writes, which nothing tells apart, the last one counts.
//!
//! Differences go to the owner, which puts them into memory; the next document of memory holds
//! them, and becomes the base when it is written.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};
use weir_shared::units::Time;

use super::document::Document;

/// Entries that memory dropped and that are remembered, so that a copy from before does not bring
/// them back. What was dropped before the last 65,536 comes back with a copy that old.
const MAX_DROPPED: usize = 65_536;

/// The entries of an edit that its log line names.
const MAX_NAMED: usize = 10;

/// As many of them are known after a restart.
const MAX_DROPPED_KEPT: usize = 4096;

/// What an edit did to one entry.
#[derive(Clone)]
pub(crate) enum Change<D: Document> {
    /// Added, or changed from `before`.
    Put {
        before: Option<D::Entry>,
        after: D::Entry,
    },
    /// Taken out.
    Remove(D::Key),
}

impl<D: Document> Change<D> {
    fn key(&self) -> D::Key {
        match self {
            Self::Put { after, .. } => D::key(after),
            Self::Remove(key) => *key,
        }
    }

    /// What was done to the entry.
    fn verb(&self) -> &'static str {
        match self {
            Self::Put { before: None, .. } => ADDED,
            Self::Put {
                before: Some(before),
                after,
            } if D::lifts(before, after) => LIFTED,
            Self::Put { .. } => CHANGED,
            Self::Remove(_) => REMOVED,
        }
    }
}

const ADDED: &str = "added";
const CHANGED: &str = "changed";
const LIFTED: &str = "lifted";
const REMOVED: &str = "removed";

/// What an edit did to a file.
pub(super) struct Diff<D: Document> {
    pub(super) changes: Vec<Change<D>>,
    /// Entries that the editor did not see, or not as they are: what was saved lacks them, and
    /// memory still has them.
    pub(super) kept: usize,
}

/// What one file holds, and since when.
pub(super) struct Base<D: Document> {
    entries: Vec<D::Entry>,
    /// The moment of the last write. Each is later than the one before, whatever the clock does.
    written: Time,
    /// Of entries that are younger than the start; the others are of `read_at_start`.
    ages: HashMap<D::Key, Age>,
    read_at_start: Time,
    dropped: Dropped<D>,
    /// The file was lost with its directory: nobody took out what the next one lacks.
    lost: bool,
}

/// Moments of writes, by their `written`.
#[derive(Clone, Copy)]
struct Age {
    /// The first that had the entry.
    stood: Time,
    /// The last in which it had changed.
    changed: Time,
}

impl Age {
    /// Of an entry that first stands at this moment.
    const fn new(moment: Time) -> Self {
        Self {
            stood: moment,
            changed: moment,
        }
    }
}

/// Entries that were dropped, with the moment of the first write without them. At most
/// [`MAX_DROPPED`].
struct Dropped<D: Document> {
    at: HashMap<D::Key, Time>,
    order: VecDeque<(D::Key, Time)>,
}

/// What a base knows of its entries, for the next start.
#[derive(Serialize, Deserialize)]
pub(super) struct History<K> {
    read_at_start: u64,
    /// Of the entry at this position: when it first stood, and when it last changed.
    ages: Vec<(usize, u64, u64)>,
    /// The newest of those that were dropped, at most [`MAX_DROPPED_KEPT`].
    dropped: Vec<(K, u64)>,
    /// The last line of the journal that they hold (STATE-10); none in what a version without a
    /// journal has written.
    #[serde(default)]
    pub(super) journal: Option<u64>,
}

impl<D: Document> Base<D> {
    /// A file as it was read at the start; `written` is what it says of itself, if anything.
    pub(super) fn new(mut entries: Vec<D::Entry>, written: Option<Time>) -> Self {
        let written = written.unwrap_or_default();
        // How many there are was not known: half of the room may be empty.
        entries.shrink_to_fit();
        Self {
            entries,
            written,
            ages: HashMap::new(),
            read_at_start: written,
            dropped: Dropped {
                at: HashMap::new(),
                order: VecDeque::new(),
            },
            lost: false,
        }
    }

    /// What was last read or written.
    pub(super) fn entries(&self) -> &[D::Entry] {
        &self.entries
    }

    /// The moment of the last write.
    pub(super) fn written(&self) -> Time {
        self.written
    }

    /// The moment of a write that is made now.
    pub(super) fn next_write(&self, now: Time) -> Time {
        now.max(Time(self.written.0.saturating_add(1)))
    }

    /// The file was lost together with its directory.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Completes an edit as it was found and takes it in ([`Base::take`]).
    pub(super) fn take_found(
        &mut self,
        found: Vec<D::Entry>,
        read: Option<Time>,
        now: Time,
    ) -> Diff<D> {
        let theirs = D::complete(found, &self.entries, now);
        self.take(theirs, read)
    }

    /// Takes in an edit whose copy is of the moment `read`, of the last one if it does not say.
    /// What it changed is now in the base.
    fn take(&mut self, theirs: Vec<D::Entry>, read: Option<Time>) -> Diff<D> {
        let was_lost = std::mem::take(&mut self.lost);
        let read = (!was_lost).then(|| read.unwrap_or(Time(u64::MAX)));
        // An edit of an older copy is younger than the file that it replaced.
        let moment = match read {
            Some(read) if read >= self.written => self.written,
            _ => Time(self.written.0.saturating_add(1)),
        };
        let mut diff = Diff {
            changes: Vec::new(),
            kept: 0,
        };
        let order: Vec<D::Key> = self.entries.iter().map(D::key).collect();
        let mut held: HashMap<D::Key, D::Entry> =
            order.iter().copied().zip(self.entries.drain(..)).collect();
        for theirs in theirs {
            match held.remove(&D::key(&theirs)) {
                None => self.take_new(theirs, read, moment, &mut diff),
                Some(before) => self.take_held(before, theirs, read, moment, &mut diff),
            }
        }
        // In the order of the base, so that two runs report the same.
        for key in order {
            let Some(before) = held.remove(&key) else {
                continue;
            };
            if Some(self.age(key).stood) > read {
                diff.kept += 1;
                self.entries.push(before);
            } else {
                diff.changes.push(Change::Remove(key));
                self.drop_entry(key, moment);
            }
        }
        diff
    }

    /// An entry of the edit that the base does not hold: new, unless it was dropped after `read`.
    fn take_new(&mut self, theirs: D::Entry, read: Option<Time>, moment: Time, diff: &mut Diff<D>) {
        let key = D::key(&theirs);
        if self.dropped.at.get(&key).is_some_and(|at| Some(*at) > read) {
            diff.kept += 1;
            return;
        }
        self.ages.insert(key, Age::new(moment));
        self.dropped.at.remove(&key);
        diff.put(None, &theirs);
        self.entries.push(theirs);
    }

    /// An entry of the edit that the base holds as `before`.
    fn take_held(
        &mut self,
        before: D::Entry,
        theirs: D::Entry,
        read: Option<Time>,
        moment: Time,
        diff: &mut Diff<D>,
    ) {
        let key = D::key(&theirs);
        let after = if Some(self.age(key).changed) > read {
            let fresh = D::refresh(&before, &theirs);
            diff.kept += usize::from(fresh != theirs);
            fresh
        } else {
            theirs
        };
        if after != before {
            let changed = moment;
            let age = self.age(key);
            self.ages.insert(key, Age { changed, ..age });
            diff.put(Some(before), &after);
        }
        self.entries.push(after);
    }

    /// This document of memory was written at this moment.
    pub(super) fn wrote(&mut self, entries: Vec<D::Entry>, at: Time) {
        let (ages, gone) = self.compare(&entries, at);
        for (entry, age) in entries.iter().zip(ages) {
            let key = D::key(entry);
            self.dropped.at.remove(&key);
            if let Some(age) = age {
                self.ages.insert(key, age);
            }
        }
        for key in gone {
            self.drop_entry(key, at);
        }
        self.entries = entries;
        self.written = at;
        self.lost = false;
    }

    /// The ages of these entries once they are written, none where it is that of all; and the
    /// entries that go with it.
    fn compare(&self, entries: &[D::Entry], at: Time) -> (Vec<Option<Age>>, Vec<D::Key>) {
        let held = self.entries.iter().map(|entry| (D::key(entry), entry));
        let mut held: HashMap<D::Key, &D::Entry> = held.collect();
        let mut age = |entry: &D::Entry| {
            let key = D::key(entry);
            match held.remove(&key) {
                Some(before) if before == entry => self.ages.get(&key).copied(),
                Some(_) => Some(Age {
                    changed: at,
                    ..self.age(key)
                }),
                None => Some(Age::new(at)),
            }
        };
        let ages = entries.iter().map(&mut age).collect();
        (ages, held.into_keys().collect())
    }

    /// What is known of these entries once they are written at this moment.
    pub(super) fn history(&self, entries: &[D::Entry], at: Time) -> History<D::Key> {
        let (ages, gone) = self.compare(entries, at);
        let ages = ages.iter().enumerate().filter_map(|(position, age)| {
            let Age { stood, changed } = (*age)?;
            Some((position, stood.0, changed.0))
        });
        let written: HashSet<D::Key> = entries.iter().map(D::key).collect();
        let dropped = self.dropped.order.iter().rev();
        let still = |(key, dropped_at): &&(D::Key, Time)| {
            self.dropped.at.get(key) == Some(dropped_at) && !written.contains(key)
        };
        let mut dropped: Vec<(D::Key, u64)> = (gone.into_iter().map(|key| (key, at.0)))
            .chain(dropped.filter(still).map(|(key, at)| (*key, at.0)))
            .take(MAX_DROPPED_KEPT)
            .collect();
        dropped.reverse();
        History {
            read_at_start: self.read_at_start.0,
            ages: ages.collect(),
            dropped,
            journal: None,
        }
    }

    /// The base of a file that stands as it was written, with what was known of it then.
    pub(super) fn remembered(
        entries: Vec<D::Entry>,
        written: Option<Time>,
        history: History<D::Key>,
    ) -> Self {
        let mut base = Self::new(entries, written);
        base.read_at_start = Time(history.read_at_start);
        for (position, stood, changed) in history.ages {
            if let Some(entry) = base.entries.get(position) {
                let (stood, changed) = (Time(stood), Time(changed));
                base.ages.insert(D::key(entry), Age { stood, changed });
            }
        }
        for (key, at) in history.dropped {
            base.drop_entry(key, Time(at));
        }
        base
    }

    fn age(&self, key: D::Key) -> Age {
        let age = self.ages.get(&key).copied();
        age.unwrap_or(Age::new(self.read_at_start))
    }

    fn drop_entry(&mut self, key: D::Key, at: Time) {
        self.ages.remove(&key);
        self.dropped.at.insert(key, at);
        self.dropped.order.push_back((key, at));
        while self.dropped.order.len() > MAX_DROPPED {
            if let Some((key, at)) = self.dropped.order.pop_front()
                && self.dropped.at.get(&key) == Some(&at)
            {
                self.dropped.at.remove(&key);
            }
        }
    }
}

impl<D: Document> Diff<D> {
    fn put(&mut self, before: Option<D::Entry>, after: &D::Entry) {
        let after = after.clone();
        self.changes.push(Change::Put { before, after });
    }

    /// "3 added, 1 lifted, 2 removed" (STATE-3).
    pub(super) fn summary(&self) -> String {
        let count = |verb| {
            let done = self.changes.iter().filter(|change| change.verb() == verb);
            (done.count(), verb)
        };
        let kept = (self.kept, "kept as they are newer than the edited copy");
        let parts: Vec<String> = ([ADDED, CHANGED, LIFTED, REMOVED].map(count).into_iter())
            .chain([kept])
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if parts.is_empty() {
            "no entry changed".to_owned()
        } else {
            parts.join(", ")
        }
    }

    /// The first entries of it, each with what was done (TELL-4).
    pub(super) fn named(&self) -> String {
        let mut named: Vec<String> = (self.changes.iter().take(MAX_NAMED))
            .map(|change| format!("{} {}", change.key(), change.verb()))
            .collect();
        if self.changes.len() > MAX_NAMED {
            named.push(format!("{} more", self.changes.len() - MAX_NAMED));
        }
        named.join(", ")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.kept == 0
    }
}

#[cfg(test)]
mod tests;
