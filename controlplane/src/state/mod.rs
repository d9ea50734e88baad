//! State files as a library: JSON files in one directory that belong to this service and that
//! people edit while it runs (STATE-1..8). One thread alone touches the directory.
//!
//! It knows no file: each owner says with a [`Document`] what its file holds, keeps what is true in
//! memory, and decides what an edit means to it. `file.rs` says how the two sides agree, `look.rs`
//! and `write.rs` what the thread does with a file, `diff.rs` what an edit is when an editor had an
//! older copy open, `commit.rs` how bytes reach the disk whole.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_shared::clock::Clock;
use weir_shared::units::Time;

mod agreed;
mod commit;
mod common;
mod diff;
mod disk;
mod displaced;
pub(crate) mod document;
mod error;
pub(crate) mod fault;
mod file;
pub(crate) mod journal;
mod kept_base;
pub(crate) mod known;
mod lock;
mod look;
mod on_disk;
mod pending;
pub(crate) mod schema;
mod start;
pub(crate) mod stat;
mod step;
mod store;
pub(crate) mod text;
mod turn;
mod watch;
mod write;

pub(crate) use diff::Change;
pub use error::StateError;
pub use file::FileCounts;
pub(crate) use file::{Edit, Failure, Saved, Stand, StateFile};
#[cfg(test)]
pub(crate) use file::{Job, testing::TestFile};
pub(crate) use journal::Standing;
pub use lock::{StateLock, may_enter};
pub(crate) use start::Read;
pub(crate) use store::create;

use common::{AnyFile, Common};
use disk::DiskFile;
use document::Document;
use journal::{Found, Journal};
use known::Known;
use store::Store;
use watch::{Directory, POLL, TICK};

use crate::faults::Faults;
use crate::watching::{FileThread, Subject};

/// At a stop, how long a half-saved edit may hold the last write up.
const STOP_WAIT: Duration = Duration::from_secs(3);

/// The directory, locked, and the files that were read so far.
pub(crate) struct StateDir {
    store: Store,
    clock: Clock,
    wake: Sender<()>,
    woken: Receiver<()>,
}

/// The nice value of the thread (STATE-2): writing 20,000 clients takes longer than a request
/// should wait. Beside a busy thread it still gets a quarter of a processor, as edits and
/// acknowledged bans wait for it.
const NICE: i32 = 5;

/// The journal as its owner has it, and what was found in it.
pub(crate) type WithFound<E, K> = (Journal<E, K>, Found<E, K>);

/// A file for [`StateDir::start`].
pub(crate) struct Registered(Box<dyn AnyFile>);

/// The thread. Dropping it writes what is queued and waits for it; a write that fails then is not
/// tried again.
pub(crate) struct StateThread {
    wake: Sender<()>,
    /// None once the thread is to end.
    holds: Option<Sender<Hold>>,
    /// Lets a thread that is held go on; dropped, it ends the thread.
    held: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An order to the thread to touch no file any more (RESTART-4).
struct Hold {
    /// The lock, once it touches none.
    held: Sender<io::Result<OwnedFd>>,
    /// The thread waits for this, and ends where it is closed instead.
    resume: Receiver<()>,
}

impl StateDir {
    /// The directory of this lock, once it was checked that it can be written.
    ///
    /// # Errors
    /// [`StateError`] (STATE-6).
    pub(crate) fn open(lock: StateLock, clock: Clock) -> Result<Self, StateError> {
        let (wake, woken) = bounded(1);
        Ok(Self {
            store: Store::open(lock)?,
            clock,
            wake,
            woken,
        })
    }

    /// Reads and checks a file, with the help of what is known of it: the owner's side, what was
    /// read, and the file for the thread.
    ///
    /// # Errors
    /// [`StateError`], with path, line, column and JSON pointer where there is one (STATE-6).
    pub(crate) fn read<D: Document>(
        &self,
        known: Option<Known<D>>,
    ) -> Result<(StateFile<D>, Read<D>, Registered), StateError> {
        let now = Time(self.clock.now().wall_ms);
        let (disk, file, read) = DiskFile::open(&self.store, &self.wake, known, now)?;
        Ok((file, read, Registered(Box::new(disk))))
    }

    /// Reads the journal and starts its thread: the owner's side, and what was found.
    ///
    /// # Errors
    /// [`StateError`]
    pub(crate) fn journal<E, K>(
        &self,
        standing: Standing,
        faults: &Faults,
    ) -> Result<WithFound<E, K>, StateError>
    where
        E: Serialize + DeserializeOwned + Send + 'static,
        K: Serialize + DeserializeOwned + Send + 'static,
    {
        let found = journal::read(&self.store.dir, standing)?;
        let tail = journal::Tail::new(&self.store.dir, &found, self.store.faults.clone());
        Ok((Journal::start(tail, faults.clone())?, found))
    }

