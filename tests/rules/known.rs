//! Known clients first (SHARE-4), and the flood that it is for (SHARE-9). The service's clocks are
//! moved by the test.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::schemas::{fits, schema, validator};
use crate::support::application::Application;
use crate::support::moved::Moved;
use crate::support::raw_client::{Connection, get};
use crate::support::wait_until;
use crate::support::weir::{Weir, ms};

fn search(per_minute: u32) -> Value {
    json!({"version": 1, "limits": [{"name": "search", "match": {"paths": ["/search"]},
        "per": "all", "per_minute": per_minute, "spare_known": "10m", "on_limit": "refuse"}]})
}

/// SHARE-4: who came back after the time has a second count of the same size, in enforce and in
/// observe mode; strangers have the first alone. Who was refused as often as not is a stranger.
#[test]
fn known_clients_have_a_count_of_their_own() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let settings = [("WAF_MODE", mode)];
        let mut moved = Moved::start(&application, &search(3), &settings);
        let (known, late) = ("203.0.113.7", "203.0.113.8");
        assert_eq!(moved.ask("/", known), 200);
        moved.move_on(500_000);
        assert_eq!(moved.ask("/", late), 200);
        moved.move_on(110_000);
        let path = |number: u32| format!("/search/{number}");
        for number in 1..=3 {
            moved.ask(&path(number), &format!("198.51.{number}.7"));
        }
        let action = |moved: &Moved, number: u32, client: &str| {
            moved.ask(&path(number), client);
            let line = moved.weir.line_of(&path(number));
            line["action"].as_str().expect("an action").to_owned()
        };
        assert_eq!(action(&moved, 4, "198.51.100.7"), "rate_limited", "{mode}");
        assert_eq!(action(&moved, 5, late), "rate_limited", "{mode}");
        for number in 6..=8 {
            assert_eq!(action(&moved, number, known), "passed", "{mode}");
        }
        assert_eq!(action(&moved, 9, known), "rate_limited", "{mode}");
        assert_eq!(moved.weir.bans(), Vec::<Value>::new());
        // Time alone makes no friend: of its requests as many were refused as passed.
        moved.move_on(1_000_000);
        for number in 11..=13 {
            moved.ask(&path(number), &format!("198.51.{number}.7"));
        }
        assert_eq!(action(&moved, 14, late), "rate_limited", "{mode}");
        assert_eq!(action(&moved, 15, known), "passed", "{mode}");
    }
}

/// SHARE-4, SHARE-8: who is known, and what was counted, outlive a client table that a flood
/// empties, and a restart. The file that holds them fits its schema.
#[test]
fn who_is_known_outlives_a_flood_and_a_restart() {
    let application = Application::ok();
    let mut moved = Moved::start(&application, &search(3), &[]);
    assert_eq!(moved.ask("/", "203.0.113.7"), 200);
    moved.move_on(601_000);
    assert_eq!(moved.ask("/", "203.0.113.7"), 200);
    flood(&moved.weir, "/else", 21_000);
    assert_eq!(moved.weir.metric("waf_known_clients"), Some(1.0));
    for number in 1..=3 {
        assert_eq!(moved.ask("/search", &format!("198.51.{number}.7")), 200);
    }
    assert_eq!(moved.ask("/search", "198.51.100.7"), 429);
    assert_eq!(moved.ask("/search", "203.0.113.7"), 200);
    moved.restart(&application);
    assert_eq!(
        moved.ask("/search", "198.51.100.7"),
        429,
        "the count went on"
    );
    assert_eq!(moved.ask("/search", "203.0.113.7"), 200);
    let held: Value = serde_json::from_slice(
        &std::fs::read(moved.state.path().join("shared.json")).expect("the file"),
    )
    .expect("JSON");
    fits(&validator(&schema("shared")), "shared.json", &held);
    assert_eq!(held["known"][0]["client"], "203.0.113.7");
    let whose = |count: &Value| (count["key"].clone(), count["known"] == true);
    let counts: Vec<_> = held["counts"]
        .as_array()
        .expect("counts")
        .iter()
        .map(whose)
        .collect();
    assert!(counts.contains(&(json!("all"), false)) && counts.contains(&(json!("all"), true)));
}

/// One request of each of so many clients.
fn flood(weir: &Weir, path: &str, clients: u32) {
    let mut connection = Connection::open(weir.address());
    for number in 0..clients {
        connection.send(&get(path, &[("X-Forwarded-For", &stranger(number))]));
        connection.response();
    }
}

