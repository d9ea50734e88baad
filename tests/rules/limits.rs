//! Further limits for what a rule matches (RULE-2).

use serde_json::{Value, json};

use super::{ban_of, hits, save, send, start, statuses, wait_for_edits};
use crate::support::application::Application;
use crate::support::weir::Weir;

const LOGIN: &str = r#"{"version":1,"limits":[
    {"name":"login","methods":["POST"],"path":"/login","per_minute":2,"per_hour":30}]}"#;

/// CONTROL-5: `limit_hit` of an explanation is that of the log: of a limit of a rule its name, and
/// not that of its window, which is the name of another limit.
#[test]
fn an_explanation_names_the_limit_as_the_log_does() {
    let rules = r#"{"version":1,"limits":[
        {"name":"search","path":"/search","per_hour":1,"on_limit":"refuse"}]}"#;
    let application = Application::ok();
    let (weir, _state) = start(&application, rules, &[]);
    weir.get("/search", "203.0.113.7").expect(200);
    let target = "/v1/explain?address=203.0.113.7&path=%2Fsearch";
    let now = weir.control("GET", target, None).json()["now"].clone();
    weir.get("/search", "203.0.113.7").expect(429);
    let lines = weir.lines_of("/search", 2);
    let refused = lines.iter().find(|line| line["status"] == 429);
    let refused = refused.expect("the second one is refused");
    assert_eq!(refused["limit_hit"], "search");
    for member in ["action", "limit_hit"] {
        assert_eq!(now[member], refused[member], "{member}");
    }
}

/// RULE-2, TELL-2: a limit that bans: whoever exceeds it is banned with its netblock, log, ban and
/// metrics name the rule. In observe mode the same is told, and nobody is refused.
#[test]
fn a_limit_of_a_rule_bans() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let (weir, _state) = start(&application, LOGIN, &[("WAF_MODE", mode)]);
        let refused = if mode == "enforce" { 429 } else { 200 };
        let post = |path: &str| send(&weir, "POST", path, "203.0.113.7", None);
        for path in ["/login", "//login/2fa"] {
            post(path).expect(200);
        }
        for path in ["/loginx", "/other"] {
            post(path).expect(200);
        }
        weir.get("/login", "203.0.113.7").expect(200);
        let answer = post("/x/../%6cogin").expect(refused);
        if mode == "enforce" {
            assert_eq!(answer.header("retry-after"), Some("3600"), "the ban's");
        }
        let ban = ban_of(&weir, "rule_limit");
        assert_eq!(ban["netblock"], "203.0.113.0/24");
        assert_eq!(
            ban["reason"],
            "more than 2 requests that the limit login counts per minute"
        );
        assert_eq!(
            ban["notes"]["rule"],
            json!({"name": "login", "kind": "limit", "window": "minute"})
        );
        assert_eq!(ban["notes"]["limit_value"], 2);
        assert_eq!(ban["observed"], mode == "observe");
        let line = weir.line_of("/x/../%6cogin");
        assert_eq!(
            (&line["action"], &line["limit_hit"]),
            (&json!("rate_limited"), &json!("login"))
        );
        assert_eq!(line["rule"], json!({"name": "login", "kind": "limit"}));
        assert_eq!(line["enforced"], mode == "enforce");
        assert_eq!(hits(&weir, "login", "limit"), Some(1.0));
        weir.get("/banned", "203.0.113.8").expect(refused);
        assert_eq!(weir.line_of("/banned")["action"], "banned");
        assert_eq!(
            weir.metric("waf_bans_total{cause=\"rule_limit\"}"),
            Some(1.0)
        );
    }
}

/// RULE-2: a limit that refuses answers 429 with the time to wait, bans nobody and does not count
/// what it refused; a host chooses, whatever its case and port.
#[test]
fn a_limit_of_a_rule_can_refuse() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let rules = r#"{"version":1,"limits":[
            {"name":"api","host":"API.example.org","path":"/v1","exact":true,"per_day":2,"on_limit":"refuse"}]}"#;
        let (weir, _state) = start(&application, rules, &[("WAF_MODE", mode)]);
        let get = |path: &str, host: &str| send(&weir, "GET", path, "203.0.113.7", Some(host));
        for (path, host) in [
            ("/v1", "api.example.org"),
            ("/v1", "api.EXAMPLE.org:8080"),
            ("/v1/x", "api.example.org"),
            ("/v1", "example.org"),
        ] {
            get(path, host).expect(200);
        }
        for number in 0..3 {
            // Each has a path of its own in the log, and the same when it is resolved.
            let path = format!("/{number}/../v1");
            let answer = get(&path, "api.example.org");
            if mode == "enforce" {
                let seconds: u64 = answer
                    .expect(429)
                    .header("retry-after")
                    .unwrap()
                    .parse()
                    .unwrap();
                assert!((1..=2 * 86_400).contains(&seconds), "{seconds}");
            } else {
                answer.expect(200);
            }
            let line = weir.line_of(&path);
            assert_eq!(line["limit_hit"], "api");
            assert_eq!(line["enforced"], mode == "enforce");
        }
        send(&weir, "GET", "/v1", "203.0.113.8", Some("api.example.org")).expect(200);
        assert_eq!(weir.bans(), Vec::<Value>::new());
        assert_eq!(hits(&weir, "api", "limit"), Some(3.0));
    }
}

