//! Limits that clients share (SHARE).

use serde_json::{Value, json};

use super::{ban_of, hits, save, start};
use crate::schemas::{fits, schema, validator};
use crate::support::application::Application;
use crate::support::http2::{self, Http2};
use crate::support::raw_client::{Connection, get, request};
use crate::support::wait_until;
use crate::support::weir::Weir;

/// A request of a client with a key.
#[track_caller]
fn ask(weir: &Weir, path: &str, client: &str, key: Option<&str>) -> u16 {
    let mut fields = vec![("X-Forwarded-For", client)];
    fields.extend(key.map(|key| ("X-Api-Key", key)));
    weir.send(&request("GET", path, &fields, None)).status
}

fn rules(limits: &Value) -> String {
    json!({"version": 1, "limits": limits}).to_string()
}

/// SHARE-1, SHARE-7, SHARE-8: clients that each ask once are limited together, in enforce and
/// observe mode; nobody is banned, other paths go on, the log names the count, the metrics how full
/// it is, and a question is told what a request would be.
#[test]
fn many_that_ask_once_are_limited_together() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let limits = json!([{"name": "search", "match": {"paths": ["/search"]}, "per": "all", "per_hour": 20}]);
        let (weir, state) = start(&application, &rules(&limits), &[("WAF_MODE", mode)]);
        let ratio = || weir.metric("waf_shared_use_ratio{rule=\"search\"}");
        assert_eq!(ratio(), Some(0.0), "nobody has asked");
        let answers: Vec<u16> = (0..30)
            .map(|number| ask(&weir, "/search", &format!("203.{number}.113.7"), None))
            .collect();
        let expected = if mode == "enforce" { 429 } else { 200 };
        assert_eq!(answers[..20], [200; 20], "{mode}");
        assert_eq!(answers[20..], [expected; 10], "{mode}");
        let asked = weir.control(
            "GET",
            "/v1/explain?address=198.51.100.1&path=%2Fsearch",
            None,
        );
        let asked = asked.expect(200).json();
        assert_eq!(asked["now"]["action"], "rate_limited", "{asked}");
        let used = &asked["rule_limits"][0]["windows"]["hour"]["used"];
        assert_eq!(*used, 20, "{asked}");
        assert_eq!(ask(&weir, "/else", "203.7.113.7", None), 200);
        let refused = weir.get("/search/again", "198.51.100.7");
        let line = weir.line_of("/search/again");
        assert_eq!(line["action"], "rate_limited");
        assert_eq!(line["enforced"], mode == "enforce");
        assert_eq!(line["limit_hit"], "search");
        assert_eq!(line["shared"], json!({"per": "all", "key": "all"}));
        if mode == "enforce" {
            let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=9_000).contains(&seconds), "{seconds}");
        }
        assert_eq!(weir.bans(), Vec::<Value>::new());
        assert_eq!(hits(&weir, "search", "limit"), Some(11.0));
        assert_eq!(ratio(), Some(1.0));
        assert_eq!(weir.metric("waf_shared_keys"), Some(1.0));
        // Nor is a count told of that the limit had by another `per`.
        let limits = json!([{"name": "search", "match": {"paths": ["/search"]}, "per": "netblock", "per_hour": 20}]);
        save(state.path(), "rules.json", &rules(&limits));
        wait_until("nothing is counted", || ratio() == Some(0.0));
        ask(&weir, "/search", "203.0.113.7", None);
        assert_eq!(ratio(), Some(0.05));
        // A limit that is gone has no series.
        save(state.path(), "rules.json", &rules(&json!([])));
        wait_until("no series", || ratio().is_none());
    }
}

