//! What is to be written, who waits for it, and since when it fails.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agreed::Agreed;
use super::common::Common;
use super::document::Document;
use super::file::{Job, Saved, Shared, count};
use super::text;
use crate::faults::PartFault;

/// Waits between tries of a failing write.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// The document that waits to be written.
pub(super) struct Pending<D: Document> {
    job: Option<Job<D>>,
    /// Callers whose documents lacked an edit: the next document answers them.
    waiting: Vec<Saved>,
    outage: Option<Outage>,
    shared: Arc<Shared<D>>,
}

struct Outage {
    wait: Duration,
    retry_at: Instant,
}

impl<D: Document> Pending<D> {
    pub(super) const fn new(shared: Arc<Shared<D>>) -> Self {
        Self {
            job: None,
            waiting: Vec::new(),
            outage: None,
            shared,
        }
    }

    /// Takes the document that the owner sent, if there is one and it holds every edit.
    pub(super) fn accept(&mut self, agreed: &Agreed<D>) {
        let Some(mut job) = self.shared.queued().take() else {
            return;
        };
        self.drop_job();
        self.waiting.append(&mut job.saved);
        if job.revision < agreed.revision() {
            return;
        }
        job.saved = std::mem::take(&mut self.waiting);
        text::with_unknown::<D>(&mut job.entries, agreed.base().entries());
        D::sort(&mut job.entries);
        self.job = Some(job);
    }

    pub(super) const fn job(&self) -> Option<&Job<D>> {
        self.job.as_ref()
    }

    pub(super) const fn job_mut(&mut self) -> Option<&mut Job<D>> {
        self.job.as_mut()
    }

    /// The document lacks an edit: the owner sends another, and those who wait go on waiting.
    pub(super) fn drop_job(&mut self) {
        if let Some(job) = self.job.take() {
            self.waiting.extend(job.saved);
        }
    }

    /// What was agreed on is to be written again, unless a document waits already.
    pub(super) fn write_again(&mut self, agreed: &Agreed<D>) {
        self.job.get_or_insert_with(|| agreed.document());
    }

    /// Whether somebody waits for the outcome.
    pub(super) fn is_awaited(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.saved.is_empty())
    }

    /// Whether a write should be tried now. Where somebody waits for the answer it is: no use in
    /// making them wait for the next try as well.
    pub(super) fn is_due(&self, now: Instant, stopping: bool) -> bool {
        let is_over = |outage: &Outage| outage.retry_at <= now;
        self.job.is_some()
            && (stopping || self.is_awaited() || self.outage.as_ref().is_none_or(is_over))
    }

    /// How long a failing write waits for its next try; none where none fails.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let outage = self.job.as_ref().and(self.outage.as_ref())?;
        Some(outage.retry_at.saturating_duration_since(now))
    }

    /// The document is on disk.
    pub(super) fn succeed(&mut self) {
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

    /// The document stays queued but at a stop; those who wait are told at the first failure
    /// (STATE-2, STATE-7), and it is reported once an outage. Returns how long to wait.
    pub(super) fn fail(&mut self, common: &Common, now: Instant, error: &io::Error) -> Duration {
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
                common.faults.tell(PartFault::state(D::FILE, error));
                RETRY_FIRST
            }
            // A try made only because somebody waits says nothing about how long the outage will
            // last.
            Some(outage) if outage.retry_at > now => return outage.retry_at - now,
            Some(outage) => (outage.wait * 2).min(RETRY_LAST),
        };
        let retry_at = now + wait;
        self.outage = Some(Outage { wait, retry_at });
        wait
    }

    /// A bug ended a turn: nobody waits for an outcome that never comes.
    pub(super) fn fail_by_bug(&mut self, common: &Common, now: Instant) -> Duration {
        self.waiting.drain(..).for_each(|saved| saved.tell(false));
        let error = io::Error::other("its thread panicked; please report this");
        self.fail(common, now, &error).max(RETRY_FIRST)
    }

    /// The stop waits no longer.
    pub(super) fn give_up(&mut self) {
        if let Some(job) = self.job.take() {
            tracing::error!(
                file = D::FILE,
                "the state file was not written before the stop: an edit of it is half saved"
            );
            job.saved.into_iter().for_each(|saved| saved.tell(false));
        }
    }
}
