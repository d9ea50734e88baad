//! `weir explain`: what the checks would do with a request now, and why (CONTROL-5). The service
//! runs its own checks on the request; this command puts the result into words.
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::Value;
use weir_shared::api::explain::{
    Elsewhere, Explained, ListMember, Outcome, Percent, RuleUse, Usage, Windows,
};
use weir_shared::api::settings::SettingList;
use weir_shared::ban::{Ban, Expiry};

use super::ask::{Answer, Asking, Place, typed};
use super::common::{
    EXIT_NO, EXIT_USAGE, Failure, address, finish, now, out, percent_encoded, print_json,
};
use super::log_search::{self, LogFile};
use super::text::{bytes, count, end_in_words, maybe, plain, span, until_end};

/// How often, and after which pause, the service is asked again for a request that it does not know
/// yet: its workers hand on what they have refused 20 times a second.
const TRIES: usize = 4;
const AGAIN: Duration = Duration::from_millis(50);

/// The arguments of `weir explain`.
#[derive(Args, Debug)]
pub struct Explain {
    /// An IPv4 or IPv6 address
    #[arg(required_unless_present = "request", conflicts_with = "request")]
    address: Option<String>,
    /// The path of the request, with or without a query behind a ?
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

/// The request to explain.
struct Asked {
    address: String,
    method: String,
    path: String,
    host: Option<String>,
    query: Option<String>,
    fields: Vec<String>,
    /// True if the request may have had more fields than these.
    partly: bool,
    other_site: bool,
}

/// Runs `weir explain`: exit status 1 if the request would be refused.
pub fn run(given: &Explain) -> ExitCode {
    finish((|| {
        let place = Place::of(&given.asking)?;
        let answer = match (&given.request, &given.address) {
            (Some(id), _) => by_id(&place, id)?,
            (None, named) => {
                let (path, query) = path_and_query(given)?;
                let asked = Asked {
                    address: address(named.as_deref().unwrap_or_default())?.to_owned(),
                    method: given.method.clone(),
                    path: path.to_owned(),
                    host: given.host.clone(),
                    query: query.map(str::to_owned),
                    fields: given.fields.clone(),
                    partly: false,
                    other_site: given.other_site,
                };
                explained(&place, &asked)?
            }
        };
        let explained: Explained = typed(answer.clone())?;
        if given.asking.json {
            print_json(&answer)?;
        } else {
            out(&in_words(&explained, &place.flags));
        }
        let refused = explained.now.is_refused();
        Ok(ExitCode::from(if refused { EXIT_NO } else { 0 }))
    })())
}

/// Splits the target into path and query: a target from a log or a browser has both.
fn path_and_query(given: &Explain) -> Result<(&str, Option<&str>), Failure> {
    match (given.path.split_once('?'), &given.query) {
        (None, query) => Ok((given.path.as_str(), query.as_deref())),
        (Some((path, query)), None) => Ok((path, Some(query))),
        (Some(_), Some(_)) => {
            let sentence = "--path has a query behind its ?, and --query is another: expected one";
            Err(Failure::new(EXIT_USAGE, sentence))
        }
    }
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

/// The explanation of the request with this id. The service remembers its last refusals and those
/// that led to a ban; older requests are looked up in its log file.
fn by_id(place: &Place, id: &str) -> Result<Value, Failure> {
    let target = format!("/v1/explain?request={}", percent_encoded(id));
    let ask = || place.expect(Method::GET, &target, None);
    let mut answer = ask()?;
    for _ in 0..TRIES {
        if answer.status != StatusCode::NOT_FOUND {
            break;
        }
        std::thread::sleep(AGAIN);
        answer = ask()?;
    }
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
    let of_line = |member: &str| line.get(member).and_then(Value::as_str).map(str::to_owned);
    let fields = [("user-agent", "user_agent"), ("referer", "referer")];
    let told = fields.map(|(name, member)| Some((name, line.get(member)?.as_str()?)));
    let told = told.into_iter().flatten();
    // The log line has the fields of WAF_LOG_REQUEST_HEADERS only.
    let logged = line.get("headers").and_then(Value::as_object);
    let logged = logged.into_iter().flatten();
    let logged = logged.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
    let is_further = |name: &str| fields.iter().all(|(known, _)| *known != name);
    let logged = logged.filter(|(name, _)| is_further(name));
    explained(
        place,
        &Asked {
            address: of_line("address").unwrap_or_default(),
            method: of_line("method").unwrap_or_default(),
            path: of_line("path").unwrap_or_default(),
            host: of_line("host"),
            query: of_line("query"),
            fields: told
                .chain(logged)
                .map(|(name, value)| format!("{name}:{value}"))
                .collect(),
            partly: true,
            other_site: line.get("other_site") == Some(&Value::Bool(true)),
        },
    )
}

/// The path of the request log: from the caller's own settings, else from the service. A path from
/// the service is taken only if the service is believed about paths, or if the file lies in the
/// state directory (CONTROL-7).
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
    let SettingList { settings } = settings.and_then(typed).map_err(told)?;
    let log = settings.into_iter().find(|one| one.name == name);
    let Some(path) = log.and_then(|log| log.value).map(PathBuf::from) else {
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

/// The answer in words. `flags` name the service in the commands that it suggests.
// long: a flat list of lines
pub fn in_words(answer: &Explained, flags: &str) -> String {
    let now_ms = now().wall_ms;
    let observe = match answer.observe && answer.now.is_refused() {
        true => " (observe mode: it would pass all the same)",
        false => "",
    };
    let mut lines = vec![format!("{}{observe}", headline(&answer.now, now_ms))];
    let mut line = |name: &str, text: String| lines.push(format!(" {name:<11} {text}"));
    line(
        "request",
        format!(
            "{} {} from {}, client {} in {}",
            plain(&answer.method),
            plain(&answer.path),
            answer.address,
            answer.client,
            answer.netblock
        ),
    );
    if let Some(gets) = response_in_words(answer) {
        line("response", gets);
    }
    if let Some(then) = &answer.request {
        let passed = match then.enforced {
            true => "",
            false => ", let through in observe mode",
        };
        line(
            "then",
            format!("{} at {}{passed}", plain(&then.action), then.time),
        );
    }
    line("lists", list_in_words(answer.list.as_ref()));
    if let Some(exempt) = &answer.exempt {
        let (name, source) = (plain(&exempt.name), plain(&exempt.source));
        line(
            "exempt",
            format!("by {name} of {source}: no denial, no trap, no limit"),
        );
    }
    // An exemption was printed above.
    if let Some(rule) = answer.rule.as_ref().filter(|rule| rule.kind != "exempt") {
        let (kind, name) = (plain(&rule.kind), plain(&rule.name));
        let of = match rule.since {
            Some(since) => format!("decision of {name}, taken {since}"),
            None => format!("{kind} {name} of rules.json"),
        };
        line("rule", of);
    }
    if let Some(crawler) = &answer.crawler {
        let (name, purpose) = (plain(&crawler.name), plain(&crawler.purpose));
        line(
            "crawler",
            format!("{name} ({purpose}), {}", plain(&crawler.state)),
        );
    }
    line(
        "lookup",
        match &answer.lookup {
            None => "nothing is known".to_owned(),
            Some(lookup) => format!(
                "{}, {} {}",
                maybe(lookup.country.as_ref()),
                maybe(lookup.asn.as_ref()),
                maybe(lookup.as_name.as_ref())
            ),
        },
    );
    if answer.trusted {
        line(
            "application",
            "trusts the client: outside limits that clients share".to_owned(),
        );
    }
    if answer.known {
        line(
            "known",
            "it came back: a second count in limits that clients share".to_owned(),
        );
    }
    for ban in &answer.bans {
        line("ban", ban_in_words(ban, now_ms));
    }
    if let Some(otherwise) = &answer.otherwise {
        line("without it", headline(otherwise, now_ms));
    }
    let (requests, carried) = (&answer.requests, &answer.bytes);
    line(
        "requests",
        windows(requests, answer.limit_percent.as_ref(), &|n| n.to_string()),
    );
    line(
        "bytes",
        windows(carried, answer.bytes_percent.as_ref(), &bytes),
    );
    if let Some(counted) = &answer.elsewhere {
        line("elsewhere", elsewhere(counted));
    }
    for limit in &answer.rule_limits {
        line("rule limit", rule_in_words(limit));
    }
    for jail in &answer.jails {
        line("jail", rule_in_words(jail));
    }
    line(
        "next ban",
        match answer.next_ban_expires {
            None => "none can be made".to_owned(),
            Some(end) => until_end(end, now_ms),
        },
    );
    for undo in &answer.undo {
        let flags = if undo.starts_with("weir ") { flags } else { "" };
        line("undo", format!("{undo}{flags}"));
    }
    lines.join("\n") + "\n"
}

/// The response to a refused client: `429, Retry-After 60`.
fn response_in_words(answer: &Explained) -> Option<String> {
    let response = answer.now.response.as_ref().filter(|_| !answer.observe)?;
    Some(match (response.as_str(), answer.now.retry_after_seconds) {
        ("drop", _) => "none: the connection closes unanswered".to_owned(),
        (status, None) => plain(status),
        (status, Some(seconds)) => format!("{}, Retry-After {seconds}", plain(status)),
    })
}

fn list_in_words(list: Option<&ListMember>) -> String {
    let Some(list) = list else {
        return "neither allowed nor denied".to_owned();
    };
    let since = match list.since {
        Some(since) => format!(", a feed, taken {since}"),
        None => String::new(),
    };
    let of = format!("{} of {}{since}", list.netblock, plain(&list.source));
    match list.name == "allow" {
        true => format!("allowed by {of}: no check, no limit"),
        false => format!("denied by {of}"),
    }
}

/// How much of these windows the other instances of the fleet have counted.
fn elsewhere(counted: &Elsewhere) -> String {
    let (of, carried) = (&counted.requests, &counted.bytes);
    let windows = [
        ("minute", of.minute, carried.minute),
        ("hour", of.hour, carried.hour),
        ("day", of.day, carried.day),
    ];
    let words = windows.map(|(window, requests, carried)| {
        let requests = count(requests, "request");
        format!("{requests} and {} a {window}", bytes(carried))
    });
    format!("{}; told {} ms ago", words.join(", "), counted.age_ms)
}

fn headline(outcome: &Outcome, now_ms: u64) -> String {
    match outcome.result.as_str() {
        "refused" => {
            let reason = maybe(outcome.action.as_ref());
            let limit = match &outcome.limit_hit {
                Some(limit) => format!(" (limit: {limit})"),
                None => String::new(),
            };
            let end = match outcome.ban_expires {
                None => String::new(),
                Some(Expiry::Permanent) => ", the ban is permanent".to_owned(),
                Some(end) => format!(", the ban ends in {}", until_end(end, now_ms)),
            };
            format!("REFUSED now: {reason}{limit}{end}")
        }
        "answered" => "passes the checks: answered by the service".to_owned(),
        "awaits_lookup" => "waits for the lookup of the client first".to_owned(),
        "health" => "passes: the health check is answered before everything".to_owned(),
        _ => "passes: the application answers".to_owned(),
    }
}

fn ban_in_words(ban: &Ban, now_ms: u64) -> String {
    let request = ban.notes.as_ref().and_then(|notes| notes.request.as_ref());
    let request = request.map(|request| &request.known);
    let evidence = match request.filter(|request| request.path.is_some()) {
        Some(request) => format!(
            "; first by {} {} {}, request {}",
            maybe(ban.client),
            maybe(request.method.as_ref()),
            maybe(request.path.as_ref()),
            maybe(request.request_id.as_ref())
        ),
        None => String::new(),
    };
    format!(
        "{} {}: {}{evidence}",
        ban.netblock,
        end_in_words(ban.ban_expires, now_ms),
        plain(&ban.reason)
    )
}

/// `login: minute 3/5   hour 3/30   would ban 203.0.113.0/24`
fn rule_in_words(rule: &RuleUse) -> String {
    let (name, mut used) = (plain(&rule.name), rule_windows(rule));
    if let Some(elsewhere) = &rule.elsewhere {
        let told = [
            ("minute", elsewhere.minute),
            ("hour", elsewhere.hour),
            ("day", elsewhere.day),
        ];
        let told = told
            .into_iter()
            .filter_map(|(name, count)| Some(format!("{} a {name}", count?)));
        let told: Vec<String> = told.collect();
        let age_ms = elsewhere.age_ms;
        used = format!(
            "{used}   elsewhere {}; told {age_ms} ms ago",
            told.join(", ")
        );
    }
    match rule.would_ban {
        Some(netblock) => format!("{name}: {used}   would ban {netblock}"),
        None => format!("{name}: {used}   would ban nobody"),
    }
}

/// `minute 3/5   hour 3/30`
fn rule_windows(rule: &RuleUse) -> String {
    let each = rule.windows.iter();
    let each = each.map(|(name, used)| window(&plain(name), used, &|n| n.to_string()));
    each.collect::<Vec<_>>().join("   ")
}

/// `minute 12/1000 (room in 41 s)`
fn window(name: &str, window: &Usage, number: &dyn Fn(u64) -> String) -> String {
    let wait = match window.fits_in_seconds {
        Some(seconds) if seconds > 0 => {
            format!(" (room in {})", span(Duration::from_secs(seconds)))
        }
        _ => String::new(),
    };
    let used = number(window.used);
    match window.limit {
        Some(limit) => format!("{name} {used}/{}{wait}", number(limit)),
        None => format!("{name} {used}, no limit"),
    }
}

/// `minute 12/1000   hour 6120/10000   day 9020, no limit   at 50 % (WAF_…)`
fn windows(of: &Windows, percent: Option<&Percent>, number: &dyn Fn(u64) -> String) -> String {
    let one = |name, of| window(name, of, number);
    let mut text = [
        one("minute", &of.minute),
        one("hour", &of.hour),
        one("day", &of.day),
    ]
    .join("   ");
    if let Some(percent) = percent {
        let setting = plain(&percent.setting);
        text.push_str(&format!("   at {} % ({setting})", percent.percent));
    }
    text
}
