//! Several addresses, Unix sockets on both sides (EDGE-1), and sockets that are passed (RESTART-2).

use std::fs;
use std::io::{Read, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::application::Application;
use crate::support::process::Process;
use crate::support::raw_client::{Connection, Response, exchange, get};
use crate::support::weir::{ADMIN_TOKEN, EXEMPT, ONE_PER_HOUR, StateDir, Weir, state_dir};

#[track_caller]
fn ask(path: &Path, fields: &[(&str, &str)]) -> Response {
    let mut connection = Connection::open_unix(path);
    connection.send(&get("/", fields));
    connection.response()
}

/// A state directory, a Unix socket in it, and the list of that and an address.
fn with_socket() -> (StateDir, PathBuf, String) {
    let state = state_dir();
    let socket = state.path().join("in.sock");
    let listen = format!("127.0.0.1:0,unix:{}", socket.display());
    (state, socket, listen)
}

/// The TCP addresses among the places.
#[track_caller]
fn addresses(weir: &Weir) -> Vec<SocketAddr> {
    let places = weir.places();
    places
        .iter()
        .filter_map(|place| place.parse().ok())
        .collect()
}

/// EDGE-1: every address of a list is served, and every Unix socket, by one worker and by two.
#[test]
fn every_place_of_a_list_is_served() {
    for workers in ["1", "2"] {
        let application = Application::ok();
        let state = state_dir();
        let socket = state.path().join("in.sock");
        let list = format!("127.0.0.1:0, [::1]:0,unix:{}", socket.display());
        let settings = [("WAF_LISTEN", &*list), ("WAF_WORKERS", workers)];
        let weir = Weir::start_at(application.address(), &state, &settings);
        assert_eq!(weir.places().len(), 3);
        for _ in 0..4 {
            for address in addresses(&weir) {
                exchange(address, &get("/", &[])).expect(200);
            }
            ask(&socket, &[]).expect(200);
        }
        let status = weir.control("GET", "/v1/status", None).expect(200).json();
        let listen: Vec<&str> = status["listen"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|place| place.as_str().expect("a text"))
            .collect();
        assert_eq!(listen, weir.places());
    }
}

/// EDGE-1: a peer on a Unix socket is a trusted proxy, whatever is trusted over TCP; one that names
/// no client is 127.0.0.1. The application is told so.
#[test]
fn a_peer_on_a_unix_socket_is_a_trusted_proxy() {
    let application = Application::ok();
    let (state, socket, listen) = with_socket();
    let settings = [
        ("WAF_LISTEN", &*listen),
        ("WAF_TRUSTED_PROXIES", "192.0.2.1"),
    ];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let named = [
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Forwarded-Proto", "https"),
    ];
    let mut connection = Connection::open_unix(&socket);
    connection.send(&get("/named", &named));
    connection.response().expect(200);
    connection.send(&get("/unnamed", &[]));
    connection.response().expect(200);
    let named = application.request("/named");
    assert_eq!(
        named.header("x-forwarded-for"),
        Some("203.0.113.7, 127.0.0.1")
    );
    assert_eq!(named.header("x-forwarded-proto"), Some("https"));
    let unnamed = application.request("/unnamed");
    assert_eq!(unnamed.header("x-forwarded-for"), Some("127.0.0.1"));
    let line = weir.line_of("/named");
    assert_eq!(line["client"], "203.0.113.7");
    assert_eq!(weir.line_of("/unnamed")["client"], "127.0.0.1");
}

/// ALIVE-5: no automatic ban covers those who come over a Unix socket and name no client.
#[test]
fn nobody_bans_the_unix_socket() {
    let application = Application::ok();
    let (state, socket, listen) = with_socket();
    let settings = [
        ("WAF_LISTEN", &*listen),
        ("WAF_TRUSTED_PROXIES", ""),
        ("WAF_ALLOW_NETS", ""),
        ONE_PER_HOUR,
        EXEMPT,
    ];
    let weir = Weir::start_at(application.address(), &state, &settings);
    ask(&socket, &[]).expect(200);
    ask(&socket, &[]).expect(429);
    let bans = weir.control("GET", "/v1/bans", None).expect(200).json();
    assert_eq!(bans["bans"].as_array().map(Vec::len), Some(0), "{bans}");
}

/// EDGE-1: the file has the mode of the setting, a leftover is replaced, one in use is a fault, and
/// the file goes with the service.
#[test]
fn the_file_of_a_socket_comes_and_goes() {
    let application = Application::ok();
    let (state, socket, listen) = with_socket();
    drop(UnixListener::bind(&socket).expect("a leftover"));
    let settings = [("WAF_LISTEN", &*listen), ("WAF_SOCKET_MODE", "0600")];
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    let mode = fs::metadata(&socket)
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    ask(&socket, &[]).expect(200);
    let refused = Weir::refuse(&state_dir(), &settings);
    assert_eq!(refused.code, Some(78));
    let fault = format!(
        "WAF_LISTEN=unix:{}: cannot be bound: another service listens there",
        socket.display()
    );
    assert!(refused.stderr.contains(&fault), "{}", refused.stderr);
    weir.stop();
    assert!(!socket.exists());
}

/// EDGE-1: an application behind a Unix socket, also one that cannot be reached.
#[test]
fn an_application_behind_a_unix_socket() {
    let application = Application::echo();
    let state = state_dir();
    let socket = state.path().join("app.sock");
    let upstream = format!("unix:{}", socket.display());
    let weir = Weir::start(&application, &[("WAF_UPSTREAM", &upstream)]);
    weir.get("/", "203.0.113.1").expect(502);
    relay(&socket, application.address());
    let body = vec![b'x'; 300_000];
    let mut connection = Connection::open(weir.address());
    for _ in 0..3 {
        connection.send(&crate::support::raw_client::request(
            "POST",
            "/",
            &[],
            Some(&body),
        ));
        assert_eq!(connection.response().expect(200).body.len(), body.len());
    }
    assert_eq!(application.connections(), 1, "the connection is kept");
    let mut old = Connection::open(weir.address());
    old.send(b"GET /old HTTP/1.0\r\n\r\n");
    assert_eq!(
        application.request("/old").header("host"),
        Some("localhost")
    );
}

/// Carries connections of a Unix socket to an address, for as long as the test runs.
fn relay(path: &Path, to: SocketAddr) {
    let listener = UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        for from in listener.incoming() {
            let (Ok(mut from), Ok(mut to)) = (from, TcpStream::connect(to)) else {
                return;
            };
            let mut back = (
                to.try_clone().expect("twice"),
                from.try_clone().expect("twice"),
            );
            std::thread::spawn(move || {
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = copy(&mut back.0, &mut back.1);
                let _ = back.1.shutdown(Shutdown::Both);
            });
        }
    });
}

