//! Request smuggling and its relatives: what arrives upstream is one well-framed request, or
//! nothing.
//!
//! The application's parser is the judge: it knows one way to read a request and calls everything
//! else a fault.

use std::time::Duration;

use proptest::prelude::*;

use crate::support::application::{Application, Received};
use crate::support::raw_client::{Connection, Ended, get, request};
use crate::support::weir::Weir;

/// What the service may do with a hostile message.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Allowed {
    /// Refuse it with a 4xx or 501 or close, and end the connection.
    Refuse,
    /// That, or pass it on as one well-framed request.
    RefuseOrPass,
}

use Allowed::{Refuse, RefuseOrPass};

/// A request that must not come out of another one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn hostile_framing_reaches_nobody() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let post = |fields: &str, body: &str| {
        format!("POST /hostile HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}").into_bytes()
    };
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let mut cases: Vec<(String, Vec<u8>, Allowed)> = Vec::new();
    let mut case = |name: &str, bytes: Vec<u8>, allowed: Allowed| {
        cases.push((name.to_owned(), bytes, allowed));
    };

    // RFC 9112 §6.3: both framings at once. The length is dropped, and the connection ends behind
    // the answer.
    let zero = format!("0\r\n\r\n{SMUGGLED}");
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 60\r\nTransfer-Encoding: chunked\r\n",
    ] {
        case(fields, post(fields, &zero), RefuseOrPass);
    }
    // Codings that are not exactly `chunked`, once.
    for fields in [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: chunked\0\r\n",
        "Transfer-Encoding : chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding\r\n: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
    ] {
        case(fields, post(fields, &zero), Refuse);
    }
    case(
        "upper case",
        post("TRANSFER-ENCODING: CHUNKED\r\n", "0\r\n\r\n"),
        RefuseOrPass,
    );
    // RFC 9112 §2.2: a bare LF may end a line; then it must end it for the application too.
    for fields in [
        "X: y\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\nX: y\r\n",
    ] {
        case(fields, post(fields, "0\r\n\r\n"), RefuseOrPass);
    }
    // Lengths that are no lengths.
    for length in [
        "+5",
        "-1",
        "5,5",
        "5, 5",
        "5,6",
        "0x5",
        "5 5",
        "5;",
        "٥",
        "",
        "5\0",
        "1e1",
        "5.0",
        "18446744073709551616",
        "99999999999999999999999",
        "\x0b5",
    ] {
        let fields = format!("Content-Length: {length}\r\n");
        let allowed = if matches!(length, "5,5" | "5, 5") {
            RefuseOrPass
        } else {
            Refuse
        };
        case(&fields, post(&fields, &format!("hello{SMUGGLED}")), allowed);
    }
    case(
        "two lengths",
        post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello!"),
        Refuse,
    );
    case(
        "one length twice",
        post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
        RefuseOrPass,
    );
    case(
        "a blank before the colon",
        post("Content-Length : 5\r\n", &format!("hello{SMUGGLED}")),
        Refuse,
    );
    // Twins that a CGI-like application takes for the real ones.
    for fields in [
        "Transfer_Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content_Length: 60\r\nContent-Length: 5\r\n",
    ] {
        case(fields, post(fields, "hello"), RefuseOrPass);
    }
    // Line ends and control bytes.
    for (name, bytes) in [
        (
            "folded",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        ),
        (
            "folded by a tab",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX: y\r\n\tTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            "a leading fold",
            "GET /hostile HTTP/1.1\r\n Host: a\r\nHost: a\r\n\r\n",
        ),
        (
            "bare CR",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX: y\rz\r\n\r\n",
        ),
        (
            "NUL in a value",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        ),
        (
            "NUL in a name",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n",
        ),
        (
            "ESC",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX: \x1b[31m\r\n\r\n",
        ),
        ("DEL", "GET /hostile HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n"),
        (
            "a control byte in the target",
            "GET /hostile\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "NUL in the target",
            "GET /hostile\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "a tab in the request line",
            "GET\t/hostile\tHTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "a blank in the target",
            "GET /hostile x HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        (
            "no colon",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
        ),
        (
            "an empty name",
            "GET /hostile HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n",
        ),
        (
            "a blank in a name",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n",
        ),
        ("no version", "GET /hostile\r\nHost: a\r\n\r\n"),
        ("version 1.2", "GET /hostile HTTP/1.2\r\nHost: a\r\n\r\n"),
        ("version 2.0", "GET /hostile HTTP/2.0\r\nHost: a\r\n\r\n"),
        ("version 0.9", "GET /hostile HTTP/0.9\r\nHost: a\r\n\r\n"),
        ("lower case", "GET /hostile http/1.1\r\nHost: a\r\n\r\n"),
        ("another protocol", "\x16\x03\x01\x02\0\x01\0\x01"),
        ("no Host", "GET /hostile HTTP/1.1\r\n\r\n"),
        (
            "two Hosts",
            "GET /hostile HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        ),
        (
            "a Host that is none",
            "GET /hostile HTTP/1.1\r\nHost: a/b@c\r\n\r\n",
        ),
        (
            "1.0 with chunks",
            "POST /hostile HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
    ] {
        case(name, bytes.as_bytes().to_vec(), Refuse);
    }
    // RFC 9112 §2.2 lets a bare LF end a line, so it may be read; but it never goes on.
    case(
        "bare LF",
        b"GET /hostile HTTP/1.1\nHost: a\n\n".to_vec(),
        RefuseOrPass,
    );
    case(
        "one bare LF",
        b"GET /hostile HTTP/1.1\r\nHost: a\nX: y\r\n\r\n".to_vec(),
        RefuseOrPass,
    );
    case(
        "a leading empty line",
        b"\r\nGET /hostile HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        RefuseOrPass,
    );
    case(
        "invalid UTF-8",
        b"GET /hostile HTTP/1.1\r\nHost: a\r\nCookie: \xff\xfe\r\n\r\n".to_vec(),
        RefuseOrPass,
    );
    // Chunks.
    for (name, body, allowed) in [
        ("an empty size", "\r\nhello\r\n0\r\n\r\n", Refuse),
        ("a plus", "+5\r\nhello\r\n0\r\n\r\n", Refuse),
        ("a minus", "-5\r\nhello\r\n0\r\n\r\n", Refuse),
        ("hex sign", "0x5\r\nhello\r\n0\r\n\r\n", Refuse),
        ("no hex", "g\r\nhello\r\n0\r\n\r\n", Refuse),
        ("65 bits", "10000000000000005\r\nhello\r\n0\r\n\r\n", Refuse),
        ("64 bits", "ffffffffffffffff\r\nhello\r\n0\r\n\r\n", Refuse),
        (
            "wraps with its CRLF",
            "fffffffffffffffe\r\nhello\r\n0\r\n\r\n",
            Refuse,
        ),
        ("32 bits over", "100000005\r\nhello\r\n0\r\n\r\n", Refuse),
        ("no CRLF after the data", "5\r\nhelloX\r\n0\r\n\r\n", Refuse),
        ("data too long", "5\r\nhello world\r\n0\r\n\r\n", Refuse),
        (
            "bare LF after the size",
            "5\nhello\r\n0\r\n\r\n",
            RefuseOrPass,
        ),
        ("bare LF after the data", "5\r\nhello\n0\r\n\r\n", Refuse),
        ("bare CR after the size", "5\rhello\r\n0\r\n\r\n", Refuse),
        (
            "leading zeros",
            "000000000000000000000005\r\nhello\r\n0\r\n\r\n",
            RefuseOrPass,
        ),
        (
            "an extension",
            "5;a=b\r\nhello\r\n0;c\r\n\r\n",
            RefuseOrPass,
        ),
        (
            "an extension with a bare LF",
            "5;a=b\nX\r\nhello\r\n0\r\n\r\n",
            Refuse,
        ),
        (
            "a blank after the size",
            "5 \r\nhello\r\n0\r\n\r\n",
            RefuseOrPass,
        ),
        (
            "a folded trailer",
            "5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n",
            Refuse,
        ),
        (
            "a trailer without colon",
            "5\r\nhello\r\n0\r\nnonsense\r\n\r\n",
            Refuse,
        ),
        (
            "NUL in a trailer",
            "5\r\nhello\r\n0\r\nX: \0\r\n\r\n",
            Refuse,
        ),
        (
            "framing in a trailer",
            "5\r\nhello\r\n0\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\nHost: b\r\n\r\n",
            RefuseOrPass,
        ),
    ] {
        case(&format!("chunks: {name}"), chunked(body), allowed);
    }
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(64 * 1024));
    case("a 64 KiB chunk extension", chunked(&long), RefuseOrPass);

    for (number, (name, bytes, allowed)) in cases.iter().enumerate() {
        let before = application.requests().len();
        // What follows a message that is passed may arrive while the next one is judged.
        let victim = format!("/victim/{number}");
        hostile(&weir, &application, name, (bytes, &victim), *allowed);
        if *allowed == Refuse {
            // A body is read while it is passed on, so a broken one can be there in part; never
            // whole.
            let new = &application.requests()[before..];
            let is_of_it = |seen: &&Received| seen.target == victim || seen.target == "/hostile";
            let whole = new.iter().filter(is_of_it).find(|seen| seen.whole);
            assert!(whole.is_none(), "{name:?}: {whole:?}");
        }
    }
    let requests = application.requests();
    assert!(
        requests
            .iter()
            .all(|seen| seen.target == "/hostile" || seen.target.starts_with("/victim/"))
    );
    println!("{} hostile messages, 0 misframed", cases.len());
}

/// Sends one hostile message and what would come out of it, and judges what came back.
#[track_caller]
fn hostile(
    weir: &Weir,
    application: &Application,
    name: &str,
    (bytes, victim): (&[u8], &str),
    allowed: Allowed,
) {
    let mut connection = Connection::open(weir.address());
    connection.send_what_is_taken(bytes);
    connection.send_what_is_taken(SMUGGLED.replace("/smuggled", victim).as_bytes());
    connection.finish_sending();
    match connection.try_response(false) {
        Ok(answer) if allowed == Refuse => {
            let refused = (400..500).contains(&answer.status) || answer.status == 501;
            assert!(refused, "{name:?}: {answer:?}");
            connection.set_patience(Duration::from_secs(5));
            assert!(connection.ends(), "{name:?}: the connection stays open");
        }
        Ok(answer) => {
            let refused = (400..500).contains(&answer.status) || answer.status == 501;
            assert!(answer.status == 200 || refused, "{name:?}: {answer:?}");
        }
        Err(Ended::TimedOut) => panic!("{name:?}: left hanging"),
        Err(Ended::Malformed(what)) => panic!("{name:?}: {what}"),
        Err(Ended::Closed | Ended::Reset | Ended::Cut(_)) => {}
    }
    assert!(
        application.faults().is_empty(),
        "{name:?}: {:?}",
        application.faults()
    );
    for seen in application.requests() {
        assert_ne!(seen.target, "/smuggled", "{name:?}");
    }
}

/// RFC 9112 §6.1, §6.3: `Content-Length` beside `chunked` is refused, and the connection ends
/// behind the answer: what follows is not read as a request.
#[test]
fn both_framings_at_once_end_the_connection() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(
        b"POST /both HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    );
    connection.send_what_is_taken(SMUGGLED.as_bytes());
    let answer = connection.response().expect(400);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(connection.ends() && !connection.has_leftovers());
    assert!(application.requests().is_empty());
}

/// CHECK-7: a health check with a body is answered, and its connection ends behind the answer: the
/// body is not read as a request. Whether the peer is trusted, or refused, makes no difference.
#[test]
fn the_body_of_a_health_check_is_no_request() {
    let application = Application::ok();
    let chunk = format!("{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len());
    let length = format!("Content-Length: {}\r\n", SMUGGLED.len());
    for setting in ["WAF_TRUSTED_PROXIES", "WAF_DENY_NETS", "WAF_ALLOW_NETS"] {
        let weir = Weir::start(&application, &[(setting, "127.0.0.1")]);
        for (method, fields, body) in [
            ("GET", length.as_str(), SMUGGLED),
            ("HEAD", &length, SMUGGLED),
            ("GET", "Transfer-Encoding: chunked\r\n", &chunk),
            ("GET", "Content-Length: 5\r\n", "GET /"),
        ] {
            let mut connection = Connection::open(weir.address());
            let head = format!("{method} /_waf/health HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            connection.send((head + body).as_bytes());
            connection.send_what_is_taken(SMUGGLED.as_bytes());
            let answer = connection.try_response(method == "HEAD").unwrap();
            let said = (answer.status, answer.header("connection"));
            assert_eq!(said, (200, Some("close")), "{setting} {fields}");
            assert!(connection.ends() && !connection.has_leftovers());
        }
        // Nothing follows where nothing is announced, and the connection goes on.
        let mut connection = Connection::open(weir.address());
        for _ in 0..2 {
            connection.send(&get("/_waf/health", &[("Content-Length", "0")]));
            assert_eq!(connection.response().expect(200).header("connection"), None);
        }
    }
    assert!(application.requests().is_empty());
}

/// The head is bounded: bombs get a 4xx, and others are served as before.
#[test]
fn head_bombs_are_refused() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let many: String = (0..10_000).map(|n| format!("X-{n}: y\r\n")).collect();
    let entries = "203.0.113.7, ".repeat(10_000);
    for (name, bytes) in [
        (
            "10,000 fields",
            format!("GET /bomb HTTP/1.1\r\nHost: a\r\n{many}\r\n"),
        ),
        (
            "a field of 1 MB",
            format!(
                "GET /bomb HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                "y".repeat(1 << 20)
            ),
        ),
        (
            "a name of 1 MB",
            format!(
                "GET /bomb HTTP/1.1\r\nHost: a\r\n{}: y\r\n\r\n",
                "X".repeat(1 << 20)
            ),
        ),
        (
            "a target of 1 MB",
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(1 << 20)),
        ),
        (
            "a method of 1 MB",
            format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "Y".repeat(1 << 20)),
        ),
        (
            "10,000 forwarders",
            format!("GET /bomb HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {entries}\r\n\r\n"),
        ),
        (
            "a long trailer",
            format!(
                "POST /bomb HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: {}\r\n\r\n",
                "y".repeat(1 << 20)
            ),
        ),
    ] {
        let mut connection = Connection::open(weir.address());
        connection.send_what_is_taken(bytes.as_bytes());
        match connection.try_response(false) {
            Ok(answer) => {
                let expected = (400..500).contains(&answer.status)
                    || name == "10,000 forwarders" && answer.status == 200
                    || name == "a long trailer" && answer.status == 502;
                assert!(expected, "{name}: {answer:?}");
            }
            Err(Ended::TimedOut | Ended::Malformed(_)) => panic!("{name}: no clean end"),
            Err(_) => {}
        }
        assert_eq!(weir.get("/fine", "203.0.113.8").status, 200, "{name}");
    }
    assert!(
        application.faults().is_empty(),
        "{:?}",
        application.faults()
    );
}

