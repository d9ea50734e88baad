//! lists.json: the entries of `weir allow` and `weir deny` if a fleet shares its lists (FLEET-18).
//! The file lies in the state directory, may be edited, and is in force without a fleet too.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_schema::{CatalogError, Schema};
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::document::{LISTS_SCHEMA, at, told};
use super::entry::{
    Change, Changed, Entry, List, ListKey, NotChanged, member, take_out_ended, tried,
};
use super::list_file::{self, LISTS};
use super::swap::Place;
use crate::beside;
use crate::json::{self, Strict};
use crate::state::fault::Fault;

/// Every entry of the file.
pub(crate) type Entries = BTreeMap<ListKey, Entry>;

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SharedLists {
    pub(crate) entries: Entries,
    /// Whether the file exists: a missing file removes nothing.
    pub(crate) is_there: bool,
}

/// The content that a change expects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// Any content.
    Any,
    /// This entry. Another one means that somebody has just saved the file.
    #[cfg_attr(
        not(feature = "fleet"),
        expect(dead_code, reason = "only a fleet writes what it expects")
    )]
    Is(Option<Entry>),
}

/// A change of one entry of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileChange {
    pub(crate) key: ListKey,
    pub(crate) expected: Expected,
    pub(crate) entry: Option<Entry>,
}

impl FileChange {
    /// A change that an operator asked for.
    pub(super) fn asked(change: &Change) -> Self {
        Self {
            key: change.key(),
            expected: Expected::Any,
            entry: change.entry.clone(),
        }
    }
}

/// The entries in force, whatever the file contains.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    /// Written again if the file is gone.
    pub(super) entries: &'a Entries,
    /// Whether they also replace a faulty edit, which is set aside (STATE-5).
    pub(super) sets_aside: bool,
}

#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    allow: Vec<Row>,
    #[serde(default)]
    deny: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    netblock: Netblock,
    #[serde(flatten)]
    entry: Entry,
}

/// Reads the file.
///
/// # Errors
/// What does not fit, with its place.
pub(crate) fn read(bytes: &[u8]) -> Result<Entries, Fault> {
    static READER: LazyLock<Result<Schema, CatalogError>> =
        LazyLock::new(|| Schema::parse(LISTS_SCHEMA));
    let read = json::explain(std::marker::PhantomData::<Strict>, bytes);
    let Strict(value) = read.map_err(|refused| {
        let error = &refused.error;
        let message = json::sentence(error);
        Fault::new(error.line(), error.column(), &refused.pointer, &message)
    })?;
    // A test compiles the schema.
    let schema = (READER.as_ref()).map_err(|error| {
        at(
            bytes,
            "",
            &format!("the schema of {LISTS} is wrong: {error}"),
        )
    })?;
    if let Some(version) = value.get("version")
        && version.as_f64() != Some(1.0)
    {
        let message = format!("unknown version {version}: 1 is known");
        return Err(at(bytes, "/version", &message));
    }
    let form = serde_json::from_value::<Form>(value.clone());
    let violations = schema.validate(&value).err().unwrap_or_default();
    let mut faults = violations
        .iter()
        .flat_map(|fault| told(&value, fault, None));
    if let Some((pointer, message)) = faults.next() {
        return Err(at(bytes, &pointer, &message));
    }
    let form = form.map_err(|error| at(bytes, "", &json::sentence(&error)))?;
    let mut entries = Entries::new();
    for (list, rows) in [(List::Allow, form.allow), (List::Deny, form.deny)] {
        for (index, Row { netblock, entry }) in rows.into_iter().enumerate() {
            let pointer = format!("/{}/{index}/netblock", list.name());
            if let Some(why) = too_much(netblock, &entry) {
                return Err(at(bytes, &pointer, &why));
            }
            if entries.insert(ListKey { list, netblock }, entry).is_some() {
                let message = format!("{netblock} stands in the list twice");
                return Err(at(bytes, &pointer, &message));
            }
        }
    }
    Ok(entries)
}

/// Why an entry is probably a mistake (ALIVE-5).
pub(crate) fn too_much(netblock: Netblock, entry: &Entry) -> Option<String> {
    (netblock.net().prefix_len() == 0 && !entry.force)
        .then(|| format!("{netblock} is every client: \"force\": true if that is meant"))
}

/// Reads the file at this path; none if there is no file.
pub(super) fn read_at(path: &Path) -> Result<Option<Entries>, Fault> {
    match super::list_file::bytes(path) {
        Ok(bytes) => read(&bytes).map(Some),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(Fault::unreadable(&error)),
    }
}

