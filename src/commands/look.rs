//! Read-only commands: status, health, settings, clients, client.

use std::cmp::Reverse;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_controlplane::offline::Offline;
use weir_shared::api::clients::{Client, ClientList, CountOfRule, Held, Listed};
use weir_shared::api::settings::SettingList;
use weir_shared::api::status::{Counted, Status};
use weir_shared::ban::{Ban, Expiry};
use weir_shared::client;
use weir_shared::health::Health;
use weir_shared::verdict::{Action, History};

use super::ask::{Asked, Asking, Place, not_of_weir, typed};
use super::common::{
    EXIT_NO, EXIT_USAGE, Failure, address, finish, now, out, percent_encoded, print_json,
};
use super::text::{
    Table, cell, count, end_in_words, maybe, percent, plain, since_time, span, until_end,
};
use crate::sources::Sources;

/// Whether this is the name of an action that refuses.
fn is_refusal(name: &str) -> bool {
    let mut actions = Action::ALL.into_iter();
    actions.any(|action| action.name() == name && action.history() == History::Refused)
}

#[derive(Args, Debug)]
pub struct Clients {
    #[command(flatten)]
    asking: Asking,
    /// Who comes first: who has most of this; requests and bytes are those of the last day
    #[arg(long, value_enum, default_value = "last-seen")]
    sort: Sort,
    /// How many at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sort {
    Requests,
    Bytes,
    Refused,
    #[value(alias = "last_seen")]
    LastSeen,
}

#[derive(Args, Debug)]
pub struct One {
    /// An IPv4 or IPv6 address
    address: String,
    #[command(flatten)]
    asking: Asking,
}

/// `weir health`: exit status 1 while the service stops.
pub fn health(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::GET, "/v1/health", None)?;
        let passes = answer.status == StatusCode::OK;
        let told = answer.body.get("status").unwrap_or(&Value::Null);
        if passes && told != Health::Pass.word() {
            let why = format!("a health check that passes says {:?}", Health::Pass.word());
            return Err(not_of_weir(&why));
        }
        if asking.json {
            print_json(&answer.body)?;
        } else {
            out(&format!("{}\n", cell(told)));
        }
        Ok(ExitCode::from(if passes { 0 } else { EXIT_NO }))
    })())
}

/// `weir status`
pub fn status(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::GET, "/v1/status", None)?;
        let (answer, status) = answer.read()?;
        if asking.json {
            return print_json(&answer);
        }
        out(&status_text(&status));
        Ok(ExitCode::SUCCESS)
    })())
}

fn status_text(status: &Status) -> String {
    let (bans, clients) = (&status.bans, &status.clients);
    let connections = &status.connections;
    let listen: Vec<String> = status.listen.iter().map(|place| plain(place)).collect();
    let mut lines = vec![format!(
        "weir {}  {}  up {}  {} to {}",
        plain(&status.version),
        plain(&status.mode),
        span(Duration::from_secs(status.uptime_seconds)),
        listen.join(","),
        plain(&status.upstream),
    )];
    lines.extend(recent_lines(&status.recent, status.observes()));
    lines.push(format!(
        "bans     {} active of at most {}   made since the start: {}",
        bans.active,
        bans.max,
        counts(bans.made.iter())
    ));
    lines.push(format!(
        "clients  {}/{}, {} evicted   connections {}/{}",
        clients.held, clients.max, clients.evicted, connections.open, connections.max,
    ));
    lines.push(format!("lookups  {}", counts(status.lookups.iter())));
    let mut lost = status
        .dropped
        .iter()
        .filter(|(_, count)| **count > 0)
        .peekable();
    if lost.peek().is_some() {
        lines.push(format!("lost     {}", counts(lost)));
    }
    let warnings = status.warnings.iter();
    lines.extend(warnings.map(|warning| format!("warning  {warning}")));
    lines.join("\n") + "\n"
}

/// The heading for requests that the checks stop: in observe mode they passed all the same.
pub const fn refused(observe: bool) -> &'static str {
    if observe { "would refuse" } else { "refused" }
}

/// Two lines about the last minutes: requests, and answers of the application.
fn recent_lines(recent: &Counted, observe: bool) -> [String; 2] {
    let refused = refused(observe);
    let seconds = recent.seconds.unwrap_or(0);
    let tenths = recent.requests.saturating_mul(10) / seconds.max(1);
    let refusals: Vec<String> = (recent.actions.iter())
        .filter(|(name, _)| is_refusal(name))
        .map(|(name, count)| format!("{name} {}", percent(*count, recent.requests)))
        .collect();
    let refusals = match refusals.is_empty() {
        true => String::new(),
        false => format!("  ({})", refusals.join(", ")),
    };
    let (answered, errors) = recent.upstream.all_and_errors();
    let p99 = match recent.upstream.p99_seconds {
        Some(seconds) => format!("p99 within {} ms", seconds * 1000.0),
        None => "p99 –".to_owned(),
    };
    [
        format!(
            "{:<8} {}.{} requests/s   passed {}   {refused} {}{refusals}",
            // Whole minutes: the column is narrow.
            span(Duration::from_secs(if seconds < 60 {
                seconds
            } else {
                seconds - seconds % 60
            })),
            tenths / 10,
            tenths % 10,
            percent(recent.passed, recent.requests),
            percent(recent.refused, recent.requests),
        ),
        format!(
            "app      {p99}   5xx {}{}",
            percent(errors, answered),
            unanswered(recent)
        ),
    ]
}

