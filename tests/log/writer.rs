//! The writer: a stop, a stalled reader, fewer lines, rotation (LOG-1, LOG-2).

use super::{Pipe, misbehaving};
use crate::support::application::Application;
use crate::support::raw_client::{Connection, get};
use crate::support::transport;
use crate::support::weir::{Weir, state_dir};
use crate::support::{wait_for, wait_until};

/// LOG-3: a request that runs when the service is told to stop has its one line, whether it ends
/// well or is cut.
#[test]
fn a_stop_loses_no_line() {
    let application = misbehaving();
    let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_TIMEOUT", "300ms")]);
    let mut held = Connection::open(weir.address());
    held.send(&get("/slow/held", &[]));
    wait_until("it at the application", || {
        let requests = application.requests();
        requests.iter().any(|seen| seen.target == "/slow/held")
    });
    for number in 0..50 {
        weir.get(&format!("/fine/{number}"), "203.0.113.7");
    }
    weir.stop();
    let log = weir.request_log();
    assert_eq!(log.len(), 51);
    assert_eq!(
        log.iter()
            .filter(|line| line["path"] == "/slow/held")
            .count(),
        1
    );
}

/// LOG-4: a reader that stalls blocks no request; what finds no room is counted in the metric and,
/// once it reads again, in the log: lines and losses together are all requests.
#[test]
fn a_stalled_reader_blocks_no_request() {
    /// More than the writer's queue of 1,024 batches of 64 lines, its buffer and a pipe hold; the
    /// lines of refused clients have half of it (LOG-6).
    const REQUESTS: u64 = 72_000;
    const PIPELINED: u64 = 500;
    let application = Application::ok();
    let pipe = Pipe::new();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_LOG_FILE", &pipe.file()),
            ("WAF_DENY_NETS", "198.51.100.7"),
            ("WAF_LOG_REFUSED_RATE", "off"),
            ("WAF_WORKERS", "1"),
        ],
    );
    let many = get("/a", &[("X-Forwarded-For", "198.51.100.7")])
        .repeat(usize::try_from(PIPELINED).expect("it fits"));
    let mut connection = Connection::open(weir.address());
    for _ in 0..REQUESTS / PIPELINED {
        connection.send(&many);
        for _ in 0..PIPELINED {
            // Each answer comes within the client's patience: nobody waits for the log.
            connection.response().expect(429);
        }
    }
    let lost = weir.metric("waf_log_lines_dropped_total").expect("it");
    assert!(lost > 0.0);
    let lines = pipe.read();
    let (mut logged, mut lost_logged) = (0, 0);
    // The request for the metrics is one more.
    while logged + lost_logged < REQUESTS + 1 {
        let line = lines.next();
        match line["event"].as_str() {
            Some("request") => logged += 1,
            Some("log_lines_dropped") => lost_logged += line["count"].as_u64().expect("a count"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(logged + lost_logged, REQUESTS + 1);
    assert_eq!(
        weir.metric("waf_log_lines_dropped_total"),
        Some(lost_logged as f64)
    );
}

/// LOG: `WAF_LOG_REQUESTS` bounds what is written.
#[test]
fn lines_can_be_fewer() {
    for (mode, expected) in [("refused", &["/denied"][..]), ("off", &[])] {
        let application = Application::ok();
        let mut weir = Weir::start(
            &application,
            &[
                ("WAF_LOG_REQUESTS", mode),
                ("WAF_DENY_NETS", "198.51.100.0/24"),
            ],
        );
        weir.get("/fine", "203.0.113.7");
        weir.get("/denied", "198.51.100.7");
        weir.stop();
        let log = weir.request_log();
        let paths: Vec<_> = log
            .iter()
            .filter_map(|line| line["path"].as_str())
            .collect();
        assert_eq!(paths, expected, "{mode}");
    }
}

/// LOG-4: a log file is opened again on SIGUSR1, so that it can be rotated.
#[test]
fn a_log_file_can_be_rotated() {
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("requests.log");
    let rotated = directory.path().join("requests.log.1");
    let weir = Weir::start(
        &application,
        &[("WAF_LOG_FILE", path.to_str().expect("a path"))],
    );
    let has = |path: &std::path::Path, what: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.contains(what).then_some(())
    };
    weir.get("/before", "203.0.113.7");
    wait_for("the first line", || has(&path, "/before"));
    std::fs::rename(&path, &rotated).expect("renames");
    weir.signal("USR1");
    wait_until("the new file", || path.exists());
    weir.get("/after", "203.0.113.7");
    wait_for("the second line", || has(&path, "/after"));
    assert!(has(&rotated, "/after").is_none());
    assert!(weir.request_log().is_empty(), "nothing on standard output");
}

/// TELL-2: `WAF_LOG_FORMAT=combined` writes lines that log analysers read.
#[test]
fn the_log_can_be_in_the_combined_format() {
    let application = Application::ok();
    let state = state_dir();
    let file = state.path().join("access.log");
    let weir = Weir::start_at(
        application.address(),
        &state,
        &[
            ("WAF_LOG_FORMAT", "combined"),
            ("WAF_LOG_FILE", file.to_str().expect("a path")),
        ],
    );
    let fields = [
        ("X-Forwarded-For", "203.0.113.7"),
        ("User-Agent", "tester \"1\""),
    ];
    weir.send(&get("/a?b=c", &fields)).expect(200);
    let line = wait_for("the line", || {
        let text = std::fs::read_to_string(&file).ok()?;
        text.ends_with('\n').then_some(text)
    });
    let (before, rest) = line.split_once(" [").expect("a time");
    let (_, rest) = rest.split_once("] ").expect("its end");
    assert_eq!(before, "203.0.113.7 - -");
    let protocol = transport::protocol();
    assert_eq!(
        rest,
        format!("\"GET /a?b=c {protocol}\" 200 12 \"-\" \"tester \\x221\\x22\"\n")
    );
}
