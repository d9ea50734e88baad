//! rules.json as people write it: judged by its schema, then by what a schema cannot say. A fault
//! has line, column and JSON pointer.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use serde_path_to_error::{Deserializer as Tracked, Track};
use weir_schema::{CatalogError, Schema, Violation};
use weir_shared::ban::Scope;
use weir_shared::netblock::Netblock;
use weir_shared::path;
use weir_shared::rules::{MAX_NAMES, MAX_TRAP_PATHS, is_root};
use weir_shared::units::Time;

use crate::json::{self, Strict};
use crate::state::fault::Fault;

const SCHEMA: &str = include_str!("../../../schema/proxy/rules.schema.json");

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RulesFile {
    pub(super) allow: Vec<Member>,
    pub(super) deny: Vec<Member>,
    pub(super) limits: Vec<Limit>,
    pub(super) traps: Vec<Trap>,
    pub(super) jails: Vec<Jail>,
}

/// A netblock, or a file of them: the schema sees to it that it is one of the two.
#[derive(Debug, Deserialize)]
pub(super) struct Member {
    pub(super) netblock: Option<Netblock>,
    pub(super) file: Option<String>,
    pub(super) until: Option<Time>,
}

/// Windows, each with the most that fit.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Quotas {
    pub(super) per_second: Option<u64>,
    pub(super) per_minute: Option<u64>,
    pub(super) per_hour: Option<u64>,
    pub(super) per_day: Option<u64>,
}

/// Which requests.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Which {
    pub(super) path: Option<String>,
    pub(super) exact: bool,
    pub(super) exact_case: bool,
    pub(super) methods: Vec<String>,
    pub(super) host: Option<String>,
}

/// `on_limit`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OnLimit {
    #[default]
    Ban,
    Refuse,
}

#[derive(Debug, Deserialize)]
pub(super) struct Limit {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) which: Which,
    #[serde(flatten)]
    pub(super) quotas: Quotas,
    #[serde(default)]
    pub(super) on_limit: OnLimit,
    pub(super) until: Option<Time>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Trap {
    pub(super) name: String,
    pub(super) paths: Vec<String>,
    #[serde(default)]
    pub(super) exact_case: bool,
    #[serde(default)]
    pub(super) ban: Scope,
    pub(super) until: Option<Time>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Jail {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) which: Which,
    pub(super) statuses: Vec<u16>,
    #[serde(flatten)]
    pub(super) quotas: Quotas,
    #[serde(default)]
    pub(super) ban: Scope,
    pub(super) until: Option<Time>,
}

/// Reads and judges a whole file.
pub(super) struct Reader {
    /// Compiled when there is a file to be judged.
    schema: LazyLock<Result<Schema, CatalogError>>,
}

impl Reader {
    pub(super) const fn new() -> Self {
        Self {
            schema: LazyLock::new(|| Schema::parse(SCHEMA)),
        }
    }

    pub(super) fn read(&self, bytes: &[u8]) -> Result<RulesFile, Fault> {
        let Strict(value) =
            json::explain(std::marker::PhantomData::<Strict>, bytes).map_err(|refused| {
                let error = &refused.error;
                let message = json::sentence(error);
                Fault::new(error.line(), error.column(), &refused.pointer, &message)
            })?;
        self.understand(&value)
            .map_err(|(pointer, message)| at(bytes, &pointer, &message))
    }

    /// The file, or pointer and message of what does not fit. Where the schema and the reader of
    /// values refuse the same, the reader has the better words.
    fn understand(&self, value: &Value) -> Result<RulesFile, (String, String)> {
        // That ours compiles is tested.
        let schema = self.schema.as_ref().map_err(|error| {
            let message = format!("the schema of rules.json is wrong: {error}");
            (String::new(), message)
        })?;
        let violations = schema.validate(value).err().unwrap_or_default();
        if let Some(version) = value.get("version")
            && version.as_f64() != Some(1.0)
        {
            let message = format!("unknown version {version}: 1 is known");
            return Err(("/version".to_owned(), message));
        }
        let mut track = Track::new();
        let read = RulesFile::deserialize(Tracked::new(value, &mut track));
        let inside = json::pointer(&track.path());
        let first = violations.into_iter().next();
        match (first, read) {
            (None, Ok(file)) => judge(&file).map(|()| file),
            (Some(fault), Err(error)) if inside == fault.instance_path => {
                Err((inside, json::sentence(&error)))
            }
            (None, Err(error)) => Err((inside, json::sentence(&error))),
            (Some(fault), _) => {
                let sentence = fault.sentence.trim_end_matches('.').to_owned();
                Err((place(value, &fault), sentence))
            }
        }
    }
}

