//! CrowdSec's decision stream, with a service of that protocol on loopback.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::json;

use super::publisher::{Publisher, answer};
use crate::support::application::Application;
use crate::support::command::run;
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

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
    wait_until("the decisions are there", || {
        entries(&weir) == Some(100_001.0)
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
    for (wrong, told) in [(2, "403"), (3, "no decision stream"), (4, "broken off")] {
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
