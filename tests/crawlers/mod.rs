//! Crawlers that prove who they are (CRAWL).

use serde_json::{Value, json};

use crate::support::application::{Application, statuses};
use crate::support::dns::Dns;
use crate::support::raw_client::{Response, request};
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

mod feeds;
mod hostile_dns;
mod limits;
mod rules;
mod states;

const GOOGLEBOT: &str = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)";

/// Addresses that DNS says are Googlebot's, and one beside them that is nobody's.
const CRAWLER: &str = "66.249.66.1";
const OTHER_CRAWLER: &str = "66.249.79.9";
const NEIGHBOUR: &str = "66.249.66.200";

/// A DNS server that knows Googlebot.
fn dns() -> Dns {
    let dns = Dns::start();
    for address in [CRAWLER, OTHER_CRAWLER] {
        let name = format!("crawl-{}.googlebot.com", address.replace('.', "-"));
        dns.both(address, &name);
    }
    dns
}

/// Googlebot as rules.json names it.
fn googlebot() -> Value {
    json!({"name": "googlebot", "purpose": "search", "user_agent": ["Googlebot"], "verify": {"dns": [".googlebot.com"]}})
}

/// A service with these rules beside Googlebot, which asks this server.
#[track_caller]
fn start(
    application: &Application,
    dns: &Dns,
    rules: Value,
    settings: &[(&str, &str)],
) -> (Weir, StateDir) {
    let state = state_dir();
    let weir = start_in(&state, application, dns, rules, settings);
    (weir, state)
}

/// The same on a state directory.
#[track_caller]
fn start_in(
    state: &StateDir,
    application: &Application,
    dns: &Dns,
    mut rules: Value,
    settings: &[(&str, &str)],
) -> Weir {
    let members = rules.as_object_mut().expect("an object");
    members.insert("version".to_owned(), json!(1));
    members
        .entry("crawlers")
        .or_insert_with(|| json!([googlebot()]));
    std::fs::write(state.path().join("rules.json"), rules.to_string()).expect("writes");
    let server = dns.setting();
    let mut all = vec![
        ("WAF_NAME_SERVERS", server.as_str()),
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
    ];
    all.extend(settings);
    Weir::start_at(application.address(), state, &all)
}

#[track_caller]
fn get(weir: &Weir, path: &str, client: &str, agent: &str) -> Response {
    let fields = [("X-Forwarded-For", client), ("User-Agent", agent)];
    weir.send(&request("GET", path, &fields, None))
}

/// The answer to each state.
fn denials() -> Value {
    json!({"denials": [
        {"name": "verified", "match": {"crawler": "verified"}, "answer": 461},
        {"name": "fake", "match": {"crawler": "fake"}, "answer": 462},
        {"name": "unproven", "match": {"crawler": ["unproven"]}, "answer": 463}]})
}

/// What a client is that claims to be Googlebot.
#[track_caller]
fn state(weir: &Weir, client: &str) -> &'static str {
    match get(weir, "/a", client, GOOGLEBOT).status {
        461 => "verified",
        462 => "fake",
        463 => "unproven",
        other => panic!("{client}: {other}"),
    }
}

#[track_caller]
fn becomes(weir: &Weir, client: &str, expected: &str) {
    wait_until(&format!("{client} to be {expected}"), || {
        state(weir, client) == expected
    });
}

/// How many requests of a crawler ended so.
#[track_caller]
fn counted(weir: &Weir, state: &str, outcome: &str) -> f64 {
    let series = format!(
        "waf_crawler_requests_total{{crawler=\"googlebot\",state=\"{state}\",outcome=\"{outcome}\"}}"
    );
    weir.metric(&series).expect("it is there")
}

/// Asks as Googlebot until that is believed. What is asked for counts nowhere.
#[track_caller]
fn verify(weir: &Weir, client: &str) {
    let before = counted(weir, "verified", "passed");
    wait_until("the proof", || {
        get(weir, "/proof", client, GOOGLEBOT).expect(200);
        counted(weir, "verified", "passed") > before
    });
}
