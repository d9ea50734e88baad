//! The messages between the control loop and the thread of the link. All are bounded: one order of
//! each kind is under way, and a few batches; a thread that sends faster than the loop takes waits.

use super::beat::Seen;
use super::core::Batch;
use super::engine::{Cursor, Logged, Welcome};
use super::event::{Event, Rejected};
use super::stamp::Origin;

/// A batch that was opened and parsed.
pub(super) type Opened = Result<Vec<Result<Event, Rejected>>, Rejected>;

/// A message of the thread.
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
    /// The end of the log was reached.
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
    /// The answer to [`Order::Claim`]: until when another instance has it, by the engine's clock.
    Claimed { until_ms: Option<u64> },
    /// The engine's eviction policy.
    Policy(String),
    /// The engine gave no answer, or an unknown one: a sentence.
    Away(String),
}

/// An order of the control loop.
pub(super) enum Order {
    /// Join the fleet.
    Hello { cursor: Cursor },
    /// Read the log from here on, after the snapshot if that is wanted.
    ReadFrom {
        /// The number of this reading.
        reading: u64,
        cursor: Cursor,
        snapshot: bool,
    },
    /// Append a batch.
    Append(Batch),
    /// Send this beat, and ask for those of the others.
    Beat(Vec<u8>),
    /// Claim an alert, unless another instance has claimed it.
    Claim {
        name: String,
        /// Until when, by the engine's clock.
        until_ms: u64,
        length_ms: u64,
    },
    /// Confirm that the alert of this name was raised: the claim lasts until `until_ms`.
    Told {
        name: String,
        until_ms: u64,
        length_ms: u64,
    },
    /// Replace the snapshot.
    Snapshot { upto: Cursor, chunks: Vec<Vec<u8>> },
    /// Remove the beats of this instance and of these namesakes, and ask nothing more until
    /// [`Order::Work`].
    Rest(Vec<Origin>),
    /// Go on.
    Work,
}
