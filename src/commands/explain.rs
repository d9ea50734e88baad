//! `weir explain`: what the checks would do with a request now, and why (CONTROL-5). The service's
//! own checks answer; here it is put into words.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::Value;

use super::ask::{Answer, Asking, Place};
use super::common::{
    EXIT_NO, EXIT_USAGE, Failure, address, finish, now, out, percent_encoded, print_json,
};
use super::log_search::{self, LogFile};
use super::text::{bytes, cell, span, until};

/// What is asked.
#[derive(Args, Debug)]
pub struct Explain {
    /// An IPv4 or IPv6 address
    #[arg(required_unless_present = "request", conflicts_with = "request")]
    address: Option<String>,
    /// The path of the request
    #[arg(long, default_value = "/", conflicts_with = "request")]
    path: String,
    /// Its method
    #[arg(long, default_value = "GET", conflicts_with = "request")]
    method: String,
    /// Its host, for rules that name one
    #[arg(long, conflicts_with = "request")]
    host: Option<String>,
    /// Its query, for rules that ask for one
    #[arg(long, conflicts_with = "request")]
    query: Option<String>,
    /// A field of it, for rules that ask for one: name:value (repeatable)
    #[arg(long = "field", value_name = "NAME:VALUE", conflicts_with = "request")]
    fields: Vec<String>,
    /// As a browser asks for the page of another site (Sec-Fetch-Site)
    #[arg(long, conflicts_with = "request")]
    other_site: bool,
    /// A request of the log or of a ban, by its id, instead of an address
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

/// A request that somebody asks about.
struct Asked {
    address: String,
    method: String,
    path: String,
    host: Option<String>,
    query: Option<String>,
    fields: Vec<String>,
    /// More than these fields may have been sent.
    partly: bool,
    other_site: bool,
}

/// Exit status 1 where it would be refused.
pub fn run(given: &Explain) -> ExitCode {
    finish((|| {
        let place = Place::of(&given.asking)?;
        let answer = match (&given.request, &given.address) {
            (Some(id), _) => by_id(&place, id)?,
            (None, typed) => explained(
                &place,
                &Asked {
                    address: address(typed.as_deref().unwrap_or_default())?.to_owned(),
                    method: given.method.clone(),
                    path: given.path.clone(),
                    host: given.host.clone(),
                    query: given.query.clone(),
                    fields: given.fields.clone(),
                    partly: false,
                    other_site: given.other_site,
                },
            )?,
        };
        if given.asking.json {
            print_json(&answer)?;
        } else {
            out(&in_words(&answer, &place.flags));
        }
        let refused = answer["now"]["result"] == "refused";
        Ok(ExitCode::from(if refused { EXIT_NO } else { 0 }))
    })())
}

fn explained(place: &Place, asked: &Asked) -> Result<Value, Failure> {
    let named = [("host", &asked.host), ("query", &asked.query)].into_iter();
    let named = named.filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let fields = asked.fields.iter().map(|field| ("field", field));
    let further: String = named
        .chain(fields)
        .map(|(name, value)| format!("&{name}={}", percent_encoded(value)))
        .collect();
    let partly = if asked.partly { "&partly=true" } else { "" };
    let target = format!(
        "/v1/explain?address={}&method={}&path={}&other_site={}{further}{partly}",
        percent_encoded(&asked.address),
        percent_encoded(&asked.method),
        percent_encoded(&asked.path),
        asked.other_site
    );
    place.expect(Method::GET, &target, None)?.good()
}

/// The explanation of the request with this id: the service knows the last refusals and those that
/// led to a ban, its log file has older ones.
fn by_id(place: &Place, id: &str) -> Result<Value, Failure> {
    let target = format!("/v1/explain?request={}", percent_encoded(id));
    let answer = place.expect(Method::GET, &target, None)?;
    if answer.status != StatusCode::NOT_FOUND {
        return answer.good();
    }
    let nowhere = |why: &str| {
        let sentence = format!(
            "none of the last refusals and no ban names the request {id:?}, {why}: give its address instead"
        );
        Failure::new(EXIT_USAGE, sentence)
    };
    let log = log_file(place).map_err(|why| nowhere(&why))?;
    let path = log.path.display();
    let unread = |error| Failure::new(EXIT_USAGE, format!("{path} cannot be read: {error}"));
    let line = log
        .open()
        .and_then(|mut file| log_search::newest(&mut file, id))
        .map_err(unread)?;
    let Some(line) = line else {
        return Err(nowhere(&format!(
            "and neither does a line of {path} (of refused requests beyond WAF_LOG_REFUSED_RATE it holds the number alone)"
        )));
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    explained(
        place,
        &Asked {
            address: text(&line["address"]),
            method: text(&line["method"]),
            path: text(&line["path"]),
            host: line["host"].as_str().map(str::to_owned),
            query: line["query"].as_str().map(str::to_owned),
            fields: [("user-agent", "user_agent"), ("referer", "referer")]
                .into_iter()
                .filter_map(|(name, member)| Some(format!("{name}:{}", line[member].as_str()?)))
                .collect(),
            partly: true,
            other_site: line["other_site"] == true,
        },
    )
}

/// Where the request log is: as the caller's own settings say; or as the service says, if that is
/// believed in it, or if it lies in the state directory (CONTROL-7).
fn log_file(place: &Place) -> Result<LogFile, String> {
    let name = "WAF_LOG_FILE";
    let told = |failure: Failure| failure.sentence;
    if let Some(path) = place.named_file(name).map_err(told)? {
        return Ok(LogFile {
            path,
            follows: true,
        });
    }
    let settings = place
        .expect(Method::GET, "/v1/settings", None)
        .and_then(Answer::good);
    let settings = settings.map_err(told)?;
    let settings = settings["settings"].as_array().into_iter().flatten();
    let log = settings.into_iter().find(|one| one["name"] == name);
    let Some(path) = log.and_then(|log| log["value"].as_str()).map(PathBuf::from) else {
        return Err(format!("and the request log is no file ({name})"));
    };
    let follows = place.believes_paths();
    if follows || place.has_in_dir(&path) {
        return Ok(LogFile { path, follows });
    }
    Err(format!(
        "and {} is only the word of the service: name it with {name} to search it",
        path.display()
    ))
}

/// The answer, for people. `flags` name the service in what is printed to be typed.
// long: a flat list of lines
pub fn in_words(answer: &Value, flags: &str) -> String {
    let now_ms = now().wall_ms;
    let observe = match answer["observe"] == true && answer["now"]["result"] == "refused" {
        true => " (observe mode: it would pass all the same)",
        false => "",
    };
    let mut lines = vec![format!("{}{observe}", headline(&answer["now"], now_ms))];
    let mut line = |name: &str, text: String| lines.push(format!(" {name:<11} {text}"));
    line(
        "request",
        format!(
            "{} {} from {}, client {} in {}",
            cell(&answer["method"]),
            cell(&answer["path"]),
            cell(&answer["address"]),
            cell(&answer["client"]),
            cell(&answer["netblock"])
        ),
    );
    let then = &answer["request"];
    if !then.is_null() {
        let passed = if then["enforced"] == false {
            ", let through in observe mode"
        } else {
            ""
        };
        let (action, time) = (cell(&then["action"]), cell(&then["time"]));
        line("then", format!("{action} at {time}{passed}"));
    }
    let list = &answer["list"];
    let since = match list["since"].as_str() {
        Some(_) => format!(", a feed, taken {}", cell(&list["since"])),
        None => String::new(),
    };
    let source = cell(&list["source"]);
    let of = format!("{} of {source}{since}", cell(&list["netblock"]));
    line(
        "lists",
        match list["name"].as_str() {
            Some("allow") => format!("allowed by {of}: no check, no limit"),
            Some(_) => format!("denied by {of}"),
            None => "neither allowed nor denied".to_owned(),
        },
    );
    let exempt = &answer["exempt"];
    if !exempt.is_null() {
        let (name, source) = (cell(&exempt["name"]), cell(&exempt["source"]));
        line(
            "exempt",
            format!("by {name} of {source}: no denial, no trap, no limit"),
        );
    }
    let rule = &answer["rule"];
    // The line above says so already.
    if !rule.is_null() && rule["kind"] != "exempt" {
        let (kind, name) = (cell(&rule["kind"]), cell(&rule["name"]));
        line("rule", format!("{kind} {name} of rules.json"));
    }
    let crawler = &answer["crawler"];
    if !crawler.is_null() {
        let (name, purpose) = (cell(&crawler["name"]), cell(&crawler["purpose"]));
        let state = cell(&crawler["state"]);
        line("crawler", format!("{name} ({purpose}), {state}"));
    }
    let lookup = &answer["lookup"];
    line(
        "lookup",
        match lookup.is_null() {
            true => "nothing is known".to_owned(),
            false => format!(
                "{}, {} {}",
                cell(&lookup["country"]),
                cell(&lookup["asn"]),
                cell(&lookup["as_name"])
            ),
        },
    );
    if answer["trusted"] == true {
        line(
            "application",
            "trusts the client: outside limits that clients share".to_owned(),
        );
    }
    if answer["known"] == true {
        line(
            "known",
            "it came back: a second count in limits that clients share".to_owned(),
        );
    }
    for ban in answer["bans"].as_array().into_iter().flatten() {
        line("ban", ban_in_words(ban, now_ms));
    }
    if !answer["otherwise"].is_null() {
        line("without it", headline(&answer["otherwise"], now_ms));
    }
    line(
        "requests",
        windows(&answer["requests"], &answer["limit_percent"], &|n| {
            n.to_string()
        }),
    );
    line(
        "bytes",
        windows(&answer["bytes"], &answer["bytes_percent"], &bytes),
    );
    if !answer["elsewhere"].is_null() {
        line("elsewhere", elsewhere(&answer["elsewhere"]));
    }
    for limit in answer["rule_limits"].as_array().into_iter().flatten() {
        line("rule limit", rule_in_words(limit));
    }
    for jail in answer["jails"].as_array().into_iter().flatten() {
        line("jail", rule_in_words(jail));
    }
    line(
        "next ban",
        match answer["next_ban_expires"].is_null() {
            true => "none can be made".to_owned(),
            false => until(&answer["next_ban_expires"], now_ms),
        },
    );
    for undo in answer["undo"].as_array().into_iter().flatten() {
        let undo = undo.as_str().unwrap_or_default();
        let flags = if undo.starts_with("weir ") { flags } else { "" };
        line("undo", format!("{undo}{flags}"));
    }
    lines.join("\n") + "\n"
}

/// What other instances of the fleet have counted of these windows.
fn elsewhere(counted: &Value) -> String {
    let of = |window: &str| {
        let number = |kind: &str| counted[kind][window].as_u64().unwrap_or_default();
        let (requests, carried) = (number("requests"), number("bytes"));
        format!("{requests} requests and {} a {window}", bytes(carried))
    };
    let windows = ["minute", "hour", "day"].map(of).join(", ");
    format!("{windows}; told {} ms ago", cell(&counted["age_ms"]))
}

fn headline(outcome: &Value, now_ms: u64) -> String {
    let reason = cell(&outcome["action"]);
    match outcome["result"].as_str() {
        Some("refused") => {
            let limit = match outcome["limit_hit"].as_str() {
                Some(limit) => format!(" (limit: {limit})"),
                None => String::new(),
            };
            let end = match outcome["ban_expires"].is_null() {
                true => String::new(),
                false => format!(
                    ", the ban ends in {}",
                    until(&outcome["ban_expires"], now_ms)
                ),
            };
            format!("REFUSED now: {reason}{limit}{end}")
        }
        Some("answered") => "passes the checks: answered by the service".to_owned(),
        Some("awaits_lookup") => "waits for the lookup of the client first".to_owned(),
        Some("health") => "passes: the health check is answered before everything".to_owned(),
        _ => "passes: the application answers".to_owned(),
    }
}

fn ban_in_words(ban: &Value, now_ms: u64) -> String {
    let request = &ban["notes"]["request"];
    let evidence = match request["path"].as_str() {
        Some(_) => format!(
            "; first by {} {} {}, request {}",
            cell(&ban["client"]),
            cell(&request["method"]),
            cell(&request["path"]),
            cell(&request["request_id"])
        ),
        None => String::new(),
    };
    format!(
        "{} until {} ({}): {}{evidence}",
        cell(&ban["netblock"]),
        cell(&ban["ban_expires"]),
        until(&ban["ban_expires"], now_ms),
        cell(&ban["reason"])
    )
}

/// `login: minute 3/5   hour 3/30   would ban 203.0.113.0/24`
fn rule_in_words(rule: &Value) -> String {
    let (name, used) = (cell(&rule["name"]), rule_windows(&rule["windows"]));
    match rule["would_ban"].as_str() {
        Some(netblock) => format!("{name}: {used}   would ban {netblock}"),
        None => format!("{name}: {used}   would ban nobody"),
    }
}

/// `minute 3/5   hour 3/30`
fn rule_windows(windows: &Value) -> String {
    let names = ["second", "minute", "hour", "day"].into_iter();
    let set = names.filter(|name| windows[*name].is_object());
    let each: Vec<String> = set
        .map(|name| window(windows, name, &|n| n.to_string()))
        .collect();
    each.join("   ")
}

/// `minute 12/1000 (room in 41 s)`
fn window(windows: &Value, name: &str, number: &dyn Fn(u64) -> String) -> String {
    let window = &windows[name];
    let wait = match window["fits_in_seconds"].as_u64() {
        Some(seconds) if seconds > 0 => {
            format!(" (room in {})", span(Duration::from_secs(seconds)))
        }
        _ => String::new(),
    };
    let used = number(window["used"].as_u64().unwrap_or(0));
    match window["limit"].as_u64() {
        Some(limit) => format!("{name} {used}/{}{wait}", number(limit)),
        None => format!("{name} {used}, no limit"),
    }
}

/// `minute 12/1000   hour 6120/10000   day 9020, no limit   at 50 % (WAF_…)`
fn windows(windows: &Value, percent: &Value, number: &dyn Fn(u64) -> String) -> String {
    let one = |name| window(windows, name, number);
    let mut text = ["minute", "hour", "day"].map(one).join("   ");
    if let Some(value) = percent["percent"].as_u64() {
        text.push_str(&format!("   at {value} % ({})", cell(&percent["setting"])));
    }
    text
}
