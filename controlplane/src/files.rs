//! The four state files: opened together at the start, and what the control loop says to them: when
//! each is due, which edits it has taken in, and who waits until bans.json is on disk (STATE-1,
//! STATE-2).
//!
//! What an edit means is left to its owner, how files are read and written to `state/`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, bounded};
use weir_shared::ban::Ban;
use weir_shared::clock::{Clock, Now};
use weir_shared::handover::Respond;
use weir_shared::settings::Settings;
use weir_shared::table::ClientRow;

use crate::admin::bans::Pending;
use crate::alert::document::{AlertsEntry, AlertsFile};
use crate::bans::document::BansFile;
use crate::clients::ClientsFile;
use crate::lookup::LookupRow;
use crate::lookup::document::LookupsFile;
use crate::state::document::{Document, Row};
use crate::state::known::Known;
use crate::state::{
    Edit, Failure, FileCounts, Saved, StateDir, StateError, StateFile, StateLock, StateThread,
    WriteFault,
};

/// How long an answer waits for the disk before it says `"persisted": false`.
const PERSIST_WAIT_NS: u64 = 5_000_000_000;

/// The most answers that wait for the disk: with one that hangs, further ones do not wait at all.
/// What failed is tried again by the thread of the files, which keeps the newest document.
pub(crate) const MAX_WAITING: usize = 256;

/// The four files, open.
pub struct StateFiles {
    pub(crate) bans: StateFile<BansFile>,
    pub(crate) clients: StateFile<ClientsFile>,
    pub(crate) lookups: StateFile<LookupsFile>,
    pub(crate) alerts: StateFile<AlertsFile>,
    pub(crate) thread: StateThread,
}

/// What was read at start.
#[derive(Debug, Default)]
pub struct StartState {
    /// bans.json
    pub bans: Vec<Arc<Ban>>,
    /// clients.json
    pub clients: Vec<ClientRow>,
    /// lookups.json
    pub lookups: Vec<LookupRow>,
    /// alerts.json
    pub alerts: Vec<AlertsEntry>,
}

/// The files as they were read before they were one's own (RESTART-1).
#[derive(Default)]
pub struct KnownFiles {
    bans: Option<Known<BansFile>>,
    clients: Option<Known<ClientsFile>>,
    lookups: Option<Known<LookupsFile>>,
    alerts: Option<Known<AlertsFile>>,
}

impl KnownFiles {
    /// Reads what is there and fits; nothing is locked. With one fault for each file that a start
    /// would refuse.
    pub fn read(dir: &Path) -> (Self, Vec<StateError>) {
        fn kept<D: Document>(dir: &Path, faults: &mut Vec<StateError>) -> Option<Known<D>> {
            let read = Known::read(dir);
            read.unwrap_or_else(|fault| {
                faults.push(fault);
                None
            })
        }
        let mut faults = Vec::new();
        let files = Self {
            bans: kept(dir, &mut faults),
            clients: kept(dir, &mut faults),
            lookups: kept(dir, &mut faults),
            alerts: kept(dir, &mut faults),
        };
        (files, faults)
    }

    /// The bans.
    pub(crate) fn bans(&self) -> &[Arc<Ban>] {
        self.bans.as_ref().map_or(&[], Known::entries)
    }
}

impl StateFiles {
    /// Reads and checks every file of the directory of this lock, starts the thread and the watch.
    /// What is known of a file is not read again if it stands so still.
    ///
    /// # Errors
    /// [`StateError`], one sentence an operator can act on (STATE-6).
    pub fn open(
        lock: StateLock,
        clock: Clock,
        known: KnownFiles,
    ) -> Result<(Self, StartState), StateError> {
        let dir = StateDir::open(lock, clock)?;
        // clients.json, when full, is as large as the others together: two threads halve the wait
        // for the first answer.
        let (clients, others) = std::thread::scope(|scope| {
            let clients = scope.spawn(|| dir.read::<ClientsFile>(known.clients));
            let others = (|| {
                let bans = dir.read::<BansFile>(known.bans)?;
                let lookups = dir.read::<LookupsFile>(known.lookups)?;
                Ok::<_, StateError>((bans, lookups, dir.read::<AlertsFile>(known.alerts)?))
            })();
            (clients.join(), others)
        });
        let (bans, lookups, alerts) = others?;
        let file = ClientsFile::FILE;
        let clients = clients.unwrap_or(Err(StateError::Panicked { file }))?;
        let (bans, read_bans, first) = bans.split();
        let (clients, read_clients, second) = clients.split();
        let (lookups, read_lookups, third) = lookups.split();
        let (alerts, read_alerts, fourth) = alerts.split();
        let start = StartState {
            bans: read_bans,
            clients: rows(read_clients),
            lookups: rows(read_lookups),
            alerts: rows(read_alerts),
        };
        let files = Self {
            bans,
            clients,
            lookups,
            alerts,
            thread: dir.start(vec![first, second, third, fourth])?,
        };
        Ok((files, start))
    }
}

fn rows<T>(entries: Vec<Row<T>>) -> Vec<T> {
    entries.into_iter().map(|entry| entry.row).collect()
}

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
    /// `WAF_STATE_WRITE_DELAY`
    delay_ns: u64,
    /// `WAF_STATE_COUNTER_INTERVAL`
    interval_ns: u64,
    /// When bans.json is to be written because it lacks something, on the monotonic clock.
    bans_due_ns: Option<u64>,
    /// When all files were saved last, on the monotonic clock.
    all_saved_ns: u64,
    /// Who waits for the outcome of a write, until told. At most [`MAX_WAITING`], and one a file at
    /// a stop.
    waiting: HashMap<u64, Option<Waiting>>,
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
}

