//! Commands that only look: status, health, settings, clients, client, alerts.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_controlplane::offline::Offline;
use weir_shared::api::settings::SettingList;
use weir_shared::client::Client;
use weir_shared::verdict::{Action, History};

use super::ask::{Asked, Asking, Place, typed};
use super::bans::{covers, is_active};
use super::common::{
    EXIT_NO, EXIT_USAGE, Failure, address, finish, now, out, percent_encoded, print_json,
};
use super::text::{Table, cell, count, percent, since, span, time, until};
use crate::sources::Sources;

/// Whether it is an action that counts as refused.
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

/// `weir health`: status 1 where the service stops.
pub fn health(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::GET, "/v1/health", None)?;
        let passes = answer.status == StatusCode::OK;
        if asking.json {
            print_json(&answer.body)?;
        } else {
            out(&format!("{}\n", cell(&answer.body["status"])));
        }
        Ok(ExitCode::from(if passes { 0 } else { EXIT_NO }))
    })())
}

/// `weir status`
pub fn status(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::GET, "/v1/status", None)?;
        let status = answer.good()?;
        if asking.json {
            return print_json(&status);
        }
        out(&status_text(&status));
        Ok(ExitCode::SUCCESS)
    })())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn status_text(status: &Value) -> String {
    let (bans, clients) = (&status["bans"], &status["clients"]);
    let connections = &status["connections"];
    let places = status["listen"].as_array().into_iter().flatten();
    let listen = places.map(cell).collect::<Vec<_>>().join(",");
    let mut lines = vec![format!(
        "weir {}  {}  up {}  {} to {}",
        cell(&status["version"]),
        cell(&status["mode"]),
        span(Duration::from_secs(number(&status["uptime_seconds"]))),
        listen,
        cell(&status["upstream"]),
    )];
    lines.extend(recent_lines(&status["recent"], status["mode"] == "observe"));
    lines.push(format!(
        "bans     {} active of at most {}   made since the start: {}",
        bans["active"],
        bans["max"],
        counts(&bans["made"])
    ));
    lines.push(format!(
        "clients  {}/{}, {} evicted   connections {}/{}",
        clients["held"],
        clients["max"],
        clients["evicted"],
        connections["open"],
        connections["max"],
    ));
    lines.push(format!("lookups  {}", counts(&status["lookups"])));
    let dropped = status["dropped"].as_object().into_iter().flatten();
    let lost = dropped.filter(|(_, count)| number(count) > 0);
    let lost: serde_json::Map<String, Value> = lost
        .map(|(name, count)| (name.clone(), count.clone()))
        .collect();
    if !lost.is_empty() {
        lines.push(format!("lost     {}", counts(&Value::Object(lost))));
    }
    let warnings = status["warnings"].as_array().into_iter().flatten();
    let warnings = warnings.filter_map(Value::as_str);
    lines.extend(warnings.map(|warning| format!("warning  {warning}")));
    lines.join("\n") + "\n"
}

/// What became of those that the checks would stop: in observe mode they passed all the same.
pub const fn refused(observe: bool) -> &'static str {
    if observe { "would refuse" } else { "refused" }
}

/// The last minutes: the requests, and the application.
fn recent_lines(recent: &Value, observe: bool) -> [String; 2] {
    let refused = refused(observe);
    let (seconds, requests) = (number(&recent["seconds"]), number(&recent["requests"]));
    let tenths = requests.saturating_mul(10) / seconds.max(1);
    let refusals = recent["actions"].as_object().into_iter().flatten();
    let refusals: Vec<String> = refusals
        .filter(|(name, _)| is_refusal(name))
        .map(|(name, count)| format!("{name} {}", percent(number(count), requests)))
        .collect();
    let refusals = match refusals.is_empty() {
        true => String::new(),
        false => format!("  ({})", refusals.join(", ")),
    };
    let upstream = &recent["upstream"];
    let responses = upstream["responses"].as_object().into_iter().flatten();
    let answered: u64 = responses.map(|(_, count)| number(count)).sum();
    let p99 = match upstream["p99_seconds"].as_f64() {
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
            percent(number(&recent["passed"]), requests),
            percent(number(&recent["refused"]), requests),
        ),
        format!(
            "app      {p99}   5xx {}",
            percent(number(&upstream["responses"]["5xx"]), answered)
        ),
    ]
}

