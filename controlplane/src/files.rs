//! The state files, as the control loop sees them: when each is due, which edits it has taken in,
//! and who waits until a change of the bans is on disk (STATE-1, STATE-2, STATE-10).
//!
//! What an edit means is left to its owner, how files are read and written to `state/`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, bounded};
use weir_shared::ban::Ban;
use weir_shared::clock::Now;
use weir_shared::handover::Respond;
use weir_shared::settings::Settings;
use weir_shared::table::ClientRow;

use crate::admin::bans::Pending;
use crate::alert::document::{AlertsEntry, AlertsFile};
use crate::bans::document::BansFile;
use crate::bans::journal::BanLine;
use crate::bans::ledger::changes::LedgerChange;
use crate::clients::ClientsFile;
use crate::lookup::LookupRow;
use crate::lookup::document::LookupsFile;
use crate::state::document::{Document, Row};
use crate::state::{Edit, Failure, FileCounts, Saved, Stand};

mod opening;
mod unsaved;

#[cfg(fuzzing)]
pub use opening::reread;
pub use opening::{JournalStart, KnownFiles, StartState, StateFiles};

use unsaved::Unsaved;

/// A journal that has grown so long is closed until a document lets it be emptied. It is emptied
/// with nearly every document: only while lines come all the time one of them is behind it.
const MAX_JOURNAL: u64 = 16 << 20;

/// How long an answer waits for the disk before it says `"persisted": false`.
const PERSIST_WAIT_NS: u64 = 5_000_000_000;

/// The most answers that wait for the disk: with one that hangs, further ones do not wait at all.
/// What failed is tried again by the thread of the files, which keeps the newest document.
pub(crate) const MAX_WAITING: usize = 256;

fn entries<T>(rows: Vec<T>) -> Vec<Row<T>> {
    rows.into_iter().map(Row::from).collect()
}

/// One of the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    Bans,
    Clients,
    Lookups,
    Alerts,
}

impl Which {
    /// All of them, in the order in which they are written: the one that answers wait for comes
    /// first.
    pub(crate) const ALL: [Self; 4] = [Self::Bans, Self::Clients, Self::Lookups, Self::Alerts];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bans => BansFile::FILE,
            Self::Clients => ClientsFile::FILE,
            Self::Lookups => LookupsFile::FILE,
            Self::Alerts => AlertsFile::FILE,
        }
    }
}

/// An edit of one of the files.
pub(crate) enum AnyEdit {
    Bans(Edit<BansFile>),
    Clients(Edit<ClientsFile>),
    Lookups(Edit<LookupsFile>),
    Alerts(Edit<AlertsFile>),
}

/// What one of the files is to hold.
pub(crate) enum Content {
    Bans(Vec<Arc<Ban>>),
    Clients(Vec<ClientRow>),
    Lookups(Vec<LookupRow>),
    Alerts(Vec<AlertsEntry>),
}

/// The loop's dealings with the files.
pub(crate) struct Files {
    disk: StateFiles,
    /// The last edit of each that memory holds, by [`Which`].
    revisions: [u64; Which::ALL.len()],
    /// Edits that are being taken in: after a panic they are tried once more.
    in_hand: VecDeque<Arc<AnyEdit>>,
    /// `WAF_STATE_COUNTER_INTERVAL`
    interval_ns: u64,
    /// What is in no file yet.
    unsaved: Unsaved,
    /// When all files were saved last, on the monotonic clock.
    all_saved_ns: u64,
    /// Who waits for the outcome of a write, until told. At most [`MAX_WAITING`], and one a file at
    /// a stop.
    waiting: HashMap<u64, Option<Waiting>>,
    /// Those of them whose line was lost: they wait for a document instead.
    unrecorded: Vec<Waiting>,
    next: u64,
    outcomes: Sender<(u64, bool)>,
    saved: Receiver<(u64, bool)>,
}

/// An answer that waits for the disk.
struct Waiting {
    respond: Respond,
    pending: Pending,
    /// Until when, on the monotonic clock.
    deadline_ns: u64,
    /// For a line of the journal.
    in_journal: bool,
}

