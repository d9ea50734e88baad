//! Full state files: 20,000 clients, 10,000 bans, 20,000 lookups and 20,000 anomaly counters at the
//! start, edited and written while traffic runs (STATE-1, STATE-3).
//!
//! Times are printed, not judged: they are figures of the machine and of the build. Counts are
//! judged.

use std::fs;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::traffic::{Traffic, quantile};
use crate::support::weir::{StateDir, Weir, from_now, milliseconds, pretty, state_dir_on_disk};
use crate::support::{PATIENCE, wait_for_within};

const CLIENTS: usize = 20_000;
const BANS: usize = 10_000;
const LOOKUPS: usize = 20_000;
const COUNTERS: usize = 20_000;
/// How many requests are made in each case, at least.
const REQUESTS: f64 = 2_000.0;

/// Waits for what takes a second on an idle machine: each write is one of 19 MB.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for_within(3 * PATIENCE, what, || is_so().then_some(()));
}

/// STATE: full files are read at the start; everything in them is in force with the first answer.
#[test]
fn full_files_are_in_force_with_the_first_answer() {
    let application = Application::ok();
    let state = full_state(CLIENTS);
    let began = Instant::now();
    let mut weir = Weir::start_at(
        application.address(),
        &state,
        &[
            ("WAF_RATE_LIMIT_PER_DAY", "10"),
            ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "10"),
        ],
    );
    weir.get("/a", "198.51.100.1").expect(200);
    println!(
        "STATE: {CLIENTS} clients, {BANS} bans, {LOOKUPS} lookups, {COUNTERS} counters: first answer after {:.0} ms",
        milliseconds(began.elapsed())
    );
    for number in [0, BANS / 2, BANS - 1] {
        assert_eq!(weir.get("/a", &banned(number)).status, 429, "{number}");
    }
    // Their day's 10 requests are used up: the counters were read as well. The oldest gave way to
    // those who asked above.
    for number in [10, CLIENTS / 2, CLIENTS - 1] {
        assert_eq!(weir.get("/a", &known(number)).status, 429, "{number}");
        // Their hour's 10 requests as well: one more is over the threshold.
        wait_until("its alert", || {
            let lines = weir.log_lines();
            let told = |line: &Value| line["kind"] == "anomaly" && line["of"] == known(number);
            lines.iter().any(told)
        });
    }
    assert_eq!(weir.metric("waf_clients"), Some(CLIENTS as f64));
    assert_eq!(weir.bans().len(), BANS);
    weir.stop();
    let alerts = weir.state_file("alerts.json").expect("alerts.json");
    assert_eq!(alerts["counters"].as_array().map(Vec::len), Some(COUNTERS));
}

/// STATE-1, STATE-3: full files are written every 200 ms and edited while traffic runs: no request
/// fails or is miscounted, every write succeeds, and nothing is lost.
#[test]
fn full_files_are_written_and_edited_under_traffic() {
    let application = Application::ok();
    let off = ("WAF_RATE_LIMIT_PER_MINUTE", "off");
    let limits = [
        off,
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "1000000"),
        ("WAF_LOG_REQUESTS", "off"),
        ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "1000000"),
    ];
    for (what, interval) in [
        ("without writes", "1h"),
        ("with a write every 200 ms", "200ms"),
    ] {
        // Room for the administrator and the banned client that ask below: none of the others is
        // dropped for them.
        let known_clients = CLIENTS - 2;
        let state = full_state(known_clients);
        let settings: Vec<_> = limits
            .iter()
            .copied()
            .chain([("WAF_STATE_COUNTER_INTERVAL", interval)])
            .collect();
        let mut weir = Weir::start_at(application.address(), &state, &settings);
        let traffic = Traffic::start(weir.address(), 2, "/a", move |number| {
            known(number * 7 % known_clients)
        });
        let writing = interval != "1h";
        if writing {
            edit_of_full_file(&weir);
        }
        if writing {
            wait_until("two writes", || {
                // bans.json is not: nothing changes it after the edit, and what is unchanged is
                // not written again.
                let often = |file| weir.writes(file, "ok") >= 2.0;
                often("clients.json") && often("alerts.json")
            });
        }
        let passed = "waf_requests_total{action=\"passed\",mode=\"enforce\"}";
        wait_until("traffic", || weir.metric(passed) >= Some(REQUESTS));
        let times = traffic.finish();
        let written = |file: &str| weir.writes(file, "ok");
        println!(
            "STATE: {what}: {} requests, p50 {:.2} ms, p99 {:.2} ms, longest {:.1} ms; clients.json written {} times",
            times.len(),
            milliseconds(quantile(&times, 0.5)),
            milliseconds(quantile(&times, 0.99)),
            milliseconds(quantile(&times, 1.0)),
            written("clients.json"),
        );
        assert_eq!(written("clients.json") > 0.0, writing);
        for file in ["bans.json", "clients.json", "lookups.json", "alerts.json"] {
            assert_eq!(weir.writes(file, "error"), 0.0);
        }
        // A request waits for no counter: what the control plane could not take is counted as
        // dropped.
        let dropped = weir.metric("waf_events_dropped_total{kind=\"request\"}");
        let dropped = dropped.expect("the series") as u64;
        weir.stop();
        let clients = weir.state_file("clients.json").expect("clients.json");
        let clients = clients["clients"].as_array().expect("a list");
        let passed = clients
            .iter()
            .filter(|row| {
                row["client"]
                    .as_str()
                    .is_some_and(|client| client.starts_with("10."))
            })
            .filter_map(|row| row["passed"].as_u64());
        assert_eq!(passed.clone().count(), known_clients);
        assert_eq!(
            passed.sum::<u64>(),
            (known_clients * 10 + times.len()) as u64,
            "each request counted once"
        );
        let bans = weir.state_file("bans.json").expect("bans.json");
        assert_eq!(bans["bans"].as_array().map(Vec::len), Some(BANS));
        let lookups = weir.state_file("lookups.json").expect("lookups.json");
        assert_eq!(lookups["lookups"].as_array().map(Vec::len), Some(LOOKUPS));
        let alerts = weir.state_file("alerts.json").expect("alerts.json");
        let counters = alerts["counters"].as_array().expect("a list");
        assert!(counters.len() <= COUNTERS, "{}", counters.len());
        let counted = counters
            .iter()
            .filter(|counter| {
                counter["of"]
                    .as_str()
                    .is_some_and(|client| client.starts_with("10."))
            })
            .filter_map(|counter| {
                let hour = &counter["requests"]["hour"];
                Some(hour["current"].as_u64()? + hour["previous"].as_u64()?)
            });
        assert_eq!(counted.clone().count(), known_clients);
        assert_eq!(
            counted.sum::<u64>() + dropped,
            (known_clients * 10 + times.len()) as u64,
            "each request in its counter"
        );
    }
}

