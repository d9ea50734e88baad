//! What a reverse proxy owes both sides (RFC 9110, RFC 9112): fields, connections, failures of the
//! application.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Ended, exchange, get, request, try_exchange};
use crate::support::wait_until;
use crate::support::weir::{Weir, state_dir};

/// Connections are kept alive on both sides.
#[test]
fn connections_are_kept_on_both_sides() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    let mut connection = Connection::open(weir.address());
    for n in 0..10 {
        connection.send(&get(&format!("/{n}"), &[]));
        let response = connection.response();
        assert_eq!(response.text(), format!("hello /{n}"));
        assert_ne!(response.header("connection"), Some("close"));
    }
    assert_eq!(application.connections(), 1);
}

/// The request line, the fields and `Host` arrive as they were sent; the answer's return as they
/// were given.
#[test]
fn both_heads_pass_unchanged() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(
            b"HTTP/1.1 418 I'm a teapot\r\nContent-Type: text/x; charset=\"u\"\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Empty:\r\nX-Odd: caf\xc3\xa9\r\nETag: W/\"x\"\r\nLocation: http://internal/\r\nContent-Encoding: gzip\r\nDate: Sat, 21 Nov 2026 16:00:00 GMT\r\nServer: app/1\r\nContent-Length: 3\r\n\r\nabc",
        );
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    let target = "/a//b/../c;p=1/%2F%41%ff?q=1&&r=%20+%00#";
    let target = target.trim_end_matches('#');
    let answer = weir.send(&request(
        "PATCH",
        target,
        &[
            ("Host", "shop.example:8443"),
            ("Accept", "text/html, */*;q=0.1"),
            ("Cookie", "a=1; b=2"),
            ("Authorization", "Basic eDp5"),
            ("X-Odd", "café"),
            ("X-Twice", "1"),
            ("X-Twice", "2"),
            ("Accept-Encoding", "gzip, br"),
            ("Range", "bytes=0-1"),
            ("If-None-Match", "W/\"x\""),
            ("Max-Forwards", "3"),
        ],
        Some(b"body"),
    ));
    assert_eq!(answer.status, 418);
    assert_eq!(answer.body, b"abc");
    assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
    for (name, value) in [
        ("content-type", "text/x; charset=\"u\""),
        ("x-empty", ""),
        ("x-odd", "café"),
        ("etag", "W/\"x\""),
        ("location", "http://internal/"),
        ("content-encoding", "gzip"),
        ("date", "Sat, 21 Nov 2026 16:00:00 GMT"),
        ("server", "app/1"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    let seen = application.request(target);
    assert_eq!(seen.method, "PATCH");
    assert_eq!(seen.body, b"body");
    assert_eq!(seen.header("host"), Some("shop.example:8443"));
    for (name, value) in [
        ("accept", "text/html, */*;q=0.1"),
        // The application's parser makes a character of each byte.
        ("x-odd", "caf\u{c3}\u{a9}"),
        ("cookie", "a=1; b=2"),
        ("authorization", "Basic eDp5"),
        ("accept-encoding", "gzip, br"),
        ("range", "bytes=0-1"),
        ("if-none-match", "W/\"x\""),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    let twice: Vec<_> = seen
        .headers
        .iter()
        .filter(|(n, _)| n == "x-twice")
        .collect();
    assert_eq!(twice.len(), 2);
}

/// RFC 9112 §3.2.2: an absolute target goes on in origin form, and its authority wins over `Host`.
#[test]
fn absolute_form_becomes_origin_form() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let answer = weir.send(&get(
        "http://other.example:81/x?y=1",
        &[("Host", "ignored.example")],
    ));
    assert_eq!(answer.status, 200);
    assert_eq!(
        application.request("/x?y=1").header("host"),
        Some("other.example:81")
    );
    let options = weir.send(&request("OPTIONS", "*", &[], None));
    assert_eq!(options.status, 200);
    assert_eq!(application.request("*").method, "OPTIONS");
}

/// RFC 9110 §7.6.1: hop-by-hop fields, and those that `Connection` names, end here in both
/// directions.
#[test]
fn hop_by_hop_fields_end_here() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(
            200,
            &[
                ("Connection", "X-Private, keep-alive"),
                ("X-Private", "1"),
                ("Keep-Alive", "timeout=5"),
                ("Proxy-Authenticate", "Basic"),
                ("Proxy-Connection", "keep-alive"),
                ("Upgrade", "h2c"),
                ("X-Public", "1"),
            ],
            b"ok",
        );
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    let answer = weir.send(&get(
        "/hop",
        &[
            ("Connection", "X-Private, close"),
            ("X-Private", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic eDp5"),
            ("TE", "gzip"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
            ("X-Public", "1"),
        ],
    ));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-public"), Some("1"));
    for name in [
        "x-private",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "upgrade",
    ] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    let seen = application.request("/hop");
    assert_eq!(seen.header("x-public"), Some("1"));
    for name in [
        "x-private",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "upgrade",
    ] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_ne!(
        seen.header("connection"),
        Some("close"),
        "the client's wish is the client's"
    );
    assert!(seen.header("te").is_none_or(|te| te == "trailers"));
}

/// HTTP/1.0 clients are served and their connection closes; chunks are no answer to them.
#[test]
fn http_1_0_is_served() {
    let application = Application::start(|exchange| {
        exchange
            .send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(b"GET /old HTTP/1.0\r\nHost: example.org\r\n\r\n");
    let text = String::from_utf8(connection.rest(Duration::from_secs(5))).expect("text");
    assert!(text.ends_with("\r\n\r\nabc"), "{text}");
    assert!(
        !text.to_ascii_lowercase().contains("transfer-encoding"),
        "{text}"
    );
}

/// An answer without a length ends with the connection upstream, and is whole for the client.
#[test]
fn an_answer_up_to_the_close_is_whole() {
    let application = Application::raw(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
        true,
    );
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    for _ in 0..2 {
        connection.send(&get("/", &[]));
        assert_eq!(connection.response().body, b"until the end");
    }
}

/// A stale pooled connection: a GET is sent again on a fresh one, and the client notices nothing.
#[test]
fn a_stale_connection_does_not_cost_a_get() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], b"ok");
        // Kept alive as far as the answer says, and closed without notice.
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    for n in 0..20 {
        let answer = weir.get(&format!("/{n}"), "203.0.113.7");
        assert_eq!(answer.status, 200, "request {n}: {answer:?}");
    }
    assert_eq!(application.requests().len(), 20);
}

/// A connection that the application closed while it lay idle costs nothing, not even a POST:
/// nothing was sent on it.
#[test]
fn a_connection_closed_while_idle_costs_nothing() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], b"ok");
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    for n in 0..10 {
        let target = format!("/{n}");
        let answer = weir.send(&request("POST", &target, &[], Some(b"once")));
        assert_eq!(answer.status, 200, "request {n}: {answer:?}");
        wait_until("the close", || application.closed_connections() == n + 1);
        // The worker has been told of the close before it is told of the next connection, which is
        // later.
        weir.get("/_waf/health", "203.0.113.7").expect(200);
    }
    let bodies = application.requests();
    assert!(
        bodies.len() == 10 && bodies.iter().all(|seen| seen.body == b"once"),
        "{bodies:?}"
    );
}