/// `31 rate_limit, 2 admin`
fn counts(of: &Value) -> String {
    let counts = of.as_object().into_iter().flatten();
    let counts: Vec<String> = counts
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    if counts.is_empty() {
        "none".to_owned()
    } else {
        counts.join(", ")
    }
}

/// `weir settings`: of the service; of the environment where none runs.
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
        if asking.json {
            return print_json(&settings);
        }
        let SettingList { settings } = typed(settings)?;
        let mut group = None;
        let mut table = Table::new(&["SETTING", "VALUE", "FROM"], &[]);
        for one in settings {
            if group.as_ref() != Some(&one.group) {
                table.row([String::new()]);
                table.row([cell(&json!(one.group))]);
                group = Some(one.group);
            }
            let is_set = one.origin != "default";
            let value = match one.value.or(one.unset) {
                _ if one.secret && is_set => "(not shown)".to_owned(),
                value => cell(&json!(value)),
            };
            let origin = if is_set {
                cell(&json!(one.origin))
            } else {
                String::new()
            };
            table.row([cell(&json!(one.name)), value, origin]);
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
            Asked::NoService(failure) => {
                let sort = match given.sort {
                    Sort::LastSeen => "last_seen",
                    Sort::Refused => "refused",
                    Sort::Requests | Sort::Bytes => {
                        let sentence = format!(
                            "{}\nweir: without a service the order is that of refused or last-seen",
                            failure.sentence
                        );
                        return Err(Failure::new(failure.status, sentence));
                    }
                };
                let mut answer = place.read_files(failure, Offline::clients)?;
                if let Some(Value::Array(clients)) = answer.get_mut("clients") {
                    clients.reverse();
                    clients.sort_by_key(|client| {
                        let value = &client[sort];
                        std::cmp::Reverse(value.as_u64().or_else(|| time(value)))
                    });
                    clients.truncate(given.limit as usize);
                }
                answer
            }
        };
        if given.asking.json {
            return print_json(&clients);
        }
        out(&clients_text(&clients));
        Ok(ExitCode::SUCCESS)
    })())
}

fn clients_text(answer: &Value) -> String {
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
    let list = answer["clients"].as_array();
    for client in list.into_iter().flatten() {
        let lookup = &client["lookup"];
        table.row([
            cell(&client["client"]),
            since(&client["last_seen"], now_ms) + " ago",
            cell(&client["passed"]),
            cell(&client["refused"]),
            cell(&client["requests"]["day"]["current"]),
            cell(&lookup["country"]),
            cell(&lookup["asn"]),
            until(&client["ban_expires"], now_ms),
        ]);
    }
    let shown = list.map_or(0, Vec::len);
    let held = count(number(&answer["held"]), "client");
    format!("{}{shown} of {held}\n", table.text())
}

/// `weir client ADDRESS`
pub fn client(given: &One) -> ExitCode {
    finish((|| {
        let place = Place::of(&given.asking)?;
        let address = address(&given.address)?;
        let client: Client = address
            .parse()
            .map_err(|error| Failure::new(EXIT_USAGE, format!("{error}")))?;
        let target = format!("/v1/clients/{}", percent_encoded(address));
        let answer = match place.ask(Method::GET, &target, None)? {
            Asked::Answered(answer) if answer.status == StatusCode::NOT_FOUND => {
                json!({"client": null, "bans": []})
            }
            Asked::Answered(answer) => answer.good()?,
            Asked::NoService(failure) => {
                let sentence = failure.sentence.clone();
                let rows = place.read_files(failure, Offline::clients)?;
                let bans = place.read_files(Failure::new(0, sentence), Offline::bans)?;
                let rows = rows["clients"].as_array().into_iter().flatten();
                let name = client.to_string();
                let row = rows.into_iter().find(|row| row["client"] == name.as_str());
                let bans = bans["bans"].as_array().into_iter().flatten();
                let bans: Vec<&Value> = bans.filter(|ban| covers(ban, client)).collect();
                json!({"client": row, "bans": bans})
            }
        };
        let known = !answer["client"].is_null() || answer["bans"] != json!([]);
        if given.asking.json {
            print_json(&answer)?;
        } else {
            out(&client_text(&given.address, &answer));
        }
        Ok(ExitCode::from(if known { 0 } else { EXIT_NO }))
    })())
}

