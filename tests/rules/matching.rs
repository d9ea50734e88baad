//! Rules that see who asks (MATCH).

use std::fs;

use super::{hits, save, start, statuses, wait_for_edits};
use crate::support::application::Application;
use crate::support::command::{Ran, command, ran, run};
use crate::support::geo::Geo;
use crate::support::http2::{self, Http2};
use crate::support::raw_client::{Ended, Response, request, try_exchange};
use crate::support::weir::{Weir, state_dir};

const CLIENT: &str = "203.0.113.7";
const AS64496: &str = r#"{"country_code":"DE","asn":64496,"organization_name":"Example"}"#;

#[track_caller]
fn get(weir: &Weir, target: &str, client: &str, fields: &[(&str, &str)]) -> Response {
    let mut all = vec![("X-Forwarded-For", client)];
    all.extend(fields);
    weir.send(&request("GET", target, &all, None))
}

/// MATCH-1, SHARE-1: `Host` as a field is what the application gets of it: the host of an absolute
/// target, whatever the line says.
#[test]
fn the_host_of_the_target_counts_as_the_field() {
    let rules = r#"{"version":1,
        "denials":[{"name":"evil","match":{"fields":[{"name":"host","has":"evil"}]},"answer":403}],
        "limits":[{"name":"host","match":{"paths":["/shared"]},"per":{"field":"host"},
         "per_day":2,"on_limit":"refuse"}]}"#;
    let application = Application::ok();
    let (weir, _state) = start(&application, rules, &[]);
    let ask = |target: &str, host: &str| {
        let line = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        weir.send(line.as_bytes()).status
    };
    assert_eq!(ask("http://evil.test/a", "good.test"), 403);
    assert_eq!(ask("http://good.test/a", "evil.test"), 200);
    let shared = ["a.test", "b.test", "c.test"].map(|host| ask("http://good.test/shared", host));
    assert_eq!(shared, [200, 200, 429]);
}

/// MATCH-1, MATCH-3, MATCH-6: the first denial of the file wins and answers as it says, without a
/// ban and without a count; observe mode only tells.
#[test]
fn denials_refuse_what_they_match() {
    let rules = r#"{"version":1,"denials":[
        {"name":"training","match":{"user_agent":["GPTBot"]},"answer":451},
        {"name":"facets","match":{"paths":["/search"],"query":["facet"],
         "fields":[{"name":"accept-language","is":"absent"}]},"answer":403},
        {"name":"plain_deny","match":{"exact":true,"paths":["/Off"]}}]}"#;
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let settings = [
            ("WAF_MODE", mode),
            ("WAF_DENY_RESPONSE", "404"),
            ("WAF_RATE_LIMIT_PER_HOUR", "2"),
        ];
        let (weir, _state) = start(&application, rules, &settings);
        let status = |refused: u16| if mode == "enforce" { refused } else { 200 };
        let bot = [("User-Agent", "Mozilla/5.0 (compatible; gptbot/1.2)")];
        for number in 0..5 {
            let path = format!("/bot-{number}");
            get(&weir, &path, CLIENT, &bot).expect(status(451));
            let line = weir.line_of(&path);
            assert_eq!(line["action"], "denied_rule", "{line}");
            assert_eq!(line["enforced"], mode == "enforce", "{line}");
            assert_eq!(line["rule"]["name"], "training", "{line}");
            assert_eq!(line["rule"]["kind"], "denial", "{line}");
            assert!(line.get("counts").is_none(), "not counted: {line}");
        }
        get(&weir, "/search?facet=1&facet=2", CLIENT, &[]).expect(status(403));
        get(&weir, "/%6fff", CLIENT, &[]).expect(status(404));
        let german = [("Accept-Language", "de")];
        get(&weir, "/search?facet=1", CLIENT, &german).expect(200);
        get(&weir, "/search?q=1", CLIENT, &[]).expect(200);
        assert_eq!(hits(&weir, "training", "denial"), Some(5.0));
        assert_eq!(hits(&weir, "facets", "denial"), Some(1.0));
        assert_eq!(hits(&weir, "plain_deny", "denial"), Some(1.0));
        assert_eq!(weir.bans().len(), 0);
        let action = format!("waf_requests_total{{action=\"denied_rule\",mode=\"{mode}\"}}");
        assert_eq!(weir.metric(&action), Some(7.0));
    }
}

