//! Frames and heads that break the rules of HTTP/2, as a table: what is sent, and how it is taken
//! (EDGE-3, RFC 9113, RFC 7541). The cases are those of the h2spec program, and those of a request
//! that would be two behind a proxy which takes HTTP/2 and sends HTTP/1.1.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::h2::ON;
use crate::support::application::{After, Application};
use crate::support::frames::{
    ACK, COMPRESSION_ERROR, CONTINUATION, DATA, END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR, Frames, GOAWAY, HEADERS, PADDED, PING, PREFACE, PRIORITY, PROTOCOL_ERROR,
    PUSH_PROMISE, REFUSED_STREAM, RST_STREAM, Reaction, SETTINGS, STREAM_CLOSED, WHOLE,
    WINDOW_UPDATE, block, frame, get, request,
};
use crate::support::wait_until;
use crate::support::weir::Weir;

/// How a case is to be taken.
#[derive(Clone, Copy, Debug)]
enum Taken {
    /// As nothing: the connection serves the next request.
    Well,
    /// The connection ends, with one of these codes.
    Connection(&'static [u32]),
    /// The stream ends with one of these codes, or the connection does.
    Stream(&'static [u32]),
    /// As a malformed request: 400, or the stream ends.
    Malformed,
}

use Taken::{Connection, Malformed, Stream, Well};

struct Case {
    name: &'static str,
    sent: Vec<Vec<u8>>,
    /// The stream that is looked at.
    stream: u32,
    taken: Taken,
}

fn case(name: &'static str, sent: Vec<Vec<u8>>, taken: Taken) -> Case {
    Case {
        name,
        sent,
        stream: 1,
        taken,
    }
}

/// Opens stream 1 with a body to come.
fn open() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &request("POST", "/body", &[]))
}

/// A whole request on a stream.
fn whole(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &get("/fine", &[]))
}

