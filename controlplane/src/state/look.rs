//! Looking at a state file, and taking in an edit that was found.

use std::io;
use std::time::{Duration, Instant};

use weir_shared::units::Time;

use super::disk::{Common, DiskFile};
use super::document::Document;
use super::fault::Fault;
use super::file::{Edit, Job, Stand, WriteFault, count};
use super::stat::{Digester, Hash, Seen};
use super::text;
use super::watch::{POLL, SETTLE, SETTLE_ASIDE, SETTLE_BAD, SETTLE_GONE, TICK};

/// What a look at the file found.
pub(super) enum Observed {
    /// The file is what was last read or written.
    Same,
    /// An edit was taken in.
    Taken,
    /// Wait: somebody may still be writing.
    Unsettled,
    /// The file does not fit. `settled` once it may be set aside.
    Bad { seen: Seen, settled: bool },
}

/// What is said of a file that was removed.
fn removed(list: &str) -> String {
    format!(
        "it was removed while the service runs, which takes nothing out, and is written again; save it with \"{list}\": [] to take all out"
    )
}

/// What is said of a directory, a pipe or a device in the place of a file.
fn displaced(aside: &str) -> String {
    format!(
        "what lay in its place is no regular file, is kept as {aside} and takes nothing out; it is written again"
    )
}

impl<D: Document> DiskFile<D> {
    /// Looks at the file where nothing is to be written. Returns when to look again.
    pub(super) fn idle(&mut self, common: &Common, now: Instant) -> Duration {
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

    /// Compares the file with what is known of it, and takes in an edit that is whole. An `eager`
    /// look does not wait for a file to lie still if it fits: a write is waiting.
    pub(super) fn look(
        &mut self,
        common: &Common,
        now: Instant,
        eager: bool,
    ) -> io::Result<Observed> {
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
            if D::REMOVED_IS_NO_EDIT {
                self.put_back(common, &removed(D::LIST));
                return Ok(Observed::Same);
            }
            self.take_file(common, Vec::new(), None, None);
            return Ok(Observed::Taken);
        };
        if !stat.is_file && (still >= SETTLE_ASIDE || common.stopping) {
            let aside = common.store.set_aside(D::FILE)?;
            self.put_back(common, &displaced(&aside));
            return Ok(Observed::Same);
        }
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

    /// The file is gone, and takes nothing with it (STATE-11): it is to be written again.
    fn put_back(&mut self, common: &Common, error: &str) {
        self.on_disk = None;
        self.clean = false;
        self.racy = false;
        self.bad = None;
        self.still.settle();
        if self.job.is_none() {
            let mut entries = self.base.entries().to_vec();
            D::sort(&mut entries);
            self.job = Some(Job {
                entries,
                revision: self.revision,
                stand: Stand {
                    document: 0,
                    journal: self.journal,
                },
                saved: Vec::new(),
            });
        }
        tracing::error!(file = D::FILE, "the state file: {error}");
        // Full: so many are waiting to be reported already.
        let (file, error) = (D::FILE, error.to_owned());
        let _ = common.faults.try_send(WriteFault { file, error });
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
            self.as_found = false;
            self.still.settle();
            return Observed::Same;
        }
        match text::parse::<D>(bytes) {
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
        let owner = seen.map(|seen| seen.stat.uid);
        self.take(common, entries, written, owner);
        self.on_disk = seen;
        self.as_found = false;
        // The service would have written the same: no need to, and no editor is warned.
        self.clean = match (seen, written) {
            (Some(seen), Some(written)) => self.hash_at(written) == Some(seen.hash),
            _ => false,
        };
        self.racy = seen.is_some_and(|seen| seen.stat.is_racy());
        self.bad = None;
        self.still.settle();
    }

    /// Takes in an edit whose copy is of the moment `read`, and tells the owner in memory. The file
    /// belongs to `uid`; none where it is gone.
    pub(super) fn take(
        &mut self,
        common: &Common,
        entries: Vec<D::Entry>,
        read: Option<Time>,
        uid: Option<u32>,
    ) {
        let now = Time(common.clock.now().wall_ms);
        let diff = self.base.take_found(entries, read, now);
        // Before it is sent: who has the edit finds it counted.
        count(&self.shared.counters.edits_taken);
        tracing::info!(
            file = D::FILE,
            uid,
            entries = diff.named(),
            "edit taken in: {}",
            diff.summary()
        );
        if diff.is_empty() {
            return;
        }
        self.revision += 1;
        // It lacks the edit; the owner sends another.
        if let Some(job) = self.job.take() {
            self.waiting.extend(job.saved);
        }
        // Not full (see `look`). Closed only when the owner has ended: the edit stays on disk for
        // the next start.
        let _ = self.edits.try_send(Edit {
            revision: self.revision,
            changes: diff.changes,
        });
    }

    /// Whether a write of the base would change nothing of the file but its time (STATE-11).
    pub(super) fn is_clean(&mut self) -> bool {
        if std::mem::take(&mut self.as_found) && !self.clean {
            let (found, written) = (self.on_disk, self.base.written());
            self.clean = found.is_some_and(|seen| self.hash_at(written) == Some(seen.hash));
        }
        self.clean
    }

    /// What a file of the base, of that moment, would hash to.
    fn hash_at(&mut self, written: Time) -> Option<Hash> {
        let mut hashing = Digester::default();
        self.envelope.stamp(written);
        text::write::<D>(&mut hashing, self.base.entries(), &self.envelope).ok()?;
        Some(hashing.finish())
    }
}
