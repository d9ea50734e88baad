//! Requests behind each other on one connection, of a client that is refused for who it is
//! (CONN-15): each kind, 1 to 40 of them in one write, and mixed. Behind each pipeline another
//! client is answered by the same worker, and at the end the process is at rest and stops.

use serde_json::json;

use crate::support::application::Application;
use crate::support::raw_client::{Connection, Ended, get, request};
use crate::support::tls::{Pair, shared_pair};
use crate::support::weir::Weir;

/// As many requests as one pipeline has at most: more than hyper answers in one turn (16), and more
/// than a trusted proxy has to be refused in a row (16).
const MOST: usize = 40;
/// Where the test itself asks from.
const SELF: &str = "127.0.0.1";

/// Each kind of request that takes a way of its own through the front, with what is sent after it.
const KINDS: [&str; 10] = [
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /_waf/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
];
const HEAD: usize = 9;
/// Its answer is of HTTP/1.0, which the client of the tests does not read on from.
const OLD: usize = 6;
const HEALTH: usize = 8;

/// Who sends them.
#[derive(Clone, Copy)]
enum Who {
    /// The peer of the connection.
    Peer,
    /// A client that a trusted proxy names.
    Named,
}

/// A service with one worker, so that one which stands still leaves nobody served.
#[track_caller]
fn start(application: &Application, is_tls: bool, settings: &[(&str, &str)]) -> Weir {
    let listen = "https://127.0.0.1:0".to_owned();
    let [cert, key] = Pair::settings(&[shared_pair()]);
    let tls = [
        ("WAF_LISTEN", listen.as_str()),
        (cert.0, cert.1.as_str()),
        (key.0, key.1.as_str()),
    ];
    let settings = [
        &[
            ("WAF_WORKERS", "1"),
            ("WAF_BAN_IPV4_PREFIX", "32"),
            ("WAF_TRUSTED_PROXIES", SELF),
        ][..],
        if is_tls { &tls } else { &[] },
        settings,
    ]
    .concat();
    // The first half of the addresses is banned; `settings` may deny the other.
    let bans = json!([{"netblock": "127.5.0.0/16", "ban_expires": "2099-01-01T00:00:00Z"}]);
    Weir::start_with_bans(application, &bans, &settings)
}

/// One pipeline: which kinds, in order.
fn pipelines() -> impl Iterator<Item = Vec<usize>> {
    let alone = (0..KINDS.len()).flat_map(|kind| (1..=MOST).map(move |count| vec![kind; count]));
    // Kind follows kind in another order each time: every kind behind every other.
    let mixed = (1..=MOST).map(|count| {
        let step = [1, 3, 7, 9][count % 4];
        (0..count)
            .map(|at| (count + at * step) % KINDS.len())
            .collect()
    });
    // A body that is answered while the next head is there already, between requests without one.
    let behind = (1..=MOST).map(|count| (0..count).map(|at| [0, 2, 2, 8, 2][at % 5]).collect());
    alone.chain(mixed).chain(behind)
}

/// Sends a pipeline in one write, and reads what is answered: all of it, or up to where the
/// connection is closed.
#[track_caller]
fn send(weir: &Weir, who: Who, client: &str, kinds: &[usize]) {
    let mut connection = match who {
        Who::Peer => Connection::open_from(weir.address(), client),
        Who::Named => Connection::open_from(weir.address(), SELF),
    };
    let named = match who {
        Who::Peer => String::new(),
        Who::Named => format!("X-Forwarded-For: {client}\r\n"),
    };
    let bytes: String = kinds
        .iter()
        .map(|kind| KINDS[*kind].replacen("\r\n", &format!("\r\n{named}"), 1))
        .collect();
    connection.send(bytes.as_bytes());
    for (at, kind) in kinds.iter().enumerate() {
        let wanted = if *kind == HEALTH { 200 } else { 429 };
        match connection.try_response(*kind == HEAD) {
            Ok(answer) => assert_eq!(answer.status, wanted, "{at} of {kinds:?}"),
            // A body that was announced may end the connection behind its answer.
            Err(Ended::Closed | Ended::Reset) if at > 0 => return,
            // The client goes away with the rest unread.
            Err(Ended::Malformed(line)) if *kind == OLD && line.contains("HTTP/1.0 429") => return,
            Err(ended) => panic!("{at} of {kinds:?}: {ended:?}"),
        }
    }
}

