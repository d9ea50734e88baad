//! Lists of netblocks in rules.json and in files beside it (RULE-1), and what the log says of them
//! (TELL-2).

use serde_json::{Value, json};

use super::{hits, save, start, wait_for_edits};
use crate::support::application::Application;
use crate::support::command::{command, ran};
use crate::support::wait_until;
use crate::support::weir::{EXEMPT, Weir, from_now, state_dir};

/// RULE-1, TELL-2, RULE-6: lists of rules.json and of files join the settings' own; the log names
/// the netblock and the list, the metrics count. In observe mode nobody is refused.
#[test]
fn lists_join_the_settings() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let state = state_dir();
        std::fs::write(
            state.path().join("drop.txt"),
            "; DROP\n198.51.100.0/24 ; SBL1\n2001:db8:5::/48\nnot one\n",
        )
        .unwrap();
        std::fs::write(
            state.path().join("rules.json"),
            r#"{"version":1,
            "allow":[{"netblock":"203.0.113.7","comment":"the monitor"}],
            "deny":[{"netblock":"203.0.113.0/24"},{"file":"drop.txt"}]}"#,
        )
        .unwrap();
        let settings = [
            ("WAF_MODE", mode),
            ("WAF_DENY_NETS", "198.51.0.0/16"),
            ("WAF_RATE_LIMIT_PER_HOUR", "1"),
        ];
        let weir = Weir::start_at(application.address(), &state, &settings);
        let warned = weir.wait_for_process_log(&[
            "lines skipped, as they are no netblocks: 1; the first: ",
            "[4]",
        ]);
        assert_eq!(warned["file"], json!(state.path().join("drop.txt")));
        let refused = if mode == "enforce" { 429 } else { 200 };
        for (client, path, status, action, list) in [
            (
                "203.0.113.7",
                "/allowed",
                200,
                "passed",
                Some(("203.0.113.7/32", "rules.json")),
            ),
            (
                "203.0.113.8",
                "/denied",
                refused,
                "denied_net",
                Some(("203.0.113.0/24", "rules.json")),
            ),
            (
                "2001:db8:5:6::1",
                "/file",
                refused,
                "denied_net",
                Some(("2001:db8:5::/48", "drop.txt")),
            ),
            (
                "198.51.101.1",
                "/setting",
                refused,
                "denied_net",
                Some(("198.51.0.0/16", "WAF_DENY_NETS")),
            ),
            (
                "192.0.2.200",
                "/admin",
                200,
                "passed",
                Some(("192.0.2.200/32", "WAF_ALLOW_NETS")),
            ),
            ("192.0.2.1", "/nobody", 200, "passed", None),
        ] {
            weir.get(path, client).expect(status);
            let line = weir.line_of(path);
            assert_eq!(line["action"], action, "{path}");
            assert_eq!(
                line["enforced"],
                mode == "enforce" || action == "passed",
                "{path}"
            );
            let expected =
                list.map(|(netblock, source)| json!({"netblock": netblock, "source": source}));
            assert_eq!(line.get("list"), expected.as_ref(), "{path}");
        }
        // Allowed: no limit counts it.
        for _ in 0..3 {
            weir.get("/again", "203.0.113.7").expect(200);
        }
        assert_eq!(hits(&weir, "rules.json", "allow"), Some(4.0));
        assert_eq!(hits(&weir, "rules.json", "deny"), Some(1.0));
        assert_eq!(hits(&weir, "drop.txt", "deny"), Some(1.0));
    }
}

/// RULE-1: a list file is read again when it is saved, for clients that are known as well; entries
/// end at their time.
#[test]
fn lists_change_while_the_service_runs() {
    let application = Application::ok();
    let state = state_dir();
    std::fs::write(state.path().join("drop.txt"), "198.51.100.0/24\n").unwrap();
    let rules = json!({"version": 1, "deny": [{"file": "drop.txt"}],
        "allow": [{"netblock": "203.0.113.9", "until": from_now(-60)}]});
    std::fs::write(state.path().join("rules.json"), rules.to_string()).unwrap();
    let weir = Weir::start_at(
        application.address(),
        &state,
        &[("WAF_RATE_LIMIT_PER_HOUR", "1"), EXEMPT],
    );
    weir.get("/one", "203.0.113.9").expect(200);
    weir.get("/two", "203.0.113.9").expect(429);
    weir.get("/exempt/a", "192.0.2.1").expect(200);
    save(state.path(), "drop.txt", "192.0.2.0/28\n");
    wait_for_edits(&weir, "taken", 1.0);
    wait_until("the client is denied", || {
        weir.get("/exempt/b", "192.0.2.1").status == 429
    });
    wait_until("the other is not", || {
        weir.get("/exempt/c", "198.51.100.1").status == 200
    });
    let soon = json!({"version": 1, "deny": [{"netblock": "192.0.2.1", "until": from_now(5)}]});
    save(state.path(), "rules.json", &soon.to_string());
    wait_for_edits(&weir, "taken", 2.0);
    wait_until("the entry ends", || {
        weir.get("/exempt/d", "192.0.2.1").status == 200
    });
    weir.wait_for_process_log(&["an entry of the rules has ended"]);
}

