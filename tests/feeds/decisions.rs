//! CrowdSec's decision stream, with a service of that protocol on loopback.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::publisher::{Publisher, answer};
use crate::support::application::Application;
use crate::support::command::{command, ran, run};
use crate::support::geo::Geo;
use crate::support::weir::{StateDir, Weir, state_dir};
use crate::support::{wait_for_within, wait_until};

/// A service whose rules.json names this LAPI.
#[track_caller]
fn start(
    application: &Application,
    lapi: &Publisher,
    settings: &[(&str, &str)],
) -> (Weir, StateDir) {
    let state = state_dir();
    let rules = json!({"version": 1, "feeds": [
        {"name": "crowdsec", "crowdsec": lapi.url(""), "key_file": "crowdsec.key"}]});
    fs::write(state.path().join("rules.json"), rules.to_string()).unwrap();
    fs::write(state.path().join("crowdsec.key"), "open-sesame\n").unwrap();
    let weir = Weir::start_at(application.address(), &state, settings);
    (weir, state)
}

fn entries(weir: &Weir) -> Option<f64> {
    weir.metric("waf_feed_entries{feed=\"crowdsec\"}")
}

fn fetch(state: &StateDir) -> String {
    run(state.path(), &["feeds", "fetch", "crowdsec"]).out
}