/// SHARE-1, SHARE-2, SHARE-8: a field's value has its own count, which the log names by a hash and
/// which goes on after a restart; those that do not send it share one.
#[test]
fn a_key_has_a_count_of_its_own() {
    let application = Application::ok();
    let limits = json!([{"name": "key", "per": {"field": "x-api-key"}, "per_day": 2}]);
    let (mut weir, state) = start(&application, &rules(&limits), &[]);
    let of = |key, expected: [u16; 3]| {
        let asked = [1, 2, 3].map(|number| {
            ask(
                &weir,
                &format!("/{number}"),
                &format!("203.0.{number}.7"),
                key,
            )
        });
        assert_eq!(asked, expected, "{key:?}");
    };
    of(Some("secret-of-one"), [200, 200, 429]);
    of(Some("secret-of-two"), [200, 200, 429]);
    of(None, [200, 200, 429]);
    let lines = weir.lines_of("/3", 3);
    let keys: Vec<&str> = (lines.iter())
        .map(|line| line["shared"]["key"].as_str().expect("a key"))
        .collect();
    assert!(keys.iter().all(|key| !key.contains("secret")), "{keys:?}");
    assert_eq!(keys[2], "absent");
    assert_ne!(keys[0], keys[1]);
    weir.stop();
    let path = state.path().join("shared.json");
    let text = std::fs::read_to_string(path).expect("the file");
    assert!(!text.contains("secret"), "{text}");
    let kept: Value = serde_json::from_str(&text).expect("JSON");
    fits(&validator(&schema("shared")), "shared.json", &kept);
    let weir = Weir::start_at(application.address(), &state, &[]);
    for (place, key) in [Some("secret-of-one"), Some("secret-of-two"), None]
        .into_iter()
        .enumerate()
    {
        assert_eq!(
            ask(&weir, &format!("/again/{place}"), "203.0.113.7", key),
            429
        );
        let line = weir.line_of(&format!("/again/{place}"));
        assert_eq!(line["shared"]["key"], *keys[place]);
    }
    assert_eq!(ask(&weir, "/", "203.0.113.7", Some("of-another")), 200);
}

/// SHARE-3: who is on an allow list, and exempt paths and entries, are neither counted nor refused.
#[test]
fn who_skips_limits_skips_shared_ones() {
    let application = Application::ok();
    let rules = json!({
        "version": 1,
        "allow": [{"netblock": "192.0.2.0/24"}],
        "limits": [{"name": "all", "per": "all", "per_hour": 2}],
        "exempt": [{"name": "assets", "match": {"paths": ["/static/"]}}],
    });
    let settings = [("WAF_EXEMPT_PATHS", "/free")];
    let (weir, _state) = start(&application, &rules.to_string(), &settings);
    let free = |round: u16| {
        assert_eq!(ask(&weir, "/", "192.0.2.7", None), 200, "{round}");
        assert_eq!(ask(&weir, "/static/a", "203.0.113.7", None), 200, "{round}");
        assert_eq!(ask(&weir, "/free", "203.0.113.7", None), 200, "{round}");
    };
    (0..5).for_each(free);
    let counted = [1, 2, 3].map(|number| ask(&weir, "/", &format!("203.0.{number}.7"), None));
    assert_eq!(counted, [200, 200, 429]);
    free(5);
}

/// SHARE-2, LIMIT-6: a netblock whose clients are together over the limit is banned, and has a
/// fresh count once the ban is lifted.
#[test]
fn a_netblock_can_be_banned_for_what_it_asks_together() {
    let application = Application::ok();
    let limits = json!([{"name": "subnet", "per": "netblock", "per_hour": 5, "on_limit": "ban"}]);
    let (weir, _state) = start(&application, &rules(&limits), &[]);
    for number in 0..5 {
        assert_eq!(ask(&weir, "/", &format!("203.0.113.{number}"), None), 200);
    }
    assert_eq!(ask(&weir, "/", "203.0.113.200", None), 429);
    let ban = ban_of(&weir, "rule_limit");
    assert_eq!(ban["netblock"], "203.0.113.0/24");
    assert_eq!(ask(&weir, "/", "203.0.112.200", None), 200);
    weir.control("DELETE", "/v1/bans/203.0.113.7", None)
        .expect(200);
    assert_eq!(ask(&weir, "/", "203.0.113.201", None), 200);
}