/// The share of requests that ended without a whole answer of the application; empty if there are
/// none. No class of answers counts these requests.
fn unanswered(recent: &Counted) -> String {
    let name = Action::UpstreamError.name();
    let count = recent.actions.get(name).copied().unwrap_or(0);
    match count {
        0 => String::new(),
        _ => format!("   {name} {}", percent(count, recent.requests)),
    }
}

/// `31 rate_limit, 2 admin`
fn counts<'a>(counts: impl Iterator<Item = (&'a str, &'a u64)>) -> String {
    let counts: Vec<String> = counts
        .map(|(name, count)| format!("{count} {}", plain(name)))
        .collect();
    if counts.is_empty() {
        "none".to_owned()
    } else {
        counts.join(", ")
    }
}

/// `weir settings`: those of the service, or of the environment if no service runs.
pub fn settings(asking: &Asking) -> ExitCode {
    finish((|| {
        let asked = Place::of(asking)?.ask(Method::GET, "/v1/settings", None)?;
        let settings = match asked {
            Asked::Answered(answer) => answer.good()?,
            Asked::NoService(failure) if asking.socket.is_some() => return Err(failure),
            Asked::NoService(_) => {
                eprintln!("weir: no service runs: these are the settings of this environment");
                let loaded = Sources::of_process().load();
                let loaded = loaded.map_err(|refused| Failure::of_settings(&refused))?;
                json!(SettingList::from(&*loaded.listing))
            }
        };
        let SettingList { settings: listed } = typed(settings.clone())?;
        if asking.json {
            return print_json(&settings);
        }
        let mut group = None;
        let mut table = Table::new(&["SETTING", "VALUE", "FROM"], &[]);
        for one in listed {
            if group.as_ref() != Some(&one.group) {
                table.row([String::new()]);
                table.row([plain(&one.group)]);
                group = Some(one.group);
            }
            let is_set = one.origin != "default";
            let value = match one.value.or(one.unset) {
                _ if one.secret && is_set => "(not shown)".to_owned(),
                value => maybe(value),
            };
            let origin = if is_set {
                plain(&one.origin)
            } else {
                String::new()
            };
            table.row([plain(&one.name), value, origin]);
        }
        out(&table.text());
        Ok(ExitCode::SUCCESS)
    })())
}

/// `weir clients`
pub fn clients(given: &Clients) -> ExitCode {
    finish((|| {
        let place = Place::of(&given.asking)?;
        let sort = match given.sort {
            Sort::Requests => "requests",
            Sort::Bytes => "bytes",
            Sort::Refused => "refused",
            Sort::LastSeen => "last_seen",
        };
        let target = format!("/v1/clients?sort={sort}&limit={}", given.limit);
        let clients = match place.ask(Method::GET, &target, None)? {
            Asked::Answered(answer) => answer.good()?,
            Asked::NoService(failure) => json!(clients_of_files(&place, failure, given)?),
        };
        let listed = typed(clients.clone())?;
        if given.asking.json {
            return print_json(&clients);
        }
        out(&clients_text(&listed));
        Ok(ExitCode::SUCCESS)
    })())
}

/// Clients from the state files. Their counts are those of the last write, not of the windows now.
fn clients_of_files(
    place: &Place,
    failure: Failure,
    given: &Clients,
) -> Result<ClientList, Failure> {
    if matches!(given.sort, Sort::Requests | Sort::Bytes) {
        let sentence = format!(
            "{}\nweir: without a service the order is that of refused or last-seen",
            failure.sentence
        );
        return Err(Failure::new(failure.status, sentence));
    }
    let mut clients = place.read_files(failure, Offline::clients)?;
    let held = clients.len() as u64;
    if given.sort == Sort::Refused {
        clients.sort_by_key(|listed| Reverse(listed.client.refused.0));
    }
    clients.truncate(given.limit as usize);
    Ok(ClientList { held, clients })
}