/// A service that is passed sockets under these names.
#[track_caller]
fn activated(
    application: &Application,
    state: &Path,
    sockets: [OwnedFd; 3],
    names: &str,
) -> Process {
    let [first, second, third] = sockets;
    Process::start(
        Command::new("/bin/sh")
            .args(["-c", "exec 3<&0 4<&1 5<&2 0</dev/null 1>/dev/null 2>/dev/null; LISTEN_PID=$$ exec \"$0\""])
            .arg(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .env("LISTEN_FDS", "3")
            .env("LISTEN_FDNAMES", names)
            .env("WAF_UPSTREAM", format!("http://{}", application.address()))
            .env("WAF_STATE_DIR", state)
            .env("WAF_LOOKUP_SOURCE", "off")
            .env("WAF_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("WAF_WORKERS", "2")
            .stdin(Stdio::from(first))
            .stdout(Stdio::from(second))
            .stderr(Stdio::from(third)),
    )
}

/// RESTART-2: several sockets are passed, of TCP and Unix, and one for operators; a socket file
/// stays with the supervisor.
#[test]
fn sockets_of_every_kind_are_passed() {
    let application = Application::ok();
    let state = state_dir();
    let path: PathBuf = state.path().join("passed.sock");
    let plain = TcpListener::bind("127.0.0.1:0").expect("a port");
    let admin = TcpListener::bind("127.0.0.1:0").expect("a port");
    let unix = UnixListener::bind(&path).expect("a socket");
    let twice = |socket: &dyn AsFd| socket.as_fd().try_clone_to_owned().expect("twice");
    let sockets = [twice(&plain), twice(&admin), twice(&unix)];
    let mut service = activated(&application, state.path(), sockets, "http:admin:local");
    exchange(plain.local_addr().expect("an address"), &get("/", &[])).expect(200);
    ask(&path, &[]).expect(200);
    let token = format!("Bearer {ADMIN_TOKEN}");
    let ask =
        format!("GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n");
    let status = exchange(admin.local_addr().expect("an address"), ask.as_bytes());
    let listen = &status.expect(200).json()["listen"];
    assert_eq!(listen.as_array().map(Vec::len), Some(2), "{listen}");
    service.signal(Signal::TERM);
    service.wait();
    assert!(path.exists());
    let mut waiting = UnixStream::connect(&path).expect("the supervisor's socket");
    waiting.set_nonblocking(true).expect("an option");
    assert!(waiting.read(&mut [0]).is_err());
}
