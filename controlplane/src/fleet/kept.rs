//! fleet.json: what an instance knows of its fleet beyond bans.json (FLEET-15). It is the
//! service's own, and not for hands. A thread of its own writes it, whole and in one step.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded, never};
use serde::{Deserialize, Serialize};
use weir_shared::threads;

use super::event::Event;
use super::filing::KeptFiling;
use super::place::Point;
use super::replica::Kept;
use super::stamp::Stamp;
use crate::bans::document::BanKey;
use crate::beside;
use crate::guarded;
use crate::rules::Entries;

/// Its name in the state directory.
pub(super) const FILE: &str = "fleet.json";
/// The largest that is read.
const MAX_FILE: u64 = 512 << 20;
/// Between two writes of what only others have changed.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two tries after a fault.
const AGAIN: Duration = Duration::from_secs(5);

/// The form of the file.
#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    fleet: String,
    instance: String,
    /// The name that its settings gave it, where another instance had that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wanted: Option<String>,
    #[serde(default)]
    events: Vec<Event>,
    #[serde(default)]
    made: Vec<(BanKey, Stamp)>,
    /// lists.json, where lists are shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lists: Option<KeptFiling>,
    /// When the engine last answered, in its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contact_ms: Option<u64>,
    /// From where the log is read after a restart; bans.json has all that lies before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    point: Option<Point>,
}

/// What a file held.
#[derive(Clone)]
pub(super) struct Found {
    /// The names of the instance.
    pub(super) called: Called,
    /// The name that its bans are under.
    pub(super) was: String,
    pub(super) point: Option<Point>,
    pub(super) kept: Kept,
    pub(super) lists: Option<KeptFiling>,
    pub(super) contact_ms: Option<u64>,
}

/// What an instance is called, and what its settings call it: another name where that one was taken
/// (FLEET-23).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Called {
    pub(super) name: String,
    pub(super) wanted: String,
}

/// Reads the file, where it is of this fleet.
///
/// # Errors
/// Why it cannot be used.
pub(super) fn read(dir: &Path, fleet: &str) -> Result<Option<Found>, String> {
    let Some(form) = read_form(dir)? else {
        return Ok(None);
    };
    if form.fleet != fleet {
        return Err(format!("it is of the fleet {:?}", form.fleet));
    }
    Ok(Some(Found {
        was: form.instance.clone(),
        point: form.point,
        called: Called {
            wanted: form.wanted.unwrap_or_else(|| form.instance.clone()),
            name: form.instance,
        },
        kept: Kept {
            events: form.events,
            made: form.made,
        },
        lists: form.lists,
        contact_ms: form.contact_ms,
    }))
}

/// What lists.json held, as far as fleet.json says.
pub(crate) fn held_lists(dir: &Path) -> Entries {
    let form = read_form(dir).ok().flatten();
    let lists = form.and_then(|form| form.lists);
    lists.map(KeptFiling::into_held).unwrap_or_default()
}

fn read_form(dir: &Path) -> Result<Option<Form>, String> {
    let bytes = match guarded::read(&dir.join(FILE), MAX_FILE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let form: Form = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    match form.version {
        1 => Ok(Some(form)),
        other => Err(format!("it has version {other}, this weir knows 1")),
    }
}

/// The file as it is to be.
pub(super) fn write(
    fleet: &str,
    called: &Called,
    kept: Kept,
    point: Option<&Point>,
    (lists, contact_ms): (Option<KeptFiling>, Option<u64>),
) -> Vec<u8> {
    let Called { name, wanted } = called.clone();
    let form = Form {
        version: 1,
        fleet: fleet.to_owned(),
        wanted: (wanted != name).then_some(wanted),
        instance: name,
        events: kept.events,
        made: kept.made,
        lists,
        contact_ms,
        point: point.cloned(),
    };
    // Nothing in it has no form as JSON.
    serde_json::to_vec(&form).unwrap_or_default()
}

/// When the file is written, and up to which change it holds.
pub(super) struct Keeper {
    jobs: Sender<Vec<u8>>,
    outcomes: Receiver<Result<(), String>>,
    /// The changes that are being written: two at most, at a stop.
    under_way: VecDeque<u64>,
    written: u64,
    next_ns: u64,
    /// Up to which change somebody waits for it.
    awaited: u64,
    fault: Option<String>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refused it.
    pub(super) fn start(dir: PathBuf) -> io::Result<Self> {
        let (jobs, waiting) = bounded::<Vec<u8>>(1);
        let (told, outcomes) = bounded(2);
        threads::spawn_while_needed("weir-fleet-file", move || {
            for bytes in waiting {
                let written = put(&dir, &bytes).map_err(|error| error.to_string());
                if told.send(written).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            jobs,
            outcomes,
            under_way: VecDeque::new(),
            written: 0,
            next_ns: 0,
            awaited: 0,
            fault: None,
        })
    }

    /// What the loop wakes for.
    pub(super) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.outcomes);
    }

    /// This change is to be on disk soon: somebody waits for it, or it was made here.
    pub(super) fn hurry(&mut self, change: u64) {
        self.awaited = self.awaited.max(change);
    }

    /// Whether this change is on disk.
    pub(super) fn holds(&self, change: u64) -> bool {
        self.written >= change
    }

    /// Whether the file is to be written now, where this is the last change.
    pub(super) fn is_due(&self, change: u64, now_ns: u64) -> bool {
        let urgent = self.awaited > self.written && self.fault.is_none();
        self.under_way.is_empty() && change > self.written && (urgent || now_ns >= self.next_ns)
    }

    /// Has it written.
    pub(super) fn write(&mut self, change: u64, bytes: Vec<u8>, now_ns: u64) {
        if self.jobs.try_send(bytes).is_ok() {
            self.under_way.push_back(change);
        }
        self.next_ns = now_ns.saturating_add(nanos(PAUSE));
    }

    /// What became of the last write; a fault is told once.
    pub(super) fn turn(&mut self, now_ns: u64) -> Option<String> {
        match self.outcomes.try_recv() {
            Ok(Ok(())) => {
                self.written = self.under_way.pop_front().unwrap_or(self.written);
                self.fault = None;
                None
            }
            Ok(Err(fault)) => {
                self.under_way.pop_front();
                self.next_ns = now_ns.saturating_add(nanos(AGAIN));
                let is_new = self.fault.as_ref() != Some(&fault);
                self.fault = Some(fault.clone());
                is_new.then_some(fault)
            }
            Err(TryRecvError::Empty) => None,
            // A channel whose other end is gone is always ready.
            Err(TryRecvError::Disconnected) => {
                self.outcomes = never();
                None
            }
        }
    }

    /// Whether the thread writes at this moment.
    pub(super) fn is_writing(&self) -> bool {
        !self.under_way.is_empty()
    }
}

fn put(dir: &Path, bytes: &[u8]) -> io::Result<()> {
    beside::replace(&dir.join(FILE), |out| out.write_all(bytes))?;
    File::open(dir)?.sync_all()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