/// A whole request on stream 1 with this head.
fn of(head: &[u8]) -> Vec<Vec<u8>> {
    vec![frame(HEADERS, WHOLE, 1, head)]
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    let mut payload = name.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

fn window(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

const PROTOCOL: &[u32] = &[PROTOCOL_ERROR];
/// The library often says no more than that the protocol was not kept to, which RFC 9113 §5.4
/// leaves to it.
const SIZE: &[u32] = &[FRAME_SIZE_ERROR, PROTOCOL_ERROR];
const FLOW: &[u32] = &[FLOW_CONTROL_ERROR, PROTOCOL_ERROR];
const COMPRESSION: &[u32] = &[COMPRESSION_ERROR, PROTOCOL_ERROR];
const CLOSED: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];

/// Frames by themselves: RFC 9113 §4 and §6.
fn frames_alone() -> Vec<Case> {
    let most = 1 << 31;
    vec![
        case(
            "4.1 an unknown kind",
            vec![frame(0xbe, 0, 0, b"12345678")],
            Well,
        ),
        case(
            "4.1 unknown flags",
            vec![frame(PING, 0xfe, 0, &[0; 8])],
            Well,
        ),
        case(
            "4.1 the reserved bit",
            vec![frame(PING, 0, most, &[0; 8])],
            Well,
        ),
        case(
            "4.2 DATA is too long",
            vec![open(), frame(DATA, 0, 1, &[0; 16_385])],
            Stream(SIZE),
        ),
        case(
            "4.2 HEADERS is too long",
            of(&[0; 16_385]),
            Connection(SIZE),
        ),
        case(
            "6.1 DATA on stream 0",
            vec![frame(DATA, 0, 0, b"x")],
            Connection(PROTOCOL),
        ),
        case(
            "6.1 DATA is all padding",
            vec![open(), frame(DATA, PADDED, 1, b"\x06abcde")],
            Connection(PROTOCOL),
        ),
        case(
            "6.2 HEADERS on stream 0",
            vec![frame(HEADERS, WHOLE, 0, &get("/bad", &[]))],
            Connection(PROTOCOL),
        ),
        case(
            "6.2 HEADERS is all padding",
            vec![frame(HEADERS, WHOLE | PADDED, 1, b"\x06abcde")],
            Connection(PROTOCOL),
        ),
        case(
            "6.3 PRIORITY",
            vec![frame(PRIORITY, 0, 1, b"\0\0\0\0\x07"), whole(1)],
            Well,
        ),
        case(
            "6.3 PRIORITY on stream 0",
            vec![frame(PRIORITY, 0, 0, &[0; 5])],
            Connection(PROTOCOL),
        ),
        case(
            "6.3 PRIORITY is short",
            vec![open(), frame(PRIORITY, 0, 1, &[0; 4])],
            Stream(SIZE),
        ),
        case(
            "6.4 RST_STREAM on stream 0",
            vec![reset(0)],
            Connection(PROTOCOL),
        ),
        case(
            "6.4 RST_STREAM of none",
            vec![reset(1)],
            Connection(PROTOCOL),
        ),
        case(
            "6.4 RST_STREAM is short",
            vec![open(), frame(RST_STREAM, 0, 1, &[0; 3])],
            Connection(SIZE),
        ),
        case(
            "6.5 SETTINGS is an answer",
            vec![frame(SETTINGS, ACK, 0, &[0; 6])],
            Connection(SIZE),
        ),
        case(
            "6.5 SETTINGS on a stream",
            vec![frame(SETTINGS, 0, 1, b"")],
            Connection(PROTOCOL),
        ),
        case(
            "6.5 SETTINGS is odd",
            vec![frame(SETTINGS, 0, 0, &[0; 3])],
            Connection(SIZE),
        ),
        case("6.5.2 push is 2", vec![setting(2, 2)], Connection(PROTOCOL)),
        case(
            "6.5.2 the window is too large",
            vec![setting(4, most)],
            Connection(FLOW),
        ),
        case(
            "6.5.2 frames are too short",
            vec![setting(5, 16_383)],
            Connection(PROTOCOL),
        ),
        case(
            "6.5.2 frames are too long",
            vec![setting(5, 1 << 24)],
            Connection(PROTOCOL),
        ),
        case("6.5.2 an unknown setting", vec![setting(0xff, 1)], Well),
        case(
            "6.6 PUSH_PROMISE",
            vec![
                open(),
                frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]),
            ],
            Connection(PROTOCOL),
        ),
        case(
            "6.7 PING is an answer",
            vec![frame(PING, ACK, 0, &[0; 8])],
            Well,
        ),
        case(
            "6.7 PING on a stream",
            vec![frame(PING, 0, 1, &[0; 8])],
            Connection(PROTOCOL),
        ),
        case(
            "6.7 PING is short",
            vec![frame(PING, 0, 0, &[0; 6])],
            Connection(SIZE),
        ),
        case(
            "6.8 GOAWAY on a stream",
            vec![frame(GOAWAY, 0, 1, &[0; 8])],
            Connection(PROTOCOL),
        ),
        case(
            "6.9 a window by 0",
            vec![window(0, 0)],
            Connection(PROTOCOL),
        ),
        case(
            "6.9 a stream's window by 0",
            vec![open(), window(1, 0)],
            Stream(PROTOCOL),
        ),
        case(
            "6.9 WINDOW_UPDATE is short",
            vec![frame(WINDOW_UPDATE, 0, 0, &[0; 3])],
            Connection(SIZE),
        ),
        case(
            "6.9.1 a window is too large",
            vec![window(0, most - 1), window(0, most - 1)],
            Connection(FLOW),
        ),
        case(
            "6.9.1 a stream's window is too large",
            vec![open(), window(1, most - 1), window(1, most - 1)],
            Stream(FLOW),
        ),
        case(
            "6.10 CONTINUATION on stream 0",
            vec![
                frame(HEADERS, END_STREAM, 1, &get("/bad", &[])),
                frame(CONTINUATION, END_HEADERS, 0, b""),
            ],
            Connection(PROTOCOL),
        ),
        case(
            "6.10 CONTINUATION of a whole head",
            vec![open(), frame(CONTINUATION, END_HEADERS, 1, b"")],
            Connection(PROTOCOL),
        ),
        case(
            "6.10 CONTINUATION behind DATA",
            vec![
                open(),
                frame(DATA, 0, 1, b"x"),
                frame(CONTINUATION, END_HEADERS, 1, b""),
            ],
            Connection(PROTOCOL),
        ),
        case("6.10 heads in pieces", in_pieces(), Well),
    ]
}

