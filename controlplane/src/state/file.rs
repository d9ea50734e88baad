//! One state file: looked at, taken in where it was edited, written where memory has another content.
//!
//! Compare and swap: a document of memory is written only if the file is the one last seen and the document holds every
//! edit that was seen. Edits go up to the owner with a revision, documents come down with the revision of the last edit
//! that they hold. One that is behind is not written: the owner sends the next one right after the edit, and that one is
//! told to those who wait. So neither side overwrites the other, and what an edit means to memory is said once, by the owner.
//!
//! Nothing here waits long: a write that has to wait (an edit is half saved, the disk is full) stays queued and the thread
//! goes on. Time is an argument.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, never};
use weir_shared::clock::Clock;
use weir_shared::units::Time;

use super::diff::{Base, Change};
use super::document::Document;
use super::error::StateError;
use super::schema::FileSchema;
use super::store::{self, Commit, Hash, Seen, Stat, Store};
use super::text::{self, Envelope, Fault};
use super::watch::{LINGER, POLL, SETTLE, SETTLE_ASIDE, SETTLE_BAD, SETTLE_GONE, Stillness, TICK};

/// Waits between tries of a failing write.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// An edit that arrives in the middle of a write sends it back to the start; after so many the write is tried again at
/// the next turn.
const ROUNDS: usize = 32;
/// Edits of one file that wait for the owner; it takes them every few milliseconds, an administrator saves every few
/// seconds. While they fill the channel further ones wait on disk.
const EDITS: usize = 64;

/// The owner's side of a file.
pub(crate) struct StateFile<D: Document> {
    edits: Receiver<Edit<D>>,
    shared: Arc<Shared<D>>,
    /// Wakes the thread.
    wake: Sender<()>,
}

/// What the owner and the thread share.
struct Shared<D: Document> {
    /// At most one document: a newer one replaces the one that still waits.
    queued: Mutex<Option<Job<D>>>,
    counters: Counters,
}

/// An edit that was found on disk.
pub(crate) struct Edit<D: Document> {
    /// Counts up from 1. A document with this revision holds the edit.
    pub(crate) revision: u64,
    /// What it did. None, if the copy was merely older than the file: a new document is all that is wanted.
    pub(crate) changes: Vec<Change<D>>,
}

/// A document, the last edit it holds, and who waits for it.
pub(crate) struct Job<D: Document> {
    pub(crate) entries: Vec<D::Entry>,
    pub(crate) revision: u64,
    pub(crate) saved: Vec<Saved>,
}

/// Is told whether a document reached the disk: `true` once it is there after fsync and rename (STATE-2). Dropped without
/// a word, by a bug, it counts as a write that failed: nobody waits for an outcome that never comes.
pub struct Saved(Option<Box<dyn FnOnce(bool) + Send>>);

/// A state file that could not be written, reported once until it can be again (STATE-7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteFault {
    /// The file's name.
    pub file: &'static str,
    /// What the system said.
    pub error: String,
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

#[derive(Default)]
struct Counters {
    writes_ok: AtomicU64,
    writes_error: AtomicU64,
    edits_taken: AtomicU64,
    edits_bad: AtomicU64,
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

    /// Queues a document that holds all edits up to `revision`; returns at once. One that is still queued when a newer one
    /// arrives is replaced by it, and both are told the outcome.
    pub(crate) fn save(&self, entries: Vec<D::Entry>, revision: u64, saved: Option<Saved>) {
        let mut job = Job {
            entries,
            revision,
            saved: saved.into_iter().collect(),
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

    /// What was written and taken in so far.
    pub(crate) fn counts(&self) -> FileCounts {
        // Relaxed throughout: each is a count of its own that only has to add up.
        let counters = &self.shared.counters;
        FileCounts {
            file: D::FILE,
            writes_ok: counters.writes_ok.load(Ordering::Relaxed),
            writes_error: counters.writes_error.load(Ordering::Relaxed),
            edits_taken: counters.edits_taken.load(Ordering::Relaxed),
            edits_bad: counters.edits_bad.load(Ordering::Relaxed),
        }
    }
}

/// The thread's side of a file without a disk: the test plays the thread.
#[cfg(test)]
pub(crate) struct TestFile<D: Document> {
    edits: Sender<Edit<D>>,
    shared: Arc<Shared<D>>,
    revision: std::cell::Cell<u64>,
}

#[cfg(test)]
impl<D: Document> TestFile<D> {
    pub(crate) fn pair() -> (Self, StateFile<D>) {
        let (edits_out, edits) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            queued: Mutex::new(None),
            counters: Counters::default(),
        });
        let file = StateFile {
            edits,
            shared: Arc::clone(&shared),
            wake: bounded(1).0,
        };
        let thread = Self {
            edits: edits_out,
            shared,
            revision: std::cell::Cell::new(0),
        };
        (thread, file)
    }