fn stranger(number: u32) -> String {
    let [_, a, b, c] = number.to_be_bytes();
    format!("{}.{a}.{b}.{c}", 11 + number % 100)
}

/// SHARE-8: the first refusal of a key raises an alert with key, estimate and about how many
/// clients there were, once in a cooldown; others of the same cooldown raise none.
#[test]
fn a_refusal_raises_an_alert() {
    let application = Application::ok();
    let settings = [("WAF_ANOMALY_COOLDOWN", "1h")];
    let mut moved = Moved::start(&application, &search(40), &settings);
    flood(&moved.weir, "/search", 50);
    let alerts = |moved: &Moved| {
        let answer = moved
            .weir
            .control("GET", "/v1/alerts", None)
            .expect(200)
            .json();
        answer["alerts"].as_array().expect("a list").clone()
    };
    wait_until("an alert", || !alerts(&moved).is_empty());
    moved.move_on(120_000);
    flood(&moved.weir, "/search", 50);
    moved.move_on(3_600_000);
    flood(&moved.weir, "/search", 50);
    wait_until("a second alert", || alerts(&moved).len() == 2);
    let alert = &alerts(&moved)[0];
    assert_eq!(alert["kind"], "shared_limit");
    assert_eq!(
        [&alert["rule"], &alert["per"], &alert["key"]],
        ["search", "all", "all"]
    );
    assert_eq!((&alert["limit"], &alert["count"]), (&json!(40), &json!(40)));
    let clients = alert["clients"].as_u64().expect("a number");
    assert!((25..=60).contains(&clients), "{clients}");
    let series = "waf_alerts_total{kind=\"shared_limit\"}";
    assert_eq!(moved.weir.metric(series), Some(2.0));
}

/// SHARE-9: 10,372 clients that ask once for `/search` within 420 s, beside 50 visitors who have
/// been there for an hour with two requests a minute each. The application gets at most 600 + 600
/// requests a minute there, and every request of the 50 passes; in observe mode the same would be.
#[test]
fn a_flood_leaves_the_visitors() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let settings = [("WAF_MODE", mode)];
        let mut moved = Moved::start(&application, &search(600), &settings);
        // Half a minute a step: each of the visitors asks once in it, half of them for /search.
        let visit = |moved: &Moved, from: u32, to: u32| {
            let mut connection = Connection::open(moved.weir.address());
            for visitor in from..to {
                let path = if visitor % 2 == 0 { "/search" } else { "/" };
                let client = format!("203.0.113.{visitor}");
                connection.send(&get(path, &[("X-Forwarded-For", &client)]));
                let status = connection.response().status;
                assert_eq!(status, 200, "{mode}: visitor {visitor}");
            }
        };
        for _ in 0..120 {
            visit(&moved, 0, 50);
            moved.move_on(30_000);
        }
        let begun = 120 * 50;
        let mut asked = 0;
        for second in 0..420u32 {
            let upto = 10_372 * (second + 1) / 420;
            let mut connection = Connection::open(moved.weir.address());
            for number in asked..upto {
                let client = stranger(number);
                connection.send(&get("/search", &[("X-Forwarded-For", &client)]));
                connection.response();
            }
            asked = upto;
            // 50 visitors within 30 s.
            let place = second % 30;
            visit(&moved, place * 5 / 3, (place + 1) * 5 / 3);
            moved.move_on(1_000);
        }
        assert_eq!(asked, 10_372);
        let flood_and_visits = 10_372 + 14 * 50;
        wait_until("all lines", || {
            moved.weir.request_log().len() - begun == flood_and_visits
        });
        let lines = &moved.weir.request_log()[begun..];
        let mut minutes = BTreeMap::<u64, [u32; 2]>::new();
        for line in lines {
            let is_visitor = line["client"]
                .as_str()
                .is_some_and(|of| of.starts_with("203.0.113."));
            let passed = line["action"] == "passed";
            assert!(passed || !is_visitor, "{mode}: {line}");
            if line["path"] == "/search" {
                let counts = minutes.entry(ms(&line["time"]) / 60_000).or_default();
                counts[usize::from(!passed)] += 1;
            }
        }
        assert!(
            minutes.values().all(|[passed, _]| *passed <= 1_200),
            "{mode}: {minutes:?}"
        );
        let refused: u32 = minutes.values().map(|[_, refused]| refused).sum();
        assert!(refused > 5_000, "{mode}: {minutes:?}");
        let at_the_application = application.requests().len();
        let all = 120 * 50 + flood_and_visits;
        let expected = if mode == "enforce" {
            all - refused as usize
        } else {
            all
        };
        assert_eq!(at_the_application, expected);
    }
}