/// A head of three frames.
fn in_pieces() -> Vec<Vec<u8>> {
    let head = get("/fine", &[]);
    vec![
        frame(HEADERS, END_STREAM, 1, &head[..9]),
        frame(CONTINUATION, 0, 1, &head[9..20]),
        frame(CONTINUATION, END_HEADERS, 1, &head[20..]),
    ]
}

/// Frames at the wrong moment: RFC 9113 §4.3 and §5.
fn frames_in_order() -> Vec<Case> {
    let begun = || frame(HEADERS, END_STREAM, 1, &get("/bad", &[]));
    vec![
        case(
            "4.3 PRIORITY in a head",
            vec![begun(), frame(PRIORITY, 0, 1, &[0; 5])],
            Connection(PROTOCOL),
        ),
        case(
            "4.3 another stream in a head",
            vec![begun(), whole(3)],
            Connection(PROTOCOL),
        ),
        case(
            "5.5 an unknown kind in a head",
            vec![begun(), frame(0xbe, 0, 1, b"x")],
            Connection(PROTOCOL),
        ),
        case(
            "6.2 DATA in a head",
            vec![begun(), frame(DATA, END_STREAM, 1, b"x")],
            Connection(PROTOCOL),
        ),
        case(
            "5.1 DATA on an idle stream",
            vec![frame(DATA, END_STREAM, 1, b"x")],
            Connection(PROTOCOL),
        ),
        case(
            "5.1 WINDOW_UPDATE of an idle stream",
            vec![window(1, 100)],
            Connection(PROTOCOL),
        ),
        case(
            "5.1 CONTINUATION on an idle stream",
            vec![frame(CONTINUATION, END_HEADERS, 1, b"")],
            Connection(PROTOCOL),
        ),
        case(
            "5.1 DATA behind the end",
            vec![whole(1), frame(DATA, END_STREAM, 1, b"x")],
            Stream(CLOSED),
        ),
        case(
            "5.1 HEADERS behind the end",
            vec![whole(1), whole(1)],
            Stream(CLOSED),
        ),
        case(
            "5.1 CONTINUATION behind the end",
            vec![whole(1), frame(CONTINUATION, END_HEADERS, 1, b"")],
            Connection(CLOSED),
        ),
        case(
            "5.1 DATA behind a reset",
            vec![open(), reset(1), frame(DATA, END_STREAM, 1, b"x"), whole(3)],
            Well,
        ),
        case("5.1.1 an even stream", vec![whole(2)], Connection(PROTOCOL)),
        case(
            "5.1.1 a stream goes back",
            vec![whole(5), whole(3)],
            Connection(PROTOCOL),
        ),
    ]
}

