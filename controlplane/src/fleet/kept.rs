//! fleet.json: what an instance knows about its fleet beyond bans.json (FLEET-15). Only the service
//! edits it. A thread of its own replaces it as a whole.

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

/// The name of the file in the state directory.
pub(super) const FILE: &str = "fleet.json";
/// The largest that is read.
const MAX_FILE: u64 = 512 << 20;
/// The pause between two writes of changes that came from others.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failed write.
const AGAIN: Duration = Duration::from_secs(5);

/// The form of the file.
#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    fleet: String,
    instance: String,
    /// The name of its settings, if another instance had that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wanted: Option<String>,
    #[serde(default)]
    events: Vec<Event>,
    #[serde(default)]
    made: Vec<(BanKey, Stamp)>,
    /// The state of lists.json, if lists are shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lists: Option<KeptFiling>,
    /// When the engine last answered, by its clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contact_ms: Option<u64>,
    /// The point from which a restart reads the log; bans.json holds everything before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    point: Option<Point>,
}

/// The content of the file.
#[derive(Clone)]
pub(super) struct Found {
    /// The names of the instance.
    pub(super) called: Called,
    /// The name of the instance in its bans.
    pub(super) was: String,
    pub(super) point: Option<Point>,
    pub(super) kept: Kept,
    pub(super) lists: Option<KeptFiling>,
    pub(super) contact_ms: Option<u64>,
}

/// The name of an instance, and that of its settings, which differs if that one was taken
/// (FLEET-23).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Called {
    pub(super) name: String,
    pub(super) wanted: String,
}

/// Reads the file, if it is of this fleet.
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

/// The content of lists.json according to fleet.json.
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

/// The new content of the file.
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
    // Cannot fail: everything in it can be written as JSON.
    serde_json::to_vec(&form).unwrap_or_default()
}

/// Decides when the file is written, and knows which change is on disk.
pub(super) struct Keeper {
    jobs: Sender<Vec<u8>>,
    outcomes: Receiver<Result<(), String>>,
    /// The changes that are being written: at most two, at a stop.
    under_way: VecDeque<u64>,
    written: u64,
    next_ns: u64,
    /// The latest change that somebody waits for.
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

    /// Adds the thread's channel to the loop's select.
    pub(super) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.outcomes);
    }

    /// Asks for this change to be on disk soon, because somebody waits for it, or it was made here.
    pub(super) fn hurry(&mut self, change: u64) {
        self.awaited = self.awaited.max(change);
    }

    /// Whether this change is on disk.
    pub(super) fn holds(&self, change: u64) -> bool {
        self.written >= change
    }

    /// Whether the file must be written now; `change` is the last change.
    pub(super) fn is_due(&self, change: u64, now_ns: u64) -> bool {
        let urgent = self.awaited > self.written && self.fault.is_none();
        self.under_way.is_empty() && change > self.written && (urgent || now_ns >= self.next_ns)
    }

    /// Sends the content to the thread.
    pub(super) fn write(&mut self, change: u64, bytes: Vec<u8>, now_ns: u64) {
        if self.jobs.try_send(bytes).is_ok() {
            self.under_way.push_back(change);
        }
        self.next_ns = now_ns.saturating_add(nanos(PAUSE));
    }

    /// Takes the result of the last write; a fault is returned once.
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
            // A disconnected channel is always ready.
            Err(TryRecvError::Disconnected) => {
                self.outcomes = never();
                None
            }
        }
    }

    /// Whether a write is under way.
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
