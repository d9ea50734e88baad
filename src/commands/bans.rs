//! `weir bans`: list, add, lift, export; import and check are in `bans/import.rs`.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use weir_controlplane::offline::Offline;
use weir_shared::netblock::Netblock;

use super::ask::{Answer, Asked, Asking, Place};
use super::common::{
    EXIT_NO, EXIT_USAGE, Failure, address, finish, now, out, percent_encoded, print_json,
};
use super::lists;
use super::text::{Table, cell, time, until};

mod import;

/// The commands about bans.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List bans: those that refuse now
    List(List),
    /// Ban a netblock, or make a ban that was made by hand last longer
    Add(Add),
    /// Lift every ban that covers an address, or those of exactly one netblock
    Lift(Lift),
    /// Take in what export wrote, or ban every netblock of a list; with a fault nothing is taken
    Import(import::Import),
    /// Write the active bans as a bans.json to standard output
    Export(Export),
    /// Say what is wrong with a file that is to be imported
    Check(import::Check),
}

#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    asking: Asking,
    /// Those that ended or were lifted, too
    #[arg(long)]
    all: bool,
    /// Only those that cover this address
    #[arg(long, value_name = "ADDRESS")]
    covering: Option<String>,
}

#[derive(Args, Debug)]
pub struct Add {
    /// An address or a netblock, such as 203.0.113.0/24
    netblock: String,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    asking: Asking,
}

/// What is said of every ban that is made by hand.
#[derive(Args, Debug)]
pub struct Terms {
    /// How long: a time such as 2h, or permanent; without it WAF_BAN_FIRST of the service
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<String>,
    /// Why, for the record; without it "by hand"
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Even if it covers everything or a trusted proxy
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
pub struct Lift {
    /// An address or a netblock
    subject: String,
    #[command(flatten)]
    asking: Asking,
}

#[derive(Args, Debug)]
pub struct Export {
    /// Those that ended or were lifted, too: the next ban of their netblocks lasts longer
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    asking: Asking,
}

/// Runs one of them; without a name, the list.
pub fn run(command: Option<Command>, plain: List) -> ExitCode {
    finish(match command {
        None => list(&plain),
        Some(Command::List(given)) => list(&given),
        Some(Command::Add(given)) => add(&given),
        Some(Command::Lift(given)) => lift(&given),
        Some(Command::Import(given)) => import::import(&given),
        Some(Command::Export(given)) => export(&given),
        Some(Command::Check(given)) => import::check(&given),
    })
}

fn list(given: &List) -> Result<ExitCode, Failure> {
    let bans = held(&given.asking, !given.all, given.covering.as_deref())?;
    if given.asking.json {
        return print_json(&json!({"bans": bans}));
    }
    let now_ms = now().wall_ms;
    let mut table = Table::new(
        &[
            "NETBLOCK", "ENDS IN", "CAUSE", "CLIENT", "HITS", "COUNTRY", "AS", "REQUEST",
        ],
        &[4],
    );
    for ban in &bans {
        let notes = &ban["notes"];
        let lookup = &notes["lookup"];
        let system = [&lookup["asn"], &lookup["as_name"]]
            .into_iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" ");
        let request = &notes["request"];
        let request = match (request["method"].as_str(), request["path"].as_str()) {
            (Some(method), Some(path)) => cell(&json!(format!("{method} {path}"))),
            _ => cell(&ban["reason"]),
        };
        table.row([
            cell(&ban["netblock"]),
            end(ban, now_ms),
            cause(ban),
            cell(&ban["client"]),
            cell(&notes["netblock_requests"]),
            cell(&lookup["country"]),
            if system.is_empty() {
                "–".to_owned()
            } else {
                cell(&json!(system))
            },
            request,
        ]);
    }
    if bans.is_empty() {
        out("no bans\n");
    } else {
        out(&table.text());
    }
    Ok(ExitCode::SUCCESS)
}