impl Waiting {
    fn answer(self, persisted: bool) {
        (self.respond)(self.pending.answer(persisted));
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
    pub(crate) fn new(disk: StateFiles, settings: &Settings, now: Now) -> Self {
        let (outcomes, saved) = bounded(MAX_WAITING + Which::ALL.len());
        Self {
            disk,
            revisions: [0; Which::ALL.len()],
            in_hand: VecDeque::new(),
            delay_ns: nanos(settings.state.write_delay),
            interval_ns: nanos(settings.state.counter_interval),
            bans_due_ns: None,
            all_saved_ns: now.mono_ns,
            waiting: HashMap::new(),
            next: 0,
            outcomes,
            saved,
        }
    }

    /// When files are due from now on.
    pub(crate) fn take_settings(&mut self, settings: &Settings) {
        self.delay_ns = nanos(settings.state.write_delay);
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

    /// Files that cannot be written.
    pub(crate) fn faults(&self) -> &Receiver<WriteFault> {
        self.disk.thread.faults()
    }

    pub(crate) fn counts(&self) -> [FileCounts; Which::ALL.len()] {
        [
            self.disk.bans.counts(),
            self.disk.clients.counts(),
            self.disk.lookups.counts(),
            self.disk.alerts.counts(),
        ]
    }

    /// bans.json lacks something: it is due `WAF_STATE_WRITE_DELAY` after the first change
    /// (STATE-1).
    pub(crate) fn bans_stale(&mut self, now: Now) {
        let due_ns = now.mono_ns.saturating_add(self.delay_ns);
        self.bans_due_ns.get_or_insert(due_ns);
    }

    /// The files that are due at this moment.
    pub(crate) fn due(&mut self, now: Now) -> &'static [Which] {
        if now.mono_ns.saturating_sub(self.all_saved_ns) >= self.interval_ns {
            self.all_saved_ns = now.mono_ns;
            &Which::ALL
        } else if self.bans_due_ns.is_some_and(|due_ns| due_ns <= now.mono_ns) {
            &[Which::Bans]
        } else {
            &[]
        }
    }

    /// Sends a document. Only where someone waits for it is its outcome asked for: the thread then
    /// tries at once, and with its own pauses otherwise (STATE-7).
    pub(crate) fn save(&mut self, content: Content, saved: Vec<Saved>) {
        let [bans_revision, clients, lookups, alerts] = self.revisions;
        match content {
            Content::Bans(bans) => {
                self.bans_due_ns = None;
                self.disk.bans.save(bans, bans_revision, saved);
            }
            Content::Clients(rows) => self.disk.clients.save(entries(rows), clients, saved),
            Content::Lookups(rows) => self.disk.lookups.save(entries(rows), lookups, saved),
            Content::Alerts(rows) => self.disk.alerts.save(entries(rows), alerts, saved),
        }
    }

    /// Sends bans.json and answers once it is on disk, or when that failed or took too long
    /// (STATE-2).
    pub(crate) fn answer_saved(
        &mut self,
        bans: Vec<Arc<Ban>>,
        changes: Vec<(Respond, Pending)>,
        now: Now,
    ) {
        let mut saved = Vec::new();
        for (respond, pending) in changes {
            if self.waiting.len() >= MAX_WAITING {
                respond(pending.answer(false));
            } else {
                saved.push(self.awaited(Some(Waiting {
                    respond,
                    pending,
                    deadline_ns: now.mono_ns.saturating_add(PERSIST_WAIT_NS),
                })));
            }
        }
        self.save(Content::Bans(bans), saved);
    }

    /// Sends a document whose outcome is waited for by [`Files::all_saved`].
    pub(crate) fn save_last(&mut self, content: Content) {
        let saved = self.awaited(None);
        self.save(content, vec![saved]);
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

    /// Answers those whose write has an outcome.
    pub(crate) fn take_outcomes(&mut self) {
        while let Ok((number, persisted)) = self.saved.try_recv() {
            if let Some(Some(waiting)) = self.waiting.remove(&number) {
                waiting.answer(persisted);
            }
        }
    }

    /// Answers those who have waited long enough.
    pub(crate) fn give_up(&mut self, now: Now) {
        for waiting in self.waiting.values_mut() {
            let late = |waiting: &mut Waiting| waiting.deadline_ns <= now.mono_ns;
            if let Some(waiting) = waiting.take_if(late) {
                tracing::warn!(
                    "bans.json was not on disk within {} s: the answer says so, the write goes on",
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

    /// The thread goes on, if it was held.
    pub(crate) fn resume(&mut self) {
        self.disk.thread.resume();
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

/// Entry point for the fuzz targets: a file of this name as it is read at start, and written again.
#[cfg(fuzzing)]
pub fn reread(file: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    use weir_shared::units::Time;

    use crate::state::text;

    fn of<D: Document>(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let content = text::parse::<D>(bytes).map_err(|fault| fault.to_string())?;
        let mut entries = D::complete(content.entries, &[], Time(1_795_276_800_000));
        D::sort(&mut entries);
        let mut out = Vec::new();
        text::write::<D>(&mut out, &entries, &content.envelope).map_err(|e| e.to_string())?;
        Ok(out)
    }

    match file {
        "bans.json" => of::<BansFile>(bytes),
        "clients.json" => of::<ClientsFile>(bytes),
        "lookups.json" => of::<LookupsFile>(bytes),
        _ => of::<AlertsFile>(bytes),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
