//! Feeds that are fetched: when, from whom, what of it is taken, and what is told.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::publisher::{Publisher, answer};
use super::save;
use crate::support::application::Application;
use crate::support::command::{Ran, run};
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

/// rules.json with one feed that denies.
fn one(publisher: &Publisher) -> Value {
    json!({"version": 1, "feeds": [
        {"name": "drop", "url": publisher.url("/drop"), "every": "12h", "use": "deny"}]})
}

/// A service with these rules.
#[track_caller]
fn start(application: &Application, rules: &Value, settings: &[(&str, &str)]) -> (Weir, StateDir) {
    let state = state_dir();
    fs::write(state.path().join("rules.json"), rules.to_string()).unwrap();
    let weir = Weir::start_at(application.address(), &state, settings);
    (weir, state)
}

/// What is told of a feed.
#[track_caller]
fn told(weir: &Weir, name: &str) -> Value {
    let feeds = weir.control("GET", "/v1/feeds", None).expect(200).json();
    let mut feeds = feeds["feeds"].as_array().expect("a list").iter();
    feeds
        .find(|feed| feed["name"] == name)
        .cloned()
        .unwrap_or_default()
}

#[track_caller]
fn wait_for_outcome(weir: &Weir, name: &str, outcome: &str) -> Value {
    wait_until(&format!("{name} is {outcome}"), || {
        told(weir, name)["outcome"] == outcome
    });
    told(weir, name)
}

#[track_caller]
fn fetches(weir: &Weir, outcome: &str) -> Option<f64> {
    let labels = format!("feed=\"drop\",outcome=\"{outcome}\"");
    weir.metric(&format!("waf_feed_fetches_total{{{labels}}}"))
}

/// `weir feeds …` of this service.
#[track_caller]
fn feeds(state: &Path, arguments: &[&str]) -> Ran {
    run(state, &[&["feeds"], arguments].concat())
}

fn lines(count: u8) -> String {
    (0..count)
        .map(|last| format!("198.51.100.{last}\n"))
        .collect()
}

