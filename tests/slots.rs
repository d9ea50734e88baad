//! Who takes places, handshakes and connections and gives nothing for them (CONN-16): unfinished
//! heads, bodies that do not come, netblocks that are refused, heads and health checks over HTTP/2
//! that are worth nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::support::application::{After, Application};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, PROTOCOL_ERROR, Reaction,
    WHOLE, frame, get as head, request,
};
use crate::support::raw_client::{Connection, get};
use crate::support::weir::{METRICS_TOKEN, Weir};
use crate::support::{GATHERED, wait_for, wait_until};

/// Nobody is a trusted proxy: every peer is a client, and loopback has many.
const NO_PROXY: (&str, &str) = ("WAF_TRUSTED_PROXIES", "192.0.2.1");
const ONE_WORKER: (&str, &str) = ("WAF_WORKERS", "1");
const PATIENT: (&str, &str) = ("WAF_HEADER_TIMEOUT", "10m");
const H2: (&str, &str) = ("WAF_H2C", "on");
/// A head without its end.
const UNFINISHED: &[u8] = b"GET /late HTTP/1.1\r\nHost: a\r\nX-Never: ";

/// After this each head that was begun before is a second old, as of the last tick.
const A_SECOND_OLD: Duration = Duration::from_millis(1_200);

/// A head that is not finished.
fn unfinished(weir: &Weir, source: &str) -> Connection {
    let mut connection = Connection::open_from(weir.address(), source);
    connection.send(UNFINISHED);
    connection.wait_until_read();
    connection
}

/// A connection of a visitor who is answered; none where it finds no place.
fn visitor(weir: &Weir, source: &str) -> Option<Connection> {
    let mut connection = Connection::open_from(weir.address(), source);
    connection.send_what_is_taken(&get("/", &[]));
    connection.try_response(false).ok().map(|_| connection)
}

/// CONN-16: heads that have been coming for a second give way, the oldest of the netblock with the
/// most connections first: who has few loses none, neither a connection nor a slow head.
#[test]
fn unfinished_heads_give_way() {
    let application = Application::ok();
    let bound = ("WAF_MAX_CONNECTIONS", "8");
    let weir = Weir::start(&application, &[NO_PROXY, ONE_WORKER, PATIENT, bound]);
    // The slow one is older than all of the others.
    let mut slow = unfinished(&weir, "127.0.8.1");
    std::thread::sleep(Duration::from_millis(120));
    let mut held: Vec<_> = (1..=7)
        .map(|last| {
            let connection = unfinished(&weir, &format!("127.0.9.{last}"));
            // The worker's clock is read on its tick: a later one is younger.
            std::thread::sleep(Duration::from_millis(120));
            connection
        })
        .collect();
    std::thread::sleep(A_SECOND_OLD);
    let mut visitors: Vec<_> = (0..5)
        .map(|number| visitor(&weir, &format!("127.0.1{number}.1")).expect("a place"))
        .collect();
    for (index, connection) in held.iter_mut().enumerate().take(5) {
        assert!(connection.ends(), "{index} is older than those that stay");
    }
    for connection in visitors.iter_mut().chain(&mut held[5..]).chain([&mut slow]) {
        // The visitors' next head, or the end of one.
        connection.send(b"\r\n\r\n");
        connection.send_what_is_taken(&get("/", &[]));
        assert!(connection.try_response(false).is_ok());
    }
}

/// CONN-16: the same where another worker has the heads.
#[test]
fn unfinished_heads_of_other_workers_give_way() {
    let application = Application::ok();
    let settings = [("WAF_WORKERS", "4"), ("WAF_MAX_CONNECTIONS", "8"), PATIENT];
    let weir = Weir::start(&application, &[&[NO_PROXY][..], &settings].concat());
    let mut held: Vec<_> = (1..=8)
        .map(|last| unfinished(&weir, &format!("127.0.9.{last}")))
        .collect();
    std::thread::sleep(A_SECOND_OLD);
    let visitors: Vec<_> = (0..6)
        .map(|number| {
            let source = format!("127.0.1{number}.1");
            let connection = wait_for("a place", || visitor(&weir, &source));
            // Another worker closes what it was asked to on its next tick.
            std::thread::sleep(Duration::from_millis(120));
            connection
        })
        .collect();
    for connection in &mut held {
        connection.set_patience(Duration::from_millis(100));
    }
    wait_until("the places of six heads", || {
        let ended = held.iter_mut().map(Connection::ends);
        ended.filter(|ended| *ended).count() >= 6
    });
    drop(visitors);
}