    /// The document that waits, taken as the thread takes it.
    pub(crate) fn take(&self) -> Option<Job<D>> {
        self.shared.queued().take()
    }

    /// An edit was found.
    pub(crate) fn edit(&self, changes: Vec<Change<D>>) -> u64 {
        let revision = self.revision.get() + 1;
        self.revision.set(revision);
        drop(self.edits.send(Edit { revision, changes }));
        revision
    }
}

impl<D: Document> Shared<D> {
    fn queued(&self) -> MutexGuard<'_, Option<Job<D>>> {
        // Nothing can panic while it is held; if it ever does, the queue is still a queue.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What every file needs.
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) faults: Sender<WriteFault>,
    /// Nobody takes edits any more.
    pub(super) stopping: bool,
}

/// The thread's side of a file, whatever is in it.
pub(super) trait AnyFile: Send {
    /// One look and, if there is something to write, one try. Returns how long nothing needs to be done.
    fn turn(&mut self, common: &Common, now: Instant, unreachable: Option<&str>) -> Duration;
    /// A turn ended by a panic: it counts as a write that failed.
    fn fail_by_bug(&mut self, common: &Common, now: Instant) -> Duration;
    /// Whether somebody waits for the outcome of a write.
    fn is_awaited(&mut self) -> bool;
    /// Whether there is something to write.
    fn has_job(&mut self) -> bool;
    /// The stop waits no longer.
    fn give_up(&mut self);
    /// The directory was made anew: nothing in it was taken out by an administrator, and all of it has to be written.
    fn rebuild(&mut self);
}

/// The thread's side of a file: what is known of it, and what is to be written.
pub(super) struct DiskFile<D: Document> {
    schema: FileSchema,
    base: Base<D>,
    envelope: Envelope,
    /// The last edit that was taken in.
    revision: u64,
    edits: Sender<Edit<D>>,
    shared: Arc<Shared<D>>,
    /// None where there is no file.
    on_disk: Option<Seen>,
    /// The file is as a write of the base would leave it. If not, the next document is written though no entry changed.
    clean: bool,
    /// The file was read within the grain of its own time stamp: a change right after would look like none.
    racy: bool,
    /// The file as it stands was reported as bad.
    bad: Option<Seen>,
    still: Stillness,
    /// A write that failed after its rename may stand on disk all the same: it is ours, no edit.
    attempt: Option<Attempt<D>>,
    displaced: Option<Displaced>,
    job: Option<Job<D>>,
    /// They waited for documents that lacked an edit, and wait for the next one now.
    waiting: Vec<Saved>,
    outage: Option<Outage>,
    /// A read that failed was reported.
    unread: bool,
}

struct Attempt<D: Document> {
    hash: Hash,
    entries: Vec<D::Entry>,
    at: Time,
}

/// The file that was replaced last, still open: an editor may have opened it before, and write to it after.
struct Displaced {
    file: File,
    stat: Stat,
    /// The moment it is of.
    written: Time,
    still: Stillness,
    until: Instant,
}

struct Outage {
    wait: Duration,
    retry_at: Instant,
}

enum Observed {
    /// The file is what was last read or written.
    Same,
    /// An edit was taken in.
    Taken,
    /// Wait: somebody may still be writing.
    Unsettled,
    /// The file does not fit. `settled` once it may be set aside.
    Bad { seen: Seen, settled: bool },
}

