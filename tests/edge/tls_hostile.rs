//! TLS from clients that break off, send what they must not, or hold what others want (EDGE-2).

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, HandshakeKind};

use super::tls::{Edge, ask, raw};
use crate::support::application::{After, Application};
use crate::support::raw_client::{get, request};
use crate::support::tls::{Pair, Secured, client, connect, secure};
use crate::support::unread::OtherEnd;
use crate::support::{PATIENCE, wait_until};

/// What a client sends first.
fn first_flight(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = "a.test".try_into().expect("a name");
    let mut connection = ClientConnection::new(Arc::clone(config), name).expect("a client");
    let mut flight = Vec::new();
    connection.write_tls(&mut flight).expect("a flight");
    flight
}

#[track_caller]
fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

/// Reads to the end of the connection, whatever it is.
fn drain(stream: &mut TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

#[track_caller]
fn serves(edge: &Edge) {
    let mut secured = connect(edge.tls, "a.test", &client(&[&TLS13], &[])).expect("TLS");
    assert!(ask(&mut secured, "/after", &[]).starts_with("HTTP/1.1 200 "));
}

/// EDGE-2: a handshake that breaks off at any byte, in good order or with a reset, is one that was
/// aborted, and no error; garbage behind a good beginning is one that failed.
#[test]
fn a_handshake_that_breaks_off_is_aborted() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    let mut aborted = 0;
    for version in [&TLS12, &TLS13] {
        let flight = first_flight(&client(&[version], &[]));
        for cut in [2, 5, 6, 40, flight.len() - 1, flight.len()] {
            for resets in [false, true] {
                let mut stream = open(edge.tls);
                stream.write_all(&flight[..cut]).expect("sends");
                if resets {
                    // The beginning is read before the reset takes it away.
                    OtherEnd::of(&stream).wait_until_read();
                    let linger = Some(Duration::ZERO);
                    socket2::SockRef::from(&stream)
                        .set_linger(linger)
                        .expect("an option");
                } else {
                    stream.shutdown(Shutdown::Write).expect("a half-close");
                    drain(&mut stream);
                }
                aborted += 1;
            }
        }
    }
    wait_until("the counts", || {
        edge.handshakes("aborted") == f64::from(aborted)
    });
    assert_eq!(edge.connection_errors("tls"), 0.0);
    let flight = first_flight(&client(&[&TLS13], &[]));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 300], &flight] {
        let mut stream = open(edge.tls);
        stream
            .write_all(&[&flight, garbage].concat())
            .expect("sends");
        drain(&mut stream);
    }
    wait_until("the failures", || edge.handshakes("failed") == 3.0);
    serves(&edge);
}

/// EDGE-2: what is no record, one that was changed on its way and one that is too long end the
/// connection with an alert; of what came with them nothing reaches the application.
#[test]
fn records_that_are_none_end_the_connection() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    for version in [&TLS12, &TLS13] {
        let config = client(&[version], &[]);
        for fault in ["garbage", "changed", "oversize", "plain"] {
            let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
            assert!(ask(&mut secured, "/before", &[]).starts_with("HTTP/1.1 200 "));
            let mut bytes = Vec::new();
            let ask = get(&format!("/{fault}"), &[]);
            secured.conn.writer().write_all(&ask).expect("encrypts");
            secured.conn.write_tls(&mut bytes).expect("a record");
            match fault {
                "garbage" => bytes.extend([0x2a; 64]),
                "changed" => *bytes.last_mut().expect("a byte") ^= 1,
                // Of 18,433 bytes: a record of TLS 1.2 has 2^14 + 2048 at most.
                "oversize" => {
                    bytes = vec![0x17, 3, 3, 0x48, 1];
                    bytes.extend(vec![7; 18_433]);
                }
                _ => bytes.clone_from(&ask),
            }
            // It may be ended before the last byte.
            let _ = secured.sock.write_all(&bytes);
            let mut rest = Vec::new();
            // Not by a good end: by an alert, or a reset behind it.
            assert!(secured.read_to_end(&mut rest).is_err(), "{fault}: {rest:?}");
        }
    }
    serves(&edge);
    let paths: Vec<String> = application
        .requests()
        .into_iter()
        .map(|request| request.target)
        .collect();
    assert!(
        paths
            .iter()
            .all(|path| ["/before", "/after"].contains(&&**path)),
        "{paths:?}"
    );
}

