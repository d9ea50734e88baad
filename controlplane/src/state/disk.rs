//! The thread's side of a state file: what is known of the file on disk, and what is to be written.
//!
//! Nothing here waits long: a write that has to wait (an edit is half saved, the disk is full)
//! stays queued and the thread goes on. Time is an argument.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use weir_shared::clock::Clock;
use weir_shared::units::Time;

use super::diff::{Base, Change};
use super::document::Document;
use super::error::StateError;
use super::file::{Counters, Edit, Failure, Job, Saved, Shared, StateFile, WriteFault};
use super::journal::{self, Standing};
use super::kept_base::{self, KeptBase};
use super::known::{self, Found, Known};
use super::stat::{Hash, Seen, Stat};
use super::store::Store;
use super::text::{self, Content, Envelope};
use super::watch::Stillness;

/// Edits of one file that wait for the owner; it takes them every few milliseconds, an
/// administrator saves every few seconds. While they fill the channel further ones wait on disk.
const EDITS: usize = 64;

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
    /// One look and, if there is something to write, one try. Returns how long nothing needs to be
    /// done.
    fn turn(&mut self, common: &Common, now: Instant, unreachable: Option<&str>) -> Duration;
    /// A turn ended by a panic: it counts as a write that failed.
    fn fail_by_bug(&mut self, common: &Common, now: Instant) -> Duration;
    /// Whether somebody waits for the outcome of a write.
    fn is_awaited(&mut self) -> bool;
    /// Whether there is something to write.
    fn has_job(&mut self) -> bool;
    /// The stop waits no longer.
    fn give_up(&mut self);
    /// The directory was made anew: nothing in it was taken out by an administrator, and all of it
    /// has to be written.
    fn rebuild(&mut self);
}

/// The thread's side of a file: what is known of it, and what is to be written.
pub(super) struct DiskFile<D: Document> {
    pub(super) base: Base<D>,
    pub(super) envelope: Envelope,
    /// The last edit that was taken in.
    pub(super) revision: u64,
    pub(super) edits: Sender<Edit<D>>,
    pub(super) shared: Arc<Shared<D>>,
    /// None where there is no file.
    pub(super) on_disk: Option<Seen>,
    /// The file is as a write of the base would leave it. If not, the next document is written
    /// though no entry changed.
    pub(super) clean: bool,
    /// The file is as the start found it: whether it is clean was not looked at yet.
    pub(super) as_found: bool,
    /// The file was read within the grain of its own time stamp: a change right after would look
    /// like none.
    pub(super) racy: bool,
    /// The file as it stands was reported as bad.
    pub(super) bad: Option<Seen>,
    pub(super) still: Stillness,
    /// A write that failed after its rename may stand on disk all the same: it is ours, no edit.
    pub(super) attempt: Option<Attempt<D>>,
    pub(super) displaced: Option<Displaced>,
    pub(super) job: Option<Job<D>>,
    /// They waited for documents that lacked an edit, and wait for the next one now.
    pub(super) waiting: Vec<Saved>,
    pub(super) outage: Option<Outage>,
    /// A read that failed was reported.
    pub(super) unread: bool,
    /// The last line of the journal that the file holds.
    pub(super) journal: u64,
}

pub(super) struct Attempt<D: Document> {
    pub(super) hash: Hash,
    pub(super) entries: Vec<D::Entry>,
    pub(super) at: Time,
}

/// The file that was replaced last, still open: an editor may have opened it before, and write to
/// it after.
pub(super) struct Displaced {
    pub(super) file: File,
    pub(super) stat: Stat,
    /// The moment it is of.
    pub(super) written: Time,
    pub(super) still: Stillness,
    pub(super) until: Instant,
}

pub(super) struct Outage {
    pub(super) wait: Duration,
    pub(super) retry_at: Instant,
}

impl<D: Document> DiskFile<D> {
    /// Reads the file at start (STATE-6), with the help of what is known of it. Also gives the
    /// owner's side, and what was read.
    pub(super) fn open(
        store: &Store,
        wake: &Sender<()>,
        known: Option<Known<D>>,
        now: Time,
    ) -> Result<(Self, StateFile<D>, Read<D>), StateError> {
        let Start {
            base,
            envelope,
            on_disk,
            read,
        } = Start::<D>::read(store, known, now)?;
        let (edits_out, edits) = bounded(EDITS);
        let shared = Arc::new(Shared {
            queued: Mutex::new(None),
            counters: Counters::default(),
            failure: Failure::default(),
            durable: Mutex::default(),
        });
        let file = StateFile {
            edits,
            shared: Arc::clone(&shared),
            wake: wake.clone(),
        };
        let disk = Self {
            base,
            envelope,
            revision: 0,
            edits: edits_out,
            shared,
            on_disk,
            // A hand may have left out what was completed, or a version before this one has written
            // it: the first write finds out.
            clean: false,
            as_found: true,
            racy: false,
            bad: None,
            still: Stillness::default(),
            attempt: None,
            displaced: None,
            job: None,
            waiting: Vec::new(),
            outage: None,
            unread: false,
            journal: match read.journal {
                Standing::After(number) => number,
                Standing::Nothing | Standing::Every => 0,
            },
        };
        Ok((disk, file, read))
    }

