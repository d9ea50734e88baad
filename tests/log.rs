//! The request log (LOG): one line a request, every member, no secrets, whatever bytes come.

use std::collections::BTreeMap;

use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, get, request, try_exchange};
use crate::support::wait_for;
use crate::support::weir::{Weir, ms, now_ms};

/// LOG: every member that is known of an ordinary request.
#[test]
fn a_line_says_all_that_is_known() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(
            302,
            &[
                ("Content-Type", "text/html; charset=utf-8"),
                ("Cache-Control", "private, max-age=0"),
                ("Location", "/elsewhere"),
                ("Set-Cookie", "sid=COOKIE-SECRET"),
            ],
            b"answer",
        );
        After::KeepAlive
    });
    let weir = Weir::start(
        &application,
        &[
            ("WAF_INSTANCE_NAME", "edge-1"),
            ("WAF_LOG_REQUEST_HEADERS", "Accept-Language, X-Trace"),
        ],
    );
    weir.send(&request(
        "POST",
        "/path/%41?q=1&r=two",
        &[
            ("Host", "shop.example:8443"),
            ("X-Forwarded-For", "198.51.100.9, 203.0.113.7"),
            ("X-Forwarded-Proto", "https"),
            ("X-Request-ID", "id-1"),
            ("User-Agent", "tester/1"),
            ("Referer", "https://example.org/from"),
            ("Content-Type", "application/json"),
            ("Cookie", "sid=COOKIE-SECRET"),
            ("Authorization", "Bearer AUTH-SECRET"),
            ("Accept-Language", "de"),
        ],
        Some(b"{}"),
    ));
    let line = weir.line_of("/path/%41");
    for (member, value) in [
        ("event", json!("request")),
        ("instance", json!("edge-1")),
        ("request_id", json!("id-1")),
        ("client", json!("203.0.113.7")),
        ("address", json!("203.0.113.7")),
        ("netblock", json!("203.0.113.0/24")),
        ("client_group", json!("default")),
        ("forwarded_for", json!("198.51.100.9, 203.0.113.7")),
        ("scheme", json!("https")),
        ("method", json!("POST")),
        ("host", json!("shop.example:8443")),
        ("query", json!("q=1&r=two")),
        ("protocol", json!("HTTP/1.1")),
        ("user_agent", json!("tester/1")),
        ("referer", json!("https://example.org/from")),
        ("content_type", json!("application/json")),
        ("content_length", json!(2)),
        ("headers", json!({"accept-language": "de"})),
        ("has_authorization", json!(true)),
        ("has_cookie", json!(true)),
        ("websocket", json!(false)),
        ("status", json!(302)),
        ("response_content_type", json!("text/html; charset=utf-8")),
        ("cache_control", json!("private, max-age=0")),
        ("location", json!("/elsewhere")),
        ("action", json!("passed")),
        ("enforced", json!(true)),
    ] {
        assert_eq!(line[member], value, "{member}: {line:#}");
    }
    assert_eq!(line["bytes"], json!({"request": 2, "response": 6}));
    assert!(now_ms() - ms(&line["time"]) < 60_000);
    for window in ["minute", "hour", "day"] {
        assert_eq!(line["counts"][window], 1, "the request included: {line:#}");
    }
    assert_eq!(line["counts"]["day_bytes"], 8, "{line:#}");
    for timing in ["total", "connect", "first_byte"] {
        assert!(line["timings"][timing].is_number(), "{timing}: {line:#}");
    }
    for absent in ["limit_hit", "country", "asn", "as_name"] {
        assert!(line.get(absent).is_none(), "absent where unknown: {line:#}");
    }
}

/// LOG-1: no value of Authorization, Cookie or Set-Cookie and no token, not even when their fields are asked for.
#[test]
fn secrets_are_never_logged() {
    let application = Application::start(|exchange| {
        exchange.answer(200, &[("Set-Cookie", "sid=SECRET-3")], b"");
        After::KeepAlive
    });
    let mut weir = Weir::start(
        &application,
        &[
            (
                "WAF_LOG_REQUEST_HEADERS",
                "Authorization, Cookie, Set-Cookie, X-Plain",
            ),
            ("WAF_LOG_LEVEL", "trace"),
        ],
    );
    weir.send(&get(
        "/secrets",
        &[
            ("Authorization", "Bearer SECRET-1"),
            ("Cookie", "sid=SECRET-2"),
            ("Set-Cookie", "sid=SECRET-4"),
            ("X-Plain", "shown"),
        ],
    ));
    weir.send(&get("/_waf/bans", &[("Authorization", "Bearer SECRET-5")]));
    weir.bans();
    weir.metrics();
    let line = weir.line_of("/secrets");
    assert_eq!(line["headers"], json!({"x-plain": "shown"}));
    assert_eq!(line["has_authorization"], true);
    // Section 13.17: asking for them is a warning.
    weir.wait_for_process_log(&["WARN", "WAF_LOG_REQUEST_HEADERS"]);
    weir.stop();
    let all = weir.raw_output().join("\n") + &weir.process_log_text();
    for secret in [
        "SECRET-",
        crate::support::weir::ADMIN_TOKEN,
        crate::support::weir::METRICS_TOKEN,
    ] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
    let state = weir
        .state_file("clients.json")
        .expect("clients.json")
        .to_string();
    assert!(!state.contains("SECRET-"), "{state}");
}

