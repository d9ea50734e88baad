//! What a line holds, and what it never holds (LOG-5).

use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::raw_client::{exchange, get, request};
use crate::support::transport::{self, Transport};
use crate::support::weir::{Weir, ms, now_ms};

/// LOG-5: every member that is known of an ordinary request. Lines of X-Forwarded-For are one
/// chain (CLIENT-3).
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
            ("X-Forwarded-For", "198.51.100.9"),
            ("X-Forwarded-For", "203.0.113.7"),
            ("X-Forwarded-Proto", "https"),
            ("X-Request-ID", "id-1"),
            ("User-Agent", "tester/1"),
            ("Referer", "https://example.org/from"),
            ("Content-Type", "application/json"),
            ("Cookie", "sid=COOKIE-SECRET"),
            ("Authorization", "Bearer AUTH-SECRET"),
            ("Accept-Language", "de"),
            ("X-Trace", "one"),
            ("X-Trace", "two"),
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
        ("protocol", json!(transport::protocol())),
        ("user_agent", json!("tester/1")),
        ("referer", json!("https://example.org/from")),
        ("content_type", json!("application/json")),
        ("content_length", json!(2)),
        (
            "headers",
            json!({"accept-language": "de", "x-trace": "one, two"}),
        ),
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

/// LOG-1: no value of Authorization, Cookie or Set-Cookie and no token, not even when their fields
/// are asked for.
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
    // Over HTTP/2 an authority that says who asks is refused.
    let who = match transport::asked_for() {
        Transport::Http2 => "",
        _ => "user:SECRET-6@",
    };
    let absolute = format!("http://{who}shop.example:81/absolute");
    weir.send(&get(&absolute, &[]));
    weir.bans();
    weir.metrics();
    let line = weir.line_of("/secrets");
    assert_eq!(line["headers"], json!({"x-plain": "shown"}));
    assert_eq!(line["has_authorization"], true);
    assert_eq!(weir.line_of("/absolute")["host"], "shop.example:81");
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
    for file in ["bans.json", "clients.json", "alerts.json"] {
        let state = weir.state_file(file).expect(file).to_string();
        assert!(!state.contains("SECRET-"), "{file}: {state}");
    }
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
        // A control byte would make it none; these are all bytes that a value may hold.
        exchange(weir.address(), &bytes).expect(200);
    }
    weir.get("/last", "203.0.113.7").expect(200);
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
    assert_eq!(count, odd.len() + 1, "one line each: {text}");
}

/// TELL-2: a request that a ban refuses names the ban, also where observe mode let it through.
#[test]
fn a_banned_request_names_its_ban() {
    let application = Application::ok();
    for mode in ["enforce", "observe"] {
        let weir = Weir::start(&application, &[("WAF_MODE", mode)]);
        weir.get("/before", "10.9.0.1").expect(200);
        let ban = weir.ban("netblock", "10.9.0.0/16", "1h");
        weir.get("/banned", "10.9.0.1");
        let line = weir.line_of("/banned");
        let named =
            json!({"netblock": "10.9.0.0/16", "cause": "admin", "ban_expires": ban["ban_expires"]});
        assert_eq!(line["ban"], named, "{mode}");
        assert_eq!(weir.line_of("/before").get("ban"), None);
    }
}