/// When a ban ends, or that it has.
pub fn end(ban: &Value, now_ms: u64) -> String {
    let observed = if ban["observed"] == true {
        " (observe)"
    } else {
        ""
    };
    if ban["lifted"].is_string() {
        return "lifted".to_owned();
    }
    match time(&ban["ban_expires"]) {
        Some(end) if end <= now_ms => "ended".to_owned(),
        _ => until(&ban["ban_expires"], now_ms) + observed,
    }
}

/// `minute 1000`, or the cause in a word.
pub fn cause(ban: &Value) -> String {
    let notes = &ban["notes"];
    match (notes["limit"].as_str(), notes["limit_value"].as_u64()) {
        (Some(limit), Some(value)) => cell(&json!(format!("{limit} {value}"))),
        _ => cell(&ban["cause"]),
    }
}

/// The bans of the service; those of its file where none runs.
fn held(asking: &Asking, active: bool, covering: Option<&str>) -> Result<Vec<Value>, Failure> {
    let place = Place::of(asking)?;
    let mut parts = Vec::new();
    if active {
        parts.push("active=true".to_owned());
    }
    let covering = covering.map(address).transpose()?;
    if let Some(address) = covering {
        parts.push(format!("ip={}", percent_encoded(address)));
    }
    let target = format!("/v1/bans?{}", parts.join("&"));
    let answer = match place.ask(Method::GET, &target, None)? {
        Asked::Answered(answer) => answer.good()?,
        Asked::NoService(failure) => {
            let bans = place.read_files(failure, Offline::bans)?;
            let mut bans = list_of(bans);
            let now_ms = now().wall_ms;
            bans.retain(|ban| !active || is_active(ban, now_ms));
            if let Some(address) = covering {
                let client = address.parse().map_err(|error| {
                    Failure::new(
                        EXIT_USAGE,
                        format!("{address:?} is not an address: {error}"),
                    )
                })?;
                bans.retain(|ban| covers(ban, client));
            }
            return Ok(bans);
        }
    };
    Ok(list_of(answer))
}

/// Whether the ban refuses at this moment.
pub fn is_active(ban: &Value, now_ms: u64) -> bool {
    !ban["lifted"].is_string() && time(&ban["ban_expires"]).is_none_or(|end| end > now_ms)
}

/// Whether the ban covers the client.
pub fn covers(ban: &Value, client: weir_shared::client::Client) -> bool {
    let netblock = ban["netblock"].as_str().unwrap_or_default();
    let netblock = netblock.parse::<weir_shared::netblock::Netblock>();
    netblock.is_ok_and(|netblock| netblock.covers_client(client))
}

fn list_of(mut answer: Value) -> Vec<Value> {
    match answer.get_mut("bans").map(Value::take) {
        Some(Value::Array(bans)) => bans,
        _ => Vec::new(),
    }
}

fn add(given: &Add) -> Result<ExitCode, Failure> {
    let netblock = lists::netblock(&given.netblock)?;
    if let Some(duration) = &given.terms.duration {
        lists::end_of(duration)?;
    }
    let place = Place::of(&given.asking)?;
    let duration = match &given.terms.duration {
        Some(duration) => duration.clone(),
        None => first_length(&place)?,
    };
    let (done, ban) = match standing(&place, netblock)? {
        Some(ban) => extended(&place, ban, lists::end_of(&duration)?, &given.terms)?,
        None => (
            "banned",
            order(&place, &given.netblock, &duration, &given.terms)?.good()?,
        ),
    };
    if given.asking.json {
        return print_json(&ban);
    }
    out(&format!("{done} {}\n", in_words(&ban)));
    Ok(ExitCode::SUCCESS)
}

fn order(place: &Place, netblock: &str, duration: &str, terms: &Terms) -> Result<Answer, Failure> {
    let reason = terms.reason.as_deref().unwrap_or("by hand");
    let mut order = json!({"netblock": netblock, "duration": duration, "reason": reason});
    if terms.force {
        order["force"] = json!(true);
    }
    place.expect(Method::POST, "/v1/bans", Some(&order))
}

