//! Combinations: who asks, what for, how often on one connection, how it is sent, and what happens
//! meanwhile. Every pair of values has a row; and every three, where the process goes on.
//!
//! The oracle is the same request alone on a fresh connection, of another client of the same
//! standing: status, content type and body are the same, in the order of the requests. What an
//! event may change is said at [`Event`], where a connection may end early at
//! [`Row::may_end_behind`]. No request is at the application that was not answered, or twice.
//! Behind each row another client is served by the one worker, and the process is at rest; the
//! harness stops it at the end.

mod requests;

use std::collections::HashMap;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use self::requests::{Arrived, Kind, application};
use crate::support::application::Application;
use crate::support::process::{end, wait_for_end};
use crate::support::raw_client::{Connection, Ended, Response, get};
use crate::support::weir::{Weir, state_dir, write_bans};
use crate::support::{covering, wait_until};

/// Where the test itself asks from, and the trusted proxy.
const SELF: &str = "127.0.0.1";
/// Of each request so much is sent byte by byte, and the rest in large pieces.
const BYTEWISE: usize = 150;
const PIECE: usize = 4000;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    LetIn,
    /// The peer is banned.
    Banned,
    /// The peer is denied.
    Denied,
    /// A trusted proxy names a banned client.
    Named,
    /// rules.json allows who is banned.
    Allowed,
    /// Banned, in observe mode.
    Observed,
    /// Over a limit that does not ban.
    Limited,
}

/// How the requests are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    AtOnce,
    Bytewise,
    /// The next one once the last one is answered.
    OneByOne,
}

/// What happens when half of the requests and a half of the next one are sent.
///
/// - `Ban`, `Lift`: acknowledged before the rest is sent. What was answered before is as it was;
///   what is sent later is as it is now; in between the answers change once.
/// - `Reload`: nothing changes.
/// - `Drain`: answers may end behind any of them, and then the connection does. What was half sent
///   on a connection with nothing else under way is answered. The health check may say 503.
/// - `HandOver`: the same, and what is not answered is answered by the new process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    None,
    Ban,
    Lift,
    Reload,
    Drain,
    HandOver,
}

const WHO: [Who; 7] = [
    Who::LetIn,
    Who::Banned,
    Who::Denied,
    Who::Named,
    Who::Allowed,
    Who::Observed,
    Who::Limited,
];
/// About a library's turn of 16 requests, and beyond two of them.
const COUNTS: [usize; 6] = [1, 2, 15, 16, 17, 33];
const SENT: [Sent; 3] = [Sent::AtOnce, Sent::Bytewise, Sent::OneByOne];
const EVENTS: [Event; 6] = [
    Event::None,
    Event::Ban,
    Event::Lift,
    Event::Reload,
    Event::Drain,
    Event::HandOver,
];

/// One combination.
#[derive(Clone, Copy, Debug)]
struct Row {
    number: usize,
    who: Who,
    kind: Kind,
    count: usize,
    sent: Sent,
    event: Event,
}

/// How many values each factor has.
const LEVELS: [usize; 5] = [
    WHO.len(),
    Kind::ALL.len(),
    COUNTS.len(),
    SENT.len(),
    EVENTS.len(),
];
/// The same without the events that end the process.
const GOES_ON: [usize; 5] = [LEVELS[0], LEVELS[1], LEVELS[2], LEVELS[3], LEVELS[4] - 2];

fn numbers() -> Vec<[usize; 5]> {
    let mut rows = covering::rows(LEVELS, 2);
    rows.extend(covering::rows(GOES_ON, 3));
    rows
}

fn rows() -> Vec<Row> {
    let row = |(number, [who, kind, count, sent, event]): (usize, [usize; 5])| Row {
        number,
        who: WHO[who],
        kind: Kind::ALL[kind],
        count: COUNTS[count],
        sent: SENT[sent],
        event: EVENTS[event],
    };
    numbers().into_iter().enumerate().map(row).collect()
}

/// What holds for a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Standing {
    LetIn,
    Banned,
    Denied,
    Limited,
}

