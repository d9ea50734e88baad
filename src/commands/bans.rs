//! `weir bans`: list, add, lift, export; import and check are in `bans/import.rs`.
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use weir_controlplane::offline::Offline;
use weir_shared::api::bans::{BanList, Banned, Lifted};
use weir_shared::api::settings::SettingList;
use weir_shared::api::status::Status;
use weir_shared::ban::{Ban, Cause, Expiry};
use weir_shared::netblock::Netblock;

use super::ask::{Answer, Asked, Asking, Place, typed};
use super::common::{
    EXIT_NO, EXIT_USAGE, Failure, address, finish, now, out, percent_encoded, print_json,
};
use super::lists;
use super::text::{Table, maybe, plain, tsv, until_end};

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
    /// Answer in lines of cells between tabs, for programs: times in full, nothing shortened
    #[arg(long, conflicts_with = "json")]
    tsv: bool,
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

/// The flags of `add` and `import` that describe a ban made by hand.
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

/// Runs the named command; without a name, `list`.
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
    if given.tsv {
        out(&in_cells(&bans));
        return Ok(ExitCode::SUCCESS);
    }
    let now_ms = now().wall_ms;
    let mut table = Table::new(
        &[
            "NETBLOCK", "ENDS IN", "CAUSE", "CLIENT", "HITS", "COUNTRY", "AS", "REQUEST",
        ],
        &[4],
    );
    for ban in &bans {
        let notes = ban.notes.clone().unwrap_or_default();
        let lookup = notes.lookup.map(|lookup| lookup.known).unwrap_or_default();
        let system = [&lookup.asn, &lookup.as_name].into_iter().flatten();
        let system: Vec<&str> = system.map(String::as_str).collect();
        let request = notes.request.map(|request| request.known);
        let request = request.and_then(|of| Some(format!("{} {}", of.method?, of.path?)));
        table.row([
            ban.netblock.to_string(),
            end(ban, now_ms),
            cause(ban),
            maybe(ban.client),
            maybe(notes.netblock_requests),
            maybe(lookup.country.as_ref()),
            maybe((!system.is_empty()).then(|| system.join(" "))),
            plain(request.as_ref().unwrap_or(&ban.reason)),
        ]);
    }
    if bans.is_empty() {
        out("no bans\n");
    } else {
        out(&table.text());
    }
    Ok(ExitCode::SUCCESS)
}

/// One line of headings, then one line for each ban.
fn in_cells(bans: &[Arc<Ban>]) -> String {
    const NAMES: [&str; 12] = [
        "netblock",
        "ban_started",
        "ban_expires",
        "lifted",
        "cause",
        "observed",
        "client",
        "country",
        "asn",
        "method",
        "path",
        "reason",
    ];
    let of = |ban: &Arc<Ban>| {
        let notes = ban.notes.clone().unwrap_or_default();
        let lookup = notes.lookup.map(|lookup| lookup.known).unwrap_or_default();
        let request = notes.request.map(|request| request.known);
        let request = request.unwrap_or_default();
        let cells: [String; NAMES.len()] = [
            ban.netblock.to_string(),
            known(ban.ban_started),
            ban.ban_expires.to_string(),
            known(ban.lifted),
            ban.cause.name().to_owned(),
            ban.observed.to_string(),
            known(ban.client),
            known(lookup.country.as_ref()),
            known(lookup.asn.as_ref()),
            known(request.method),
            known(request.path),
            ban.reason.clone(),
        ];
        tsv(cells.iter().map(String::as_str))
    };
    [tsv(NAMES)]
        .into_iter()
        .chain(bans.iter().map(of))
        .collect()
}

fn known<T: Display>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// The time until a ban ends, or why it no longer refuses.
pub fn end(ban: &Ban, now_ms: u64) -> String {
    let observed = if ban.observed { " (observe)" } else { "" };
    if ban.lifted.is_some() {
        "lifted".to_owned()
    } else if ban.ban_expires.is_past(now_ms) {
        "ended".to_owned()
    } else {
        until_end(ban.ban_expires, now_ms) + observed
    }
}

/// `minute 1000`, or the cause in a word.
pub fn cause(ban: &Ban) -> String {
    let notes = ban.notes.as_ref();
    match notes.and_then(|notes| Some((notes.limit?, notes.limit_value?))) {
        Some((limit, value)) => format!("{} {value}", limit.name()),
        None => plain(ban.cause.name()),
    }
}

/// The bans of the service, or of its state file if no service runs.
fn held(asking: &Asking, active: bool, covering: Option<&str>) -> Result<Vec<Arc<Ban>>, Failure> {
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
    let failure = match place.ask(Method::GET, &target, None)? {
        Asked::Answered(answer) => {
            let BanList { bans } = typed(answer.good()?)?;
            return Ok(bans);
        }
        Asked::NoService(failure) => failure,
    };
    let mut bans = place.read_files(failure, Offline::bans)?;
    let now_ms = now().wall_ms;
    bans.retain(|ban| !active || ban.is_active(now_ms));
    if let Some(address) = covering {
        let client = address.parse().map_err(|error| {
            let sentence = format!("{address:?} is not an address: {error}");
            Failure::new(EXIT_USAGE, sentence)
        })?;
        bans.retain(|ban| ban.netblock.covers_client(client));
    }
    Ok(bans)
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
    let made = typed(ban.clone())?;
    if given.asking.json {
        return print_json(&ban);
    }
    out(&format!("{done} {}\n{}", in_words(&made), in_fleet(&ban)));
    Ok(ExitCode::SUCCESS)
}