/// One entry of 10,000 is lifted by hand and another taken out for a new one, while the file is
/// written all the time.
#[track_caller]
fn edit_of_full_file(weir: &Weir) {
    let path = weir.state_path("bans.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).expect("it")).expect("JSON");
    file["bans"][7]["lifted"] = json!(from_now(0));
    file["bans"][8] = json!({"netblock": "192.0.2.0/24", "ban_expires": "permanent"});
    let aside = weir.state_path("edited");
    fs::write(&aside, pretty(&file)).expect("writes");
    fs::rename(&aside, &path).expect("renames");
    let saved = Instant::now();
    wait_until("the edit in force", || {
        weir.get("/a", "192.0.2.1").status == 429
    });
    println!(
        "STATE-3: an edit of {BANS} bans in force after {:.0} ms",
        milliseconds(saved.elapsed())
    );
    for number in [7, 8] {
        let active = weir.admin(
            "GET",
            &format!("/_waf/bans?active=true&ip={}", banned(number)),
            None,
        );
        assert_eq!(active.json()["bans"], json!([]), "{number}");
    }
}

#[track_caller]
fn full_state(clients: usize) -> StateDir {
    let state = state_dir_on_disk();
    let (started, expires) = (from_now(-60), from_now(36_000));
    let bans: Vec<_> = (0..BANS)
        .map(|number| {
            let netblock = banned(number);
            json!({"netblock": netblock, "client": netblock, "ban_started": started, "ban_expires": expires, "cause": "rate_limit",
                "reason": "more than 1000 requests per minute",
                "notes": {"request": {"method": "GET", "host": "example.org", "path": "/a", "user_agent": "x", "request_id": "y"},
                    "netblock_requests": 1043, "limit": "minute", "limit_value": 1000, "limit_percent": 100}})
        })
        .collect();
    let none = json!({"start": "1970-01-01T00:00:00Z", "current": 0, "previous": 0});
    // In the bucket of the day, or of the hour, in which the test runs.
    let ten = json!({"start": from_now(0), "current": 10, "previous": 0});
    let seen = from_now(-1);
    let counters: Vec<_> = (0..clients)
        .map(|number| {
            json!({"scope": "client", "of": known(number),
                "requests": {"minute": none, "hour": ten}, "bytes": {"minute": none, "hour": none}})
        })
        .collect();
    let clients: Vec<_> = (0..clients)
        .map(|number| {
            json!({"client": known(number), "first_seen": started, "last_seen": seen, "passed": 10, "refused": 0,
                "requests": {"minute": none, "hour": none, "day": ten}, "bytes": {"minute": none, "hour": none, "day": none}})
        })
        .collect();
    let lookups: Vec<_> = (0..LOOKUPS)
        .map(|number| json!({"client": known(number), "answered": seen, "country": "DE", "asn": "AS64496", "as_name": "Example"}))
        .collect();
    for (file, list, entries) in [
        ("bans.json", "bans", bans),
        ("clients.json", "clients", clients),
        ("lookups.json", "lookups", lookups),
    ] {
        let text = pretty(&json!({"version": 1, list: entries}));
        fs::write(state.path().join(file), text).expect("writes");
    }
    let text = pretty(&json!({"version": 1, "counters": counters, "cooldowns": [], "alerts": []}));
    fs::write(state.path().join("alerts.json"), text).expect("writes");
    state
}

fn banned(number: usize) -> String {
    format!("100.{}.{}.1", 64 + number / 256, number % 256)
}

fn known(number: usize) -> String {
    format!("10.{}.{}.1", number / 256, number % 256)
}
