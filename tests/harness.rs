//! The harness against itself: the raw client and the faulty application, with no service between
//! them.
//!
//! What is left to the other files: everything about the service. These tests only show that the
//! two ends see what they must, so that a red test elsewhere speaks of the service.

use std::process::Command;
use std::time::Duration;

use crate::support::application::{After, Application};
use crate::support::process::{Process, end_within};
use crate::support::raw_client::{Connection, Ended, exchange, get, request, try_exchange};
use crate::support::wait_until;

#[test]
fn a_body_arrives_and_returns_on_a_kept_connection() {
    let application = Application::echo();
    let mut connection = Connection::open(application.address());
    for body in [&b"one"[..], b"", b"three"] {
        connection.send(&request("POST", "/echo", &[], Some(body)));
        let response = connection.response();
        assert_eq!((response.status, &response.body[..]), (200, body));
    }
    assert_eq!(application.connections(), 1);
    assert!(application.requests().iter().all(|request| request.whole));
}

#[test]
fn chunks_and_trailers_are_read_on_both_ends() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n");
        After::KeepAlive
    });
    let response = exchange(
        application.address(),
        b"POST /t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-End: yes\r\n\r\n",
    );
    assert_eq!(response.body, b"abc");
    assert_eq!(response.trailers, [("x-sum".into(), "1".into())]);
    assert_eq!(response.informational[0].status, 103);
    let seen = application.request("/t");
    assert_eq!(seen.body, b"body");
    assert_eq!(seen.trailers, [("x-end".into(), "yes".into())]);
    assert!(seen.chunked && seen.whole);
}

#[test]
fn every_way_to_misframe_a_request_is_a_fault() {
    for hostile in [
        "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX",
    ] {
        let application = Application::ok().with_faults();
        let mut connection = Connection::open(application.address());
        connection.send(hostile.as_bytes());
        connection.finish_sending();
        wait_until(hostile, || !application.faults().is_empty());
    }
}

#[test]
fn the_client_tells_the_ends_of_a_connection_apart() {
    let closes = Application::start(|_| After::Close);
    assert!(matches!(
        try_exchange(closes.address(), &get("/", &[])),
        Err(Ended::Closed)
    ));
    let resets = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        After::Reset
    });
    assert!(matches!(
        try_exchange(resets.address(), &get("/", &[])),
        Err(Ended::Cut(_) | Ended::Reset | Ended::Malformed(_))
    ));
    let cuts = Application::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", true);
    match try_exchange(cuts.address(), &get("/", &[])) {
        Err(Ended::Cut(part)) => assert_eq!(part.body, b"abc"),
        other => panic!("{other:?}"),
    }
    let hangs = Application::start(|exchange| {
        exchange.wait_for_close();
        After::Close
    });
    let mut connection = Connection::open(hangs.address());
    connection.send(&get("/", &[]));
    connection.set_patience(Duration::from_millis(50));
    assert!(matches!(
        connection.try_response(false),
        Err(Ended::TimedOut)
    ));
    connection.reset();
    wait_until("the close", || hangs.closed_connections() == 1);
    let twice = Application::raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        true,
    );
    assert!(matches!(
        try_exchange(twice.address(), &get("/", &[])),
        Err(Ended::Malformed(_))
    ));
}

#[test]
fn a_client_can_come_from_any_loopback_address() {
    let application = Application::ok();
    let mut connection = Connection::open_from(application.address(), "127.0.3.9");
    connection.send(&get("/from", &[]));
    assert_eq!(connection.response().text(), "hello /from");
    assert_eq!(connection.rest(Duration::from_millis(20)), b"");
    assert!(!connection.has_leftovers());
}

/// What a test's process is asked for at its end.
#[test]
fn a_process_that_works_or_stays_is_a_fault() {
    let ended = |script: &str| {
        // The shell is that far once its child is there.
        let mut shell = Process::start(Command::new("sh").args(["-c", script]));
        let children = format!("/proc/{0}/task/{0}/children", shell.id());
        wait_until("its child", || {
            std::fs::read_to_string(&children).is_ok_and(|text| !text.is_empty())
        });
        let ended = end_within(Duration::from_secs(2), shell.pid(), || {
            shell.try_wait().is_some()
        });
        shell.kill();
        ended.err().unwrap_or_default()
    };
    assert_eq!(ended("sleep 0.5 & wait"), "");
    let busy = ended("sleep 0.5 & while :; do :; done");
    assert!(busy.contains("it is not at rest: sh worked "), "{busy}");
    let stays = ended("trap '' TERM; sleep 0.5 & while :; do wait; sleep 0.1; done");
    assert_eq!(stays, "SIGTERM did not end it within 2s");
}
