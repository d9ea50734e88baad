//! Writing a state file: one try, its outcome, and one turn of the file.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use weir_shared::units::Time;

use super::commit::Commit;
use super::disk::{AnyFile, Attempt, Common, DiskFile, Displaced, Outage};
use super::document::Document;
use super::file::{Job, Stand, WriteFault, count};
use super::look::Observed;
use super::stat::{self, Seen};
use super::text;
use super::watch::{LINGER, POLL, Stillness, TICK};

/// Waits between tries of a failing write.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// An edit that arrives in the middle of a write sends it back to the start; after so many the
/// write is tried again at the next turn.
const ROUNDS: usize = 32;
/// What came of a write.
enum Wrote {
    /// The document is on disk, or was there already.
    Yes,
    /// It has to wait for an edit to settle, or for a document that holds the edit.
    NotYet,
}

impl<D: Document> DiskFile<D> {
    /// Writes the queued document.
    // long: one round of compare and swap, each step with its way out
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
            // Lines of the journal that the file does not hold by name count as a change: without
            // them nobody could tell that it holds them.
            let is_named = job.stand.journal == self.journal;
            let is_same = bad.is_none() && is_named && job.entries == self.base.entries();
            if is_same && self.is_clean() {
                return Ok(Wrote::Yes);
            }
            let Some(job) = &self.job else {
                return Ok(Wrote::NotYet);
            };
            let at = self.base.next_write(Time(common.clock.now().wall_ms));
            self.envelope.stamp(at);
            let staged = common.store.stage(D::FILE, |out| {
                text::write::<D>(out, &job.entries, &self.envelope)
            })?;
            if D::KEEPS_BASE {
                let mut history = self.base.history(&job.entries, at);
                history.journal = Some(job.stand.journal);
                common.store.keep_base(D::FILE, &staged, history)?;
            }
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
            self.journal = job.stand.journal;
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
            && let Ok(stat) = stat::stat_of(&file)
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

    fn succeed(&mut self) {
        self.shared.failure.set(None);
        if self.outage.take().is_some() {
            tracing::info!(file = D::FILE, "the state file is written again");
        }
        if let Some(job) = self.job.take() {
            // Before those who wait are told.
            let mut durable = self.shared.durable();
            if job.stand.document > durable.document {
                *durable = job.stand;
            }
            drop(durable);
            job.saved.into_iter().for_each(|saved| saved.tell(true));
        }
    }

    /// The document stays queued; those who wait are told at the first failure (STATE-2, STATE-7).
    fn fail(&mut self, common: &Common, now: Instant, error: &io::Error) -> Duration {
        count(&self.shared.counters.writes_error);
        // Before those who wait are told.
        self.shared.failure.set(Some(error.to_string()));
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
            // A try made only because somebody waits says nothing about how long the outage will
            // last.
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
                stand: Stand {
                    document: 0,
                    journal: self.journal,
                },
                saved: Vec::new(),
            });
        }
    }
}
