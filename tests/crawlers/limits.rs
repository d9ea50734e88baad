//! Limits, jails and traps of verified crawlers, and bans beside them (CRAWL-4, CRAWL-5, SHARE-3).

use serde_json::{Value, json};

use super::{
    CRAWLER, GOOGLEBOT, NEIGHBOUR, OTHER_CRAWLER, counted, dns, get, googlebot, start, start_in,
    statuses, verify,
};
use crate::schemas::{fits, schema, validator};
use crate::support::application::Application;
use crate::support::command::run;
use crate::support::raw_client::request;
use crate::support::wait_until;
use crate::support::weir::Weir;

/// The netblocks that are banned, once there are so many.
#[track_caller]
fn banned(weir: &Weir, count: usize) -> Vec<String> {
    wait_until("the bans", || weir.bans().len() >= count);
    let bans = weir.bans();
    let netblocks = bans
        .iter()
        .map(|ban| ban["netblock"].as_str().expect("one"));
    netblocks.map(str::to_owned).collect()
}

/// Alerts of crawlers.
fn alerts(weir: &Weir) -> Vec<Value> {
    let lines = weir.log_lines().into_iter();
    lines
        .filter(|line| line["event"] == "alert" && line["kind"] == "crawler")
        .collect()
}

/// CRAWL-4: Googlebot, which asks for pages that are gone, keeps its index where a jail bans
/// netblocks for that. Its neighbour has its own count, and is banned alone; so is who claims to be
/// it and is not. One alert a day tells of the jail.
#[test]
fn a_crawler_in_a_jail_keeps_its_index() {
    for mode in ["enforce", "observe"] {
        let (application, dns) = (statuses(), dns());
        let rules = json!({"jails": [
            {"name": "not-found", "statuses": [404], "per_hour": 5, "ban": "netblock"}]});
        let (weir, _state) = start(&application, &dns, rules, &[("WAF_MODE", mode)]);
        verify(&weir, CRAWLER);
        for number in 0..20 {
            get(&weir, &format!("/{number}/404"), CRAWLER, GOOGLEBOT).expect(404);
            get(&weir, &format!("/{number}/200"), CRAWLER, GOOGLEBOT).expect(200);
        }
        assert_eq!(weir.bans(), Vec::<Value>::new());
        wait_until("the alert", || !alerts(&weir).is_empty());
        let alert = alerts(&weir).remove(0);
        assert_eq!(
            (&alert["name"], &alert["client"]),
            (&json!("googlebot"), &json!(CRAWLER))
        );
        assert_eq!(
            (&alert["rule"], &alert["rule_kind"]),
            (&json!("not-found"), &json!("jail"))
        );
        assert_eq!(weir.metric("waf_alerts_total{kind=\"crawler\"}"), Some(1.0));
        // The neighbour is somebody else.
        for number in 0..5 {
            get(&weir, &format!("/n{number}/404"), NEIGHBOUR, "curl/8").expect(404);
        }
        assert_eq!(weir.bans(), Vec::<Value>::new());
        get(&weir, "/last/404", NEIGHBOUR, "curl/8").expect(404);
        assert_eq!(banned(&weir, 1), [format!("{NEIGHBOUR}/32")]);
        // In a netblock without a crawler the ban is what the jail says; a fake is nobody.
        dns.names("66.102.9.9", &["crawl-66-249-66-1.googlebot.com"]);
        for number in 0..6 {
            get(&weir, &format!("/f{number}/404"), "66.102.9.9", GOOGLEBOT).expect(404);
        }
        assert!(banned(&weir, 2).contains(&"66.102.9.0/24".to_owned()));
        // Whatever its address does within a day, it is not banned.
        for number in 0..20 {
            get(&weir, &format!("/b{number}/404"), CRAWLER, "curl/8");
        }
        get(&weir, "/home/200", CRAWLER, GOOGLEBOT).expect(200);
        assert_eq!(weir.bans().len(), 2);
        assert_eq!(alerts(&weir).len(), 1, "once a day");
        assert_eq!(counted(&weir, "verified", "refused"), 0.0);
    }
}

/// CRAWL-4: a trap refuses a crawler and bans it not. A start takes what alerts.json keeps of it.
#[test]
fn a_crawler_in_a_trap_is_refused_and_not_banned() {
    let (application, dns) = (Application::ok(), dns());
    let rules = json!({"traps": [{"name": "hole", "paths": ["/hole"], "ban": "netblock"}]});
    let settings = [("WAF_BAN_RESPONSE", "403")];
    let (mut weir, state) = start(&application, &dns, rules.clone(), &settings);
    verify(&weir, CRAWLER);
    for _ in 0..3 {
        get(&weir, "/hole/a", CRAWLER, GOOGLEBOT).expect(429);
    }
    wait_until("the alert", || !alerts(&weir).is_empty());
    get(&weir, "/home", CRAWLER, GOOGLEBOT).expect(200);
    assert_eq!(weir.bans(), Vec::<Value>::new());
    let line = weir.lines_of("/hole/a", 3).remove(0);
    assert_eq!(
        (&line["action"], &line["crawler"]["state"]),
        (&json!("trapped"), &json!("verified"))
    );
    assert_eq!(counted(&weir, "verified", "refused"), 3.0);
    get(&weir, "/hole/a", NEIGHBOUR, "curl/8").expect(403);
    assert_eq!(banned(&weir, 1), [format!("{NEIGHBOUR}/32")]);
    weir.stop();
    let weir = start_in(&state, &application, &dns, rules, &settings);
    let kept = weir.control("GET", "/v1/alerts", None).expect(200).json();
    let is_ours = |alert: &Value| {
        alert["kind"] == "crawler" && alert["rule"] == "hole" && alert["rule_kind"] == "trap"
    };
    assert!(
        kept["alerts"]
            .as_array()
            .expect("a list")
            .iter()
            .any(is_ours),
        "{kept}"
    );
}