/// A kept connection that dies on a second GET: the GET is sent once more. A POST that was sent is
/// not.
#[test]
fn only_what_is_safe_is_sent_again() {
    for (method, status, seen) in [("GET", 200, 2), ("HEAD", 200, 2), ("POST", 502, 1)] {
        let deaths = AtomicUsize::new(0);
        let application = Application::start(move |exchange| {
            exchange.read_body();
            let dies =
                exchange.request.target == "/dies" && deaths.fetch_add(1, Ordering::SeqCst) == 0;
            if dies {
                return After::Reset;
            }
            exchange.answer(200, &[], b"ok");
            After::KeepAlive
        });
        let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
        weir.get("/first", "203.0.113.7").expect(200);
        let body: Option<&[u8]> = (method == "POST").then_some(b"once");
        let answer = weir.send(&request(method, "/dies", &[], body));
        assert_eq!(answer.status, status, "{method}");
        let count = application
            .requests()
            .iter()
            .filter(|request| request.target == "/dies")
            .count();
        assert_eq!(count, seen, "{method}");
    }
}

/// A request that a fresh connection answers with nothing is not sent again and again.
#[test]
fn retries_are_bounded() {
    let application = Application::start(|_| After::Close);
    let weir = Weir::start(&application, &[]);
    weir.get("/", "203.0.113.7").expect(502);
    assert!(
        application.requests().len() <= 2,
        "{}",
        application.requests().len()
    );
    assert_eq!(weir.line_of("/")["action"], "upstream_error");
}