/// FEED-2, RULE-10: rules.json names lists as they are published, JSON and JSON lines beside texts;
/// `weir check` takes them, the log names list and netblock. A download that is cut is told with
/// its place, and the last good list holds.
#[test]
fn published_lists_are_named_as_they_are() {
    let application = Application::ok();
    let state = state_dir();
    let published = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/lists");
    for name in ["google.json", "spamhaus.json"] {
        let there = format!("{published}/{name}");
        std::fs::copy(there, state.path().join(name)).unwrap();
    }
    std::fs::write(
        state.path().join("rules.json"),
        r#"{"version":1,"allow":[{"file":"google.json"}],"deny":[{"file":"spamhaus.json"}]}"#,
    )
    .unwrap();
    let check = || {
        let mut check = command(state.path(), &["check"]);
        check.envs([
            ("WAF_UPSTREAM", "http://127.0.0.1:1"),
            ("WAF_LISTEN", "127.0.0.1:0"),
        ]);
        let check = check.output();
        ran(check.expect("the binary runs"))
    };
    let checked = check();
    assert_eq!(checked.code, 0, "{}", checked.err);
    let weir = Weir::start_at(application.address(), &state, &[]);
    for (client, path, status, action, netblock, source) in [
        (
            "192.0.2.33",
            "/google",
            200,
            "passed",
            "192.0.2.32/27",
            "google.json",
        ),
        (
            "192.0.2.77",
            "/spamhaus",
            429,
            "denied_net",
            "192.0.2.0/24",
            "spamhaus.json",
        ),
        (
            "203.0.113.7",
            "/last",
            429,
            "denied_net",
            "203.0.113.0/24",
            "spamhaus.json",
        ),
    ] {
        weir.get(path, client).expect(status);
        let line = weir.line_of(path);
        assert_eq!(line["action"], action, "{path}");
        assert_eq!(
            line["list"],
            json!({"netblock": netblock, "source": source})
        );
    }
    let cut = "{\"cidr\":\"192.0.2.0/24\"}\n{\"cidr\":\"198.51.10";
    save(state.path(), "spamhaus.json", cut);
    let place = "spamhaus.json has a fault in line 2, column 18, at \\\"/cidr\\\"";
    weir.wait_for_process_log(&[place, "its last good 3 netblocks stay"]);
    weir.get("/cut", "203.0.113.7").expect(429);
    let checked = check();
    assert!(
        checked.err.contains("spamhaus.json has a fault in line 2"),
        "{}",
        checked.err
    );
}

/// CONN-6: whom rules.json denies has its WebSockets and its connections treated as a banned one;
/// the health check stays for everybody.
#[test]
fn a_denied_client_still_has_the_health_check() {
    let application = Application::ok();
    let rules = r#"{"version":1,"deny":[{"netblock":"0.0.0.0/0","force":true}]}"#;
    let (weir, _state) = start(&application, rules, &[]);
    weir.wait_for_process_log(&["deny has 0.0.0.0/0, which is every client"]);
    weir.get("/_waf/health", "203.0.113.7").expect(200);
    weir.get("/a", "203.0.113.7").expect(429);
}

/// ALIVE-5, RULE-1: what covers every client is told of the file that has it.
#[test]
fn what_covers_everybody_is_told_of_its_file() {
    let application = Application::ok();
    for (rules, list, file) in [
        (
            r#"{"version":1,"allow":[{"netblock":"::/0","force":true},{"file":"all.txt"}]}"#,
            "192.0.2.1\n",
            "rules.json",
        ),
        (
            r#"{"version":1,"allow":[{"file":"all.txt","force":true}]}"#,
            "192.0.2.1\n::/0\n",
            "all.txt",
        ),
    ] {
        let state = state_dir();
        std::fs::write(state.path().join("rules.json"), rules).unwrap();
        std::fs::write(state.path().join("all.txt"), list).unwrap();
        let weir = Weir::start_at(application.address(), &state, &[]);
        let warned = weir.wait_for_process_log(&["allow has ::/0, which is every client"]);
        assert_eq!(warned["file"], json!(state.path().join(file)));
    }
}

