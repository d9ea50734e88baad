//! HTTP/2: each stream is a request like any other (EDGE-3).

use http::HeaderMap;
use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::frames::{
    self, CANCEL, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, NO_ERROR, RST_STREAM, Reaction,
    WHOLE, frame,
};
use crate::support::http2::{Http2, get, request};
use crate::support::raw_client;
use crate::support::tls::{self, Pair};
use crate::support::weir::{EXEMPT, ONE_PER_HOUR, Weir};
use crate::support::{GATHERED, PATIENCE};

/// HTTP/2 on plain places.
pub(super) const ON: (&str, &str) = ("WAF_H2C", "on");

/// EDGE-3: a request over HTTP/2 reaches the application as HTTP/1.1, is answered, and is logged as
/// one.
#[test]
fn a_stream_is_a_request() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    let mut client = Http2::open(weir.address());
    let fields = [
        ("x-forwarded-for", "192.0.2.7"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("user-agent", "test"),
    ];
    let answer = client.ask(get("/one?q=1", &fields)).expect(200);
    assert_eq!(answer.body, b"hello /one?q=1");
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert!(answer.header("connection").is_none() && answer.header("date").is_some());

    let got = application.request("/one?q=1");
    assert_eq!(got.method, "GET");
    assert_eq!(got.header("host"), Some("a.test"));
    assert_eq!(got.header("cookie"), Some("a=1; b=2"));
    assert_eq!(got.header("x-forwarded-proto"), Some("http"));
    assert_eq!(got.header("x-forwarded-host"), Some("a.test"));
    assert!(!got.chunked && got.header("content-length").is_none());

    let line = weir.line_of("/one");
    assert_eq!(line["protocol"], "HTTP/2.0");
    assert_eq!(line["client"], "192.0.2.7");
    assert_eq!(line["host"], "a.test");
    assert_eq!(line["status"], 200);
    assert_eq!(line["action"], "passed");
    assert_eq!(line["bytes"], json!({"request": 0, "response": 14}));
    assert_eq!(line["counts"]["minute"], 1);
}

/// EDGE-3, FORWARD-3: `*` is asked of the whole server, and `/` of its root.
#[test]
fn options_keep_their_target() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    for (stream, target) in [(1, "*"), (3, "/")] {
        let head = frames::request("OPTIONS", target, &[]);
        frames.send(&frame(HEADERS, WHOLE, stream, &head));
        assert_eq!(frames.reaction(stream), Reaction::Status(200));
        assert_eq!(application.request(target).header("host"), Some("a.test"));
    }
}

/// EDGE-3: over TLS it is agreed on by ALPN, and `http/1.1` is still there for who asks for it.
#[test]
fn over_tls_it_is_agreed_on() {
    let application = Application::ok();
    let pair = tls::shared_pair();
    let files = Pair::settings(&[pair]);
    let mut settings = vec![("WAF_LISTEN", "https://127.0.0.1:0")];
    settings.extend(files.iter().map(|(name, value)| (*name, &**value)));
    let weir = Weir::start(&application, &settings);
    let mut frames = Frames::open_tls(weir.address());
    frames.send(&frame(HEADERS, WHOLE, 1, &frames::get("/tls", &[])));
    assert_eq!(frames.reaction(1), Reaction::Status(200));
    assert_eq!(frames.body(1), (b"hello /tls".to_vec(), true));
    assert_eq!(weir.line_of("/tls")["protocol"], "HTTP/2.0");
    assert_eq!(weir.line_of("/tls")["scheme"], "https");
    assert_eq!(
        application.request("/tls").header("x-forwarded-proto"),
        Some("https")
    );
    for offered in [&["http/1.1"][..], &[]] {
        let config = tls::client(rustls::ALL_VERSIONS, offered);
        let secured = tls::connect(weir.address(), "localhost", &config).expect("TLS");
        assert_ne!(secured.conn.alpn_protocol(), Some(&b"h2"[..]));
    }
}

/// EDGE-3: without `WAF_H2C` a plain place takes HTTP/2 for no request, and says nothing of another
/// protocol.
#[test]
fn on_a_plain_place_it_is_off() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let mut frames = Frames::open(weir.address());
    assert_eq!(frames.end(), Reaction::Closed);
    let errors = "waf_connection_errors_total{kind=\"bad_request\"}";
    assert_eq!(weir.metric(errors), Some(1.0));
    assert!(!weir.process_log_text().contains("the peer speaks"));
    assert!(application.requests().is_empty());
}

