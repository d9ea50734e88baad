//! A faulty application over real sockets: what could be read in two ways is 502, what breaks is
//! broken off, and a connection of which anything is in doubt is never used again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Ended, ends_toward, get, request, try_exchange};
use crate::support::weir::Weir;
use crate::support::{GATHERED, wait_for, wait_until};

const ONE_WORKER: &[(&str, &str)] = &[("WAF_WORKERS", "1"), ("WAF_UPSTREAM_TIMEOUT", "5s")];

/// Answers that two readers could read differently, or that pass a bound.
fn doubtful_answers() -> Vec<(&'static str, String)> {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}");
    let coded = |coding: &str| ok(&format!("Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n"));
    vec![
        (
            "equal lengths",
            ok("Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
        ),
        ("a list of lengths", ok("Content-Length: 2, 2\r\n\r\nok")),
        ("no length", ok("Content-Length:\r\n\r\n")),
        (
            "a huge length",
            ok("Content-Length: 9223372036854775808\r\n\r\n"),
        ),
        (
            "two framings",
            ok("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        ("another coding", coded("gzip")),
        ("two codings", coded("gzip, chunked")),
        (
            "the coding twice",
            coded("chunked\r\nTransfer-Encoding: chunked"),
        ),
        (
            "chunks in 1.0",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
        ),
        ("bare LF", ok("A: b\nContent-Length: 0\r\n\r\n")),
        ("LF at the end", ok("Content-Length: 0\r\n\n")),
        (
            "a folded line",
            ok("A: b\r\n c\r\nContent-Length: 0\r\n\r\n"),
        ),
        ("a space before the colon", ok("Content-Length : 0\r\n\r\n")),
        (
            "a CR in a value",
            ok("A: b\rc\r\nContent-Length: 0\r\n\r\n"),
        ),
        (
            "a NUL in a value",
            ok("A: b\0c\r\nContent-Length: 0\r\n\r\n"),
        ),
        (
            "an empty line before it",
            format!("\r\n{}", ok("Content-Length: 0\r\n\r\n")),
        ),
        (
            "too many fields",
            ok(&format!(
                "{}Content-Length: 0\r\n\r\n",
                "A: b\r\n".repeat(100)
            )),
        ),
        (
            "too long a head",
            ok(&format!(
                "A: {}\r\nContent-Length: 0\r\n\r\n",
                "b".repeat(32 * 1024)
            )),
        ),
        (
            "an interim body",
            format!(
                "HTTP/1.1 103 X\r\nContent-Length: 2\r\n\r\nhi{}",
                ok("Content-Length: 0\r\n\r\n")
            ),
        ),
        (
            "endless interim answers",
            "HTTP/1.1 100 Continue\r\n\r\n".repeat(100),
        ),
    ]
}

/// What two readers could read differently is 502; its connection is closed, and the next request
/// is served on another.
#[test]
fn doubtful_answers_are_502_and_cost_their_connection() {
    let answers = Arc::new(doubtful_answers());
    let count = answers.len();
    let given = Arc::clone(&answers);
    let application = Application::start(move |exchange| {
        exchange.read_body();
        match exchange.request.target[1..].parse::<usize>() {
            Ok(number) => drop(exchange.send(given[number].1.as_bytes())),
            Err(_) => exchange.answer(200, &[], b"fine"),
        }
        After::KeepAlive
    });
    let weir = Weir::start(&application, ONE_WORKER);
    for (number, (name, _)) in answers.iter().enumerate() {
        let answer = weir.get(&format!("/{number}"), "203.0.113.7");
        assert_eq!(answer.status, 502, "{name}: {answer:?}");
        wait_for(name, || {
            (application.closed_connections() > number).then_some(())
        });
    }
    assert_eq!(weir.get("/fine", "203.0.113.7").body, b"fine");
    assert_eq!(application.connections(), count + 1);
}

/// A body whose framing breaks midway is never taken for whole: where it breaks in what came with
/// the head the client gets 502, and where it has something already, its answer is broken off.
#[test]
fn a_body_that_breaks_midway_is_broken_off() {
    let chunked = |rest: &str| {
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n{rest}")
    };
    let bodies = [
        ("a size without digits", chunked("\r\n")),
        ("a size with a sign", chunked("+1\r\na\r\n0\r\n\r\n")),
        (
            "a size that overflows",
            chunked("10000000000000001\r\na\r\n0\r\n\r\n"),
        ),
        ("a size that ends with LF", chunked("1\na\r\n0\r\n\r\n")),
        (
            "a chunk longer than its size",
            chunked("1\r\nab\r\n0\r\n\r\n"),
        ),
        ("a NUL in an extension", chunked("1;\0\r\na\r\n0\r\n\r\n")),
        (
            "too long extensions",
            chunked(&format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(9000))),
        ),
        ("trailers with LF", chunked("0\r\nA: b\n\r\n")),
        (
            "too long trailers",
            chunked(&format!("0\r\nA: {}\r\n\r\n", "x".repeat(9000))),
        ),
    ];
    for (name, bytes) in bodies {
        let (goes_on, go) = channel::<()>();
        let go = Mutex::new(go);
        let is_long = bytes.len() > 8 * 1024;
        let application = Application::start(move |exchange| {
            exchange.read_body();
            let sound = bytes.find("hello").map_or(0, |at| at + "hello\r\n".len());
            let (sound, broken) = bytes.split_at(sound);
            if exchange.request.target == "/late" {
                exchange.send(sound.as_bytes());
                let _ = go.lock().expect("no panic").recv();
                exchange.send(broken.as_bytes());
            } else {
                exchange.send(bytes.as_bytes());
            }
            After::KeepAlive
        });
        let weir = Weir::start(&application, ONE_WORKER);
        match try_exchange(weir.address(), &get("/broken", &[])) {
            Ok(answer) => assert_eq!(answer.status, 502, "{name}"),
            // It may have come in two.
            Err(Ended::Cut(answer)) if is_long => assert_eq!(answer.status, 200, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
        let mut late = Connection::open(weir.address());
        late.send(&get("/late", &[]));
        assert_eq!(late.head().expect("a head").status, 200, "{name}");
        assert_eq!(late.one_chunk().expect("a chunk"), b"hello", "{name}");
        goes_on.send(()).expect("it waits");
        assert!(late.one_chunk().is_err(), "{name}");
        wait_for(name, || {
            (application.closed_connections() == 2).then_some(())
        });
        for target in ["/broken", "/late"] {
            let line = weir.line_of(target);
            assert_eq!(line["action"], "upstream_error", "{name} {target}");
        }
    }
}

/// However an answer is cut into segments, it arrives as one.
#[test]
fn an_answer_byte_by_byte_is_whole() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let answer = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\
            Transfer-Encoding: chunked\r\nX-Own: yes\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\n\r\n";
        for byte in answer {
            exchange.send(&[*byte]);
            std::thread::sleep(Duration::from_micros(300));
        }
        After::KeepAlive
    });
    let weir = Weir::start(&application, ONE_WORKER);
    for _ in 0..3 {
        let answer = weir.get("/", "203.0.113.7");
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello!"[..]));
        assert_eq!(answer.header("x-own"), Some("yes"));
    }
    assert_eq!(application.connections(), 1);
}

/// FORWARD-5: a connection that was closed or reset, or on which something came, while it lay idle
/// is not used for a POST, however little time has passed.
#[test]
fn a_kept_connection_is_looked_at_before_a_post() {
    for (name, stray) in [
        ("closed", None),
        ("reset", Some("")),
        (
            "stray bytes",
            Some("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"),
        ),
    ] {
        let broken = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&broken);
        let application = Application::start(move |exchange| {
            exchange.read_body();
            exchange.answer(200, &[], b"right");
            // The answer is on its way; what follows is not part of it.
            std::thread::sleep(Duration::from_millis(20));
            match stray {
                None => {
                    exchange.finish_sending();
                    seen.fetch_add(1, Ordering::SeqCst);
                    After::Close
                }
                Some("") => After::Reset,
                Some(bytes) => {
                    exchange.send(bytes.as_bytes());
                    seen.fetch_add(1, Ordering::SeqCst);
                    After::KeepAlive
                }
            }
        });
        let weir = Weir::start(&application, ONE_WORKER);
        for number in 0..20 {
            let target = format!("/{number}");
            let answer = weir.send(&request("POST", &target, &[], Some(b"once")));
            assert_eq!(
                (answer.status, &answer.body[..]),
                (200, &b"right"[..]),
                "{name} {number}"
            );
            // Nothing else tells the worker: it has to look by itself.
            wait_for(name, || {
                let done = broken
                    .load(Ordering::SeqCst)
                    .max(application.closed_connections());
                (done > number).then_some(())
            });
            // On a busy machine the system may deliver it later: what is on its way when the next
            // request is written can be seen by nobody, and is 502.
            wait_until(name, || {
                let ends = ends_toward(application.address().port());
                !ends
                    .iter()
                    .any(|(state, unread)| state == "01" && *unread == 0)
            });
        }
        let requests = application.requests();
        assert_eq!(requests.len(), 20, "{name}");
        assert!(requests.iter().all(|each| each.body == b"once"), "{name}");
    }
}

