//! A batch's place in the log, and the point from which an instance resumes after a restart
//! (FLEET-23).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

use super::engine::{Cursor, Logged};
use super::stamp::Origin;

/// The batch at a place of the log. The place alone does not identify it: two masters may give the
/// same place to two batches of the same millisecond.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The place.
    pub at: Cursor,
    origin: Origin,
    seq: u64,
    hash: u64,
}

impl Place {
    /// The place of a batch that was read.
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

/// A place in the log at which everything of the instance was in the log, and read back. A restart
/// may resume from there, if its files hold what it knew then (FLEET-23).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The generation of the log, in hexadecimal.
    pub generation: String,
    /// The place up to which it had read.
    pub read: Place,
    /// The last stamp that it had made or seen.
    pub last: (u64, u16),
}
