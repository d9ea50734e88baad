//! The service's own endpoints (ADMIN): tokens, bans, clients, and every wrong way to ask.

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::raw_client::{Connection, Response, get, request};
use crate::support::wait_until;
use crate::support::weir::{ADMIN, ADMIN_TOKEN, METRICS_TOKEN, Weir, ms, now_ms};

#[track_caller]
fn ask(weir: &Weir, target: &str, headers: &[(&str, &str)]) -> Response {
    weir.send(&get(target, headers))
}

/// ADMIN-3: an error is a problem document that names its request, and is never stored.
#[track_caller]
fn assert_problem(answer: &Response, status: u16) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    assert!(problem["title"].is_string(), "{problem}");
    assert!(problem["request_id"].is_string(), "{problem}");
    problem
}

/// ADMIN-1: without a token set the endpoints do not exist; with one, it must be there and right.
#[test]
fn tokens_open_the_endpoints() {
    let application = Application::ok();
    let own = ["/_waf/bans", "/_waf/clients/203.0.113.7", "/_waf/metrics"];
    let unset = Weir::start(
        &application,
        &[("WAF_ADMIN_TOKEN", ""), ("WAF_METRICS_TOKEN", "")],
    );
    for target in own {
        assert_problem(&ask(&unset, target, &[]), 404);
        assert_problem(&ask(&unset, target, &[("Authorization", "Bearer x")]), 404);
        assert_problem(&ask(&unset, target, &[("Authorization", "Bearer ")]), 404);
    }
    let set = Weir::start(&application, &[]);
    for target in own {
        let right = if target.ends_with("metrics") {
            METRICS_TOKEN
        } else {
            ADMIN_TOKEN
        };
        let other = if target.ends_with("metrics") {
            ADMIN_TOKEN
        } else {
            METRICS_TOKEN
        };
        let padded = format!("Bearer {right}x");
        let cut = format!("Bearer {}", &right[..right.len() - 1]);
        let basic = format!("Basic {right}");
        let other = format!("Bearer {other}");
        for wrong in [
            &padded, &cut, &basic, &other, "Bearer", "Bearer ", right, "",
        ] {
            let answer = ask(&set, target, &[("Authorization", wrong)]);
            assert_problem(&answer, 401);
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{wrong}");
        }
        assert_problem(&ask(&set, target, &[]), 401);
        // The scheme's name is case-insensitive (RFC 9110 §11.1).
        let right = format!("bearer {right}");
        let answer = ask(&set, target, &[("Authorization", &right)]);
        assert!([200, 404].contains(&answer.status), "{target}: {answer:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    let twice = [("Authorization", "Bearer x"), ("Authorization", "Bearer x")];
    assert_problem(&ask(&set, "/_waf/bans", &twice), 401);
    let query = format!("/_waf/bans?token={ADMIN_TOKEN}");
    assert_problem(&ask(&set, &query, &[]), 401);
}

/// ADMIN-1: 401 and 404 stay in observe mode.
#[test]
fn observe_mode_opens_nothing() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_MODE", "observe")]);
    assert_problem(&ask(&weir, "/_waf/bans", &[]), 401);
    assert_problem(&ask(&weir, "/_waf/nothing", &[]), 404);
    assert!(application.requests().is_empty());
}

/// ADMIN-1, METRIC-3: the token files are read at start and again on SIGHUP; a last line end is no
/// part of the token.
#[test]
fn each_token_can_lie_in_a_file() {
    let application = Application::ok();
    for (setting, path) in [
        ("WAF_ADMIN_TOKEN", "/_waf/bans"),
        ("WAF_METRICS_TOKEN", "/_waf/metrics"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        std::fs::write(&file, "from-the-file\n").expect("writes");
        let named = format!("{setting}_FILE");
        let file_name = file.to_str().expect("a path");
        let weir = Weir::start(&application, &[(setting, ""), (&*named, file_name)]);
        let status = |token: &str| {
            let bearer = format!("Bearer {token}");
            ask(&weir, path, &[("Authorization", &*bearer)]).status
        };
        assert_eq!(status("from-the-file"), 200, "{setting}");
        assert_eq!(status("another"), 401);
        std::fs::write(&file, "another\n").expect("writes");
        weir.signal("HUP");
        wait_until("the new token", || status("another") == 200);
        assert_eq!(status("from-the-file"), 401);
    }
}

/// ADMIN: the list of bans, whole, active, and of an address.
#[test]
fn bans_are_listed() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.ban("client", "203.0.113.7", "1h");
    weir.ban("netblock", "203.0.0.0/16", "permanent");
    weir.ban("netblock", "198.51.100.0/24", "1h");
    weir.admin("DELETE", "/_waf/bans/198.51.100.1", None);
    let nets = |target: &str| {
        let answer = weir.admin("GET", target, None);
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let mut nets: Vec<_> = answer.json()["bans"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|ban| {
                assert!(ban.get("version").is_none());
                ban["netblock"].as_str().expect("a netblock").to_owned()
            })
            .collect();
        nets.sort();
        nets
    };
    let active = ["203.0.0.0/16", "203.0.113.0/24"];
    assert_eq!(nets("/_waf/bans").len(), 3);
    assert_eq!(nets("/_waf/bans?active=true"), active);
    assert_eq!(nets("/_waf/bans?ip=203.0.113.99"), active);
    assert_eq!(nets("/_waf/bans?ip=203.0.7.7"), ["203.0.0.0/16"]);
    assert_eq!(nets("/_waf/bans?ip=198.51.100.9"), ["198.51.100.0/24"]);
    assert!(nets("/_waf/bans?ip=198.51.100.9&active=true").is_empty());
    assert_problem(&weir.admin("GET", "/_waf/bans?ip=nobody", None), 400);
}

/// ADMIN-3: a ban that was made is answered 201 with its place.
#[test]
fn a_ban_can_be_made() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let before = now_ms();
    let body = json!({"client": "203.0.113.7", "duration": "2h", "reason": "scanning"});
    let answer = weir.admin("POST", "/_waf/bans", Some(&body.to_string()));
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let place = answer.header("location").expect("Location");
    assert!(place.starts_with("/_waf/bans?ip=203.0.113."), "{place}");
    let ban = answer.json();
    assert_eq!(ban["cause"], "admin");
    assert_eq!(ban["reason"], "scanning");
    assert_eq!(ban["netblock"], "203.0.113.0/24");
    assert_eq!(ms(&ban["ban_expires"]) - ms(&ban["ban_started"]), 7_200_000);
    assert!(ms(&ban["ban_started"]) + 1000 >= before);
    assert_eq!(
        weir.get("/a", "203.0.113.8").status,
        429,
        "in force once answered"
    );
    assert_eq!(weir.bans_on_disk().len(), 1, "on disk once answered");
    let mapped = weir.ban("client", "::ffff:198.51.100.7", "1h");
    assert_eq!(
        mapped["netblock"], "198.51.100.0/24",
        "a client's address folds"
    );
}

