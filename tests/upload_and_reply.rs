//! Bodies in both directions: streamed, whole, with trailers, expected or refused.

use std::time::Duration;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Ended, request};
use crate::support::transport::{self, Transport};
use crate::support::weir::Weir;
use crate::support::{GATHERED, wait_for, wait_until};

/// Neither side is buffered whole: behind the beginning of a body, which is gathered (CONN-13), the
/// application answers each piece before the client sends the next.
#[test]
fn bodies_stream_in_both_directions() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut answered = 0;
        loop {
            let more = exchange.read_some();
            let new = exchange.request.body[answered..].to_vec();
            answered = exchange.request.body.len();
            if !new.is_empty() {
                let mut chunk = format!("{:x}\r\n", new.len()).into_bytes();
                chunk.extend(new);
                chunk.extend(b"\r\n");
                exchange.send(&chunk);
            }
            if exchange.request.whole || !more {
                break;
            }
        }
        exchange.send(b"0\r\n\r\n");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    for head in [
        "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        &format!(
            "POST /sized HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            GATHERED + 10
        ),
    ] {
        let chunked = head.contains("chunked");
        let mut connection = Connection::open(weir.address());
        connection.send(head.as_bytes());
        let first = "f".repeat(GATHERED);
        for (number, piece) in [&*first, "again", "third"].into_iter().enumerate() {
            let bytes = if chunked {
                format!("{:x}\r\n{piece}\r\n", piece.len())
            } else {
                piece.to_owned()
            };
            connection.send(bytes.as_bytes());
            if number == 0 {
                assert_eq!(connection.head().expect("the head").status, 200);
            }
            let mut answered = Vec::new();
            while answered.len() < piece.len() {
                answered.extend(connection.one_chunk().expect("the echo"));
            }
            assert_eq!(answered, piece.as_bytes());
        }
        if chunked {
            connection.send(b"0\r\n\r\n");
        }
        assert_eq!(connection.one_chunk().expect("the end"), b"");
    }
}

/// Large bodies arrive byte for byte, sized or chunked, and keep their framing's kind.
#[test]
fn large_bodies_arrive_byte_for_byte() {
    let application = Application::echo();
    let weir = Weir::start(&application, &[]);
    let body: Vec<u8> = (0..3_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut connection = Connection::open(weir.address());
    connection.send(&request("PUT", "/sized", &[], Some(&body)));
    assert!(connection.response().body == body);
    assert!(!application.request("/sized").chunked);
    connection.send(b"PUT /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for piece in body.chunks(70_001) {
        connection.send(format!("{:X}\r\n", piece.len()).as_bytes());
        connection.send(piece);
        connection.send(b"\r\n");
    }
    connection.send(b"0\r\n\r\n");
    assert!(connection.response().body == body);
    assert!(application.request("/chunked").chunked);
    let line = weir.line_of("/chunked");
    assert_eq!(line["bytes"]["request"], body.len());
    assert_eq!(line["bytes"]["response"], body.len());
}

/// RFC 9110 §6.5: trailers go on in both directions, except those that would be framing, routing or
/// the proxy's own.
#[test]
fn trailers_are_passed_on() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 17\r\n\r\n");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(
        b"POST /t HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: X-End\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-End: yes\r\nContent-Length: 7\r\nX-Client-ASN: AS1\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n",
    );
    let answer = connection.response();
    assert_eq!(answer.body, b"ok");
    assert_eq!(answer.trailers, [("x-sum".into(), "17".into())]);
    let seen = application.request("/t");
    assert_eq!(seen.body, b"hi");
    assert_eq!(seen.trailers, [("x-end".into(), "yes".into())]);
}

