//! Looking at a state file, and taking in an edit that was found.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_shared::units::Time;

use super::common::Common;
use super::disk::DiskFile;
use super::displaced::Later;
use super::document::Document;
use super::fault::Fault;
use super::file::{Edit, count};
use super::on_disk::{Form, Sight};
use super::stat::{self, Seen};
use super::text;
use super::watch::{POLL, SETTLE, SETTLE_ASIDE, SETTLE_GONE, TICK};
use crate::faults::PartFault;
use crate::memory;

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

impl<D: Document> DiskFile<D> {
    /// Looks at the file where nothing is to be written. Returns when to look again.
    pub(super) fn idle(&mut self, common: &Common, now: Instant) -> Duration {
        match self.look(common, now, false) {
            Ok(Observed::Unsettled) => TICK,
            Ok(Observed::Same | Observed::Taken | Observed::Bad { .. }) => {
                self.unread = false;
                if self.on_disk.is_racy() { TICK } else { POLL }
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

    /// An editor may have opened the old file before it was replaced, and written to it since: that
    /// edit is not in the new file. It is taken in as what it is, an edit of an older copy.
    pub(super) fn check_displaced(&mut self, common: &Common, now: Instant) -> Duration {
        let Some(displaced) = &mut self.displaced else {
            return POLL;
        };
        let written = displaced.written;
        match displaced.look::<D>(now, self.edits.is_full()) {
            Later::Wait(wait) => return wait,
            Later::Over => {
                self.displaced = None;
                return POLL;
            }
            Later::Saved(content, uid) => {
                let read = content.written.unwrap_or(written);
                self.take(common, content.entries, Some(read), Some(uid));
                self.on_disk.set_form(Form::Other);
            }
            Later::Bad(error) => tracing::error!(
                file = D::FILE,
                "an edit that was saved while the file was written is not taken: {error}"
            ),
        }
        self.displaced = None;
        TICK
    }

    /// Compares the file with what is known of it, and takes in an edit that is whole. An `eager`
    /// look does not wait for a file to lie still if it fits: a write is waiting.
    pub(super) fn look(
        &mut self,
        common: &Common,
        now: Instant,
        eager: bool,
    ) -> io::Result<Observed> {
        // An edit is only taken in when the owner can be told: a full channel holds it on disk.
        let full = self.edits.is_full();
        match self.on_disk.look(common.store.stat(D::FILE)?, now) {
            Sight::Known => Ok(Observed::Same),
            Sight::Bad { seen, settled } => Ok(Observed::Bad { seen, settled }),
            Sight::Gone(still) if still < SETTLE_GONE || full => Ok(Observed::Unsettled),
            Sight::Gone(_) if D::REMOVED_IS_NO_EDIT => {
                let error = format!(
                    "it was removed while the service runs, which takes nothing out, and is written again; save it with \"{}\": [] to take all out",
                    D::LIST
                );
                self.put_back(common, &error);
                Ok(Observed::Same)
            }
            Sight::Gone(_) => {
                self.take_file(common, Vec::new(), None, None);
                Ok(Observed::Taken)
            }
            Sight::NoFile(still) if still >= SETTLE_ASIDE || common.stopping => {
                let aside = common.store.set_aside(D::FILE)?;
                let error = format!(
                    "what lay in its place is no regular file, is kept as {aside} and takes nothing out; it is written again"
                );
                self.put_back(common, &error);
                Ok(Observed::Same)
            }
            Sight::NoFile(_) => Ok(Observed::Unsettled),
            Sight::Changed(_, still) if full || (!eager && still < SETTLE) => {
                Ok(Observed::Unsettled)
            }
            Sight::Changed(stat, still) => match stat::read(&common.store.path(D::FILE)) {
                Ok(None) => Ok(Observed::Unsettled),
                Ok(Some((bytes, seen))) => Ok(self.judge(common, &bytes, seen, still)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let fault = Fault::unreadable(&error);
                    let (hash, racy) = ([0; 32], false);
                    Ok(self.refuse(&fault, Seen { stat, hash, racy }, still))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// The file is gone, and takes nothing with it (STATE-11): it is to be written again.
    fn put_back(&mut self, common: &Common, error: &str) {
        self.on_disk.lose();
        self.pending.write_again(&self.agreed);
        tracing::error!(file = D::FILE, "the state file: {error}");
        common.faults.tell(PartFault::state(D::FILE, error));
    }

    /// What the file as it was just read is: ours, an edit, or nothing that fits.
    fn judge(&mut self, common: &Common, bytes: &[u8], seen: Seen, still: Duration) -> Observed {
        if self.on_disk.is_unchanged(seen) {
            return Observed::Same;
        }
        if self.agreed.stands_after_all(seen.hash) {
            // Nobody knows whether it would stand after a power cut: it is written again.
            self.on_disk.stands(Some(seen), Form::Other);
            return Observed::Same;
        }
        let most = self.shared.most.load(Ordering::Relaxed);
        let now = Time(common.clock.now().wall_ms);
        let whole = text::parse::<D>(bytes).and_then(|content| {
            let fits = D::check_all(&content.entries, most, now);
            let place = format!("/{}", D::LIST);
            fits.map_err(|fault| Fault::new(1, 1, &place, &fault))?;
            Ok(content)
        });
        match whole {
            Ok(content) => {
                self.agreed.take_envelope(content.envelope);
                self.take_file(common, content.entries, content.written, Some(seen));
                Observed::Taken
            }
            Err(fault) => self.refuse(&fault, seen, still),
        }
    }

    /// The file does not fit; it is reported once it lies still.
    fn refuse(&mut self, fault: &Fault, seen: Seen, still: Duration) -> Observed {
        let Some(settled) = self.on_disk.refuse(seen, still) else {
            return Observed::Unsettled;
        };
        tracing::error!(
            file = D::FILE,
            line = fault.line,
            column = fault.column,
            pointer = fault.pointer,
            "the edit is not taken: {fault}; what was held stays, the next write sets the file aside as {}.bad",
            D::FILE
        );
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
        self.on_disk.stands(seen, Form::Unknown);
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
        let before = self.agreed.base().entries().len();
        let diff = self.agreed.take(entries, read, now);
        memory::freed(before.max(self.agreed.base().entries().len()));
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
        self.pending.drop_job();
        // Not full (see `look`). Closed only when the owner has ended: the edit stays on disk for
        // the next start.
        let _ = self.edits.try_send(Edit {
            revision: self.agreed.revision(),
            changes: diff.changes,
        });
    }

    /// Whether a write would change nothing of the file but its time (STATE-11). Where the service
    /// would have written an edit the same way, it need not, and no editor is warned.
    pub(super) fn is_as_written(&mut self) -> bool {
        if self.on_disk.form() == Form::Unknown {
            let seen = self.on_disk.seen().map(|seen| seen.hash);
            let is_same = seen.is_some() && seen == self.agreed.hash();
            self.on_disk.set_form(match is_same {
                true => Form::AsWritten,
                false => Form::Other,
            });
        }
        self.on_disk.form() == Form::AsWritten
    }
}