/// ADMIN-2: each fault of a body is named with its pointer.
#[test]
fn a_wrong_body_is_explained() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let long = "x".repeat(501);
    let of = |member: &str, value: Value| {
        let mut body = json!({"client": "203.0.113.7", "duration": "1h", "reason": "r"});
        if matches!(member, "netblock") {
            body.as_object_mut().expect("an object").remove("client");
        }
        body[member] = value;
        body
    };
    #[rustfmt::skip]
    let bodies = [
        // Of the whole: what is missing, or too much together.
        (json!({"duration": "1h", "reason": "r"}), ""),
        (json!({"client": "203.0.113.7", "netblock": "203.0.113.0/24", "duration": "1h", "reason": "r"}), ""),
        (json!({"client": "203.0.113.7", "reason": "r"}), ""),
        (json!({"client": "203.0.113.7", "duration": "1h"}), ""),
        (json!([]), ""),
        (json!("203.0.113.7"), ""),
        // Of a member.
        (of("reason", json!("")), "/reason"),
        (of("reason", json!(long)), "/reason"),
        (of("reason", json!(7)), "/reason"),
        (of("duration", json!("0s")), "/duration"),
        (of("duration", json!("soon")), "/duration"),
        (of("duration", json!(60)), "/duration"),
        (of("duration", json!("-1h")), "/duration"),
        (of("client", json!("203.0.113.7/24")), "/client"),
        (of("client", json!("example.org")), "/client"),
        (of("client", json!("127.0.0.1")), "/client"),
        (of("netblock", json!("203.0.113.0/33")), "/netblock"),
        (of("netblock", json!("::ffff:203.0.113.0/120")), "/netblock"),
        (of("netblock", json!("fe80::1%eth0/64")), "/netblock"),
        (of("netblock", json!("0.0.0.0/0")), "/netblock"),
        (of("netblock", json!("::/0")), "/netblock"),
        (of("netblock", json!("127.0.0.0/8")), "/netblock"),
        (of("netblock", json!("127.0.0.1")), "/netblock"),
        (of("x", json!(1)), "/x"),
    ];
    for (body, pointer) in bodies {
        let answer = weir.admin("POST", "/_waf/bans", Some(&body.to_string()));
        let problem = assert_problem(&answer, 422);
        let faults = problem["errors"].as_array().expect("the faults");
        let pointers: Vec<_> = faults.iter().map(|fault| &fault["pointer"]).collect();
        assert_eq!(pointers, [pointer], "{body}: {problem}");
    }
    let many = json!({"client": "nobody", "duration": "0s", "reason": "", "x": 1});
    let problem = weir
        .admin("POST", "/_waf/bans", Some(&many.to_string()))
        .json();
    let faults = problem["errors"].as_array().expect("the faults");
    assert!(faults.len() >= 4, "each fault: {problem}");
    assert!(weir.bans().is_empty());
}