/// The head of a request with a body of this length.
fn upload(target: &str, length: usize) -> Vec<u8> {
    format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

/// Sends a body a byte each 300 ms until it is told to end, then the rest; what is answered.
fn trickle(mut connection: Connection, length: usize, ends: &AtomicBool) -> Option<u16> {
    let mut left = length;
    while !ends.load(Relaxed) && left > 1 {
        connection.send_what_is_taken(b"x");
        left -= 1;
        std::thread::sleep(Duration::from_millis(300));
    }
    connection.send_what_is_taken(&vec![b'x'; left]);
    Some(connection.try_response(false).ok()?.status)
}

/// CONN-16, CONN-13: requests of whose body nothing comes give way, the oldest first, with a 408
/// that is counted and logged once. A body that trickles keeps its place, and so does one that is
/// at the application, in the same netblock, which has the most connections.
#[test]
fn bodies_that_do_not_come_give_way() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    let bound = ("WAF_MAX_CONNECTIONS", "8");
    let unpaced = ("WAF_MIN_RATE", "off");
    let weir = Weir::start(&application, &[NO_PROXY, ONE_WORKER, bound, unpaced]);
    let mut working = Connection::open_from(weir.address(), "127.0.9.101");
    working.send(&upload("/working", 2 * GATHERED));
    working.send(&[b'x'; GATHERED]);
    wait_until("it is at the application", || {
        !application.requests().is_empty()
    });
    let mut trickles = Connection::open_from(weir.address(), "127.0.9.102");
    trickles.send(&upload("/trickles", 100));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trickling = scope.spawn(|| trickle(trickles, 100, &ends));
        let mut held: Vec<_> = (1..=6)
            .map(|last| {
                let mut connection =
                    Connection::open_from(weir.address(), &format!("127.0.9.{last}"));
                connection.send(&upload(&format!("/held/{last}"), 100));
                connection.wait_until_read();
                // The worker's clock is read on its tick: a later one is younger.
                std::thread::sleep(Duration::from_millis(120));
                connection
            })
            .collect();
        std::thread::sleep(A_SECOND_OLD);
        let open = |number: usize| visitor(&weir, &format!("127.0.1{number}.1")).expect("a place");
        let mut visitors: Vec<_> = (0..5).map(open).collect();
        // The youngest is there, and its request goes on.
        let mut youngest = held.pop().expect("six");
        youngest.send(&[b'x'; 100]);
        assert_eq!(youngest.response().status, 200);
        for (index, connection) in held.iter_mut().enumerate() {
            let answer = connection.response();
            assert_eq!(answer.status, 408, "{index}");
            let line = weir.line_of(&format!("/held/{}", index + 1));
            assert_eq!(answer.header("x-request-id"), line["request_id"].as_str());
            assert_eq!(line["action"], "too_slow");
            assert_eq!(line["status"], 408);
            // Nobody waits for its client to close.
            wait_until("a reset", || !connection.send_within(b"x", A_SECOND_OLD));
        }
        // It is idle now, and goes before the two that work.
        visitors.push(open(5));
        assert!(youngest.ends());
        visitors.push(open(6));
        assert!(visitors[0].ends(), "the one that is idle longest");
        ends.store(true, Relaxed);
        assert_eq!(trickling.join().expect("no panic"), Some(200));
    });
    working.send(&[b'x'; GATHERED]);
    assert_eq!(working.response().status, 200);
    let errors = weir.metric("waf_connection_errors_total{kind=\"too_slow\"}");
    assert_eq!(errors, Some(5.0));
}

