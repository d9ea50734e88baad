//! Every way a request can end is exactly one line (LOG-3).

use std::collections::BTreeMap;

use serde_json::json;

use super::misbehaving;
use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, get, request, try_exchange};
use crate::support::transport::{self, Transport};
use crate::support::weir::Weir;
use crate::support::{GATHERED, wait_until};

/// How a client behaves.
#[derive(Clone, Copy, PartialEq)]
enum Behaves {
    /// Sends all and reads all.
    Well,
    /// Resets the connection once the application has the request.
    Resets,
    /// Resets the connection once the answer has begun.
    ResetsInAnswer,
    /// Speaks WebSocket and closes, or waits for the other end to close.
    Tunnels,
}

/// One request and the end of its connection; the status that the client saw.
#[track_caller]
fn end(
    weir: &Weir,
    application: &Application,
    path: &str,
    bytes: &[u8],
    behaves: Behaves,
) -> Option<u16> {
    let mut connection = Connection::open(weir.address());
    connection.send_what_is_taken(bytes);
    match behaves {
        Behaves::Well => {
            let answer = connection.try_response(bytes.starts_with(b"HEAD "));
            answer.ok().map(|answer| answer.status)
        }
        Behaves::Tunnels => {
            let answer = connection.response();
            assert_eq!(connection.bytes(5).expect("the greeting"), b"hello");
            if path.ends_with("/theirs") {
                assert!(connection.ends());
            }
            Some(answer.status)
        }
        Behaves::Resets => {
            wait_until("it at the application", || {
                let requests = application.requests();
                requests.iter().any(|seen| seen.target == path)
            });
            connection.reset();
            None
        }
        Behaves::ResetsInAnswer => {
            let head = connection.head().expect("the head");
            connection.reset();
            Some(head.status)
        }
    }
}