/// RFC 9110 §10.1.1: the application's 100 reaches a client that waits for it.
#[test]
fn an_expected_100_comes() {
    let application = Application::start(|exchange| {
        if exchange.request.header("expect").is_some() {
            exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        exchange.read_body();
        exchange.answer(200, &[], b"taken");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection
        .send(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    connection.one_response(false).expect("a 100").expect(100);
    connection.send(b"body");
    let answer = connection.response();
    assert_eq!((answer.status, &answer.body[..]), (200, &b"taken"[..]));
    let seen = application.request("/up");
    assert_eq!(seen.body, b"body");
    // The expectation is met here, hop by hop: the body is asked for when the application's
    // connection takes it.
    assert_eq!(seen.header("expect"), None);
}

/// A refused request with `Expect` gets its refusal and no 100, and nothing of it goes upstream.
#[test]
fn a_refused_expectation_gets_no_100() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_DENY_NETS", "203.0.113.0/24"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    for (client, target, status) in [
        ("203.0.113.7", "/denied", 429),
        ("198.51.100.1", "/large", 413),
        ("198.51.100.1", "/_waf/nothing", 404),
    ] {
        let mut connection = Connection::open(weir.address());
        let length = if target == "/large" { 11 } else { 5 };
        connection.send(
            format!("POST {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n").as_bytes(),
        );
        let answer = connection.response();
        assert_eq!(answer.status, status);
        assert!(answer.informational.is_empty(), "{target}: {answer:?}");
    }
    assert!(application.requests().is_empty());
}

/// CONN-13: a client that waits is asked for its body before the application has the request; the
/// application can refuse it all the same.
#[test]
fn the_application_can_refuse_an_expectation() {
    let application = Application::start(|exchange| {
        exchange.answer(417, &[("Connection", "close")], b"no");
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection
        .send(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(connection.head().expect("an interim head").status, 100);
    assert!(application.requests().is_empty());
    connection.send(b"body");
    connection.response().expect(417);
}

/// The application answers early and reads no more than it must: the client sees that answer, not a
/// reset. (Where the application resets its connection, its answer can be lost on the way to us.)
#[test]
fn an_early_answer_is_not_lost() {
    let application = Application::start(|exchange| {
        exchange.answer(403, &[("Connection", "close")], b"no uploads");
        exchange.finish_sending();
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send_what_is_taken(&request("POST", "/up", &[], Some(&vec![b'x'; 400_000])));
    let answer = connection.response().expect(403);
    assert_eq!(answer.text(), "no uploads");
    assert_eq!(weir.line_of("/up")["action"], "passed");
}

/// Our own answers leave no unread body behind: what follows is parsed as its own request, or the
/// connection closes; in both cases the answer is seen, not a reset.
#[test]
fn an_unread_body_is_never_taken_for_a_request() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_DENY_NETS", "203.0.113.0/24"),
            ("WAF_MAX_BODY_SIZE", "2M"),
        ],
    );
    let smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for size in [smuggled.len(), 20_000, 1_000_000] {
        for (client, target, status) in [
            ("203.0.113.7", "/denied", 429),
            ("198.51.100.1", "/_waf/nothing", 404),
            ("198.51.100.1", "/_waf/bans", 401),
            ("198.51.100.1", "/_waf/metrics", 401),
            ("198.51.100.1", "/_waf/health", 405),
        ] {
            for chunked in [false, true] {
                let body = smuggled.repeat(size / smuggled.len());
                let mut bytes =
                    format!("POST {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n")
                        .into_bytes();
                if chunked {
                    bytes.extend(
                        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len()).bytes(),
                    );
                    bytes.extend(&body);
                    bytes.extend(b"\r\n0\r\n\r\n");
                } else {
                    bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
                    bytes.extend(&body);
                }
                bytes.extend(
                    b"GET /follow-up HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1\r\n\r\n",
                );
                let mut connection = Connection::open(weir.address());
                connection.send_what_is_taken(&bytes);
                let answer = connection
                    .try_response(false)
                    .unwrap_or_else(|ended| panic!("{target} {size}: {ended:?}"));
                assert_eq!(answer.status, status, "{target}");
                match connection.try_response(false) {
                    Ok(next) => assert_eq!(next.text(), "hello /follow-up", "{target} {size}"),
                    Err(Ended::Closed | Ended::Reset) => {}
                    Err(other) => panic!("{target} {size}: {other:?}"),
                }
            }
        }
    }
    for seen in application.requests() {
        assert_eq!(seen.target, "/follow-up");
    }
}

/// A refusal is seen by who goes on sending, however large the body: the connection lingers instead
/// of being reset.
#[test]
fn a_refusal_is_seen_by_who_still_sends() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_MAX_BODY_SIZE", "1K"),
            ("WAF_DENY_NETS", "203.0.113.0/24"),
        ],
    );
    for (client, target, status) in [
        ("198.51.100.1", "/up", 413),
        ("203.0.113.7", "/denied", 429),
        ("192.0.2.200", "/_waf/nothing", 404),
        ("192.0.2.200", "/_waf/bans", 401),
    ] {
        let length = 400_000;
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut connection = Connection::open(weir.address());
        connection.send(head.as_bytes());
        connection.send(&[b'x'; 100]);
        let answer = connection.head().expect("the head of the answer");
        assert_eq!(answer.status, status, "{target}");
        // Over HTTP/2 only the stream ends.
        let closes = (transport::asked_for() != Transport::Http2).then_some("close");
        assert_eq!(answer.header("connection"), closes, "{target}");
        // A reset would take what was not read yet, and the next bytes would be refused.
        for _ in 0..4 {
            connection.send(&[b'x'; 90_000]);
        }
        let body = answer
            .header("content-length")
            .map_or(0, |length| length.parse().expect("a length"));
        assert_eq!(
            connection.bytes(body).expect("the whole answer").len(),
            body,
            "{target}"
        );
    }
}