/// CONN-16, CONN-13: a connection of HTTP/2 gives way where none of its streams has sent the
/// beginning of its body; one stream that is at the application, or has nothing to send, keeps it.
#[test]
fn streams_whose_bodies_do_not_come_give_way() {
    let goes_on = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&goes_on);
    let application = Application::start(move |exchange| {
        exchange.read_body();
        if exchange.request.target == "/works" {
            wait_until("it may go on", || waits.load(Relaxed));
        }
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    let bound = ("WAF_MAX_CONNECTIONS", "1");
    let weir = Weir::start(&application, &[NO_PROXY, ONE_WORKER, H2, bound]);
    let mut frames = Frames::open(weir.address());
    let begins = |target: &str| request("POST", target, &[]);
    frames.send(&frame(HEADERS, WHOLE, 1, &head("/works", &[])));
    frames.send(&frame(HEADERS, END_HEADERS, 3, &begins("/held/1")));
    frames.send(&frame(HEADERS, END_HEADERS, 5, &begins("/held/2")));
    frames.send(&frame(HEADERS, END_HEADERS, 7, &begins("/ends")));
    wait_until("a request at the application", || {
        !application.requests().is_empty()
    });
    std::thread::sleep(A_SECOND_OLD);
    assert!(visitor(&weir, "127.0.11.1").is_none(), "it has the place");
    goes_on.store(true, Relaxed);
    assert_eq!(frames.reaction(1), Reaction::Status(200));
    frames.send(&frame(DATA, END_STREAM, 7, b"x"));
    assert_eq!(frames.reaction(7), Reaction::Status(200));
    wait_for("a place", || visitor(&weir, "127.0.11.1"));
    assert_eq!(frames.end(), Reaction::Goaway(ENHANCE_YOUR_CALM));
    for target in ["/held/1", "/held/2"] {
        assert_eq!(weir.line_of(target)["action"], "too_slow");
    }
    let errors = weir.metric("waf_connection_errors_total{kind=\"too_slow\"}");
    assert_eq!(errors, Some(1.0));
}

/// CONN-16: a netblock that is refused opens so many connections a second; those beyond are closed
/// at once and counted, and nobody else's are.
#[test]
fn a_refused_netblock_opens_connections_at_a_rate() {
    let application = Application::ok();
    let deny = ("WAF_DENY_NETS", "127.0.7.0/24");
    let weir = Weir::start(&application, &[NO_PROXY, deny, ONE_WORKER]);
    let (mut answered, mut closed) = (0, 0);
    // Four at once: one after the other a busy machine may answer fewer than come back.
    wait_until("one is closed", || {
        let open = |_| {
            let mut one = Connection::open_from(weir.address(), "127.0.7.7");
            one.send_what_is_taken(&get("/", &[]));
            one
        };
        let mut four: Vec<Connection> = (0..4).map(open).collect();
        for one in &mut four {
            match one.try_response(false) {
                Ok(_) => answered += 1,
                Err(_) => closed += 1,
            }
        }
        closed > 0
    });
    assert!(answered >= 40, "{answered} were answered");
    for _ in 0..100 {
        assert!(visitor(&weir, "127.0.6.1").is_some(), "nobody refuses it");
    }
    wait_for("its next one", || visitor(&weir, "127.0.7.8"));
    let bearer = format!("Bearer {METRICS_TOKEN}");
    let mut asking = Connection::open_from(weir.address(), "127.0.6.1");
    asking.send(&get("/_waf/metrics", &[("Authorization", &bearer)]));
    let page = asking.response().text();
    let counted = page.lines().find_map(|line| {
        let count = line.strip_prefix("waf_connection_errors_total{kind=\"banned\"} ")?;
        count.parse::<u64>().ok()
    });
    assert!(counted >= Some(1), "{counted:?}");
}

fn ask(frames: &mut Frames, number: u32, block: &[u8]) -> Reaction {
    let stream = 2 * number + 1;
    frames.send(&frame(HEADERS, WHOLE, stream, block));
    frames.reaction(stream)
}

const FLOODS: &str = "waf_connection_errors_total{kind=\"h2_flood\"}";

/// CONN-16: ten heads that are no requests end a connection, whoever refuses them; what was asked
/// for before is answered.
#[test]
fn ten_bad_heads_end_a_connection() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_TRUSTED_PROXIES", ""), H2]);
    // By us, and by the library.
    let blanks = head("/bad", &[("x", b"a ")]);
    let hop_by_hop = head("/bad", &[("connection", b"close")]);
    for (index, (bad, said)) in [
        (blanks, Reaction::Status(400)),
        (hop_by_hop, Reaction::Reset(PROTOCOL_ERROR)),
    ]
    .into_iter()
    .enumerate()
    {
        let mut frames = Frames::open(weir.address());
        for number in 0..10 {
            assert_eq!(ask(&mut frames, 2 * number, &bad), said, "{number}");
            if number < 9 {
                let fine = ask(&mut frames, 2 * number + 1, &head("/fine", &[]));
                assert_eq!(fine, Reaction::Status(200), "{number}");
            }
        }
        assert_eq!(frames.end(), Reaction::Goaway(ENHANCE_YOUR_CALM));
        let count = (index + 1) as f64;
        wait_until("the count", || weir.metric(FLOODS) == Some(count));
    }
    assert!(
        application
            .requests()
            .iter()
            .all(|got| got.target == "/fine")
    );
}

