//! Anomalies, watches and alerts of the real binary (ALERT), alerts.json across a restart, and what
//! stops the start.

use serde_json::{Value, json};

use crate::support::application::{After, Application};
use crate::support::raw_client::{get, request, try_exchange};
use crate::support::weir::{Weir, state_dir};
use crate::support::{wait_for, wait_until};

#[track_caller]
fn of_kind(weir: &Weir, kind: &str) -> Vec<Value> {
    let lines = weir.log_lines().into_iter();
    lines
        .filter(|line| line["event"] == "alert" && line["kind"] == kind)
        .collect()
}

#[track_caller]
fn wait_for_alert(weir: &Weir, kind: &str) -> Value {
    wait_for(&format!("an alert {kind}"), || of_kind(weir, kind).pop())
}

#[track_caller]
fn alerts_total(weir: &Weir, kind: &str) -> f64 {
    let series = format!("waf_alerts_total{{kind=\"{kind}\"}}");
    weir.metric(&series).expect("the series")
}

/// ALERT-1, ALERT-2, ALERT-4: one client over its threshold is one line, one count and one entry of
/// alerts.json; nothing is refused for it, and the cooldown outlives a restart.
#[test]
fn a_client_over_its_threshold_is_told_once() {
    let application = Application::ok();
    let state = state_dir();
    let settings = [("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "5")];
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    for _ in 0..8 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    for _ in 0..5 {
        weir.get("/a", "203.0.113.8").expect(200);
    }
    let alert = wait_for_alert(&weir, "anomaly");
    for (member, value) in [
        ("scope", json!("client")),
        ("of", json!("203.0.113.7")),
        ("threshold", json!("requests_per_hour")),
        ("limit", json!(5)),
        ("count", json!(6)),
    ] {
        assert_eq!(alert[member], value, "{alert}");
    }
    assert_eq!(alerts_total(&weir, "anomaly"), 1.0);
    weir.stop();
    assert_eq!(of_kind(&weir, "anomaly").len(), 1);
    let file = weir.state_file("alerts.json").expect("alerts.json");
    let cooldowns = file["cooldowns"].as_array().expect("cooldowns");
    assert_eq!(cooldowns.len(), 1, "{file:#}");
    assert_eq!(cooldowns[0]["of"], "203.0.113.7");
    // Unless the clock hour has just ended, and took what was held back with it.
    let held_back = cooldowns[0]["held_back"]["requests_per_hour"].as_u64();
    assert!([Some(2), None].contains(&held_back), "{file:#}");
    assert!(
        file["alerts"]
            .as_array()
            .expect("alerts")
            .iter()
            .any(|kept| kept["count"] == 6)
    );
    let counters = file["counters"].as_array().expect("counters");
    let counted = |of: &str| {
        let counter = counters.iter().find(|counter| counter["of"] == of);
        counter.and_then(|counter| counter["requests"]["hour"]["current"].as_u64())
    };
    assert_eq!(
        (counted("203.0.113.7"), counted("203.0.113.8")),
        (Some(8), Some(5))
    );

    let mut again = Weir::start_at(application.address(), &state, &settings);
    again.get("/a", "203.0.113.7");
    again.get("/a", "203.0.113.8");
    let alert = wait_for_alert(&again, "anomaly");
    assert_eq!(
        alert["of"], "203.0.113.8",
        "the other is in its cooldown: {alert}"
    );
    again.stop();
    assert_eq!(of_kind(&again, "anomaly").len(), 1);
    let file = again.state_file("alerts.json").expect("alerts.json");
    let kept = file["alerts"].as_array().expect("alerts");
    assert!(
        kept.iter().filter(|kept| kept["kind"] == "anomaly").count() == 2,
        "{file:#}"
    );
}

/// ALERT-1: every request but the health check counts: passed, exempt, allow-listed, denied,
/// banned, over a limit, too large, unauthorized, not found, failed, dropped unanswered.
#[test]
fn every_request_but_the_health_check_counts() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        if exchange.request.target == "/none" {
            return After::Close;
        }
        exchange.answer(200, &[], b"ok");
        After::KeepAlive
    });
    let weir = Weir::start(
        &application,
        &[
            ("WAF_ANOMALY_TOTAL_REQUESTS_PER_HOUR", "16"),
            ("WAF_EXEMPT_PATHS", "/static"),
            ("WAF_ALLOW_NETS", "192.0.2.1"),
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_RATE_LIMIT_PER_MINUTE", "3"),
            ("WAF_MAX_BODY_SIZE", "10"),
            ("WAF_BAN_RESPONSE", "drop"),
        ],
    );
    let dropped = |client: &str| {
        let answer = try_exchange(weir.address(), &get("/a", &[("X-Forwarded-For", client)]));
        assert!(answer.is_err(), "{answer:?}");
    };
    for _ in 0..20 {
        weir.get("/_waf/health", "203.0.113.7").expect(200);
    }
    for (path, client, status) in [
        ("/a", "203.0.113.7", 200),
        ("/static/a", "203.0.113.7", 200),
        ("/a", "192.0.2.1", 200),
        ("/_waf/bans", "192.0.2.1", 401),
        ("/_waf/none", "192.0.2.1", 404),
        ("/none", "192.0.2.1", 502),
    ] {
        assert_eq!(weir.get(path, client).status, status, "{path}");
    }
    dropped("198.51.100.7");
    let large = [("X-Forwarded-For", "203.0.114.7")];
    assert_eq!(
        weir.send(&request("POST", "/up", &large, Some(&[b'x'; 11])))
            .status,
        413
    );
    for _ in 0..3 {
        weir.get("/a", "203.0.115.7");
    }
    // Breaks the limit, and is banned with its netblock once that is published (BAN-8).
    dropped("203.0.115.7");
    weir.wait_for_process_log(&["ban made"]);
    for _ in 0..4 {
        dropped("203.0.115.8");
    }
    assert!(of_kind(&weir, "anomaly").is_empty(), "sixteen so far");
    weir.lines_of("/a", 11);
    assert!(
        of_kind(&weir, "anomaly").is_empty(),
        "sixteen are not more than sixteen"
    );
    weir.get("/last", "192.0.2.1");
    let alert = wait_for_alert(&weir, "anomaly");
    assert_eq!(
        (&alert["scope"], &alert["count"]),
        (&json!("total"), &json!(17)),
        "{alert}"
    );
    assert!(alert.get("of").is_none());
}

