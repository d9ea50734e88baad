//! The lists of a fleet as one instance knows them (FLEET-18): of each entry the later change wins,
//! in whatever order changes come, and removals are remembered for a while.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_shared::units::Time;

use super::lift::{KEPT_MS, MAX_KEPT};
use super::stamp::Stamp;
use crate::rules::{Entry, ListKey, too_much};

/// The most entries of both lists: as many as lists.json may have.
const MAX_LISTED: usize = 20_000;
/// The most records, including those of removed entries.
const MAX_RECORDS: usize = 2 * MAX_LISTED;
/// The longest comment, in characters.
const MAX_COMMENT: usize = 500;
/// The most members of a newer version, and the longest of them.
const MAX_UNKNOWN: usize = 8;
const MAX_UNKNOWN_MEMBER: usize = 1024;

/// The error that no further record fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooMany;

/// The last change of a list entry.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ListRecord {
    /// Its key.
    pub key: ListKey,
    /// The entry; none if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
    /// The stamp of the change.
    pub stamp: Stamp,
    /// Members of a newer version: kept and passed on (FLEET-31).
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl ListRecord {
    /// A change that was just made, or what a file held.
    pub fn new(key: ListKey, entry: Option<Entry>, stamp: Stamp) -> Self {
        let unknown = BTreeMap::new();
        Self {
            key,
            entry,
            stamp,
            unknown,
        }
    }

    /// The rank: of two records the greater one wins.
    fn rank(&self) -> impl Ord + use<> {
        let text = serde_json::to_string(self).unwrap_or_default();
        (self.stamp.clone(), text)
    }

    /// Whether an edit could have made it (FLEET-24).
    pub fn fits(&self) -> bool {
        let unknown = self.unknown.values();
        let short = |value: &Value| value.to_string().len() <= MAX_UNKNOWN_MEMBER;
        let fits = |entry: &Entry| {
            let comment = entry.comment.as_deref().unwrap_or_default();
            comment.chars().count() <= MAX_COMMENT && too_much(self.key.netblock, entry).is_none()
        };
        self.entry.as_ref().is_none_or(fits)
            && self.unknown.len() <= MAX_UNKNOWN
            && unknown.into_iter().all(short)
    }

    fn end_ms(&self) -> Option<u64> {
        self.entry.as_ref()?.until.map(|Time(until)| until)
    }

    /// FNV-1a of the entry; 0 if it was removed.
    fn hash(&self) -> u64 {
        let Some(entry) = &self.entry else { return 0 };
        let text = serde_json::to_vec(&(self.key, entry)).unwrap_or_default();
        text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// All records.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    records: BTreeMap<ListKey, ListRecord>,
    /// The number of entries that are not removed.
    live: usize,
    sum: u64,
    /// Entries by their end.
    ends: BTreeSet<(u64, ListKey)>,
    changes: u64,
}

impl Lists {
    /// Joins a record. Returns whether it is news.
    pub(super) fn join(&mut self, said: ListRecord) -> Result<bool, TooMany> {
        match self.records.get(&said.key) {
            Some(held) if held.rank() >= said.rank() => return Ok(false),
            Some(held) if held.entry.is_some() || said.entry.is_none() => {}
            None if self.records.len() >= MAX_RECORDS => return Err(TooMany),
            _ if said.entry.is_some() && self.live >= MAX_LISTED => return Err(TooMany),
            _ => {}
        }
        self.remove(said.key);
        self.live += usize::from(said.entry.is_some());
        self.sum = self.sum.wrapping_add(said.hash());
        self.ends.extend(said.end_ms().map(|end| (end, said.key)));
        self.records.insert(said.key, said);
        Ok(true)
    }

    fn remove(&mut self, key: ListKey) {
        self.changes += 1;
        if let Some(held) = self.records.remove(&key) {
            self.live -= usize::from(held.entry.is_some());
            self.sum = self.sum.wrapping_sub(held.hash());
            if let Some(end) = held.end_ms() {
                self.ends.remove(&(end, key));
            }
        }
    }

    /// The number of changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Removes a record without a trace.
    pub(super) fn drop_record(&mut self, key: ListKey) {
        self.remove(key);
    }

    /// The record of an entry.
    pub(super) fn record(&self, key: ListKey) -> Option<&ListRecord> {
        self.records.get(&key)
    }

    /// All records.
    pub(super) fn records(&self) -> impl Iterator<Item = &ListRecord> {
        self.records.values()
    }

    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// A digest of the entries in force at this time.
    pub(super) fn digest(&self, now_ms: u64) -> u64 {
        let past = self.ends.iter().take_while(|(end, _)| *end <= now_ms);
        past.fold(self.sum, |sum, (_, key)| {
            sum.wrapping_sub(self.records.get(key).map_or(0, ListRecord::hash))
        })
    }

    /// Removes records of removed or ended entries after [`KEPT_MS`], and the oldest beyond
    /// [`MAX_KEPT`]. Returns whether there were any.
    pub(super) fn forget_old(&mut self, now_ms: u64) -> bool {
        let since = now_ms.saturating_sub(KEPT_MS);
        let mut gone: Vec<(u64, Stamp, ListKey)> = Vec::new();
        for record in self.records.values() {
            let end = match &record.entry {
                None => record.stamp.ms(),
                Some(entry) if entry.has_ended(now_ms) => {
                    record.stamp.ms().max(record.end_ms().unwrap_or(u64::MAX))
                }
                Some(_) => continue,
            };
            gone.push((end, record.stamp.clone(), record.key));
        }
        gone.sort_unstable();
        let beyond = gone.len().saturating_sub(MAX_KEPT);
        let mut any = false;
        for (place, (end, _, key)) in gone.into_iter().enumerate() {
            if place < beyond || end < since {
                self.remove(key);
                any = true;
            }
        }
        any
    }
}