/// The application may answer before it has read the body, or without reading it: the answer
/// arrives, the connection is not used again, and others are served.
#[test]
fn an_answer_to_half_an_upload_arrives() {
    for close in [true, false] {
        let application = Application::start(move |exchange| {
            if exchange.request.method == "POST" {
                exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
                if close {
                    exchange.finish_sending();
                }
                exchange.wait_for_close();
                return After::Close;
            }
            exchange.answer(200, &[], b"fine");
            After::KeepAlive
        });
        let weir = Weir::start(&application, ONE_WORKER);
        let mut client = Connection::open(weir.address());
        client.send(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
        client.send(&vec![b'x'; GATHERED]);
        let answer = client.response();
        assert_eq!((answer.status, &answer.body[..]), (200, &b"early"[..]));
        wait_for("the close", || {
            (application.closed_connections() == 1).then_some(())
        });
        assert_eq!(weir.get("/next", "203.0.113.7").body, b"fine");
        assert_eq!(application.connections(), 2);
    }
}

/// A client that breaks off its body in the middle of an answer is no failure of the application:
/// the log says so, and the process log nothing.
#[test]
fn an_upload_broken_off_in_the_middle_of_an_answer_is_the_clients_end() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, ONE_WORKER);
    let before = weir.process_log().len();
    let mut client = Connection::open(weir.address());
    client.send(b"POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(format!("{GATHERED:x}\r\n{}\r\n", "x".repeat(GATHERED)).as_bytes());
    client.head().expect("a head");
    client.send(b"no chunk\r\n");
    assert_eq!(weir.line_of("/early")["action"], "client_aborted");
    let log = weir.process_log();
    assert_eq!(log.len(), before, "{log:?}");
}

