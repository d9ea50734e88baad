//! The interface of a fleet to its engine: the trait that the link and the simulator implement.
//!
//! The engine only exchanges data, and is never the record: the instances have everything that it
//! may lose.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::counts::{Batch, Merged};
use super::stamp::Origin;

/// A place in the log: the id of an entry of the stream.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Cursor {
    /// Milliseconds of the engine's clock.
    pub ms: u64,
    /// The number within that millisecond.
    pub count: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.count)
    }
}

impl FromStr for Cursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().ok();
        let cursor = text.split_once('-').and_then(|(ms, count)| {
            let (ms, count) = (number(ms)?, number(count)?);
            Some(Self { ms, count })
        });
        cursor.ok_or_else(|| format!("{text:?} is no place in a log: expected MS-COUNT"))
    }
}

/// The engine's answer to hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Changes if the engine was emptied meanwhile.
    pub generation: u128,
    /// The number of this connection's hello.
    pub hello: u128,
    /// The number of the last batch of this origin in the log; 0 if there is none.
    pub last: u64,
    /// The number of the hello of the connection over which that batch came. The batch's number
    /// alone does not identify it: two masters may have different batches of that number.
    pub last_by: Option<u128>,
    /// The batch that the log has at the cursor, if it has one there.
    pub at_cursor: Option<Logged>,
    /// Whether nothing was ever cut off the beginning of the log.
    pub is_whole: bool,
    /// The engine's clock.
    pub time_ms: u64,
}

/// A batch as it stands in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// Its place.
    pub at: Cursor,
    /// The instance that wrote it.
    pub origin: Origin,
    /// Its number among the batches of that instance.
    pub seq: u64,
    /// The sealed events.
    pub sealed: Vec<u8>,
}

/// A snapshot that the engine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotAt {
    /// The place up to which it covers the log.
    pub upto: Cursor,
    /// The number of its chunks.
    pub count: usize,
}

/// The last beat of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Who.
    pub origin: Origin,
    /// Its age by the engine's clock.
    pub age_ms: u64,
    /// The sealed beat.
    pub sealed: Vec<u8>,
}

/// The instances with recent beats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alive {
    /// The engine's clock, in milliseconds.
    pub time_ms: u64,
    /// Every instance with a recent beat, this one included.
    pub members: Vec<Beat>,
}

/// The answer to a pipelined question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To [`Engine::append`].
    Appended {
        /// The number of the batch.
        seq: u64,
        /// The number of the last one of this origin now.
        last: u64,
    },
    /// To [`Engine::beat`].
    Beaten {
        /// The instances with recent beats.
        alive: Alive,
        /// How long the answer took.
        round_trip: Duration,
    },
    /// To a part of [`Engine::snapshot_put`].
    Stored,
}

/// Why the engine gave no answer, in a sentence. It may have obeyed the question or not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// The engine. Every call ends within a bounded time, and may be repeated.
///
/// Batches and beats are pipelined: [`Engine::answer`] returns their answers in order. Every other
/// call requires that all of them were answered.
pub trait Engine {
    /// Joins the fleet, or founds it with this generation, which is unique to this connection. From
    /// now on the engine refuses batches of earlier connections of this origin that may still be on
    /// their way.
    ///
    /// # Errors
    /// [`Fault`], as with all others.
    fn hello(&mut self, me: &Origin, cursor: Cursor, found: u128) -> Result<Welcome, Fault>;

    /// Asks to append a batch to the log, which succeeds if it is the one after the last of this
    /// origin.
    ///
    /// # Errors
    /// [`Fault`]
    fn append(&mut self, me: &Origin, seq: u64, sealed: &[u8]) -> Result<(), Fault>;

    /// The answer to the oldest pipelined question; none if it does not come within `wait`, or if
    /// no question is open.
    ///
    /// # Errors
    /// [`Fault`]
    fn answer(&mut self, wait: Duration) -> Result<Option<Answer>, Fault>;

    /// Whether a question is open.
    fn is_asked(&self) -> bool;

    /// Reads batches after this place, at most so many. If there is none, waits for one.
    ///
    /// # Errors
    /// [`Fault`]
    fn read_after(
        &mut self,
        cursor: Cursor,
        most: usize,
        wait: Duration,
    ) -> Result<Vec<Logged>, Fault>;

    /// The snapshot, if there is one.
    ///
    /// # Errors
    /// [`Fault`]
    fn snapshot(&mut self) -> Result<Option<SnapshotAt>, Fault>;

    /// The next chunks of a snapshot, from this one on, at least one; none if that snapshot is gone
    /// meanwhile.
    ///
    /// # Errors
    /// [`Fault`]
    fn snapshot_chunks(
        &mut self,
        at: SnapshotAt,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault>;

    /// Replaces the snapshot, in pipelined parts, so that other pipelined questions do not wait for
    /// all of it. The log before the second-newest snapshot may be removed.
    ///
    /// # Errors
    /// [`Fault`]
    fn snapshot_put(&mut self, upto: Cursor, chunks: Vec<Vec<u8>>) -> Result<(), Fault>;

    /// Sends this instance's beat, and asks for those of the others.
    ///
    /// # Errors
    /// [`Fault`]
    fn beat(&mut self, me: &Origin, sealed: &[u8]) -> Result<(), Fault>;

    /// Removes this instance's beat.
    ///
    /// # Errors
    /// [`Fault`]
    fn leave(&mut self, me: &Origin) -> Result<(), Fault>;
}

/// The counts that are summed together (FLEET-20).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountKind {
    /// Counts of instances in enforce mode.
    Enforced,
    /// Counts of instances in observe mode: they must not make others refuse.
    Observed,
}

impl CountKind {
    /// The prefix of the names of its sums.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforced => "c",
            Self::Observed => "o",
        }
    }

    /// The name of the key with the number of each instance's last batch.
    pub const fn numbers(self) -> &'static str {
        match self {
            Self::Enforced => "q",
            Self::Observed => "oq",
        }
    }
}

/// The engine, for counts.
pub trait CountEngine {
    /// Adds a batch to the sums, if it is the one after this instance's last, and returns the sums.
    /// Nothing is added if the engine's generation differs from the given one; an engine without a
    /// generation takes `found`. Without a batch, only the generation and the last number are
    /// returned.
    ///
    /// # Errors
    /// [`Fault`]
    fn merge(
        &mut self,
        me: &Origin,
        kind: CountKind,
        generation: &str,
        found: &str,
        batch: Option<&Batch>,
    ) -> Result<Merged, Fault>;
}
