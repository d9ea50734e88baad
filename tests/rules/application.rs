//! What the application says of a client in its answer (APP).

use serde_json::{Value, json};

use super::{ban_of, hits, start};
use crate::support::application::{After, Application};
use crate::support::command::{command, ran};
use crate::support::http2::{self, Http2};
use crate::support::raw_client::{Response, request};
use crate::support::wait_until;
use crate::support::weir::{Weir, ms};

const FIELD: (&str, &str) = ("WAF_APPLICATION_FIELD", "X-Waf");

const RULES: &str = r#"{"version":1,"jails":[
    {"name":"login","per_day":2},
    {"name":"missing","path":"/missing","statuses":[404],"per_day":2,"ban":"netblock"}]}"#;

/// Says what the query of the target says, `+` for a blank, and answers with the status that its
/// path ends with.
fn speaking() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let target = exchange.request.target.clone();
        let (path, words) = target.split_once('?').unwrap_or((&target, ""));
        let last = path.rsplit('/').next().map(str::parse);
        let status = last.and_then(Result::ok).unwrap_or(200);
        let words = words.replace('+', " ");
        let lines: Vec<(&str, &str)> = match words.is_empty() {
            true => Vec::new(),
            false => words.split('|').map(|line| ("x-WAF", line)).collect(),
        };
        exchange.answer(status, &lines, b"");
        After::KeepAlive
    })
}

/// Asks for what the application then says of the client; the field is not there.
#[track_caller]
fn say(weir: &Weir, target: &str, client: &str) -> Response {
    let answer = weir.get(target, client);
    assert_eq!(answer.header("x-waf"), None, "{target}");
    answer
}

fn said(weir: &Weir, word: &str) -> Option<f64> {
    weir.metric(&format!("waf_application_total{{word=\"{word}\"}}"))
}

/// APP-1, APP-2: a jail counts what the application says it should, whatever status, path and
/// method the answer has, each answer once, and those of its own statuses besides. In observe mode
/// the same is told.
#[test]
fn the_application_fills_a_jail() {
    for mode in ["enforce", "observe"] {
        let application = speaking();
        let (weir, _state) = start(&application, RULES, &[FIELD, ("WAF_MODE", mode)]);
        say(&weir, "/a?count=login,+count=login", "203.0.113.7").expect(200);
        let post = [("X-Forwarded-For", "203.0.113.7")];
        let post = request("POST", "/b/404?trust=1s|count=login", &post, Some(b"x"));
        weir.send(&post).expect(404);
        say(&weir, "/c/404", "203.0.113.7").expect(404);
        assert_eq!(weir.bans(), Vec::<Value>::new());
        say(&weir, "/d?count=login", "203.0.113.7").expect(200);
        let line = weir.line_of("/d");
        assert_eq!(line["application"], "count=login");
        assert_eq!(line["rule"], json!({"name": "login", "kind": "jail"}));
        let ban = ban_of(&weir, "jail");
        assert_eq!(ban["netblock"], "203.0.113.7/32");
        assert_eq!(ban["observed"], mode == "observe");
        let refused = if mode == "enforce" { 429 } else { 200 };
        say(&weir, "/e?ban,count=login", "203.0.113.7").expect(refused);
        // Counted for its status and for what is said of it: once.
        for number in 1..=3 {
            let client = "198.51.100.7";
            say(
                &weir,
                &format!("/missing/{number}/404?count=missing"),
                client,
            )
            .expect(404);
            let bans = if number < 3 { 1 } else { 2 };
            wait_until("the bans", || weir.bans().len() == bans);
        }
        assert_eq!(hits(&weir, "login", "jail"), Some(1.0));
        // What enforce mode would have refused has said nothing.
        let words = ["count", "ban", "trust", "ignored"].map(|word| said(&weir, word));
        assert_eq!(words, [7.0, 0.0, 1.0, 0.0].map(Some), "{mode}");
        assert_eq!(weir.bans().len(), 2);
    }
}

