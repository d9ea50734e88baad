//! What a client of HTTP/2 that takes nothing can have held for it (EDGE-3, CONN-1).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::h2::ON;
use crate::support::application::{After, Application};
use crate::support::frames::{Frames, HEADERS, Reaction, WHOLE, frame, get as head};
use crate::support::raw_client::{Connection, get};
use crate::support::wait_until;
use crate::support::weir::Weir;

const STREAMS: u32 = 100;
/// Pieces that the application gets rid of in all, or tries for so long.
const PIECES: usize = 20_000;
const ROUNDS: usize = 400;

/// An application that sends ten bytes at a time, to whoever asks for `/drops`.
fn dripping(sent: Arc<AtomicUsize>) -> Application {
    Application::start(move |exchange| {
        if exchange.request.target != "/drops" {
            exchange.answer(200, &[], &[b'x'; 12_000]);
            return After::KeepAlive;
        }
        exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..ROUNDS {
            if !exchange.send(b"a\r\n0123456789\r\n") {
                break;
            }
            sent.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
        exchange.wait_for_close();
        After::Close
    })
}

fn resident_kib(weir: &Weir) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid()));
    let status = status.expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.expect("a line").trim().trim_end_matches(" kB");
    kib.parse().expect("a number")
}

/// EDGE-3, CONN-1: a hundred streams of a client that takes nothing, whose answers come in pieces
/// of ten bytes, beside other traffic: none of the pieces holds the buffer that it was read into.
#[test]
#[ignore = "takes ten seconds and measures memory"]
fn small_pieces_of_unread_streams_hold_little() {
    let sent = Arc::<AtomicUsize>::default();
    let application = dripping(Arc::clone(&sent));
    let settings = [
        ON,
        ("WAF_WORKERS", "1"),
        ("WAF_LOG_REQUESTS", "off"),
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
    ];
    let weir = Weir::start(&application, &settings);
    let mut other = Connection::open(weir.address());
    let mut ask_other = move || {
        other.send(&get("/other", &[("X-Forwarded-For", "203.0.113.9")]));
        other.response().expect(200);
    };
    for _ in 0..500 {
        ask_other();
    }
    let before = resident_kib(&weir);
    let ended = Arc::<AtomicBool>::default();
    let traffic = {
        let ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            while !ended.load(SeqCst) {
                ask_other();
            }
        })
    };
    // A window of nothing for each stream.
    let mut frames = Frames::open_with(weir.address(), &[(4, 0)]);
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        frames.send(&frame(HEADERS, WHOLE, stream, &head("/drops", &[])));
        assert_eq!(frames.reaction(stream), Reaction::Status(200));
    }
    wait_until("the pieces", || sent.load(SeqCst) >= PIECES);
    let grown = resident_kib(&weir).saturating_sub(before);
    ended.store(true, SeqCst);
    traffic.join().expect("the other traffic");
    println!("grown by {grown} KiB");
    assert!(grown < 4 * 1024, "{grown} KiB");
}