/// The ban of exactly this netblock that was made by hand and refuses now.
fn standing(place: &Place, netblock: Netblock) -> Result<Option<Value>, Failure> {
    let netblock = netblock.widened_to_clients();
    let address = percent_encoded(&netblock.net().network().to_string());
    let target = format!("/v1/bans?active=true&ip={address}");
    let bans = list_of(place.expect(Method::GET, &target, None)?.good()?);
    let is_it = |ban: &&Value| {
        ban["netblock"] == json!(netblock) && ban["cause"] == "admin" && ban["observed"] != true
    };
    let last = |ban: &&Value| time(&ban["ban_expires"]).unwrap_or(u64::MAX);
    let ban = bans.iter().filter(is_it).max_by_key(last);
    Ok(ban.cloned())
}

/// The same ban with a later end, and the reason that is given, if one is. One that lasts longer
/// keeps its end.
fn extended(
    place: &Place,
    mut ban: Value,
    end: Value,
    terms: &Terms,
) -> Result<(&'static str, Value), Failure> {
    let last = |end: &Value| time(end).unwrap_or(u64::MAX);
    let is_later = last(&end) > last(&ban["ban_expires"]);
    if is_later {
        ban["ban_expires"] = end;
    }
    match &terms.reason {
        Some(reason) => ban["reason"] = json!(reason),
        None if !is_later => return Ok(("already banned for longer:", ban)),
        None => {}
    }
    let target = format!("/v1/bans/import?force={}", terms.force);
    let document = json!({"version": 1, "bans": [ban]});
    place
        .expect(Method::POST, &target, Some(&document))?
        .good()?;
    let done = if is_later {
        "extended"
    } else {
        "already banned for longer:"
    };
    Ok((done, ban))
}

/// `WAF_BAN_FIRST` of the service.
fn first_length(place: &Place) -> Result<String, Failure> {
    const NAME: &str = "WAF_BAN_FIRST";
    let settings = place.expect(Method::GET, "/v1/settings", None)?.good()?;
    let settings = settings["settings"].as_array().into_iter().flatten();
    let first = settings.into_iter().find(|one| one["name"] == NAME);
    let value = first.and_then(|one| one["value"].as_str());
    let why = format!("the service does not say what its {NAME} is: give --for");
    value
        .map(str::to_owned)
        .ok_or_else(|| Failure::new(EXIT_USAGE, why))
}

/// `203.0.113.0/24 (41 min)`, with a word on what is not on disk.
fn in_words(ban: &Value) -> String {
    let late = if ban["persisted"] == false {
        ", not on disk yet"
    } else {
        ""
    };
    let end = until(&ban["ban_expires"], now().wall_ms);
    format!("{} ({end}{late})", cell(&ban["netblock"]))
}

fn lift(given: &Lift) -> Result<ExitCode, Failure> {
    let place = Place::of(&given.asking)?;
    let target = format!("/v1/bans/{}", percent_encoded(&given.subject));
    let answer = place.expect(Method::DELETE, &target, None)?.good()?;
    let lifted = answer["lifted"].as_array().cloned().unwrap_or_default();
    if given.asking.json {
        print_json(&answer)?;
    } else if lifted.is_empty() {
        out(&format!(
            "nothing lifted: no active ban {}\n",
            which(&given.subject)
        ));
    }
    if lifted.is_empty() {
        return Ok(ExitCode::from(EXIT_NO));
    }
    if !given.asking.json {
        let late = if answer["persisted"] == false {
            ", not on disk yet"
        } else {
            ""
        };
        for ban in &lifted {
            let left = until(&ban["ban_expires"], now().wall_ms);
            out(&format!(
                "lifted {} ({left} left{late})\n",
                cell(&ban["netblock"])
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn which(subject: &str) -> String {
    if subject.contains('/') {
        format!("of exactly {subject}")
    } else {
        format!("covers {subject}")
    }
}

fn export(given: &Export) -> Result<ExitCode, Failure> {
    let bans = held(&given.asking, !given.all, None)?;
    print_json(&json!({"version": 1, "bans": bans}))
}