/// FEED-1, FEED-3, FEED-4, FEED-8: a feed over HTTPS of a private authority is fetched at the start
/// without anybody waiting, denies, is told, and is confirmed without being sent again; a start
/// goes on from its copy, with the publisher gone.
#[test]
fn a_feed_is_fetched_confirmed_and_kept() {
    let publisher = Publisher::tls();
    publisher.answers(|head| {
        let fields = "ETag: \"v1\"\r\n";
        match head.contains("if-none-match: \"v1\"") {
            true => answer("304 Not Modified", fields, ""),
            false => answer("200 OK", fields, "; DROP\n198.51.100.0/24 ; SBL1\n"),
        }
    });
    let application = Application::ok();
    let ca_file = publisher.ca_file().display().to_string();
    let settings = [("WAF_FEED_CA_FILE", ca_file.as_str())];
    let held = publisher.hold();
    let (mut weir, state) = start(&application, &one(&publisher), &settings);
    weir.wait_for_process_log(&["\\\"drop\\\" has no copy and is empty"]);
    publisher.wait_for_heads(1);
    weir.get("/before", "198.51.100.9").expect(200);
    drop(held);
    let feed = wait_for_outcome(&weir, "drop", "taken");
    assert_eq!(
        (&feed["entries"], &feed["use"]),
        (&json!(1), &json!("deny"))
    );
    // Asked of the control loop, which brings into force what was taken before it answers.
    assert_eq!(weir.metric("waf_feed_entries{feed=\"drop\"}"), Some(1.0));
    weir.get("/denied", "198.51.100.9").expect(429);
    let line = weir.line_of("/denied");
    assert_eq!(line["action"], "denied_net");
    assert_eq!(
        line["list"],
        json!({"netblock": "198.51.100.0/24", "source": "drop"})
    );
    let explained = "/v1/explain?address=198.51.100.9";
    let explained = weir.control("GET", explained, None).expect(200).json();
    assert_eq!(explained["list"]["since"], feed["taken"]);
    let said = run(state.path(), &["explain", "198.51.100.9"]);
    assert!(
        said.out.contains("of drop, a feed, taken 20"),
        "{}",
        said.out
    );
    assert!(!said.out.contains("take 198"), "{}", said.out);
    assert!(weir.metric("waf_feed_age_seconds{feed=\"drop\"}").is_some());
    let hits = "waf_rule_hits_total{rule=\"drop\",kind=\"deny\"}";
    assert_eq!(weir.metric(hits), Some(1.0));

    let fetched = feeds(state.path(), &["fetch", "drop"]);
    assert_eq!(
        (fetched.code, &*fetched.out),
        (0, "drop: unchanged; 1 entries hold\n")
    );
    assert_eq!(
        (fetches(&weir, "taken"), fetches(&weir, "unchanged")),
        (Some(1.0), Some(1.0))
    );
    let confirmed = told(&weir, "drop");
    assert_eq!(confirmed["taken"], feed["taken"]);
    assert_ne!(confirmed["checked"], feed["checked"]);
    let listed = feeds(state.path(), &[]);
    assert!(
        listed.out.starts_with("FEED  USE   ENTRIES"),
        "{}",
        listed.out
    );
    let unknown = feeds(state.path(), &["fetch", "drip"]);
    assert_eq!(unknown.code, 1, "{}", unknown.err);
    weir.control("POST", "/v1/feeds/drip/fetch", None)
        .expect(404);
    weir.control("GET", "/v1/feeds/drop/fetch", None)
        .expect(405);
    weir.control("POST", "/v1/feeds/drop/eat", None).expect(404);

    weir.stop();
    publisher.answers(|_| Vec::new());
    let weir = Weir::start_at(application.address(), &state, &settings);
    weir.get("/again", "198.51.100.9").expect(429);
    let feed = told(&weir, "drop");
    wait_until("the thread", || !told(&weir, "drop").is_null());
    assert_eq!(told(&weir, "drop")["taken"], confirmed["taken"], "{feed}");
    assert_eq!(fetches(&weir, "failed"), Some(0.0), "it is not due");
    let asked = feeds(state.path(), &["fetch", "drop"]);
    assert_eq!(asked.code, 1, "{}", asked.out);
    assert!(
        asked
            .out
            .starts_with("drop: failed: the connection failed: "),
        "{}",
        asked.out
    );
    weir.get("/still", "198.51.100.9").expect(429);
}

/// FEED-5: a version that is a page, empty, halved or quadrupled is not taken: an alert says why,
/// once, the version before stays, also over a restart, and `accept` takes it.
#[test]
fn a_strange_version_is_not_taken() {
    let publisher = Publisher::plain();
    publisher.publishes(&lines(20));
    let application = Application::ok();
    let (mut weir, state) = start(&application, &one(&publisher), &[]);
    wait_for_outcome(&weir, "drop", "taken");
    let nothing = feeds(state.path(), &["accept", "drop"]);
    assert_eq!(nothing.code, 1);
    assert!(
        nothing
            .err
            .contains("no version of it that could be accepted"),
        "{}",
        nothing.err
    );
    for (body, why) in [
        (
            "<!DOCTYPE html>\n<p>Sign in at 192.0.2.1\n".to_owned(),
            "it is a page",
        ),
        ("# nothing\n".to_owned(), "it has no entry"),
        (
            r#"{"prefixes":[{"ip":"192.0.2.1"}"#.to_owned(),
            "it has a fault in line 1",
        ),
        (lines(81), "more than four times the 20"),
        (lines(9), "less than half of the 20"),
    ] {
        publisher.publishes(&body);
        let fetched = feeds(state.path(), &["fetch", "drop"]);
        assert_eq!(fetched.code, 1, "{why}");
        assert!(
            fetched.out.starts_with("drop: refused: "),
            "{}",
            fetched.out
        );
        assert!(fetched.out.contains(why), "{}", fetched.out);
        assert!(
            fetched.out.ends_with("; 20 entries hold\n"),
            "{}",
            fetched.out
        );
        weir.get("/a", "198.51.100.19").expect(429);
    }
    let alerts = |weir: &Weir| {
        let lines = weir.log_lines();
        let of_feed = |line: &&Value| line["kind"] == "feed_error" && line["feed"] == "drop";
        lines.iter().filter(of_feed).count()
    };
    wait_until("the alert", || alerts(&weir) == 1);
    assert_eq!(
        weir.metric("waf_alerts_total{kind=\"feed_error\"}"),
        Some(1.0)
    );

    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &[]);
    weir.get("/a", "198.51.100.19").expect(429);
    wait_for_outcome(&weir, "drop", "refused");
    let accepted = feeds(state.path(), &["accept", "drop"]);
    assert_eq!(
        (accepted.code, &*accepted.out),
        (0, "drop: taken; 9 entries hold\n")
    );
    wait_until("it is in force", || {
        weir.get("/a", "198.51.100.19").status == 200
    });
    weir.get("/a", "198.51.100.8").expect(429);
    assert!(!state.path().join("feeds/drop.refused").exists());
}

