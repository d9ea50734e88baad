//! Frames without end that cost more than they carry: the connection ends, and is counted (EDGE-3).

use std::time::Duration;

use super::h2::ON;
use crate::support::application::{After, Application};
use crate::support::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS,
    NO_ERROR, PING, PRIORITY, RST_STREAM, Reaction, SETTINGS, WHOLE, WINDOW_UPDATE, frame, get,
    request,
};
use crate::support::wait_until;
use crate::support::weir::Weir;

const FLOODS: &str = "waf_connection_errors_total{kind=\"h2_flood\"}";
/// More than any flood is let go on for, in a few seconds.
const MANY: u32 = 40_000;

fn application() -> Application {
    Application::start(|exchange| {
        if exchange.request.target == "/wait" {
            exchange.wait_for_close();
            return After::Close;
        }
        exchange.read_body();
        exchange.answer(200, &[], b"fine");
        After::KeepAlive
    })
}

fn unlimited(application: &Application) -> Weir {
    let limits = ["MINUTE", "HOUR", "DAY"].map(|span| format!("WAF_RATE_LIMIT_PER_{span}"));
    let mut settings: Vec<_> = limits.iter().map(|name| (&**name, "off")).collect();
    settings.push(ON);
    Weir::start(application, &settings)
}

/// Sends the frames that `each` makes, as many as the other side takes.
fn flood(frames: &mut Frames, each: impl Fn(u32) -> Vec<u8>) {
    let mut number = 0;
    while number < MANY && frames.try_send(&each(number)) {
        number += 1;
    }
}

/// EDGE-3: each flood ends its connection with ENHANCE_YOUR_CALM and is counted once; others go on.
#[test]
fn each_flood_ends_its_connection_and_is_counted() {
    let application = application();
    let weir = unlimited(&application);
    let mut steady = Frames::open(weir.address());
    let open = |stream| frame(HEADERS, END_HEADERS, stream, &request("POST", "/wait", &[]));
    let cancel = |stream| frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    type Each<'a> = Box<dyn Fn(u32) -> Vec<u8> + 'a>;
    let floods: Vec<(&str, Vec<u8>, Each)> = vec![
        (
            "rapid reset, CVE-2023-44487",
            vec![],
            Box::new(|number| [open(2 * number + 1), cancel(2 * number + 1)].concat()),
        ),
        (
            "CONTINUATION, CVE-2024-27316",
            frame(HEADERS, 0, 1, &get("/bad", &[])),
            Box::new(|_| frame(CONTINUATION, 0, 1, b"")),
        ),
        ("SETTINGS", vec![], Box::new(|_| frame(SETTINGS, 0, 0, b""))),
        ("PING", vec![], Box::new(|_| frame(PING, 0, 0, &[0; 8]))),
        ("empty DATA", open(1), Box::new(|_| frame(DATA, 0, 1, b""))),
        (
            "DATA of a byte that nobody takes",
            open(1),
            Box::new(|_| frame(DATA, 0, 1, b"x")),
        ),
        (
            "PRIORITY",
            vec![],
            Box::new(|_| frame(PRIORITY, 0, 1, b"\0\0\0\0\x07")),
        ),
        (
            "an unknown kind",
            vec![],
            Box::new(|_| frame(0xbe, 0, 0, b"12345678")),
        ),
        (
            "WINDOW_UPDATE",
            vec![],
            Box::new(|_| frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ),
        (
            "streams beyond all that may be",
            vec![],
            Box::new(|number| open(2 * number + 1)),
        ),
    ];
    for (index, (name, before, each)) in floods.into_iter().enumerate() {
        let mut frames = Frames::open(weir.address());
        frames.send(&before);
        flood(&mut frames, each);
        // The word may be lost with what was sent behind it.
        let end = frames.end();
        let is_told = matches!(end, Reaction::Goaway(ENHANCE_YOUR_CALM) | Reaction::Closed);
        assert!(is_told, "{name}: {end:?}");
        let count = (index + 1) as f64;
        wait_until(&format!("{name} is counted"), || {
            weir.metric(FLOODS) == Some(count)
        });
        let stream = u32::try_from(2 * index + 1).expect("fits");
        steady.send(&frame(HEADERS, WHOLE, stream, &get("/fine", &[])));
        assert_eq!(steady.reaction(stream), Reaction::Status(200), "{name}");
    }
    assert!(
        application
            .requests()
            .iter()
            .all(|got| got.target != "/bad")
    );
}

/// EDGE-3: what is much and carries something is no flood: thousands of requests, small pieces of a
/// body that the application takes, an answer that is taken a little at a time.
#[test]
fn what_carries_something_is_no_flood() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let length = if exchange.request.target == "/large" {
            3_000_000
        } else {
            4
        };
        exchange.answer(200, &[], &vec![b'x'; length]);
        After::KeepAlive
    });
    let weir = unlimited(&application);
    let mut frames = Frames::open(weir.address());
    for number in 0..1_000 {
        let stream = 2 * number + 1;
        frames.send(&frame(HEADERS, WHOLE, stream, &get("/fine", &[])));
        assert_eq!(frames.reaction(stream), Reaction::Status(200));
        assert!(frames.body(stream).1);
    }
    // Small pieces that are taken, again and again.
    for stream in (6_001..6_021).step_by(2) {
        let head = request("POST", &format!("/{stream}"), &[]);
        frames.send(&frame(HEADERS, END_HEADERS, stream, &head));
        frames.send(&frame(DATA, 0, stream, &[b'x'; 20]).repeat(2_000));
        frames.send(&frame(DATA, END_STREAM, stream, b""));
        assert_eq!(frames.reaction(stream), Reaction::Status(200));
        let got = application.request(&format!("/{stream}"));
        assert_eq!(got.body.len(), 40_000);
    }
    frames.send(&frame(HEADERS, WHOLE, 6_103, &get("/large", &[])));
    assert_eq!(frames.reaction(6_103), Reaction::Status(200));
    assert_eq!(frames.body(6_103).0.len(), 3_000_000);
    assert_eq!(weir.metric(FLOODS), Some(0.0));
}