/// Nobody listens upstream: 502 at once.
#[test]
fn a_refused_connection_is_502() {
    let (nobody, _bound) = Application::nobody();
    let weir = Weir::start_at(nobody, &state_dir(), &[]);
    let answer = weir.get("/gone", "203.0.113.7");
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert!(answer.json()["request_id"].is_string());
    let line = weir.line_of("/gone");
    assert_eq!(line["action"], "upstream_error");
    assert_eq!(line["status"], 502);
}

/// An application that says nothing in time: 504, and its connection is ended.
#[test]
fn a_silent_application_is_504() {
    let application = Application::start(|exchange| {
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_UPSTREAM_TIMEOUT", "200ms")]);
    let start = Instant::now();
    weir.get("/slow", "203.0.113.7").expect(504);
    assert!(start.elapsed() >= Duration::from_millis(190));
    assert_eq!(weir.line_of("/slow")["action"], "upstream_error");
    wait_until("the end upstream", || application.closed_connections() == 1);
}

/// An answer that stalls midway is broken off, not completed.
#[test]
fn a_stalled_answer_is_broken_off() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_UPSTREAM_TIMEOUT", "2s")]);
    match try_exchange(weir.address(), &get("/stall", &[])) {
        Err(Ended::Cut(part)) => assert_eq!(part.body, b"abc"),
        other => panic!("{other:?}"),
    }
    assert_eq!(weir.line_of("/stall")["action"], "upstream_error");
}

/// Each failure of the application is told in the process log with its cause, as its request has
/// none.
#[test]
fn the_process_log_says_how_the_application_failed() {
    const PART: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
    let application = Application::start(|exchange| {
        match &*exchange.request.target {
            "/none" => {}
            "/part" => drop(exchange.send(PART)),
            "/stall" => {
                exchange.send(PART);
                exchange.wait_for_close();
            }
            _ => exchange.wait_for_close(),
        }
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_UPSTREAM_TIMEOUT", "1s")]);
    for (target, told) in [
        (
            "/none",
            "the application closed a connection without a response",
        ),
        ("/part", "the application's response broke off"),
        ("/stall", "WAF_UPSTREAM_TIMEOUT in the middle of a response"),
        (
            "/late",
            "the application was silent for WAF_UPSTREAM_TIMEOUT\"",
        ),
    ] {
        // Nothing, or a part of an answer.
        drop(try_exchange(weir.address(), &get(target, &[])));
        assert_eq!(weir.line_of(target)["action"], "upstream_error", "{target}");
        weir.wait_for_process_log(&["WARN", told]);
    }
}

/// A slow but steady answer is whole: WAF_UPSTREAM_TIMEOUT is for silence, not for length.
#[test]
fn a_slow_answer_is_whole() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
        for byte in b"patience" {
            std::thread::sleep(Duration::from_millis(450));
            exchange.send(&[*byte]);
        }
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_UPSTREAM_TIMEOUT", "3s")]);
    assert_eq!(weir.get("/slow", "203.0.113.7").body, b"patience");
    assert_eq!(weir.line_of("/slow")["action"], "passed");
}

/// Clients that abort, midway through an upload or an answer, leave no descriptor behind.
#[test]
fn aborts_leave_nothing_behind() {
    let application = Application::start(|exchange| {
        if exchange.request.target == "/fine" {
            exchange.answer(200, &[], b"ok");
            return After::KeepAlive;
        }
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        while exchange.send(&[b'y'; 65536]) {}
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{}/fd", weir.pid()))
            .expect("its descriptors")
            .count()
    };
    weir.get("/fine", "203.0.113.7").expect(200);
    let before = descriptors();
    for n in 0..200 {
        let mut connection = Connection::open(weir.address());
        if n % 2 == 0 {
            connection.send(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
        } else {
            connection.send(&get("/answer", &[]));
            connection.head().expect("a head");
        }
        connection.reset();
    }
    // Two more: idle upstream connections of both workers may be kept.
    wait_until("the descriptors", || descriptors() <= before + 2);
    weir.get("/fine", "203.0.113.7").expect(200);
}

/// A broken answer is a 502 or an aborted connection, never a whole-looking one; its connection is
/// never used again.
#[test]
fn broken_answers_never_look_whole() {
    let answers: &[(&str, &'static [u8], bool)] = &[
        ("nothing", b"", true),
        ("garbage", b"\x16\x03\x01 no HTTP at all\r\n\r\n", true),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n", true),
        ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", true),
        ("a wrong length", b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc", true),
        ("a negative length", b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc", true),
        ("cut off", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", true),
        ("cut in the head", b"HTTP/1.1 200 OK\r\nContent-Le", true),
        ("cut in the chunks", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", true),
        ("no last chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", true),
        ("a wrong chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", true),
        ("a wrong status", b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n", true),
        ("a folded field", b"HTTP/1.1 200 OK\r\nX: a\r\n\0b: c\r\nContent-Length: 0\r\n\r\n", true),
        ("an unasked 101", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nraw", false),
    ];
    for (name, bytes, close) in answers {
        let application = Application::raw(bytes, *close);
        let weir = Weir::start(&application, &[("WAF_UPSTREAM_TIMEOUT", "2s")]);
        match try_exchange(weir.address(), &get("/broken", &[])) {
            Ok(answer) => assert_eq!(answer.status, 502, "{name}: {answer:?}"),
            Err(Ended::TimedOut) => panic!("{name}: no end"),
            Err(_) => {}
        }
        assert_eq!(
            weir.line_of("/broken")["action"],
            "upstream_error",
            "{name}"
        );
    }
}

/// A head of 1.5 MB is no answer.
#[test]
fn an_endless_answer_head_is_502() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\n");
        let line = format!("X-Long: {}\r\n", "x".repeat(1000));
        for _ in 0..1500 {
            if !exchange.send(line.as_bytes()) {
                break;
            }
        }
        exchange.send(b"Content-Length: 0\r\n\r\n");
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    weir.get("/bomb", "203.0.113.7").expect(502);
}

/// Bytes after an answer belong to nobody: the next request gets its own answer on another
/// connection.
#[test]
fn extra_bytes_are_no_answer_to_the_next() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let body = exchange.request.target.clone();
        let mut bytes = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        bytes.push_str("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison");
        exchange.send(bytes.as_bytes());
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    let mut connection = Connection::open(weir.address());
    for n in 0..10 {
        connection.send(&get(&format!("/{n}"), &[]));
        let answer = connection.response();
        assert_ne!(answer.body, b"poison");
        assert_eq!(answer.expect(200).text(), format!("/{n}"));
    }
    let mut used: Vec<_> = application
        .requests()
        .iter()
        .map(|seen| seen.connection)
        .collect();
    let count = used.len();
    used.dedup();
    assert_eq!(used.len(), count, "a poisoned connection was used again");
}

/// An answer to HEAD, a 204 and a 304 have no body, whatever the application sends after them.
#[test]
fn bodiless_answers_stay_bodiless() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let status = exchange.request.target.trim_start_matches('/').to_owned();
        exchange.send(
            format!("HTTP/1.1 {status} X\r\nETag: \"e\"\r\nContent-Length: 6\r\n\r\npoison")
                .as_bytes(),
        );
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    let mut connection = Connection::open(weir.address());
    for (method, target, status) in [
        ("HEAD", "/200", 200),
        ("GET", "/204", 204),
        ("GET", "/304", 304),
        ("GET", "/200", 200),
    ] {
        connection.send(&request(method, target, &[], None));
        let answer = connection
            .try_response(method == "HEAD")
            .unwrap_or_else(|ended| panic!("{method} {target}: {ended:?}"));
        assert_eq!(answer.status, status, "{answer:?}");
        let expected: &[u8] = if target == "/200" && method == "GET" {
            b"poison"
        } else {
            b""
        };
        assert_eq!(answer.body, expected, "{method} {target}");
        assert!(!connection.has_leftovers(), "{method} {target}");
    }
}

/// HEAD: the length of the answer is told, the body is not sent.
#[test]
fn head_keeps_the_length() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(&request("HEAD", "/abc", &[], None));
    let answer = connection.response_to_head();
    assert_eq!(answer.header("content-length"), Some("10"));
    connection.send(&get("/abc2", &[]));
    assert_eq!(connection.response().text(), "hello /abc2");
}

/// An application with four interim answers before each answer.
fn with_interim_answers() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        exchange.send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
              HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x-own\r\nX-Own: 1\r\n\r\n\
              HTTP/1.1 103 More\r\nLink: </b>\r\n\r\n",
        );
        exchange.answer(200, &[], b"done");
        After::KeepAlive
    })
}

/// FORWARD-6: interim answers reach a client in front of the answer, without fields of one hop. A
/// 100 that nobody asked for is not one of them.
#[test]
fn interim_answers_reach_who_knows_them() {
    let application = with_interim_answers();
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    let mut connection = Connection::open(weir.address());
    for number in 0..3 {
        connection.send(&get(&format!("/{number}"), &[]));
        let answer = connection.response();
        assert_eq!((answer.status, &answer.body[..]), (200, &b"done"[..]));
        assert_eq!(answer.header("link"), None);
        let interim: Vec<_> = answer
            .informational
            .iter()
            .map(|each| (each.status, each.headers.clone()))
            .collect();
        let link = |value: &str| vec![("link".to_owned(), value.to_owned())];
        let expected = [(102, vec![]), (103, link("</a>")), (103, link("</b>"))];
        assert_eq!(interim, expected);
    }
    assert_eq!(
        weir.metric("waf_responses_total{class=\"1xx\"}"),
        Some(12.0)
    );
}

/// FORWARD-6: an HTTP/1.0 client gets no interim answers.
#[test]
fn http_1_0_gets_no_interim_answers() {
    let application = with_interim_answers();
    let weir = Weir::start(&application, &[]);
    let mut old = Connection::open(weir.address());
    old.send(b"GET /old HTTP/1.0\r\n\r\n");
    let text = String::from_utf8(old.rest(Duration::from_secs(5))).expect("text");
    assert!(
        text.starts_with("HTTP/1.0 200 ") && text.ends_with("\r\n\r\ndone"),
        "{text}"
    );
    assert_eq!(weir.metric("waf_responses_total{class=\"1xx\"}"), Some(4.0));
}

/// TRACE and CONNECT make no tunnel; the HTTP/2 preface and h2c are no second language.
#[test]
fn there_is_no_tunnel_to_be_had() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for (bytes, status) in [
        (
            &b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n"[..],
            405,
        ),
        (b"CONNECT /x HTTP/1.1\r\nHost: example.org\r\n\r\n", 405),
        (b"TRACE /x HTTP/1.1\r\nHost: example.org\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ] {
        exchange(weir.address(), bytes).expect(status);
    }
    assert!(
        application.requests().is_empty(),
        "{:?}",
        application.requests()
    );
    let h2c = exchange(
        weir.address(),
        &get(
            "/h2c",
            &[
                ("Connection", "Upgrade, HTTP2-Settings"),
                ("Upgrade", "h2c"),
                ("HTTP2-Settings", "AAMA"),
            ],
        ),
    );
    assert_eq!(h2c.status, 200);
    let seen = application.request("/h2c");
    assert_eq!(seen.header("upgrade"), None);
    assert_eq!(seen.header("http2-settings"), None);
}

/// The client goes away while the application still works: the upstream request is ended.
#[test]
fn a_client_that_leaves_ends_the_upstream_request() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.record();
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    for abruptly in [false, true] {
        let before = application.closed_connections();
        let path = if abruptly { "/reset" } else { "/closed" };
        let mut connection = Connection::open(weir.address());
        connection.send(&get(path, &[]));
        application.request(path);
        if abruptly {
            connection.reset();
        } else {
            drop(connection);
        }
        wait_until("the end upstream", || {
            application.closed_connections() > before
        });
        let line = weir.line_of(path);
        assert_eq!(line["action"], "client_aborted");
    }
}

/// The client goes away in the middle of the answer: the application is not left writing into
/// nothing.
#[test]
fn a_client_that_leaves_midway_ends_the_answer() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        while exchange.send(&[b'y'; 65536]) {}
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(&get("/endless", &[]));
    connection.head().expect("a head");
    connection.bytes(100_000).expect("some of it");
    connection.reset();
    wait_until("the end upstream", || application.closed_connections() == 1);
    let line = weir.line_of("/endless");
    assert_eq!(line["action"], "client_aborted");
    assert!(line["bytes"]["response"].as_u64() >= Some(100_000));
}