impl Row {
    /// What holds before the event, and behind it.
    fn standings(&self) -> (Standing, Standing) {
        let before = match self.who {
            Who::LetIn | Who::Allowed | Who::Observed => Standing::LetIn,
            Who::Banned | Who::Named => Standing::Banned,
            Who::Denied => Standing::Denied,
            Who::Limited => Standing::Limited,
        };
        let after = match (self.who, self.event) {
            (Who::LetIn | Who::Limited, Event::Ban) => Standing::Banned,
            (Who::Banned | Who::Named, Event::Lift) => Standing::LetIn,
            _ => before,
        };
        (before, after)
    }

    /// The client that is judged.
    fn client(&self) -> String {
        let net = match self.who {
            Who::LetIn | Who::Limited => "127.30",
            Who::Banned | Who::Observed => "127.31",
            Who::Denied => "127.6",
            Who::Named => "127.32",
            Who::Allowed => "127.33",
        };
        format!("{net}.{}.{}", self.number / 250, self.number % 250 + 1)
    }

    fn requests(&self) -> Vec<Vec<u8>> {
        let named = match self.who {
            Who::Named => format!("X-Forwarded-For: {}\r\n", self.client()),
            _ => String::new(),
        };
        let request = |at| {
            let path = format!("{}?{}", self.path(at), self.number);
            self.kind.bytes(&path, &named)
        };
        (0..self.count).map(request).collect()
    }

    /// The path of a request, which tells it from the others.
    fn path(&self, at: usize) -> String {
        match self.who {
            Who::Limited => format!("/limited/{at}"),
            _ => format!("/{at}"),
        }
    }

    /// The request in whose middle the event happens.
    fn middle(&self) -> usize {
        self.count / 2
    }

    /// Sends requests, or parts of them; whoever answers meanwhile is read from.
    fn send(&self, connection: &mut Connection, parts: &[&[u8]]) {
        let halves = |part: &&[u8]| {
            let (first, rest) = part.split_at(part.len() / 2);
            [first.to_vec(), rest.to_vec()]
        };
        match self.sent {
            Sent::Bytewise => {
                for part in parts {
                    let (head, body) = part.split_at(part.len().min(BYTEWISE));
                    for byte in head {
                        connection.send_what_is_taken(&[*byte]);
                    }
                    for piece in body.chunks(PIECE) {
                        connection.send_what_is_taken(piece);
                        connection.read_what_came();
                    }
                    connection.read_what_came();
                }
            }
            // The end of each half, and the beginning of the next one, are one piece.
            _ if self.kind == Kind::Halves => {
                let mut half = Vec::new();
                for [first, rest] in parts.iter().map(halves) {
                    connection.send_what_is_taken(&[half, first].concat());
                    wait_for_read(connection);
                    half = rest;
                }
                connection.send_what_is_taken(&half);
            }
            _ => {
                for piece in parts.concat().chunks(64 * 1024) {
                    connection.send_what_is_taken(piece);
                    connection.read_what_came();
                }
            }
        }
    }

    fn ends_the_process(&self) -> bool {
        matches!(self.event, Event::Drain | Event::HandOver)
    }

    /// Whether the connection may end behind this answer: the answer says so; or it is one of
    /// HTTP/1.0 that does not say that the connection is kept.
    fn may_end_behind(&self, answer: &Response) -> bool {
        let told = answer.header("connection").unwrap_or_default();
        let is_old = self.kind == Kind::Old && !told.eq_ignore_ascii_case("keep-alive");
        told.eq_ignore_ascii_case("close") || is_old
    }
}

/// What an answer says, but for its id and its times.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Said {
    status: u16,
    kind: Option<String>,
    body: String,
}

fn said(answer: &Response) -> Said {
    let id = answer.header("x-request-id").unwrap_or("none");
    Said {
        status: answer.status,
        kind: answer.header("content-type").map(str::to_owned),
        body: answer.text().replace(id, "ID"),
    }
}

/// A service with one worker, so that one which stands still leaves nobody served.
struct World {
    weir: Weir,
    _application: Application,
    arrived: Arrived,
    /// The process that serves, where it is not the first one.
    successor: Option<Pid>,
    alone: HashMap<(Standing, Kind, usize), Said>,
}

