//! Requests at the application are bounded, and wait for their turn (CONN-12).

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::json;

use crate::support::application::{After, Application, Exchange};
use crate::support::frames::{Frames, HEADERS, RST_STREAM, Reaction, WHOLE, frame, get as head};
use crate::support::process::Process;
use crate::support::raw_client::{Connection, exchange, get, request};
use crate::support::weir::{Weir, state_dir};
use crate::support::{GATHERED, free_address, wait_for, wait_until};

const TWO_WORKERS: (&str, &str) = ("WAF_WORKERS", "2");
const ONE_PLACE: (&str, &str) = ("WAF_MAX_UPSTREAM", "1");
const PATIENT: (&str, &str) = ("WAF_UPSTREAM_QUEUE", "10m");
const H2: (&str, &str) = ("WAF_H2C", "on");

/// Requests whose answers wait until the test lets them go.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<BTreeSet<String>>, Condvar)>);

impl Gate {
    fn open(&self, path: &str) {
        self.0.0.lock().expect("the gate").insert(path.to_owned());
        self.0.1.notify_all();
    }

    fn wait(&self, path: &str) {
        let held = self.0.0.lock().expect("the gate");
        let is_shut = |open: &mut BTreeSet<String>| !open.contains(path) && !open.contains("all");
        drop(self.0.1.wait_while(held, is_shut).expect("the gate"));
    }
}

impl Drop for Gate {
    /// No thread of a test waits for ever.
    fn drop(&mut self) {
        if let Ok(mut open) = self.0.0.lock() {
            open.insert("all".to_owned());
        }
        self.0.1.notify_all();
    }
}

/// An application that answers `/free…` at once, and everything else when the gate opens.
fn gated() -> (Application, Gate) {
    let gate = Gate::default();
    let waits = Arc::clone(&gate.0);
    let application = Application::start(move |exchange| {
        exchange.read_body();
        let target = exchange.request.target.clone();
        if !target.starts_with("/free") {
            let gate = std::mem::ManuallyDrop::new(Gate(Arc::clone(&waits)));
            gate.wait(&target);
        }
        exchange.answer(200, &[], b"answer");
        After::KeepAlive
    });
    (application, gate)
}

fn at_the_application(weir: &Weir) -> f64 {
    weir.metric("waf_upstream_requests").expect("a series")
}

fn waiting(weir: &Weir) -> f64 {
    weir.metric("waf_upstream_waiting").expect("a series")
}

/// A request under way, by a client of its own.
fn ask(weir: &Weir, path: &str) -> Connection {
    let mut connection = Connection::open(weir.address());
    connection.send(&get(path, &[("X-Forwarded-For", "203.0.113.7")]));
    connection
}

/// CONN-12: what finds no place waits, over all workers, and is served in the order of arrival.
#[test]
fn requests_take_their_turn() {
    let (application, gate) = gated();
    let weir = Weir::start(&application, &[TWO_WORKERS, ONE_PLACE, PATIENT]);
    let paths = ["/0", "/1", "/2", "/3", "/4", "/5"];
    let mut asked = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        asked.push(ask(&weir, path));
        wait_until("its place in the queue", || waiting(&weir) == number as f64);
        assert_eq!(application.requests().len().max(1), 1);
        wait_until("the first", || at_the_application(&weir) == 1.0);
    }
    for (number, path) in paths.iter().enumerate() {
        wait_until("the next", || application.requests().len() == number + 1);
        assert_eq!(application.requests()[number].target, **path);
        gate.open(path);
        asked[number].response().expect(200);
    }
    wait_until("nothing", || at_the_application(&weir) == 0.0);
    assert_eq!(waiting(&weir), 0.0);
}