/// LOG-3: exactly one line a request, in every way a request can end, with the action that tells
/// how; `status` is what the client saw, and absent where it saw nothing.
#[test]
fn every_way_to_end_is_exactly_one_line() {
    use Behaves::{Resets, ResetsInAnswer, Tunnels, Well};
    let application = misbehaving();
    let plain = |path: &str| get(path, &[]);
    let from = |client: &str, path: &str| get(path, &[("X-Forwarded-For", client)]);
    let method = |method: &str, path: &str| request(method, path, &[], None);
    let bearer = |path: &str, token: &str| get(path, &[("Authorization", token)]);
    let socket = |path: &str| {
        get(
            path,
            &[
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("Sec-WebSocket-Version", "13"),
            ],
        )
    };
    let raw = |head: &str| head.replace('\n', "\r\n").into_bytes();
    let admin = format!("Bearer {}", crate::support::weir::ADMIN_TOKEN);
    let scraper = format!("Bearer {}", crate::support::weir::METRICS_TOKEN);
    let mut ways: Vec<(&str, Vec<u8>, Behaves, &str)> = vec![
        ("/fine", plain("/fine"), Well, "passed"),
        ("/head", method("HEAD", "/head"), Well, "passed"),
        ("/chunked", plain("/chunked"), Well, "passed"),
        ("/until-close", plain("/until-close"), Well, "passed"),
        (
            "/post",
            request("POST", "/post", &[], Some(b"12345")),
            Well,
            "passed",
        ),
        ("/static/a", plain("/static/a"), Well, "passed"),
        ("/allowed", from("192.0.2.200", "/allowed"), Well, "passed"),
        (
            "/one-zero",
            raw("GET /one-zero HTTP/1.0\n\n"),
            Well,
            "passed",
        ),
        ("/socket/ours", socket("/socket/ours"), Tunnels, "passed"),
        (
            "/socket/theirs",
            socket("/socket/theirs"),
            Tunnels,
            "passed",
        ),
        ("/cut", plain("/cut"), Well, "upstream_error"),
        (
            "/cut-chunked",
            plain("/cut-chunked"),
            Well,
            "upstream_error",
        ),
        ("/garbage", plain("/garbage"), Well, "upstream_error"),
        ("/none", plain("/none"), Well, "upstream_error"),
        ("/slow/late", plain("/slow/late"), Well, "upstream_error"),
        ("/unasked", plain("/unasked"), Well, "upstream_error"),
        ("/slow/gone", plain("/slow/gone"), Resets, "client_aborted"),
        (
            "/endless",
            plain("/endless"),
            ResetsInAnswer,
            "client_aborted",
        ),
        (
            "/upload",
            [
                raw("POST /upload HTTP/1.1\nHost: a\nContent-Length: 39999\n\n"),
                vec![b'x'; GATHERED],
            ]
            .concat(),
            Resets,
            "client_aborted",
        ),
        ("/_waf/bans", bearer("/_waf/bans", &admin), Well, "answered"),
        (
            "/_waf/metrics",
            request("PUT", "/_waf/metrics", &[("Authorization", &scraper)], None),
            Well,
            "answered",
        ),
        (
            "/_waf/health",
            method("POST", "/_waf/health"),
            Well,
            "answered",
        ),
        ("/traced", method("TRACE", "/traced"), Well, "answered"),
        (
            "/_waf/clients/192.0.2.9",
            plain("/_waf/clients/192.0.2.9"),
            Well,
            "unauthorized",
        ),
        ("/_waf/nothing", plain("/_waf/nothing"), Well, "not_found"),
        (
            "/x/../_waf/bans",
            plain("/x/../_waf/bans"),
            Well,
            "not_found",
        ),
        (
            "/denied",
            from("198.51.100.7", "/denied"),
            Well,
            "denied_net",
        ),
        ("/banned", from("203.0.113.7", "/banned"), Well, "banned"),
        (
            "/large",
            request("POST", "/large", &[], Some(&[b'x'; 40_001])),
            Well,
            "body_too_large",
        ),
        (
            "/grows",
            raw(&format!(
                "POST /grows HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n{:x}\n{}\n0\n\n",
                40_001,
                "x".repeat(40_001),
            )),
            Well,
            "body_too_large",
        ),
    ];
    if transport::asked_for() == Transport::Http2 {
        // It has no older version, and no tunnel.
        ways.retain(|(path, _, behaves, _)| *path != "/one-zero" && *behaves != Tunnels);
    }
    let mut weir = Weir::start_with_bans(
        &application,
        &json!([{"netblock": "203.0.113.0/24", "ban_expires": "permanent"}]),
        &[
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_EXEMPT_PATHS", "/static"),
            ("WAF_MAX_BODY_SIZE", "40000"),
            ("WAF_UPSTREAM_TIMEOUT", "3s"),
        ],
    );
    let mut seen = BTreeMap::new();
    for (path, bytes, behaves, action) in &ways {
        let status = end(&weir, &application, path, bytes, *behaves);
        let line = weir.line_of(path);
        assert_eq!(line["action"], *action, "{line:#}");
        if matches!(behaves, Well | Tunnels) && status.is_some() {
            assert_eq!(line["status"].as_u64(), status.map(u64::from), "{line:#}");
        }
        seen.insert((*path).to_owned(), vec![(*action).to_owned()]);
    }
    // What is no request has no line: nothing was read past its head.
    let _ = try_exchange(
        weir.address(),
        b"GET /bad HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    );
    weir.get("/_waf/health", "203.0.113.7").expect(200);
    weir.stop();
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in weir.request_log() {
        let text = |member: &str| line[member].as_str().unwrap_or_default().to_owned();
        lines.entry(text("path")).or_default().push(text("action"));
    }
    assert_eq!(lines, seen);
}

/// LOG-3: one line for each of a broken limit, a ban, a connection that is dropped unanswered, in
/// both modes.
#[test]
fn refusals_are_one_line_in_both_modes() {
    for (mode, response, expected) in [
        ("enforce", "429", [true, true]),
        ("enforce", "drop", [true, false]),
        ("observe", "429", [false, true]),
    ] {
        let application = Application::ok();
        let mut weir = Weir::start(
            &application,
            &[
                ("WAF_MODE", mode),
                ("WAF_BAN_RESPONSE", response),
                ("WAF_RATE_LIMIT_PER_HOUR", "2"),
            ],
        );
        let client = [("X-Forwarded-For", "203.0.113.7")];
        for _ in 0..3 {
            let _ = try_exchange(weir.address(), &get("/a", &client));
        }
        wait_until("the ban", || !weir.bans().is_empty());
        let _ = try_exchange(weir.address(), &get("/later", &client));
        weir.stop();
        let log = weir.request_log();
        let of = |path: &str| -> Vec<&str> {
            log.iter()
                .filter(|line| line["path"] == path)
                .map(|line| line["action"].as_str().expect("an action"))
                .collect()
        };
        let mut first = of("/a");
        first.sort_unstable();
        assert_eq!(first, ["passed", "passed", "rate_limited"], "{mode}");
        assert_eq!(of("/later"), ["banned"], "{mode}");
        let later = log
            .iter()
            .find(|line| line["path"] == "/later")
            .expect("it");
        assert_eq!(later["enforced"], expected[0], "{mode} {response}");
        assert_eq!(
            later.get("status").is_some(),
            expected[1],
            "{mode} {response}"
        );
    }
}

/// LOG: where only refused requests are logged, a body that proves too large behind its answer
/// (CHECK-3) has a line that knows the answer.
#[test]
fn a_late_refusal_knows_its_answer() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[("Content-Type", "text/x")], b"");
        After::KeepAlive
    });
    let mut weir = Weir::start(
        &application,
        &[
            ("WAF_LOG_REQUESTS", "refused"),
            ("WAF_MODE", "observe"),
            ("WAF_MAX_BODY_SIZE", "2"),
        ],
    );
    weir.send(
        b"POST /late HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    weir.stop();
    let line = weir.line_of("/late");
    assert_eq!(line["action"], "body_too_large");
    assert_eq!(line["enforced"], false);
    assert_eq!(line["status"], 200);
    assert_eq!(line["response_content_type"], "text/x");
}
