//! The PROXY protocol from trusted peers (EDGE-4).

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::support::application::Application;
use crate::support::raw_client::{Connection, exchange, get};
use crate::support::tls::{self, Pair, client};
use crate::support::transport;
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

/// A header of version 2 as it is put together.
fn parts_of_version_2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family]);
    let length = u16::try_from(block.len()).expect("short");
    header.extend(length.to_be_bytes());
    header.extend(block);
    header
}

/// The block of an IPv4 client, with what follows the addresses.
fn block_of_version_2(entries: &[u8]) -> Vec<u8> {
    let addresses = [203, 0, 113, 7, 192, 0, 2, 1, 0x30, 0x39, 0, 80];
    [&addresses[..], entries].concat()
}

/// CRC-32C, bit by bit.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    });
    (!crc).to_be_bytes()
}

/// A header with the entry of a checksum, which is right.
fn with_checksum() -> Vec<u8> {
    let block = block_of_version_2(b"\x01\x00\x02h2\x03\x00\x04\0\0\0\0");
    let mut header = parts_of_version_2(0x21, 0x11, &block);
    let at = header.len() - 4;
    let sum = checksum(&header);
    header[at..].copy_from_slice(&sum);
    header
}

/// Sends the bytes, ends its side, and reads to the end of the connection.
#[track_caller]
fn to_the_end(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// EDGE-4: the address of the header is the peer: its forwarding header counts only if it is
/// trusted itself, its limits and bans are its own, for each request of the connection. Where the
/// header names nobody, the connection is the proxy's own and not believed, unless a setting says
/// so.
#[test]
fn the_address_of_the_header_is_the_peer() {
    if transport::is_left_out_over_tls("the header stands before the handshake") {
        return;
    }
    for (local, of_itself) in [(None, "127.0.0.1"), (Some("trusted"), "198.51.100.1")] {
        its_address_is_the_peer(local, of_itself);
    }
}

#[track_caller]
fn its_address_is_the_peer(local: Option<&str>, of_itself: &str) {
    let application = Application::ok();
    let mut settings = vec![
        ON,
        ("WAF_TRUSTED_PROXIES", "127.0.0.0/8,10.0.0.0/8"),
        ("WAF_DENY_NETS", "203.0.113.9"),
    ];
    settings.extend(local.map(|local| ("WAF_PROXY_PROTOCOL_LOCAL", local)));
    let weir = Weir::start(&application, &settings);
    let forwarded = [("X-Forwarded-For", "198.51.100.1")];
    for (path, header, client) in [
        ("/v1", version_1("203.0.113.7"), "203.0.113.7"),
        ("/v2", version_2([203, 0, 113, 8]), "203.0.113.8"),
        ("/trusted", version_2([10, 0, 0, 1]), "198.51.100.1"),
        ("/unknown", b"PROXY UNKNOWN\r\n".to_vec(), of_itself),
        ("/local", parts_of_version_2(0x20, 0, b""), of_itself),
        ("/unspecified", parts_of_version_2(0x21, 0, b""), of_itself),
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
        let seen = application.request(path);
        let believed = client == "198.51.100.1";
        let peer = if path == "/trusted" {
            "10.0.0.1"
        } else {
            "127.0.0.1"
        };
        let chain = if believed {
            format!("198.51.100.1, {peer}")
        } else {
            client.to_owned()
        };
        assert_eq!(seen.header("x-forwarded-for"), Some(&*chain), "{path}");
    }
    let denied = [version_1("203.0.113.9"), get("/denied", &[])].concat();
    exchange(weir.address(), &denied).expect(429);
}

/// EDGE-4, ALIVE-5: a proxy that names nobody is limited as any other client, and not banned: its
/// health checks would end with it, and those whose address it does know.
#[test]
fn a_proxy_that_names_nobody_is_not_banned() {
    if transport::is_left_out_over_tls("the header stands before the handshake") {
        return;
    }
    let application = Application::ok();
    let state = state_dir();
    let rules = r#"{"version":1,"traps":[{"name":"scanner","paths":["/.env"]}]}"#;
    std::fs::write(state.path().join("rules.json"), rules).expect("writes");
    let settings = [ON, ("WAF_RATE_LIMIT_PER_DAY", "3")];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let unknown = |path: &str, client: &str| {
        let request = get(path, &[("X-Forwarded-For", client)]);
        exchange(
            weir.address(),
            &[&b"PROXY UNKNOWN\r\n"[..], &request].concat(),
        )
    };
    unknown("/.env", "198.51.100.1").expect(429);
    for status in [200, 200, 200, 429, 429] {
        unknown("/", "198.51.100.1").expect(status);
    }
    // Whatever it says of clients: they are not told apart.
    unknown("/", "198.51.100.2").expect(429);
    let named = [version_1("203.0.113.7"), get("/named", &[])].concat();
    exchange(weir.address(), &named).expect(200);
    let bans = weir.control("GET", "/v1/bans", None).expect(200).json();
    assert_eq!(bans["bans"], serde_json::json!([]));
}

/// EDGE-4: a trusted peer without a header, or with a malformed one, is closed without an answer
/// and counted; one that closes at once is not.
#[test]
fn a_trusted_peer_needs_a_header() {
    let application = Application::ok();
    let state = state_dir();
    let socket = state.path().join("in.sock");
    let listen = format!("127.0.0.1:0,unix:{}", socket.display());
    let settings = [ON, ("WAF_LISTEN", &*listen), ("WAF_HEADER_TIMEOUT", "3s")];
    let weir = Weir::start_at(application.address(), &state, &settings);
    drop(TcpStream::connect(weir.address()).expect("connects"));
    assert_eq!(to_the_end(weir.address(), &get("/", &[])), b"");
    // Cut off, without an end: it ends after a second.
    let mut cut = TcpStream::connect(weir.address()).expect("connects");
    cut.write_all(b"PROXY TCP4 203").expect("sends");
    cut.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    assert_eq!(cut.read(&mut [0]).expect("its end"), 0);
    let mut local = Connection::open_unix(&socket);
    local.send(&[version_1("203.0.113.7"), get("/unix", &[])].concat());
    local.response().expect(200);
    assert_eq!(weir.line_of("/unix")["client"], "203.0.113.7");
    wait_until("the count", || {
        let page = weir.control("GET", "/v1/metrics", None).text();
        page.contains("waf_connection_errors_total{kind=\"proxy_protocol\"} 2\n")
    });
    assert_eq!(application.requests().len(), 1);
}

/// EDGE-4: every header that is malformed closes its connection without an answer and is counted,
/// whatever follows it; nothing reaches the application.
#[test]
fn malformed_headers_are_refused() {
    if transport::is_left_out_over_tls("the header stands before the handshake") {
        return;
    }
    let v1 = |line: &str| format!("{line}\r\n").into_bytes();
    let long = format!("PROXY UNKNOWN {}", "x".repeat(100));
    let mut wrong_sum = with_checksum();
    *wrong_sum.last_mut().expect("a byte") ^= 1;
    let mut changed = with_checksum();
    changed[16] ^= 1;
    let parts = parts_of_version_2;
    let block = block_of_version_2;
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    let table = [
        v1("proxy TCP4 203.0.113.7 192.0.2.1 1 2"),
        v1(" PROXY TCP4 203.0.113.7 192.0.2.1 1 2"),
        v1("PROXY  TCP4 203.0.113.7 192.0.2.1 1 2"),
        v1("PROXY TCP4  203.0.113.7 192.0.2.1 1 2"),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 1"),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 1 2 3"),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 1 2 "),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 01 2"),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 1 65536"),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 1 +2"),
        v1("PROXY TCP4 203.0.113.7 192.0.2.1 -1 2"),
        v1("PROXY TCP4 203.0.113.07 192.0.2.1 1 2"),
        v1("PROXY TCP4 203.0.113.256 192.0.2.1 1 2"),
        v1("PROXY TCP4 203.0.113 192.0.2.1 1 2"),
        v1("PROXY TCP4 2001:db8::7 192.0.2.1 1 2"),
        v1("PROXY TCP4 203.0.113.7 ::1 1 2"),
        v1("PROXY TCP6 203.0.113.7 192.0.2.1 1 2"),
        v1("PROXY TCP6 2001:db8:::7 ::1 1 2"),
        v1("PROXY TCP6 fe80::1%eth0 ::1 1 2"),
        v1("PROXY UDP4 203.0.113.7 192.0.2.1 1 2"),
        v1("PROXY TCP4 203.0.113.7\t192.0.2.1 1 2"),
        v1("PROXY TCP4 203.0.113.\u{661} 192.0.2.1 1 2"),
        v1("PROXY "),
        v1("PROXY"),
        v1(&long),
        b"PROXY UNKNOWN\n".to_vec(),
        b"PROXY UNKNOWN \xff\r\n".to_vec(),
        b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2\n".to_vec(),
        b"PROXY UNKNOWN\r".to_vec(),
        b"\r\n\r\n\0\r\nQUIT".to_vec(),
        b"\r\n\r\n\0\r\nQUIX\n\x21\x11\0\0".to_vec(),
        // Versions, commands, families, transports.
        parts(0x11, 0x11, &block(b"")),
        parts(0x31, 0x11, &block(b"")),
        parts(0x22, 0x11, &block(b"")),
        parts(0x21, 0x12, &block(b"")),
        parts(0x21, 0x10, &block(b"")),
        parts(0x21, 0x41, &block(b"")),
        // Lengths.
        parts(0x21, 0x11, b""),
        parts(0x21, 0x11, &block(b"")[..11]),
        parts(0x21, 0x21, &[0; 35]),
        parts(0x21, 0x31, &[0; 215]),
        parts(0x20, 0x00, &[0; 4097]),
        parts(0x21, 0x11, &block(b""))[..27].to_vec(),
        // Entries, and their checksum.
        parts(0x21, 0x11, &block(b"\x01")),
        parts(0x21, 0x11, &block(b"\x01\x00")),
        parts(0x21, 0x11, &block(b"\x01\x00\x02h")),
        parts(0x21, 0x11, &block(b"\x03\x00\x03abc")),
        parts(0x21, 0x11, &block(b"\x03\x00\x04\0\0\0\0")),
        parts(0x21, 0x00, b"\x05\xff\xffa"),
        wrong_sum,
        changed,
    ];
    let is_line = |header: &[u8]| header.ends_with(b"\r\n");
    for header in &table {
        let text = String::from_utf8_lossy(header);
        assert_eq!(to_the_end(weir.address(), header), b"", "{text:?}");
        if is_line(header) {
            // What follows does not save it.
            to_the_end(weir.address(), &[&header[..], &get("/", &[])].concat());
        }
    }
    for good in [
        with_checksum(),
        parts(0x20, 0x31, b"anything"),
        parts(0x21, 0x00, b"\x05\x00\x01a"),
        parts(0x21, 0x31, &[0; 216]),
    ] {
        let bytes = [&good[..], &get("/good", &[])].concat();
        exchange(weir.address(), &bytes).expect(200);
    }
    let requests = application.requests();
    assert!(requests.iter().all(|got| got.target == "/good"));
    let count = table.len() + table.iter().filter(|header| is_line(header)).count();
    wait_until("the count", || {
        let page = weir.control("GET", "/v1/metrics", None).text();
        page.contains(&format!("{{kind=\"proxy_protocol\"}} {count}\n"))
    });
}