fn client_text(address: &str, answer: &Value) -> String {
    let now_ms = now().wall_ms;
    let client = &answer["client"];
    let mut lines = Vec::new();
    if client.is_null() {
        lines.push(format!("{address} is not among the clients that are kept"));
    } else {
        let lookup = &client["lookup"];
        lines.push(format!(
            "{}  {}  {} {}",
            cell(&client["client"]),
            cell(&lookup["country"]),
            cell(&lookup["asn"]),
            cell(&lookup["as_name"]),
        ));
        lines.push(format!(
            "seen     first {} ago, last {} ago",
            since(&client["first_seen"], now_ms),
            since(&client["last_seen"], now_ms)
        ));
        lines.push(format!(
            "requests {} passed, {} refused",
            client["passed"], client["refused"]
        ));
        for (name, of) in [("counted", "requests"), ("bytes", "bytes")] {
            let of = &client[of];
            let spans = ["minute", "hour", "day"].map(|span| {
                format!(
                    "{span} {} (before {})",
                    of[span]["current"], of[span]["previous"]
                )
            });
            lines.push(format!("{name:<8} {}", spans.join("   ")));
        }
        lines.extend(
            client["rules"]
                .as_array()
                .into_iter()
                .flatten()
                .map(counted_by_rule),
        );
    }
    let bans = answer["bans"].as_array();
    let of_ban = |ban| covering_ban(ban, now_ms);
    lines.extend(bans.into_iter().flatten().map(of_ban));
    if bans.is_none_or(Vec::is_empty) {
        lines.push("ban      none covers it".to_owned());
    }
    lines.join("\n") + "\n"
}

/// A ban that covers the client, and whether it still refuses.
fn covering_ban(ban: &Value, now_ms: u64) -> String {
    let state = if is_active(ban, now_ms) {
        format!(
            "until {} ({})",
            cell(&ban["ban_expires"]),
            until(&ban["ban_expires"], now_ms)
        )
    } else if ban["lifted"].is_string() {
        format!("lifted {} ago", since(&ban["lifted"], now_ms))
    } else {
        format!("ended {} ago", since(&ban["ban_expires"], now_ms))
    };
    format!(
        "ban      {}  {state}  {}",
        cell(&ban["netblock"]),
        cell(&ban["reason"])
    )
}

/// What one window of a limit or a jail of rules.json has counted.
fn counted_by_rule(count: &Value) -> String {
    format!(
        "{:<8} {}   {} {} (before {})",
        cell(&count["kind"]),
        cell(&count["rule"]),
        cell(&count["window"]),
        count["current"],
        count["previous"]
    )
}

/// `weir alerts`
pub fn alerts(asking: &Asking) -> ExitCode {
    finish((|| {
        let place = Place::of(asking)?;
        let alerts = match place.ask(Method::GET, "/v1/alerts", None)? {
            Asked::Answered(answer) => answer.good()?,
            Asked::NoService(failure) => place.read_files(failure, Offline::alerts)?,
        };
        if asking.json {
            return print_json(&alerts);
        }
        let mut table = Table::new(&["TIME", "KIND", "OF", "WHAT"], &[]);
        let list = alerts["alerts"].as_array();
        for alert in list.into_iter().flatten() {
            let first = |names: &[&str]| {
                let members = names.iter().map(|name| &alert[*name]);
                members.into_iter().find(|value| !value.is_null()).cloned()
            };
            let of = first(&[
                "netblock", "of", "file", "feed", "name", "key", "per", "scope", "hour", "what",
            ]);
            let what = first(&[
                "reason",
                "error",
                "expires",
                "threshold",
                "held_back",
                "detail",
                "rule",
            ]);
            table.row([
                cell(&alert["time"]),
                cell(&alert["kind"]),
                cell(&of.unwrap_or_default()),
                cell(&what.unwrap_or_default()),
            ]);
        }
        if list.is_none_or(Vec::is_empty) {
            out("no alerts\n");
        } else {
            out(&table.text());
        }
        Ok(ExitCode::SUCCESS)
    })())
}