/// FEED-5: the alert about a version that is not taken is repeated a day after it was raised, also
/// where the service starts anew meanwhile.
#[test]
fn a_restart_does_not_put_the_alert_off() {
    let publisher = Publisher::plain();
    publisher.publishes(&lines(20));
    let (application, clock) = (Application::ok(), state_dir());
    let clock = clock.path().join("ahead").display().to_string();
    let settings = [("WEIR_TEST_CLOCK", clock.as_str())];
    let mut rules = one(&publisher);
    rules["feeds"][0]["every"] = json!("30d");
    let (mut weir, state) = start(&application, &rules, &settings);
    wait_for_outcome(&weir, "drop", "taken");
    publisher.publishes(&lines(9));
    assert_eq!(feeds(state.path(), &["fetch", "drop"]).code, 1);
    let alerts = |weir: &Weir| {
        let lines = weir.log_lines();
        let of_feed = |line: &&Value| line["kind"] == "feed_error" && line["feed"] == "drop";
        lines.iter().filter(of_feed).count()
    };
    wait_until("the alert", || alerts(&weir) == 1);
    for (hours, expected) in [(12, 0), (25, 1)] {
        weir.stop();
        fs::write(&clock, (hours * 3_600_000).to_string()).expect("writes");
        weir = Weir::start_at(application.address(), &state, &settings);
        wait_for_outcome(&weir, "drop", "refused");
        wait_until("the alert", || alerts(&weir) >= expected);
        assert_eq!(alerts(&weir), expected, "after {hours} hours");
    }
}

/// FEED-5: a publisher that lists nobody any more is believed where an operator says so.
#[test]
fn an_empty_version_is_accepted() {
    let publisher = Publisher::plain();
    publisher.publishes(&lines(2));
    let application = Application::ok();
    let (weir, state) = start(&application, &one(&publisher), &[]);
    wait_for_outcome(&weir, "drop", "taken");
    weir.get("/a", "198.51.100.1").expect(429);
    publisher.publishes("# empty now\n");
    let fetched = feeds(state.path(), &["fetch", "drop"]);
    assert!(fetched.out.contains("it has no entry"), "{}", fetched.out);
    let accepted = feeds(state.path(), &["accept", "drop"]);
    assert_eq!(
        (accepted.code, &*accepted.out),
        (0, "drop: taken; 0 entries hold\n")
    );
    wait_until("it is in force", || {
        weir.get("/a", "198.51.100.1").status == 200
    });
}

