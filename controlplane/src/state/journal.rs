//! The journal of a state file (STATE-10): `bans.journal`, one line of JSON for each batch of
//! changes. A change is as safe there as in the document, and writing it costs no more than what
//! changed.
//!
//! Lines have numbers. A document says up to which it holds them, in the line of its base
//! (`kept_base.rs`), so it does not matter when the journal is emptied: a start takes the lines
//! after that number. People do not edit the file. `journal/file.rs` reads and writes it; here are
//! its thread and the side of the owner, who decides which change goes where.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Serialize;

use super::error::StateError;
use super::file::{Counters, FileCounts, Saved, count};
use crate::faults::{Faults, PartFault};

mod file;

use file::Lost;
pub(crate) use file::{Found, JOURNAL, LAST_NUMBER, Line, Standing, look, read};
pub(super) use file::{Tail, forget};

/// Changes that may wait for the disk. More are refused: a document holds them then.
const MAX_WAITING: usize = 16_384;

/// The owner's side.
pub(crate) struct Journal<E, K> {
    shared: Arc<Shared<E, K>>,
    wake: Sender<()>,
    /// None in tests that play the thread.
    thread: Option<JoinHandle<()>>,
}

struct Shared<E, K> {
    queue: Mutex<Queue<E, K>>,
    /// Lines were lost: a document must hold them.
    has_lost: AtomicBool,
    faults: Faults,
    /// Bytes of the file.
    bytes: AtomicU64,
    counters: Counters,
    stop: AtomicBool,
}

struct Queue<E, K> {
    /// With those who wait for them.
    lines: Vec<(Line<E, K>, Vec<Saved>)>,
    /// Changes in them, at most [`MAX_WAITING`] and one batch.
    waiting: usize,
    /// A document on disk holds all lines up to this one: the file may be emptied.
    held: Option<u64>,
    /// Those who wait until everything before is done.
    settled: Vec<Saved>,
}

impl<E, K> Default for Queue<E, K> {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            waiting: 0,
            held: None,
            settled: Vec::new(),
        }
    }
}

impl<E, K> Shared<E, K> {
    fn queue(&self) -> MutexGuard<'_, Queue<E, K>> {
        // Nothing can panic while it is held; if it ever does, the queue is still a queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Serialize + Send + 'static, K: Serialize + Send + 'static> Journal<E, K> {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StateError::Thread`]
    pub(super) fn start(tail: Tail, faults: Faults) -> Result<Self, StateError> {
        let (mut journal, woken) = Self::without_thread(faults);
        journal.shared.bytes.store(tail.end(), Ordering::Relaxed);
        let shared = Arc::clone(&journal.shared);
        let run = move || run(&shared, tail, &woken);
        let thread =
            weir_shared::threads::spawn("weir-journal", run).map_err(StateError::Thread)?;
        journal.thread = Some(thread);
        Ok(journal)
    }
}

impl<E, K> Journal<E, K> {
    fn without_thread(faults: Faults) -> (Self, Receiver<()>) {
        let (wake, woken) = bounded(1);
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            has_lost: AtomicBool::new(false),
            faults,
            bytes: AtomicU64::new(0),
            counters: Counters::default(),
            stop: AtomicBool::new(false),
        });
        let journal = Self {
            shared,
            wake,
            thread: None,
        };
        (journal, woken)
    }

    /// Queues a line; returns at once. Those who wait are told once it is on disk, or that it is
    /// not.
    ///
    /// # Errors
    /// Those who wait, where the disk is so far behind that nothing more is queued.
    pub(crate) fn write(&self, line: Line<E, K>, saved: Vec<Saved>) -> Result<(), Vec<Saved>> {
        let mut queue = self.shared.queue();
        if queue.waiting >= MAX_WAITING {
            return Err(saved);
        }
        queue.waiting += line.len();
        queue.lines.push((line, saved));
        drop(queue);
        self.wake();
        Ok(())
    }

    /// A document on disk holds all lines up to this one.
    pub(crate) fn held(&self, number: u64) {
        let mut queue = self.shared.queue();
        queue.held = queue.held.max(Some(number));
        drop(queue);
        self.wake();
    }

    /// Tells once everything that was queued before is done and the file is not touched any more.
    pub(crate) fn settle(&self, settled: Saved) {
        if self.thread.is_none() {
            return settled.tell(true);
        }
        self.shared.queue().settled.push(settled);
        self.wake();
    }

    /// Whether lines were lost since this was last asked.
    pub(crate) fn take_lost(&self) -> bool {
        self.shared.has_lost.swap(false, Ordering::Acquire)
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> FileCounts {
        self.shared.counters.of(JOURNAL)
    }

    fn wake(&self) {
        // Full means that the thread is to wake already.
        let _ = self.wake.try_send(());
    }
}