/// CONN-10, WAF_BODY_TIMEOUT, WAF_HEADER_TIMEOUT, WAF_KEEPALIVE_TIMEOUT: who sends nothing is let
/// go, in the middle of a request with a 408.
#[test]
fn slow_senders_are_let_go() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_HEADER_TIMEOUT", "2s"),
            ("WAF_BODY_TIMEOUT", "2s"),
            ("WAF_KEEPALIVE_TIMEOUT", "2s"),
        ],
    );
    // Each within half of what is the default.
    let mut head = Connection::open(weir.address());
    head.set_patience(Duration::from_secs(5));
    head.send(b"GET /slow HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    head.response().expect(408);
    assert!(head.ends());
    let mut body = Connection::open(weir.address());
    body.set_patience(Duration::from_secs(5));
    body.send(b"POST /slow-body HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    let answer = body.response().expect(408);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.header("x-request-id").is_some());
    assert!(body.ends());
    let line = weir.line_of("/slow-body");
    assert_eq!(
        (&line["action"], &line["status"]),
        (&"client_aborted".into(), &408.into())
    );
    let mut idle = Connection::open(weir.address());
    idle.send(b"GET /idle HTTP/1.1\r\nHost: a\r\n\r\n");
    idle.response().expect(200);
    idle.set_patience(Duration::from_secs(5));
    assert!(idle.ends(), "an idle connection is closed");
    wait_for("a count of the slow head", || {
        let series = "waf_connection_errors_total{kind=\"head_timeout\"}";
        (weir.metric(series)? >= 1.0).then_some(())
    });
    assert!(
        application
            .requests()
            .iter()
            .all(|seen| seen.target != "/slow")
    );
}

/// A client that breaks off its upload ends the upstream request, which never looks whole.
#[test]
fn a_broken_upload_never_looks_whole() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let (length, part) = (GATHERED + 10, "x".repeat(GATHERED));
    for (path, head) in [
        ("/sized", format!("Content-Length: {length}")),
        (
            "/chunked",
            format!("Transfer-Encoding: chunked\r\n\r\n{length:x}"),
        ),
    ] {
        let mut connection = Connection::open(weir.address());
        let end = if path == "/sized" { "\r\n\r\n" } else { "\r\n" };
        let begun = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{head}{end}{part}");
        connection.send(begun.as_bytes());
        wait_until("its head upstream", || {
            application
                .requests()
                .iter()
                .any(|seen| seen.target == path)
        });
        drop(connection);
        assert_eq!(weir.line_of(path)["action"], "client_aborted");
    }
    wait_until("the ends upstream", || {
        application.closed_connections() == application.connections()
    });
    assert!(application.requests().iter().all(|seen| !seen.whole));
}
