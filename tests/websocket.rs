//! WebSockets: a tunnel where both ends asked for one, counted each way, and closed on both ends
//! (LIMIT-5, CONN-10).

use std::net::TcpStream;
use std::sync::mpsc;

use crate::support::application::{After, Application};
use crate::support::geo::Geo;
use crate::support::raw_client::{Connection, get};
use crate::support::weir::Weir;
use crate::support::{PATIENCE, wait_for, wait_until};

/// The handshake of RFC 6455 §1.3, whose answer is given there too.
fn handshake(path: &str, client: &str) -> Vec<u8> {
    get(
        path,
        &[
            ("X-Forwarded-For", client),
            ("Connection", "keep-alive, Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Protocol", "chat"),
        ],
    )
}

const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\nSec-WebSocket-Protocol: chat\r\n\r\n";

/// Accepts, sends a greeting with the head, and echoes whatever comes until the end.
fn echoing() -> Application {
    Application::start(|exchange| {
        if exchange.request.header("upgrade") != Some("websocket") {
            exchange.answer(426, &[], b"");
            return After::KeepAlive;
        }
        let mut bytes = ACCEPTED.to_vec();
        bytes.extend(b"greeting");
        exchange.send(&bytes);
        while let Some(bytes) = exchange.read_raw() {
            if !exchange.send(&bytes) || bytes.ends_with(b"bye") {
                break;
            }
        }
        After::Close
    })
}

#[track_caller]
fn open(weir: &Weir, path: &str, client: &str) -> Connection {
    let mut connection = Connection::open(weir.address());
    connection.send(&handshake(path, client));
    let answer = connection.response();
    assert_eq!(answer.status, 101, "{answer:?}");
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    let accept = answer.header("sec-websocket-accept");
    assert_eq!(accept, Some("s3pPLMBiTxaQ9kYGzzhbK+xOo0M="));
    assert_eq!(answer.header("sec-websocket-protocol"), Some("chat"));
    assert_eq!(connection.bytes(8).expect("the greeting"), b"greeting");
    connection
}

/// Bytes go both ways untouched, those that came with the handshake included.
#[test]
fn a_websocket_is_a_tunnel() {
    let application = echoing();
    let weir = Weir::start(&application, &[]);
    let mut connection = open(&weir, "/ws", "203.0.113.7");
    for message in [
        &b"\x81\x05hello"[..],
        b"\0\xff\r\n\r\nGET / HTTP/1.1",
        &[7; 100_000],
    ] {
        connection.send(message);
        assert_eq!(connection.bytes(message.len()).expect("the echo"), message);
    }
    let seen = application.request("/ws");
    assert_eq!(
        seen.header("connection").map(str::to_ascii_lowercase),
        Some("upgrade".to_owned())
    );
    assert_eq!(
        seen.header("sec-websocket-key"),
        Some("dGhlIHNhbXBsZSBub25jZQ==")
    );
    assert_eq!(
        seen.header("x-forwarded-for"),
        Some("203.0.113.7, 127.0.0.1")
    );
    drop(connection);
    let line = weir.line_of("/ws");
    assert_eq!(line["websocket"], true);
    assert_eq!(line["status"], 101);
    assert_eq!(line["action"], "passed");
    assert_eq!(line["bytes"]["request"], 7 + 20 + 100_000);
    assert_eq!(line["bytes"]["response"], 8 + 7 + 20 + 100_000);
}

/// RESTART-1: a handshake that is read at a stop makes a WebSocket, which ends as a running answer
/// does: what was said to end with its answer is no longer a connection of requests.
#[test]
fn a_handshake_at_a_stop_makes_a_websocket() {
    let application = echoing();
    // One worker: what was sent before a request that is answered, was read before it.
    let settings = [("WAF_WORKERS", "1"), ("WAF_SHUTDOWN_TIMEOUT", "20s")];
    let mut weir = Weir::start(&application, &settings);
    let mut connection = Connection::open(weir.address());
    let handshake = handshake("/ws", "203.0.113.7");
    let (begin, rest) = handshake.split_at(20);
    connection.send(begin);
    weir.get("/read", "203.0.113.7").expect(426);
    weir.signal("TERM");
    wait_until("closed listeners", || {
        TcpStream::connect(weir.address()).is_err()
    });
    connection.send_what_is_taken(rest);
    connection.response().expect(101);
    assert_eq!(connection.bytes(8).expect("the greeting"), b"greeting");
    connection.send(b"bye");
    assert_eq!(connection.bytes(3).expect("the echo"), b"bye");
    assert!(connection.ends());
    assert_eq!(weir.wait().code(), Some(0), "{}", weir.process_log_text());
    let line = weir.line_of("/ws");
    assert_eq!(line["action"], "passed");
    assert_eq!(line["bytes"]["request"], 3);
}

/// Bytes that a client sends before the 101 are counted and carried, not lost.
#[test]
fn early_bytes_are_not_lost() {
    let application = echoing();
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    let mut bytes = handshake("/early", "203.0.113.7");
    bytes.extend(b"early");
    connection.send(&bytes);
    connection.response().expect(101);
    assert_eq!(connection.bytes(13).expect("both"), b"greetingearly");
    drop(connection);
    assert_eq!(weir.line_of("/early")["bytes"]["request"], 5);
}

