//! The four state files and the journal of the bans, opened together at the start.

use std::path::Path;
use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::clock::Clock;
use weir_shared::table::ClientRow;

use crate::alert::document::{AlertsEntry, AlertsFile};
use crate::bans::document::{BanKey, BansFile};
use crate::bans::journal::{BanJournal, replay};
use crate::clients::ClientsFile;
use crate::fleet::Ready;
use crate::lookup::LookupRow;
use crate::lookup::document::LookupsFile;
use crate::state::document::{Document, Row};
use crate::state::known::Known;
use crate::state::{Change, Standing, StateDir, StateError, StateFile, StateLock, StateThread};
use crate::watching::FileThread;

/// The four files, open.
pub struct StateFiles {
    pub(crate) bans: StateFile<BansFile>,
    pub(crate) clients: StateFile<ClientsFile>,
    pub(crate) lookups: StateFile<LookupsFile>,
    pub(crate) alerts: StateFile<AlertsFile>,
    pub(crate) thread: StateThread,
    pub(crate) journal: BanJournal,
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
    /// How the journal of the bans goes on.
    pub journal: JournalStart,
    /// The bans before an edit that came while no service ran; none without one.
    pub(crate) before_edit: Option<Vec<Arc<Ban>>>,
    /// Bans that an edit changed or added while no service ran.
    pub(crate) edited: Vec<BanKey>,
    /// Bans that this edit removed.
    pub(crate) removed: Vec<BanKey>,
    /// The fleet's settings and files, if there is one; its engine was not asked yet.
    pub fleet: Option<Ready>,
}

/// How the journal goes on after a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalStart {
    /// The number of its last line.
    pub(crate) number: u64,
    /// True if lines may be appended: the document they follow is on disk and refers to the
    /// journal, so the next start reads them.
    pub(crate) is_open: bool,
    /// bans.json lacks changes that the journal has.
    pub(crate) is_stale: bool,
}

/// The files, as they were read while the old process of a hand-over still owned them (RESTART-1).
#[derive(Default)]
pub struct KnownFiles {
    bans: Option<Known<BansFile>>,
    clients: Option<Known<ClientsFile>>,
    lookups: Option<Known<LookupsFile>>,
    alerts: Option<Known<AlertsFile>>,
}

impl KnownFiles {
    /// Reads the valid files, without a lock. Also returns a fault for each file that a start would
    /// refuse.
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
    /// Reads and checks every file of this lock's directory, and starts the thread and the watch. A
    /// known file that has not changed is not read again.
    ///
    /// # Errors
    /// [`StateError`], one sentence an operator can act on (STATE-6).
    pub fn open(
        lock: StateLock,
        clock: Clock,
        known: KnownFiles,
        looks: &FileThread,
    ) -> Result<(Self, StartState), StateError> {
        let dir = StateDir::open(lock, clock)?;
        // clients.json, when full, is as large as the others together: two threads halve the wait
        // for the first answer.
        let (clients, others) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let clients = thread.spawn_scoped(scope, || dir.read::<ClientsFile>(known.clients));
            let clients = clients.map_err(StateError::Thread)?;
            let others = (|| {
                let bans = dir.read::<BansFile>(known.bans)?;
                let lookups = dir.read::<LookupsFile>(known.lookups)?;
                Ok::<_, StateError>((bans, lookups, dir.read::<AlertsFile>(known.alerts)?))
            })();
            Ok::<_, StateError>((clients.join(), others))
        })?;
        let (bans, lookups, alerts) = others?;
        let (bans, read_bans, first) = bans;
        let (lookups, read_lookups, third) = lookups;
        let (alerts, read_alerts, fourth) = alerts;
        let file = ClientsFile::FILE;
        let clients = clients.unwrap_or(Err(StateError::Panicked { file }));
        let (clients, read_clients, second) = clients?;
        let (journal, found) = dir.journal(read_bans.journal, looks.faults())?;
        let edit = read_bans.edit.as_deref();
        let (edited, removed) = keys(edit.unwrap_or_default());
        let journal_start = JournalStart {
            number: found.last,
            is_open: matches!(read_bans.journal, Standing::After(_)) && edit.is_none(),
            is_stale: edit.is_some() || !found.lines.is_empty(),
        };
        let before = replay(read_bans.entries, found.lines, None);
        let before_edit = edit.map(|_| before.clone());
        let start = StartState {
            journal: journal_start,
            bans: replay(before, Vec::new(), edit),
            clients: rows(read_clients.entries),
            lookups: rows(read_lookups.entries),
            alerts: rows(read_alerts.entries),
            before_edit,
            edited,
            removed,
            fleet: None,
        };
        let files = Self {
            bans,
            clients,
            lookups,
            alerts,
            thread: dir.start(vec![first, second, third, fourth], looks)?,
            journal,
        };
        Ok((files, start))
    }
}

/// The bans that an edit changed or added, and those that it removed.
fn keys(edit: &[Change<BansFile>]) -> (Vec<BanKey>, Vec<BanKey>) {
    let (mut edited, mut removed) = (Vec::new(), Vec::new());
    for change in edit {
        match change {
            Change::Remove(key) => removed.push(*key),
            Change::Put { after, .. } => edited.push(BanKey::of(after)),
        }
    }
    (edited, removed)
}

fn rows<T>(entries: Vec<Row<T>>) -> Vec<T> {
    entries.into_iter().map(|entry| entry.row).collect()
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