/// ADMIN-2: `force` allows what else would ban everybody or a trusted proxy.
#[test]
fn force_allows_a_ban_of_everything() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for netblock in ["127.0.0.0/8", "0.0.0.0/0"] {
        let body = json!({"netblock": netblock, "duration": "1h", "reason": "r", "force": true});
        let answer = weir.admin("POST", "/_waf/bans", Some(&body.to_string()));
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    weir.get("/a", "203.0.113.7").expect(429);
    let zone = json!({"netblock": "fe80::1%eth0", "duration": "1h", "reason": "r", "force": true});
    assert_problem(
        &weir.admin("POST", "/_waf/bans", Some(&zone.to_string())),
        422,
    );
}

/// ADMIN-2, CONTROL-1, FORWARD-4: a long body is 413 also where none is asked for, nothing is done
/// for its request, and the connection ends.
#[test]
fn a_long_body_that_nobody_asks_for_is_refused() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let ban = r#"{"netblock":"198.51.100.0/24","duration":"2h","reason":"x"}"#;
    weir.control("POST", "/v1/bans", Some(ban)).expect(201);
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let ask = |method: &str, target: &str, length: &str| {
        let mut fields = vec![("Content-Length", length)];
        let mut connection = match target.starts_with("/v1/") {
            true => Connection::open_unix(&weir.state_path("weir.sock")),
            false => {
                fields.extend([("Authorization", &*bearer), ("X-Forwarded-For", ADMIN)]);
                Connection::open(weir.address())
            }
        };
        connection.send(&request(method, target, &fields, None));
        let answer = connection.response();
        assert!(length == "0" || connection.ends(), "{method} {target}");
        answer
    };
    for (method, target) in [
        ("GET", "/v1/status"),
        ("GET", "/v1/health"),
        ("GET", "/v1/bans"),
        ("GET", "/v1/events"),
        ("GET", "/v1/bans/stream"),
        ("DELETE", "/v1/bans/198.51.100.7"),
        ("POST", "/v1/reload"),
        ("GET", "/_waf/bans"),
        ("GET", "/_waf/clients/198.51.100.7"),
        ("DELETE", "/_waf/bans/198.51.100.7"),
    ] {
        for length in ["65537", "99999999999"] {
            assert_problem(&ask(method, target, length), 413);
        }
    }
    assert_eq!(weir.bans().len(), 1);
    // Whoever has no token learns no more for it.
    let mut connection = Connection::open(weir.address());
    let fields = [("Content-Length", "65537")];
    connection.send(&request("GET", "/_waf/bans", &fields, None));
    assert_problem(&connection.response(), 401);
    for target in ["/v1/bans", "/_waf/bans"] {
        ask("GET", target, "0").expect(200);
    }
}