/// EDGE-3, CONN-1: a client that opens no window, or next to none, for as many streams as it may
/// have makes the service hold little.
#[test]
fn a_window_of_zero_fills_no_memory() {
    let application = Application::start(|exchange| {
        exchange.answer(200, &[], &vec![b'x'; 1_000_000]);
        After::KeepAlive
    });
    let weir = unlimited(&application);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid()));
        let status = status.expect("its state");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.expect("a line").trim().trim_end_matches(" kB");
        kib.parse::<usize>().expect("a number") / 1024
    };
    let ask = |frames: &mut Frames| {
        for number in 0..128 {
            frames.send(&frame(HEADERS, WHOLE, 2 * number + 1, &get("/large", &[])));
        }
        for _ in 0..128 {
            while frames.next_of_streams().expect("a head").kind != HEADERS {}
        }
    };
    ask(&mut Frames::open_with(weir.address(), &[(4, 0)]));
    let before = resident();
    let mut held = Vec::new();
    for window in [0, 1, 100, 60_000] {
        for _ in 0..4 {
            let mut frames = Frames::open_with(weir.address(), &[(4, window)]);
            ask(&mut frames);
            held.push(frames);
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 * 3, "16 connections hold {grown} MiB");
}

/// EDGE-3, CONN: no stream is ever opened: the connection ends after the time of a head, without an
/// error; a head that does not come to its end is one.
#[test]
fn heads_have_their_time() {
    let application = application();
    let weir = Weir::start(&application, &[ON, ("WAF_HEADER_TIMEOUT", "3s")]);
    let mut frames = Frames::open(weir.address());
    let mut cut = Frames::open(weir.address());
    cut.send(&frame(HEADERS, WHOLE, 1, &get("/fine", &[])));
    // Nothing is to be acknowledged in the middle of a head.
    assert_eq!(cut.reaction(1), Reaction::Status(200));
    cut.send(&frame(HEADERS, END_STREAM, 3, &get("/bad", &[])));
    let mut served = Frames::open(weir.address());
    served.send(&frame(HEADERS, WHOLE, 1, &get("/fine", &[])));
    assert_eq!(served.reaction(1), Reaction::Status(200));
    served.send(&get_begun());
    assert!(matches!(
        frames.end(),
        Reaction::Goaway(NO_ERROR | ENHANCE_YOUR_CALM)
    ));
    assert_eq!(cut.end(), Reaction::Goaway(ENHANCE_YOUR_CALM));
    assert_eq!(served.end(), Reaction::Goaway(ENHANCE_YOUR_CALM));
    assert!(
        application
            .requests()
            .iter()
            .all(|got| got.target != "/bad")
    );
}

/// The beginning of a head, cut off in the middle of its frame.
fn get_begun() -> Vec<u8> {
    let mut bytes = frame(HEADERS, WHOLE, 3, &get("/bad", &[]));
    bytes.truncate(20);
    bytes
}

/// EDGE-3, CONN-5: an idle connection ends after its time, whatever pings come.
#[test]
fn an_idle_connection_ends() {
    let application = application();
    let weir = Weir::start(&application, &[ON, ("WAF_KEEPALIVE_TIMEOUT", "1s")]);
    let mut frames = Frames::open(weir.address());
    frames.send(&frame(HEADERS, WHOLE, 1, &get("/fine", &[])));
    assert_eq!(frames.reaction(1), Reaction::Status(200));
    frames.set_patience(Duration::from_millis(200));
    let mut ended = None;
    wait_until("its end", || {
        frames.try_send(&frame(PING, 0, 0, &[0; 8]));
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| frames.next())) {
            Ok(Some(next)) if next.kind == crate::support::frames::GOAWAY => ended = Some(next),
            Ok(Some(_)) | Err(_) => {}
            Ok(None) => return true,
        }
        ended.is_some()
    });
}