/// MATCH-1: a denial holds however a client spells what it asks for: the names of the query as
/// ASP.NET and PHP read them, and a field that is to be there, or to have a literal, under each
/// name that CGI reads as its own. Over HTTP/2 the same.
#[test]
fn a_denial_holds_in_every_spelling() {
    let rules = r#"{"version":1,"denials":[
        {"name":"facets","match":{"paths":["/search"],"query":["facet"]},"answer":404},
        {"name":"rewrite","match":{"fields":[{"name":"x-original-url","is":"present"}]},"answer":403},
        {"name":"probe","match":{"fields":[{"name":"x-probe","has":"nuclei"}]},"answer":451}]}"#;
    let application = Application::ok();
    let (weir, _state) = start(&application, rules, &[("WAF_H2C", "on")]);
    let mut over_http2 = Http2::open(weir.address());
    let mut status = |target: &str, field: (&str, &str)| {
        let first = get(&weir, target, CLIENT, &[field]).status;
        let name = field.0.to_ascii_lowercase();
        let fields = [("x-forwarded-for", CLIENT), (&*name, field.1)];
        let second = over_http2.ask(http2::get(target, &fields)).status;
        assert_eq!(first, second, "{target} {field:?}");
        first
    };
    let plain = ("Accept", "*/*");
    for query in ["FACET", "%20facet", "+facet=1", "a&fAcet[]", "facet%00x"] {
        assert_eq!(status(&format!("/search?{query}"), plain), 404, "{query}");
    }
    assert_eq!(status("/search?facets", plain), 200);
    for name in ["X-Original-URL", "X_Original_URL", "X.Original-URL"] {
        assert_eq!(status("/", (name, "/a")), 403, "{name}");
    }
    assert_eq!(status("/", ("X_Probe", "a Nuclei")), 451);
    assert_eq!(status("/", ("XX-Probe", "a Nuclei")), 200);
}

/// LIMIT-9: who is refused by a denial is not admitted to the client table by it; who is kept there
/// has it in its history.
#[test]
fn a_denial_admits_nobody() {
    let rules = r#"{"version":1,"denials":[{"name":"bots","match":{"user_agent":["GPTBot"]}}]}"#;
    let application = Application::ok();
    let (weir, _state) = start(&application, rules, &[]);
    let bot = [("User-Agent", "GPTBot/1.2")];
    get(&weir, "/kept", CLIENT, &[]).expect(200);
    get(&weir, "/refused", CLIENT, &bot).expect(429);
    for number in 1..=5 {
        get(&weir, "/other", &format!("198.51.100.{number}"), &bot).expect(429);
    }
    let clients = weir.control("GET", "/v1/clients", None).expect(200).json();
    let clients = clients["clients"].as_array().expect("clients");
    assert_eq!(clients.len(), 1, "{clients:?}");
    assert_eq!(clients[0]["refused"], 1, "{clients:?}");
}

/// MATCH-3: `drop` ends the connection unanswered.
#[test]
fn a_denial_may_drop() {
    let rules = r#"{"version":1,"denials":[{"name":"scanners",
        "match":{"user_agent":["zgrab"]},"answer":"drop"}]}"#;
    let application = Application::ok();
    let (weir, _state) = start(&application, rules, &[]);
    let fields = [("X-Forwarded-For", CLIENT), ("User-Agent", "zgrab/0.x")];
    let sent = request("GET", "/dropped", &fields, None);
    let ended = try_exchange(weir.address(), &sent).expect_err("no answer");
    assert!(matches!(ended, Ended::Closed | Ended::Reset), "{ended:?}");
    let line = weir.line_of("/dropped");
    assert_eq!(line["action"], "denied_rule", "{line}");
    assert!(line.get("status").is_none(), "{line}");
}

/// MATCH-1: limits and jails choose by `match` as well, and count for who asks alone.
#[test]
fn limits_and_jails_choose_by_match() {
    let rules = r#"{"version":1,
        "limits":[{"name":"bots","match":{"user_agent":["bot","crawl"],"methods":["get"]},
                   "per_hour":2,"on_limit":"refuse"}],
        "jails":[{"name":"bare","match":{"fields":[{"name":"accept","is":"absent"}]},
                  "statuses":[404],"per_hour":1}]}"#;
    let application = statuses();
    let (weir, _state) = start(&application, rules, &[]);
    let bot = [("User-Agent", "A Crawler"), ("Accept", "*/*")];
    get(&weir, "/1/200", CLIENT, &bot).expect(200);
    get(&weir, "/2/200", CLIENT, &bot).expect(200);
    get(&weir, "/3/200", CLIENT, &bot).expect(429);
    assert_eq!(weir.line_of("/3/200")["limit_hit"], "bots");
    get(&weir, "/4/404", CLIENT, &[("Accept", "*/*")]).expect(404);
    get(&weir, "/5/404", CLIENT, &[("Accept", "*/*")]).expect(404);
    get(&weir, "/6/404", CLIENT, &[]).expect(404);
    get(&weir, "/7/404", CLIENT, &[]).expect(404);
    let ban = super::ban_of(&weir, "jail");
    assert_eq!(ban["netblock"], "203.0.113.7/32", "{ban}");
}

