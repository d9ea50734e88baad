//! The result of a replay, in JSON and in words.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use weir_shared::units::Time;
use weir_shared::verdict::Action;

use super::engine::Engine;
use super::format::Format;
use super::tally::{Counted, Tally};
use super::trial::Trial;
use crate::commands::text::{Table, cell, count, percent, time};

/// The most unreadable lines that are reported one by one.
pub const TOLD: usize = 5;

/// What was read from the logs.
#[derive(Debug, Default)]
pub struct Reading {
    pub files: Vec<File>,
    pub interrupted: bool,
    pub lines: u64,
    /// Lines that are no requests.
    pub other: u64,
    /// Requests that the log only counts (LOG-6).
    pub left_out: u64,
    /// Further fields that lines of our own format hold (`WAF_LOG_REQUEST_HEADERS`).
    pub fields: BTreeSet<String>,
    pub unreadable: u64,
    /// The first unreadable lines: file, line number, reason.
    pub told: Vec<(String, u64, &'static str)>,
}

/// One of the logs.
#[derive(Debug)]
pub struct File {
    pub name: String,
    /// None if no line of the log can be read.
    pub format: Option<&'static str>,
}

/// The document that `schema/proxy/replay.schema.json` describes.
pub fn document(reading: &Reading, from: &str, engine: &Engine, most: usize) -> Value {
    let (first, last) = engine.times.unzip();
    let unreadable = reading.told.iter();
    let tallies = &engine.tallies;
    let trials = engine.trials.len();
    let mut trimmed = Vec::new();
    macro_rules! top {
        ($member:ident) => {{
            if tallies.$member.is_trimmed() {
                trimmed.push(stringify!($member));
            }
            top(&tallies.$member, most, trials)
        }};
    }
    json!({
        "files": reading.files.iter().map(|file| json!({"name": file.name, "format": file.format})).collect::<Vec<_>>(),
        "interrupted": reading.interrupted,
        "from": first.map(Time),
        "to": last.map(Time),
        "settings": from,
        "lines": {
            "read": reading.lines,
            "requests": engine.requests,
            "other": reading.other,
            "left_out": reading.left_out,
            "unreadable": reading.unreadable,
            "first_unreadable": unreadable.map(|(file, line, why)| json!({"file": file, "line": line, "why": why})).collect::<Vec<_>>(),
        },
        "refused_in_log": engine.were_refused,
        "trials": engine.trials.iter().map(|trial| of_trial(trial, engine.requests)).collect::<Vec<_>>(),
        "clients": top!(clients),
        "netblocks": top!(netblocks),
        "ases": top!(ases),
        "countries": top!(countries),
        "paths": top!(paths),
        "trimmed": trimmed,
    })
}

fn of_trial(trial: &Trial, requests: u64) -> Value {
    let refused: u64 = trial.refused.iter().sum();
    let by_reason = Action::ALL.iter().zip(trial.refused);
    let by_reason: Map<String, Value> = by_reason
        .filter(|(action, _)| action.is_refusal())
        .map(|(action, count)| (action.name().to_owned(), count.into()))
        .collect();
    let set = trial.set.iter();
    let set: Map<String, Value> = set
        .map(|(name, value)| (name.clone(), value.clone().into()))
        .collect();
    json!({
        "set": set,
        "passed": requests - refused,
        "refused": refused,
        "by_reason": by_reason,
        "bans": trial.bans(),
    })
}

fn top<K: Eq + std::hash::Hash + Ord + Clone + ToString>(
    tally: &Tally<K>,
    most: usize,
    trials: usize,
) -> Value {
    let rows = tally.top(most).into_iter();
    let rows = rows.map(|(key, Counted { requests, refused })| {
        let refused: Vec<u64> = refused.into_iter().take(trials).collect();
        json!({"of": key.to_string(), "requests": requests, "refused": refused})
    });
    rows.collect()
}

/// The document in words.
pub fn in_words(document: &Value) -> String {
    let number = |member: &str| document["lines"][member].as_u64().unwrap_or(0);
    let mut text = String::new();
    if document["interrupted"] == true {
        text.push_str("Interrupted: this is what was found so far.\n");
    }
    let span = match (time(&document["from"]), time(&document["to"])) {
        (Some(_), Some(_)) => format!(", {} to {}", cell(&document["from"]), cell(&document["to"])),
        _ => String::new(),
    };
    text.push_str(&format!(
        "{} in {}{span}\n",
        count(number("requests"), "request"),
        count(number("read"), "line"),
    ));
    for (member, what) in [
        ("other", "of something else"),
        ("unreadable", "that cannot be read"),
    ] {
        if number(member) != 0 {
            text.push_str(&format!("{} {what}\n", count(number(member), "line")));
        }
    }
    if number("left_out") != 0 {
        text.push_str(&format!(
            "only counted in the log (LOG-6), and not judged: {}\n",
            count(number("left_out"), "refused request")
        ));
    }
    if let Some(refused) = document["refused_in_log"].as_u64() {
        text.push_str(&format!(
            "{refused} were refused when the log was written\n"
        ));
    }
    let files = document["files"].as_array().into_iter().flatten();
    let mut formats = files.filter_map(|file| file["format"].as_str());
    if formats.any(|format| format != Format::Weir.name()) {
        text.push_str(
            "Only weir's own log says what pages of other sites asked for (Sec-Fetch-Site): all else counts as the clients' own\n",
        );
    }
    text.push('\n');
    text.push_str(&of_trials(document));
    for (member, heading) in [
        ("clients", "CLIENT"),
        ("netblocks", "NETBLOCK"),
        ("ases", "AS"),
        ("countries", "COUNTRY"),
        ("paths", "PATH"),
    ] {
        text.push_str(&most(document, member, heading));
    }
    text
}

/// The trials side by side.
fn of_trials(document: &Value) -> String {
    let trials: Vec<&Value> = document["trials"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let requests = document["lines"]["requests"].as_u64().unwrap_or(0);
    let mut text = String::new();
    let columns = columns(&trials);
    for (column, trial) in columns.iter().zip(&trials) {
        let set = trial["set"].as_object().into_iter().flatten();
        let set = set.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
        let set: Vec<String> = set.collect();
        text.push_str(&match set.is_empty() {
            true => format!("{column}: the settings {}\n", cell(&document["settings"])),
            false => format!("{column}: with {}\n", set.join(" ")),
        });
    }
    let headings: Vec<&str> = [""].iter().chain(columns).copied().collect();
    let mut table = Table::new(&headings, &[1, 2]);
    let mut row = |name: &str, of: &dyn Fn(&Value) -> String| {
        let cells = trials.iter().map(|trial| of(trial));
        table.row([name.to_owned()].into_iter().chain(cells));
    };
    let share = |count: &Value| {
        let count = count.as_u64().unwrap_or(0);
        format!("{count} ({})", percent(count, requests))
    };
    row("passed", &|trial| share(&trial["passed"]));
    row("refused", &|trial| share(&trial["refused"]));
    for action in Action::ALL.iter().filter(|action| action.is_refusal()) {
        let name = action.name();
        if trials.iter().any(|trial| trial["by_reason"][name] != 0) {
            row(&format!("  {name}"), &|trial| {
                share(&trial["by_reason"][name])
            });
        }
    }
    row("bans made", &|trial| trial["bans"].to_string());
    text + &table.text()
}

/// The headings of the trials: the settings as they are have the heading NOW.
fn columns(trials: &[&Value]) -> &'static [&'static str] {
    let is_as_now = |trial: &&Value| trial["set"].as_object().is_none_or(Map::is_empty);
    let both: &[&str] = match trials.first().is_some_and(is_as_now) {
        true => &["NOW", "THEN"],
        false => &["FIRST", "SECOND"],
    };
    both.get(..trials.len()).unwrap_or(both)
}

/// The table of those that would be refused most; empty if nobody would be, or if nothing is known
/// about them.
fn most(document: &Value, member: &str, heading: &'static str) -> String {
    let rows: Vec<&Value> = document[member].as_array().into_iter().flatten().collect();
    let is_refused = |row: &&&Value| {
        let mut refused = row["refused"].as_array().into_iter().flatten();
        refused.any(|count| *count != 0)
    };
    let refused: Vec<&&Value> = rows.iter().filter(is_refused).collect();
    // Without lookups everybody is in the one row "unknown": the table is left out.
    if refused.iter().all(|row| row["of"] == "unknown") {
        return String::new();
    }
    let trials: Vec<&Value> = document["trials"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let of_trials: &[&str] = match columns(&trials) {
        [_] => &["REFUSED"],
        ["NOW", ..] => &["REFUSED NOW", "REFUSED THEN"],
        _ => &["REFUSED FIRST", "REFUSED SECOND"],
    };
    let headings = [&[heading, "REQUESTS"], of_trials].concat();
    let mut table = Table::new(&headings, &[1, 2, 3]);
    for row in refused {
        let counts = row["refused"].as_array().into_iter().flatten();
        let cells = [cell(&row["of"]), cell(&row["requests"])];
        table.row(cells.into_iter().chain(counts.map(Value::to_string)));
    }
    let mut trimmed = document["trimmed"].as_array().into_iter().flatten();
    let note = match trimmed.any(|name| *name == member) {
        true => "(there were more than are kept: these counts are the least)\n",
        false => "",
    };
    format!("\n{}{note}", table.text())
}
