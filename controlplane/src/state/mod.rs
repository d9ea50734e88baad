//! The state files: one thread, the keeper, that alone touches the state directory (STATE-1..8).
//!
//! The control loop owns what is true in memory. It sends whole documents to be saved, and receives edits that were
//! found on disk as differences to be applied. A document that was sent before an edit was applied carries that fact
//! (`applied`), and the keeper applies the edit to it before writing, so neither side ever overwrites the other.

use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::clock::Clock;
use weir_shared::netblock::Netblock;
use weir_shared::table::ClientRow;
use weir_shared::units::Time;

/// What names a ban in the file and in memory. The ledger and the keeper see to it that no two bans share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BanKey {
    /// Its netblock.
    pub netblock: Netblock,
    /// When it was made; always filled in once an entry was read.
    pub ban_started: Time,
}

/// What was read at start.
#[derive(Debug, Default)]
pub struct StartState {
    /// bans.json
    pub bans: Vec<Ban>,
    /// clients.json
    pub clients: Vec<ClientRow>,
}

/// An edit found on disk, as the difference from what was last read or written.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Counts up from 1; the control loop says with each document which edits it contains.
    pub number: u64,
    /// Which entries changed.
    pub change: EditChange,
}

/// The entries of one file that an edit touched.
#[derive(Clone, Debug)]
pub enum EditChange {
    /// Of bans.json.
    Bans {
        /// Added or changed entries, whole.
        put: Vec<Ban>,
        /// Entries taken out: forgotten, they feed no escalation (STATE-3).
        removed: Vec<BanKey>,
    },
    /// Of clients.json.
    Clients {
        /// Added or changed entries, whole.
        put: Vec<ClientRow>,
        /// Entries taken out.
        removed: Vec<Client>,
    },
}

/// Told whether a document reached the disk: `true` once it is there after fsync and rename (STATE-2).
pub type Saved = Box<dyn FnOnce(bool) + Send>;

/// A document to be saved.
pub enum Save {
    /// bans.json, oldest first.
    Bans(Vec<Arc<Ban>>),
    /// clients.json, least recently seen first.
    Clients(Vec<ClientRow>),
}

/// What happened to one file since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileCounts {
    /// Writes that reached the disk.
    pub ok: u64,
    /// Writes that failed.
    pub error: u64,
    /// Edits taken in.
    pub taken: u64,
    /// Edits set aside as `<name>.bad`.
    pub bad: u64,
}

/// The counts of every file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateCounts {
    /// Of bans.json.
    pub bans: FileCounts,
    /// Of clients.json.
    pub clients: FileCounts,
}

/// The handle to the keeper's thread.
pub struct Keeper;

impl Keeper {
    /// Locks the directory, reads and checks every file, starts the thread and the watch.
    ///
    /// # Errors
    /// One sentence an operator can act on, with path, line, column and JSON pointer where there is one (STATE-6).
    pub fn open(_dir: &Path, _clock: Clock) -> Result<(Self, StartState), String> {
        Ok((Self, StartState::default()))
    }

    /// Edits found on disk, in order.
    pub fn edits(&self) -> &Receiver<Edit> {
        unimplemented!()
    }

    /// Queues a document that contains all edits up to `applied`; returns at once. A document that is still queued when
    /// a newer one of the same file arrives is replaced by it, and both are told the outcome.
    pub fn save(&self, _document: Save, _applied: u64, _saved: Option<Saved>) {}

    /// What happened to each file since the start, for the metrics.
    pub fn counts(&self) -> StateCounts {
        StateCounts::default()
    }
}
