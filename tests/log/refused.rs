//! Lines of clients who are refused without end: so many a second of a netblock, short ones, and
//! never at the cost of the lines of others (LOG-6).

use serde_json::Value;

use super::Pipe;
use crate::support::application::Application;
use crate::support::raw_client::{Connection, get};
use crate::support::weir::Weir;

const DENIED: (&str, &str) = ("WAF_DENY_NETS", "198.51.100.0/24");
const ONE_WORKER: (&str, &str) = ("WAF_WORKERS", "1");

/// Sends so many requests of a client at once, and reads the answers.
fn flood(weir: &Weir, client: &str, target: &str, count: usize, status: u16) {
    const AT_ONCE: usize = 500;
    let mut connection = Connection::open(weir.address());
    let one = get(target, &[("X-Forwarded-For", client)]);
    for begun in (0..count).step_by(AT_ONCE) {
        let now = AT_ONCE.min(count - begun);
        connection.send(&one.repeat(now));
        for _ in 0..now {
            connection.response().expect(status);
        }
    }
}

/// The requests of one path that have a line of their own.
fn of_path(log: &[Value], path: &str) -> usize {
    log.iter().filter(|line| line["path"] == path).count()
}

/// LOG-6: beyond the rate, requests of a refused netblock are counted in lines of their own; lines
/// and counts together are all of them, metrics stay exact, and clients who are not refused keep
/// every line.
#[test]
fn requests_beyond_the_rate_are_counted() {
    const REFUSED: usize = 2_000;
    let application = Application::ok();
    let rate = ("WAF_LOG_REFUSED_RATE", "1");
    let mut weir = Weir::start(&application, &[DENIED, rate, ("WAF_INSTANCE_NAME", "here")]);
    flood(&weir, "198.51.100.7", "/denied", REFUSED, 429);
    flood(&weir, "203.0.113.7", "/fine", 300, 200);
    let refused = "waf_requests_total{action=\"denied_net\",mode=\"enforce\"}";
    assert_eq!(weir.metric(refused), Some(REFUSED as f64));
    let left_out = weir.metric("waf_log_lines_left_out_total").expect("it");
    weir.stop();
    let log = weir.log_lines();
    assert_eq!(of_path(&log, "/fine"), 300);
    let counted: Vec<_> = log
        .iter()
        .filter(|line| line["event"] == "requests_left_out")
        .collect();
    assert!(!counted.is_empty());
    let schema = serde_json::from_str(include_str!(
        "../../schema/proxy/requests-left-out.schema.json"
    ));
    let schema = jsonschema::validator_for(&schema.expect("JSON")).expect("a schema");
    let mut count = 0;
    for line in counted {
        assert!(schema.is_valid(line), "{line}");
        assert_eq!(line["netblock"], "198.51.100.0/24");
        assert_eq!(
            (&line["action"], &line["instance"]),
            (&"denied_net".into(), &"here".into())
        );
        count += line["count"].as_u64().expect("a count");
    }
    assert_eq!(count as f64, left_out);
    let logged = of_path(&log, "/denied");
    assert_eq!(count as usize + logged, REFUSED);
}

/// LOG-6: `off` gives every refused request its line, and so does observe mode, which refuses none.
#[test]
fn without_a_rate_every_request_has_its_line() {
    for setting in [("WAF_LOG_REFUSED_RATE", "off"), ("WAF_MODE", "observe")] {
        let application = Application::ok();
        let rate = match setting.0 {
            "WAF_MODE" => ("WAF_LOG_REFUSED_RATE", "1"),
            _ => ONE_WORKER,
        };
        let mut weir = Weir::start(&application, &[DENIED, setting, rate]);
        let status = if setting.0 == "WAF_MODE" { 200 } else { 429 };
        flood(&weir, "198.51.100.7", "/denied", 700, status);
        weir.stop();
        let log = weir.log_lines();
        assert_eq!(of_path(&log, "/denied"), 700, "{setting:?}");
        assert!(log.iter().all(|line| line["event"] == "request"));
    }
}

/// LOG-6: of a refused client's texts the log has 1 KiB each; of others' 4 KiB.
#[test]
fn texts_of_the_refused_are_short() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[DENIED]);
    let target = format!("/a?{}", "x".repeat(3_000));
    flood(&weir, "198.51.100.7", &target, 1, 429);
    flood(&weir, "203.0.113.7", &target, 1, 200);
    weir.stop();
    let log = weir.log_lines();
    let of = |action: &str| {
        let line = log.iter().find(|line| line["action"] == action);
        let line = line.expect("a line");
        let query = line["query"].as_str().expect("a query").len();
        (query, line["truncated"] == true)
    };
    assert_eq!(of("denied_net"), (1024, true));
    assert_eq!(of("passed"), (3_000, false));
}

/// LOG-6: with a log that nobody reads, a refused client fills half of the queue and no more: the
/// lines of another client all find room.
#[test]
fn a_refused_client_leaves_others_their_lines() {
    /// More than half of the queue of 1,024 batches of 64 lines, the buffer and a pipe hold.
    const REFUSED: usize = 45_000;
    const OTHERS: usize = 900;
    let application = Application::ok();
    let (pipe, rate) = (Pipe::new(), ("WAF_LOG_REFUSED_RATE", "off"));
    let log = pipe.file();
    let file = ("WAF_LOG_FILE", log.as_str());
    let weir = Weir::start(&application, &[DENIED, ONE_WORKER, rate, file]);
    flood(&weir, "198.51.100.7", "/denied", REFUSED, 429);
    let lost = weir.metric("waf_log_lines_dropped_total").expect("it");
    assert!(lost > 0.0);
    flood(&weir, "203.0.113.7", "/fine", OTHERS, 200);
    assert_eq!(weir.metric("waf_log_lines_dropped_total"), Some(lost));
    let lines = pipe.read();
    let mut fine = 0;
    while fine < OTHERS {
        fine += usize::from(lines.next()["path"] == "/fine");
    }
}