/// APP-3, BAN-1: `ban` lasts as after a broken limit and escalates, a duration is what it says, the
/// longest of several holds; it covers the netblock, and its cause is `application`.
#[test]
fn the_application_bans() {
    let application = speaking();
    let settings = [
        FIELD,
        ("WAF_BAN_FIRST", "100ms"),
        ("WAF_BAN_RESPONSE", "403"),
    ];
    let (weir, _state) = start(&application, RULES, &settings);
    let length = |ban: &Value| ms(&ban["ban_expires"]) - ms(&ban["ban_started"]);
    say(&weir, "/a?ban", "203.0.113.7").expect(200);
    let ban = ban_of(&weir, "application");
    assert_eq!(
        (&ban["netblock"], length(&ban)),
        (&json!("203.0.113.0/24"), 100)
    );
    assert_eq!(ban["reason"], "the application said so");
    assert_eq!(ban["notes"]["request"]["path"], "/a");
    assert_eq!(ban["origin"], "service");
    wait_until("the end of the ban", || {
        weir.get("/", "203.0.113.9").status == 200
    });
    say(&weir, "/b?ban", "203.0.113.9");
    wait_until("the second ban", || weir.bans().len() == 2);
    say(&weir, "/c?ban=1h,ban,ban=2h", "198.51.100.7");
    wait_until("the third ban", || weir.bans().len() == 3);
    let mut lengths: Vec<u64> = weir.bans().iter().map(length).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [100, 300, 7_200_000]);
    say(&weir, "/d", "198.51.100.200").expect(403);
    assert_eq!(
        weir.metric("waf_bans_total{cause=\"application\"}"),
        Some(3.0)
    );
}

/// APP-3, ALIVE-5: a trusted proxy that names nobody is not banned by the application's word, and
/// no netblock with one in it; nor does anything happen to who is on an allow list.
#[test]
fn the_application_bans_no_proxy() {
    let application = speaking();
    let settings = [
        FIELD,
        ("WAF_TRUSTED_PROXIES", "127.0.0.0/8,203.0.113.1/32"),
        ("WAF_ALLOW_NETS", "192.0.2.0/24"),
    ];
    let (weir, _state) = start(&application, RULES, &settings);
    let bans = || {
        let answer = weir.control("GET", "/v1/bans", None).expect(200).json();
        answer["bans"].as_array().expect("a list").clone()
    };
    weir.send(&request("GET", "/a?ban", &[], None)).expect(200);
    say(&weir, "/b?ban,count=login,count=missing", "192.0.2.7").expect(200);
    say(&weir, "/c?ban", "203.0.113.7").expect(200);
    wait_until("the ban", || bans().len() == 1);
    assert_eq!(bans()[0]["netblock"], "203.0.113.7/32");
    weir.send(&request("GET", "/d", &[], None)).expect(200);
    say(&weir, "/e", "192.0.2.7").expect(200);
}

/// APP-3: at most 16 bans a second in all; the rest are counted, and are made when they are said
/// again.
#[test]
fn bans_of_the_application_are_bounded() {
    let application = speaking();
    let (weir, _state) = start(&application, RULES, &[FIELD]);
    for number in 0..200 {
        say(&weir, "/a?ban", &format!("203.{number}.113.7")).expect(200);
    }
    let left_out = said(&weir, "ban_left_out").expect("a number");
    assert_eq!(said(&weir, "ban"), Some(200.0));
    let made = || {
        weir.metric("waf_bans_total{cause=\"application\"}")
            .expect("a number")
    };
    wait_until("the bans", || made() + left_out == 200.0);
    // Whatever that took: each of its seconds had 16 at most. A ban begins with its request, and is
    // counted with the answer, which may come in the next second.
    let mut seconds = std::collections::BTreeMap::<u64, u32>::new();
    for ban in weir.bans() {
        *seconds.entry(ms(&ban["ban_started"]) / 1000).or_default() += 1;
    }
    let (first, last) = (seconds.keys().min(), seconds.keys().max());
    let lasted = last.zip(first).map_or(0, |(last, first)| last - first + 1);
    let total: u32 = seconds.values().sum();
    assert!(u64::from(total) <= 16 * (lasted + 1), "{seconds:?}");
    wait_until("room for one more", || {
        say(&weir, "/a?ban", "198.51.100.7");
        weir.bans()
            .iter()
            .any(|ban| ban["netblock"] == "198.51.100.0/24")
    });
}

/// APP-4, SHARE-3: who is trusted is outside limits that clients share, for so long; the limits of
/// the client hold.
#[test]
fn who_is_trusted_is_outside_shared_limits() {
    let application = speaking();
    let rules = r#"{"version":1,"limits":[
        {"name":"all","per":"all","per_day":3},
        {"name":"own","path":"/own","per_day":2,"on_limit":"refuse"}]}"#;
    let (weir, _state) = start(&application, rules, &[FIELD]);
    say(&weir, "/a?trust=1h,trust=1s", "203.0.113.7").expect(200);
    for number in 0..3 {
        say(&weir, "/b", &format!("198.{number}.100.7")).expect(if number < 2 { 200 } else { 429 });
        say(&weir, "/c", "203.0.113.7").expect(200);
    }
    let own = [1, 2, 3].map(|_| say(&weir, "/own", "203.0.113.7").status);
    assert_eq!(own, [200, 200, 429]);
    say(&weir, "/d", "203.0.113.8").expect(429);
    assert_eq!(weir.metric("waf_shared_use_ratio{rule=\"all\"}"), Some(1.0));
}