/// What came of a write.
enum Wrote {
    /// The document is on disk, or was there already.
    Yes,
    /// It has to wait for an edit to settle, or for a document that holds the edit.
    NotYet,
}

impl<D: Document> DiskFile<D> {
    /// Reads the file at start (STATE-6). Also gives the owner's side, and what was read.
    pub(super) fn open(
        store: &Store,
        wake: &Sender<()>,
        now: Time,
    ) -> Result<(Self, StateFile<D>), StateError> {
        let path = store.path(D::FILE);
        let read = store
            .recover(D::FILE)
            .and_then(|()| store.read(D::FILE))
            .map_err(|error| StateError::Read {
                path: path.clone(),
                error,
            })?;
        let schema = text::schema::<D>()?;
        let (base, envelope, on_disk) = match read {
            None => (Base::new(Vec::new(), None), Envelope::new::<D>(), None),
            Some((bytes, seen)) => {
                let content = text::parse::<D>(&schema, &bytes)
                    .map_err(|fault| StateError::DoesNotFit { path, fault })?;
                let entries = D::complete(content.entries, &[], now);
                let base = Base::new(entries, content.written);
                (base, content.envelope, Some(seen))
            }
        };
        let (edits_out, edits) = bounded(EDITS);
        let shared = Arc::new(Shared {
            queued: Mutex::new(None),
            counters: Counters::default(),
        });
        let file = StateFile {
            edits,
            shared: Arc::clone(&shared),
            wake: wake.clone(),
        };
        let disk = Self {
            schema,
            base,
            envelope,
            revision: 0,
            edits: edits_out,
            shared,
            on_disk,
            // A hand may have left out what was completed, or a version before this one has written it.
            clean: false,
            racy: false,
            bad: None,
            still: Stillness::default(),
            attempt: None,
            displaced: None,
            job: None,
            waiting: Vec::new(),
            outage: None,
            unread: false,
        };
        Ok((disk, file))
    }

    pub(super) fn entries(&self) -> &[D::Entry] {
        self.base.entries()
    }

    /// Takes the document that the owner sent, if there is one and it holds every edit.
    fn accept(&mut self) {
        let Some(mut job) = self.shared.queued().take() else {
            return;
        };
        if let Some(older) = self.job.take() {
            self.waiting.extend(older.saved);
        }
        self.waiting.append(&mut job.saved);
        if job.revision < self.revision {
            return;
        }
        job.saved = std::mem::take(&mut self.waiting);
        text::with_unknown::<D>(&mut job.entries, self.base.entries());
        D::sort(&mut job.entries);
        self.job = Some(job);
    }

    /// Whether a write should be tried now.
    fn is_due(&self, common: &Common, now: Instant) -> bool {
        match (&self.job, &self.outage) {
            (None, _) => false,
            // Somebody waits for the answer: no use in making them wait for the next try as well.
            (Some(job), Some(outage)) => {
                !job.saved.is_empty() || outage.retry_at <= now || common.stopping
            }
            (Some(_), None) => true,
        }
    }

    /// Looks at the file where nothing is to be written. Returns when to look again.
    fn idle(&mut self, common: &Common, now: Instant) -> Duration {
        match self.look(common, now, false) {
            Ok(Observed::Unsettled) => TICK,
            Ok(Observed::Same | Observed::Taken | Observed::Bad { .. }) => {
                self.unread = false;
                if self.racy { TICK } else { POLL }
            }
            Err(error) => {
                if !self.unread {
                    tracing::error!(file = D::FILE, "the state file cannot be read: {error}");
                }
                self.unread = true;
                POLL
            }
        }
    }

