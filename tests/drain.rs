//! The end of the service: running answers end, nothing new comes in, the state is written.

use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use std::os::unix::process::ExitStatusExt;

use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Ended, get};
use crate::support::wait_until;
use crate::support::weir::Weir;

/// An application that finishes an answer when the test says so.
#[track_caller]
fn held() -> (Application, mpsc::Sender<()>) {
    let (release, wait) = mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let application = Application::start(move |exchange| {
        if exchange.request.target == "/held" {
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            let _ = wait.lock().expect("the channel").recv();
            exchange.send(b"half");
        } else {
            exchange.answer(200, &[], b"ok");
        }
        After::KeepAlive
    });
    (application, release)
}

/// Longer than any of these answers is held.
const LONG_DRAIN: (&str, &str) = ("WAF_SHUTDOWN_TIMEOUT", "20s");

/// CONN-14: the first request of a connection that was just accepted is answered at a stop as well.
#[test]
fn who_was_just_accepted_is_answered() {
    // It has a second, and more is no fault where the machine was too busy.
    let tried = (0..5).any(|_| {
        let (application, _release) = held();
        // One worker: what was accepted before a request that is answered, was accepted before it.
        let mut weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
        let mut accepted = Connection::open(weir.address());
        weir.get("/read", "203.0.113.7").expect(200);
        let began = Instant::now();
        weir.signal("TERM");
        wait_until("closed listeners", || {
            TcpStream::connect(weir.address()).is_err()
        });
        accepted.send_what_is_taken(&get("/first", &[]));
        let answer = accepted.try_response(false);
        let in_time = began.elapsed() < Duration::from_millis(700);
        if in_time {
            let answer = answer.expect("an answer").expect(200);
            assert_eq!(answer.header("connection"), Some("close"));
            assert!(accepted.ends());
        }
        assert_eq!(weir.wait().code(), Some(0), "{}", weir.process_log_text());
        in_time
    });
    assert!(tried, "never within a second");
}

/// SIGTERM: listeners close, the health check says draining, running answers end, state is written,
/// exit 0.
#[test]
fn sigterm_drains() {
    let (application, release) = held();
    // One worker: what was sent before a request that is answered, was read before it.
    let mut weir = Weir::start(&application, &[("WAF_WORKERS", "1"), LONG_DRAIN]);
    // Connections of both kinds exist before the stop: one at work, one idle, one for the health
    // check.
    let mut running = Connection::open(weir.address());
    running.send(&get("/held", &[("X-Forwarded-For", "203.0.113.7")]));
    assert_eq!(running.head().expect("its head").status, 200);
    let mut idle = Connection::open(weir.address());
    idle.send(&get("/a", &[]));
    idle.response().expect(200);
    // A request that is half read when the stop comes, to ask for health on a connection that is
    // not idle.
    let mut health = Connection::open(weir.address());
    health.send(b"GET /_waf/health HTTP/1.1\r\nHost: a\r\n");
    weir.get("/read", "203.0.113.7").expect(200);

    weir.signal("TERM");
    wait_until("closed listeners", || {
        TcpStream::connect(weir.address()).is_err()
    });
    health.send_what_is_taken(b"\r\n");
    let answer = health
        .try_response(false)
        .expect("an answer while draining");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["status"], "draining");
    assert!(idle.ends(), "an idle connection is closed");

    release.send(()).expect("released");
    assert_eq!(running.bytes(8).expect("all of it"), b"halfhalf");
    assert!(running.ends(), "and its connection after the answer");
    let status = weir.wait();
    assert_eq!(status.code(), Some(0), "{}", weir.process_log_text());
    let clients = weir.state_file("clients.json").expect("clients.json");
    assert!(clients.to_string().contains("203.0.113.7"));
    assert!(weir.state_file("bans.json").is_some());
    assert_eq!(weir.line_of("/held")["status"], 200, "the log is complete");
}