/// CONN-12: who finds no place in time is answered 503 with `Retry-After`, which is logged and
/// counted, and is no refusal of the client: nothing of it is charged.
#[test]
fn who_finds_no_place_is_told() {
    for (queue, seconds) in [("1500ms", "2"), ("0s", "1")] {
        let (application, gate) = gated();
        let settings = [
            ONE_PLACE,
            ("WAF_UPSTREAM_QUEUE", queue),
            ("WAF_LOG_REQUESTS", "refused"),
            ("WAF_BYTES_LIMIT_PER_DAY", "1M"),
        ];
        let weir = Weir::start(&application, &settings);
        let mut first = ask(&weir, "/held");
        wait_until("the first", || application.requests().len() == 1);
        let late = weir.get("/late", "203.0.113.8").expect(503);
        assert_eq!(late.header("retry-after"), Some(seconds));
        assert_eq!(
            late.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(late.json()["status"], 503);
        let line = weir.line_of("/late");
        assert_eq!(line["action"], "overloaded");
        assert_eq!(line["status"], 503);
        assert_eq!(line["enforced"], true);
        assert_eq!(line["request_id"], late.json()["request_id"]);
        // A body goes nowhere either, and its bytes are not charged.
        let from = [("X-Forwarded-For", "203.0.113.8")];
        let upload = request("POST", "/late", &from, Some(&[b'x'; 2000]));
        exchange(weir.address(), &upload).expect(503);
        let client = weir.control("GET", "/v1/clients/203.0.113.8", None).json();
        let client = &client["client"];
        assert_eq!(client["refused"], 0, "{client}");
        assert_eq!(client["passed"], 0, "{client}");
        assert_eq!(client["bytes"]["day"]["current"], 0, "{client}");
        gate.open("all");
        first.response().expect(200);
        weir.get("/free", "203.0.113.8").expect(200);
        let refused = r#"waf_requests_total{action="overloaded",mode="enforce"}"#;
        assert_eq!(weir.metric(refused), Some(2.0));
        assert_eq!(application.requests().len(), 2);
    }
}

/// The handshake of RFC 6455 §1.3, whose answer is given there too.
const UPGRADE: &[u8] = b"GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\n";

/// Ends a request in the way that its path names.
fn misbehave(exchange: &mut Exchange) -> After {
    match exchange.request.target.as_str() {
        "/half-then-reset" => {
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            After::Reset
        }
        "/reset" => After::Reset,
        "/nonsense" => {
            exchange.send(b"220 mail.test ESMTP\r\n");
            After::Close
        }
        "/never" => {
            exchange.wait_for_close();
            After::Close
        }
        "/half" => {
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            exchange.wait_for_close();
            After::Close
        }
        "/tunnel" => {
            exchange.send(ACCEPTED);
            exchange.wait_for_close();
            After::Close
        }
        "/large" => {
            exchange.answer(200, &[], &[b'x'; 3_000_000]);
            After::KeepAlive
        }
        _ => {
            exchange.read_body();
            exchange.answer(200, &[], b"answer");
            After::KeepAlive
        }
    }
}

#[track_caller]
fn is_free(weir: &Weir) {
    wait_until("the place", || at_the_application(weir) == 0.0);
    weir.get("/free", "203.0.113.9").expect(200);
}

/// CONN-12: a place is given back however its request ends; a WebSocket gives it back once it is
/// one.
#[test]
fn a_place_is_given_back_however_a_request_ends() {
    let application = Application::start(misbehave);
    let settings = [
        ONE_PLACE,
        PATIENT,
        H2,
        ("WAF_UPSTREAM_TIMEOUT", "2s"),
        ("WAF_BODY_TIMEOUT", "1s"),
    ];
    let weir = Weir::start(&application, &settings);
    for path in ["/answer", "/large"] {
        ask(&weir, path).response().expect(200);
        is_free(&weir);
    }
    for path in ["/reset", "/nonsense"] {
        ask(&weir, path).response().expect(502);
        is_free(&weir);
    }
    ask(&weir, "/never").response().expect(504);
    is_free(&weir);
    for path in ["/half-then-reset", "/half"] {
        assert!(ask(&weir, path).try_response(false).is_err());
        is_free(&weir);
    }
    // The client leaves, before and in the middle of the answer.
    // What the application has seen stays seen, and it sees nothing that holds no place.
    let seen = |path: &str| {
        let requests = application.requests();
        requests.iter().filter(|one| one.target == path).count()
    };
    let left = ask(&weir, "/never");
    wait_until("a request", || seen("/never") == 2);
    left.reset();
    is_free(&weir);
    let mut left = ask(&weir, "/half");
    left.head().expect("a head");
    left.reset();
    is_free(&weir);
    // Its body stops coming.
    let mut slow = Connection::open(weir.address());
    let slow_head = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n";
    slow.send(&[&slow_head[..], &vec![b'x'; GATHERED]].concat());
    wait_until("a request", || seen("/slow") == 1);
    is_free(&weir);
    // A stream of HTTP/2 is reset.
    let mut frames = Frames::open(weir.address());
    frames.send(&frame(HEADERS, WHOLE, 1, &head("/never", &[])));
    wait_until("a stream", || seen("/never") == 3);
    frames.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
    is_free(&weir);
    // A WebSocket, which goes on.
    let mut tunnel = Connection::open(weir.address());
    tunnel.send(UPGRADE);
    assert_eq!(tunnel.head().expect("a head").status, 101);
    is_free(&weir);
    assert_eq!(waiting(&weir), 0.0);
}

/// CONN-12: who gives up waiting leaves the queue, over HTTP/1.1 and as a stream.
#[test]
fn who_leaves_waits_no_longer() {
    let (application, gate) = gated();
    let weir = Weir::start(&application, &[ONE_PLACE, PATIENT, H2]);
    let mut held = ask(&weir, "/held");
    wait_until("the first", || application.requests().len() == 1);
    let left = ask(&weir, "/left");
    wait_until("the queue", || waiting(&weir) == 1.0);
    let mut last = ask(&weir, "/last");
    wait_until("the queue", || waiting(&weir) == 2.0);
    let mut frames = Frames::open(weir.address());
    frames.send(&frame(HEADERS, WHOLE, 1, &head("/stream", &[])));
    wait_until("the queue", || waiting(&weir) == 3.0);
    left.reset();
    wait_until("one less", || waiting(&weir) == 2.0);
    frames.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
    wait_until("two less", || waiting(&weir) == 1.0);
    assert_eq!(weir.line_of("/left")["action"], "client_aborted");
    gate.open("/held");
    gate.open("/last");
    held.response().expect(200);
    last.response().expect(200);
    let targets: Vec<_> = application.requests();
    let targets: Vec<_> = targets.iter().map(|each| each.target.as_str()).collect();
    assert_eq!(targets, ["/held", "/last"]);
}

/// CONN-12: a place is held until the answer has been read from the application, not until a client
/// that takes its time has it.
#[test]
fn a_slow_reader_holds_no_place() {
    let application = Application::start(|exchange| {
        exchange.answer(200, &[], &[b'x'; 5_000]);
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[ONE_PLACE, PATIENT, H2]);
    // It takes ten bytes of each answer.
    let mut frames = Frames::open_with(weir.address(), &[(4, 10)]);
    for stream in [1, 3, 5] {
        frames.send(&frame(HEADERS, WHOLE, stream, &head("/", &[])));
        assert_eq!(frames.reaction(stream), Reaction::Status(200));
    }
    assert_eq!(application.requests().len(), 3);
    wait_until("the place", || at_the_application(&weir) == 0.0);
}

/// CONN-13: uploads of which a byte has come hold neither a place nor a connection of the
/// application; each goes there once the beginning of its body is here.
#[test]
fn uploads_that_trickle_hold_nothing_of_the_application() {
    const UPLOADS: u8 = 250;
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PLACE, PATIENT, ("WAF_WORKERS", "1")]);
    let mut uploads: Vec<_> = (0..UPLOADS)
        .map(|number| {
            let mut upload = Connection::open(weir.address());
            let client = format!("203.0.113.{number}");
            let fields = [("X-Forwarded-For", &*client), ("Content-Length", "2")];
            upload.send(&request("POST", "/upload", &fields, None));
            upload.send(b"x");
            upload
        })
        .collect();
    wait_until("every head", || {
        weir.metric("waf_clients") >= Some(f64::from(UPLOADS))
    });
    assert_eq!(at_the_application(&weir) + waiting(&weir), 0.0);
    assert_eq!(application.connections(), 0);
    weir.get("/free", "198.51.100.1").expect(200);
    for upload in &mut uploads {
        upload.send(b"y");
        upload.response().expect(200);
    }
    assert_eq!(application.connections(), 1);
    assert_eq!(application.requests().len(), usize::from(UPLOADS) + 1);
}