/// RULE-2: what a client has counted stays when an edit leaves the rule's name, and a changed
/// number holds from then on, for known clients as well.
#[test]
fn counts_outlive_an_edit() {
    let application = Application::ok();
    let rule = |limit: u32| {
        format!(
            r#"{{"version":1,"limits":[{{"name":"a","path":"/a","per_day":{limit},"on_limit":"refuse"}}]}}"#
        )
    };
    let (weir, state) = start(&application, &rule(2), &[]);
    for _ in 0..2 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    weir.get("/a", "203.0.113.7").expect(429);
    save(state.path(), "rules.json", &rule(3));
    wait_for_edits(&weir, "taken", 1.0);
    weir.get("/a", "203.0.113.7").expect(200);
    weir.get("/a", "203.0.113.7").expect(429);
    save(state.path(), "rules.json", r#"{"version":1}"#);
    wait_for_edits(&weir, "taken", 2.0);
    weir.get("/a", "203.0.113.7").expect(200);
}

/// RULE-2, LIMIT-6: with a ledger full of bans that may not be dropped the answer is 429.
#[test]
fn without_a_ban_a_rule_answers_429() {
    let application = Application::ok();
    let state = crate::support::weir::state_dir();
    std::fs::write(state.path().join("rules.json"), LOGIN).unwrap();
    let ban =
        json!([{"netblock": "198.51.100.0/24", "ban_expires": "permanent", "cause": "admin"}]);
    crate::support::weir::write_bans(state.path(), &ban);
    let settings = [("WAF_MAX_BANS", "1"), ("WAF_BAN_RESPONSE", "403")];
    let weir = crate::support::weir::Weir::start_at(application.address(), &state, &settings);
    let post = || send(&weir, "POST", "/login", "203.0.113.7", None).status;
    assert_eq!([post(), post(), post(), post()], [200, 200, 429, 429]);
    assert_eq!(weir.bans().len(), 1);
}

/// RULE-2, RULE-4, STATE-1: what a rule has counted outlives a restart, so that neither a limit nor
/// a jail can be dodged by one; clients.json shows it.
#[test]
fn counts_of_rules_survive_a_restart() {
    let application = statuses();
    let rules = r#"{"version":1,
        "limits":[{"name":"login","path":"/login","per_day":3}],
        "jails":[{"name":"not-found","statuses":[404],"per_day":3}]}"#;
    let (mut weir, state) = start(&application, rules, &[]);
    for _ in 0..3 {
        weir.get("/login", "203.0.113.7").expect(200);
        weir.get("/404", "198.51.100.7").expect(404);
    }
    weir.stop();
    let clients = weir.state_file("clients.json").unwrap();
    let of = |client: &str| {
        let clients = clients["clients"].as_array().unwrap();
        let row = clients.iter().find(|row| row["client"] == client).unwrap();
        let counts = row["rules"].as_array().unwrap();
        assert_eq!(counts.len(), 1);
        let of_window = |bucket: &str| counts[0][bucket].as_u64().unwrap();
        let counted = of_window("current") + of_window("previous");
        (
            counts[0]["rule"].clone(),
            counts[0]["window"].clone(),
            counted,
        )
    };
    assert_eq!(of("203.0.113.7"), (json!("login"), json!("day"), 3));
    assert_eq!(of("198.51.100.7"), (json!("not-found"), json!("day"), 3));
    let weir = Weir::start_at(application.address(), &state, &[]);
    weir.get("/login", "203.0.113.7").expect(429);
    // The answer that is one too many still goes out (RULE-4).
    weir.get("/404", "198.51.100.7").expect(404);
    ban_of(&weir, "jail");
    weir.get("/", "198.51.100.7").expect(429);
}