fn clients_text(ClientList { held, clients }: &ClientList) -> String {
    let now_ms = now().wall_ms;
    let headings = [
        "CLIENT",
        "LAST SEEN",
        "PASSED",
        "REFUSED",
        "DAY",
        "COUNTRY",
        "AS",
        "BAN",
    ];
    let mut table = Table::new(&headings, &[2, 3, 4]);
    for Listed {
        client,
        ban_expires,
    } in clients
    {
        let lookup = client.lookup.as_deref();
        table.row([
            client.client.to_string(),
            since_time(client.last_seen, now_ms) + " ago",
            client.passed.0.to_string(),
            client.refused.0.to_string(),
            client.requests.day.current.0.to_string(),
            maybe(lookup.and_then(|lookup| lookup.country.as_ref())),
            maybe(lookup.and_then(|lookup| lookup.asn.as_ref())),
            maybe(ban_expires.map(|end| until_end(end, now_ms))),
        ]);
    }
    format!(
        "{}{} of {}\n",
        table.text(),
        clients.len(),
        count(*held, "client")
    )
}

/// `weir client ADDRESS`
pub fn client(given: &One) -> ExitCode {
    finish((|| {
        let place = Place::of(&given.asking)?;
        let address = address(&given.address)?;
        let client: client::Client = address
            .parse()
            .map_err(|error| Failure::new(EXIT_USAGE, format!("{error}")))?;
        let target = format!("/v1/clients/{}", percent_encoded(address));
        let answer = match place.ask(Method::GET, &target, None)? {
            Asked::Answered(answer) if answer.status == StatusCode::NOT_FOUND => {
                json!(Held::default())
            }
            Asked::Answered(answer) => answer.good()?,
            Asked::NoService(failure) => json!(client_of_files(&place, failure, client)?),
        };
        let held: Held = typed(answer.clone())?;
        let known = held.client.is_some() || !held.bans.is_empty();
        if given.asking.json {
            print_json(&answer)?;
        } else {
            out(&client_text(&given.address, &held));
        }
        Ok(ExitCode::from(if known { 0 } else { EXIT_NO }))
    })())
}

fn client_of_files(
    place: &Place,
    failure: Failure,
    client: client::Client,
) -> Result<Held, Failure> {
    let (listed, mut bans) =
        place.read_files(failure, |files| Ok((files.clients()?, files.bans()?)))?;
    bans.retain(|ban| ban.netblock.covers_client(client));
    let mut clients = listed.into_iter().map(|listed| listed.client);
    let client = clients.find(|one| one.client == client);
    Ok(Held { client, bans })
}

fn client_text(address: &str, held: &Held) -> String {
    let now_ms = now().wall_ms;
    let mut lines = match &held.client {
        None => vec![format!("{address} is not among the clients that are kept")],
        Some(client) => known_client(client, now_ms),
    };
    lines.extend(held.bans.iter().map(|ban| covering_ban(ban, now_ms)));
    if held.bans.is_empty() {
        lines.push("ban      none covers it".to_owned());
    }
    lines.join("\n") + "\n"
}

fn known_client(client: &Client, now_ms: u64) -> Vec<String> {
    let lookup = client.lookup.clone().unwrap_or_default();
    let mut lines = vec![
        format!(
            "{}  {}  {} {}",
            client.client,
            maybe(lookup.country.as_ref()),
            maybe(lookup.asn.as_ref()),
            maybe(lookup.as_name.as_ref()),
        ),
        format!(
            "seen     first {} ago, last {} ago",
            since_time(client.first_seen, now_ms),
            since_time(client.last_seen, now_ms)
        ),
        format!(
            "requests {} passed, {} refused",
            client.passed.0, client.refused.0
        ),
    ];
    for (name, of) in [("counted", &client.requests), ("bytes", &client.bytes)] {
        let spans = [("minute", of.minute), ("hour", of.hour), ("day", of.day)];
        let spans = spans.map(|(span, of)| {
            let (current, previous) = (of.current.0, of.previous.0);
            format!("{span} {current} (before {previous})")
        });
        lines.push(format!("{name:<8} {}", spans.join("   ")));
    }
    lines.extend(client.rules.iter().map(counted_by_rule));
    lines
}

/// A line about a ban that covers the client, with whether it still refuses.
fn covering_ban(ban: &Ban, now_ms: u64) -> String {
    let state = match (ban.lifted, ban.ban_expires) {
        (None, end) if !end.is_past(now_ms) => end_in_words(end, now_ms),
        (Some(lifted), _) => format!("lifted {} ago", since_time(lifted, now_ms)),
        (None, Expiry::At(end)) => format!("ended {} ago", since_time(end, now_ms)),
        // A permanent ban ends only when it is lifted.
        (None, Expiry::Permanent) => "permanent".to_owned(),
    };
    format!("ban      {}  {state}  {}", ban.netblock, plain(&ban.reason))
}

/// The count of one window of a limit or a jail of rules.json.
fn counted_by_rule(count: &CountOfRule) -> String {
    format!(
        "{:<8} {}   {} {} (before {})",
        count.kind.name(),
        plain(&count.rule),
        count.window.name(),
        count.buckets.current.0,
        count.buckets.previous.0
    )
}
