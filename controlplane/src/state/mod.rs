//! The state files: one thread, the keeper, that alone touches the state directory (STATE-1..8).
//!
//! The control loop owns what is true in memory. It sends whole documents to be saved, and receives edits that were
//! found on disk as differences to be applied. A document that was sent before an edit was applied carries that fact
//! (`applied`), and the keeper applies the edit to it before writing, so neither side ever overwrites the other.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::clock::Clock;
use weir_shared::netblock::Netblock;
use weir_shared::table::ClientRow;
use weir_shared::units::Time;

mod bans;
mod clients;
mod document;
mod keeper;
mod merge;
mod store;
mod watch;

pub use clients::client_json;

use bans::Bans;
use clients::Clients;
use keeper::{Common, Held, Job, Shared, Thread};
use store::Store;
use watch::Watch;

/// Edits that wait for the control loop; it takes them every few milliseconds, an administrator saves every few seconds.
const EDITS: usize = 64;

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
    /// The changed bans as they stood before the edit; see [`Edit::merged`].
    pub before: Vec<Arc<Ban>>,
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

/// What the keeper did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateCounts {
    /// One row a file.
    pub files: [FileCounts; 2],
}

/// Counts of one file, for `waf_state_writes_total` and `waf_state_edits_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCounts {
    /// The file's name.
    pub file: &'static str,
    /// Writes that reached the disk.
    pub writes_ok: u64,
    /// Tries that failed.
    pub writes_error: u64,
    /// Edits taken in.
    pub edits_taken: u64,
    /// Edits set aside.
    pub edits_bad: u64,
}

/// The handle to the keeper's thread. Dropping it writes what is queued and waits for the thread, as [`Keeper::stop`].
pub struct Keeper {
    shared: Arc<Shared>,
    edits: Receiver<Edit>,
    wake: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Locks the directory, reads and checks every file, starts the thread and the watch.
    ///
    /// # Errors
    /// One sentence an operator can act on, with path, line, column and JSON pointer where there is one (STATE-6).
    pub fn open(dir: &Path, clock: Clock) -> Result<(Self, StartState), String> {
        Self::with_store(Store::open(dir)?, clock)
    }

    fn with_store(store: Store, clock: Clock) -> Result<(Self, StartState), String> {
        let now = Time(clock.now().wall_ms);
        let bans = Held::<Bans>::open(&store, now)?;
        let clients = Held::<Clients>::open(&store, now)?;
        let start = StartState {
            bans: bans.entries().iter().map(|ban| Ban::clone(ban)).collect(),
            clients: clients::rows(clients.entries()),
        };
        let shared = Arc::new(Shared::default());
        let (edits_out, edits) = bounded(EDITS);
        let (wake, woken) = bounded(1);
        let thread = Thread {
            watch: Watch::start(&store.path(""), wake.clone()),
            common: Common {
                store,
                clock,
                edits: edits_out,
                shared: Arc::clone(&shared),
                number: 0,
                stopping: false,
            },
            bans,
            clients,
            wake: woken,
        };
        let thread = std::thread::Builder::new()
            .name("weir-state".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| format!("the thread of the state files cannot be started: {error}"))?;
        Ok((
            Self {
                shared,
                edits,
                wake,
                thread: Some(thread),
            },
            start,
        ))
    }

    /// Edits found on disk, in order. They are few; while nobody takes them, further ones wait on disk.
    pub fn edits(&self) -> &Receiver<Edit> {
        &self.edits
    }

    /// Queues a document that contains all edits up to `applied`; returns at once. A document that is still queued when
    /// a newer one of the same file arrives is replaced by it, and both are told the outcome.
    pub fn save(&self, document: Save, applied: u64, saved: Option<Saved>) {
        let saved = saved.into_iter().collect();
        {
            let mut queue = self.shared.queue();
            match document {
                Save::Bans(document) => {
                    let job = Job {
                        document,
                        applied,
                        saved,
                    };
                    queue.bans = Some(job.replacing(queue.bans.take()));
                }
                Save::Clients(document) => {
                    let job = Job {
                        document,
                        applied,
                        saved,
                    };
                    queue.clients = Some(job.replacing(queue.clients.take()));
                }
            }
        }
        self.wake();
    }

    /// What was written and taken in so far.
    pub fn counts(&self) -> StateCounts {
        self.shared.counts()
    }

    /// Writes what is queued, then ends the thread and gives the lock back. A write that fails now is not tried again.
    pub fn stop(self) {
        drop(self);
    }

    fn wake(&self) {
        // Full means that the keeper is to wake already.
        let _ = self.wake.try_send(());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.queue().stop = true;
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the state files ended by a panic");
        }
    }
}

impl Edit {
    /// What becomes of a ban that memory holds as `ours` and that this edit puts as `theirs`: members that the edit
    /// changed are as in the edit, the others as in memory, so that an edited reason does not undo a lift (STATE-4).
    pub fn merged(&self, ours: &Ban, theirs: &Ban) -> Ban {
        let key = BanKey::of(theirs);
        match self.before.iter().find(|before| BanKey::of(before) == key) {
            Some(before) if **before != *ours => bans::merge(before, ours, theirs),
            Some(_) | None => theirs.clone(),
        }
    }
}