/// EDGE-3: with it HTTP/1.1 is served beside it, however its first bytes come.
#[test]
fn http1_is_served_beside_it() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    for (target, first) in [("/whole", 0), ("/cut", 1), ("/later", 30)] {
        let bytes = raw_client::get(target, &[]);
        let mut connection = raw_client::Connection::open(weir.address());
        connection.send(&bytes[..first]);
        connection.send(&bytes[first..]);
        connection.response().expect(200);
    }
    let mut connection = raw_client::Connection::open(weir.address());
    connection.send(&raw_client::request("PRI", "/not-it", &[], None));
    connection.response().expect(200);
}

/// EDGE-3: bodies both ways, with the length that was said or none, and trailers both ways.
#[test]
fn bodies_and_trailers_go_both_ways() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\
              Trailer: grpc-status\r\n\r\n",
        );
        let body = exchange.request.body.clone();
        exchange.send(format!("{:x}\r\n", body.len()).as_bytes());
        exchange.send(&body);
        exchange.send(b"\r\n0\r\ngrpc-status: 0\r\nSet-Cookie: a=1\r\nHost: b\r\n\r\n");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[ON]);
    let mut client = Http2::open(weir.address());
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().expect("a value"));
    trailers.insert("x-forwarded-for", "192.0.2.9".parse().expect("a value"));
    let body = vec![b'x'; 300_000];
    let call = request("POST", "/call", &[("te", "trailers")]);
    let answer = client.send(call, &body, Some(trailers)).expect(200);
    assert_eq!(answer.body, body);
    let trailers = answer.trailers.expect("trailers");
    assert_eq!(trailers.len(), 1);
    assert_eq!(trailers["grpc-status"], "0");
    let got = application.request("/call");
    assert!(got.chunked && got.whole);
    assert_eq!(got.header("te"), Some("trailers"));
    assert_eq!(got.trailers, [("x-checksum".to_owned(), "7".to_owned())]);

    let sized = request("POST", "/sized", &[("content-length", "5")]);
    client.send(sized, b"12345", None).expect(200);
    let got = application.request("/sized");
    assert_eq!(
        (got.header("content-length"), got.chunked),
        (Some("5"), false)
    );
    let empty = request("POST", "/empty", &[("content-length", "0")]);
    client.ask(empty).expect(200);
    assert_eq!(
        application.request("/empty").header("content-length"),
        Some("0")
    );
    assert_eq!(
        weir.line_of("/call")["bytes"],
        json!({"request": 300_000, "response": 300_000})
    );
}

/// EDGE-3: an answer to HEAD has no body, whoever answers, and says how long it would be.
#[test]
fn an_answer_to_head_has_no_body() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON, ("WAF_DENY_NETS", "192.0.2.66")]);
    let mut client = Http2::open(weir.address());
    let answer = client.ask(request("HEAD", "/head", &[])).expect(200);
    assert_eq!(
        (answer.header("content-length"), &*answer.body),
        (Some("11"), &b""[..])
    );
    let denied = [("x-forwarded-for", "192.0.2.66")];
    let answer = client.ask(request("HEAD", "/denied", &denied)).expect(429);
    let length: usize = answer
        .header("content-length")
        .expect("it")
        .parse()
        .expect("a number");
    assert!(length > 0 && answer.body.is_empty());
    assert_eq!(weir.line_of("/denied")["bytes"]["response"], 0);
}

/// EDGE-3: limits, bans and their answers are those of HTTP/1.1; streams of other clients of the
/// same proxy go on.
#[test]
fn limits_and_bans_hold_for_streams() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON, ONE_PER_HOUR, EXEMPT]);
    let mut client = Http2::open(weir.address());
    let of = |client| [("x-forwarded-for", client)];
    client.ask(get("/first", &of("192.0.2.7"))).expect(200);
    let answer = client.ask(get("/second", &of("192.0.2.7"))).expect(429);
    assert!(answer.header("retry-after").is_some() && answer.header("x-request-id").is_some());
    weir.wait_until_refused("192.0.2.7");
    client.ask(get("/third", &of("192.0.2.8"))).expect(429);
    client.ask(get("/other", &of("198.51.100.1"))).expect(200);
    assert_eq!(weir.line_of("/second")["action"], "rate_limited");
    assert_eq!(weir.line_of("/third")["action"], "banned");
    client.ask(get("/_waf/health", &[])).expect(200);
    client.ask(request("CONNECT", "/c", &[])).expect(405);
}