/// APP-4: trust ends with its time.
#[test]
fn trust_ends() {
    let application = speaking();
    let rules = r#"{"version":1,"limits":[{"name":"all","per":"all","per_day":1}]}"#;
    let (weir, _state) = start(&application, rules, &[FIELD]);
    say(&weir, "/a?trust=1s", "203.0.113.7").expect(200);
    wait_until("the end of the trust", || {
        say(&weir, "/b", "203.0.113.7").status == 429
    });
}

/// APP-4, APP-5: a flood does not end trust, a restart does.
#[test]
fn a_flood_ends_no_trust_and_a_restart_does() {
    let application = speaking();
    let rules = r#"{"version":1,"limits":[{"name":"all","match":{"paths":["/all"]},"per":"all","per_day":1}]}"#;
    let (mut weir, state) = start(&application, rules, &[FIELD]);
    say(&weir, "/?trust=1h", "203.0.113.7").expect(200);
    say(&weir, "/all", "198.51.100.7").expect(200);
    say(&weir, "/all", "198.51.100.8").expect(429);
    let mut connection = crate::support::raw_client::Connection::open(weir.address());
    for number in 0..21_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        let client = format!("{}.{a}.{b}.{c}", 11 + number % 100);
        connection.send(&crate::support::raw_client::get(
            "/",
            &[("X-Forwarded-For", &client)],
        ));
        connection.response().expect(200);
    }
    assert!(weir.metric("waf_clients_evicted_total") > Some(0.0));
    say(&weir, "/all", "203.0.113.7").expect(200);
    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &[FIELD]);
    wait_until("an untrusted client", || {
        say(&weir, "/all", "203.0.113.7").status == 429
    });
}

/// APP-1, APP-5: one word that is not understood, a name of no jail, or more than 256 bytes, and
/// all of it is ignored: counted, and told once a minute. None of it reaches a client.
#[test]
fn what_is_not_understood_is_ignored() {
    let application = speaking();
    let (weir, _state) = start(&application, RULES, &[FIELD]);
    let long = format!("/long?ban|{}", ",".repeat(260));
    let wrong = [
        "/word?ban,bann",
        "/jail?ban,count=nobody",
        "/trust?ban,trust=25h",
        "/ban?ban=forever",
        &long,
    ];
    for target in wrong {
        say(&weir, target, "203.0.113.7").expect(200);
    }
    say(&weir, "/nothing?,+,", "203.0.113.7").expect(200);
    let line = weir.line_of("/word");
    assert_eq!(line.get("application"), None, "{line}");
    assert_eq!(said(&weir, "ignored"), Some(5.0));
    assert_eq!(said(&weir, "ban"), Some(0.0));
    assert_eq!(weir.bans(), Vec::<Value>::new());
    let told = || {
        weir.process_log_text()
            .matches("what the application says")
            .count()
    };
    wait_until("a line", || told() > 0);
    // A minute may have ended meanwhile.
    assert!(told() <= 2, "{}", told());
}

/// APP-5: what a client writes into the field, and what the application says in an interim answer
/// or in a trailer, has no effect; neither the interim answer nor the trailer brings it to the
/// client.
#[test]
fn only_the_head_of_a_final_answer_speaks() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(b"HTTP/1.1 103 X\r\nX-Waf: ban\r\nLink: </a>\r\n\r\n");
        exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        exchange.send(b"1\r\na\r\n0\r\nX-Waf: ban\r\nX_Waf: ban\r\nX-Sum: 1\r\n\r\n");
        After::KeepAlive
    });
    let (weir, _state) = start(&application, RULES, &[FIELD]);
    let fields = [
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Waf", "ban"),
        ("TE", "trailers"),
    ];
    let answer = weir.send(&request("GET", "/a", &fields, None)).expect(200);
    let names = |fields: &[(String, String)]| -> Vec<String> {
        fields.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&answer.trailers), ["x-sum"]);
    assert_eq!(names(&answer.informational[0].headers), ["link"]);
    assert_eq!(application.request("/a").header("x-waf"), Some("ban"));
    weir.line_of("/a");
    assert_eq!(said(&weir, "ban"), Some(0.0));
    assert_eq!(weir.bans(), Vec::<Value>::new());
    weir.get("/b", "203.0.113.7").expect(200);
}