/// ALERT-1: bytes count both ways, for a netblock of clients together.
#[test]
fn bytes_of_a_netblock_are_counted() {
    let application = Application::echo();
    let weir = Weir::start(&application, &[("WAF_ANOMALY_NET_BYTES_PER_HOUR", "1000")]);
    let post = |client: &str, size: usize| {
        let body = vec![b'x'; size];
        let answer = weir.send(&request(
            "POST",
            "/up",
            &[("X-Forwarded-For", client)],
            Some(&body),
        ));
        assert_eq!(answer.status, 200);
        answer.body.len()
    };
    let mut carried = 0;
    for last in 1..=4 {
        carried += 200 + post(&format!("203.0.113.{last}"), 200);
    }
    assert!(carried > 1000, "{carried}");
    let alert = wait_for_alert(&weir, "anomaly");
    assert_eq!(alert["scope"], "net");
    assert_eq!(alert["of"], "203.0.113.0/24");
    assert_eq!(alert["threshold"], "bytes_per_hour");
    assert!(alert["count"].as_u64() > Some(1000), "{alert}");
}

/// ALERT-3: a watched netblock has its own alert, and its clients are marked in the log.
#[test]
fn a_watched_netblock_is_told_and_marked() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_WATCH_NETS", "office=203.0.113.0/24,2001:db8::/32"),
            ("WAF_WATCH_REQUESTS_PER_MINUTE", "2"),
        ],
    );
    for last in 1..=3 {
        weir.get("/office", &format!("203.0.113.{last}"));
    }
    weir.get("/six", "2001:db8::1");
    weir.get("/other", "198.51.100.7");
    let alert = wait_for_alert(&weir, "watch");
    assert_eq!(alert["watch"], "office");
    assert_eq!(alert["of"], "203.0.113.0/24");
    assert_eq!(alert["limit"], 2);
    assert_eq!(alerts_total(&weir, "watch"), 1.0);
    assert_eq!(alerts_total(&weir, "anomaly"), 0.0);
    for line in weir.lines_of("/office", 3) {
        assert_eq!(line["client_group"], "watch:office");
    }
    assert_eq!(weir.line_of("/six")["client_group"], "watch:2001:db8::/32");
    assert_eq!(weir.line_of("/other")["client_group"], "default");
}