fn order(place: &Place, netblock: &str, duration: &str, terms: &Terms) -> Result<Answer, Failure> {
    let reason = terms.reason.as_deref().unwrap_or("by hand");
    let force = terms.force;
    let order =
        json!({"netblock": netblock, "duration": duration, "reason": reason, "force": force});
    place.expect(Method::POST, "/v1/bans", Some(&order))
}

/// The active ban made by hand of exactly this netblock.
fn standing(place: &Place, netblock: Netblock) -> Result<Option<Arc<Ban>>, Failure> {
    let netblock = netblock.widened_to_clients();
    let address = percent_encoded(&netblock.net().network().to_string());
    let target = format!("/v1/bans?active=true&ip={address}");
    let BanList { bans } = typed(place.expect(Method::GET, &target, None)?.good()?)?;
    let is_it = |ban: &Arc<Ban>| ban.netblock == netblock && ban.cause == Cause::Admin;
    let mut bans: Vec<Arc<Ban>> = bans.into_iter().filter(is_it).collect();
    // An observed ban refuses nobody in enforce mode, where it holds up no other (CHECK-3).
    if bans.iter().any(|ban| ban.observed) && !observes(place)? {
        bans.retain(|ban| !ban.observed);
    }
    Ok(bans.into_iter().max_by_key(|ban| ban.ban_expires))
}

/// Whether the service is in observe mode.
fn observes(place: &Place) -> Result<bool, Failure> {
    let answer = place.expect(Method::GET, "/v1/status", None)?;
    let status: Status = typed(answer.good()?)?;
    Ok(status.observes())
}

/// The same ban with a later end, and with the new reason if one is given. A ban that already ends
/// later keeps its end.
fn extended(
    place: &Place,
    ban: Arc<Ban>,
    end: Expiry,
    terms: &Terms,
) -> Result<(&'static str, Value), Failure> {
    let mut ban = Arc::unwrap_or_clone(ban);
    let is_later = end > ban.ban_expires;
    if is_later {
        ban.ban_expires = end;
    }
    match &terms.reason {
        Some(reason) => ban.reason.clone_from(reason),
        None if !is_later => return Ok(("already banned for longer:", json!(ban))),
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
    Ok((done, json!(ban)))
}

/// `WAF_BAN_FIRST` of the service.
fn first_length(place: &Place) -> Result<String, Failure> {
    const NAME: &str = "WAF_BAN_FIRST";
    let answer = place.expect(Method::GET, "/v1/settings", None)?;
    let SettingList { settings } = typed(answer.good()?)?;
    let first = settings.into_iter().find(|one| one.name == NAME);
    let why = format!("the service does not say what its {NAME} is: give --for");
    first
        .and_then(|one| one.value)
        .ok_or_else(|| Failure::new(EXIT_USAGE, why))
}

/// What to append to the answer if the ban is not on disk yet.
fn late(persisted: Option<bool>) -> &'static str {
    match persisted {
        Some(false) => ", not on disk yet",
        Some(true) | None => "",
    }
}

/// `203.0.113.0/24 (41 min)`
fn in_words(made: &Banned) -> String {
    let end = until_end(made.ban.ban_expires, now().wall_ms);
    // An observed ban refuses nobody after a change to enforce mode either (CHECK-3), so the answer
    // says that it is observed.
    let observed = if made.ban.observed {
        "; made in observe mode: it never refuses"
    } else {
        ""
    };
    let late = late(made.persisted);
    format!("{} ({end}{observed}{late})", made.ban.netblock)
}

/// Where in the fleet an answer is in force: a line, if there is a fleet (FLEET-14).
fn in_fleet(answer: &Value) -> String {
    let fleet = &answer["fleet"];
    if fleet["queued"] == true {
        return "queued: no engine of the fleet answers, and the other instances are told later\n"
            .to_owned();
    }
    let names = |member: &str| {
        let names = fleet[member].as_array().into_iter().flatten();
        let names: Vec<String> = names.filter_map(Value::as_str).map(plain).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let parts = [("in force at", "in_force"), ("pending at", "pending")];
    let parts = parts.map(|(words, member)| Some(format!("{words} {}", names(member)?)));
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("{}\n", parts.join("; ")),
    }
}

fn lift(given: &Lift) -> Result<ExitCode, Failure> {
    let place = Place::of(&given.asking)?;
    let target = format!("/v1/bans/{}", percent_encoded(&given.subject));
    let answer = place.expect(Method::DELETE, &target, None)?;
    let (answer, Lifted { lifted, persisted }) = answer.read()?;
    if given.asking.json {
        print_json(&answer)?;
    } else {
        let words = lifted_in_words(&lifted, persisted, &given.subject);
        out(&format!("{words}{}", in_fleet(&answer)));
    }
    Ok(ExitCode::from(if lifted.is_empty() { EXIT_NO } else { 0 }))
}

fn lifted_in_words(lifted: &[Ban], persisted: Option<bool>, subject: &str) -> String {
    if lifted.is_empty() {
        return format!("nothing lifted: no active ban {}\n", which(subject));
    }
    let (now_ms, late) = (now().wall_ms, late(persisted));
    let line = |ban: &Ban| {
        let left = match ban.ban_expires {
            Expiry::Permanent => "permanent".to_owned(),
            end => format!("{} left", until_end(end, now_ms)),
        };
        format!("lifted {} ({left}{late})\n", ban.netblock)
    };
    lifted.iter().map(line).collect()
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