/// EDGE-2: a client that goes without the word that nothing follows has sent what it has sent: half
/// a body is not taken for a whole one. It is no error of TLS.
#[test]
fn an_end_without_its_word_is_no_end_of_a_body() {
    let application = Application::start(|exchange| {
        if exchange.read_body() {
            exchange.answer(200, &[], b"hello");
        }
        After::Close
    });
    let edge = Edge::start(&application, &[]);
    for version in [&TLS12, &TLS13] {
        let config = client(&[version], &[]);
        let whole = request("POST", "/half", &[], Some(&[b'x'; 5000]));
        let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
        secured.write_all(&whole[..whole.len() - 1]).expect("sends");
        secured
            .sock
            .shutdown(Shutdown::Write)
            .expect("a half-close");
        drain(&mut secured.sock);
        let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
        secured
            .write_all(&request("POST", "/whole", &[], Some(b"x")))
            .expect("sends");
        let mut begins = [0; 13];
        secured.read_exact(&mut begins).expect("an answer");
        assert_eq!(&begins, b"HTTP/1.1 200 ");
    }
    for line in edge.weir.lines_of("/half", 2) {
        assert_eq!(line["action"], "client_aborted", "{line}");
    }
    for line in edge.weir.lines_of("/whole", 2) {
        assert_eq!(line["action"], "passed", "{line}");
    }
    assert_eq!(edge.connection_errors("tls"), 0.0);
}

/// EDGE-2: a client that says that nothing follows has left, as one that closes has: what it asked
/// for is given up. The word is a record, which the socket has to read for as long as the request
/// is answered.
#[test]
fn the_word_that_nothing_follows_ends_what_was_asked_for() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.record();
        exchange.wait_for_close();
        After::Close
    });
    let edge = Edge::start(&application, &[]);
    let upload = vec![b'x'; 200_000];
    for (version, path, body) in [
        (&TLS12, "/a", None),
        (&TLS13, "/b", None),
        (&TLS12, "/c", Some(&upload[..])),
        (&TLS13, "/d", Some(&upload[..])),
    ] {
        let before = application.closed_connections();
        let config = client(&[version], &[]);
        let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
        let method = if body.is_some() { "POST" } else { "GET" };
        secured
            .write_all(&request(method, path, &[], body))
            .expect("sends");
        application.request(path);
        secured.conn.send_close_notify();
        secured.flush().expect("sends");
        wait_until("the end upstream", || {
            application.closed_connections() > before
        });
        let line = edge.weir.line_of(path);
        assert_eq!(line["action"], "client_aborted", "{line}");
    }
}

/// What comes until the end.
fn answer(secured: &mut Secured) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = secured.read_to_end(&mut answer);
    answer
}

/// EDGE-2: keys may be changed on request, by a client that does it once; one that does nothing
/// else is ended.
#[test]
fn a_flood_of_key_changes_ends_the_connection() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    let mut secured = connect(edge.tls, "a.test", &client(&[&TLS13], &[])).expect("TLS");
    secured.conn.refresh_traffic_keys().expect("new keys");
    assert!(ask(&mut secured, "/once", &[]).starts_with("HTTP/1.1 200 "));
    let mut ended = false;
    for _ in 0..200 {
        secured.conn.refresh_traffic_keys().expect("new keys");
        ended |= secured.flush().is_err();
    }
    ended |= secured.write_all(&get("/flood", &[])).is_err();
    assert!(ended || answer(&mut secured).is_empty());
    serves(&edge);
    assert!(
        application
            .requests()
            .iter()
            .all(|got| got.target != "/flood")
    );
}

/// EDGE-2: early data is not offered with a session, whose ticket would allow it.
#[test]
fn early_data_is_not_offered() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    let mut config = ClientConfig::clone(&client(&[&TLS13], &[]));
    config.enable_early_data = true;
    let config = Arc::new(config);
    let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
    ask(&mut secured, "/first", &[]);
    let name = "a.test".try_into().expect("a name");
    let mut second = ClientConnection::new(Arc::clone(&config), name).expect("a client");
    assert!(second.early_data().is_none());
    let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
    assert!(ask(&mut secured, "/second", &[]).starts_with("HTTP/1.1 200 "));
    assert_eq!(secured.conn.handshake_kind(), Some(HandshakeKind::Resumed));
}