/// ALERT-1, METRIC: with lookups on, requests count for the country and the AS number of their
/// client: exactly, 64512 as unknown, and an AS number over its threshold is an alert.
#[test]
fn places_are_counted_where_they_are_known() {
    let application = Application::ok();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let files = format!("{fixtures}/country.mmdb,{fixtures}/asn.mmdb");
    let weir = Weir::start(
        &application,
        &[
            ("WAF_LOOKUP_SOURCE", "file"),
            ("WAF_LOOKUP_DB_PATH", &files),
            ("WAF_ANOMALY_ASN_REQUESTS_PER_HOUR", "3"),
            ("WAF_DENY_COUNTRIES", "SE"),
        ],
    );
    for (client, requests) in [
        ("81.2.69.1", 2),
        ("81.2.69.2", 2),
        // Refused, and counted all the same.
        ("89.160.20.7", 2),
        // AS64512 in the file.
        ("2a02:d0c0::1", 3),
        // An AS number without a country.
        ("67.43.156.1", 5),
        ("8.8.8.8", 1),
    ] {
        for _ in 0..requests {
            weir.get("/a", client);
        }
    }
    let country = |code: &str| {
        let series = format!("waf_requests_by_country_total{{country=\"{code}\"}}");
        weir.metric(&series)
    };
    let asn = |asn: &str| weir.metric(&format!("waf_requests_by_asn_total{{asn=\"{asn}\"}}"));
    // Each worker adds its own on its next tick.
    wait_until("all of them", || {
        [country("GB"), country("DE"), country("SE")] == [Some(4.0), Some(3.0), Some(2.0)]
            && country("unknown") >= Some(6.0)
            && asn("unknown") >= Some(9.0)
    });
    assert_eq!(
        [
            country("GB"),
            country("DE"),
            country("SE"),
            country("other")
        ],
        [Some(4.0), Some(3.0), Some(2.0), None]
    );
    assert_eq!(
        [
            asn("AS20712"),
            asn("AS29518"),
            asn("AS64512"),
            asn("AS35908")
        ],
        [Some(4.0), Some(2.0), None, None]
    );
    // Three of AS64512, five without a country, one that no file knows; and those who read the
    // metrics.
    assert!(asn("unknown") >= Some(9.0));
    let alert = wait_for_alert(&weir, "anomaly");
    assert_eq!(
        (&alert["scope"], &alert["of"]),
        (&json!("asn"), &json!("AS20712"))
    );
    assert_eq!(alerts_total(&weir, "anomaly"), 1.0);
}

/// ALERT-1: with every threshold off nothing is counted.
#[test]
fn off_is_off() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[("WAF_WATCH_NETS", "203.0.113.0/24")]);
    for _ in 0..5 {
        weir.get("/a", "203.0.113.7");
    }
    weir.stop();
    let file = weir.state_file("alerts.json").expect("alerts.json");
    for list in ["counters", "cooldowns", "alerts"] {
        assert_eq!(file[list], json!([]), "{file}");
    }
}

/// ALERT-4: a ban is an alert with the broken limit and its percent, also where no request is
/// logged.
#[test]
fn a_ban_is_an_alert() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_HOUR", "2"),
            ("WAF_LOG_REQUESTS", "off"),
        ],
    );
    for _ in 0..3 {
        weir.get("/a", "203.0.113.7");
    }
    let alert = wait_for_alert(&weir, "ban");
    for (member, value) in [
        ("netblock", json!("203.0.113.0/24")),
        ("client", json!("203.0.113.7")),
        ("cause", json!("rate_limit")),
        ("limit", json!("hour")),
        ("limit_value", json!(2)),
        ("limit_percent", json!(100)),
        ("netblock_requests", json!(3)),
        ("observed", json!(false)),
    ] {
        assert_eq!(alert[member], value, "{alert}");
    }
    weir.ban("netblock", "198.51.100.0/24", "permanent");
    wait_until("the alert of the admin's ban", || {
        of_kind(&weir, "ban").len() == 2
    });
    assert_eq!(of_kind(&weir, "ban")[1]["cause"], "admin");
    assert_eq!(alerts_total(&weir, "ban"), 2.0);
    assert!(weir.request_log().is_empty());
}

