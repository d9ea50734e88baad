//! The control loop's view of the state files: when each is due, which edits were applied, and
//! which answers wait until a change of bans is on disk (STATE-1, STATE-2, STATE-10).
//!
//! The owners of the data apply edits; `state/` reads and writes the files.

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

/// A journal of this size is closed until a document allows to empty it. Nearly every document
/// does; only while lines come continuously is one of them newer than each document.
const MAX_JOURNAL: u64 = 16 << 20;

/// How long an answer waits for the disk before it says `"persisted": false`.
const PERSIST_WAIT_NS: u64 = 5_000_000_000;

/// The most answers that wait for the disk: if it hangs, further ones do not wait at all. The
/// thread of the files tries failed writes again, with the newest document.
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
    /// All files, in the order in which they are written: the one that answers wait for comes
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

/// The content to write to one of the files.
pub(crate) enum Content {
    Bans(Vec<Arc<Ban>>),
    Clients(Vec<ClientRow>),
    Lookups(Vec<LookupRow>),
    Alerts(Vec<AlertsEntry>),
}

/// The loop's state of the files.
pub(crate) struct Files {
    disk: StateFiles,
    /// The last applied edit of each file, by [`Which`].
    revisions: [u64; Which::ALL.len()],
    /// Edits that are being applied: after a panic they are tried once more.
    in_hand: VecDeque<Arc<AnyEdit>>,
    /// `WAF_STATE_COUNTER_INTERVAL`
    interval_ns: u64,
    /// Changes of bans that are in no file yet.
    unsaved: Unsaved,
    /// When all files were last saved, on the monotonic clock.
    all_saved_ns: u64,
    /// Those that wait for the result of a write. At most [`MAX_WAITING`], and one for each file at
    /// a stop.
    waiting: HashMap<u64, Option<Waiting>>,
    /// Waiting answers whose line was lost: they wait for a document instead.
    unrecorded: Vec<Waiting>,
    next: u64,
    outcomes: Sender<(u64, bool)>,
    saved: Receiver<(u64, bool)>,
}

/// An answer that waits for the disk.
struct Waiting {
    respond: Respond,
    pending: Pending,
    /// The end of the wait, on the monotonic clock.
    deadline_ns: u64,
    /// True if it waits for a line of the journal.
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

    /// Applies new write intervals.
    pub(crate) fn take_settings(&mut self, settings: &Settings) {
        self.disk.bans.set_most(settings.bans.max);
        self.unsaved.set_delay(nanos(settings.state.write_delay));
        self.interval_ns = nanos(settings.state.counter_interval);
    }

    /// Adds the channels of the files to the loop's select.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.saved);
        select.recv(self.disk.bans.edits());
        select.recv(self.disk.clients.edits());
        select.recv(self.disk.lookups.edits());
        select.recv(self.disk.alerts.edits());
    }

    /// The next edit, which must be passed to [`Files::taken`] once it is in force.
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

    /// Notes that memory has this edit, or as much of it as is accepted. The file must be written
    /// next: until then its thread writes no document without the edit.
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

    /// Notes changes of bans.
    pub(crate) fn note(&mut self, changes: Vec<LedgerChange>, now: Now) {
        self.unsaved.note(changes, now.mono_ns);
    }

    /// Has all bans written, because the noted changes may be incomplete.
    pub(crate) fn bans_unsure(&mut self, now: Now) {
        self.unsaved.close(now.mono_ns);
    }

    /// The files that are due now; `held` is the number of bans.
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

    /// Sends a document. Its result is requested only if somebody waits for it: then the thread
    /// tries at once, otherwise with its own pauses (STATE-7).
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

    /// Sends a document that contains an applied edit.
    pub(crate) fn save_edited(&mut self, content: Content, now: Now) {
        let is_of_bans = matches!(content, Content::Bans(_));
        self.save(content, Vec::new(), now);
        if is_of_bans {
            self.unsaved.close_behind();
        }
    }

    /// Writes the changes to the journal, if they are due there.
    pub(crate) fn record_due(&mut self, held: usize, now: Now) {
        if self.unsaved.line_is_due(now.mono_ns)
            && let Some(line) = self.unsaved.take_line(held)
        {
            self.write_line(line, Vec::new(), now);
        }
    }

    /// Writes the changes to the journal, and answers once they are on disk (STATE-2, STATE-10).
    ///
    /// # Errors
    /// The answers, if they must wait for a document.
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
        // The thread is too far behind: dropping the places tells the waiting answers.
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

    /// Sends bans.json and answers once it is on disk, or once the write failed or took too long
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

    /// Makes these answers wait; answers beyond the bound are sent at once.
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

    /// Sends a document whose result [`Files::all_saved`] waits for.
    pub(crate) fn save_last(&mut self, content: Content, now: Now) {
        let saved = self.awaited(None);
        self.save(content, vec![saved], now);
    }

    /// Whether no write is waited for.
    pub(crate) fn all_saved(&self) -> bool {
        self.waiting.is_empty()
    }

    fn awaited(&mut self, waiting: Option<Waiting>) -> Saved {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, waiting);
        let outcomes = self.outcomes.clone();
        // The channel has room for every waiting answer, those of a stop included, so no result is
        // lost.
        Saved::new(move |persisted| {
            let _ = outcomes.try_send((number, persisted));
        })
    }

    /// Sends the answers whose write has a result. Those whose line was lost wait for a document.
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

    /// The number of the document that will have all changes so far, and that of the last one on
    /// disk.
    pub(crate) fn documents(&self) -> (u64, u64) {
        self.unsaved.documents()
    }

    /// Allows to empty the journal as far as the document on disk contains it.
    fn take_durable(&mut self) {
        if let Some(number) = self.unsaved.is_durable(self.disk.bans.durable()) {
            self.disk.journal.held(number);
        }
    }

    /// Sends the answers that have waited long enough.
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

    /// Why the last write of this file failed, if it did.
    pub(crate) fn failure(&self, which: Which) -> Failure {
        match which {
            Which::Bans => self.disk.bans.failure(),
            Which::Clients => self.disk.clients.failure(),
            Which::Lookups => self.disk.lookups.failure(),
            Which::Alerts => self.disk.alerts.failure(),
        }
    }

    /// Stops the thread's work on files until [`Files::resume`] (RESTART-4). The lock comes back
    /// once it has stopped. If `Files` is dropped instead, nothing more is written.
    pub(crate) fn hold(&mut self) -> Receiver<io::Result<OwnedFd>> {
        self.disk.thread.hold()
    }

    /// Has the journal emptied as far as possible. The receiver is told once its thread no longer
    /// touches it.
    pub(crate) fn settle(&mut self) -> Receiver<bool> {
        self.take_durable();
        let (told, settled) = bounded(1);
        self.disk.journal.settle(Saved::new(move |is_settled| {
            let _ = told.try_send(is_settled);
        }));
        settled
    }

    /// Lets the thread go on, if it was held.
    pub(crate) fn resume(&mut self) {
        self.disk.thread.resume();
    }

    /// Whether the thread has ended, by a bug.
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