/// EDGE-3: in observe mode nothing is refused, and said what would have been.
#[test]
fn observe_mode_holds_for_streams() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON, ONE_PER_HOUR, ("WAF_MODE", "observe")]);
    let mut client = Http2::open(weir.address());
    client.ask(get("/first", &[])).expect(200);
    client.ask(get("/second", &[])).expect(200);
    let line = weir.line_of("/second");
    assert_eq!(
        (&line["action"], &line["enforced"]),
        (&json!("rate_limited"), &json!(false))
    );
}

/// EDGE-3: a stream that waits, for its application or for its client, stops no other.
#[test]
fn a_stream_that_waits_stops_no_other() {
    let application = Application::start(|exchange| {
        match &*exchange.request.target {
            "/never" => exchange.wait_for_close(),
            "/large" => exchange.answer(200, &[], &vec![b'x'; 5_000_000]),
            _ => exchange.answer(200, &[], b"quick"),
        }
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[ON]);
    // The client takes next to nothing of any stream.
    let mut frames = Frames::open_with(weir.address(), &[(4, 10)]);
    for stream in 0..100 {
        let (path, flags) = match stream % 3 {
            0 => ("/large", WHOLE),
            1 => ("/never", WHOLE),
            _ => ("/upload", END_HEADERS),
        };
        frames.send(&frame(
            HEADERS,
            flags,
            2 * stream + 1,
            &frames::get(path, &[]),
        ));
    }
    frames.send(&frame(HEADERS, WHOLE, 201, &frames::get("/quick", &[])));
    assert_eq!(frames.reaction(201), Reaction::Status(200));
    assert_eq!(frames.body(201), (b"quick".to_vec(), true));
}

/// FORWARD-6, EDGE-3: what the application says before its answer reaches the client before it, but
/// for a 100; a client that waits to be asked for its body is asked by us, and only where somebody
/// takes it.
#[test]
fn interim_answers_come_first() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
              HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nKeep-Alive: timeout=5\r\n\r\n",
        );
        exchange.answer(200, &[], b"done");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[ON, ("WAF_DENY_NETS", "192.0.2.66")]);
    let mut frames = Frames::open(weir.address());
    let post = |more: &[(&str, &[u8])]| frames::request("POST", "/post", more);
    frames.send(&frame(HEADERS, WHOLE, 1, &frames::get("/get", &[])));
    for status in [102, 103, 200] {
        assert_eq!(frames.reaction(1), Reaction::Status(status));
    }
    assert_eq!(frames.body(1), (b"done".to_vec(), true));

    let expects: (&str, &[u8]) = ("expect", b"100-Continue");
    frames.send(&frame(HEADERS, END_HEADERS, 3, &post(&[expects])));
    assert_eq!(frames.reaction(3), Reaction::Status(100));
    frames.send(&frame(DATA, END_STREAM, 3, b"body"));
    for status in [102, 103, 200] {
        assert_eq!(frames.reaction(3), Reaction::Status(status));
    }
    assert_eq!(application.request("/post").body, b"body");
    // It does not wait: it is not asked.
    let unasked = [
        frame(HEADERS, END_HEADERS, 5, &post(&[expects])),
        frame(DATA, END_STREAM, 5, b"body"),
    ];
    frames.send(&unasked.concat());
    assert_eq!(frames.reaction(5), Reaction::Status(102));
    // Nobody takes it.
    let denied = post(&[expects, ("x-forwarded-for", b"192.0.2.66")]);
    frames.send(&frame(HEADERS, END_HEADERS, 7, &denied));
    assert_eq!(frames.reaction(7), Reaction::Status(429));
    assert_eq!(weir.metric("waf_responses_total{class=\"1xx\"}"), Some(9.0));
}

