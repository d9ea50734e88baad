//! Adds or removes a member of a list of rules.json, for a command (CONTROL-8): changes the text,
//! and replaces the file. The caller is the thread that watches the file, or a command if no
//! service runs; `swap.rs` ensures that no edit is lost.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::compile::Compiler;
use super::entry::{Change, Changed, Entry, NotChanged, member, retain, take_out_ended, tried};
use super::list_file;
use super::swap::Place;

/// Changes the file: reads and checks it, then replaces it by compare and swap.
///
/// # Errors
/// [`NotChanged`]; the file is as it was.
pub(super) fn change(
    compiler: &Compiler,
    path: &Path,
    change: &Change,
    now_ms: u64,
) -> Result<Changed, NotChanged> {
    tried(path, |_| attempt(compiler, path, change, now_ms))
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
        // The check has ensured that it is an object.
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
            // In rules.json only a netblock of all clients needs `force`.
            let force = false;
            let entry = Entry {
                force,
                ..entry.clone()
            };
            members.push(member(change.netblock, &entry));
        }
    }
    if rules == before {
        return Ok(Some(changed));
    }
    let mut text = serde_json::to_vec_pretty(&rules).map_err(|error| system(error.into()))?;
    text.push(b'\n');
    let would_not_fit = |fault| NotChanged::would_not_fit(path, fault);
    list_file::is_bounded(&text).map_err(would_not_fit)?;
    let read = compiler.read(Some(&text)).map_err(would_not_fit)?;
    compiler.read_lists(&text, read).map_err(would_not_fit)?;
    let swapped = place.swap(old.as_ref(), &text).map_err(system)?;
    Ok(swapped.then_some(changed))
}

/// Removes every entry of exactly this netblock, and returns how many there were.
fn take_out(rules: &mut Map<String, Value>, change: &Change) -> usize {
    let is_it = |member: &Value| {
        let held = member.get("netblock").and_then(Value::as_str);
        held.and_then(|held| held.parse().ok()) == Some(change.netblock)
    };
    retain(rules, change.list, |member| !is_it(member))
}