/// FEED-7: 100,000 decisions over HTTPS of a private authority; a listed client is refused, and
/// passes once both of its decisions are deleted; a key that is wrong, garbage and a cut answer
/// leave what is known, and everything is asked for anew after them. The key is neither in the copy
/// nor in the output of `weir check`.
#[test]
fn a_client_is_listed_until_its_decisions_are_gone() {
    let lapi = Publisher::tls();
    let mode = Arc::new(AtomicU8::new(0));
    let says = Arc::clone(&mode);
    let decision = |id: u32, value: &str| {
        format!(
            r#"{{"id":{id},"origin":"CAPI","type":"ban","scope":"Ip","value":"{value}","duration":"1h0m0.5s","scenario":"x","uuid":"u"}}"#
        )
    };
    let many: Vec<String> = (0..100_000_u32)
        .map(|id| {
            decision(
                id,
                &format!("9.{}.{}.{}", id >> 16, id >> 8 & 255, id & 255),
            )
        })
        .collect();
    let twice = [
        decision(200_000, "198.51.100.9"),
        decision(200_001, "198.51.100.9"),
    ]
    .join(",");
    let all = format!(
        r#"{{"new":[null,{},{twice}],"deleted":[]}}"#,
        many.join(",")
    );
    lapi.answers(move |head| {
        let is_start = head.contains("startup=true");
        if !head.contains("x-api-key: open-sesame") {
            return answer("403 Forbidden", "", "");
        }
        match says.load(Ordering::SeqCst) {
            0 if is_start => answer("200 OK", "", &all),
            1 if is_start => answer("200 OK", "", r#"{"new":null,"deleted":[{"id":200000}]}"#),
            2 => answer("403 Forbidden", "", r#"{"message":"access forbidden"}"#),
            3 => answer("200 OK", "", "<html>"),
            4 => {
                let mut cut = answer("200 OK", "", &all);
                cut.truncate(5_000);
                cut
            }
            // It is restarted.
            7 => Vec::new(),
            // All is gone but one of the two.
            5 if is_start => answer("200 OK", "", r#"{"new":[{"id":200001,"type":"ban","scope":"Ip","value":"198.51.100.9","duration":"1h"}]}"#),
            6 => answer("200 OK", "", r#"{"new":null,"deleted":[{"id":200001}]}"#),
            _ => answer("200 OK", "", r#"{"new":null,"deleted":null}"#),
        }
    });
    let application = Application::ok();
    let ca_file = lapi.ca_file().display().to_string();
    let settings = [("WAF_FEED_CA_FILE", ca_file.as_str())];
    let (weir, state) = start(&application, &lapi, &settings);
    // Read without optimisation, on a thread that leaves processors to others.
    wait_for_within(Duration::from_secs(60), "the decisions are there", || {
        (entries(&weir) == Some(100_001.0)).then_some(())
    });
    weir.get("/listed", "198.51.100.9").expect(429);
    let line = weir.line_of("/listed");
    assert_eq!(
        line["list"],
        json!({"netblock": "198.51.100.9/32", "source": "crowdsec"})
    );
    weir.get("/other", "198.51.100.10").expect(200);
    let first = lapi.heads().remove(0);
    assert!(
        first.starts_with("get /v1/decisions/stream?startup=true&dedup=false"),
        "{first}"
    );
    for (wrong, told) in [
        (2, "403"),
        (3, "no decision stream"),
        (4, "broken off"),
        (7, "connection failed"),
    ] {
        mode.store(wrong, Ordering::SeqCst);
        let said = fetch(&state);
        assert!(said.contains("failed") && said.contains(told), "{said}");
        assert!(said.contains("100001 entries hold"), "{said}");
        weir.get("/still", "198.51.100.9").expect(429);
    }
    mode.store(5, Ordering::SeqCst);
    assert_eq!(fetch(&state), "crowdsec: taken; 1 entries hold\n");
    weir.get("/one-left", "198.51.100.9").expect(429);
    // Told as a change, after 10 s, or with everything.
    mode.store(6, Ordering::SeqCst);
    wait_until("the decision is deleted", || entries(&weir) == Some(0.0));
    weir.get("/gone", "198.51.100.9").expect(200);
    let last = lapi.heads().pop().unwrap();
    assert!(last.contains("startup=false"), "{last}");
    let copy = fs::read_to_string(state.path().join("feeds/crowdsec")).unwrap();
    assert!(copy.starts_with("# weir feed "), "{copy}");
    let checked = run(state.path(), &["check"]);
    for text in [&copy, &checked.out, &checked.err] {
        assert!(!text.contains("open-sesame"), "{text}");
    }
}

/// Answers with more decisions than are written at each change, then once with two that are new and
/// one that is deleted, then not at all. Listed are 203.0.113.1 and .2 first, .2 and .3 in the end.
#[track_caller]
pub(crate) fn changes_once(lapi: &Publisher) {
    let decision = |id: u32, value: &str| json!({"id": id, "type": "ban", "scope": "Ip", "value": value, "duration": "1h"});
    let many = (10..4_010_u32).map(|id| decision(id, &format!("9.0.{}.{}", id >> 8, id & 255)));
    let first = [decision(1, "203.0.113.1"), decision(2, "203.0.113.2")];
    let all: Vec<Value> = first.into_iter().chain(many).collect();
    let all = json!({"new": all, "deleted": null}).to_string();
    let new = [decision(3, "203.0.113.3"), decision(4, "203.0.113.4")];
    let change = json!({"new": new, "deleted": [decision(1, "203.0.113.1")]});
    let change = change.to_string();
    let asked = AtomicU8::new(0);
    lapi.answers(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => answer("200 OK", "", &all),
        1 => answer("200 OK", "", &change),
        _ => answer("500 Internal Server Error", "", ""),
    });
}

/// FEED-4, FEED-7: what is known holds to its end over a stop and a start with the LAPI away:
/// neither a decision that was deleted comes back, nor is a new one forgotten.
#[test]
fn decisions_outlive_a_stop() {
    let lapi = Publisher::plain();
    changes_once(&lapi);
    let application = Application::ok();
    let (mut weir, state) = start(&application, &lapi, &[]);
    wait_until("the change is there", || entries(&weir) == Some(4_003.0));
    weir.get("/", "203.0.113.1").expect(200);
    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &[]);
    lapi.wait_for_heads(3);
    for (client, status) in [
        ("203.0.113.1", 200),
        ("203.0.113.2", 429),
        ("203.0.113.3", 429),
    ] {
        weir.get("/", client).expect(status);
    }
}

/// FEED-3, FEED-7: a publisher that says nothing delays no decision stream.
#[test]
fn a_stalled_list_delays_no_decisions() {
    let (lists, lapi) = (Publisher::plain(), Publisher::plain());
    lists.publishes("198.51.100.0/24\n");
    lapi.publishes(
        r#"{"new":[{"id":1,"type":"ban","scope":"Ip","value":"203.0.113.9","duration":"1h"}]}"#,
    );
    let application = Application::ok();
    let state = state_dir();
    let rules = json!({"version": 1, "feeds": [
        {"name": "drop", "url": lists.url("/drop"), "use": "deny"},
        {"name": "later", "url": lists.url("/later"), "use": "deny"},
        {"name": "crowdsec", "crowdsec": lapi.url(""), "key_file": "crowdsec.key"}]});
    fs::write(state.path().join("rules.json"), rules.to_string()).unwrap();
    fs::write(state.path().join("crowdsec.key"), "open-sesame").unwrap();
    let stalled = lists.hold();
    let weir = Weir::start_at(application.address(), &state, &[]);
    lists.wait_for_heads(1);
    wait_until("the decision is there", || entries(&weir) == Some(1.0));
    lapi.publishes(r#"{"new":null,"deleted":null}"#);
    assert_eq!(fetch(&state), "crowdsec: taken; 0 entries hold\n");
    // One list at a time.
    assert_eq!(lists.heads().len(), 1);
    assert_eq!(weir.metric("waf_feed_entries{feed=\"drop\"}"), Some(0.0));
    drop(stalled);
    wait_until("both lists are there", || {
        let entries = |name: &str| weir.metric(&format!("waf_feed_entries{{feed=\"{name}\"}}"));
        entries("drop") == Some(1.0) && entries("later") == Some(1.0)
    });
}

/// FEED-7: decisions on autonomous systems and countries do nothing where clients are not looked
/// up, which is told by the log, once, and by `weir check`.
#[test]
fn decisions_on_places_need_lookups() {
    let lapi = Publisher::plain();
    lapi.publishes(
        r#"{"new":[{"id":1,"type":"ban","scope":"As","value":"64500","duration":"1h"},
            {"id":2,"type":"ban","scope":"Country","value":"DE","duration":"1h"}]}"#,
    );
    let application = Application::ok();
    let (weir, state) = start(&application, &lapi, &[("WAF_LOOKUP_SOURCE", "off")]);
    let told = "has 2 decisions on autonomous systems and countries, which do nothing";
    weir.wait_for_process_log(&[told]);
    wait_until("the copy", || state.path().join("feeds/crowdsec").exists());
    let mut check = command(state.path(), &["check"]);
    check
        .env("WAF_UPSTREAM", "127.0.0.1:9")
        .env("WAF_LOOKUP_SOURCE", "off");
    let checked = ran(check.output().expect("the binary runs"));
    let said = format!("{}{}", checked.out, checked.err);
    assert!(said.contains(told), "{said}");
}

/// FEED-7, FEED-8, CONTROL-5: of a client whose autonomous system a decision names, `explain` says
/// that the feed refuses it and since when, and names no entry of rules.json that is not there.
#[test]
fn a_decision_on_an_autonomous_system_is_explained() {
    let lapi = Publisher::plain();
    lapi.publishes(
        r#"{"new":[{"id":1,"type":"ban","scope":"As","value":"64496","duration":"1h"}]}"#,
    );
    let application = Application::ok();
    let geo = Geo::saying(r#"{"country_code":"DE","asn":64496,"organization_name":"Example"}"#);
    // A request waits for the lookup.
    let settings = geo.settings(&[("WAF_ADD_LOOKUP_HEADERS", "on")]);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(a, b)| (&**a, &**b)).collect();
    let (weir, state) = start(&application, &lapi, &settings);
    let client = "81.2.69.7";
    wait_until("it is refused", || weir.get("/", client).status == 429);
    let told = run(state.path(), &["explain", client]);
    assert_eq!(told.code, 1, "{}", told.out);
    assert!(
        told.out.contains("decision of crowdsec, taken 20"),
        "{}",
        told.out
    );
    assert!(!told.out.contains("rules.json"), "{}", told.out);
    let told = run(state.path(), &["explain", client, "--json"]);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(told["rule"]["name"], "crowdsec");
    assert!(told["rule"]["since"].is_string(), "{told}");
    assert_eq!(told["undo"], json!(["weir allow 81.2.69.7 --for 24h"]));
}