/// ADMIN: what is no JSON is 400, what is too large is 413.
#[test]
fn a_body_that_cannot_be_read_is_refused() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for body in ["", "{", "nonsense", "{\"client\":}", "\u{0}"] {
        assert_problem(&weir.admin("POST", "/_waf/bans", Some(body)), 400);
    }
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let answer = weir.admin("POST", "/_waf/bans", Some(&deep));
    assert!([400, 422].contains(&answer.status), "{answer:?}");
    let large = format!("{{\"client\":\"{}\"}}", "x".repeat(65 * 1024));
    assert_problem(&weir.admin("POST", "/_waf/bans", Some(&large)), 413);
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let chunk = "x".repeat(0x8000);
    let mut chunked = request(
        "POST",
        "/_waf/bans",
        &[("Authorization", &bearer), ("Transfer-Encoding", "chunked")],
        None,
    );
    for _ in 0..3 {
        chunked.extend(format!("8000\r\n{chunk}\r\n").bytes());
    }
    chunked.extend(b"0\r\n\r\n");
    assert_problem(&weir.send(&chunked), 413);
    assert!(weir.bans().is_empty());
}

/// CHECK, ADMIN: `WAF_MAX_BODY_SIZE` holds for the service's own endpoints, too, whether the body
/// has a length or not: step 11 comes before step 12.
#[test]
fn a_body_over_the_setting_makes_no_ban() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_MAX_BODY_SIZE", "20")]);
    let ban = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let mut chunked = request(
        "POST",
        "/_waf/bans",
        &[("Authorization", &bearer), ("Transfer-Encoding", "chunked")],
        None,
    );
    chunked.extend(format!("{:x}\r\n{ban}\r\n0\r\n\r\n", ban.len()).bytes());
    assert_problem(&weir.send(&chunked), 413);
    let authorized = [("Authorization", bearer.as_str())];
    let sized = request("POST", "/_waf/bans", &authorized, Some(ban.as_bytes()));
    assert_problem(&weir.send(&sized), 413);
    for line in weir.lines_of("/_waf/bans", 2) {
        assert_eq!(line["action"], "body_too_large", "{line}");
    }
    assert!(weir.bans().is_empty());
}

