//! The request log (LOG): one line a request, every member, no secrets, whatever bytes come.

use std::collections::BTreeMap;

use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, exchange, get, request, try_exchange};
use crate::support::weir::{Weir, ms, now_ms};
use crate::support::{wait_for, wait_until};

/// LOG-5: every member that is known of an ordinary request.
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
        ("protocol", json!("HTTP/1.1")),
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
    weir.send(&get("http://user:SECRET-6@shop.example:81/absolute", &[]));
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

/// What the application does, by the first segment of the path.
#[track_caller]
fn misbehaving() -> Application {
    Application::start(|exchange| {
        let target = exchange.request.target.clone();
        match target.split('/').nth(1).unwrap_or_default() {
            "cut" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                After::Reset
            }
            "cut-chunked" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
                After::Close
            }
            "garbage" => {
                exchange.send(b"SMTP ready\r\n\r\n");
                After::Close
            }
            "none" => After::Close,
            "slow" => {
                exchange.wait_for_close();
                After::Close
            }
            "endless" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
                while exchange.send(&[b'x'; 65536]) {}
                After::Close
            }
            "chunked" => {
                exchange.read_body();
                exchange.send(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                );
                After::KeepAlive
            }
            "until-close" => {
                exchange.read_body();
                exchange.send(b"HTTP/1.0 200 OK\r\n\r\nok");
                After::Close
            }
            "early" => {
                exchange.answer(403, &[("Connection", "close")], b"no");
                After::Close
            }
            "socket" => {
                exchange.send(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\nhello",
                );
                if target.ends_with("/theirs") {
                    return After::Close;
                }
                exchange.wait_for_close();
                After::Close
            }
            "unasked" => {
                exchange.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
                After::Close
            }
            _ => {
                exchange.read_body();
                exchange.answer(200, &[], b"ok");
                After::KeepAlive
            }
        }
    })
}

/// How a client behaves.
#[derive(Clone, Copy)]
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
    let ways: Vec<(&str, Vec<u8>, Behaves, &str)> = vec![
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
            raw("POST /upload HTTP/1.1\nHost: a\nContent-Length: 9\n\nabc"),
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
            request("POST", "/large", &[], Some(&[b'x'; 11])),
            Well,
            "body_too_large",
        ),
        (
            "/grows",
            raw(
                "POST /grows HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\nb\n12345678901\n0\n\n",
            ),
            Well,
            "body_too_large",
        ),
    ];
    let mut weir = Weir::start_with_bans(
        &application,
        &json!([{"netblock": "203.0.113.0/24", "ban_expires": "permanent"}]),
        &[
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_EXEMPT_PATHS", "/static"),
            ("WAF_MAX_BODY_SIZE", "10"),
            ("WAF_UPSTREAM_TIMEOUT", "1s"),
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

/// LOG-3: a request that runs when the service is told to stop has its one line, whether it ends
/// well or is cut.
#[test]
fn a_stop_loses_no_line() {
    let application = misbehaving();
    let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_TIMEOUT", "300ms")]);
    let mut held = Connection::open(weir.address());
    held.send(&get("/slow/held", &[]));
    wait_until("it at the application", || {
        let requests = application.requests();
        requests.iter().any(|seen| seen.target == "/slow/held")
    });
    for number in 0..50 {
        weir.get(&format!("/fine/{number}"), "203.0.113.7");
    }
    weir.stop();
    let log = weir.request_log();
    assert_eq!(log.len(), 51);
    assert_eq!(
        log.iter()
            .filter(|line| line["path"] == "/slow/held")
            .count(),
        1
    );
}

/// LOG-4: a reader that stalls blocks no request; what finds no room is counted in the metric and,
/// once it reads again, in the log: lines and losses together are all requests.
#[test]
fn a_stalled_reader_blocks_no_request() {
    /// More than the writer's queue of 1,024 batches of 64 lines, its buffer and a pipe hold.
    const REQUESTS: u64 = 72_000;
    const PIPELINED: u64 = 500;
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    // Open for both, so that opening waits for nobody; nothing reads from it yet.
    let mut reader = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pipe)
        .expect("opens");
    let weir = Weir::start(
        &application,
        &[
            ("WAF_LOG_FILE", pipe.to_str().expect("a path")),
            ("WAF_DENY_NETS", "198.51.100.7"),
            ("WAF_WORKERS", "1"),
        ],
    );
    let many = get("/a", &[("X-Forwarded-For", "198.51.100.7")])
        .repeat(usize::try_from(PIPELINED).expect("it fits"));
    let mut connection = Connection::open(weir.address());
    for _ in 0..REQUESTS / PIPELINED {
        connection.send(&many);
        for _ in 0..PIPELINED {
            // Each answer comes within the client's patience: nobody waits for the log.
            connection.response().expect(429);
        }
    }
    let lost = weir.metric("waf_log_lines_dropped_total").expect("it");
    assert!(lost > 0.0);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        use std::io::{BufRead, BufReader};
        let mut lines = BufReader::new(&mut reader);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|count| count > 0) {
            if tell.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    let (mut logged, mut lost_logged) = (0, 0);
    // The request for the metrics is one more.
    while logged + lost_logged < REQUESTS + 1 {
        let line = told.recv_timeout(crate::support::PATIENCE).expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        match line["event"].as_str() {
            Some("request") => logged += 1,
            Some("log_lines_dropped") => lost_logged += line["count"].as_u64().expect("a count"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(logged + lost_logged, REQUESTS + 1);
    assert_eq!(
        weir.metric("waf_log_lines_dropped_total"),
        Some(lost_logged as f64)
    );
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

/// LOG-4: a log file is opened again on SIGUSR1, so that it can be rotated.
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
    wait_until("the new file", || path.exists());
    weir.get("/after", "203.0.113.7");
    wait_for("the second line", || has(&path, "/after"));
    assert!(has(&rotated, "/after").is_none());
    assert!(weir.request_log().is_empty(), "nothing on standard output");
}