/// What a violation is about: of a member that nobody knows the member, not the object around it.
fn place(value: &Value, fault: &Violation) -> String {
    let object = value
        .pointer(&fault.instance_path)
        .and_then(Value::as_object);
    let is_named = |name: &&String| fault.sentence.contains(&format!("'{name}'"));
    let unknown = object.and_then(|members| members.keys().find(is_named));
    match unknown {
        Some(name) if fault.keyword == "additionalProperties" => {
            format!("{}{}", fault.instance_path, json::member(name))
        }
        _ => fault.instance_path.clone(),
    }
}

/// A fault of what a pointer names.
pub(super) fn at(bytes: &[u8], pointer: &str, message: &str) -> Fault {
    let (line, column) = json::place(bytes, pointer);
    Fault::new(line, column, pointer, message)
}

/// What the schema cannot say.
fn judge(file: &RulesFile) -> Result<(), (String, String)> {
    names(file)?;
    paths(file)?;
    for (list, members) in [("allow", &file.allow), ("deny", &file.deny)] {
        for (index, member) in members.iter().enumerate() {
            if member.file.as_ref().is_some_and(|name| name.contains('\0')) {
                let message = "expected the name of a file".to_owned();
                return Err((format!("/{list}/{index}/file"), message));
            }
        }
    }
    Ok(())
}

fn names(file: &RulesFile) -> Result<(), (String, String)> {
    let limits = file.limits.iter().map(|limit| &limit.name);
    let traps = file.traps.iter().map(|trap| &trap.name);
    let jails = file.jails.iter().map(|jail| &jail.name);
    let all = [
        ("limits", limits.collect::<Vec<_>>()),
        ("traps", traps.collect()),
        ("jails", jails.collect()),
    ];
    let mut seen = HashSet::new();
    for (list, names) in all {
        for (index, name) in names.into_iter().enumerate() {
            let pointer = format!("/{list}/{index}/name");
            if !seen.insert(name) {
                return Err((pointer, format!("the name {name:?} stands there twice")));
            }
            if seen.len() > MAX_NAMES {
                return Err((
                    pointer,
                    format!("expected at most {MAX_NAMES} names in all"),
                ));
            }
        }
    }
    Ok(())
}

fn paths(file: &RulesFile) -> Result<(), (String, String)> {
    let limits = file.limits.iter().map(|limit| ("limits", &limit.which));
    let jails = file.jails.iter().map(|jail| ("jails", &jail.which));
    let mut before = ("", 0);
    for (list, which) in limits.chain(jails) {
        let index = if before.0 == list { before.1 + 1 } else { 0 };
        before = (list, index);
        match &which.path {
            Some(path) => plain(path).map_err(|why| (format!("/{list}/{index}/path"), why))?,
            None if which.exact => {
                let message = "\"exact\" needs a path".to_owned();
                return Err((format!("/{list}/{index}/exact"), message));
            }
            None if which.exact_case => {
                let message = "\"exact_case\" needs a path".to_owned();
                return Err((format!("/{list}/{index}/exact_case"), message));
            }
            None => {}
        }
    }
    let mut count = 0;
    for (index, trap) in file.traps.iter().enumerate() {
        for (place, path) in trap.paths.iter().enumerate() {
            let fault = |why| (format!("/traps/{index}/paths/{place}"), why);
            plain(path).map_err(fault)?;
            trap_path(path).map_err(fault)?;
            count += 1;
            if count > MAX_TRAP_PATHS {
                let why = format!("expected at most {MAX_TRAP_PATHS} trap paths in all");
                return Err(fault(why));
            }
        }
    }
    Ok(())
}

/// What no path can be.
fn plain(path: &str) -> Result<(), String> {
    let strange = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '\\');
    if !path.starts_with('/') || path.contains(strange) {
        return Err(format!(
            "{path:?} is not a path: expected one that begins with / and has no blank, ?, # or \\"
        ));
    }
    Ok(())
}

fn trap_path(path: &str) -> Result<(), String> {
    if is_root(path) {
        return Err("a trap at / would ban every client".to_owned());
    }
    if path::is_own(path) {
        return Err(format!(
            "{path:?} is the service's own: it is never forwarded"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