    /// Takes the document that the owner sent, if there is one and it holds every edit.
    pub(super) fn accept(&mut self) {
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
    pub(super) fn is_due(&self, common: &Common, now: Instant) -> bool {
        match (&self.job, &self.outage) {
            (None, _) => false,
            // Somebody waits for the answer: no use in making them wait for the next try as well.
            (Some(job), Some(outage)) => {
                !job.saved.is_empty() || outage.retry_at <= now || common.stopping
            }
            (Some(_), None) => true,
        }
    }
}

/// What a start finds of a file.
pub(crate) struct Read<D: Document> {
    /// What was last written, or what is in the file where nobody knows that.
    pub(crate) entries: Vec<D::Entry>,
    /// What somebody has done to the file since, in the last moment before a kill or while no
    /// service ran. None, if the copy was merely older than the file.
    pub(crate) edit: Option<Vec<Change<D>>>,
    /// Which lines of the journal came behind the entries, and before the edit.
    pub(crate) journal: Standing,
}

impl Standing {
    /// By what is known of the file that was last written.
    pub(super) fn of<K>(kept: Option<&KeptBase<K>>) -> Self {
        match kept.map(|kept| kept.history.journal) {
            None => Self::Every,
            Some(None) => Self::Nothing,
            Some(Some(number)) => Self::After(number),
        }
    }

    /// The same for somebody who only looks.
    pub(crate) fn found<D: Document>(dir: &Path) -> Self {
        if !dir.join(D::FILE).exists() {
            return Self::Nothing;
        }
        Self::of(kept_base::read::<D::Key>(&kept_base::path(dir, D::FILE), D::FILE).as_ref())
    }
}

/// A file as it was found at the start.
struct Start<D: Document> {
    base: Base<D>,
    envelope: Envelope,
    on_disk: Option<Seen>,
    read: Read<D>,
}

impl<D: Document> Start<D> {
    fn read(store: &Store, known: Option<Known<D>>, now: Time) -> Result<Self, StateError> {
        let failed = |error| StateError::Read {
            path: store.path(D::FILE),
            error,
        };
        store.recover(D::FILE).map_err(failed)?;
        let Some(found) = known::find::<D>(store, known)? else {
            // The journal goes first: without a base all of it would count.
            if D::KEEPS_BASE {
                journal::forget(&store.dir).map_err(failed)?;
            }
            store.forget_base(D::FILE).map_err(failed)?;
            return Ok(Self {
                base: Base::new(Vec::new(), None),
                envelope: Envelope::new::<D>(),
                on_disk: None,
                read: Read {
                    entries: Vec::new(),
                    edit: None,
                    journal: Standing::Nothing,
                },
            });
        };
        let Found {
            content,
            seen,
            kept,
        } = found;
        let Content {
            entries,
            envelope,
            written,
        } = content;
        let journal = Standing::of(kept.as_ref());
        let as_it_stands = |entries| (Base::new(D::complete(entries, &[], now), written), None);
        let (base, edited) = match kept {
            None => as_it_stands(entries),
            Some(kept) if kept.hash == seen.hash => {
                (Base::remembered(entries, written, kept.history), None)
            }
            Some(kept) => match last_written(kept, written) {
                Some(base) => (base, Some(entries)),
                None => as_it_stands(entries),
            },
        };
        let mut start = Self {
            read: Read {
                entries: base.entries().to_vec(),
                edit: None,
                journal,
            },
            base,
            envelope,
            on_disk: Some(seen),
        };
        if let Some(found) = edited {
            start.take_edit(found, written, &seen, now);
        }
        Ok(start)
    }

    /// The file is not the one that was last written: it was edited while the service did not run,
    /// or in the last moment before it was killed. The edit is taken as a running service takes it;
    /// a document that holds it must follow.
    fn take_edit(&mut self, found: Vec<D::Entry>, read: Option<Time>, seen: &Seen, now: Time) {
        let diff = self.base.take_found(found, read, now);
        tracing::info!(
            file = D::FILE,
            uid = seen.stat.uid,
            entries = diff.named(),
            "edit from before the start taken in: {}",
            diff.summary()
        );
        if !diff.is_empty() {
            self.read.edit = Some(diff.changes);
        }
    }
}

/// What was last written of the file; none where that is not understood.
fn last_written<D: Document>(kept: KeptBase<D::Key>, read: Option<Time>) -> Option<Base<D>> {
    match text::parse::<D>(&kept.document) {
        Ok(base) => {
            // A version before this one writes the file without its base, and says so with its
            // stamp.
            let written = base.written.max(read);
            Some(Base::remembered(base.entries, written, kept.history))
        }
        Err(fault) => {
            tracing::warn!(
                file = D::FILE,
                "what was last written of the state file is not understood ({fault}): the file counts as it stands"
            );
            None
        }
    }
}