/// FORWARD-6, CONN-1: of the interim answers before one answer a client gets 16 KiB; it has the
/// answer behind them.
#[test]
fn interim_answers_are_bounded() {
    let application = Application::start(|exchange| {
        let link = "a".repeat(2_000);
        for _ in 0..20 {
            exchange.send(format!("HTTP/1.1 103 Hints\r\nLink: <{link}>\r\n\r\n").as_bytes());
        }
        exchange.answer(200, &[], b"done");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    frames.send(&frame(HEADERS, WHOLE, 1, &frames::get("/", &[])));
    for _ in 0..8 {
        assert_eq!(frames.reaction(1), Reaction::Status(103));
    }
    assert_eq!(frames.reaction(1), Reaction::Status(200));
    assert_eq!(frames.body(1), (b"done".to_vec(), true));
}

/// EDGE-3: CONNECT is answered as over HTTP/1.1, whatever it says of a body, and costs no other
/// stream.
#[test]
fn connect_costs_no_other_stream() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    for (stream, length) in [(1, &b"0"[..]), (3, b"5")] {
        let head = frames::block(&[
            (":method", b"CONNECT"),
            (":authority", b"a.test:443"),
            ("content-length", length),
        ]);
        frames.send(&frame(HEADERS, END_HEADERS, stream, &head));
        assert_eq!(frames.reaction(stream), Reaction::Status(405));
    }
    frames.send(&frame(HEADERS, WHOLE, 5, &frames::get("/5", &[])));
    assert_eq!(frames.reaction(5), Reaction::Status(200));
    assert_eq!(frames.body(5), (b"hello /5".to_vec(), true));
}

/// EDGE-3, FORWARD-4: an upload whose stream is reset is not whole, whatever the reason is.
#[test]
fn a_cut_upload_is_never_whole() {
    let (told, wait) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let application = Application::start(move |exchange| {
        let tell = |it| told.lock().expect("a channel").send(it).expect("heard");
        tell(exchange.read_some());
        tell(exchange.read_body());
        After::Close
    });
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    for (stream, reason) in [(1, NO_ERROR), (3, CANCEL)] {
        let path = format!("/{stream}");
        let head = frames::request("POST", &path, &[]);
        frames.send(&frame(HEADERS, END_HEADERS, stream, &head));
        for piece in vec![b'x'; GATHERED].chunks(16 * 1024) {
            frames.send(&frame(DATA, 0, stream, piece));
        }
        assert_eq!(wait.recv_timeout(PATIENCE), Ok(true), "the first half");
        frames.send(&frame(RST_STREAM, 0, stream, &reason.to_be_bytes()));
        assert_eq!(wait.recv_timeout(PATIENCE), Ok(false), "{reason}");
        assert_eq!(weir.line_of(&path)["action"], "client_aborted");
    }
}

/// EDGE-3, CONN-5: large answers on several streams over TLS come whole and are counted so, and of
/// one whose client takes no more of it, what it took is counted.
#[test]
fn large_answers_come_whole_over_tls() {
    const SIZE: usize = 1_500_000;
    let content = |path: &str| -> Vec<u8> {
        let seed = path.len();
        (0..SIZE)
            .map(|at| u8::try_from((at / 7 + seed) % 251).expect("a byte"))
            .collect()
    };
    let application = Application::start(move |exchange| {
        let body = content(&exchange.request.target);
        exchange.answer(200, &[], &body);
        After::KeepAlive
    });
    let files = Pair::settings(&[tls::shared_pair()]);
    let mut settings = vec![
        ("WAF_LISTEN", "https://127.0.0.1:0"),
        ("WAF_MIN_RATE", "off"),
    ];
    settings.push(("WAF_SEND_TIMEOUT", "3s"));
    settings.extend(files.iter().map(|(name, value)| (*name, &**value)));
    let weir = Weir::start(&application, &settings);
    let mut frames = Frames::open_tls(weir.address());
    let paths = ["/a", "/ab", "/abc", "/abcd"];
    for (stream, path) in (1..).step_by(2).zip(paths) {
        frames.send(&frame(HEADERS, WHOLE, stream, &frames::get(path, &[])));
    }
    let mut bodies = vec![Vec::new(); paths.len()];
    let mut open = paths.len();
    while open > 0 {
        let next = frames.next_of_streams().expect("a frame");
        if next.kind != frames::DATA {
            continue;
        }
        open -= usize::from(next.flags & END_STREAM != 0);
        bodies[next.stream as usize / 2].extend_from_slice(&next.payload);
        let room = u32::try_from(next.payload.len())
            .expect("fits")
            .to_be_bytes();
        for stream in [0, next.stream] {
            frames.send(&frame(frames::WINDOW_UPDATE, 0, stream, &room));
        }
    }
    for (path, body) in paths.iter().zip(&bodies) {
        assert!(*body == content(path), "{path}");
        assert_eq!(weir.line_of(path)["bytes"]["response"], SIZE);
    }
    // Its window is left as it is: 65,535 bytes.
    frames.send(&frame(HEADERS, WHOLE, 9, &frames::get("/left", &[])));
    assert_eq!(frames.reaction(9), Reaction::Status(200));
    assert_eq!(frames.reaction(9), Reaction::Reset(CANCEL));
    let line = weir.line_of("/left");
    assert_eq!(line["action"], "client_aborted");
    assert_eq!(line["bytes"]["response"], 65_535);
}