impl Waiting {
    fn answer(self, persisted: bool) {
        self.pending.answer_to(self.respond, persisted);
    }
}

impl AnyEdit {
    fn which(&self) -> Which {
        match self {
            Self::Bans(_) => Which::Bans,
            Self::Clients(_) => Which::Clients,
            Self::Lookups(_) => Which::Lookups,
            Self::Alerts(_) => Which::Alerts,
        }
    }

    fn revision(&self) -> u64 {
        match self {
            Self::Bans(edit) => edit.revision,
            Self::Clients(edit) => edit.revision,
            Self::Lookups(edit) => edit.revision,
            Self::Alerts(edit) => edit.revision,
        }
    }
}

impl Files {
    pub(crate) fn new(
        disk: StateFiles,
        journal: JournalStart,
        settings: &Settings,
        now: Now,
    ) -> Self {
        let (outcomes, saved) = bounded(MAX_WAITING + Which::ALL.len());
        let delay_ns = nanos(settings.state.write_delay);
        disk.bans.set_most(settings.bans.max);
        Self {
            disk,
            revisions: [0; Which::ALL.len()],
            in_hand: VecDeque::new(),
            interval_ns: nanos(settings.state.counter_interval),
            unsaved: Unsaved::new(journal, delay_ns, now.mono_ns),
            all_saved_ns: now.mono_ns,
            waiting: HashMap::new(),
            unrecorded: Vec::new(),
            next: 0,
            outcomes,
            saved,
        }
    }

    /// When files are due from now on.
    pub(crate) fn take_settings(&mut self, settings: &Settings) {
        self.disk.bans.set_most(settings.bans.max);
        self.unsaved.set_delay(nanos(settings.state.write_delay));
        self.interval_ns = nanos(settings.state.counter_interval);
    }