    /// Starts the thread, which is woken by what happens in the directory. The first file is the
    /// one that answers wait for: it never waits for the others.
    ///
    /// # Errors
    /// [`StateError::Thread`]
    pub(crate) fn start(
        self,
        files: Vec<Registered>,
        looks: &FileThread,
    ) -> Result<StateThread, StateError> {
        let directory = Directory::new(&self.store.path(""), self.wake.clone());
        looks.watch(Subject::State, directory);
        // One that was given up may still be in it when the next comes: the disk is slow then.
        let (holds, held) = unbounded();
        let thread = Thread {
            looks: looks.clone(),
            files: files.into_iter().map(|Registered(file)| file).collect(),
            common: Common {
                store: self.store,
                clock: self.clock,
                faults: looks.faults().clone(),
                stopping: false,
            },
            woken: self.woken,
            holds: held,
        };
        let thread = weir_shared::threads::spawn("weir-state", move || thread.run())
            .map_err(StateError::Thread)?;
        Ok(StateThread {
            wake: self.wake,
            holds: Some(holds),
            held: None,
            thread: Some(thread),
        })
    }
}

impl StateThread {
    /// Has the thread touch no file from the moment on in which the lock comes back, until
    /// [`StateThread::resume`]. What is queued then waits. If this is dropped instead, the thread
    /// ends and has touched nothing.
    pub(crate) fn hold(&mut self) -> Receiver<io::Result<OwnedFd>> {
        let (told, held) = bounded(1);
        let (resumed, resume) = bounded(1);
        // Not taken where the thread has ended: the receiver is closed then, which says so.
        if let Some(holds) = &self.holds {
            let _ = holds.send(Hold { held: told, resume });
        }
        let _ = self.wake.try_send(());
        self.held = Some(resumed);
        held
    }

    /// Whether the thread is there no more: nothing is written then.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// The thread goes on, whether it was held already or is still to be.
    pub(crate) fn resume(&mut self) {
        if let Some(held) = self.held.take() {
            let _ = held.try_send(());
        }
    }
}

impl Drop for StateThread {
    fn drop(&mut self) {
        // One that is held ends as it is: the files are another process's.
        self.held = None;
        self.holds = None;
        // Full means that the thread is to wake already.
        let _ = self.wake.try_send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the state files ended by a panic");
        }
    }
}

/// The thread's own.
struct Thread {
    common: Common,
    files: Vec<Box<dyn AnyFile>>,
    looks: FileThread,
    woken: Receiver<()>,
    holds: Receiver<Hold>,
}

impl Thread {
    #[expect(
        clippy::disallowed_methods,
        reason = "the edge: what the files do with the time is given to them"
    )]
    fn run(mut self) {
        // It is always allowed, but by a filter of system calls: then it competes.
        let _ = rustix::process::nice(NICE);
        let mut stop_at = None;
        loop {
            match self.holds.try_recv() {
                Ok(hold) => {
                    // Whoever asked may have given it up.
                    let _ = hold.held.send(self.common.store.lock.share());
                    if hold.resume.recv().is_err() {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    self.common.stopping = true;
                    stop_at.get_or_insert_with(|| Instant::now() + STOP_WAIT);
                }
            }
            let unreachable = self.reach().err().map(|error| error.to_string());
            let wait = self.turn(unreachable.as_deref());
            match stop_at {
                None => drop(self.woken.recv_timeout(wait)),
                Some(at) => {
                    if Instant::now() >= at {
                        self.files.iter_mut().for_each(|file| file.give_up());
                    }
                    if !self.files.iter_mut().any(|file| file.has_job()) {
                        return;
                    }
                    std::thread::sleep(TICK);
                }
            }
        }
    }

    /// Sees to it that the directory is there.
    fn reach(&mut self) -> io::Result<()> {
        if self.common.store.ensure_dir()? {
            tracing::warn!("the state directory was gone, or the lock in it, and is made anew");
            // The old watch went with the old directory.
            self.looks.wake();
            self.files.iter_mut().for_each(|file| file.rebuild());
        }
        Ok(())
    }

    /// One turn of each file. Returns how long nothing needs to be done.
    fn turn(&mut self, unreachable: Option<&str>) -> Duration {
        let common = &self.common;
        let Some((first, others)) = self.files.split_first_mut() else {
            return POLL;
        };
        let mut wait = guarded(first, common, unreachable);
        for file in others {
            wait = wait.min(guarded(file, common, unreachable));
            // What an answer waits for need not wait for every other file: each takes two syncs,
            // and a busy disk may take seconds for them.
            if first.is_awaited() {
                wait = wait.min(guarded(first, common, unreachable));
            }
        }
        wait
    }
}

/// A turn of one file. A panic in it is a bug; it counts as a write that failed, is reported like
/// one, and neither the other files nor the next try suffer from it.
#[expect(
    clippy::disallowed_methods,
    reason = "the edge: what the files do with the time is given to them"
)]
fn guarded(file: &mut Box<dyn AnyFile>, common: &Common, unreachable: Option<&str>) -> Duration {
    let now = Instant::now();
    catch_unwind(AssertUnwindSafe(|| file.turn(common, now, unreachable)))
        .unwrap_or_else(|_| file.fail_by_bug(common, now))
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
