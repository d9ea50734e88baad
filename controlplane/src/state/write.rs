//! Writing a state file: one try.

use std::io;
use std::time::Instant;

use weir_shared::units::Time;

use super::commit::Commit;
use super::common::Common;
use super::disk::DiskFile;
use super::displaced::Displaced;
use super::document::Document;
use super::file::count;
use super::look::Observed;
use super::on_disk::Form;

/// An edit that arrives in the middle of a write sends it back to the start; after so many the
/// write is tried again at the next turn.
const ROUNDS: usize = 32;

/// What came of a write.
pub(super) enum Wrote {
    /// The document is on disk, or was there already.
    Yes,
    /// It has to wait for an edit to settle, or for a document that holds the edit.
    NotYet,
}

impl<D: Document> DiskFile<D> {
    /// Writes the document that waits.
    // long: one round of compare and swap, each step with its way out
    pub(super) fn write(&mut self, common: &Common, now: Instant) -> io::Result<Wrote> {
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
            let holds = |job| self.agreed.holds(job);
            let is_held = self.pending.job().is_some_and(holds);
            let is_same = bad.is_none() && is_held && self.is_as_written();
            let seen = bad.as_ref().or(self.on_disk.seen());
            // Where an edit holds the document already, its base alone is renewed: from an older
            // one the next start would take the same edit in once more.
            let is_done = is_same && seen.is_none_or(|seen| self.agreed.is_kept(seen.hash));
            let Some(job) = self.pending.job_mut() else {
                return Ok(Wrote::NotYet);
            };
            if is_done {
                return Ok(Wrote::Yes);
            }
            let base = self.agreed.base();
            let before = base.written();
            let at = if is_same {
                before
            } else {
                base.next_write(Time(common.clock.now().wall_ms))
            };
            let staged = common
                .store
                .stage(D::FILE, |out| self.agreed.write(out, &job.entries, at))?;
            self.agreed.keep_base(&common.store, &staged, job, at)?;
            let hash = staged.seen.hash;
            if is_same {
                common.store.sync_dir()?;
                self.agreed.wrote(job, at, hash);
                return Ok(Wrote::Yes);
            }
            let committed = common
                .store
                .commit(D::FILE, staged, seen, bad.is_some())
                .inspect_err(|_| self.agreed.tried(hash, job, at))?;
            let Commit::Done { seen, displaced } = committed else {
                continue;
            };
            self.agreed.wrote(job, at, hash);
            self.on_disk.stands(Some(seen), Form::AsWritten);
            count(&self.shared.counters.writes_ok);
            if bad.is_some() {
                count(&self.shared.counters.edits_bad);
                tracing::warn!(
                    file = D::FILE,
                    "the edit that was not taken is set aside as {}.bad",
                    D::FILE
                );
            } else if let Some(file) = displaced {
                self.displaced = Displaced::new(file, before, now).or(self.displaced.take());
            }
            return Ok(Wrote::Yes);
        }
        Ok(Wrote::NotYet)
    }
}