impl World {
    #[track_caller]
    fn start(observes: bool) -> Self {
        let (application, arrived) = application();
        let state = state_dir();
        let rules = json!({"version": 1,
            "allow": [{"netblock": "127.33.0.0/16"}],
            "limits": [{"name": "few", "path": "/limited", "per_day": 1, "on_limit": "refuse"}]});
        std::fs::write(state.path().join("rules.json"), rules.to_string()).expect("rules.json");
        let ban = |netblock: String| json!({"netblock": netblock, "ban_expires": "permanent"});
        // Those of each row that may be banned.
        let of_rows = rows()
            .into_iter()
            .filter(|row| !matches!(row.who, Who::LetIn | Who::Limited | Who::Denied));
        let of_rows = of_rows.map(|row| format!("{}/32", row.client()));
        let bans: Vec<_> = of_rows
            .chain(["127.5.0.0/16".to_owned()])
            .map(ban)
            .collect();
        write_bans(state.path(), &json!(bans));
        let settings = [
            ("WAF_WORKERS", "1"),
            ("WAF_BAN_IPV4_PREFIX", "32"),
            ("WAF_TRUSTED_PROXIES", SELF),
            ("WAF_DENY_NETS", "127.6.0.0/16"),
            ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
            ("WAF_RATE_LIMIT_PER_HOUR", "off"),
            ("WAF_RATE_LIMIT_PER_DAY", "off"),
            ("WAF_SHUTDOWN_TIMEOUT", "20s"),
            ("WAF_MODE", if observes { "observe" } else { "enforce" }),
        ];
        Self {
            weir: Weir::start_at(application.address(), &state, &settings),
            _application: application,
            arrived,
            successor: None,
            alone: HashMap::new(),
        }
    }

    /// What the same request is answered alone, on a fresh connection.
    #[track_caller]
    fn alone(&mut self, standing: Standing, row: &Row, at: usize) -> Said {
        let key = (standing, row.kind, at);
        if let Some(said) = self.alone.get(&key) {
            return said.clone();
        }
        let kind = row.kind as usize;
        let (source, path) = match standing {
            Standing::LetIn => (format!("127.20.{kind}.{}", at + 1), row.path(at)),
            // Addresses of their own: a refused netblock may have few connections.
            Standing::Banned => (format!("127.5.{kind}.{}", at + 1), row.path(at)),
            Standing::Denied => (format!("127.6.{}.{}", 200 + kind, at + 1), row.path(at)),
            Standing::Limited => {
                let source = "127.21.0.1";
                self.use_up(source);
                (source.to_owned(), row.path(at))
            }
        };
        let mut connection = Connection::open_from(self.weir.address(), &source);
        connection.take_http_1_0();
        connection.send(&row.kind.bytes(&format!("{path}?alone"), ""));
        let said = said(&connection.response());
        self.alone.insert(key, said.clone());
        said
    }

    /// Has a client ask as often as its limit lets it.
    #[track_caller]
    fn use_up(&self, client: &str) {
        let mut connection = Connection::open_from(self.weir.address(), client);
        connection.send(&get("/limited/first?first", &[]));
        connection.response();
    }

    #[track_caller]
    fn open(&self, row: &Row) -> Connection {
        let source = match row.who {
            Who::Named => SELF.to_owned(),
            _ => row.client(),
        };
        let mut connection = Connection::open_from(self.weir.address(), &source);
        connection.take_http_1_0();
        connection
    }

    fn serving(&self) -> Pid {
        let first = i32::try_from(self.weir.pid()).ok().and_then(Pid::from_raw);
        self.successor.or(first).expect("a process")
    }

    /// The event, to its end.
    #[track_caller]
    fn meanwhile(&mut self, row: &Row, connection: &Connection) {
        let client = row.client();
        match row.event {
            Event::None => {}
            Event::Ban => {
                let order = json!({"netblock": client, "duration": "permanent", "reason": "test"});
                let answer = self
                    .weir
                    .admin("POST", "/_waf/bans", Some(&order.to_string()));
                answer.expect(201);
            }
            Event::Lift => {
                let target = format!("/_waf/bans/{client}");
                let answer = self.weir.admin("DELETE", &target, None);
                answer.expect(200);
            }
            Event::Reload => {
                self.weir.control("POST", "/v1/reload", None).expect(200);
            }
            Event::Drain => {
                wait_for_read(connection);
                self.weir.signal("TERM");
                let address = self.weir.address();
                wait_until("closed listeners", || {
                    Connection::try_open(address).is_none()
                });
            }
            Event::HandOver => {
                wait_for_read(connection);
                self.hand_over();
            }
        }
    }