/// ADMIN: DELETE lifts every active ban that covers the address; they are kept and marked.
#[test]
fn delete_lifts_every_ban_of_an_address() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.ban("client", "203.0.113.7", "1h");
    weir.ban("netblock", "203.0.0.0/16", "permanent");
    weir.ban("netblock", "198.51.100.0/24", "1h");
    let answer = weir.admin("DELETE", "/_waf/bans/203.0.113.7", None);
    assert_eq!(answer.status, 200);
    let lifted = answer.json()["lifted"].as_array().expect("a list").clone();
    assert_eq!(lifted.len(), 2, "{lifted:?}");
    assert!(lifted.iter().all(|ban| ms(&ban["lifted"]) > 0));
    weir.get("/a", "203.0.113.7").expect(200);
    weir.get("/a", "198.51.100.7").expect(429);
    assert_eq!(weir.bans().len(), 3, "kept");
    let on_disk = weir.bans_on_disk();
    let marked = on_disk.values().filter(|ban| ban["lifted"].is_string());
    assert_eq!(marked.count(), 2, "on disk once answered");
    let again = weir.admin("DELETE", "/_waf/bans/203.0.113.7", None);
    assert_eq!((again.status, again.json()), (200, json!({"lifted": []})));
    for wrong in [
        "203.0.113.0/24",
        "203.0.113.0%2f24",
        "203.0.113.0%2F24",
        "nobody",
        "203.0.113",
    ] {
        let target = format!("/_waf/bans/{wrong}");
        assert_problem(&weir.admin("DELETE", &target, None), 400);
    }
    weir.ban("client", "2001:db8:1:2::7", "1h");
    let six = weir.admin("DELETE", "/_waf/bans/2001:db8:1:2::9", None);
    assert_eq!(six.json()["lifted"].as_array().map(Vec::len), Some(1));
}

/// ADMIN-4, STATE-9: a client is what clients.json would hold now, with its bans.
#[test]
fn a_client_is_shown_as_it_is_now() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let show = |address: &str| weir.admin("GET", &format!("/_waf/clients/{address}"), None);
    assert_problem(&show("203.0.113.7"), 404);
    for wrong in ["nobody", "203.0.113.0/24"] {
        assert_problem(&show(wrong), 400);
    }
    for n in 1..4 {
        weir.get("/a", "203.0.113.7");
        weir.lines_of("/a", n);
    }
    let answer = show("203.0.113.7");
    assert_eq!(answer.status, 200);
    let answer = answer.json();
    let client = &answer["client"];
    assert_eq!(client["client"], "203.0.113.7");
    assert_eq!(client["passed"], 3);
    assert_eq!(client["refused"], 0);
    assert_eq!(client["requests"]["day"]["current"], 3);
    assert_eq!(
        client["bytes"]["day"]["current"], 24,
        "three times `hello /a`"
    );
    assert!(ms(&client["first_seen"]) <= ms(&client["last_seen"]));
    assert!(now_ms() - ms(&client["last_seen"]) < 10_000);
    for unit in ["requests", "bytes"] {
        for window in ["minute", "hour", "day"] {
            let window = &client[unit][window];
            assert!(window["current"].is_u64() && window["previous"].is_u64());
            assert!(ms(&window["start"]) <= now_ms());
        }
    }
    assert_eq!(answer["bans"], json!([]));
    weir.ban("client", "203.0.113.9", "1h");
    assert_eq!(
        show("203.0.113.7").json()["bans"][0]["client"],
        "203.0.113.9"
    );
    let only_banned = show("203.0.113.222");
    assert_eq!(only_banned.status, 200);
    assert_eq!(only_banned.json()["client"], Value::Null);
    weir.get("/six", "2001:db8:1:2::3");
    let six = show("2001:db8:1:2::ffff").json();
    assert_eq!(six["client"]["client"], "2001:db8:1:2::/64");
}

/// ADMIN: another method is 405 and says which are allowed.
#[test]
fn another_method_is_405() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for (method, target, allowed) in [
        ("PUT", "/_waf/bans", &["GET", "POST"][..]),
        ("DELETE", "/_waf/bans", &["GET", "POST"]),
        ("POST", "/_waf/bans/203.0.113.7", &["DELETE"]),
        ("DELETE", "/_waf/clients/203.0.113.7", &["GET"]),
    ] {
        let answer = weir.admin(method, target, Some(""));
        assert_problem(&answer, 405);
        let allow = answer.header("allow").expect("Allow");
        for method in allowed {
            assert!(allow.contains(method), "{target}: {allow}");
        }
    }
    let bearer = format!("Bearer {METRICS_TOKEN}");
    let answer = weir.send(&request(
        "POST",
        "/_waf/metrics",
        &[("Authorization", &bearer)],
        Some(b""),
    ));
    assert_problem(&answer, 405);
}
