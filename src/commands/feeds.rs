//! `weir feeds`: lists the feeds of rules.json, fetches one, or accepts a refused version (FEED-8).

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use weir_shared::api::feeds::{Feed, FeedAsked, FeedList};
use weir_shared::ban::Expiry;
use weir_shared::units::Time;

use super::ask::{Asking, Place, typed};
use super::common::{
    EXIT_NO, EXIT_UNAVAILABLE, Failure, finish, now, out, percent_encoded, print_json,
};
use super::text::{Table, maybe, plain, since_time, until_end};

/// How often the service is asked whether a fetch has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How many times: 90 s in all. A fetch takes at most 30 s, and may wait for that of another feed.
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

/// Runs the command; without one, `list`.
pub fn run(command: Option<Command>, asking: &Asking) -> ExitCode {
    finish(match command {
        None => list(asking),
        Some(Command::List(asking)) => list(&asking),
        Some(Command::Fetch(one)) => fetch(&one),
        Some(Command::Accept(one)) => accept(&one),
    })
}

fn list(asking: &Asking) -> Result<ExitCode, Failure> {
    let (answer, FeedList { feeds }) = answer(&Place::of(asking)?)?;
    if asking.json {
        return print_json(&answer);
    }
    if feeds.is_empty() {
        out("no feeds\n");
        return Ok(ExitCode::SUCCESS);
    }
    let now_ms = now().wall_ms;
    let headings = [
        "FEED", "USE", "ENTRIES", "TAKEN", "CHECKED", "OUTCOME", "NEXT",
    ];
    let mut table = Table::new(&headings, &[2]);
    let since = |time: Option<Time>| maybe(time.map(|time| since_time(time, now_ms)));
    for feed in &feeds {
        table.row([
            plain(&feed.name),
            maybe(feed.used.as_ref()),
            feed.entries.to_string(),
            since(feed.taken),
            since(feed.checked),
            maybe(feed.outcome.as_ref()),
            until_end(Expiry::At(feed.next), now_ms),
        ]);
    }
    let mut text = table.text();
    for feed in &feeds {
        if let Some(error) = &feed.error {
            text.push_str(&format!("{}: {error}\n", plain(&feed.name)));
        }
    }
    out(&text);
    Ok(ExitCode::SUCCESS)
}

/// The service's answer about all feeds.
fn answer(place: &Place) -> Result<(Value, FeedList), Failure> {
    place.expect(Method::GET, "/v1/feeds", None)?.read()
}

/// The service's answer about one feed.
fn one(place: &Place, name: &str) -> Result<Feed, Failure> {
    let (_, FeedList { feeds }) = answer(place)?;
    let found = feeds.into_iter().find(|feed| feed.name == name);
    found.ok_or_else(|| Failure::new(EXIT_NO, format!("no feed is named {name:?}")))
}

fn fetch(given: &One) -> Result<ExitCode, Failure> {
    let place = Place::of(&given.asking)?;
    let before = one(&place, &given.name)?;
    let target = format!("/v1/feeds/{}/fetch", percent_encoded(&given.name));
    let answer = place.expect(Method::POST, &target, None)?;
    typed::<FeedAsked>(answer.good()?)?;
    for _ in 0..LOOKS {
        std::thread::sleep(LOOK);
        let feed = one(&place, &given.name)?;
        if feed.checked != before.checked {
            return told(given, &feed);
        }
    }
    let sentence = format!("the fetch of {:?} has not ended yet", given.name);
    Err(Failure::new(EXIT_UNAVAILABLE, sentence))
}

/// Reports the result of a fetch.
fn told(given: &One, feed: &Feed) -> Result<ExitCode, Failure> {
    if given.asking.json {
        print_json(&json!(feed))?;
    } else {
        let outcome = feed.outcome.as_deref().unwrap_or_default();
        let why = feed.error.as_ref().map(|why| format!(": {why}"));
        out(&format!(
            "{}: {outcome}{}; {} entries hold\n",
            given.name,
            why.unwrap_or_default(),
            feed.entries
        ));
    }
    Ok(ExitCode::from(if feed.is_well() { 0 } else { EXIT_NO }))
}

fn accept(given: &One) -> Result<ExitCode, Failure> {
    let place = Place::of(&given.asking)?;
    one(&place, &given.name)?;
    let target = format!("/v1/feeds/{}/accept", percent_encoded(&given.name));
    let answer = place.expect(Method::POST, &target, None)?;
    let (answer, FeedAsked { name, entries }) = answer.read()?;
    if given.asking.json {
        return print_json(&answer);
    }
    out(&format!("{name}: taken; {} entries hold\n", maybe(entries)));
    Ok(ExitCode::SUCCESS)
}