/// MATCH-4: an exempt entry does what `WAF_EXEMPT_PATHS` does, for what it matches alone.
#[test]
fn exempt_entries_let_through() {
    let rules = r#"{"version":1,
        "exempt":[{"name":"assets","match":{"paths":["/static/"],"methods":["GET"]}}],
        "denials":[{"name":"all-bots","match":{"user_agent":["bot"]}}],
        "traps":[{"name":"trap","paths":["/static/.env"]}]}"#;
    let application = Application::ok();
    let settings = [("WAF_RATE_LIMIT_PER_HOUR", "1"), ("WAF_ON_LIMIT", "refuse")];
    let (weir, _state) = start(&application, rules, &settings);
    let bot = [("User-Agent", "some bot")];
    for path in ["/static/a", "/static/b", "/static/.env"] {
        get(&weir, path, CLIENT, &bot).expect(200);
        let line = weir.line_of(path);
        assert_eq!(line["rule"]["name"], "assets", "{line}");
        assert_eq!(line["action"], "passed", "{line}");
    }
    get(&weir, "/static/..%2fadmin", CLIENT, &[]).expect(200);
    get(&weir, "/admin", CLIENT, &[]).expect(429);
    get(&weir, "/x", CLIENT, &bot).expect(429);
    assert_eq!(weir.line_of("/x")["action"], "denied_rule");
    assert_eq!(hits(&weir, "assets", "exempt"), Some(3.0));
}

/// CONTROL-5, MATCH-4: `weir explain` names the prefix or the entry of rules.json that a request is
/// exempt by, also where a ban refuses it first.
#[test]
fn what_exempts_a_request_is_named() {
    let rules = r#"{"version":1,
        "exempt":[{"name":"assets","match":{"paths":["/static/"],"methods":["GET"]}}]}"#;
    let application = Application::ok();
    let settings = [
        ("WAF_EXEMPT_PATHS", "/media,/public/"),
        ("WAF_RATE_LIMIT_PER_HOUR", "1"),
    ];
    let (weir, _state) = start(&application, rules, &settings);
    let explained = |path: &str, more: &[&str]| {
        let arguments = [&["explain", CLIENT, "--path", path], more].concat();
        run(&weir.state_path(""), &arguments).out
    };
    let exempt = |path: &str, more: &[&str]| {
        let explained = explained(path, more);
        let mut lines = explained.lines();
        let line = lines.find_map(|line| line.trim().strip_prefix("exempt"));
        line.map(|line| line.trim().to_owned())
    };
    let by_entry = Some("by assets of rules.json: no denial, no trap, no limit".to_owned());
    let by_path = Some("by /public of WAF_EXEMPT_PATHS: no denial, no trap, no limit".to_owned());
    for is_banned in [false, true] {
        if is_banned {
            weir.break_limit(CLIENT);
            assert!(explained("/x", &[]).starts_with("REFUSED now: banned"));
        }
        assert_eq!(exempt("/static/a", &[]), by_entry);
        assert_eq!(exempt("/static/a", &["--method", "POST"]), None);
        assert_eq!(exempt("/public/a", &[]), by_path);
        assert_eq!(exempt("/publicity", &[]), None);
    }
}

/// MATCH-5: `WAF_DENY_ASNS` refuses as country lists do, without a ban; rules match where a client
/// comes from once it is looked up.
#[test]
fn as_numbers_decide() {
    let rules = r#"{"version":1,"denials":[
        {"name":"hosters","match":{"paths":["/hosted"],"asns":["AS64496"]},"answer":403}]}"#;
    let application = Application::ok();
    let geo = Geo::saying(AS64496);
    let of_asn = "81.2.69.7";
    let settings = geo.settings(&[("WAF_DENY_ASNS", "AS64496"), ("WAF_DENY_RESPONSE", "403")]);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(a, b)| (&**a, &**b)).collect();
    let (weir, _state) = start(&application, rules, &settings);
    get(&weir, "/fresh", of_asn, &[]).expect(403);
    get(&weir, "/known", of_asn, &[]).expect(403);
    for path in ["/fresh", "/known"] {
        assert_eq!(weir.line_of(path)["action"], "denied_asn");
    }
    assert_eq!(weir.bans().len(), 0);
    drop(weir);
    let settings = geo.settings(&[("WAF_ADD_LOOKUP_HEADERS", "on")]);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(a, b)| (&**a, &**b)).collect();
    let (weir, _state) = start(&application, rules, &settings);
    get(&weir, "/hosted", of_asn, &[]);
    get(&weir, "/hosted/known", of_asn, &[]).expect(403);
    assert_eq!(weir.line_of("/hosted/known")["rule"]["name"], "hosters");
    get(&weir, "/elsewhere", of_asn, &[]).expect(200);
}

