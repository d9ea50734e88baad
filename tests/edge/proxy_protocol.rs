//! The PROXY protocol from trusted peers (EDGE-4).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::application::Application;
use crate::support::raw_client::{Connection, exchange, get};
use crate::support::tls::{Pair, client};
use crate::support::weir::{Weir, state_dir};
use crate::support::{PATIENCE, wait_until};

const ON: (&str, &str) = ("WAF_PROXY_PROTOCOL", "on");

/// A header of version 2 for this IPv4 client.
fn version_2(client: [u8; 4]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
    header.extend(client);
    header.extend([192, 0, 2, 1, 0x30, 0x39, 0, 80]);
    header
}

fn version_1(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 192.0.2.1 12345 80\r\n").into_bytes()
}

/// Sends the pieces one by one and reads to the end of the connection.
#[track_caller]
fn to_the_end(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// EDGE-4: the address of the header is the peer: its forwarding header counts only if it is
/// trusted itself, its limits and bans are its own, for each request of the connection.
#[test]
fn the_address_of_the_header_is_the_peer() {
    let application = Application::ok();
    let settings = [
        ON,
        ("WAF_TRUSTED_PROXIES", "127.0.0.0/8,10.0.0.0/8"),
        ("WAF_DENY_NETS", "203.0.113.9"),
    ];
    let weir = Weir::start(&application, &settings);
    let forwarded = [("X-Forwarded-For", "198.51.100.1")];
    for (path, header, client) in [
        ("/v1", version_1("203.0.113.7"), "203.0.113.7"),
        ("/v2", version_2([203, 0, 113, 8]), "203.0.113.8"),
        ("/trusted", version_2([10, 0, 0, 1]), "198.51.100.1"),
        ("/unknown", b"PROXY UNKNOWN\r\n".to_vec(), "198.51.100.1"),
        (
            "/local",
            b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec(),
            "198.51.100.1",
        ),
    ] {
        let mut connection = Connection::open(weir.address());
        // In pieces: whatever comes behind the header in one of them is read too.
        connection.send(&header[..7]);
        connection.send(&header[7..]);
        let second = format!("{path}-2");
        let both = [get(path, &forwarded), get(&second, &forwarded)].concat();
        connection.send(&both);
        connection.response().expect(200);
        connection.response().expect(200);
        assert_eq!(weir.line_of(path)["client"], client, "{path}");
        assert_eq!(weir.line_of(&second)["client"], client, "{path}");
    }
    let denied = [version_1("203.0.113.9"), get("/denied", &[])].concat();
    exchange(weir.address(), &denied).expect(429);
}

/// EDGE-4: a trusted peer without a header, or with a malformed one, is closed without an answer
/// and counted; one that closes at once is not.
#[test]
fn a_trusted_peer_needs_a_header() {
    let application = Application::ok();
    let state = state_dir();
    let socket = state.path().join("in.sock");
    let listen = format!("127.0.0.1:0,unix:{}", socket.display());
    let settings = [ON, ("WAF_LISTEN", &*listen), ("WAF_HEADER_TIMEOUT", "1s")];
    let weir = Weir::start_at(application.address(), &state, &settings);
    drop(TcpStream::connect(weir.address()).expect("connects"));
    let faulty = [
        get("/", &[]),
        b"PROXY TCP4 203.0.113.7 192.0.2.1 1\r\n".to_vec(),
        [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 200]].concat(),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x02ab".to_vec(),
        // Cut off: it ends after a second.
        b"PROXY TCP4 203".to_vec(),
    ];
    for bytes in &faulty {
        assert_eq!(to_the_end(weir.address(), bytes), b"", "{bytes:?}");
    }
    let mut local = Connection::open_unix(&socket);
    local.send(&[version_1("203.0.113.7"), get("/unix", &[])].concat());
    local.response().expect(200);
    assert_eq!(weir.line_of("/unix")["client"], "203.0.113.7");
    wait_until("the count", || {
        let page = weir.control("GET", "/v1/metrics", None).text();
        page.contains("waf_connection_errors_total{kind=\"proxy_protocol\"} 5\n")
    });
    assert_eq!(application.requests().len(), 1);
}

/// EDGE-4, EDGE-5: who is not trusted is served as itself, and closed if it sends a header; a line
/// says so.
#[test]
fn an_untrusted_peer_speaks_for_itself() {
    let application = Application::ok();
    let settings = [ON, ("WAF_TRUSTED_PROXIES", "192.0.2.1")];
    let weir = Weir::start(&application, &settings);
    exchange(weir.address(), &get("/", &[])).expect(200);
    for header in [version_1("203.0.113.7"), version_2([203, 0, 113, 7])] {
        let bytes = [header, get("/smuggled", &[])].concat();
        let answer = to_the_end(weir.address(), &bytes);
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    weir.wait_for_process_log(&["the peer speaks the PROXY protocol; this port is plain HTTP"]);
    assert_eq!(application.requests().len(), 1);
    wait_until("the count", || {
        let page = weir.control("GET", "/v1/metrics", None).text();
        page.contains("waf_connection_errors_total{kind=\"proxy_protocol\"} 2\n")
    });
}

/// EDGE-4, EDGE-2: the header stands before the handshake of TLS.
#[test]
fn a_header_stands_before_tls() {
    let application = Application::ok();
    let state = state_dir();
    let pair = Pair::write(state.path(), "one", &["a.test"]);
    let files = Pair::settings(&[&pair]);
    let mut settings = vec![ON, ("WAF_LISTEN", "127.0.0.1:0,https://127.0.0.1:0")];
    settings.extend(files.iter().map(|(name, value)| (*name, &**value)));
    let weir = Weir::start_at(application.address(), &state, &settings);
    let tls: SocketAddr = weir.places()[1]
        .trim_start_matches("https://")
        .parse()
        .expect("an address");
    let mut stream = TcpStream::connect(tls).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
        .write_all(&version_2([203, 0, 113, 7]))
        .expect("sends");
    let config = client(rustls::ALL_VERSIONS, &[]);
    let mut secured = crate::support::tls::secure(stream, "a.test", &config).expect("TLS");
    secured
        .write_all(&get("/", &[("Connection", "close")]))
        .expect("sends");
    let mut answer = Vec::new();
    secured.read_to_end(&mut answer).expect("the end is said");
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    let line = weir.line_of("/");
    assert_eq!(
        (&line["client"], &line["scheme"]),
        (&"203.0.113.7".into(), &"https".into())
    );
}