/// CHECK-6: who is told 400 or 431 sees it, though more is on its way: the connection lingers
/// instead of being reset.
#[test]
fn a_refused_head_is_seen_by_who_still_sends() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(70_000));
    for (head, statuses) in [("nonsense\r\n\r\n", [400, 400]), (&large, [400, 431])] {
        let mut connection = Connection::open(weir.address());
        connection.send_what_is_taken(head.as_bytes());
        let answer = connection.response();
        assert!(statuses.contains(&answer.status), "{answer:?}");
        // A reset would refuse the next bytes.
        for _ in 0..4 {
            connection.send(&[b'x'; 10_000]);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// CHECK-6: what cannot be parsed is counted as a connection error and not as a request.
#[test]
fn what_cannot_be_parsed_is_no_request() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for _ in 0..3 {
        let mut connection = Connection::open(weir.address());
        connection.send(b"nonsense\r\n\r\n");
        connection.response().expect(400);
        assert!(connection.ends());
    }
    let mut long = Connection::open(weir.address());
    long.send_what_is_taken(&get(&format!("/{}", "x".repeat(1 << 20)), &[]));
    if let Ok(answer) = long.try_response(false) {
        assert!([400, 414, 431].contains(&answer.status), "{answer:?}");
    }
    let bad = "waf_connection_errors_total{kind=\"bad_request\"}";
    assert_eq!(weir.metric(bad), Some(3.0));
    let large = "waf_connection_errors_total{kind=\"head_too_large\"}";
    assert_eq!(weir.metric(large), Some(1.0));
    assert!(
        weir.request_log()
            .iter()
            .all(|line| line["path"] == "/_waf/metrics")
    );
}

/// Pipelined requests are answered each, in order, and refused ones in their place.
#[test]
fn pipelined_requests_are_answered_in_order() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "203.0.113.0/24")]);
    let mut bytes = Vec::new();
    for n in 0..12 {
        let client = if n % 3 == 0 {
            "203.0.113.7"
        } else {
            "198.51.100.1"
        };
        let body: Option<&[u8]> =
            (n % 2 == 0).then_some(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        let method = if body.is_some() { "POST" } else { "GET" };
        bytes.extend(request(
            method,
            &format!("/{n}"),
            &[("X-Forwarded-For", client)],
            body,
        ));
    }
    let mut connection = Connection::open(weir.address());
    connection.send(&bytes);
    for n in 0..12 {
        let answer = connection.response();
        if n % 3 == 0 {
            assert_eq!(answer.status, 429, "{n}");
        } else {
            assert_eq!(answer.text(), format!("hello /{n}"));
        }
    }
    assert_eq!(application.requests().len(), 8);
    assert!(application.faults().is_empty());
}