    /// Compares the file with what is known of it, and takes in an edit that is whole. An `eager` look does not wait for
    /// a file to lie still if it fits: a write is waiting.
    fn look(&mut self, common: &Common, now: Instant, eager: bool) -> io::Result<Observed> {
        let stat = common.store.stat(D::FILE)?;
        if stat == self.on_disk.map(|seen| seen.stat) && !self.racy {
            self.still.settle();
            self.bad = None;
            return Ok(Observed::Same);
        }
        let still = self.still.of(stat, now);
        let full = self.edits.is_full();
        let Some(stat) = stat else {
            if still < SETTLE_GONE || full {
                return Ok(Observed::Unsettled);
            }
            self.take_file(common, Vec::new(), None, None);
            return Ok(Observed::Taken);
        };
        if let Some(seen) = self.bad
            && seen.stat == stat
        {
            let settled = still >= SETTLE_ASIDE;
            return Ok(Observed::Bad { seen, settled });
        }
        // An edit is only taken in when the owner can be told: a full channel holds it on disk.
        if full || (!eager && still < SETTLE) {
            return Ok(Observed::Unsettled);
        }
        match common.store.read(D::FILE) {
            Ok(None) => Ok(Observed::Unsettled),
            Ok(Some((bytes, seen))) => Ok(self.judge(common, &bytes, seen, still)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let fault = Fault::unreadable(&error);
                let hash = [0; 32];
                Ok(self.refuse(&fault, Seen { stat, hash }, still))
            }
            Err(error) => Err(error),
        }
    }

    /// What the file as it was just read is: ours, an edit, or nothing that fits.
    fn judge(&mut self, common: &Common, bytes: &[u8], seen: Seen, still: Duration) -> Observed {
        if let Some(known) = &mut self.on_disk
            && known.hash == seen.hash
        {
            *known = seen;
            self.racy = seen.stat.is_racy();
            self.still.settle();
            return Observed::Same;
        }
        if self
            .attempt
            .as_ref()
            .is_some_and(|tried| tried.hash == seen.hash)
            && let Some(tried) = self.attempt.take()
        {
            self.base.wrote(tried.entries, tried.at);
            self.on_disk = Some(seen);
            // It stands, but nobody knows whether it would after a power cut.
            self.clean = false;
            self.still.settle();
            return Observed::Same;
        }
        match text::parse::<D>(&self.schema, bytes) {
            Ok(content) => {
                self.envelope = content.envelope;
                self.take_file(common, content.entries, content.written, Some(seen));
                Observed::Taken
            }
            Err(fault) => self.refuse(&fault, seen, still),
        }
    }

    /// The file does not fit; it is reported once it lies still.
    fn refuse(&mut self, fault: &Fault, seen: Seen, still: Duration) -> Observed {
        if still < SETTLE_BAD {
            return Observed::Unsettled;
        }
        tracing::error!(
            file = D::FILE,
            line = fault.line,
            column = fault.column,
            pointer = fault.pointer,
            "the edit is not taken: {fault}; what was held stays, the next write sets the file aside as {}.bad",
            D::FILE
        );
        self.bad = Some(seen);
        let settled = still >= SETTLE_ASIDE;
        Observed::Bad { seen, settled }
    }

    /// Takes in an edit of the file as it stands.
    fn take_file(
        &mut self,
        common: &Common,
        entries: Vec<D::Entry>,
        written: Option<Time>,
        seen: Option<Seen>,
    ) {
        self.take(common, entries, written);
        self.on_disk = seen;
        // The service would have written the same: no need to, and no editor is warned.
        self.clean = match (seen, written) {
            (Some(seen), Some(written)) => self.hash_at(written) == Some(seen.hash),
            _ => false,
        };
        self.racy = seen.is_some_and(|seen| seen.stat.is_racy());
        self.bad = None;
        self.still.settle();
    }

    /// Takes in an edit whose copy is of the moment `read`, and tells the owner.
    fn take(&mut self, common: &Common, entries: Vec<D::Entry>, read: Option<Time>) {
        let now = Time(common.clock.now().wall_ms);
        let theirs = D::complete(entries, self.base.entries(), now);
        let diff = self.base.take(theirs, read);
        // Before it is sent: who has the edit finds it counted.
        count(&self.shared.counters.edits_taken);
        tracing::info!(file = D::FILE, "edit taken in: {}", diff.summary());
        if diff.is_empty() {
            return;
        }
        self.revision += 1;
        // It lacks the edit; the owner sends another.
        if let Some(job) = self.job.take() {
            self.waiting.extend(job.saved);
        }
        // Not full (see `look`). Closed only when the owner has ended: the edit stays on disk for the next start.
        let _ = self.edits.try_send(Edit {
            revision: self.revision,
            changes: diff.changes,
        });
    }