/// EDGE-4, CONN-4: connections of a trusted proxy that say nothing are bounded; the oldest gives
/// way to a further one, which is served.
#[test]
fn those_without_a_header_give_way() {
    if transport::is_left_out_over_tls("the header stands before the handshake") {
        return;
    }
    const MOST: usize = 128;
    let application = Application::ok();
    let settings = [ON, ("WAF_WORKERS", "1"), ("WAF_HEADER_TIMEOUT", "60s")];
    let weir = Weir::start(&application, &settings);
    let silent: Vec<TcpStream> = (0..MOST + 20)
        .map(|_| TcpStream::connect(weir.address()).expect("connects"))
        .collect();
    let ended = |stream: &TcpStream| {
        stream.set_nonblocking(true).expect("an option");
        matches!((&*stream).read(&mut [0]), Ok(0))
    };
    wait_until("the oldest", || silent[..20].iter().all(ended));
    let bytes = [version_1("203.0.113.7"), get("/", &[])].concat();
    exchange(weir.address(), &bytes).expect(200);
    let open = silent.iter().filter(|stream| !ended(stream)).count();
    assert!((MOST - 1..=MOST).contains(&open), "{open}");
    let page = weir.control("GET", "/v1/metrics", None).text();
    assert!(
        page.contains("waf_connection_errors_total{kind=\"too_many\"} 2"),
        "{page}"
    );
}

/// EDGE-4, EDGE-5: who is not trusted is served as itself, and closed if it sends a header; a line
/// says so.
#[test]
fn an_untrusted_peer_speaks_for_itself() {
    if transport::is_left_out_over_tls("the header stands before the handshake") {
        return;
    }
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
    let mut secured = tls::secure(stream, "a.test", &config).expect("TLS");
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