/// CONN-12, RELOAD-2: a reload changes the bound; those that wait go on where it is higher.
#[test]
fn a_reload_changes_the_bound() {
    let (application, gate) = gated();
    let state = state_dir();
    let file = state.path().join("weir.env");
    let bound = |max: &str| {
        fs::write(
            &file,
            format!("WAF_UPSTREAM_QUEUE=10m\nWAF_MAX_UPSTREAM={max}\n"),
        )
        .expect("writes");
    };
    bound("1");
    let arguments = ["--settings", file.to_str().expect("a path")];
    let weir = Weir::try_start(&arguments, application.address(), &state, &[]).expect("it starts");
    let _asked: Vec<_> = ["/1", "/2", "/3"].map(|path| ask(&weir, path)).into();
    wait_until("the queue", || waiting(&weir) == 2.0);
    bound("2");
    weir.signal("HUP");
    wait_until("the second", || application.requests().len() == 2);
    assert_eq!((waiting(&weir), at_the_application(&weir)), (1.0, 2.0));
    // Where it is lower, those above it end, and none follows until there is room.
    bound("1");
    weir.signal("HUP");
    weir.wait_for_process_log(&["changed: WAF_MAX_UPSTREAM 2 -> 1"]);
    let second = application.requests()[1].target.clone();
    gate.open(&second);
    wait_until("one less", || at_the_application(&weir) == 1.0);
    assert_eq!((waiting(&weir), application.requests().len()), (1.0, 2));
    gate.open("all");
    wait_until("the last", || application.requests().len() == 3);
}

