//! Bodies that are too large to be held: they arrive as they were sent, and an answer of known
//! length goes past the process, not through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, get, request};
use crate::support::transport;
use crate::support::weir::Weir;
use crate::support::{wait_for, wait_until};

const ONE_WORKER: (&str, &str) = ("WAF_WORKERS", "1");

/// Content in which every place differs from its neighbours near and far.
fn content(size: usize, seed: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u8::try_from(state >> 56).expect("a byte")
    };
    (0..size).map(|_| next()).collect()
}

/// Answers `/SIZE/SEED` with that content, and checks that `/upload/SIZE/SEED` was sent it.
fn application() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let target = exchange.request.target.clone();
        let numbers: Vec<usize> = target
            .split('/')
            .filter_map(|part| part.parse().ok())
            .collect();
        let content = content(numbers[0], numbers[1]);
        if target.starts_with("/upload") {
            assert!(
                exchange.request.body == content,
                "{target} arrived otherwise"
            );
            exchange.answer(200, &[], b"as it was sent");
        } else if target.starts_with("/chunked") {
            exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for part in content.chunks(50_000) {
                exchange.send(format!("{:x}\r\n", part.len()).as_bytes());
                exchange.send(part);
                exchange.send(b"\r\n");
            }
            exchange.send(b"0\r\n\r\n");
        } else {
            exchange.answer(200, &[], &content);
        }
        After::KeepAlive
    })
}

const SIZES: [usize; 12] = [
    1, 16_000, 16_384, 32_767, 40_000, 49_153, 65_536, 65_537, 100_000, 131_072, 300_007, 2_000_003,
];

/// CONN-1: whatever its length, an answer is what the application sent, also the next on the same
/// connection.
#[test]
fn a_large_answer_arrives_as_it_was_sent() {
    let application = application();
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let mut connections: Vec<_> = (0..4).map(|_| Connection::open(weir.address())).collect();
    for (seed, size) in SIZES.into_iter().chain(SIZES.into_iter().rev()).enumerate() {
        let form = ["", "/chunked"][seed / 3 % 2];
        let target = |number: usize| format!("{form}/{size}/{}", seed + number);
        for (number, connection) in connections.iter_mut().enumerate() {
            connection.send(&get(&target(number), &[]));
        }
        for (number, connection) in connections.iter_mut().enumerate() {
            let answer = connection.response();
            let is_right = answer.body == content(size, seed + number);
            assert!(is_right, "{} arrived otherwise", target(number));
        }
    }
}

/// CONN-5: a client that reads in small steps has the same answer.
#[test]
fn a_slow_reader_gets_the_answer_as_it_was_sent() {
    const SIZE: usize = 8_000_000;
    let application = application();
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let mut reader = Connection::open_with_small_buffer(weir.address());
    reader.send(&get(&format!("/{SIZE}/7"), &[]));
    assert_eq!(reader.head().expect("a head").status, 200);
    let content = content(SIZE, 7);
    let mut at = 0;
    for step in [1, 70_000, 3, 1_000_000, 65_536, 2_000_000, SIZE] {
        let length = step.min(SIZE - at);
        let read = reader.bytes(length).expect("more of it");
        assert!(read == content[at..at + length], "other bytes behind {at}");
        at += length;
        std::thread::sleep(Duration::from_millis(20));
    }
    reader.send(&get("/3/1", &[]));
    assert_eq!(reader.response().body.len(), 3);
}

/// Ends of pipes that the process has open.
fn pipes(weir: &Weir) -> usize {
    let files = std::fs::read_dir(format!("/proc/{}/fd", weir.pid())).expect("its files");
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("pipe:"))
        .count()
}

/// CONN-1: what of a long answer waits for its client is in a pipe of the system, not in the
/// process; pipes are closed when they are not used.
#[test]
fn an_answer_of_known_length_goes_past_the_process() {
    if transport::is_left_out_over_tls("what is encrypted is in the process") {
        return;
    }
    let application = application();
    let weir = Weir::start(&application, &[ONE_WORKER]);
    weir.send(&get("/1/1", &[]));
    let before = pipes(&weir);
    let mut readers: Vec<_> = (0..3)
        .map(|_| Connection::open_with_small_buffer(weir.address()))
        .collect();
    for reader in &mut readers {
        reader.send(&get("/8000000/1", &[]));
    }
    wait_until("a pipe for each answer", || pipes(&weir) == before + 2 * 3);
    for reader in readers {
        reader.reset();
    }
    wait_until("no pipe", || pipes(&weir) == before);
}

/// An application that breaks off in the middle of a long answer: the client is not told that it
/// has all of it, and what it has was sent.
#[test]
fn a_long_answer_that_breaks_off_is_cut() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n");
        exchange.send(&content(1_234_567, 1));
        After::Close
    });
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let mut connection = Connection::open(weir.address());
    connection.send(&get("/cut", &[]));
    assert_eq!(connection.head().expect("a head").status, 200);
    let came = connection.rest(Duration::from_secs(10));
    assert!(came == content(1_234_567, 1)[..came.len()] && came.len() > 1_000_000);
    let line = weir.line_of("/cut");
    assert_eq!(line["action"], "upstream_error", "{line}");
    assert_eq!(line["bytes"]["response"], came.len());
}