/// EDGE-2: sessions outlive a change of the certificates; a ticket of a process that has ended, or
/// one that was changed, leads to a full handshake and to no failure.
#[test]
fn sessions_outlive_certificates_and_not_the_process() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    let configs = [client(&[&TLS12], &[]), client(&[&TLS13], &[])];
    let kinds = |edge: &Edge| {
        configs.each_ref().map(|config| {
            let mut secured = connect(edge.tls, "a.test", config).expect("TLS");
            assert!(ask(&mut secured, "/", &[]).starts_with("HTTP/1.1 200 "));
            secured.conn.handshake_kind().expect("done")
        })
    };
    assert_eq!(kinds(&edge), [HandshakeKind::Full; 2]);
    Pair::write(edge.state.path(), "one", &["a.test"]);
    edge.weir
        .wait_for_process_log(&["the certificates were read again"]);
    assert_eq!(kinds(&edge), [HandshakeKind::Resumed; 2]);
    drop(edge);
    let edge = Edge::start(&application, &[]);
    assert_eq!(kinds(&edge), [HandshakeKind::Full; 2]);
    assert_eq!(kinds(&edge), [HandshakeKind::Resumed; 2]);
    assert_eq!(edge.handshakes("failed"), 0.0);
}

/// EDGE-2, CONN-2: handshakes that were begun and left take every place; each of them gives way to
/// a client that goes on, and no more are open than may be.
#[test]
fn handshakes_that_are_left_give_way() {
    const MOST: usize = 24;
    let application = Application::ok();
    let most = MOST.to_string();
    let settings = [("WAF_MAX_CONNECTIONS", &*most), ("WAF_WORKERS", "1")];
    let edge = Edge::start(&application, &settings);
    let flight = first_flight(&client(&[&TLS13], &[]));
    let mut held = Vec::new();
    for round in 0..6 {
        for cut in 1..=MOST {
            let mut stream = open(edge.tls);
            // It may be closed for another at once.
            let _ = stream.write_all(&flight[..cut * 5]);
            held.push(stream);
        }
        let config = client(&[&TLS12, &TLS13], &[]);
        let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
        let path = format!("/{round}");
        assert!(ask(&mut secured, &path, &[]).starts_with("HTTP/1.1 200 "));
        let status = edge.weir.control("GET", "/v1/status", None).expect(200);
        let open = status.json()["connections"]["open"].as_u64();
        assert!(open <= Some(MOST as u64), "{open:?}");
    }
    assert_eq!(application.requests().len(), 6);
}

/// EDGE-2: a whole handshake sent byte by byte is one, and what follows in the last piece is read.
#[test]
fn a_handshake_may_come_in_bytes() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    let name = "a.test".try_into().expect("a name");
    let mut connection = ClientConnection::new(client(&[&TLS13], &[]), name).expect("a client");
    let mut stream = open(edge.tls);
    stream.set_nodelay(true).expect("an option");
    let mut flight = Vec::new();
    connection.write_tls(&mut flight).expect("a flight");
    for byte in flight {
        stream.write_all(&[byte]).expect("sends");
    }
    while connection.is_handshaking() {
        connection.read_tls(&mut stream).expect("an answer");
        connection.process_new_packets().expect("TLS");
    }
    // The client's last message and its request are one write.
    let mut flight = Vec::new();
    connection
        .writer()
        .write_all(&get("/bytes", &[("Connection", "close")]))
        .expect("encrypts");
    while connection.wants_write() {
        connection.write_tls(&mut flight).expect("a flight");
    }
    stream.write_all(&flight).expect("sends");
    let mut secured = Secured::new(connection, stream);
    assert!(answer(&mut secured).starts_with(b"HTTP/1.1 200 "));
}

/// EDGE-2, EDGE-5: plain HTTP on the port of TLS is answered in its own words also where it comes
/// in pieces or with a body, and never reaches the application.
#[test]
fn plain_requests_do_not_pass_a_port_of_tls() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    for bytes in [
        request("POST", "/", &[], Some(&[b'x'; 20_000])),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
    ] {
        let answer = raw(edge.tls, &bytes);
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    wait_until("the count", || edge.handshakes("failed") == 3.0);
    let stream = open(edge.tls);
    assert!(secure(stream, "a.test", &client(&[&TLS13], &[])).is_ok());
    assert_eq!(application.requests().len(), 0);
}