/// CONN-14: a client that sent more than is answered meets an end of the connection behind the last
/// answer of a drain, not a reset.
#[test]
fn what_was_sent_behind_the_last_answer_resets_nothing() {
    let (application, release) = held();
    let mut weir = Weir::start(&application, &[("WAF_WORKERS", "1"), LONG_DRAIN]);
    let mut running = Connection::open(weir.address());
    running.send(&get("/held", &[]));
    // More than the service reads ahead.
    running.send(&get("/behind", &[]).repeat(4_000));
    assert_eq!(running.head().expect("its head").status, 200);
    weir.signal("TERM");
    wait_until("closed listeners", || {
        TcpStream::connect(weir.address()).is_err()
    });
    release.send(()).expect("released");
    assert_eq!(running.bytes(8).expect("all of it"), b"halfhalf");
    // What it has read of the next one is answered.
    let end = loop {
        match running.try_response(false) {
            Ok(answer) => assert_eq!(answer.header("connection"), Some("close")),
            Err(end) => break end,
        }
    };
    assert!(matches!(end, Ended::Closed), "{end:?}");
    drop(running);
    assert_eq!(weir.wait().code(), Some(0), "{}", weir.process_log_text());
}

/// A second SIGTERM ends without waiting for answers, with the state written or not.
#[test]
fn a_second_sigterm_waits_for_nobody() {
    let (application, _release) = held();
    let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_TIMEOUT", "1m")]);
    let mut running = Connection::open(weir.address());
    running.send(&get("/held", &[]));
    assert_eq!(running.head().expect("its head").status, 200);
    weir.signal("TERM");
    wait_until("closed listeners", || {
        TcpStream::connect(weir.address()).is_err()
    });
    // Within the first second it would be the same signal (ALIVE-3).
    std::thread::sleep(Duration::from_millis(1100));
    weir.signal("TERM");
    // The answer is never released: without the second signal the drain lasts a minute, longer
    // than this waits.
    weir.wait();
}

/// WAF_SHUTDOWN_TIMEOUT bounds the drain; the state is written all the same.
#[test]
fn the_drain_is_bounded() {
    let (application, _release) = held();
    let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_TIMEOUT", "300ms")]);
    let mut running = Connection::open(weir.address());
    running.send(&get("/held", &[("X-Forwarded-For", "203.0.113.7")]));
    assert_eq!(running.head().expect("its head").status, 200);
    let start = Instant::now();
    weir.signal("TERM");
    weir.wait();
    assert!(
        start.elapsed() >= Duration::from_millis(290),
        "{:?}",
        start.elapsed()
    );
    let clients = weir.state_file("clients.json").expect("clients.json");
    assert!(clients.to_string().contains("203.0.113.7"));
}

/// ALIVE-3: a head that is half read at a stop, or that comes together with it, may still come to
/// its end, but `WAF_SHUTDOWN_TIMEOUT` ends it, however long `WAF_HEADER_TIMEOUT` is; whether its
/// peer is refused or not.
#[test]
fn half_a_head_waits_no_longer_than_the_stop() {
    let application = Application::ok();
    let bans = json!([{"netblock": "127.0.0.2/32", "ban_expires": "2099-01-01T00:00:00Z"}]);
    let settings = [
        ("WAF_TRUSTED_PROXIES", ""),
        ("WAF_BAN_IPV4_PREFIX", "32"),
        ("WAF_HEADER_TIMEOUT", "5m"),
        ("WAF_SHUTDOWN_TIMEOUT", "300ms"),
        ("WAF_WORKERS", "1"),
    ];
    for together in [false, true] {
        let mut weir = Weir::start_with_bans(&application, &bans, &settings);
        let used = |peer: &str, status| {
            let mut connection = Connection::open_from(weir.address(), peer);
            connection.send(&get("/a", &[]));
            connection.response().expect(status);
            connection
        };
        let new = Connection::open_from(weir.address(), "127.0.0.3");
        let mut held = [new, used("127.0.0.3", 200), used("127.0.0.2", 429)];
        if together {
            weir.signal("STOP");
        }
        for connection in &mut held {
            connection.send(b"GET /half HTTP/1.1\r\nHo");
            if !together {
                connection.wait_until_read();
            }
        }
        weir.signal("TERM");
        if together {
            weir.signal("CONT");
        }
        for (number, connection) in held.iter_mut().enumerate() {
            assert!(connection.ends(), "{number}, together: {together}");
        }
        assert!(weir.wait().success());
    }
}

