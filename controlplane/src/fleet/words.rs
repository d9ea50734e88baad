//! What the control loop and the thread of the link say to each other. All of it is bounded: of
//! each order one is under way, of batches a few, and who says more than the loop takes waits for
//! it.

use super::beat::Seen;
use super::core::Batch;
use super::engine::{Cursor, Logged, Welcome};
use super::event::{Event, Rejected};
use super::stamp::Origin;

/// A batch as it was opened and read.
pub(super) type Opened = Result<Vec<Result<Event, Rejected>>, Rejected>;

/// What the thread says.
pub(super) enum Said {
    /// A link is open: nothing was asked yet.
    Open,
    /// The answer to [`Order::Hello`], and how long it took.
    Welcome {
        welcome: Welcome,
        round_trip_ns: u64,
    },
    /// A chunk of the snapshot.
    Chunk { reading: u64, events: Opened },
    /// The snapshot was read: it holds the log up to here.
    SnapshotRead { reading: u64, upto: Cursor },
    /// The next batch of the log.
    Read {
        reading: u64,
        batch: Logged,
        events: Opened,
    },
    /// The log has nothing more.
    AtEnd { reading: u64 },
    /// The answer to [`Order::Append`].
    Appended { seq: u64, last: u64 },
    /// The answer to [`Order::Beat`].
    Beaten {
        /// The engine's clock.
        time_ms: u64,
        round_trip_ns: u64,
        others: Vec<Seen>,
    },
    /// The answer to [`Order::Claim`]: until when somebody else has it, by the engine's clock.
    Claimed { until_ms: Option<u64> },
    /// The engine's policy where its memory is full.
    Policy(String),
    /// The engine gave no answer, or none that is known; in a sentence.
    Away(String),
}

/// What the control loop wants.
pub(super) enum Order {
    /// Finds the fleet.
    Hello { cursor: Cursor },
    /// Reads the log from here on, behind the snapshot where that is wanted.
    ReadFrom {
        /// What is read from here on has this number.
        reading: u64,
        cursor: Cursor,
        snapshot: bool,
    },
    /// Adds a batch.
    Append(Batch),
    /// Says this of the instance, and asks for all others.
    Beat(Vec<u8>),
    /// Puts a name on an alert, unless another instance has.
    Claim {
        name: String,
        /// Until when, by the engine's clock.
        until_ms: u64,
        length_ms: u64,
    },
    /// The alert of this name was told: the name stands until then.
    Told {
        name: String,
        until_ms: u64,
        length_ms: u64,
    },
    /// Puts a snapshot in place of the one before.
    Snapshot { upto: Cursor, chunks: Vec<Vec<u8>> },
    /// Says that the instance goes, and these of its name with it, and asks nothing more until
    /// [`Order::Work`].
    Rest(Vec<Origin>),
    /// Goes on.
    Work,
}