/// Changes the file by compare and swap, with further tries (CONTROL-8).
///
/// # Errors
/// [`NotChanged`]; the file is as it was.
pub(super) fn change(
    path: &Path,
    held: Held<'_>,
    changes: &[FileChange],
    now_ms: u64,
) -> Result<Changed, NotChanged> {
    tried(path, |is_last| {
        // Before the last try a faulty file may be partly saved.
        let sets_aside = held.sets_aside && is_last;
        attempt(path, Held { sets_aside, ..held }, changes, now_ms)
    })
}

fn attempt(
    path: &Path,
    held: Held<'_>,
    changes: &[FileChange],
    now_ms: u64,
) -> Result<Option<Changed>, NotChanged> {
    let system = |error| NotChanged::System {
        path: path.to_owned(),
        error,
    };
    let place = Place::find(path).map_err(system)?;
    let old = place.read().map_err(system)?;
    let bytes = old.as_ref().map(|old| old.bytes.as_slice());
    let (mut entries, mut document) = standing(path, bytes, held)?;
    let before = entries.clone();
    let mut changed = Changed {
        file: path.to_owned(),
        changed: apply(&mut entries, changes),
        ended: 0,
    };
    if !changed.changed {
        return Ok(Some(changed));
    }
    document.entry("version").or_insert_with(|| json!(1));
    document.insert("written".to_owned(), json!(Time(now_ms)));
    for list in [List::Allow, List::Deny] {
        let of_list = entries.iter().filter(|(key, _)| key.list == list);
        let rows: Vec<Value> = of_list
            .map(|(key, entry)| member(key.netblock, entry))
            .collect();
        document.insert(list.name().to_owned(), json!(rows));
    }
    changed.ended = take_out_ended(&mut document, now_ms);
    if entries == before && changed.ended == 0 && old.is_some() {
        return Ok(Some(changed));
    }
    let mut text = serde_json::to_vec_pretty(&document).map_err(|error| system(error.into()))?;
    text.push(b'\n');
    let would_not_fit = |fault| NotChanged::would_not_fit(path, fault);
    list_file::is_bounded(&text).map_err(would_not_fit)?;
    read(&text).map_err(would_not_fit)?;
    let swapped = place.swap(old.as_ref(), &text).map_err(system)?;
    Ok(swapped.then_some(changed))
}

/// The entries to start from: those of the file, or those in force if the file is gone or a faulty
/// edit is set aside.
fn standing(
    path: &Path,
    bytes: Option<&[u8]>,
    held: Held<'_>,
) -> Result<(Entries, Map<String, Value>), NotChanged> {
    let Some(bytes) = bytes else {
        return Ok((held.entries.clone(), Map::new()));
    };
    match read(bytes) {
        Ok(entries) => Ok((entries, serde_json::from_slice(bytes).unwrap_or_default())),
        Err(_) if held.sets_aside => {
            let aside = set_aside(path, bytes).map_err(|error| NotChanged::System {
                path: path.to_owned(),
                error,
            })?;
            tracing::error!(
                file = %path.display(),
                "the edit that was not taken is set aside as {}", aside.display()
            );
            Ok((held.entries.clone(), Map::new()))
        }
        Err(fault) => Err(NotChanged::DoesNotFit {
            path: path.to_owned(),
            fault,
        }),
    }
}

/// Applies changes. Returns whether anything has changed.
fn apply(entries: &mut Entries, changes: &[FileChange]) -> bool {
    let mut changed = false;
    for change in changes {
        let stands = entries.get(&change.key);
        let is_expected = match &change.expected {
            Expected::Any => true,
            Expected::Is(entry) => stands == entry.as_ref(),
        };
        if !is_expected {
            continue;
        }
        changed |= stands.is_some() || change.entry.is_some();
        match &change.entry {
            Some(entry) => drop(entries.insert(change.key, entry.clone())),
            None => drop(entries.remove(&change.key)),
        }
    }
    changed
}

/// Keeps a copy of a faulty file: the newest is `.bad`. The file itself stays until another one
/// replaces it.
fn set_aside(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut newest = path.as_os_str().to_owned();
    newest.push(".bad");
    let newest = PathBuf::from(newest);
    if fs::read(&newest).is_ok_and(|held| held == bytes) {
        return Ok(newest);
    }
    let newest = beside::room_aside(path)?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&newest)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(newest)
}

#[cfg(test)]
mod tests;