    #[track_caller]
    fn hand_over(&mut self) {
        let said = |weir: &Weir, message: &str| {
            let lines = weir.process_log().into_iter();
            let named: Vec<_> = lines.filter(|line| line["message"] == message).collect();
            named
        };
        let count = |message| said(&self.weir, message).len();
        let (serves, given) = (count("listening"), count("handing over"));
        kill_process(self.serving(), Signal::USR2).expect("it is there");
        wait_until("the new process", || {
            count("listening") > serves && count("handing over") > given
        });
        let line = said(&self.weir, "handing over").pop().expect("the line");
        let process = line["process"].as_i64().expect("a number");
        self.successor = i32::try_from(process).ok().and_then(Pid::from_raw);
    }

    /// Everything that a row asks for.
    #[track_caller]
    fn run(&mut self, row: Row) {
        let requests = row.requests();
        if row.who == Who::Limited {
            self.use_up(&row.client());
        }
        let (before, after) = row.standings();
        let wanted: Vec<_> = (0..row.count)
            .map(|at| (self.alone(before, &row, at), self.alone(after, &row, at)))
            .collect();
        let old = self.serving();
        let got = match row.sent {
            Sent::OneByOne => self.one_by_one(&row, &requests),
            Sent::AtOnce | Sent::Bytewise => self.pipelined(&row, &requests),
        };
        check(&row, &wanted, &got);
        let of_application = got
            .iter()
            .filter(|said| said.kind.as_deref() == Some("text/plain"));
        let arrived = self
            .arrived
            .lock()
            .expect("the counts")
            .get(&row.number.to_string())
            .copied();
        assert_eq!(
            arrived.unwrap_or(0),
            of_application.count(),
            "at the application: {row:?}"
        );
        match row.event {
            Event::Drain => {
                let status = self.weir.wait();
                assert!(status.success(), "{status}: {row:?}");
                return;
            }
            Event::HandOver if old == self.serving() => panic!("nobody took over: {row:?}"),
            Event::HandOver
                if i64::from(old.as_raw_nonzero().get()) == i64::from(self.weir.pid()) =>
            {
                assert!(self.weir.wait().success(), "{row:?}");
            }
            Event::HandOver => wait_for_end(old),
            _ => self.weir.wait_for_rest(),
        }
        self.weir.get("/other?other", "192.0.2.1").expect(200);
    }

    /// One request after the other, each on the connection of the last one as long as it stands.
    #[track_caller]
    fn one_by_one(&mut self, row: &Row, requests: &[Vec<u8>]) -> Vec<Said> {
        let (mut got, mut kept) = (Vec::new(), None);
        for (at, request) in requests.iter().enumerate() {
            let mut connection = kept.take().unwrap_or_else(|| self.open(row));
            let happens = at == row.middle() && row.event != Event::None;
            let (first, rest) = request.split_at(if happens { request.len() / 2 } else { 0 });
            row.send(&mut connection, &[first]);
            if happens {
                self.meanwhile(row, &connection);
            }
            row.send(&mut connection, &[rest]);
            let answer = connection.try_response(false);
            let answer = answer.unwrap_or_else(|ended| panic!("{at} of {row:?}: {ended:?}"));
            got.push(said(&answer));
            if row.may_end_behind(&answer) {
                assert!(connection.ends(), "behind {at} of {row:?}");
            } else {
                assert!(
                    !happens || !row.ends_the_process(),
                    "not told of the end: {row:?}"
                );
                kept = Some(connection);
            }
            if happens && row.event == Event::Drain {
                break;
            }
        }
        got
    }

    /// All requests on a connection; what is left where it ends is sent on a further one.
    #[track_caller]
    fn pipelined(&mut self, row: &Row, requests: &[Vec<u8>]) -> Vec<Said> {
        let all: Vec<&[u8]> = requests.iter().map(Vec::as_slice).collect();
        let mut got = Vec::new();
        while got.len() < row.count {
            let first = got.len();
            let mut connection = self.open(row);
            if first == 0 && row.event != Event::None {
                let (begin, end) = all.split_at(row.middle());
                let (half, rest) = end[0].split_at(end[0].len() / 2);
                row.send(&mut connection, &[begin, &[half]].concat());
                self.meanwhile(row, &connection);
                row.send(&mut connection, &[&[rest], &end[1..]].concat());
            } else {
                row.send(&mut connection, &all[first..]);
            }
            let mut may_end = false;
            while got.len() < row.count {
                match connection.try_response(false) {
                    Ok(answer) => {
                        may_end = row.may_end_behind(&answer);
                        got.push(said(&answer));
                    }
                    Err(Ended::Closed | Ended::Reset) if may_end => break,
                    Err(ended) => panic!("{} of {row:?}: {ended:?}", got.len()),
                }
            }
            assert!(
                !connection.has_leftovers(),
                "more than was asked for: {row:?}"
            );
            if row.event == Event::Drain {
                break;
            }
        }
        got
    }
}