/// CONN-1: whatever its length, an upload is what the client sent, also the next on the same
/// connection, in one piece or chunked.
#[test]
fn a_large_upload_arrives_as_it_was_sent() {
    let application = application();
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let mut connection = Connection::open(weir.address());
    for (seed, size) in SIZES.into_iter().chain(SIZES.into_iter().rev()).enumerate() {
        let target = format!("/upload/{size}/{seed}");
        let body = content(size, seed);
        if seed / 3 % 2 == 0 {
            connection.send(&request("POST", &target, &[], Some(&body)));
        } else {
            let head =
                format!("POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            connection.send(head.as_bytes());
            for part in body.chunks(50_000) {
                connection.send(format!("{:x}\r\n", part.len()).as_bytes());
                connection.send(part);
                connection.send(b"\r\n");
            }
            connection.send(b"0\r\n\r\n");
        }
        assert_eq!(connection.response().expect(200).text(), "as it was sent");
    }
    wait_for("all of them", || {
        (application.requests().len() == 2 * SIZES.len()).then_some(())
    });
}

/// Answers with the length of the body, once all of it came.
fn counts() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let length = exchange.request.body.len().to_string();
        exchange.answer(200, &[], length.as_bytes());
        After::KeepAlive
    })
}

/// FORWARD-4: a large upload takes its own bytes from the connection and no more: what follows it
/// at once, in the same packet, is the next request.
#[test]
fn what_follows_a_large_upload_is_the_next_request() {
    let application = counts();
    let weir = Weir::start(&application, &[ONE_WORKER]);
    for size in SIZES {
        let mut connection = Connection::open(weir.address());
        let upload = request("POST", "/a", &[], Some(&content(size, 1)));
        let kept = [("Connection", "keep-alive")];
        let kept = request("POST", "/b", &kept, Some(&content(size + 1, 2)));
        let all = [upload, kept, get("/c", &[]), get("/d", &[])].concat();
        // The pieces end at other places than the requests do.
        for piece in all.chunks(77_777) {
            connection.send(piece);
        }
        for length in [size, size + 1, 0, 0] {
            let answer = connection.response().expect(200);
            assert_eq!(answer.text(), length.to_string(), "{size}");
        }
    }
}

/// RFC 9112 §9.6: a client that asks for it has its connection closed behind a large upload too.
#[test]
fn a_connection_ends_behind_a_large_upload_where_it_is_asked_for() {
    let application = counts();
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let mut connection = Connection::open(weir.address());
    let close = [("Connection", "close")];
    connection.send(&request("POST", "/a", &close, Some(&content(200_000, 1))));
    assert_eq!(connection.response().expect(200).text(), "200000");
    assert!(connection.ends());
}

/// LOG: a client that goes away while the application works on its large upload is not waited for.
#[test]
fn who_goes_away_behind_a_large_upload_is_noticed() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let mut connection = Connection::open(weir.address());
    connection.send(&request("POST", "/gone", &[], Some(&content(200_000, 1))));
    wait_until("the upload", || {
        let requests = application.requests();
        requests.iter().any(|request| request.body.len() == 200_000)
    });
    connection.reset();
    let line = weir.line_of("/gone");
    assert_eq!(line["action"], "client_aborted", "{line}");
    assert_eq!(line["bytes"]["request"], 200_000);
}

/// A large upload that its client breaks off never looks whole, and an application that answers
/// before the end of one is heard.
#[test]
fn a_large_upload_ends_early() {
    let application = Application::start(|exchange| {
        if exchange.request.target == "/early" {
            exchange.answer(200, &[], b"enough");
            return After::Close;
        }
        assert!(!exchange.read_body(), "a part was taken for the whole");
        After::Close
    });
    let weir = Weir::start(&application, &[ONE_WORKER]);
    for (number, sent) in [40_000, 100_000, 199_999].into_iter().enumerate() {
        let mut connection = Connection::open(weir.address());
        let whole = request("POST", "/broken", &[], Some(&content(200_000, 1)));
        connection.send(&whole[..whole.len() - 200_000 + sent]);
        wait_until("its head upstream", || {
            application.requests().len() == number + 1
        });
        connection.finish_sending();
        connection.rest(Duration::from_secs(10));
    }
    for line in weir.lines_of("/broken", 3) {
        assert_eq!(line["action"], "client_aborted", "{line}");
    }
    let mut connection = Connection::open(weir.address());
    let whole = request("POST", "/early", &[], Some(&content(8_000_000, 1)));
    connection.send_within(&whole, Duration::from_secs(1));
    assert_eq!(connection.response().expect(200).text(), "enough");
}

/// CONN-1: what of a long upload waits for the application is in a pipe of the system.
#[test]
fn an_upload_of_known_length_goes_past_the_process() {
    if transport::is_left_out_over_tls("what is encrypted is in the process") {
        return;
    }
    let gone = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&gone);
    let application = Application::start(move |exchange| {
        // It reads nothing until the client has gone.
        wait_until("the client's end", || told.load(Ordering::SeqCst));
        exchange.wait_for_close();
        After::Close
    });
    let weir = Weir::start(&application, &[ONE_WORKER]);
    let before = pipes(&weir);
    let mut connection = Connection::open(weir.address());
    let whole = request("POST", "/stall", &[], Some(&content(20_000_000, 1)));
    connection.send_within(&whole, Duration::from_secs(1));
    wait_until("a pipe", || pipes(&weir) == before + 2);
    connection.reset();
    gone.store(true, Ordering::SeqCst);
    wait_until("no pipe", || pipes(&weir) == before);
}