/// FEED-2, RULE-1: lines of a feed that are no netblocks are skipped, and told with the numbers of
/// the first five, once a version.
#[test]
fn skipped_lines_are_told() {
    let publisher = Publisher::plain();
    publisher.publishes("198.51.100.1\nno\n1.2.3\n300.1.1.1\n192.0.2.0/33\nx\ny\n198.51.100.2\n");
    let application = Application::ok();
    let (weir, state) = start(&application, &one(&publisher), &[]);
    let feed = wait_for_outcome(&weir, "drop", "taken");
    assert_eq!(feed["entries"], 2, "{feed}");
    let told = "lines of the feed skipped, as they are no netblocks: 6; the first: [2, 3, 4, 5, 6]";
    weir.wait_for_process_log(&[told]);
    let again = feeds(state.path(), &["fetch", "drop"]);
    assert!(again.out.starts_with("drop: unchanged"), "{}", again.out);
    publisher.publishes("198.51.100.3\nno\n");
    feeds(state.path(), &["fetch", "drop"]);
    weir.wait_for_process_log(&["no netblocks: 1; the first: [2]"]);
    assert_eq!(weir.process_log_text().matches(told).count(), 1);
}

/// FEED-5: entries that cover a trusted proxy, private addresses or too much are left out and told;
/// two halves of the Internet are not let through where the whole is not.
#[test]
fn entries_that_cover_too_much_are_left_out() {
    let publisher = Publisher::plain();
    publisher.publishes(
        r#"{"all":["198.51.100.0/24","0.0.0.0/1","128.0.0.0/1","10.0.0.0/8","2001:db8::/32","192.0.2.200"]}"#,
    );
    let application = Application::ok();
    let trusted = [("WAF_TRUSTED_PROXIES", "127.0.0.0/8,2001:db8:7::/48")];
    let (weir, _state) = start(&application, &one(&publisher), &trusted);
    let feed = wait_for_outcome(&weir, "drop", "taken");
    assert_eq!(feed["entries"], 2, "{feed}");
    let left_out = "or too much: 4; they begin with";
    weir.wait_for_process_log(&[
        left_out,
        "0.0.0.0/1, 128.0.0.0/1, 10.0.0.0/8, 2001:db8::/32",
    ]);
    wait_until("it is in force", || {
        weir.get("/a", "198.51.100.9").status == 429
    });
    weir.get("/a", "203.0.113.9").expect(200);
}

/// FEED-3: what is not whole, is somewhere else, or is put off leaves everything as it is. A reload
/// and an edit do not pass over `Retry-After`; an operator does.
#[test]
fn failures_are_told_and_put_off() {
    let publisher = Publisher::plain();
    let other = Publisher::plain();
    other.publishes(&lines(1));
    let there = other.url("/drop");
    publisher.answers(|_| answer("503 Service Unavailable", "Retry-After: 7200\r\n", ""));
    let application = Application::ok();
    let (weir, state) = start(&application, &one(&publisher), &[]);
    let feed = wait_for_outcome(&weir, "drop", "failed");
    assert!(
        feed["error"].as_str().unwrap().contains("status 503"),
        "{feed}"
    );
    let next: u64 = crate::support::weir::ms(&feed["next"]);
    let checked: u64 = crate::support::weir::ms(&feed["checked"]);
    assert!((7_200_000..7_300_000).contains(&(next - checked)), "{feed}");
    weir.control("POST", "/v1/reload", None).expect(200);
    let mut rules = one(&publisher);
    rules["comment"] = json!("an edit");
    save(state.path(), "rules.json", &rules.to_string());
    wait_until("the edit", || weir.edits("rules.json", "taken") >= 1.0);
    assert_eq!(told(&weir, "drop")["next"], feed["next"]);
    assert_eq!(publisher.heads().len(), 1);
    for (raw, why) in [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n198.51.100.7\n".to_vec(),
            "it was broken off",
        ),
        (
            answer("302 Found", &format!("Location: {there}\r\n"), ""),
            "a feed on loopback follows none",
        ),
        (
            answer("302 Found", "Location: https://10.0.0.1/drop\r\n", ""),
            "a feed on loopback follows none",
        ),
        (answer("304 Not Modified", "", ""), "status 304"),
    ] {
        publisher.answers(move |_| raw.clone());
        let fetched = feeds(state.path(), &["fetch", "drop"]);
        assert_eq!(fetched.code, 1, "{why}");
        assert!(fetched.out.contains(why), "{}", fetched.out);
    }
    assert_eq!(other.heads().len(), 0);
    assert_eq!(told(&weir, "drop")["entries"], 0);
    // After a failure without a word of the publisher, an edit asks again.
    publisher.publishes(&lines(3));
    rules["comment"] = json!("another edit");
    save(state.path(), "rules.json", &rules.to_string());
    wait_for_outcome(&weir, "drop", "taken");
    weir.wait_until_refused("198.51.100.2");
}

