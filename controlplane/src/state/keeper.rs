//! The keeper's thread: takes documents to be saved and edits found on disk, in turn, one file after the other.
//!
//! Nothing here waits long: a write that has to wait (an edit is half saved, the disk is full) stays queued and the loop
//! goes on. Reading, writing and merging are left to [`super::store`], [`super::document`] and [`super::merge`].

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender};
use weir_shared::ban::Ban;
use weir_shared::clock::Clock;
use weir_shared::table::ClientRow;
use weir_shared::units::Time;

use crate::lookup::LookupRow;

use super::alerts::Alerts;
use super::bans::Bans;
use super::clients::Clients;
use super::document::{self, Document, Envelope, Fault};
use super::lookups::Lookups;
use super::merge::{Base, Diff};
use super::schema::{FileSchema, Row};
use super::store::{self, Commit, Hash, Seen, Stat, Store};
use super::watch::{
    LINGER, POLL, SETTLE, SETTLE_ASIDE, SETTLE_BAD, SETTLE_GONE, Stillness, TICK, Watch,
};
use super::{AlertsEntry, Edit, FileCounts, Saved, StateCounts, WriteFault};

/// Waits between tries of a failing write.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// At a stop, how long a half-saved edit may hold the last write up.
const STOP_WAIT: Duration = Duration::from_secs(3);
/// An edit that arrives in the middle of a write sends it back to the start; after so many it waits for a calmer moment.
const ROUNDS: usize = 32;

/// What the handle and the thread share.
#[derive(Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    pub(super) bans: Counters,
    pub(super) clients: Counters,
    pub(super) lookups: Counters,
    pub(super) alerts: Counters,
}

/// At most one document a file: a newer one replaces the one that still waits.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) bans: Option<Job<Vec<Arc<Ban>>>>,
    pub(super) clients: Option<Job<Vec<ClientRow>>>,
    pub(super) lookups: Option<Job<Vec<LookupRow>>>,
    pub(super) alerts: Option<Job<Vec<AlertsEntry>>>,
    pub(super) stop: bool,
}

/// A document, the edits it contains, and who waits for it.
pub(super) struct Job<T> {
    pub(super) document: T,
    pub(super) applied: u64,
    pub(super) saved: Vec<Saved>,
}

/// Counts of one file.
#[derive(Default)]
pub(super) struct Counters {
    writes_ok: AtomicU64,
    writes_error: AtomicU64,
    edits_taken: AtomicU64,
    edits_bad: AtomicU64,
}

impl Shared {
    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing can panic while it is held; if it ever does, the queue is still a queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> StateCounts {
        StateCounts {
            files: [
                self.bans.read(Bans::FILE),
                self.clients.read(Clients::FILE),
                self.lookups.read(Lookups::FILE),
                self.alerts.read(Alerts::FILE),
            ],
        }
    }
}