    /// What the loop wakes for.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.saved);
        select.recv(self.disk.bans.edits());
        select.recv(self.disk.clients.edits());
        select.recv(self.disk.lookups.edits());
        select.recv(self.disk.alerts.edits());
    }

    /// The next edit; to be given to [`Files::taken`] once it is in force.
    pub(crate) fn next_edit(&mut self) -> Option<Arc<AnyEdit>> {
        let disk = &mut self.disk;
        let edit = (disk.bans.next_edit().map(AnyEdit::Bans))
            .or_else(|| disk.clients.next_edit().map(AnyEdit::Clients))
            .or_else(|| disk.lookups.next_edit().map(AnyEdit::Lookups))
            .or_else(|| disk.alerts.next_edit().map(AnyEdit::Alerts));
        let edit = Arc::new(edit?);
        self.in_hand.push_back(Arc::clone(&edit));
        Some(edit)
    }

    /// Memory holds this edit, or as much of it as it takes. The file is to be written next: until
    /// then its thread holds back what lacks the edit.
    pub(crate) fn taken(&mut self, edit: &AnyEdit) -> Which {
        let which = edit.which();
        if let Some(revision) = self.revisions.get_mut(which as usize) {
            *revision = edit.revision();
        }
        self.in_hand.pop_front();
        which
    }

    /// The edit that a panic interrupted.
    pub(crate) fn interrupted(&self) -> Option<Arc<AnyEdit>> {
        self.in_hand.front().cloned()
    }

    pub(crate) fn counts(&self) -> [FileCounts; Which::ALL.len() + 1] {
        [
            self.disk.bans.counts(),
            self.disk.clients.counts(),
            self.disk.lookups.counts(),
            self.disk.alerts.counts(),
            self.disk.journal.counts(),
        ]
    }

    /// The bans changed.
    pub(crate) fn note(&mut self, changes: Vec<LedgerChange>, now: Now) {
        self.unsaved.note(changes, now.mono_ns);
    }

    /// What was noted of the bans may lack something: all of them are written.
    pub(crate) fn bans_unsure(&mut self, now: Now) {
        self.unsaved.close(now.mono_ns);
    }

    /// The files that are due at this moment, where so many bans are held.
    pub(crate) fn due(&mut self, held: usize, now: Now) -> &'static [Which] {
        if now.mono_ns.saturating_sub(self.all_saved_ns) >= self.interval_ns {
            self.all_saved_ns = now.mono_ns;
            &Which::ALL
        } else if self.unsaved.document_is_due(held, now.mono_ns) {
            &[Which::Bans]
        } else {
            &[]
        }
    }

    /// Sends a document. Only where someone waits for it is its outcome asked for: the thread then
    /// tries at once, and with its own pauses otherwise (STATE-7).
    pub(crate) fn save(&mut self, content: Content, saved: Vec<Saved>, now: Now) {
        let [bans_revision, clients, lookups, alerts] = self.revisions;
        let none = Stand::default();
        match content {
            Content::Bans(bans) => {
                let stand = self.unsaved.send_document(now.mono_ns);
                self.disk.bans.save(stand, bans, bans_revision, saved);
            }
            Content::Clients(rows) => self.disk.clients.save(none, entries(rows), clients, saved),
            Content::Lookups(rows) => self.disk.lookups.save(none, entries(rows), lookups, saved),
            Content::Alerts(rows) => self.disk.alerts.save(none, entries(rows), alerts, saved),
        }
    }

    /// Sends a document that holds an edit which was taken in.
    pub(crate) fn save_edited(&mut self, content: Content, now: Now) {
        let is_of_bans = matches!(content, Content::Bans(_));
        self.save(content, Vec::new(), now);
        if is_of_bans {
            self.unsaved.close_behind();
        }
    }

    /// Writes what changed into the journal, where changes of so many held bans are due there.
    pub(crate) fn record_due(&mut self, held: usize, now: Now) {
        if self.unsaved.line_is_due(now.mono_ns)
            && let Some(line) = self.unsaved.take_line(held)
        {
            self.write_line(line, Vec::new(), now);
        }
    }

    /// Writes what changed into the journal, and answers once it is on disk (STATE-2, STATE-10).
    ///
    /// # Errors
    /// The answers, where they must wait for a document.
    pub(crate) fn record(
        &mut self,
        changes: Vec<(Respond, Pending)>,
        held: usize,
        now: Now,
    ) -> Result<(), Vec<(Respond, Pending)>> {
        if !self.unrecorded.is_empty() {
            return Err(changes);
        }
        let Some(line) = self.unsaved.take_line(held) else {
            return Err(changes);
        };
        let saved = self.wait_for(changes, true, now);
        self.write_line(line, saved, now);
        Ok(())
    }

    fn write_line(&mut self, line: BanLine, saved: Vec<Saved>, now: Now) {
        // Too far behind: those who wait are told so when their places are dropped.
        if self.disk.journal.write(line, saved).is_err() {
            self.unsaved.close(now.mono_ns);
        } else if self.disk.journal.bytes() > MAX_JOURNAL {
            self.unsaved.close_once(now.mono_ns);
        }
    }

    /// Whether answers wait for a document that was not sent yet.
    pub(crate) fn has_unrecorded(&self) -> bool {
        !self.unrecorded.is_empty()
    }

    /// Sends bans.json and answers once it is on disk, or when that failed or took too long
    /// (STATE-2).
    pub(crate) fn answer_saved(
        &mut self,
        bans: Vec<Arc<Ban>>,
        changes: Vec<(Respond, Pending)>,
        now: Now,
    ) {
        let mut saved = self.wait_for(changes, false, now);
        for waiting in std::mem::take(&mut self.unrecorded) {
            saved.push(self.awaited(Some(waiting)));
        }
        self.save(Content::Bans(bans), saved, now);
    }

    /// Places for those who wait; further ones than may are answered at once.
    fn wait_for(
        &mut self,
        changes: Vec<(Respond, Pending)>,
        in_journal: bool,
        now: Now,
    ) -> Vec<Saved> {
        let mut saved = Vec::new();
        for (respond, pending) in changes {
            if self.waiting.len() >= MAX_WAITING {
                pending.answer_to(respond, false);
            } else {
                saved.push(self.awaited(Some(Waiting {
                    respond,
                    pending,
                    deadline_ns: now.mono_ns.saturating_add(PERSIST_WAIT_NS),
                    in_journal,
                })));
            }
        }
        saved
    }

    /// Sends a document whose outcome is waited for by [`Files::all_saved`].
    pub(crate) fn save_last(&mut self, content: Content, now: Now) {
        let saved = self.awaited(None);
        self.save(content, vec![saved], now);
    }

    /// Whether nothing is waited for any more.
    pub(crate) fn all_saved(&self) -> bool {
        self.waiting.is_empty()
    }

    fn awaited(&mut self, waiting: Option<Waiting>) -> Saved {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, waiting);
        let outcomes = self.outcomes.clone();
        // The channel has a place for everyone who waits, those of the stop included, so none is
        // lost.
        Saved::new(move |persisted| {
            let _ = outcomes.try_send((number, persisted));
        })
    }

    /// Answers those whose write has an outcome. Those whose line was lost wait for a document.
    pub(crate) fn take_outcomes(&mut self, now: Now) {
        self.take_durable();
        if self.disk.journal.take_lost() {
            self.unsaved.close(now.mono_ns);
        }
        while let Ok((number, persisted)) = self.saved.try_recv() {
            match self.waiting.remove(&number) {
                Some(Some(waiting)) if waiting.in_journal && !persisted => {
                    self.unrecorded.push(Waiting {
                        in_journal: false,
                        ..waiting
                    });
                }
                Some(Some(waiting)) => waiting.answer(persisted),
                Some(None) | None => {}
            }
        }
    }

    /// The document of the bans that holds what was noted of them so far, and the last one that is
    /// on disk.
    pub(crate) fn documents(&self) -> (u64, u64) {
        self.unsaved.documents()
    }

    /// Lets the journal be emptied as far as the document on disk holds it.
    fn take_durable(&mut self) {
        if let Some(number) = self.unsaved.is_durable(self.disk.bans.durable()) {
            self.disk.journal.held(number);
        }
    }

    /// Answers those who have waited long enough.
    pub(crate) fn give_up(&mut self, now: Now) {
        for waiting in self.waiting.values_mut() {
            let late = |waiting: &mut Waiting| waiting.deadline_ns <= now.mono_ns;
            if let Some(waiting) = waiting.take_if(late) {
                tracing::warn!(
                    "a ban was not on disk within {} s: the answer says so, the write goes on",
                    PERSIST_WAIT_NS / 1_000_000_000
                );
                waiting.answer(false);
            }
        }
    }

    /// Why the last write of this file failed, where it did.
    pub(crate) fn failure(&self, which: Which) -> Failure {
        match which {
            Which::Bans => self.disk.bans.failure(),
            Which::Clients => self.disk.clients.failure(),
            Which::Lookups => self.disk.lookups.failure(),
            Which::Alerts => self.disk.alerts.failure(),
        }
    }

    /// Has the thread touch no file from when the lock comes back, until [`Files::resume`]
    /// (RESTART-4). If this is dropped instead, nothing more is written.
    pub(crate) fn hold(&mut self) -> Receiver<io::Result<OwnedFd>> {
        self.disk.thread.hold()
    }

    /// The journal is emptied, as far as it may be. Tells once its thread touches it no more.
    pub(crate) fn settle(&mut self) -> Receiver<bool> {
        self.take_durable();
        let (told, settled) = bounded(1);
        self.disk.journal.settle(Saved::new(move |is_settled| {
            let _ = told.try_send(is_settled);
        }));
        settled
    }

    /// The thread goes on, if it was held.
    pub(crate) fn resume(&mut self) {
        self.disk.thread.resume();
    }

    /// Whether the thread is there no more, by a bug.
    pub(crate) fn has_ended(&self) -> bool {
        self.disk.thread.has_ended()
    }

    /// Ends without waiting for the thread, which waits for the disk.
    pub(crate) fn abandon(self) {
        std::mem::forget(self.disk);
    }
}

#[cfg(test)]
impl Files {
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