/// Requests that are none: RFC 9113 §8.
fn heads() -> Vec<Case> {
    let fields = |fields: &[(&str, &[u8])]| of(&block(fields));
    let full: [(&str, &[u8]); 4] = [
        (":method", b"GET"),
        (":scheme", b"http"),
        (":authority", b"a.test"),
        (":path", b"/bad"),
    ];
    let without = |name: &str| {
        let left: Vec<_> = full
            .iter()
            .copied()
            .filter(|(each, _)| *each != name)
            .collect();
        of(&block(&left))
    };
    let with = |more: &[(&str, &[u8])]| of(&get("/bad", more));
    let twice = |name: &str| {
        let again: Vec<_> = full
            .iter()
            .flat_map(|field| vec![*field; 1 + usize::from(field.0 == name)])
            .collect();
        of(&block(&again))
    };
    let mut late = full.to_vec();
    late.insert(3, ("x", b"y"));
    let with_length = |length: &[u8], body: &[u8]| {
        let head = request("POST", "/bad", &[("content-length", length)]);
        vec![
            frame(HEADERS, END_HEADERS, 1, &head),
            frame(DATA, END_STREAM, 1, body),
        ]
    };
    vec![
        case(
            "8.1 a second head in a body",
            vec![
                open(),
                frame(HEADERS, END_HEADERS, 1, &block(&[("x", b"y")])),
            ],
            Stream(PROTOCOL),
        ),
        // h2spec wants the stream to be reset. The library leaves the field out.
        case(
            "8.1 a pseudo field among trailers",
            vec![
                open(),
                frame(DATA, 0, 1, b"x"),
                frame(HEADERS, WHOLE, 1, &block(&[(":path", b"/other")])),
            ],
            Well,
        ),
        case("8.2 upper case", with(&[("X-Test", b"y")]), Malformed),
        case("8.2.1 a blank in a name", with(&[("x y", b"z")]), Malformed),
        case("8.2.1 a colon in a name", with(&[("x:y", b"z")]), Malformed),
        case("8.2.1 an empty name", with(&[("", b"z")]), Malformed),
        case(
            "8.2.1 CR LF in a name",
            with(&[("x: y\r\nz", b"z")]),
            Malformed,
        ),
        case("8.2.1 LF in a value", with(&[("x", b"y\nz: 1")]), Malformed),
        case("8.2.1 CR in a value", with(&[("x", b"y\rz")]), Malformed),
        case(
            "8.2.1 CR LF in a value",
            with(&[("x", b"y\r\nTransfer-Encoding: chunked")]),
            Malformed,
        ),
        case("8.2.1 NUL in a value", with(&[("x", b"y\0z")]), Malformed),
        case(
            "8.2.1 a blank before a value",
            with(&[("x", b" y")]),
            Malformed,
        ),
        case(
            "8.2.1 a blank behind a value",
            with(&[("x", b"y\t")]),
            Malformed,
        ),
        case(
            "8.2.2 connection",
            with(&[("connection", b"x-test")]),
            Malformed,
        ),
        case("8.2.2 keep-alive", with(&[("keep-alive", b"1")]), Malformed),
        case(
            "8.2.2 proxy-connection",
            with(&[("proxy-connection", b"close")]),
            Malformed,
        ),
        case(
            "8.2.2 transfer-encoding",
            with(&[("transfer-encoding", b"chunked")]),
            Malformed,
        ),
        case(
            "8.2.2 upgrade",
            with(&[("upgrade", b"websocket")]),
            Malformed,
        ),
        case("8.2.2 te is gzip", with(&[("te", b"gzip")]), Malformed),
        case(
            "8.2.2 te is trailers, gzip",
            with(&[("te", b"trailers, gzip")]),
            Malformed,
        ),
        case(
            "8.3 an unknown pseudo field",
            with(&[(":test", b"y")]),
            Malformed,
        ),
        case(
            "8.3 a pseudo field of responses",
            with(&[(":status", b"200")]),
            Malformed,
        ),
        case("8.3 a pseudo field behind others", fields(&late), Malformed),
        case("8.3.1 no method", without(":method"), Malformed),
        case("8.3.1 no scheme", without(":scheme"), Malformed),
        case("8.3.1 no path", without(":path"), Malformed),
        case("8.3.1 an empty path", of(&get("", &[])), Malformed),
        case("8.3.1 method twice", twice(":method"), Malformed),
        case("8.3.1 scheme twice", twice(":scheme"), Malformed),
        case("8.3.1 path twice", twice(":path"), Malformed),
        case("8.3.1 authority twice", twice(":authority"), Malformed),
        case(
            "8.3.1 neither authority nor Host",
            without(":authority"),
            Malformed,
        ),
        case(
            "8.3.1 Host says another",
            with(&[("host", b"b.test")]),
            Malformed,
        ),
        case(
            "8.3.1 two of Host",
            with(&[("host", b"a.test"), ("host", b"a.test")]),
            Malformed,
        ),
        case(
            "8.3.1 who asks",
            fields(&[full[0], full[1], (":authority", b"me@a.test"), full[3]]),
            Malformed,
        ),
        case(
            "8.3.1 authority is empty",
            fields(&[full[0], full[1], (":authority", b""), full[3]]),
            Malformed,
        ),
        case(
            "8.3.1 a blank in authority",
            fields(&[full[0], full[1], (":authority", b"a.test b"), full[3]]),
            Malformed,
        ),
        case(
            "8.3.1 a path without a slash",
            of(&get("bad", &[])),
            Malformed,
        ),
        case(
            "8.3.1 a whole URI for a path",
            of(&get("http://b.test/bad", &[])),
            Malformed,
        ),
        case(
            "8.3.1 a blank in the path",
            of(&get("/bad HTTP/1.1", &[])),
            Malformed,
        ),
        case(
            "8.3.1 CR LF in the path",
            of(&get("/bad HTTP/1.1\r\nX: y\r\n\r\nGET /two", &[])),
            Malformed,
        ),
        case("8.3.1 a star for GET", of(&get("*", &[])), Malformed),
        case(
            "8.3.1 a blank in the method",
            of(&request("GET /bad", "/bad", &[])),
            Malformed,
        ),
        case(
            "8.3.1 LF in the method",
            of(&request("GET\n", "/bad", &[])),
            Malformed,
        ),
        case(
            "8.3.1 LF in the scheme",
            fields(&[full[0], (":scheme", b"http\n"), full[2], full[3]]),
            Malformed,
        ),
        case(
            "8.3.1 another scheme",
            fields(&[full[0], (":scheme", b"ftp"), full[2], full[3]]),
            Malformed,
        ),
        case(
            "8.1.1 a longer body",
            with_length(b"1", b"xx"),
            Stream(PROTOCOL),
        ),
        case(
            "8.1.1 a shorter body",
            with_length(b"2", b"x"),
            Stream(PROTOCOL),
        ),
        case(
            "8.1.1 no body",
            with(&[("content-length", b"2")]),
            Malformed,
        ),
        case(
            "8.1.1 a length with a sign",
            with_length(b"+1", b"x"),
            Malformed,
        ),
        case(
            "8.1.1 a length twice",
            with(&[("content-length", b"0"), ("content-length", b"1")]),
            Malformed,
        ),
    ]
}