/// LOG-2: a line is one line of valid UTF-8 JSON, whatever bytes a client sends.
#[test]
fn a_line_is_a_line_whatever_comes() {
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("requests.log");
    let mut weir = Weir::start(
        &application,
        &[
            ("WAF_LOG_FILE", path.to_str().expect("a path")),
            ("WAF_LOG_REQUEST_HEADERS", "X-Odd"),
        ],
    );
    let odd: &[&[u8]] = &[
        b"\xff\xfe\xc3",
        b"\"}\\\",\\n{\"event\":\"request\"",
        b"\xe2\x80\xa8\xc2\x85",
        b"tab\there",
        b"\xed\xa0\x80",
        "ünïcödé 🦀".as_bytes(),
    ];
    for value in odd {
        let mut bytes = b"GET /odd?q=%0a%00%22 HTTP/1.1\r\nHost: example.org\r\n".to_vec();
        for name in [
            "X-Odd",
            "User-Agent",
            "Referer",
            "X-Forwarded-For",
            "Content-Type",
            "X-Request-ID",
        ] {
            bytes.extend(name.as_bytes());
            bytes.extend(b": ");
            bytes.extend(*value);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"\r\n");
        // 200, or 400 for what the service does not take for a request.
        let _ = try_exchange(weir.address(), &bytes);
    }
    assert_eq!(weir.get("/last", "203.0.113.7").status, 200);
    weir.stop();
    let bytes = std::fs::read(&path).expect("the log");
    assert_eq!(bytes.last(), Some(&b'\n'));
    let text = String::from_utf8(bytes).expect("UTF-8");
    let mut count = 0;
    for line in text.lines() {
        assert!(!line.bytes().any(|b| b < 0x20), "{line:?}");
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        count += usize::from(value["event"] == "request");
    }
    assert!(
        (2..=odd.len() + 1).contains(&count),
        "{count} lines: {text}"
    );
}

/// LOG-3: exactly one line a request, also when the client or the application breaks off.
#[test]
fn every_request_has_exactly_one_line() {
    let application = Application::start(|exchange| {
        let target = exchange.request.target.clone();
        match target.as_str() {
            "/cut" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                After::Reset
            }
            "/none" => After::Close,
            "/held" => {
                exchange.wait_for_close();
                After::Close
            }
            _ => {
                exchange.read_body();
                exchange.answer(200, &[], b"ok");
                After::KeepAlive
            }
        }
    });
    let mut weir = Weir::start(
        &application,
        &[
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    weir.get("/fine", "203.0.113.7");
    weir.get("/denied", "198.51.100.7");
    weir.get("/_waf/nothing", "203.0.113.7");
    weir.send(&request("POST", "/large", &[], Some(&[b'x'; 11])));
    let _ = try_exchange(weir.address(), &get("/cut", &[]));
    let _ = try_exchange(weir.address(), &get("/none", &[]));
    for (path, upload) in [("/held", false), ("/upload", true)] {
        let mut connection = Connection::open(weir.address());
        if upload {
            connection.send(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
        } else {
            connection.send(&get(path, &[]));
        }
        wait_for("it at the application", || {
            application
                .requests()
                .iter()
                .any(|seen| seen.target == path)
                .then_some(())
        });
        connection.reset();
        weir.line_of(path);
    }
    weir.stop();
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in weir.request_log() {
        let text = |member: &str| line[member].as_str().unwrap_or_default().to_owned();
        lines.entry(text("path")).or_default().push(text("action"));
    }
    let expected: BTreeMap<String, Vec<String>> = [
        ("/fine", "passed"),
        ("/denied", "denied_net"),
        ("/_waf/nothing", "not_found"),
        ("/large", "body_too_large"),
        ("/cut", "upstream_error"),
        ("/none", "upstream_error"),
        ("/held", "client_aborted"),
        ("/upload", "client_aborted"),
    ]
    .into_iter()
    .map(|(path, action)| (path.to_owned(), vec![action.to_owned()]))
    .collect();
    assert_eq!(lines, expected);
}

/// LOG: `WAF_LOG_REQUESTS` bounds what is written.
#[test]
fn lines_can_be_fewer() {
    for (mode, expected) in [("refused", &["/denied"][..]), ("off", &[])] {
        let application = Application::ok();
        let mut weir = Weir::start(
            &application,
            &[
                ("WAF_LOG_REQUESTS", mode),
                ("WAF_DENY_NETS", "198.51.100.0/24"),
            ],
        );
        weir.get("/fine", "203.0.113.7");
        weir.get("/denied", "198.51.100.7");
        weir.stop();
        let log = weir.request_log();
        let paths: Vec<_> = log
            .iter()
            .filter_map(|line| line["path"].as_str())
            .collect();
        assert_eq!(paths, expected, "{mode}");
    }
}

/// LOG: a log file is opened again on SIGUSR1, so that it can be rotated.
#[test]
fn a_log_file_can_be_rotated() {
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("requests.log");
    let rotated = directory.path().join("requests.log.1");
    let weir = Weir::start(
        &application,
        &[("WAF_LOG_FILE", path.to_str().expect("a path"))],
    );
    let has = |path: &std::path::Path, what: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.contains(what).then_some(())
    };
    weir.get("/before", "203.0.113.7");
    wait_for("the first line", || has(&path, "/before"));
    std::fs::rename(&path, &rotated).expect("renames");
    weir.signal("USR1");
    wait_for("the new file", || path.exists().then_some(()));
    weir.get("/after", "203.0.113.7");
    wait_for("the second line", || has(&path, "/after"));
    assert!(has(&rotated, "/after").is_none());
    assert!(weir.request_log().is_empty(), "nothing on standard output");
}
