//! A place of the log, and from where an instance may go on after a restart (FLEET-23).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

use super::engine::{Cursor, Logged};
use super::stamp::Origin;

/// Which batch lies at a place of the log. The place alone does not name it: two masters give the
/// same one to two batches of the same millisecond.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The place.
    pub at: Cursor,
    origin: Origin,
    seq: u64,
    hash: u64,
}

impl Place {
    /// Of a batch that was read.
    pub fn of(batch: &Logged) -> Self {
        let mut hasher = DefaultHasher::new();
        batch.sealed.hash(&mut hasher);
        Self {
            at: batch.at,
            origin: batch.origin.clone(),
            seq: batch.seq,
            hash: hasher.finish(),
        }
    }
}

/// Where an instance was when everything of its own was in the log, and it had read all of that: it
/// may go on from there after a restart, if its files hold what it knew then (FLEET-23).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Of the log, in hexadecimal.
    pub generation: String,
    /// Up to where it had read.
    pub read: Place,
    /// The last stamp that it had made or seen.
    pub last: (u64, u16),
}