/// APP-5: a 101 that nobody asked for is no answer, and says nothing.
#[test]
fn a_101_that_was_not_asked_for_says_nothing() {
    let application = Application::raw(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Waf: ban\r\n\r\n",
        false,
    );
    let (weir, _state) = start(&application, RULES, &[FIELD]);
    say(&weir, "/a", "203.0.113.7").expect(502);
    let line = weir.line_of("/a");
    assert_eq!(
        (&line["action"], &line["status"]),
        (&json!("upstream_error"), &json!(502))
    );
    assert_eq!(line.get("application"), None);
    assert_eq!(said(&weir, "ban"), Some(0.0));
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

/// APP-1, APP-5: over HTTP/2 the same holds, to the client and in each of the three places.
#[test]
fn http_2_carries_none_of_it() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(b"HTTP/1.1 103 X\r\nX-Waf: ban\r\nLink: </a>\r\n\r\n");
        exchange.send(b"HTTP/1.1 200 OK\r\nX-Waf: count=login\r\nTransfer-Encoding: chunked\r\n");
        exchange.send(b"X-Waf: trust=1h\r\n\r\n1\r\na\r\n0\r\nX-Waf: ban\r\nX-Sum: 1\r\n\r\n");
        After::KeepAlive
    });
    let (weir, _state) = start(&application, RULES, &[FIELD, ("WAF_H2C", "on")]);
    let mut connection = Http2::open(weir.address());
    let fields = [
        ("x-forwarded-for", "203.0.113.7"),
        ("x-waf", "ban"),
        ("te", "trailers"),
    ];
    let answer = connection.ask(http2::get("/a", &fields)).expect(200);
    assert_eq!(answer.header("x-waf"), None);
    assert!(
        !format!("{answer:?}").to_ascii_lowercase().contains("x-waf"),
        "{answer:?}"
    );
    let line = weir.line_of("/a");
    assert_eq!(line["application"], "count=login,trust=1h");
    assert_eq!(
        ["count", "trust", "ban"].map(|word| said(&weir, word)),
        [1.0, 1.0, 0.0].map(Some)
    );
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

/// APP-1: where no field is named, the field is one like any other, for the client too; and
/// `weir check` warns of a jail that nothing fills.
#[test]
fn without_a_setting_nobody_speaks() {
    let application = speaking();
    let (weir, state) = start(&application, RULES, &[]);
    for _ in 0..4 {
        let answer = weir.get("/a?ban,count=login", "203.0.113.7").expect(200);
        assert_eq!(answer.header("x-waf"), Some("ban,count=login"));
    }
    assert_eq!(weir.bans(), Vec::<Value>::new());
    let mut check = command(state.path(), &["check"]);
    let checked = check.env("WAF_UPSTREAM", "127.0.0.1:9").output();
    let told = ran(checked.expect("the binary runs")).err;
    assert!(told.contains("the jail login has no statuses"), "{told}");
    assert!(!told.contains("the jail missing"), "{told}");
}

/// APP-1, APP-3, CONTROL-6: a replay of weir's own log knows what the application said.
#[test]
fn a_replay_knows_what_was_said() {
    let application = speaking();
    let (weir, state) = start(&application, RULES, &[FIELD]);
    for path in ["/a", "/b", "/c"] {
        say(&weir, &format!("{path}?count=login"), "203.0.113.7").expect(200);
    }
    say(&weir, "/d?ban=1h", "198.51.100.7").expect(200);
    wait_until("two bans", || weir.bans().len() == 2);
    let log = state.path().join("log");
    for path in ["/a", "/b", "/c", "/d"] {
        weir.line_of(path);
    }
    let lines: Vec<String> = weir.request_log().iter().map(Value::to_string).collect();
    std::fs::write(&log, lines.join("\n")).expect("writes the log");
    let log = log.to_str().expect("a path");
    for (field, bans) in [("X-Waf", 2), ("off", 0)] {
        let mut replay = command(state.path(), &["replay", "--json", log]);
        replay
            .env("WAF_UPSTREAM", "127.0.0.1:9")
            .env("WAF_APPLICATION_FIELD", field);
        let replayed = ran(replay.output().expect("the binary runs")).out;
        let told: Value = serde_json::from_str(&replayed).expect("a report");
        assert_eq!(told["trials"][0]["bans"], bans, "{told}");
    }
}