/// CRAWL-4: over a restart no ban covers an address that was verified within the last day, though
/// nobody has proven anything to the new process.
#[test]
fn a_crawler_of_the_last_day_outlives_a_restart() {
    let (application, dns) = (Application::ok(), dns());
    let rules = json!({"limits": [
        {"name": "page", "match": {"paths": ["/page"]}, "per_day": 2, "on_limit": "ban"}]});
    let (mut weir, state) = start(&application, &dns, rules.clone(), &[]);
    verify(&weir, CRAWLER);
    weir.stop();
    let kept: Value =
        serde_json::from_slice(&std::fs::read(state.path().join("shared.json")).expect("the file"))
            .expect("JSON");
    fits(&validator(&schema("shared")), "shared.json", &kept);
    assert_eq!(kept["crawlers"][0]["client"], CRAWLER);
    let weir = start_in(&state, &application, &dns, rules, &[]);
    for client in [CRAWLER, NEIGHBOUR] {
        for _ in 0..4 {
            get(&weir, "/page", client, "curl/8");
        }
    }
    assert_eq!(banned(&weir, 1), [format!("{NEIGHBOUR}/32")]);
}

/// CRAWL-4: an address that DNS confirmed after its only request, which was unproven, is a verified
/// crawler's of the last day: a ban beside it covers the offender alone.
#[test]
fn a_crawler_that_came_once_is_spared() {
    let (application, dns) = (Application::ok(), dns());
    let rules = json!({"limits": [
        {"name": "page", "match": {"paths": ["/page"]}, "per_day": 2, "on_limit": "ban"}]});
    let (weir, state) = start(&application, &dns, rules, &[]);
    get(&weir, "/once", CRAWLER, GOOGLEBOT).expect(200);
    assert_eq!(counted(&weir, "unproven", "passed"), 1.0);
    let field = format!("User-Agent:{GOOGLEBOT}");
    wait_until("DNS to confirm it", || {
        let told = run(
            state.path(),
            &["explain", CRAWLER, "--field", &field, "--json"],
        );
        told.out.contains(r#""state": "verified""#)
    });
    for _ in 0..4 {
        get(&weir, "/page", NEIGHBOUR, "curl/8");
    }
    assert_eq!(banned(&weir, 1), [format!("{NEIGHBOUR}/32")]);
}

/// CRAWL-4: all addresses of a crawler are one client for its own limits, which refuse and never
/// ban, in observe mode on paper.
#[test]
fn a_crawler_has_limits_for_all_of_its_addresses() {
    for mode in ["enforce", "observe"] {
        let (application, dns) = (Application::ok(), dns());
        let mut crawler = googlebot();
        crawler["limits"] = json!({"per_day": 10});
        let rules = json!({"crawlers": [crawler]});
        let (weir, _state) = start(&application, &dns, rules, &[("WAF_MODE", mode)]);
        verify(&weir, CRAWLER);
        verify(&weir, OTHER_CRAWLER);
        let used = counted(&weir, "verified", "passed") as usize;
        for number in used..10 {
            let client = [CRAWLER, OTHER_CRAWLER][number % 2];
            get(&weir, "/fits", client, GOOGLEBOT).expect(200);
        }
        let expected = if mode == "enforce" { 429 } else { 200 };
        for client in [CRAWLER, OTHER_CRAWLER] {
            let answer = get(&weir, "/over", client, GOOGLEBOT).expect(expected);
            assert_eq!(answer.header("retry-after").is_some(), mode == "enforce");
        }
        let line = weir.lines_of("/over", 2).remove(0);
        assert_eq!(line["limit_hit"], "googlebot");
        assert_eq!(
            line["rule"],
            json!({"name": "googlebot", "kind": "crawler"})
        );
        assert_eq!(line["enforced"], mode == "enforce");
        assert_eq!(counted(&weir, "verified", "refused"), 2.0);
        assert_eq!(weir.bans(), Vec::<Value>::new());
        // Who only says so has nothing of it.
        get(&weir, "/fits", NEIGHBOUR, GOOGLEBOT).expect(200);
    }
}

/// CRAWL-4, CRAWL-5, SHARE-3: the limits of a client refuse a crawler and never ban it, those that
/// clients share do not count it.
#[test]
fn a_crawler_is_refused_by_its_limits_and_never_banned() {
    let (application, dns) = (Application::ok(), dns());
    let rules = json!({"limits": [
        {"name": "page", "path": "/page", "per_day": 2},
        {"name": "all", "match": {"paths": ["/shared"]}, "per": "all", "per_day": 1},
        {"name": "net", "match": {"paths": ["/shared"]}, "per": "netblock", "per_day": 1, "on_limit": "ban"}]});
    let settings = [
        ("WAF_RATE_LIMIT_PER_DAY", "2000"),
        ("WAF_BYTES_LIMIT_PER_DAY", "300K"),
    ];
    let (weir, _state) = start(&application, &dns, rules, &settings);
    verify(&weir, CRAWLER);
    for expected in [200, 200, 429, 429] {
        get(&weir, "/page", CRAWLER, GOOGLEBOT).expect(expected);
    }
    for _ in 0..5 {
        get(&weir, "/shared", CRAWLER, GOOGLEBOT).expect(200);
    }
    get(&weir, "/shared", "198.51.100.7", "curl/8").expect(200);
    get(&weir, "/shared", "198.51.100.7", "curl/8").expect(429);
    // The bytes of a body that passes.
    let body = vec![b'a'; 400 << 10];
    let fields = [("X-Forwarded-For", CRAWLER), ("User-Agent", GOOGLEBOT)];
    let upload = request("POST", "/upload", &fields, Some(&body));
    weir.send(&upload).expect(200);
    wait_until("the bytes", || {
        get(&weir, "/after", CRAWLER, GOOGLEBOT).status == 429
    });
    let line = weir.lines_of("/after", 1).pop().expect("a line");
    assert!(line["crawler"]["state"] == "verified", "{line}");
    assert_eq!(banned(&weir, 1), ["198.51.100.0/24"]);
}

/// CRAWL-5: rules choose verified crawlers by their name and their purpose; who only says so is not
/// meant, and cannot write himself free.
#[test]
fn rules_choose_crawlers() {
    let (application, dns) = (Application::ok(), dns());
    dns.both("40.77.167.1", "msnbot-40-77-167-1.search.msn.com");
    let rules = json!({
        "crawlers": [googlebot(),
            {"name": "bingbot", "purpose": "search", "user_agent": ["bingbot"], "verify": {"dns": ["search.msn.com"]}},
            {"name": "other", "purpose": "ai_training", "user_agent": ["otherbot"], "verify": {"dns": [".other.example"]}}],
        "exempt": [{"name": "bing", "match": {"crawler": "bingbot"}}],
        "denials": [{"name": "search", "match": {"crawler": ["search", "ai_training"], "paths": ["/private"]}, "answer": 451}],
        "limits": [{"name": "few", "match": {"paths": ["/few"]}, "per_day": 1, "on_limit": "refuse"}],
    });
    let (weir, _state) = start(&application, &dns, rules, &[]);
    verify(&weir, CRAWLER);
    get(&weir, "/private", CRAWLER, GOOGLEBOT).expect(451);
    get(&weir, "/private", NEIGHBOUR, GOOGLEBOT).expect(200);
    get(&weir, "/private", "40.77.167.1", "curl/8").expect(200);
    wait_until("the proof of bingbot", || {
        get(&weir, "/few", "40.77.167.1", "bingbot/2.0");
        get(&weir, "/few", "40.77.167.1", "bingbot/2.0").status == 200
    });
    get(&weir, "/private", "40.77.167.1", "bingbot/2.0").expect(200);
    get(&weir, "/few", "40.77.167.2", "bingbot/2.0").expect(200);
    get(&weir, "/few", "40.77.167.2", "bingbot/2.0").expect(429);
}

/// CRAWL-4: the jail that docs/migrating.md shows for fail2ban leaves Googlebot in its place, as it
/// is printed there.
#[test]
fn the_jail_of_the_document_is_safe() {
    const DOCUMENT: &str = include_str!("../../docs/migrating.md");
    let (_, behind) =
        (DOCUMENT.split_once("<!-- test: fail2ban-botsearch -->\n```json\n")).expect("the block");
    let (block, _) = behind.split_once("\n```").expect("its end");
    let rules: Value = serde_json::from_str(block).expect("JSON");
    let (application, dns) = (statuses(), dns());
    let (weir, _state) = start(&application, &dns, rules, &[]);
    verify(&weir, CRAWLER);
    for number in 0..40 {
        get(&weir, &format!("/{number}/404"), CRAWLER, GOOGLEBOT).expect(404);
    }
    get(&weir, "/home/200", CRAWLER, GOOGLEBOT).expect(200);
    for number in 0..31 {
        get(&weir, &format!("/n{number}/404"), NEIGHBOUR, "curl/8").expect(404);
    }
    assert_eq!(banned(&weir, 1), [format!("{NEIGHBOUR}/32")]);
}