/// STATE-7, ALERT-4: a state file that cannot be written is one alert, and requests go on.
#[test]
fn a_state_file_that_cannot_be_written_is_an_alert() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_STATE_WRITE_DELAY", "0s")]);
    let directory = weir.state_path("").components().as_path().to_owned();
    let file = directory.with_extension("file");
    std::fs::write(&file, "").expect("writes");
    // No directory can be made where a file stands: that fails for the administrator's account too.
    let swap = || {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        renameat_with(CWD, &directory, CWD, &file, RenameFlags::EXCHANGE).expect("swaps");
    };
    swap();
    let ban = weir.ban("netblock", "203.0.113.0/24", "1h");
    assert_eq!(ban["persisted"], false, "{ban}");
    let alert = wait_for_alert(&weir, "state_error");
    assert_eq!(alert["file"], "bans.json");
    assert!(!alert["error"].as_str().expect("a text").is_empty());
    weir.get("/a", "198.51.100.7").expect(200);
    weir.get("/a", "203.0.113.7").expect(429);
    swap();
    std::fs::remove_file(&file).expect("removes");
    weir.wait_for_bans("the ban, written after all", |bans| bans.len() == 1);
    assert_eq!(of_kind(&weir, "state_error").len(), 1, "once an outage");
}

/// STATE-3: an edit of alerts.json is taken in while the service runs, a bad one is set aside.
#[test]
fn alerts_json_is_edited_by_hand() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "2"),
            ("WAF_STATE_COUNTER_INTERVAL", "200ms"),
        ],
    );
    for _ in 0..3 {
        weir.get("/a", "203.0.113.7");
    }
    wait_for_alert(&weir, "anomaly");
    let file = wait_for("the cooldown on disk", || {
        let file = weir.state_file("alerts.json")?;
        (file["cooldowns"].as_array()?.len() == 1).then_some(file)
    });
    let mut edited = file.clone();
    edited["cooldowns"] = json!([]);
    std::fs::write(weir.state_path("alerts.json"), edited.to_string()).expect("writes");
    wait_until("the edit", || weir.edits("alerts.json", "taken") >= 1.0);
    wait_until("a second alert", || {
        weir.get("/a", "203.0.113.7");
        of_kind(&weir, "anomaly").len() == 2
    });
    std::fs::write(weir.state_path("alerts.json"), "{\"version\":1}").expect("writes");
    wait_until("the bad edit", || weir.edits("alerts.json", "bad") == 1.0);
    assert!(weir.state_path("alerts.json.bad").exists());
}

/// SETTING-2, start conditions 1, 2 and 5 of the source: each stops the start and names the
/// setting.
#[test]
fn what_stops_the_start() {
    for (settings, expected) in [
        (
            &[
                ("WAF_ANOMALY_ASN_BYTES_PER_HOUR", "1G"),
                ("WAF_LOOKUP_SOURCE", "off"),
            ][..],
            "WAF_ANOMALY_ASN_BYTES_PER_HOUR",
        ),
        (
            &[("WAF_WATCH_NETS", "office=192.0.2.0/33")],
            "WAF_WATCH_NETS",
        ),
        (&[("WAF_WATCH_NETS", "fe80::1%eth0")], "WAF_WATCH_NETS"),
        (
            &[("WAF_LOG_REQUEST_HEADERS", "no name")],
            "WAF_LOG_REQUEST_HEADERS",
        ),
        (
            &[("WAF_LOG_REQUEST_HEADERS", "hOST")],
            "WAF_LOG_REQUEST_HEADERS",
        ),
        (
            &[("WAF_LOG_REQUEST_HEADERS", "transfer-encoding")],
            "WAF_LOG_REQUEST_HEADERS",
        ),
    ] {
        let refused = Weir::refuse(&state_dir(), settings);
        assert_eq!(refused.code, Some(78), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
    let state = state_dir();
    std::fs::write(state.path().join("alerts.json"), "{\"version\":2}").expect("writes");
    let refused = Weir::refuse(&state, &[]);
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(refused.stderr.contains("unknown version 2"), "{refused:?}");
}