/// CONN-16: a trusted peer speaks for others, whose streams go on.
#[test]
fn bad_heads_of_a_trusted_peer_end_nothing() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[H2]);
    let mut frames = Frames::open(weir.address());
    for number in 0..30 {
        let bad = ask(&mut frames, number, &head("/bad", &[("x", b"a ")]));
        assert_eq!(bad, Reaction::Status(400));
    }
    let fine = ask(&mut frames, 30, &head("/fine", &[]));
    assert_eq!(fine, Reaction::Status(200));
}

/// CONN-16: ten health checks of a peer that is refused end its connection; those of others do not.
#[test]
fn ten_health_checks_of_the_refused_end_a_connection() {
    let application = Application::ok();
    for (deny, ends) in [("127.0.0.1", true), ("198.51.100.1", false)] {
        let untrusted = ("WAF_TRUSTED_PROXIES", "");
        let weir = Weir::start(&application, &[untrusted, H2, ("WAF_DENY_NETS", deny)]);
        let mut frames = Frames::open(weir.address());
        let check = head("/_waf/health", &[]);
        for number in 0..10 {
            assert_eq!(ask(&mut frames, number, &check), Reaction::Status(200));
        }
        if ends {
            assert_eq!(frames.end(), Reaction::Goaway(ENHANCE_YOUR_CALM));
        } else {
            assert_eq!(ask(&mut frames, 10, &check), Reaction::Status(200));
        }
    }
}

/// CONN-16, EDGE-3: health checks without end are a flood: their answers give nothing back.
#[test]
fn health_checks_without_end_are_a_flood() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_TRUSTED_PROXIES", ""), H2]);
    let mut frames = Frames::open(weir.address());
    let check = head("/_waf/health", &[]);
    let mut number = 0;
    while number < 40_000 && frames.try_send(&frame(HEADERS, WHOLE, 2 * number + 1, &check)) {
        number += 1;
        if number % 50 == 0 && frames.reaction(2 * number - 1) != Reaction::Status(200) {
            break;
        }
    }
    assert!(number < 40_000, "nothing ended it");
    wait_until("the count", || weir.metric(FLOODS) == Some(1.0));
}

/// RULE-5: 256 requests of a client are under way by default, however many connections of HTTP/2
/// they come over; those beyond are refused without a ban.
#[test]
fn streams_of_a_client_are_bounded() {
    let application = Application::start(|exchange| {
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[H2]);
    let block = head("/held", &[("x-forwarded-for", b"203.0.113.7")]);
    let mut connections: Vec<_> = (0..3).map(|_| Frames::open(weir.address())).collect();
    for frames in &mut connections {
        for number in 0..100 {
            let stream = 2 * number + 1;
            frames.send(&frame(HEADERS, WHOLE, stream, &block));
        }
    }
    let concurrent = "waf_limit_hits_total{kind=\"concurrent\"}";
    wait_until("those beyond", || weir.metric(concurrent) == Some(44.0));
    wait_until("the others", || application.requests().len() == 256);
    assert!(weir.bans().is_empty());
}

/// RULE-5: requests that a trusted proxy forwards count for the client that it names; a proxy that
/// names nobody is not bound.
#[test]
fn a_trusted_proxy_is_not_bound() {
    let application = Application::start(|exchange| {
        if exchange.request.target == "/held" {
            exchange.wait_for_close();
            return After::Close;
        }
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_MAX_REQUESTS_PER_CLIENT", "1")]);
    let of = |client: &str| get("/held", &[("X-Forwarded-For", client)]);
    let held: Vec<_> = [of("203.0.113.7"), of("203.0.113.8"), get("/held", &[])]
        .map(|bytes| {
            let mut connection = Connection::open(weir.address());
            connection.send(&bytes);
            connection
        })
        .into();
    wait_until("three", || application.requests().len() == 3);
    weir.get("/more", "203.0.113.7").expect(429);
    weir.send(&get("/more", &[])).expect(200);
    drop(held);
}
