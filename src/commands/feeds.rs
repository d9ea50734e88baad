//! `weir feeds`: the lists from elsewhere, and what to do with one (FEED-8).
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::ask::{Asking, Place};
use super::common::{
    EXIT_NO, EXIT_UNAVAILABLE, Failure, finish, now, out, percent_encoded, print_json,
};
use super::text::{Table, cell, since, until};

/// How often the service is asked whether a fetch has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How many times: a fetch takes at most 30 s, and one of another feed may be under way.
const LOOKS: u32 = 5 * 90;

/// The commands about feeds.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List the feeds of rules.json, and how they are
    List(Asking),
    /// Fetch one now: exit status 1 if nothing came, or it is not taken
    Fetch(One),
    /// Take the version of one that was not taken
    Accept(One),
}

/// One feed.
#[derive(Args, Debug)]
pub struct One {
    /// Its name in rules.json
    name: String,
    #[command(flatten)]
    asking: Asking,
}

/// Without a command: the list.
pub fn run(command: Option<Command>, asking: &Asking) -> ExitCode {
    finish(match command {
        None => list(asking),
        Some(Command::List(asking)) => list(&asking),
        Some(Command::Fetch(one)) => fetch(&one),
        Some(Command::Accept(one)) => accept(&one),
    })
}

fn list(asking: &Asking) -> Result<ExitCode, Failure> {
    let feeds = feeds(&Place::of(asking)?)?;
    if asking.json {
        return print_json(&feeds);
    }
    let now_ms = now().wall_ms;
    let headings = [
        "FEED", "USE", "ENTRIES", "TAKEN", "CHECKED", "OUTCOME", "NEXT",
    ];
    let mut table = Table::new(&headings, &[2]);
    let all = feeds["feeds"].as_array();
    for feed in all.into_iter().flatten() {
        table.row([
            cell(&feed["name"]),
            cell(&feed["use"]),
            cell(&feed["entries"]),
            since(&feed["taken"], now_ms),
            since(&feed["checked"], now_ms),
            cell(&feed["outcome"]),
            until(&feed["next"], now_ms),
        ]);
    }
    if all.is_none_or(Vec::is_empty) {
        out("no feeds\n");
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = table.text();
    for feed in all.into_iter().flatten() {
        if let Some(error) = feed["error"].as_str() {
            text.push_str(&format!("{}: {}\n", cell(&feed["name"]), error));
        }
    }
    out(&text);
    Ok(ExitCode::SUCCESS)
}

/// What the service tells of all of them.
fn feeds(place: &Place) -> Result<Value, Failure> {
    place.expect(Method::GET, "/v1/feeds", None)?.good()
}

/// The same of one.
fn one(place: &Place, name: &str) -> Result<Value, Failure> {
    let feeds = feeds(place)?;
    let mut all = feeds["feeds"].as_array().into_iter().flatten();
    let found = all.find(|feed| feed["name"] == name).cloned();
    found.ok_or_else(|| Failure::new(EXIT_NO, format!("no feed is named {name:?}")))
}

fn fetch(given: &One) -> Result<ExitCode, Failure> {
    let place = Place::of(&given.asking)?;
    let before = one(&place, &given.name)?;
    let target = format!("/v1/feeds/{}/fetch", percent_encoded(&given.name));
    place.expect(Method::POST, &target, None)?.good()?;
    for _ in 0..LOOKS {
        std::thread::sleep(LOOK);
        let feed = one(&place, &given.name)?;
        if feed["checked"] != before["checked"] {
            return told(given, &feed);
        }
    }
    let sentence = format!("the fetch of {:?} has not ended yet", given.name);
    Err(Failure::new(EXIT_UNAVAILABLE, sentence))
}

/// What became of a fetch.
fn told(given: &One, feed: &Value) -> Result<ExitCode, Failure> {
    let outcome = feed["outcome"].as_str().unwrap_or_default();
    let is_good = matches!(outcome, "taken" | "unchanged");
    let entries = &feed["entries"];
    if given.asking.json {
        print_json(feed)?;
    } else {
        let why = feed["error"].as_str().map(|why| format!(": {why}"));
        let why = why.unwrap_or_default();
        out(&format!(
            "{}: {outcome}{why}; {entries} entries hold\n",
            given.name
        ));
    }
    Ok(ExitCode::from(if is_good { 0 } else { EXIT_NO }))
}

fn accept(given: &One) -> Result<ExitCode, Failure> {
    let place = Place::of(&given.asking)?;
    one(&place, &given.name)?;
    let target = format!("/v1/feeds/{}/accept", percent_encoded(&given.name));
    let told = place.expect(Method::POST, &target, None)?.good()?;
    if given.asking.json {
        return print_json(&told);
    }
    out(&format!(
        "{}: taken; {} entries hold\n",
        given.name, told["entries"]
    ));
    Ok(ExitCode::SUCCESS)
}