/// FEED-3: a reload fetches a feed again that failed and has no version; one during a fetch has it
/// fetched again behind that.
#[test]
fn a_reload_asks_again() {
    let publisher = Publisher::plain();
    let application = Application::ok();
    let (weir, _state) = start(&application, &one(&publisher), &[]);
    wait_for_outcome(&weir, "drop", "failed");
    let reload = || weir.control("POST", "/v1/reload", None).expect(200);
    let held = publisher.hold();
    reload();
    publisher.wait_for_heads(2);
    reload();
    drop(held);
    publisher.wait_for_heads(3);
    // Nobody asks: it is put off.
    wait_until("the failures", || fetches(&weir, "failed") == Some(3.0));
    assert_eq!(publisher.heads().len(), 3);
}

/// FEED-1, FEED-3: an edit adds a feed, and its thread; one feed is fetched after the other, and a
/// publisher that stalls holds no request. What is no feed any more leaves nothing.
#[test]
fn an_edit_adds_a_feed() {
    let application = Application::ok();
    let (weir, state) = start(&application, &json!({"version": 1}), &[]);
    let has_thread = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", weir.pid())).expect("tasks");
        let names = tasks
            .flatten()
            .map(|task| fs::read_to_string(task.path().join("comm")));
        names.flatten().any(|name| name.trim() == "weir-feeds")
    };
    assert!(!has_thread());
    let listed = feeds(state.path(), &["list"]);
    assert_eq!((listed.code, &*listed.out), (0, "no feeds\n"));
    let (first, second) = (Publisher::plain(), Publisher::plain());
    first.publishes("198.51.100.0/24\n");
    second.publishes(r#"{"prefixes":[{"ipv4Prefix":"203.0.113.0/25"}]}"#);
    let rules = json!({"version": 1,
        "feeds": [{"name": "drop", "url": first.url("/"), "use": "deny"},
                  {"name": "bots", "url": second.url("/")}],
        "denials": [{"name": "search", "match": {"paths": ["/search"], "list": "bots"}, "answer": 403}]});
    let held = first.hold();
    save(state.path(), "rules.json", &rules.to_string());
    first.wait_for_heads(1);
    assert!(has_thread());
    weir.get("/search", "203.0.113.9").expect(200);
    assert_eq!(second.heads().len(), 0, "one at a time");
    drop(held);
    wait_for_outcome(&weir, "bots", "taken");
    wait_for_outcome(&weir, "drop", "taken");
    // Asked of the control loop, as above.
    assert_eq!(weir.metric("waf_feed_entries{feed=\"bots\"}"), Some(1.0));
    weir.get("/search", "203.0.113.9").expect(403);
    weir.get("/search", "203.0.113.200").expect(200);
    weir.get("/a", "198.51.100.9").expect(429);
    assert!(state.path().join("feeds/bots").exists());
    save(state.path(), "rules.json", r#"{"version":1}"#);
    wait_until("they are gone", || {
        !state.path().join("feeds/bots").exists()
    });
    wait_until("nobody is denied", || {
        weir.get("/a", "198.51.100.9").status == 200
    });
    assert_eq!(weir.metric("waf_feed_entries{feed=\"drop\"}"), None);
}

/// FEED-1: roots that cannot be used stop a start and are told by `check`.
#[test]
fn roots_that_cannot_be_used_are_told() {
    let state = state_dir();
    let missing = state.path().join("none.pem").display().to_string();
    let refused = Weir::refuse(&state, &[("WAF_FEED_CA_FILE", missing.as_str())]);
    let told = format!("WAF_FEED_CA_FILE={missing:?} cannot be used: ");
    assert_eq!(refused.code, Some(78));
    assert!(refused.stderr.contains(&told), "{}", refused.stderr);
}
