//! `weir bans`: list, add, lift, import, export, check.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_controlplane::offline::{self, Offline};

use super::ask::{Answer, Asked, Asking, Place};
use super::common::{EXIT_NO, EXIT_USAGE, Failure, finish, now, out, percent_encoded, print_json};
use super::text::{Table, cell, time, until};

/// The most bytes of an import, as the service has it.
const MAX_IMPORT: u64 = 128 << 20;

/// The commands about bans.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List bans: those that refuse now
    List(List),
    /// Ban a netblock
    Add(Add),
    /// Lift every ban that covers an address, or those of exactly one netblock
    Lift(Lift),
    /// Take in what export wrote, or ban every netblock of a list; with a fault nothing is taken
    Import(Import),
    /// Write the active bans as a bans.json to standard output
    Export(Export),
    /// Say what is wrong with a bans.json
    Check(Check),
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
    /// How long: a time such as 2h, or permanent
    #[arg(long = "for", value_name = "TIME")]
    duration: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
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
pub struct Import {
    /// The file: what export wrote, or one address or netblock a line; - is standard input
    file: PathBuf,
    /// How long, of a plain list: a time such as 2h, or permanent
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<String>,
    /// Why, of a plain list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Even if something covers everything or a trusted proxy
    #[arg(long)]
    force: bool,
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

#[derive(Args, Debug)]
pub struct Check {
    /// The file; without it that of the state directory
    file: Option<PathBuf>,
    #[command(flatten)]
    asking: Asking,
}

/// Runs one of them; without a name, the list.
pub fn run(command: Option<Command>, asking: Asking) -> ExitCode {
    finish(match command {
        None => list(&List {
            asking,
            all: false,
            covering: None,
        }),
        Some(Command::List(given)) => list(&given),
        Some(Command::Add(given)) => add(&given),
        Some(Command::Lift(given)) => lift(&given),
        Some(Command::Import(given)) => import(&given),
        Some(Command::Export(given)) => export(&given),
        Some(Command::Check(given)) => check(&given),
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
    let place = Place::of(&given.asking)?;
    let ban = order(&place, &given.netblock, &given.terms)?.good()?;
    if given.asking.json {
        return print_json(&ban);
    }
    out(&format!("banned {}\n", in_words(&ban)));
    Ok(ExitCode::SUCCESS)
}

fn order(place: &Place, netblock: &str, terms: &Terms) -> Result<Answer, Failure> {
    let force = terms.force.then_some(true);
    let mut order = Map::new();
    order.insert("netblock".to_owned(), json!(netblock));
    order.insert("duration".to_owned(), json!(terms.duration));
    order.insert("reason".to_owned(), json!(terms.reason));
    order.extend(force.map(|force| ("force".to_owned(), json!(force))));
    place.expect(Method::POST, "/v1/bans", Some(&order.into()))
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

/// One request and one write, judged whole: with a fault nothing is banned.
fn import(given: &Import) -> Result<ExitCode, Failure> {
    let body = content(&given.file)?;
    let target = format!("/v1/bans/import{}", terms(given, &body)?);
    let answer = match Place::of(&given.asking)?.send(Method::POST, &target, body)? {
        Asked::Answered(answer) => answer,
        Asked::NoService(nobody) => return Err(nobody),
    };
    let faults: Vec<String> = faults_of(&answer);
    if faults.is_empty() {
        let imported = answer.good()?;
        if given.asking.json {
            return print_json(&imported);
        }
        let [all, new, dropped] =
            ["imported", "new", "dropped"].map(|name| imported[name].as_u64());
        let (all, new) = (all.unwrap_or(0), new.unwrap_or(0));
        let dropped = match dropped {
            Some(1..) => format!(", {} dropped for them", imported["dropped"]),
            _ => String::new(),
        };
        let late = if imported["persisted"] == false {
            ", not on disk yet"
        } else {
            ""
        };
        let word = if all == 1 { "ban" } else { "bans" };
        out(&format!(
            "imported {all} {word}, {new} of them new{dropped}{late}\n"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    for fault in &faults {
        eprintln!("weir: {}: {fault}", given.file.display());
    }
    if given.asking.json {
        print_json(&json!({"imported": 0, "new": 0, "dropped": 0, "faults": faults}))?;
    } else {
        let word = if faults.len() == 1 { "fault" } else { "faults" };
        out(&format!("nothing is imported: {} {word}\n", faults.len()));
    }
    Ok(ExitCode::from(EXIT_NO))
}

/// The query of an import: what is said of each netblock of a plain list.
fn terms(given: &Import, body: &[u8]) -> Result<String, Failure> {
    let is_document = body.trim_ascii_start().starts_with(b"{");
    let usage = |sentence| Err(Failure::new(EXIT_USAGE, sentence));
    let mut parts = match (&given.duration, &given.reason) {
        (None, None) if is_document => Vec::new(),
        (Some(duration), Some(reason)) if !is_document => vec![
            format!("duration={}", percent_encoded(duration)),
            format!("reason={}", percent_encoded(reason)),
        ],
        _ if is_document => {
            return usage(
                "--for and --reason are for a plain list: a bans.json says both of each ban",
            );
        }
        _ => {
            return usage(
                "a plain list of netblocks needs --for and --reason; a bans.json begins with {",
            );
        }
    };
    if given.force {
        parts.push("force=true".to_owned());
    }
    Ok(match parts.is_empty() {
        true => String::new(),
        false => format!("?{}", parts.join("&")),
    })
}

/// What is wrong with the body, fault by fault.
fn faults_of(answer: &Answer) -> Vec<String> {
    if answer.status != StatusCode::UNPROCESSABLE_ENTITY {
        return Vec::new();
    }
    let errors = answer.body["errors"].as_array().into_iter().flatten();
    let sentence = |fault: &Value| {
        let detail = fault["detail"].as_str().unwrap_or_default();
        let detail = detail.replace(
            "\"force\": true would be needed",
            "--force if that is meant",
        );
        match fault["pointer"].as_str().unwrap_or_default() {
            "" => detail,
            pointer => format!("{pointer}: {detail}"),
        }
    };
    errors.map(sentence).collect()
}

/// The whole of a file, or of standard input.
fn content(file: &Path) -> Result<Vec<u8>, Failure> {
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(MAX_IMPORT + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > MAX_IMPORT {
            true => Err(io::Error::other(format!(
                "it is larger than {} MiB",
                MAX_IMPORT >> 20
            ))),
            false => Ok(bytes),
        }
    };
    let read = match file.as_os_str() == "-" {
        true => read(&mut io::stdin().lock()),
        false => File::open(file).and_then(|mut file| read(&mut file)),
    };
    let unread = |error| format!("{} cannot be read: {error}", file.display());
    read.map_err(|error| Failure::new(EXIT_USAGE, unread(error)))
}

fn export(given: &Export) -> Result<ExitCode, Failure> {
    let bans = held(&given.asking, !given.all, None)?;
    print_json(&json!({"version": 1, "bans": bans}))
}

fn check(given: &Check) -> Result<ExitCode, Failure> {
    let path = match &given.file {
        Some(file) => file.clone(),
        None => Place::of(&given.asking)?.dir.join("bans.json"),
    };
    if !path.is_file() {
        let sentence = format!("{} is no file", path.display());
        return Err(Failure::new(EXIT_USAGE, sentence));
    }
    let read = offline::read_bans(&path, now());
    if given.asking.json {
        let fault = read.as_ref().err().map(ToString::to_string);
        print_json(&json!({"file": path, "fault": fault}))?;
    }
    match read {
        Ok(bans) if !given.asking.json => {
            out(&format!(
                "{}: {} bans, no faults\n",
                path.display(),
                bans.len()
            ));
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(_) if given.asking.json => Ok(ExitCode::from(EXIT_NO)),
        Err(fault) => Err(Failure::new(EXIT_NO, fault.to_string())),
    }
}