/// FEED-5, ALIVE-5: a list file of two halves of the Internet covers everybody as one entry of the
/// whole does: at a start nothing of it is in force, while the service runs the last good one stays
/// with an alert, and only `"force": true` takes it.
#[test]
fn two_halves_of_the_internet_are_everybody() {
    let application = Application::ok();
    let halves = "0.0.0.0/1\n128.0.0.0/1\n";
    let rules = |force: &str| format!(r#"{{"version":1,"deny":[{{"file":"all.txt"{force}}}]}}"#);
    let why = "all.txt has more than half of all IPv4 addresses";
    let state = state_dir();
    std::fs::write(state.path().join("all.txt"), halves).unwrap();
    std::fs::write(state.path().join("rules.json"), rules("")).unwrap();
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    weir.wait_for_process_log(&[why, "nothing of it is in force"]);
    weir.get("/a", "203.0.113.7").expect(200);
    save(state.path(), "all.txt", "203.0.113.0/24\n");
    wait_until("the good one", || {
        weir.get("/a", "203.0.113.7").status == 429
    });
    save(state.path(), "all.txt", halves);
    weir.wait_for_process_log(&[why, "its last good 1 netblocks stay"]);
    let is_alert = |line: &Value| line["event"] == "alert" && line["kind"] == "file_error";
    wait_until("the alert", || weir.log_lines().iter().any(is_alert));
    weir.get("/a", "203.0.113.7").expect(429);
    weir.get("/a", "198.51.100.7").expect(200);
    weir.stop();
    std::fs::write(state.path().join("rules.json"), rules(r#","force":true"#)).unwrap();
    let weir = Weir::start_at(application.address(), &state, &[]);
    weir.get("/a", "198.51.100.7").expect(429);
}

/// RULE-10: a list that a download has spoiled does not keep the service down: neither while it
/// runs, nor at a reload, nor over a restart. The last good one holds, with a line and
/// an alert, and the rest of rules.json is taken.
#[test]
fn a_spoiled_list_stops_nothing() {
    let application = Application::ok();
    let state = state_dir();
    let rules = |limit: u32| {
        format!(
            r#"{{"version":1,"deny":[{{"file":"drop.txt"}},{{"file":"never.txt"}}],
            "limits":[{{"name":"all","per_day":{limit},"on_limit":"refuse"}}]}}"#
        )
    };
    std::fs::write(state.path().join("drop.txt"), "203.0.113.0/24\n").unwrap();
    std::fs::write(state.path().join("rules.json"), rules(1)).unwrap();
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    weir.wait_for_process_log(&["never.txt cannot be read", "nothing of it is in force"]);
    let alerts = |weir: &Weir, list: &str| {
        let lines = weir.log_lines();
        let of_list =
            |line: &&Value| line["kind"] == "file_error" && line.to_string().contains(list);
        lines.iter().filter(of_list).count()
    };
    wait_until("the alert", || alerts(&weir, "never.txt") == 1);
    weir.get("/a", "203.0.113.7").expect(429);
    save(state.path(), "drop.txt", "");
    weir.wait_for_process_log(&["drop.txt has no netblock", "its last good 1 netblocks stay"]);
    wait_until("the alert", || alerts(&weir, "drop.txt") == 1);
    weir.get("/a", "203.0.113.7").expect(429);

    save(state.path(), "rules.json", &rules(2));
    weir.control("POST", "/v1/reload", None).expect(200);
    for expected in [200, 200, 429] {
        weir.get("/a", "198.51.100.7").expect(expected);
    }
    weir.get("/a", "203.0.113.7").expect(429);

    weir.stop();
    std::fs::remove_file(state.path().join("drop.txt")).unwrap();
    let weir = Weir::start_at(application.address(), &state, &[]);
    weir.wait_for_process_log(&["drop.txt cannot be read", "its last good 1 netblocks stay"]);
    weir.get("/a", "203.0.113.7").expect(429);
    weir.get("/a", "192.0.2.9").expect(200);
    let check = command(state.path(), &["check"])
        .env("WAF_UPSTREAM", "http://127.0.0.1:1")
        .output();
    let checked = ran(check.expect("the binary runs"));
    assert!(
        checked.err.contains("drop.txt cannot be read"),
        "{}",
        checked.err
    );
    save(state.path(), "drop.txt", "203.0.113.0/25\n");
    wait_until("the mended list", || {
        weir.get("/a", "203.0.113.200").status == 200
    });
}