/// Heads that are no compressed ones: RFC 7541.
fn compression() -> Vec<Case> {
    let behind = |bytes: &[u8]| {
        let mut head = get("/bad", &[]);
        head.extend_from_slice(bytes);
        of(&head)
    };
    vec![
        case("2.3.3 index 0", of(b"\x80"), Connection(COMPRESSION)),
        case(
            "2.3.3 an index beyond the tables",
            of(b"\xff\x80\x01"),
            Connection(COMPRESSION),
        ),
        case(
            "4.2 a size behind a field",
            behind(b"\x20"),
            Connection(COMPRESSION),
        ),
        case(
            "5.1 a number without end",
            of(b"\x7f\xff\xff\xff\xff\xff\xff\xff"),
            Connection(COMPRESSION),
        ),
        case(
            "5.2 padding of eight bits",
            behind(b"\0\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
            Connection(COMPRESSION),
        ),
        case(
            "5.2 padding of zeros",
            behind(b"\0\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
            Connection(COMPRESSION),
        ),
        case(
            "6.3 a size beyond the bound",
            of(b"\x3f\xff\xff\x03"),
            Connection(COMPRESSION),
        ),
        case(
            "4.3 a head that is cut off",
            of(&get("/bad", &[])[..20]),
            Connection(COMPRESSION),
        ),
    ]
}

/// Sends a case, and says how it was taken otherwise than it was to be.
fn fault(weir: &Weir, case: &Case) -> Option<String> {
    let mut frames = Frames::open(weir.address());
    // What is sent behind the end of a connection is lost, and nothing follows from it.
    for bytes in &case.sent {
        frames.try_send(bytes);
    }
    let reaction = match case.taken {
        Well => {
            frames.try_send(&whole(101));
            frames.reaction(101)
        }
        Connection(_) => frames.end(),
        Stream(_) | Malformed => loop {
            match frames.reaction(case.stream) {
                Reaction::Status(status) if status != 400 && !matches!(case.taken, Malformed) => {}
                reaction => break reaction,
            }
        },
    };
    let is_right = match (case.taken, reaction) {
        (Well, reaction) => reaction == Reaction::Status(200),
        (Connection(codes), Reaction::Goaway(code)) => codes.contains(&code),
        (Stream(codes), Reaction::Goaway(code) | Reaction::Reset(code)) => codes.contains(&code),
        (Malformed, Reaction::Status(status)) => status == 400,
        (Malformed, Reaction::Reset(code) | Reaction::Goaway(code)) => code == PROTOCOL_ERROR,
        (_, Reaction::Closed) => true,
        _ => false,
    };
    (!is_right).then(|| format!("{}: {:?}, not {:?}", case.name, reaction, case.taken))
}

/// EDGE-3: every case is taken as the RFCs say, and nothing that is malformed reaches the
/// application.
#[test]
fn every_case_is_taken_as_it_is_to_be() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    let unlimited = ("WAF_RATE_LIMIT_PER_MINUTE", "off");
    let weir = Weir::start(&application, &[ON, unlimited]);
    let cases = [frames_alone(), frames_in_order(), heads(), compression()].concat_cases();
    let faults: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            catch_unwind(AssertUnwindSafe(|| fault(&weir, case)))
                .unwrap_or_else(|_| Some(format!("{}: nothing, not {:?}", case.name, case.taken)))
        })
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let fine = ["/fine", "/body"];
    let seen = application.requests();
    let bad: Vec<_> = seen
        .iter()
        .filter(|got| !fine.contains(&&*got.target))
        .collect();
    // A body that is too short or too long is known for it when its head has gone on.
    let went_on = |got: &&&crate::support::application::Received| got.whole;
    assert_eq!(bad.iter().filter(went_on).count(), 0, "{bad:#?}");
}

