//! What a fleet asks of its engine: the one trait that the link and the simulator implement.
//!
//! The engine is a meeting place, and never the record: whatever it loses, the instances have.

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
    /// Which one of that millisecond.
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

/// What the engine says first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Another one where the engine was emptied meanwhile.
    pub generation: u128,
    /// What this connection has said hello with.
    pub hello: u128,
    /// The number of the last batch of this origin in the log; 0 where there is none.
    pub last: u64,
    /// What the connection over which that batch came has said hello with. The number alone does
    /// not name it: of two masters each may have another batch of that number.
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
    /// Where.
    pub at: Cursor,
    /// Whose.
    pub origin: Origin,
    /// Which one of its.
    pub seq: u64,
    /// The events.
    pub sealed: Vec<u8>,
}

/// A snapshot that the engine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotAt {
    /// Up to where it holds the log.
    pub upto: Cursor,
    /// How many chunks it has.
    pub count: usize,
}

/// Another instance, as it has shown itself last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Who.
    pub origin: Origin,
    /// How long ago, by the engine's clock.
    pub age_ms: u64,
    /// What it says of itself.
    pub sealed: Vec<u8>,
}

/// Who is there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alive {
    /// The engine's clock, in milliseconds.
    pub time_ms: u64,
    /// Every instance that has shown itself of late, this one included.
    pub members: Vec<Beat>,
}

/// The answer to a question that was asked ahead.
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
        /// Who is there.
        alive: Alive,
        /// How long the answer took.
        round_trip: Duration,
    },
    /// To a part of [`Engine::snapshot_put`].
    Stored,
}

/// Why the engine gave no answer, in a sentence. What became of the question is not known.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// The engine, as one instance sees it. Every call ends within a bounded time, and may be repeated.
///
/// Batches and beats are asked ahead: their answers come in this order, by [`Engine::answer`].
/// Every other call wants all of them to have come.
pub trait Engine {
    /// Finds the fleet, or founds it with this generation. No other connection has the same: from
    /// now on the engine takes no batch of an earlier connection of this origin, which may still be
    /// on its way.
    ///
    /// # Errors
    /// [`Fault`], as with all others.
    fn hello(&mut self, me: &Origin, cursor: Cursor, found: u128) -> Result<Welcome, Fault>;

    /// Has a batch added to the log, if it is the one behind the last of this origin.
    ///
    /// # Errors
    /// [`Fault`]
    fn append(&mut self, me: &Origin, seq: u64, sealed: &[u8]) -> Result<(), Fault>;

    /// The answer to the oldest question that was asked ahead; none where it does not come within
    /// this time, or none is to come.
    ///
    /// # Errors
    /// [`Fault`]
    fn answer(&mut self, wait: Duration) -> Result<Option<Answer>, Fault>;

    /// Whether an answer is to come.
    fn is_asked(&self) -> bool;

    /// Up to so many batches behind this place. Where there is none, it waits so long for one.
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

    /// The next chunks of a snapshot, from this one on, at least one; none where that snapshot has
    /// gone meanwhile.
    ///
    /// # Errors
    /// [`Fault`]
    fn snapshot_chunks(
        &mut self,
        at: SnapshotAt,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault>;

    /// Puts a snapshot in place of the one before, in parts that are asked ahead: none of what else
    /// is asked ahead waits for all of it. What of the log lies before the last snapshot but one
    /// may go.
    ///
    /// # Errors
    /// [`Fault`]
    fn snapshot_put(&mut self, upto: Cursor, chunks: Vec<Vec<u8>>) -> Result<(), Fault>;

    /// Shows that this instance lives, and asks who else does.
    ///
    /// # Errors
    /// [`Fault`]
    fn beat(&mut self, me: &Origin, sealed: &[u8]) -> Result<(), Fault>;

    /// This instance goes.
    ///
    /// # Errors
    /// [`Fault`]
    fn leave(&mut self, me: &Origin) -> Result<(), Fault>;
}

/// Which counts are summed up (FLEET-20).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountKind {
    /// Those of instances that enforce.
    Enforced,
    /// Those of instances in observe mode: nobody else is to refuse for them.
    Observed,
}

impl CountKind {
    /// The beginning of the names of its sums.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforced => "c",
            Self::Observed => "o",
        }
    }

    /// What has the number of the last batch of each instance.
    pub const fn numbers(self) -> &'static str {
        match self {
            Self::Enforced => "q",
            Self::Observed => "oq",
        }
    }
}

/// The engine, for counts.
pub trait CountEngine {
    /// Adds a batch to the sums, if it is the one behind the last of this instance, and answers the
    /// sums. Where the engine has another generation than the one given, nothing is added; where it
    /// has none, it has `found` from then on. Without a batch it only tells.
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