/// A process that took over is no child of the test.
impl Drop for World {
    fn drop(&mut self) {
        let Some(last) = self.successor else { return };
        if std::thread::panicking() {
            let _ = kill_process(last, Signal::KILL);
        } else {
            end(last).unwrap_or_else(|fault| panic!("{fault}"));
        }
    }
}

/// Waits until the service has read what was sent, or has ended the connection.
#[track_caller]
fn wait_for_read(connection: &Connection) {
    wait_until("the service to read", || !connection.has_unread());
}

/// Compares what was answered with what is answered alone.
#[track_caller]
fn check(row: &Row, wanted: &[(Said, Said)], got: &[Said]) {
    let least = match (row.event, row.sent) {
        (Event::Drain, Sent::OneByOne) => row.middle() + 1,
        (Event::Drain, _) => 1,
        _ => row.count,
    };
    assert!(got.len() >= least, "{} answers: {row:?}", got.len());
    let mut has_changed = false;
    for (at, (said, (before, after))) in got.iter().zip(wanted).enumerate() {
        // The request was whole before the event, or begins behind it.
        let (is_whole, begins) = (at < row.middle(), at > row.middle());
        let waits = row.sent == Sent::OneByOne;
        let is_decided = is_whole || at == row.middle() && (!waits || row.kind.has_body());
        let may_be_before = is_decided && !has_changed;
        let may_be_after = begins || !(waits && is_whole);
        if row.kind == Kind::Health && row.ends_the_process() && said.status == 503 {
            continue;
        }
        let is_right = said == before && may_be_before || said == after && may_be_after;
        assert!(
            is_right,
            "{at} of {row:?}: {said:?}, and {before:?} or {after:?} is right; changed: {has_changed}"
        );
        has_changed |= said != before;
    }
}

/// Every row with this event. A process that ends has one row.
#[track_caller]
fn run(event: Event) {
    let mut worlds: HashMap<bool, World> = HashMap::new();
    for row in rows().into_iter().filter(|row| row.event == event) {
        let observes = row.who == Who::Observed;
        let start = || World::start(observes);
        if event == Event::Drain {
            start().run(row);
        } else {
            worlds.entry(observes).or_insert_with(start).run(row);
        }
    }
}

/// Every value of each factor meets every value of each other one in some row; and of two others,
/// where the process goes on.
#[test]
fn every_pair_has_a_row() {
    let rows = numbers();
    let all = covering::meetings(&LEVELS, 2).into_iter();
    for meeting in all.chain(covering::meetings(&GOES_ON, 3)) {
        assert!(covering::has(&rows, &meeting), "{meeting:?}");
    }
    println!("{} rows", rows.len());
    assert!(rows.len() < 700, "{} rows", rows.len());
}

/// CONN-15, CONN-3, FORWARD-4: nothing happens meanwhile.
#[test]
fn requests_behind_each_other_are_answered_as_alone() {
    run(Event::None);
}

/// CONN-15, BAN-7: the client is banned meanwhile.
#[test]
fn a_ban_in_between_refuses_the_rest() {
    run(Event::Ban);
}

/// CONN-15, BAN-7: its ban is lifted meanwhile.
#[test]
fn a_lift_in_between_lets_the_rest_in() {
    run(Event::Lift);
}

/// CONN-15, RELOAD-2: the settings are read again meanwhile.
#[test]
fn a_reload_in_between_changes_nothing() {
    run(Event::Reload);
}

/// CONN-15, ALIVE-3: the service is stopped meanwhile.
#[test]
fn a_drain_in_between_ends_behind_an_answer() {
    run(Event::Drain);
}

/// CONN-15, RESTART-1: another process takes over meanwhile.
#[test]
fn a_hand_over_in_between_loses_nothing() {
    run(Event::HandOver);
}