/// MATCH-1, RULE-10: a file of literals is read again when it changes; one with a fault leaves the
/// last good one in force, and is told with its line.
#[test]
fn a_file_of_literals_is_read_again() {
    let application = Application::ok();
    let state = state_dir();
    let rules = r#"{"version":1,"denials":[{"name":"training",
        "match":{"user_agent_file":"ai-training.txt"},"answer":403}]}"#;
    fs::write(state.path().join("rules.json"), rules).unwrap();
    fs::write(
        state.path().join("ai-training.txt"),
        "# 2026\nGPTBot # OpenAI\n",
    )
    .unwrap();
    let weir = Weir::start_at(application.address(), &state, &[]);
    let status = |agent| get(&weir, "/", CLIENT, &[("User-Agent", agent)]).status;
    assert_eq!((status("GPTBot/1"), status("CCBot/2")), (403, 200));
    save(state.path(), "ai-training.txt", "CCBot\n");
    wait_for_edits(&weir, "taken", 1.0);
    assert_eq!((status("GPTBot/1"), status("CCBot/2")), (200, 403));
    save(state.path(), "ai-training.txt", "CCBot\nai\n");
    weir.wait_for_process_log(&[
        "has a fault in line 2",
        "too short",
        "its last good 1 lines stay",
    ]);
    assert_eq!((status("said"), status("CCBot/2")), (200, 403));
}

/// MATCH-1, MATCH-2, MATCH-4, MATCH-5: each fault of `match` has a sentence with line and pointer.
#[test]
fn faults_of_match_are_told() {
    for (rules, settings, told) in [
        (
            "{\"version\":1,\n\"limits\":[{\"name\":\"a\",\"path\":\"/\",\"match\":{\"paths\":[\"/\"]},\"per_hour\":1}]}",
            &[][..],
            &["line 2", "/limits/0/path", "stands beside \"match\""][..],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"user_agent":["ai"]}}]}"#,
            &[],
            &[
                "/denials/0/match/user_agent/0",
                "\"ai\" is too short: expected 3 to 256 bytes",
            ],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{}}]}"#,
            &[],
            &["/denials/0/match"],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"regex":"x"}}]}"#,
            &[],
            &["/denials/0/match/regex"],
        ),
        (
            r#"{"version":1,"exempt":[{"name":"a","match":{"user_agent":["curl"]}}]}"#,
            &[],
            &["/exempt/0/match", "could write itself free"],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"asns":["AS64512"]}}]}"#,
            &[],
            &["/denials/0/match/asns/0", "is not an AS number"],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"countries":["DEU"]}}]}"#,
            &[],
            &["/denials/0/match/countries/0", "is not a country"],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"countries":["DE"]}}]}"#,
            &[("WAF_LOOKUP_SOURCE", "off")],
            &["/denials/0/match/countries", "needs lookups"],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"exact":true}}]}"#,
            &[],
            &["/denials/0/match/exact", "needs \"paths\""],
        ),
        (
            r#"{"version":1,"denials":[{"name":"a","match":{"fields":[{"name":"a b","is":"absent"}]}}]}"#,
            &[],
            &[
                "/denials/0/match/fields/0/name",
                "is not the name of a field",
            ],
        ),
    ] {
        let state = state_dir();
        fs::write(state.path().join("rules.json"), rules).unwrap();
        let mut check = command(state.path(), &["check"]);
        check
            .env("WAF_UPSTREAM", "http://localhost:1")
            .envs(settings.iter().copied());
        let Ran {
            code, err: errors, ..
        } = ran(check.output().expect("the binary runs"));
        assert_eq!(code, 78, "{rules}: {errors}");
        for part in told {
            assert!(errors.contains(part), "{rules}: {part} is not in {errors}");
        }
    }
}
