//! The least rate of a client, by the default window of 30 s: who is cut, and who is not (CONN-7).

use std::net::SocketAddr;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use serde_json::Value;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Response, get, request};
use crate::support::wait_until;
use crate::support::weir::Weir;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the window, by a reserve for a slow machine.
const SECONDS: usize = 45;
/// More than the system and the service hold.
const LARGE: usize = 20_000_000;
const UPLOAD: usize = 8_000_000;

/// Answers 20 MB; answers a byte a second; reads nothing of an upload for a while.
fn application() -> Application {
    Application::start(|exchange| {
        match &*exchange.request.target {
            "/trickle" => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SECONDS}\r\n\r\n");
                exchange.send(head.as_bytes());
                for _ in 0..SECONDS {
                    sleep(SECOND);
                    exchange.send(b"x");
                }
            }
            "/late" => {
                sleep(SECOND * u32::try_from(SECONDS).expect("a number"));
                exchange.read_body();
                exchange.answer(200, &[], b"late");
            }
            "/socket" => {
                exchange.send(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\n",
                );
                while let Some(bytes) = exchange.read_raw() {
                    exchange.send(&bytes);
                }
                return After::Close;
            }
            _ => {
                exchange.read_body();
                exchange.answer(200, &[], &vec![b'x'; LARGE]);
            }
        }
        After::KeepAlive
    })
}

fn patient(address: SocketAddr) -> Connection {
    let mut connection = Connection::open_with_small_buffer(address);
    connection.set_patience(SECOND * 120);
    connection
}

/// Sends a hundred bytes a second of a body.
fn slow_upload(address: SocketAddr, target: &'static str, fields: &str) -> JoinHandle<Response> {
    let head =
        format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 100000\r\n\r\n");
    let mut connection = patient(address);
    connection.send(head.as_bytes());
    spawn(move || {
        for _ in 0..SECONDS {
            connection.send_what_is_taken(&[b'x'; 100]);
            sleep(SECOND);
        }
        connection.response()
    })
}

/// Takes ten thousand bytes a second of an answer for a while, then the rest.
fn slow_reader(address: SocketAddr) -> JoinHandle<usize> {
    let mut connection = patient(address);
    connection.send(&get("/steady", &[]));
    connection.head().expect("a head");
    spawn(move || {
        let mut read = 0;
        for _ in 0..SECONDS {
            read += connection.bytes(10_000).map_or(0, |bytes| bytes.len());
            sleep(SECOND);
        }
        let left = connection.bytes(LARGE - read);
        read + left.map_or(0, |bytes| bytes.len())
    })
}

/// Sends a body as fast as it is taken.
fn fast_upload(address: SocketAddr) -> JoinHandle<Response> {
    spawn(move || {
        let mut connection = Connection::open(address);
        connection.set_patience(SECOND * 120);
        let upload = vec![b'x'; UPLOAD];
        connection.send(&request("POST", "/late", &[], Some(&upload)));
        connection.response()
    })
}

fn ended(weir: &Weir, target: &str) -> (String, Value) {
    let line = weir.line_of(target);
    let action = line["action"].as_str().expect("an action").to_owned();
    (action, line["status"].clone())
}

/// CONN-7: a body that comes too slowly is answered 408, an answer that is not read ends; a slow
/// and steady reader, a slow application and a WebSocket do not.
#[test]
#[ignore = "long; .ci/run runs it"]
fn who_is_slower_than_the_least_rate_is_cut() {
    let application = application();
    let long = [
        ("WAF_UPSTREAM_TIMEOUT", "120s"),
        // With a least rate it ends no answer (CONN-5).
        ("WAF_SEND_TIMEOUT", "1s"),
    ];
    let weir = Weir::start(&application, &long);
    let address = weir.address();
    let mut unread = patient(address);
    unread.send(&get("/unread", &[]));
    unread.head().expect("a head");
    let mut socket = patient(address);
    socket.send(
        b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    );
    assert_eq!(socket.response().status, 101);
    let slow = slow_upload(address, "/slow", "");
    let asked = slow_upload(address, "/asked", "Expect: 100-continue\r\n");
    let steady = slow_reader(address);
    let late = fast_upload(address);
    let mut trickle = patient(address);
    trickle.send(&get("/trickle", &[]));
    assert_eq!(trickle.response().body.len(), SECONDS);

    for (target, upload) in [("/slow", slow), ("/asked", asked)] {
        let answer = upload.join().expect("no panic");
        assert_eq!(answer.status, 408, "{target}");
        // It was a request, and is named (TELL-1).
        let id = weir.line_of(target)["request_id"].clone();
        assert_eq!(answer.header("x-request-id"), id.as_str(), "{target}");
        assert_eq!(ended(&weir, target), ("too_slow".to_owned(), 408.into()));
    }
    let (action, status) = ended(&weir, "/unread");
    assert_eq!((&*action, status), ("too_slow", 200.into()));
    assert!(unread.ends());
    assert_eq!(steady.join().expect("no panic"), LARGE);
    assert_eq!(ended(&weir, "/steady").0, "passed");
    let late = late.join().expect("no panic");
    assert_eq!(late.status, 200);
    assert_eq!(ended(&weir, "/trickle").0, "passed");
    socket.send(b"still there");
    assert_eq!(socket.bytes(11).expect("an echo"), b"still there");
    let errors = weir.metric("waf_connection_errors_total{kind=\"too_slow\"}");
    assert_eq!(errors, Some(3.0));
}

/// CONN-7: who is refused whatever it asks for, and reads nothing of that, is cut as well.
#[test]
#[ignore = "long; .ci/run runs it"]
fn who_reads_no_refusal_is_cut() {
    let denied = [
        ("WAF_TRUSTED_PROXIES", ""),
        ("WAF_DENY_NETS", "127.0.0.2/32"),
    ];
    let weir = Weir::start(&Application::ok(), &denied);
    let mut connection = Connection::open_from(weir.address(), "127.0.0.2");
    connection.send(&get("/", &[]));
    assert_eq!(connection.response().status, 429);
    // More answers than the system holds: for some time, nothing more is taken.
    connection.send_what_is_taken(&get("/", &[]).repeat(200_000));
    let errors = || weir.metric("waf_connection_errors_total{kind=\"too_slow\"}");
    wait_until("the cut", || errors() == Some(1.0));
}