impl Counters {
    // Relaxed throughout: each is a count of its own that only has to add up.
    fn read(&self, file: &'static str) -> FileCounts {
        FileCounts {
            file,
            writes_ok: self.writes_ok.load(Ordering::Relaxed),
            writes_error: self.writes_error.load(Ordering::Relaxed),
            edits_taken: self.edits_taken.load(Ordering::Relaxed),
            edits_bad: self.edits_bad.load(Ordering::Relaxed),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<T> Job<T> {
    /// Takes the place of `older`, and tells those who wait for it as well.
    pub(super) fn replacing<U>(mut self, older: Option<Job<U>>) -> Self {
        if let Some(older) = older {
            self.saved.splice(0..0, older.saved);
        }
        self
    }
}

/// The thread.
pub(super) struct Thread {
    pub(super) common: Common,
    pub(super) bans: Held<Bans>,
    pub(super) clients: Held<Clients>,
    pub(super) lookups: Held<Lookups>,
    pub(super) alerts: Held<Alerts>,
    pub(super) watch: Watch,
    pub(super) wake: Receiver<()>,
}

/// What every file needs.
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) edits: Sender<Edit>,
    pub(super) faults: Sender<WriteFault>,
    pub(super) shared: Arc<Shared>,
    /// The number of the last edit sent.
    pub(super) number: u64,
    /// Nobody takes edits any more; they are still merged into what is written.
    pub(super) stopping: bool,
}

impl Thread {
    pub(super) fn run(mut self) {
        let mut stop_at = None;
        loop {
            self.accept();
            if self.common.stopping && stop_at.is_none() {
                stop_at = Some(Instant::now() + STOP_WAIT);
            }
            let unreachable = match self.common.store.ensure_dir() {
                Ok(false) => None,
                Ok(true) => {
                    tracing::warn!("the state directory was gone and is made anew");
                    self.watch.again(&self.common.store.path(""));
                    self.bans.rebuild(self.common.number);
                    self.clients.rebuild(self.common.number);
                    self.lookups.rebuild(self.common.number);
                    self.alerts.rebuild(self.common.number);
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            let unreachable = unreachable.as_deref();
            let mut wait = self.bans.turn(&mut self.common, unreachable);
            wait = wait.min(self.clients.turn(&mut self.common, unreachable));
            wait = wait.min(self.awaited(unreachable));
            wait = wait.min(self.lookups.turn(&mut self.common, unreachable));
            wait = wait.min(self.awaited(unreachable));
            wait = wait.min(self.alerts.turn(&mut self.common, unreachable));
            match stop_at {
                None => drop(self.wake.recv_timeout(wait)),
                Some(at) => {
                    if Instant::now() >= at {
                        self.bans.give_up();
                        self.clients.give_up();
                        self.lookups.give_up();
                        self.alerts.give_up();
                    }
                    let has_job = self.bans.has_job()
                        || self.clients.has_job()
                        || self.lookups.has_job()
                        || self.alerts.has_job();
                    if !has_job {
                        return;
                    }
                    std::thread::sleep(TICK);
                }
            }
        }
    }

    /// Bans that an answer waits for need not wait for every other file: each takes two syncs, and a busy disk may take
    /// seconds for them.
    fn awaited(&mut self, unreachable: Option<&str>) -> Duration {
        self.accept();
        if self.bans.is_awaited() {
            self.bans.turn(&mut self.common, unreachable)
        } else {
            POLL
        }
    }

    fn accept(&mut self) {
        let (bans, clients, lookups, alerts) = {
            let mut queue = self.common.shared.queue();
            self.common.stopping = queue.stop;
            (
                queue.bans.take(),
                queue.clients.take(),
                queue.lookups.take(),
                queue.alerts.take(),
            )
        };
        if let Some(job) = bans {
            self.bans.accept(job);
        }
        if let Some(job) = clients {
            self.clients.accept(job.entries());
        }
        if let Some(job) = lookups {
            self.lookups.accept(job.entries());
        }
        if let Some(job) = alerts {
            self.alerts.accept(job.entries());
        }
    }
}

impl<T> Job<Vec<T>> {
    /// The rows of memory as entries of a file.
    fn entries(self) -> Job<Vec<Row<T>>> {
        let entry = |row| Row { row, unknown: None };
        Job {
            document: self.document.into_iter().map(entry).collect(),
            applied: self.applied,
            saved: self.saved,
        }
    }
}

/// One file: what is known of it, and what is to be written.
pub(super) struct Held<D: Document> {
    schema: FileSchema,
    base: Base<D>,
    envelope: Envelope,
    /// None where there is no file.
    on_disk: Option<Seen>,
    /// The file was read within the grain of its own time stamp: a change right after would look like none.
    racy: bool,
    /// The file as it stands was reported as bad.
    bad: Option<Seen>,
    still: Stillness,
    /// A write that failed after its rename may stand on disk all the same: it is ours, no edit.
    attempt: Option<(Hash, Vec<D::Entry>, u64)>,
    displaced: Option<Displaced<D>>,
    job: Option<Job<Vec<D::Entry>>>,
    outage: Option<Outage>,
    /// A read that failed was reported.
    unread: bool,
}

/// The file that was replaced last, still open, with the base it belonged to.
struct Displaced<D: Document> {
    file: File,
    stat: Stat,
    base: Vec<D::Entry>,
    still: Stillness,
    until: Instant,
}

struct Outage {
    wait: Duration,
    retry_at: Instant,
}

enum Look {
    /// The file is what was last read or written.
    Same,
    /// An edit was taken in.
    Taken,
    /// Wait: somebody may still be writing.
    Unsettled,
    /// The file does not fit. `ripe` once it may be set aside.
    Bad { seen: Seen, ripe: bool },
}

impl<D: Document> Held<D> {
    /// Reads the file at start (STATE-6).
    pub(super) fn open(store: &Store, now: Time) -> Result<Self, String> {
        let path = store.path(D::FILE);
        let path = path.display();
        let read = store
            .recover(D::FILE)
            .and_then(|()| store.read(D::FILE))
            .map_err(|error| format!("state file {path} cannot be read: {error}"))?;
        let schema = document::schema::<D>()?;
        let (entries, envelope, on_disk) = match read {
            None => (Vec::new(), Envelope::new::<D>(), None),
            Some((bytes, seen)) => {
                let content = document::parse::<D>(&schema, &bytes).map_err(|fault| {
                    format!("state file {path} does not fit: {fault}; mend it or move it away")
                })?;
                (
                    D::complete(content.entries, &[], now),
                    content.envelope,
                    Some(seen),
                )
            }
        };
        Ok(Self {
            schema,
            base: Base::new(entries),
            envelope,
            on_disk,
            racy: false,
            bad: None,
            still: Stillness::default(),
            attempt: None,
            displaced: None,
            job: None,
            outage: None,
            unread: false,
        })
    }

    pub(super) fn entries(&self) -> &[D::Entry] {
        self.base.entries()
    }

    fn accept(&mut self, mut job: Job<Vec<D::Entry>>) {
        document::with_unknown::<D>(&mut job.document, self.base.entries());
        D::sort(&mut job.document);
        self.job = Some(job.replacing(self.job.take()));
    }

    fn has_job(&self) -> bool {
        self.job.is_some()
    }

    /// Somebody waits for the outcome.
    fn is_awaited(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.saved.is_empty())
    }

    /// One look and, if there is something to write, one try. Returns how long nothing needs to be done.
    fn turn(&mut self, common: &mut Common, unreachable: Option<&str>) -> Duration {
        let linger = self.check_displaced(common);
        let due = match (&self.job, &self.outage) {
            (None, _) => false,
            // Somebody waits for the answer: no use in making them wait for the next try as well.
            (Some(job), Some(outage)) => {
                !job.saved.is_empty() || outage.retry_at <= Instant::now() || common.stopping
            }
            (Some(_), None) => true,
        };
        let wait = if due {
            let outcome = match unreachable {
                Some(error) => Err(io::Error::other(error)),
                None => self.write(common),
            };
            match outcome {
                Ok(true) => {
                    self.succeed(common);
                    POLL
                }
                Ok(false) => TICK,
                Err(error) => self.fail(common, &error),
            }
        } else if unreachable.is_some() {
            POLL
        } else {
            match self.look(common, false) {
                Ok(Look::Unsettled) => TICK,
                Ok(Look::Same | Look::Taken | Look::Bad { .. }) => {
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
        };
        let retry = match (&self.job, &self.outage) {
            (Some(_), Some(outage)) => outage.retry_at.saturating_duration_since(Instant::now()),
            _ => POLL,
        };
        wait.min(linger).min(retry.max(TICK))
    }

    /// Compares the file with what is known of it, and takes in an edit that is whole. An `eager` look does not wait for
    /// a file to lie still if it fits: a write is waiting.
    fn look(&mut self, common: &mut Common, eager: bool) -> io::Result<Look> {
        let stat = common.store.stat(D::FILE)?;
        if stat == self.on_disk.map(|seen| seen.stat) && !self.racy {
            self.still.settle();
            self.bad = None;
            return Ok(Look::Same);
        }
        let still = self.still.of(stat);
        let full = common.edits.is_full() && !common.stopping;
        let Some(stat) = stat else {
            if still < SETTLE_GONE || full {
                return Ok(Look::Unsettled);
            }
            self.take(common, Vec::new(), None);
            return Ok(Look::Taken);
        };
        if let Some(seen) = self.bad
            && seen.stat == stat
        {
            return Ok(Look::Bad {
                seen,
                ripe: still >= SETTLE_ASIDE,
            });
        }
        // An edit is only taken in when it can be told to memory: a full channel holds it on disk.
        if full || (!eager && still < SETTLE) {
            return Ok(Look::Unsettled);
        }
        let (fault, seen) = match common.store.read(D::FILE) {
            Ok(None) => return Ok(Look::Unsettled),
            Ok(Some((bytes, seen))) => {
                if let Some(known) = &mut self.on_disk
                    && known.hash == seen.hash
                {
                    *known = seen;
                    self.racy = is_racy(&seen.stat);
                    self.still.settle();
                    return Ok(Look::Same);
                }
                if let Some((hash, ..)) = &self.attempt
                    && *hash == seen.hash
                    && let Some((_, merged, applied)) = self.attempt.take()
                {
                    self.base.written(merged, applied);
                    self.on_disk = Some(seen);
                    self.still.settle();
                    return Ok(Look::Same);
                }
                match document::parse::<D>(&self.schema, &bytes) {
                    Ok(content) => {
                        self.envelope = content.envelope;
                        self.take(common, content.entries, Some(seen));
                        return Ok(Look::Taken);
                    }
                    Err(fault) => (fault, seen),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (
                Fault {
                    line: 0,
                    column: 0,
                    pointer: String::new(),
                    message: error.to_string(),
                },
                Seen {
                    stat,
                    hash: [0; 32],
                },
            ),
            Err(error) => return Err(error),
        };
        if still < SETTLE_BAD {
            return Ok(Look::Unsettled);
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
        Ok(Look::Bad {
            seen,
            ripe: still >= SETTLE_ASIDE,
        })
    }

    /// Takes in an edit of the whole file.
    fn take(&mut self, common: &mut Common, entries: Vec<D::Entry>, seen: Option<Seen>) {
        let now = common.now();
        let theirs = D::complete(entries, self.base.entries(), now);
        let number = common.number + 1;
        // Before it is sent: who has the edit finds it counted.
        count(&D::counters(&common.shared).edits_taken);
        match self.base.take(number, theirs) {
            Some(diff) => {
                tracing::info!(
                    file = D::FILE,
                    edit = number,
                    "edit taken in: {}",
                    diff.summary()
                );
                common.send(D::edit(number, diff));
            }
            None => tracing::info!(file = D::FILE, "edit taken in: no entry changed"),
        }
        self.on_disk = seen;
        self.racy = seen.is_some_and(|seen| is_racy(&seen.stat));
        self.bad = None;
        self.still.settle();
    }

    /// Writes the queued document; false if it has to wait for an edit to settle.
    fn write(&mut self, common: &mut Common) -> io::Result<bool> {
        for _ in 0..ROUNDS {
            let bad = match self.look(common, true)? {
                Look::Same | Look::Taken => None,
                Look::Bad { seen, ripe: true } => Some(seen),
                Look::Unsettled | Look::Bad { ripe: false, .. } => return Ok(false),
            };
            let Some(job) = &mut self.job else {
                return Ok(true);
            };
            let merged = self.base.merged(&job.document, job.applied);
            let entries = merged.as_ref().unwrap_or(&job.document);
            let staged = common.store.stage(D::FILE, |out| {
                document::write::<D>(out, entries, &self.envelope)
            })?;
            let hash = staged.hash();
            let expected = bad.as_ref().or(self.on_disk.as_ref());
            match common
                .store
                .commit(D::FILE, staged, expected, bad.is_some())
            {
                Ok(Commit::Changed) => {}
                Ok(Commit::Done { seen, displaced }) => {
                    // Moved where it can be: 20,000 clients need not be held twice.
                    let written = merged.unwrap_or_else(|| std::mem::take(&mut job.document));
                    let base = self.base.written(written, job.applied);
                    self.on_disk = Some(seen);
                    self.racy = false;
                    self.attempt = None;
                    self.bad = None;
                    self.still.settle();
                    if bad.is_some() {
                        count(&D::counters(&common.shared).edits_bad);
                        tracing::warn!(
                            file = D::FILE,
                            "the edit that was not taken is set aside as {}.bad",
                            D::FILE
                        );
                    } else if let Some(file) = displaced
                        && let Ok(stat) = store::stat_of(&file)
                    {
                        self.displaced = Some(Displaced {
                            file,
                            stat,
                            base,
                            still: Stillness::default(),
                            until: Instant::now() + LINGER,
                        });
                    }
                    return Ok(true);
                }
                Err(error) => {
                    let tried = merged.unwrap_or_else(|| job.document.clone());
                    self.attempt = Some((hash, tried, job.applied));
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    /// An editor may have opened the old file before it was replaced, and written to it since: that edit is not in the
    /// new file. It is taken in as a difference from the base it was made on.
    fn check_displaced(&mut self, common: &mut Common) -> Duration {
        let Some(displaced) = &mut self.displaced else {
            return POLL;
        };
        let Ok(stat) = store::stat_of(&displaced.file) else {
            self.displaced = None;
            return POLL;
        };
        if store::unchanged(&displaced.file, &displaced.stat).unwrap_or(true) {
            if displaced.until <= Instant::now() {
                self.displaced = None;
                return POLL;
            }
            return SETTLE;
        }
        let still = displaced.still.of(Some(stat));
        if still < SETTLE || (common.edits.is_full() && !common.stopping) {
            return TICK;
        }
        let content = store::content(&mut displaced.file).and_then(|(bytes, _)| {
            document::parse::<D>(&self.schema, &bytes)
                .map_err(|fault| io::Error::other(fault.to_string()))
        });
        match content {
            Ok(content) => {
                let now = common.now();
                let theirs = D::complete(content.entries, &displaced.base, now);
                let diff = Diff::<D>::between(&displaced.base, &theirs);
                let number = common.number + 1;
                tracing::info!(
                    file = D::FILE,
                    edit = number,
                    "edit taken in: {}",
                    diff.summary()
                );
                count(&D::counters(&common.shared).edits_taken);
                if !diff.is_empty() {
                    common.send(D::edit(number, &diff));
                    self.base.take_late(number, diff);
                    if self.job.is_none() {
                        self.job = Some(Job {
                            document: self.base.entries().to_vec(),
                            applied: number - 1,
                            saved: Vec::new(),
                        });
                    }
                }
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

    fn succeed(&mut self, common: &Common) {
        count(&D::counters(&common.shared).writes_ok);
        if self.outage.take().is_some() {
            tracing::info!(file = D::FILE, "the state file is written again");
        }
        if let Some(job) = self.job.take() {
            for saved in job.saved {
                saved.tell(true);
            }
        }
    }

    /// The document stays queued; those who wait are told at the first failure (STATE-2, STATE-7).
    fn fail(&mut self, common: &Common, error: &io::Error) -> Duration {
        count(&D::counters(&common.shared).writes_error);
        if let Some(job) = &mut self.job {
            for saved in job.saved.drain(..) {
                saved.tell(false);
            }
        }
        if common.stopping {
            self.job = None;
        }
        let now = Instant::now();
        let wait = match &self.outage {
            None => {
                tracing::error!(
                    file = D::FILE,
                    "the state file cannot be written: {error}; the last good one stays, the write is tried again"
                );
                // Full: so many are waiting to be told already.
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

    /// The stop waits no longer.
    fn give_up(&mut self) {
        if let Some(job) = self.job.take() {
            tracing::error!(
                file = D::FILE,
                "the state file was not written before the stop: an edit of it is half saved"
            );
            for saved in job.saved {
                saved.tell(false);
            }
        }
    }

    /// The directory was made anew: nothing in it was taken out by an administrator, and all of it has to be written.
    fn rebuild(&mut self, number: u64) {
        let entries = self.base.forget();
        self.on_disk = None;
        self.bad = None;
        self.racy = false;
        self.displaced = None;
        self.still.settle();
        if self.job.is_none() && !entries.is_empty() {
            self.job = Some(Job {
                document: entries,
                applied: number,
                saved: Vec::new(),
            });
        }
    }
}

impl Common {
    fn now(&self) -> Time {
        Time(self.clock.now().wall_ms)
    }

    fn send(&mut self, edit: Edit) {
        self.number = edit.number;
        // Full only while stopping (see `look`): then the edit is merged into the last write, and memory ends anyway.
        let _ = self.edits.try_send(edit);
    }
}

/// Time stamps have the grain of the kernel's tick: within it two contents of one size can carry the same.
fn is_racy(stat: &Stat) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0));
    stat.modified_within(now, SETTLE)
}