/// Every pipeline, each by a client of its own: a refused netblock may have few connections.
#[track_caller]
fn all_leave_others_served(weir: &mut Weir, who: Who, network: &str) {
    // Kept open: it is served by the worker that has the pipelines.
    let mut other = Connection::open(weir.address());
    let ask = get("/other", &[("X-Forwarded-For", "192.0.2.1")]);
    for (number, kinds) in pipelines().enumerate() {
        let client = format!("{network}.{}.{}", number / 250, number % 250 + 1);
        send(weir, who, &client, &kinds);
        other.send(&ask);
        let answer = other.try_response(false);
        let answer = answer.unwrap_or_else(|ended| panic!("behind {kinds:?}: {ended:?}"));
        assert_eq!(answer.status, 200, "behind {kinds:?}");
    }
    weir.wait_for_rest();
    weir.stop();
}

const ALLOW_MANY: [(&str, &str); 3] = [
    ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
    ("WAF_RATE_LIMIT_PER_HOUR", "off"),
    ("WAF_RATE_LIMIT_PER_DAY", "off"),
];
const DENIED: (&str, &str) = ("WAF_DENY_NETS", "127.6.0.0/16");

#[track_caller]
fn run(is_tls: bool, who: Who, network: &str) {
    let application = Application::ok();
    let settings = [&ALLOW_MANY[..], &[DENIED]].concat();
    let mut weir = start(&application, is_tls, &settings);
    all_leave_others_served(&mut weir, who, network);
    let foreign = application
        .requests()
        .into_iter()
        .find(|request| request.target != "/other");
    assert!(foreign.is_none(), "{foreign:?} reached the application");
}

/// CONN-15: no pipeline of a banned peer stops the worker.
#[test]
fn a_banned_peer_stops_no_worker() {
    run(false, Who::Peer, "127.5");
}

/// CONN-15: nor that of a denied one.
#[test]
fn a_denied_peer_stops_no_worker() {
    run(false, Who::Peer, "127.6");
}

/// CONN-15: nor of a banned client that a proxy names.
#[test]
fn a_banned_client_of_a_proxy_stops_no_worker() {
    run(false, Who::Named, "127.5");
}

/// CONN-15: nor of a denied client that a proxy names.
#[test]
fn a_denied_client_of_a_proxy_stops_no_worker() {
    run(false, Who::Named, "127.6");
}

/// CONN-15: nor over TLS, whoever sends it.
#[test]
fn a_banned_peer_stops_no_worker_over_tls() {
    run(true, Who::Peer, "127.5");
}

/// CONN-15: nor over TLS, of a denied peer.
#[test]
fn a_denied_peer_stops_no_worker_over_tls() {
    run(true, Who::Peer, "127.6");
}

/// CONN-15: nor over TLS, of a banned client that a proxy names.
#[test]
fn a_banned_client_of_a_proxy_stops_no_worker_over_tls() {
    run(true, Who::Named, "127.5");
}

/// CONN-15: nor over TLS, of a denied client that a proxy names.
#[test]
fn a_denied_client_of_a_proxy_stops_no_worker_over_tls() {
    run(true, Who::Named, "127.6");
}

/// CONN-15: a client that is caught by a trap, with the requests behind it in the same write, as
/// one segment of 901 bytes was.
#[test]
fn a_client_that_is_caught_stops_no_worker() {
    let application = Application::ok();
    let state = crate::support::weir::state_dir();
    let rules = r#"{"version":1,"traps":[{"name":"scanner","paths":["/.env"]}]}"#;
    std::fs::write(state.path().join("rules.json"), rules).expect("writes rules.json");
    let settings = [
        ("WAF_WORKERS", "1"),
        ("WAF_BAN_IPV4_PREFIX", "32"),
        ("WAF_TRUSTED_PROXIES", SELF),
    ];
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    let trap = request("GET", "/.env", &[], None);
    for count in 1..=MOST {
        let client = format!("127.7.0.{count}");
        let mut connection = Connection::open_from(weir.address(), &client);
        let posts = KINDS[2].repeat(count);
        connection.send(&[&trap, posts.as_bytes()].concat());
        for at in 0..=count {
            match connection.try_response(false) {
                // What is asked before the ban is in force everywhere may pass.
                Ok(answer) => assert!(matches!(answer.status, 200 | 429), "{answer:?}"),
                Err(Ended::Closed | Ended::Reset) if at > 0 => break,
                Err(ended) => panic!("{at} of {count}: {ended:?}"),
            }
        }
        weir.get("/other", "192.0.2.1").expect(200);
    }
    weir.wait_for_rest();
    weir.stop();
}