trait Concat {
    fn concat_cases(self) -> Vec<Case>;
}

impl<const N: usize> Concat for [Vec<Case>; N] {
    fn concat_cases(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}

/// EDGE-3: a wrong preface ends the connection.
#[test]
fn a_wrong_preface_ends_the_connection() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::silent(weir.address());
    frames.send(&PREFACE[..14]);
    frames.send(b"\r\n\r\nXX\r\n\r\n");
    assert_eq!(frames.end(), Reaction::Closed);
    let mut frames = Frames::silent(weir.address());
    frames.send(PREFACE);
    frames.send(&whole(1));
    assert_eq!(frames.end(), Reaction::Goaway(PROTOCOL_ERROR));
}

/// EDGE-3, CONN-1: the heads of all open requests are 512 KiB at most, their targets among them;
/// the next stream is refused, and may come again.
#[test]
fn heads_of_open_requests_are_bounded_with_their_targets() {
    let application = Application::start(|exchange| {
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[ON]);
    let long = "x".repeat(12_000);
    for (target, field) in [("/", &*long), (&*format!("/{long}"), "")] {
        let mut frames = Frames::open(weir.address());
        let head = get(target, &[("x", field.as_bytes())]);
        let streams = (1..).step_by(2).take(512 * 1024 / 12_000 + 1);
        let last = streams.inspect(|stream| frames.send(&frame(HEADERS, WHOLE, *stream, &head)));
        let last = last.last().expect("a stream");
        assert_eq!(frames.reaction(last), Reaction::Reset(REFUSED_STREAM));
    }
}

/// EDGE-3: of more than 128 streams the next are refused, and may come again.
#[test]
fn more_than_128_streams_are_refused() {
    let application = Application::start(|exchange| {
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    for stream in 0..129 {
        frames.send(&whole(2 * stream + 1));
    }
    assert_eq!(frames.reaction(257), Reaction::Reset(REFUSED_STREAM));
    frames.send(&reset(1));
    frames.send(&frame(HEADERS, WHOLE, 259, &get("/_waf/health", &[])));
    assert_eq!(frames.reaction(259), Reaction::Status(200));
}

/// EDGE-3, CONN-1: a head of more than 32 KiB, or of more than 100 fields, is 431; pieces of
/// `cookie` are one field.
#[test]
fn a_large_head_is_431() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    let many: Vec<(&str, &[u8])> = vec![("x", b"y"); 101];
    frames.send(&frame(HEADERS, WHOLE, 1, &get("/many", &many)));
    assert_eq!(frames.reaction(1), Reaction::Status(431));
    let pieces: Vec<(&str, &[u8])> = vec![("cookie", b"y"); 300];
    frames.send(&frame(HEADERS, WHOLE, 3, &get("/pieces", &pieces)));
    assert_eq!(frames.reaction(3), Reaction::Status(200));
    let large = [b'x'; 16_000];
    let head = get("/large", &[("a", &large), ("b", &large), ("c", &large)]);
    frames.send(&frame(HEADERS, END_STREAM, 5, &head[..16_000]));
    frames.send(&frame(CONTINUATION, 0, 5, &head[16_000..32_000]));
    frames.send(&frame(CONTINUATION, END_HEADERS, 5, &head[32_000..]));
    assert_eq!(frames.reaction(5), Reaction::Status(431));
    let targets: Vec<_> = application
        .requests()
        .into_iter()
        .map(|got| got.target)
        .collect();
    assert_eq!(targets, ["/pieces"]);
    wait_until("both to be counted", || {
        errors(&weir, "head_too_large") == 2
    });
}

fn errors(weir: &Weir, kind: &str) -> u64 {
    let series = format!("waf_connection_errors_total{{kind=\"{kind}\"}}");
    weir.metric(&series).expect("a count") as u64
}

/// METRIC, EDGE-3: heads that the library refuses by itself are counted, each once, as those of
/// HTTP/1.1 are; not what was a request, or may come again.
#[test]
fn what_the_library_refuses_is_counted() {
    let application = Application::start(|exchange| {
        if exchange.request.target == "/held" {
            exchange.wait_for_close();
            return After::Close;
        }
        exchange.read_body();
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[ON]);
    let mut frames = Frames::open(weir.address());
    let head = |fields: &[(&str, &[u8])]| frame(HEADERS, WHOLE, 1, &block(fields));
    let mut bare = head(&[(":method", b"GET"), (":scheme", b"http")]);
    bare[8] = 3;
    let body = frame(DATA, END_STREAM, 5, b"hello");
    let large = [b'x'; 16_000];
    let large = get("/large", &[("a", &large), ("b", &large), ("c", &large)]);
    for (stream, sent, reaction) in [
        (
            1,
            frame(HEADERS, WHOLE, 1, &get("/x", &[("connection", b"close")])),
            Reaction::Reset(PROTOCOL_ERROR),
        ),
        (3, bare, Reaction::Status(400)),
        (
            5,
            [
                frame(
                    HEADERS,
                    END_HEADERS,
                    5,
                    &request("POST", "/x", &[("te", b"x")]),
                ),
                body,
            ]
            .concat(),
            Reaction::Reset(PROTOCOL_ERROR),
        ),
        (
            7,
            [
                frame(HEADERS, END_STREAM, 7, &large[..16_000]),
                frame(CONTINUATION, 0, 7, &large[16_000..32_000]),
                frame(CONTINUATION, END_HEADERS, 7, &large[32_000..]),
            ]
            .concat(),
            Reaction::Status(431),
        ),
        (9, whole(9), Reaction::Status(200)),
        (
            11,
            [
                frame(
                    HEADERS,
                    END_HEADERS,
                    11,
                    &request("POST", "/body", &[("content-length", b"5")]),
                ),
                frame(DATA, END_STREAM, 11, b"abc"),
            ]
            .concat(),
            Reaction::Reset(PROTOCOL_ERROR),
        ),
    ] {
        frames.send(&sent);
        assert_eq!(frames.reaction(stream), reaction, "stream {stream}");
    }
    for stream in (13..).step_by(2).take(129) {
        frames.send(&frame(HEADERS, WHOLE, stream, &get("/held", &[])));
    }
    assert_eq!(
        frames.reaction(13 + 2 * 128),
        Reaction::Reset(REFUSED_STREAM)
    );
    let counted = || {
        (
            errors(&weir, "bad_request"),
            errors(&weir, "head_too_large"),
        )
    };
    wait_until("what was refused to be counted", || counted().0 >= 3);
    drop(frames);
    wait_until("the end of the connection", || {
        weir.metric("waf_connections") == Some(1.0)
    });
    assert_eq!(counted(), (3, 1));
}