/// CONN-12, CONN-4: with 1,024 open files, 992 requests of one address over HTTP/2 to a slow
/// application leave everybody else served.
#[test]
fn one_address_leaves_everybody_else_served() {
    let (application, gate) = gated();
    let (state, address) = (state_dir(), free_address());
    let log = state.path().join("stderr");
    let mut shell = Command::new("sh");
    shell
        .env_clear()
        .args(["-c", "ulimit -n 1024 && exec \"$0\""])
        .arg(env!("CARGO_BIN_EXE_weir"))
        .env("WAF_LISTEN", address.to_string())
        .env("WAF_UPSTREAM", format!("http://{}", application.address()))
        .env("WAF_STATE_DIR", state.path())
        .env("WAF_LOOKUP_SOURCE", "off")
        .env("WAF_H2C", "on")
        .env("WAF_WORKERS", "2")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).expect("a file"));
    let weir = Process::start(&mut shell);
    wait_for("the listener", || TcpStream::connect(address).ok());
    wait_until("its socket", || state.path().join("weir.sock").exists());
    let mut flood = Vec::new();
    for _ in 0..8 {
        let mut frames = Frames::open(address);
        for stream in 0..124 {
            frames.send(&frame(HEADERS, WHOLE, 2 * stream + 1, &head("/slow", &[])));
        }
        flood.push(frames);
    }
    let status = || {
        let mut control = Connection::open_unix(&state.path().join("weir.sock"));
        control.send(&get("/v1/status", &[]));
        control.response().expect(200).json()
    };
    // Each of them is at the application or was answered 429: one client has half of the places.
    wait_until("the flood", || {
        status()["total"]["actions"]["rate_limited"] == json!(992 - 145)
    });
    wait_until("its half", || application.requests().len() == 145);
    for last in 1..=60 {
        let mut visitor = Connection::open_from(address, &format!("127.0.9.{last}"));
        visitor.send(&get("/free", &[]));
        visitor.response().expect(200);
    }
    let files = fs::read_dir(format!("/proc/{}/fd", weir.id())).expect("its files");
    assert!(files.count() < 1024 - 64);
    let text = fs::read_to_string(&log).expect("the log");
    assert!(!text.contains("accept failed"), "{text}");
    gate.open("all");
}