impl<E, K> Drop for Journal<E, K> {
    /// What is queued is written first.
    fn drop(&mut self) {
        // Release: the thread sees what was queued before.
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of {JOURNAL} ended by a panic");
        }
    }
}

fn run<E: Serialize, K: Serialize>(shared: &Shared<E, K>, mut tail: Tail, woken: &Receiver<()>) {
    let mut is_failing = false;
    loop {
        let stops = shared.stop.load(Ordering::Acquire);
        let mut queue = std::mem::take(&mut *shared.queue());
        let is_idle = queue.lines.is_empty() && queue.held.is_none() && queue.settled.is_empty();
        // A bug in here is a write that failed: who waits is told when their places are dropped,
        // behind the reason.
        let turn = AssertUnwindSafe(|| turn(shared, &mut tail, &mut queue, &mut is_failing));
        if catch_unwind(turn).is_err() {
            let lost = io::Error::other("its thread panicked; please report this");
            lose(shared, lost.into(), &mut is_failing);
        }
        drop(queue);
        shared.bytes.store(tail.end(), Ordering::Relaxed);
        if stops && is_idle {
            return;
        }
        if !stops {
            let _ = woken.recv();
        }
    }
}

/// Says that lines were lost; what the system said, once an outage.
fn lose<E, K>(shared: &Shared<E, K>, lost: Lost, is_failing: &mut bool) {
    count(&shared.counters.writes_error);
    match lost {
        Lost::Gone => {
            tracing::warn!(
                file = JOURNAL,
                "{lost}: bans.json is written, then the journal anew"
            );
        }
        Lost::Failed(_) if *is_failing => {}
        Lost::Failed(error) => {
            tracing::error!(
                file = JOURNAL,
                "the journal cannot be written: {error}; bans.json is written instead"
            );
            *is_failing = true;
            shared.faults.tell(PartFault::state(JOURNAL, &error));
        }
    }
    shared.has_lost.store(true, Ordering::Release);
}

/// Writes what is queued, with one sync.
fn turn<E: Serialize, K: Serialize>(
    shared: &Shared<E, K>,
    tail: &mut Tail,
    queue: &mut Queue<E, K>,
    is_failing: &mut bool,
) {
    if !queue.lines.is_empty() {
        let lines = queue.lines.iter().map(|(line, _)| (line.number, line));
        let outcome = tail.append(lines);
        let is_written = outcome.is_ok();
        // Before those who wait are told: the owner asks for it then.
        match outcome {
            Ok(()) => {
                count(&shared.counters.writes_ok);
                if std::mem::take(is_failing) {
                    tracing::info!(file = JOURNAL, "the journal is written again");
                }
            }
            Err(lost) => lose(shared, lost, is_failing),
        }
        let told = std::mem::take(&mut queue.lines).into_iter();
        told.flat_map(|(_, saved)| saved)
            .for_each(|saved| saved.tell(is_written));
    }
    if let Some(number) = queue.held {
        tail.empty(number);
    }
    let settled = std::mem::take(&mut queue.settled).into_iter();
    settled.for_each(|saved| saved.tell(true));
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