    /// What a file of the base, of that moment, would hash to.
    fn hash_at(&mut self, written: Time) -> Option<Hash> {
        let mut hashing = store::Digester::default();
        self.envelope.stamp(written);
        text::write::<D>(&mut hashing, self.base.entries(), &self.envelope).ok()?;
        Some(hashing.finish())
    }

    /// Writes the queued document.
    fn write(&mut self, common: &Common, now: Instant) -> io::Result<Wrote> {
        for _ in 0..ROUNDS {
            let bad = match self.look(common, now, true)? {
                Observed::Same | Observed::Taken => None,
                Observed::Bad {
                    seen,
                    settled: true,
                } => Some(seen),
                Observed::Unsettled | Observed::Bad { settled: false, .. } => {
                    return Ok(Wrote::NotYet);
                }
            };
            let Some(job) = &self.job else {
                return Ok(Wrote::NotYet);
            };
            if bad.is_none() && self.clean && job.entries == self.base.entries() {
                return Ok(Wrote::Yes);
            }
            let at = self.base.next_write(Time(common.clock.now().wall_ms));
            self.envelope.stamp(at);
            let staged = common.store.stage(D::FILE, |out| {
                text::write::<D>(out, &job.entries, &self.envelope)
            })?;
            let hash = staged.hash();
            let expected = bad.as_ref().or(self.on_disk.as_ref());
            match common
                .store
                .commit(D::FILE, staged, expected, bad.is_some())
            {
                Ok(Commit::Changed) => {}
                Ok(Commit::Done { seen, displaced }) => {
                    self.wrote(seen, at, now, displaced.filter(|_| bad.is_none()));
                    count(&self.shared.counters.writes_ok);
                    if bad.is_some() {
                        count(&self.shared.counters.edits_bad);
                        tracing::warn!(
                            file = D::FILE,
                            "the edit that was not taken is set aside as {}.bad",
                            D::FILE
                        );
                    }
                    return Ok(Wrote::Yes);
                }
                Err(error) => {
                    let entries = job.entries.clone();
                    self.attempt = Some(Attempt { hash, entries, at });
                    return Err(error);
                }
            }
        }
        Ok(Wrote::NotYet)
    }

    /// The queued document is on disk.
    fn wrote(&mut self, seen: Seen, at: Time, now: Instant, displaced: Option<File>) {
        let before = self.base.written();
        if let Some(job) = &mut self.job {
            // Moved: 20,000 clients need not be held twice.
            self.base.wrote(std::mem::take(&mut job.entries), at);
        }
        self.on_disk = Some(seen);
        self.clean = true;
        self.racy = false;
        self.attempt = None;
        self.bad = None;
        self.still.settle();
        if let Some(file) = displaced
            && let Ok(stat) = store::stat_of(&file)
        {
            self.displaced = Some(Displaced {
                file,
                stat,
                written: before,
                still: Stillness::default(),
                until: now + LINGER,
            });
        }
    }

    /// An editor may have opened the old file before it was replaced, and written to it since: that edit is not in the
    /// new file. It is taken in as what it is, an edit of an older copy.
    fn check_displaced(&mut self, common: &Common, now: Instant) -> Duration {
        let Some(displaced) = &mut self.displaced else {
            return POLL;
        };
        let Ok(stat) = store::stat_of(&displaced.file) else {
            self.displaced = None;
            return POLL;
        };
        if store::unchanged(&displaced.file, &displaced.stat).unwrap_or(true) {
            if displaced.until <= now {
                self.displaced = None;
                return POLL;
            }
            return SETTLE;
        }
        let still = displaced.still.of(Some(stat), now);
        if still < SETTLE || self.edits.is_full() {
            return TICK;
        }
        let content = store::content(&mut displaced.file).and_then(|(bytes, _)| {
            text::parse::<D>(&self.schema, &bytes)
                .map_err(|fault| io::Error::other(fault.to_string()))
        });
        match content {
            Ok(content) => {
                let read = content.written.unwrap_or(displaced.written);
                self.take(common, content.entries, Some(read));
                self.clean = false;
            }
            Err(_) if still < SETTLE_BAD => return TICK,
            Err(error) => tracing::error!(
                file = D::FILE,
                "an edit that was saved while the file was written is not taken: {error}"
            ),
        }
        self.displaced = None;
        TICK
    }

