//! Commands that are led to another program, by a wrong `--admin` or on purpose (CONTROL-3): one
//! sentence says so, nothing is shown as if there was nothing, and the memory is bounded.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::command::{Ran, command, ran};
use crate::support::weir::{ADMIN_TOKEN, state_dir};

/// What every sentence about another program ends with.
const EXPECTED: &str = "expected the control socket or the admin listener of weir there";

/// Runs a command against a program that gives every request this answer, written by `answer`.
#[track_caller]
fn asked(arguments: &[&str], answer: impl Fn(&mut TcpStream) + Send + 'static) -> Ran {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("its address").to_string();
    // It ends with the test program.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = BufReader::new(stream.try_clone().expect("the same connection")).lines();
            while head
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            answer(&mut stream);
        }
    });
    let state = state_dir();
    let arguments = [arguments, &["--admin", &address]].concat();
    let mut command = command(state.path(), &arguments);
    let command = command.env("WAF_ADMIN_TOKEN", ADMIN_TOKEN);
    ran(command.output().expect("the binary runs"))
}

/// The same with a whole answer.
#[track_caller]
fn told(arguments: &[&str], status: &str, kind: &str, body: &str) -> Ran {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    asked(arguments, move |stream| {
        let _ = stream.write_all(answer.as_bytes());
    })
}

/// CONTROL-3: an answer that no service of weir gives is one sentence and exit status 69, with
/// `--json` too: never an empty list, a client that is not known, or a service that is well.
#[test]
fn another_program_is_told() {
    let (html, json) = ("text/html", "application/json");
    for (arguments, status, kind, body, why) in [
        (
            &["status"][..],
            "200 OK",
            html,
            "<html>",
            "200 OK with text/html, which is no JSON",
        ),
        (&["status"], "200 OK", json, "{}", "missing field `version`"),
        (
            &["status", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field `version`",
        ),
        (
            &["health"],
            "200 OK",
            json,
            r#"{"status":"UP"}"#,
            "a health check that passes says",
        ),
        (
            &["health"],
            "503 Service Unavailable",
            json,
            r#"{"status":"DOWN"}"#,
            "no problem document",
        ),
        (&["bans"], "200 OK", json, "{}", "missing field `bans`"),
        (
            &["bans", "export"],
            "200 OK",
            json,
            "{}",
            "missing field `bans`",
        ),
        (
            &["bans", "lift", "192.0.2.1"],
            "200 OK",
            json,
            "{}",
            "missing field `lifted`",
        ),
        (&["alerts"], "200 OK", json, "{}", "missing field `alerts`"),
        (
            &["alerts", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field `alerts`",
        ),
        (&["clients"], "200 OK", json, "{}", "missing field `held`"),
        (
            &["client", "192.0.2.1"],
            "200 OK",
            json,
            "{}",
            "missing field `bans`",
        ),
        (
            &["client", "192.0.2.1"],
            "404 Not Found",
            json,
            r#"{"error":"none"}"#,
            "no problem document",
        ),
        (
            &["client", "192.0.2.1"],
            "404 Not Found",
            html,
            "<html>",
            "404 Not Found with text/html",
        ),
        (
            &["settings", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field `settings`",
        ),
        (
            &["fleet"],
            "404 Not Found",
            json,
            r#"{"error":"none"}"#,
            "no problem document",
        ),
        (&["feeds"], "200 OK", json, "{}", "missing field `feeds`"),
        (
            &["allow", "192.0.2.1"],
            "200 OK",
            json,
            "{}",
            "missing field `list`",
        ),
        (
            &["explain", "192.0.2.1", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field",
        ),
        (
            &["reload", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field `taken`",
        ),
        (
            &["upgrade", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field `process`",
        ),
        (
            &["top", "--json"],
            "200 OK",
            json,
            "{}",
            "missing field `version`",
        ),
    ] {
        let ran = told(arguments, status, kind, body);
        assert_eq!(
            (ran.code, &*ran.out),
            (69, ""),
            "{arguments:?}: {}",
            ran.err
        );
        assert!(ran.err.contains(why), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(EXPECTED), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{arguments:?}: {}", ran.err);
    }
}

/// CONTROL-3: the same of a program that speaks another protocol.
#[test]
fn another_protocol_is_told() {
    let ran = asked(&["status"], |stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
    });
    assert_eq!((ran.code, &*ran.out), (69, ""), "{}", ran.err);
    assert!(ran.err.contains("answered what is no HTTP"), "{}", ran.err);
    assert!(ran.err.contains(EXPECTED), "{}", ran.err);
}

/// CONTROL-3: the status as the first service with commands wrote it is read.
#[test]
fn an_older_service_is_read() {
    let body = r#"{"version":"0.1.0","mode":"enforce","started":"2026-11-22T10:00:00Z","uptime_seconds":60,
        "address":"127.0.0.1:8080","upstream":"http://127.0.0.1:3000",
        "recent":{"seconds":60,"requests":2,"passed":2,"refused":0,"actions":{"passed":2},
            "request_bytes":0,"response_bytes":10,"upstream":{"responses":{"2xx":2},"p99_seconds":0.01}},
        "total":{"requests":2,"passed":2,"refused":0,"actions":{"passed":2},
            "request_bytes":0,"response_bytes":10,"upstream":{"responses":{"2xx":2},"p99_seconds":0.01}},
        "bans":{"active":0,"max":10000,"made":{},"dropped":0},
        "clients":{"held":1,"max":20000,"evicted":0},"connections":{"open":0,"max":10000},
        "lookups":{},"dropped":{},"warnings":[]}"#;
    let ran = told(&["status"], "200 OK", "application/json", body);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.starts_with("weir 0.1.0  enforce"), "{}", ran.out);
}

/// CONTROL-3: an answer without an end fills no memory: what is larger than any answer of weir is
/// left, though it would be one.
#[test]
fn an_answer_is_bounded() {
    let ran = asked(&["bans"], |stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        let blanks = vec![b' '; 1 << 20];
        let mut written = stream.write_all(head.as_bytes());
        for _ in 0..257 {
            written = written.and_then(|()| stream.write_all(&blanks));
        }
        let _ = written.and_then(|()| stream.write_all(b"{\"bans\":[]}"));
    });
    assert_eq!((ran.code, &*ran.out), (69, ""), "{}", ran.err);
    assert!(
        ran.err.contains("answered more than 256 MiB"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains(EXPECTED), "{}", ran.err);
}
