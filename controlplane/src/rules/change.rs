//! A member more, or less, in a list of rules.json, as a command asks for it (CONTROL-8): what
//! becomes of the text, and how it gets into the file. Whoever asks is the thread that watches the
//! file, or a command where no service runs; `swap.rs` sees to it that neither loses an edit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::compile::Compiler;
use super::swap::Place;
use crate::state::fault::Fault;

/// How often it is tried, and how long in between: as long as an editor may take to save a file
/// (an edit that does not fit is told after half a second, too).
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// Which list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum List {
    /// Clients that skip every check.
    Allow,
    /// Clients that are refused.
    Deny,
}

impl List {
    /// As rules.json names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// What is to be changed. Every entry of exactly this netblock goes, and the new one comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Of which list.
    pub list: List,
    /// What is put in or taken out.
    pub netblock: Netblock,
    /// What is put in; none takes out.
    pub entry: Option<Entry>,
}

/// A member of a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// When it ends; none is never.
    pub until: Option<Time>,
    /// Why, for people.
    pub comment: Option<String>,
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The file.
    pub file: PathBuf,
    /// Whether there was anything to do: what is not in the list cannot be taken out.
    pub changed: bool,
    /// Entries of both lists that had ended and were taken out.
    pub ended: usize,
}

/// Why the lists are as they were.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    /// The file, or what would become of it, does not fit.
    #[error("rules file {} does not fit: {fault}; mend it first", path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
    },
    /// The system refused it.
    #[error("rules file {} cannot be changed: {error}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Somebody else saved the file each time.
    #[error("rules file {} is being changed by others all the time: try again", path.display())]
    Contested {
        /// The file.
        path: PathBuf,
    },
}

impl Change {
    /// Why this entry needs force (ALIVE-5): it would refuse, or let through, nearly everybody.
    pub fn too_wide(&self) -> Option<String> {
        let wide = |netblock: Netblock| crate::bans::too_wide::width(netblock);
        self.entry.as_ref().and_then(|_| wide(self.netblock))
    }

    /// Its first address, of which can be asked what the checks make of it.
    pub fn first_address(&self) -> std::net::IpAddr {
        match self.netblock.net() {
            IpNet::V4(net) => net.network().into(),
            IpNet::V6(net) => net.network().into(),
        }
    }
}

/// Changes the file: read, judged, compared and swapped.
///
/// # Errors
/// [`NotChanged`]; the file is as it was.
pub(super) fn change(
    compiler: &Compiler,
    path: &Path,
    change: &Change,
    now_ms: u64,
) -> Result<Changed, NotChanged> {
    let mut last = None;
    for turn in 0..TRIES {
        if turn > 0 {
            std::thread::sleep(PAUSE);
        }
        match attempt(compiler, path, change, now_ms) {
            // Lost to another save.
            Ok(None) => last = None,
            Ok(Some(changed)) => return Ok(changed),
            // It may be half of what is being saved.
            Err(wrong @ NotChanged::DoesNotFit { .. }) => last = Some(wrong),
            Err(other) => return Err(other),
        }
    }
    let path = path.to_owned();
    Err(last.unwrap_or(NotChanged::Contested { path }))
}

fn attempt(
    compiler: &Compiler,
    path: &Path,
    change: &Change,
    now_ms: u64,
) -> Result<Option<Changed>, NotChanged> {
    let system = |error| NotChanged::System {
        path: path.to_owned(),
        error,
    };
    let unfit = |fault| NotChanged::DoesNotFit {
        path: path.to_owned(),
        fault,
    };
    let place = Place::find(path).map_err(system)?;
    let old = place.read().map_err(system)?;
    let bytes = old.as_ref().map(|old| old.bytes.as_slice());
    compiler.read(bytes).map_err(unfit)?;
    let mut rules = match bytes.map(serde_json::from_slice) {
        // That it is an object was judged.
        Some(Ok(Value::Object(rules))) => rules,
        _ => Map::from_iter([("version".to_owned(), json!(1))]),
    };
    let before = rules.clone();
    let removed = take_out(&mut rules, change);
    let mut changed = Changed {
        file: path.to_owned(),
        changed: removed > 0 || change.entry.is_some(),
        ended: 0,
    };
    if !changed.changed {
        return Ok(Some(changed));
    }
    changed.ended = take_out_ended(&mut rules, now_ms);
    if let Some(entry) = &change.entry {
        let members = rules.entry(change.list.name()).or_insert_with(|| json!([]));
        if let Value::Array(members) = members {
            members.push(member(change.netblock, entry));
        }
    }
    if rules == before {
        return Ok(Some(changed));
    }
    let mut text = serde_json::to_vec_pretty(&rules).map_err(|error| system(error.into()))?;
    text.push(b'\n');
    let read = compiler.read(Some(&text)).map_err(unfit)?;
    compiler.read_lists(&text, read).map_err(unfit)?;
    let swapped = place.swap(old.as_ref(), &text).map_err(system)?;
    Ok(swapped.then_some(changed))
}

/// Takes every entry of exactly this netblock out, and says how many there were.
fn take_out(rules: &mut Map<String, Value>, change: &Change) -> usize {
    let is_it = |member: &Value| {
        let held = member.get("netblock").and_then(Value::as_str);
        held.and_then(|held| held.parse().ok()) == Some(change.netblock)
    };
    retain(rules, change.list, |member| !is_it(member))
}

/// Takes the entries of both lists out that have no effect any more.
fn take_out_ended(rules: &mut Map<String, Value>, now_ms: u64) -> usize {
    let has_ended = |member: &Value| {
        let until = member.get("until").and_then(Value::as_str);
        until
            .and_then(|until| until.parse().ok())
            .is_some_and(|Time(until)| until <= now_ms)
    };
    let lists = [List::Allow, List::Deny].into_iter();
    lists
        .map(|list| retain(rules, list, |member| !has_ended(member)))
        .sum()
}

fn retain(rules: &mut Map<String, Value>, list: List, keep: impl Fn(&Value) -> bool) -> usize {
    let Some(Value::Array(members)) = rules.get_mut(list.name()) else {
        return 0;
    };
    let before = members.len();
    members.retain(keep);
    before - members.len()
}

fn member(netblock: Netblock, entry: &Entry) -> Value {
    let mut member = Map::new();
    member.insert("netblock".to_owned(), json!(netblock));
    // Whoever asked was asked whether that is meant.
    if netblock.net().prefix_len() == 0 {
        member.insert("force".to_owned(), json!(true));
    }
    let (until, comment) = (entry.until, entry.comment.as_ref());
    member.extend(until.map(|until| ("until".to_owned(), json!(until))));
    member.extend(comment.map(|comment| ("comment".to_owned(), json!(comment))));
    Value::Object(member)
}