/// SHARE-6: thousands of requests at once, over HTTP/1.1 and HTTP/2, to four workers: of each key
/// exactly as many pass as its limit says, and the application gets no more.
#[test]
fn shared_limits_are_exact_whoever_asks_at_once() {
    const ROUNDS: usize = 100;
    let application = Application::ok();
    let limits = json!([
        {"name": "all", "match": {"paths": ["/all"]}, "per": "all", "per_day": 1_000},
        {"name": "key", "match": {"paths": ["/key"]}, "per": {"field": "x-api-key"}, "per_day": 90},
        {"name": "net", "match": {"paths": ["/net"]}, "per": "netblock", "per_day": 60},
    ]);
    let settings = [
        ("WAF_WORKERS", "4"),
        ("WAF_H2C", "on"),
        ("WAF_LOG_REQUESTS", "off"),
    ];
    let (weir, _state) = start(&application, &rules(&limits), &settings);
    let address = weir.address();
    let key = |number: usize| format!("key-{}", number % 8);
    // Of eight netblocks, of each 100 requests for each path.
    let over_http1 = |thread: usize| {
        let mut connection = Connection::open(address);
        let mut passed = [0; 3];
        for number in 0..ROUNDS {
            let (client, key) = (format!("198.51.{thread}.{number}"), key(number));
            let fields = [("X-Forwarded-For", &*client), ("X-Api-Key", &*key)];
            for (path, passed) in PATHS.into_iter().zip(&mut passed) {
                connection.send(&get(path, &fields));
                *passed += usize::from(connection.response().status == 200);
            }
        }
        passed
    };
    // Of four netblocks, of each 200 requests for each path, 100 of them at once.
    let over_http2 = |thread: usize| {
        let mut connection = Http2::open(address);
        let mut passed = [0; 3];
        for round in 0..2 {
            let client = format!("203.0.{thread}.{round}");
            for (path, passed) in PATHS.into_iter().zip(&mut passed) {
                let begin = |number| {
                    let key = key(number);
                    let fields = [("x-forwarded-for", &*client), ("x-api-key", &*key)];
                    connection.begin(http2::get(path, &fields), true)
                };
                let begun: Vec<_> = (0..ROUNDS).map(begin).collect();
                for open in begun {
                    let answer = connection.whole(open.response).expect("an answer");
                    *passed += usize::from(answer.status == 200);
                }
            }
        }
        passed
    };
    let passed: Vec<[usize; 3]> = std::thread::scope(|scope| {
        let http1 = (0..8).map(|thread| scope.spawn(move || over_http1(thread)));
        let http1: Vec<_> = http1.collect();
        let http2 = (0..4).map(|thread| scope.spawn(move || over_http2(thread)));
        let all: Vec<_> = http1.into_iter().chain(http2).collect();
        let all = all.into_iter().map(|one| one.join().expect("answers"));
        all.collect()
    });
    let total = |of: usize| passed.iter().map(|one| one[of]).sum::<usize>();
    assert_eq!([0, 1, 2].map(total), [1_000, 8 * 90, 12 * 60]);
    assert_eq!(application.requests().len(), 1_000 + 8 * 90 + 12 * 60);
    assert_eq!(hits(&weir, "all", "limit"), Some(600.0));
}

/// What is asked for at once.
const PATHS: [&str; 3] = ["/all", "/key", "/net"];

/// SHARE-2, MATCH-5: what cannot be meant is a fault at its place.
#[test]
fn a_shared_limit_that_cannot_be_is_a_fault() {
    let faults = [
        (
            json!({"per": "all", "on_limit": "ban"}),
            "/limits/0/on_limit",
            "nobody in particular breaks this limit: expected \"refuse\"",
        ),
        (json!({"per": "asn"}), "/limits/0/per", "needs lookups"),
        (json!({"per": "country"}), "/limits/0/per", "needs lookups"),
        (
            json!({"per": "city"}),
            "/limits/0/per",
            "expected \"client\", \"netblock\", \"asn\"",
        ),
        (json!({"per": {"field": ""}}), "/limits/0/per", "field"),
    ];
    for (of, pointer, sentence) in faults {
        let mut limit = json!({"name": "one", "per_minute": 1});
        let members = limit.as_object_mut().expect("an object");
        members.extend(of.as_object().expect("an object").clone());
        let state = crate::support::weir::state_dir();
        let text = rules(&json!([limit]));
        std::fs::write(state.path().join("rules.json"), text).expect("writes rules.json");
        let told = Weir::refuse(&state, &[("WAF_LOOKUP_SOURCE", "off")]).stderr;
        assert!(
            told.contains(pointer) && told.contains(sentence),
            "{of}: {told}"
        );
    }
}