/// Neither direction is buffered: whoever does not read stops who sends.
#[test]
fn who_does_not_read_stops_who_sends() {
    const LARGE: usize = 64 * 1024 * 1024;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let application = Application::start(move |exchange| {
        if exchange.request.method == "POST" {
            // Takes nothing of the upload.
            std::thread::sleep(Duration::from_secs(4));
            return After::Reset;
        }
        exchange.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes());
        let piece = vec![b'x'; 65536];
        for _ in 0..LARGE / piece.len() {
            if !exchange.send(&piece) {
                break;
            }
            counted.fetch_add(piece.len(), Ordering::SeqCst);
        }
        After::Close
    });
    let weir = Weir::start(&application, ONE_WORKER);
    let mut reader = Connection::open(weir.address());
    reader.send(&get("/large", &[]));
    // The system's buffers hold some megabytes; what passes them would be ours.
    let stands = || {
        let before = sent.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        (before > 0 && before == sent.load(Ordering::SeqCst)).then_some(before)
    };
    assert!(wait_for("the application to stop", stands) < LARGE / 2);
    drop(reader);

    let mut writer = std::net::TcpStream::connect(weir.address()).expect("connects");
    writer
        .set_write_timeout(Some(Duration::from_secs(1)))
        .expect("a time-out");
    let head = format!("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n");
    std::io::Write::write_all(&mut writer, head.as_bytes()).expect("sends");
    let piece = vec![b'x'; 65536];
    let taken = (0..LARGE / piece.len())
        .take_while(|_| std::io::Write::write_all(&mut writer, &piece).is_ok())
        .count();
    assert!(taken * piece.len() < LARGE / 2, "{taken}");
}

/// HTTP/1.0: the connection is kept where the application says so, and only there.
#[test]
fn an_old_application_keeps_its_connection_where_it_says_so() {
    for (field, connections) in [("Connection: keep-alive\r\n", 1), ("", 5)] {
        let application = Application::start(move |exchange| {
            exchange.read_body();
            let answer = format!("HTTP/1.0 200 OK\r\n{field}Content-Length: 2\r\n\r\nok");
            exchange.send(answer.as_bytes());
            After::KeepAlive
        });
        let weir = Weir::start(&application, ONE_WORKER);
        for _ in 0..5 {
            assert_eq!(weir.get("/", "203.0.113.7").body, b"ok");
        }
        assert_eq!(application.connections(), connections, "{field:?}");
    }
}

/// CONN-9: pieces of a body that come together go on together: thousands of small chunks are few.
#[test]
fn small_pieces_of_an_upload_are_gathered() {
    let application = Application::start(|exchange| {
        let mut pieces = 0;
        while !exchange.request.whole && exchange.read_some() {
            pieces += 1;
        }
        exchange.record();
        exchange.answer(200, &[], pieces.to_string().as_bytes());
        After::KeepAlive
    });
    let weir = Weir::start(&application, ONE_WORKER);
    let mut client = Connection::open(weir.address());
    let chunks = "1\r\na\r\n".repeat(5000);
    let head = "POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{head}{chunks}0\r\n\r\n").as_bytes());
    let pieces: usize = client.response().text().parse().expect("a number");
    let seen = application.request("/small");
    assert!(seen.body.len() == 5000 && seen.chunked && seen.whole);
    assert!(pieces < 1000, "{pieces}");
}

/// FORWARD-7: the application's time runs from the request written; waiting for the client's body
/// is not in it.
#[test]
fn the_applications_time_does_not_include_the_clients() {
    let application = Application::ok();
    let weir = Weir::start(&application, ONE_WORKER);
    let mut client = Connection::open(weir.address());
    client.send(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
    let pause = Duration::from_secs(3);
    std::thread::sleep(pause);
    client.send(b"dy");
    assert_eq!(client.response().status, 200);
    let seconds = weir.metric("waf_upstream_duration_seconds_sum");
    assert!(
        seconds.expect("the sum") < pause.as_secs_f64() / 2.0,
        "{seconds:?}"
    );
}