    fn succeed(&mut self) {
        if self.outage.take().is_some() {
            tracing::info!(file = D::FILE, "the state file is written again");
        }
        if let Some(job) = self.job.take() {
            job.saved.into_iter().for_each(|saved| saved.tell(true));
        }
    }

    /// The document stays queued; those who wait are told at the first failure (STATE-2, STATE-7).
    fn fail(&mut self, common: &Common, now: Instant, error: &io::Error) -> Duration {
        count(&self.shared.counters.writes_error);
        if let Some(job) = &mut self.job {
            job.saved.drain(..).for_each(|saved| saved.tell(false));
        }
        if common.stopping {
            self.job = None;
        }
        let wait = match &self.outage {
            None => {
                tracing::error!(
                    file = D::FILE,
                    "the state file cannot be written: {error}; the last good one stays, the write is tried again"
                );
                // Full: so many are waiting to be reported already.
                let _ = common.faults.try_send(WriteFault {
                    file: D::FILE,
                    error: error.to_string(),
                });
                RETRY_FIRST
            }
            // A try made only because somebody waits says nothing about how long the outage will last.
            Some(outage) if outage.retry_at > now => return outage.retry_at - now,
            Some(outage) => (outage.wait * 2).min(RETRY_LAST),
        };
        self.outage = Some(Outage {
            wait,
            retry_at: now + wait,
        });
        wait
    }
}

impl<D: Document> AnyFile for DiskFile<D> {
    fn turn(&mut self, common: &Common, now: Instant, unreachable: Option<&str>) -> Duration {
        self.accept();
        let linger = self.check_displaced(common, now);
        let wait = if self.is_due(common, now) {
            let outcome = match unreachable {
                Some(error) => Err(io::Error::other(error)),
                None => self.write(common, now),
            };
            match outcome {
                Ok(Wrote::Yes) => {
                    self.succeed();
                    POLL
                }
                Ok(Wrote::NotYet) => TICK,
                Err(error) => self.fail(common, now, &error),
            }
        } else if unreachable.is_some() {
            POLL
        } else {
            self.idle(common, now)
        };
        let retry = match (&self.job, &self.outage) {
            (Some(_), Some(outage)) => outage.retry_at.saturating_duration_since(now),
            _ => POLL,
        };
        wait.min(linger).min(retry.max(TICK))
    }

    fn fail_by_bug(&mut self, common: &Common, now: Instant) -> Duration {
        self.waiting.drain(..).for_each(|saved| saved.tell(false));
        let error = io::Error::other("its thread panicked; please report this");
        self.fail(common, now, &error).max(RETRY_FIRST)
    }

    fn is_awaited(&mut self) -> bool {
        self.accept();
        self.job.as_ref().is_some_and(|job| !job.saved.is_empty())
    }

    fn has_job(&mut self) -> bool {
        self.accept();
        self.job.is_some()
    }

    fn give_up(&mut self) {
        if let Some(job) = self.job.take() {
            tracing::error!(
                file = D::FILE,
                "the state file was not written before the stop: an edit of it is half saved"
            );
            job.saved.into_iter().for_each(|saved| saved.tell(false));
        }
    }

    fn rebuild(&mut self) {
        self.base.lose();
        self.on_disk = None;
        self.clean = false;
        self.bad = None;
        self.racy = false;
        self.displaced = None;
        self.still.settle();
        if self.job.is_none() && !self.base.entries().is_empty() {
            let mut entries = self.base.entries().to_vec();
            D::sort(&mut entries);
            self.job = Some(Job {
                entries,
                revision: self.revision,
                saved: Vec::new(),
            });
        }
    }
}
