//! DNS that attacks: what the owner of a zone, or a server, can answer verifies nobody else, makes
//! nobody a fake who may be a crawler, takes a bounded number of questions, and costs others
//! nothing (CRAWL-2, CRAWL-3).

use serde_json::json;

use super::{CRAWLER, becomes, denials, dns, start, state};
use crate::support::application::Application;
use crate::support::dns::{Dns, Mood};
use crate::support::wait_until;

/// `a1.chain.example` stands for `a2.chain.example` and so on; the last stands for `end`.
fn chain(dns: &Dns, label: char, length: usize, end: &str) -> String {
    let name = |number: usize| format!("{label}{number}.chain.example");
    for number in 1..length {
        dns.alias(&name(number), &name(number + 1));
    }
    dns.alias(&name(length), end);
    name(1)
}

/// `8.66.249.66.in-addr.arpa`
fn reverse(client: &str) -> String {
    let mut parts: Vec<&str> = client.split('.').collect();
    parts.reverse();
    parts.join(".") + ".in-addr.arpa"
}

/// CRAWL-3: aliases that one answer has are followed, however many; those that go in circles are a
/// no. A chain of which each answer has one alias is given up, and is a no.
#[test]
fn aliases_have_an_end() {
    let dns = dns();
    let [long, circle, circle_back, steps] = [
        "66.249.66.11",
        "66.249.66.12",
        "66.249.66.13",
        "66.249.66.14",
    ];
    dns.alias(
        &reverse(long),
        &chain(&dns, 'a', 100, "names.chain.example"),
    );
    dns.pointer("names.chain.example", "c11.googlebot.com");
    dns.addresses("c11.googlebot.com", &[long]);
    dns.alias(&reverse(circle), &chain(&dns, 'b', 5, &reverse(circle)));
    dns.names(circle_back, &["c13.googlebot.com"]);
    dns.alias(
        "c13.googlebot.com",
        &chain(&dns, 'c', 5, "c1.chain.example"),
    );
    let application = Application::ok();
    let (weir, _state) = start(&application, &dns, denials(), &[]);
    becomes(&weir, long, "verified");
    becomes(&weir, circle, "fake");
    becomes(&weir, circle_back, "fake");
    dns.one_alias_an_answer();
    dns.alias(
        &reverse(steps),
        &chain(&dns, 'd', 100, "names.chain.example"),
    );
    let before = dns.asked().len();
    becomes(&weir, steps, "fake");
    let asked = dns.asked().len() - before;
    assert!(asked <= 8, "{asked} questions");
    becomes(&weir, CRAWLER, "verified");
}

/// CRAWL-3: of hundreds of names, which come over TCP, four are looked at; a name may have 255
/// bytes.
#[test]
fn of_many_names_the_first_are_looked_at() {
    let dns = dns();
    let (many, long) = ("66.249.66.21", "66.249.66.22");
    let names: Vec<String> = (0..900)
        .map(|number| format!("n{number}.googlebot.com"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    dns.names(many, &names);
    dns.addresses("n5.googlebot.com", &[many]);
    // 255 bytes on the wire, with the lengths of the labels and the root.
    let label = "x".repeat(63);
    let longest = |first: char| {
        format!(
            "{first}{}.{label}.{label}.{}.googlebot.com",
            &label[1..],
            "y".repeat(47)
        )
    };
    let names: Vec<String> = ('a'..='z').map(longest).collect();
    assert_eq!(names[0].len() + 2, 255);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    dns.names(long, &names);
    dns.addresses(names[3], &[long]);
    let application = Application::ok();
    let (weir, _state) = start(&application, &dns, denials(), &[]);
    becomes(&weir, many, "fake");
    becomes(&weir, long, "verified");
    let asked = dns.asked();
    let of = |end: &str| asked.iter().filter(|name| name.ends_with(end)).count();
    assert_eq!(of("googlebot.com"), 8, "four of each: {asked:?}");
    // Once over UDP, and once over TCP.
    assert_eq!(dns.asked_about(many), 2);
}

/// CRAWL-2, CRAWL-3: an answer to another question is none, and what an answer says of other names
/// proves nothing.
#[test]
fn only_what_was_asked_for_counts() {
    let dns = dns();
    let (other, beside) = ("66.249.66.31", "66.249.66.32");
    dns.both(other, "c31.googlebot.com");
    dns.broken(other, Mood::ToOther);
    dns.names(beside, &["c32.googlebot.com"]);
    dns.addresses("c32.googlebot.com", &["192.0.2.1"]);
    dns.says_beside("c32.googlebot.com", "evil.example", beside);
    let application = Application::ok();
    let (weir, _state) = start(&application, &dns, denials(), &[]);
    becomes(&weir, beside, "fake");
    assert_eq!(state(&weir, other), "unproven");
    // It was asked again as the first answer was none.
    wait_until("the next question", || dns.asked_about(other) > 1);
    assert_eq!(state(&weir, other), "unproven");
    becomes(&weir, CRAWLER, "verified");
}

/// CRAWL-2, CRAWL-3: answers that are cut, over TCP too, or of which nothing comes over TCP, prove
/// nothing: nobody is banned for them, and others are verified meanwhile, whichever of these one
/// network's addresses answer with.
#[test]
fn answers_that_never_come_prove_nothing() {
    let dns = dns();
    let rules = json!({
        "denials": denials()["denials"],
        "jails": [{"name": "missing", "statuses": [404], "per_hour": 1000}]});
    let application = Application::ok();
    let (weir, _state) = start(&application, &dns, rules, &[]);
    let clients = |moods: std::ops::Range<u8>| moods.map(|last| format!("45.7.{last}.9"));
    for client in clients(0..8) {
        dns.broken(&client, Mood::Cut);
    }
    for client in clients(8..12) {
        dns.broken(&client, Mood::Stalls);
    }
    for client in clients(0..12) {
        assert_eq!(state(&weir, &client), "unproven", "{client}");
    }
    wait_until("the answers", || {
        // Those of which nothing comes are asked once more.
        let asked = |client: &String| dns.asked_about(client);
        clients(0..8).all(|client| asked(&client) > 1)
            && clients(8..12).all(|client| asked(&client) > 2)
    });
    becomes(&weir, CRAWLER, "verified");
    for client in clients(0..12) {
        assert_eq!(state(&weir, &client), "unproven", "{client}");
    }
    let log = weir.process_log_text();
    assert!(!log.contains("names of crawlers are not answered"), "{log}");
    assert!(weir.bans().is_empty());
}