/// A piece of a head or body from which hostile messages are put together.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let fixed: Vec<&'static [u8]> = vec![
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Content-Length:5\r\n",
        b"content-length: 50\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"transfer-encoding:chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Content-Length\r\n",
        b"Connection: Transfer-Encoding\r\n",
        b"Connection: Host\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
        b"TE: trailers\r\n",
        b"Transfer_Encoding: chunked\r\n",
        b"Host: b\r\n",
        b"X: y\r\n",
        b"X: y\n",
        b" folded\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b":",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"5;x\r\nhello\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"5\n",
        b"ffffffffffffffff\r\n",
        b"hello",
        b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        b"0\r\n",
        b"-1\r\n",
        b"\x80",
        b"\t",
    ];
    prop::sample::select(fixed).prop_map(<[u8]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Messages put together from hostile pieces: whatever the service makes of them, the
    /// application is never in doubt.
    #[test]
    fn no_mixture_is_misframed(messages in prop::collection::vec(prop::collection::vec(pieces(), 0..8), 40)) {
        let application = Application::ok();
        let weir = Weir::start(&application, &[("WAF_BODY_TIMEOUT", "2s"), ("WAF_HEADER_TIMEOUT", "2s")]);
        for pieces in messages {
            let mut bytes = b"POST /mixture HTTP/1.1\r\nHost: a\r\n".to_vec();
            bytes.extend(pieces.concat());
            let mut connection = Connection::open(weir.address());
            connection.send_what_is_taken(&bytes);
            connection.finish_sending();
            let ended = connection.try_response(false);
            prop_assert!(!matches!(ended, Err(Ended::TimedOut | Ended::Malformed(_))), "{:?}: {:?}", String::from_utf8_lossy(&bytes), ended);
            prop_assert!(application.faults().is_empty(), "{:?}: {:?}", String::from_utf8_lossy(&bytes), application.faults());
        }
    }
}
