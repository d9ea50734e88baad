//! What the file and memory last agreed on: the base of the next edit.

use std::io::{self, Write};

use weir_shared::units::Time;

use super::diff::{Base, Diff};
use super::document::Document;
use super::file::{Job, Stand};
use super::journal::Standing;
use super::stat::{Digester, Hash};
use super::store::{Staged, Store};
use super::text::{self, Envelope};

/// The last document that was read or written, with everything around its entries.
pub(super) struct Agreed<D: Document> {
    base: Base<D>,
    envelope: Envelope,
    /// The last edit that was taken in.
    revision: u64,
    /// The last line of the journal that the file holds.
    journal: u64,
    /// Hash of the document in the base that is kept (`kept_base.rs`), where that is known.
    kept: Option<Hash>,
    /// A write that failed after its rename may stand on disk all the same: it is ours, no edit.
    attempt: Option<Attempt<D>>,
}

struct Attempt<D: Document> {
    hash: Hash,
    entries: Vec<D::Entry>,
    at: Time,
}

impl<D: Document> Agreed<D> {
    /// As a start found it.
    pub(super) fn new(
        base: Base<D>,
        envelope: Envelope,
        journal: Standing,
        kept: Option<Hash>,
    ) -> Self {
        Self {
            base,
            envelope,
            revision: 0,
            journal: journal.last(),
            kept,
            attempt: None,
        }
    }

    pub(super) const fn base(&self) -> &Base<D> {
        &self.base
    }

    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// What was agreed on, as a document to be written again.
    pub(super) fn document(&self) -> Job<D> {
        let mut entries = self.base.entries().to_vec();
        D::sort(&mut entries);
        Job {
            entries,
            revision: self.revision,
            stand: Stand {
                document: 0,
                journal: self.journal,
            },
            saved: Vec::new(),
        }
    }

    /// Whether the file holds what this document holds. A number of the journal that the file does
    /// not say yet counts as a change: by it a start tells which lines the file holds.
    pub(super) fn holds(&self, job: &Job<D>) -> bool {
        job.stand.journal == self.journal && job.entries == self.base.entries()
    }

    /// Writes a file of these entries.
    pub(super) fn write(
        &mut self,
        out: &mut dyn Write,
        entries: &[D::Entry],
        at: Time,
    ) -> io::Result<()> {
        self.envelope.stamp(at);
        text::write::<D>(out, entries, &self.envelope)
    }

    /// What the file hashes to, if this service has written it.
    pub(super) fn hash(&mut self) -> Option<Hash> {
        let mut hashing = Digester::default();
        self.envelope.stamp(self.base.written());
        text::write::<D>(&mut hashing, self.base.entries(), &self.envelope).ok()?;
        Some(hashing.finish())
    }

    /// Whether a base of the file with this hash is kept, where one has to be.
    pub(super) fn is_kept(&self, file: Hash) -> bool {
        !D::KEEPS_BASE || self.kept == Some(file)
    }

    /// Keeps the base of this document, which is staged, where one has to be kept. Until its name
    /// is synced and the document counts as written, nobody knows of which one the base is.
    pub(super) fn keep_base(
        &mut self,
        store: &Store,
        staged: &Staged<'_>,
        job: &Job<D>,
        at: Time,
    ) -> io::Result<()> {
        if D::KEEPS_BASE {
            let mut history = self.base.history(&job.entries, at);
            history.journal = Some(job.stand.journal);
            self.kept = None;
            store.keep_base(D::FILE, staged, history)?;
        }
        Ok(())
    }

    /// This document was written. Its entries move: 20,000 clients need not be held twice.
    pub(super) fn wrote(&mut self, job: &mut Job<D>, at: Time, hash: Hash) {
        self.kept = Some(hash);
        self.journal = job.stand.journal;
        self.base.wrote(std::mem::take(&mut job.entries), at);
        self.attempt = None;
    }

    /// A write of this document failed.
    pub(super) fn tried(&mut self, hash: Hash, job: &Job<D>, at: Time) {
        let entries = job.entries.clone();
        self.attempt = Some(Attempt { hash, entries, at });
    }

    /// Whether the file with this hash is of a write that failed. It stands then, and is agreed on.
    pub(super) fn stands_after_all(&mut self, hash: Hash) -> bool {
        let tried = self.attempt.take_if(|tried| tried.hash == hash);
        let Some(tried) = tried else { return false };
        self.base.wrote(tried.entries, tried.at);
        true
    }

    /// Takes in an edit whose copy is of the moment `read`.
    pub(super) fn take(
        &mut self,
        entries: Vec<D::Entry>,
        read: Option<Time>,
        now: Time,
    ) -> Diff<D> {
        let diff = self.base.take_found(entries, read, now);
        if !diff.is_empty() {
            self.revision += 1;
        }
        diff
    }

    /// What stands around the entries is as it was found in the file.
    pub(super) fn take_envelope(&mut self, envelope: Envelope) {
        self.envelope = envelope;
    }

    /// The file was lost together with its directory: nothing was taken out of what is put in its
    /// place.
    pub(super) fn lose(&mut self) {
        self.base.lose();
    }
}