/// LIMIT-5: what a WebSocket carried counts once it closes, whatever way it closes, and can ban.
#[test]
fn websocket_bytes_are_counted_at_the_close() {
    for way in ["client closes", "client resets", "application closes"] {
        let application = echoing();
        let weir = Weir::start(&application, &[("WAF_BYTES_LIMIT_PER_HOUR", "1000")]);
        let mut connection = open(&weir, "/ws", "203.0.113.7");
        let mut message = vec![b'x'; 597];
        message.extend(b"...");
        connection.send(&message);
        connection.bytes(600).expect("the echo");
        assert!(weir.bans().is_empty(), "nothing before the close");
        assert_eq!(weir.get("/other", "203.0.113.7").status, 426, "not refused");
        match way {
            "client closes" => drop(connection),
            "client resets" => connection.reset(),
            _ => {
                connection.send(b"bye");
                assert!(connection.ends());
            }
        }
        let ban = wait_for(way, || weir.bans().into_iter().next());
        assert_eq!(ban["cause"], "byte_limit");
        assert_eq!(ban["notes"]["limit"], "hour_bytes");
        weir.get("/after", "203.0.113.7").expect(429);
        wait_until("the end upstream", || {
            application.closed_connections() == application.connections()
        });
    }
}

/// Half a close goes through: the other direction still carries what it has.
#[test]
fn a_half_close_goes_through() {
    let application = Application::start(|exchange| {
        exchange.send(ACCEPTED);
        let mut all = Vec::new();
        while let Some(bytes) = exchange.read_raw() {
            all.extend(bytes);
        }
        exchange.send(&all);
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(&handshake("/half", "203.0.113.7"));
    connection.response().expect(101);
    connection.send(b"question");
    connection.finish_sending();
    assert_eq!(connection.bytes(8).expect("the answer"), b"question");
    assert!(connection.ends());
}

/// The same from the application's side: the client sees the end and can still say its last word
/// (RFC 6455 §7.1.1).
#[test]
fn a_half_close_of_the_application_goes_through() {
    let (tell, told) = mpsc::channel();
    let application = Application::start(move |exchange| {
        exchange.send(ACCEPTED);
        exchange.send(b"bye");
        exchange.finish_sending();
        let mut all = Vec::new();
        while let Some(bytes) = exchange.read_raw() {
            all.extend(bytes);
        }
        let _ = tell.send(all);
        After::Close
    });
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(&handshake("/half", "203.0.113.7"));
    connection.response().expect(101);
    assert_eq!(connection.bytes(3).expect("the goodbye"), b"bye");
    assert!(connection.ends());
    connection.send_what_is_taken(b"last word");
    connection.finish_sending();
    assert_eq!(told.recv_timeout(PATIENCE).expect("the end"), b"last word");
}

/// A declined upgrade is an ordinary answer on an ordinary connection.
#[test]
fn a_declined_upgrade_is_an_answer() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(&handshake("/no", "203.0.113.7"));
    assert_eq!(connection.response().text(), "hello /no");
    connection.send(&get("/next", &[]));
    assert_eq!(connection.response().text(), "hello /next");
}

/// A tunnel to something else than was asked for is none: 502.
#[test]
fn a_101_to_another_protocol_is_502() {
    let application = Application::raw(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        false,
    );
    let weir = Weir::start(&application, &[]);
    let answer = weir.send(&handshake("/h2c", "203.0.113.7"));
    assert_eq!(answer.status, 502);
}

/// A banned client gets no WebSocket.
#[test]
fn a_banned_client_gets_no_websocket() {
    let application = echoing();
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "203.0.113.0/24")]);
    let answer = weir.send(&handshake("/ws", "203.0.113.7"));
    assert_eq!(answer.status, 429);
    assert!(application.requests().is_empty());
}

/// CONN-6, STATE-3: an edit of lookups.json by which a client is of a denied country ends its
/// WebSocket, without a further request of the client.
#[test]
fn an_edited_country_ends_a_websocket() {
    let (application, geo) = (echoing(), Geo::saying(r#"{"country_code":"DE"}"#));
    let settings = geo.settings(&[
        ("WAF_DENY_COUNTRIES", "FR"),
        ("WAF_STATE_COUNTER_INTERVAL", "200ms"),
    ]);
    let settings: Vec<_> = (settings.iter())
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let weir = Weir::start(&application, &settings);
    let mut socket = open(&weir, "/ws", "81.2.69.7");
    let mut file = wait_for("the answer in lookups.json", || {
        let file = weir.state_file("lookups.json")?;
        file["lookups"].get(0)?;
        Some(file)
    });
    file["lookups"][0]["country"] = "FR".into();
    std::fs::write(weir.state_path("lookups.json"), file.to_string()).expect("writes");
    assert!(socket.ends());
    assert_eq!(geo.asked().len(), 1);
}

/// CONN-10, WAF_WEBSOCKET_IDLE_TIMEOUT: an idle tunnel is closed on both ends.
#[test]
fn an_idle_websocket_is_closed() {
    let application = echoing();
    let weir = Weir::start(&application, &[("WAF_WEBSOCKET_IDLE_TIMEOUT", "2s")]);
    let mut connection = open(&weir, "/idle", "203.0.113.7");
    connection.send(b"x");
    assert_eq!(connection.bytes(1).expect("the echo"), b"x");
    assert!(connection.ends());
    wait_until("the end upstream", || application.closed_connections() == 1);
    assert_eq!(weir.line_of("/idle")["bytes"]["request"], 1);
}