/// ALIVE-2: a thread that ends in the middle of a stop ends the service with 70, too, and is told:
/// while the stop is announced, and while the last answers run.
#[test]
fn a_thread_that_ends_in_a_stop_is_told() {
    for (thread, delay) in [
        ("weir-files", "20s"),
        ("weir-log", "0s"),
        ("weir-control", "0s"),
    ] {
        let (application, _release) = held();
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("now");
        let hook = format!("{thread}:{}", file.display());
        let settings = [
            ("WEIR_TEST_END_THREAD", hook.as_str()),
            ("WAF_SHUTDOWN_DELAY", delay),
            LONG_DRAIN,
        ];
        let mut weir = Weir::start(&application, &settings);
        let mut running = Connection::open(weir.address());
        running.send(&get("/held", &[]));
        assert_eq!(running.head().expect("its head").status, 200);
        weir.signal("TERM");
        wait_until("the stop", || match delay {
            "0s" => TcpStream::connect(weir.address()).is_err(),
            _ => weir.get("/_waf/health", "203.0.113.7").status == 503,
        });
        std::fs::write(&file, "now").expect("writes");
        assert_eq!(weir.wait().code(), Some(70), "{thread}");
        let said = format!("the thread {thread} ended by a panic");
        weir.wait_for_process_log(&["ERROR", &said]);
    }
}

/// ALIVE-3: SIGINT, as Ctrl-C sends it, drains too, and SIGQUIT, as nginx is stopped.
#[test]
fn sigint_and_sigquit_drain_too() {
    let application = Application::ok();
    for signal in ["INT", "QUIT"] {
        let mut weir = Weir::start(&application, &[]);
        weir.get("/a", "203.0.113.7").expect(200);
        weir.signal(signal);
        let status = weir.wait();
        assert_eq!(
            (status.code(), status.signal()),
            (Some(0), None),
            "{signal}"
        );
        assert!(weir.state_file("clients.json").is_some(), "{signal}");
    }
}

/// A stop under load: each request is answered whole or not taken at all.
#[test]
fn nothing_that_was_taken_is_lost() {
    let application = Application::ok();
    let mut weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
            ("WAF_RATE_LIMIT_PER_HOUR", "off"),
            ("WAF_RATE_LIMIT_PER_DAY", "off"),
            LONG_DRAIN,
        ],
    );
    let address = weir.address();
    let workers: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let mut answered = 0u64;
                loop {
                    let Some(mut connection) = Connection::try_open(address) else {
                        return answered;
                    };
                    connection.send_what_is_taken(&get("/load", &[]));
                    match connection.try_response(false) {
                        Ok(answer) => {
                            assert_eq!(answer.status, 200);
                            answered += 1;
                        }
                        Err(Ended::Cut(part)) => panic!("cut: {part:?}"),
                        // Not taken any more: closed before a byte of an answer.
                        Err(_) => return answered,
                    }
                }
            })
        })
        .collect();
    wait_until("some load", || application.requests().len() > 50);
    weir.signal("TERM");
    let answered: u64 = workers
        .into_iter()
        .map(|worker| worker.join().expect("no cut answer"))
        .sum();
    assert_eq!(weir.wait_for_all().code(), Some(0));
    let passed = weir
        .request_log()
        .iter()
        .filter(|line| line["action"] == "passed")
        .count();
    assert_eq!(
        passed as u64, answered,
        "what was logged as passed was seen"
    );
}
