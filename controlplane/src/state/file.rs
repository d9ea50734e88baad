//! The owner's side of a state file: edits come up, documents go down.
//!
//! Compare and swap: a document of memory is written only if the file is the one last seen and the
//! document holds every edit that was seen. Edits go up to the owner with a revision, documents
//! come down with the revision of the last edit that they hold. One that is behind is not written:
//! the owner sends the next one right after the edit, and that one is told to those who wait. So
//! neither side overwrites the other, and what an edit means to memory is said once, by the owner.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, TryRecvError, never};

use super::diff::Change;
use super::document::Document;

/// The owner's side of a file.
pub(crate) struct StateFile<D: Document> {
    pub(super) edits: Receiver<Edit<D>>,
    pub(super) shared: Arc<Shared<D>>,
    /// Wakes the thread.
    pub(super) wake: Sender<()>,
}

/// What the owner and the thread share.
pub(super) struct Shared<D: Document> {
    /// At most one document: a newer one replaces the one that still waits.
    pub(super) queued: Mutex<Option<Job<D>>>,
    pub(super) counters: Counters,
    pub(super) failure: Failure,
    /// Of the newest document that is on disk.
    pub(super) durable: Mutex<Stand>,
    /// Entries that an edit may have, where they are bounded.
    pub(super) most: AtomicUsize,
}

impl<D: Document> Default for Shared<D> {
    fn default() -> Self {
        Self {
            queued: Mutex::default(),
            counters: Counters::default(),
            failure: Failure::default(),
            durable: Mutex::default(),
            most: AtomicUsize::new(usize::MAX),
        }
    }
}

/// What a document holds besides the edits that were seen. The default is that of a file without a
/// journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stand {
    /// Counts the documents of a process, from 1.
    pub(crate) document: u64,
    /// Every line of the journal up to this number (STATE-10). 0 where there is no journal.
    pub(crate) journal: u64,
}

/// Why the last write of a file failed; none where it did not.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    pub(super) fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// The sentence of the system.
    pub(crate) fn get(&self) -> Option<String> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }
}

/// An edit that was found on disk.
pub(crate) struct Edit<D: Document> {
    /// Counts up from 1. A document with this revision holds the edit.
    pub(crate) revision: u64,
    /// What it did. Empty where the copy was merely older than the file: then only a new document
    /// is wanted.
    pub(crate) changes: Vec<Change<D>>,
}

/// A document, the last edit it holds, and who waits for it.
pub(crate) struct Job<D: Document> {
    pub(crate) entries: Vec<D::Entry>,
    pub(crate) revision: u64,
    pub(crate) stand: Stand,
    pub(crate) saved: Vec<Saved>,
}

/// Is told whether a document reached the disk: `true` once it is there after fsync and rename
/// (STATE-2). Dropped without a word, by a bug, it counts as a write that failed: nobody waits for
/// an outcome that never comes.
pub struct Saved(Option<Box<dyn FnOnce(bool) + Send>>);

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

#[derive(Default)]
pub(super) struct Counters {
    pub(super) writes_ok: AtomicU64,
    pub(super) writes_error: AtomicU64,
    pub(super) edits_taken: AtomicU64,
    pub(super) edits_bad: AtomicU64,
}

impl Saved {
    /// Calls `told` once with the outcome.
    pub fn new(told: impl FnOnce(bool) + Send + 'static) -> Self {
        Self(Some(Box::new(told)))
    }

    /// The outcome.
    pub fn tell(mut self, persisted: bool) {
        if let Some(told) = self.0.take() {
            told(persisted);
        }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told(false);
        }
    }
}

impl<D: Document> StateFile<D> {
    /// Edits found on disk, in order.
    pub(crate) fn edits(&self) -> &Receiver<Edit<D>> {
        &self.edits
    }

    /// The next of them.
    pub(crate) fn next_edit(&mut self) -> Option<Edit<D>> {
        match self.edits.try_recv() {
            Ok(edit) => Some(edit),
            Err(TryRecvError::Empty) => None,
            // A channel whose other end is gone is always ready; it would be asked without a pause.
            Err(TryRecvError::Disconnected) => {
                self.edits = never();
                None
            }
        }
    }

    /// Queues a document that holds all edits up to `revision`; returns at once. One that is still
    /// queued when a newer one arrives is replaced by it, and both are told the outcome.
    pub(crate) fn save(
        &self,
        stand: Stand,
        entries: Vec<D::Entry>,
        revision: u64,
        saved: Vec<Saved>,
    ) {
        let mut job = Job {
            entries,
            revision,
            stand,
            saved,
        };
        {
            let mut queued = self.shared.queued();
            if let Some(older) = queued.take() {
                job.saved.splice(0..0, older.saved);
            }
            *queued = Some(job);
        }
        // Full means that the thread is to wake already.
        let _ = self.wake.try_send(());
    }

    /// Edits with more entries that have to be held than this are refused (BAN-5).
    pub(crate) fn set_most(&self, most: usize) {
        // Relaxed: a number, and nothing else.
        self.shared.most.store(most, Ordering::Relaxed);
    }

    /// What the newest document on disk holds.
    pub(crate) fn durable(&self) -> Stand {
        *self.shared.durable()
    }

    /// Why its last write failed.
    pub(crate) fn failure(&self) -> Failure {
        self.shared.failure.clone()
    }

    /// What was written and taken in so far.
    pub(crate) fn counts(&self) -> FileCounts {
        self.shared.counters.of(D::FILE)
    }
}

impl<D: Document> Shared<D> {
    pub(super) fn durable(&self) -> MutexGuard<'_, Stand> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queued(&self) -> MutexGuard<'_, Option<Job<D>>> {
        // Nothing can panic while it is held; if it ever does, the queue is still a queue.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    /// The counts so far, of the file of this name.
    pub(super) fn of(&self, file: &'static str) -> FileCounts {
        // Relaxed throughout: each is a count of its own that only has to add up.
        FileCounts {
            file,
            writes_ok: self.writes_ok.load(Ordering::Relaxed),
            writes_error: self.writes_error.load(Ordering::Relaxed),
            edits_taken: self.edits_taken.load(Ordering::Relaxed),
            edits_bad: self.edits_bad.load(Ordering::Relaxed),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
pub(super) mod testing;
