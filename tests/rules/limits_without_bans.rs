//! Limits that answer 429 and ban nobody (RULE-5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::waiting;
use crate::support::application::{After, Application};
use crate::support::clocks::Clocks;
use crate::support::raw_client::{Connection, get};
use crate::support::weir::Weir;
use crate::support::{wait_for, wait_until};

const REFUSE: (&str, &str) = ("WAF_ON_LIMIT", "refuse");

/// RULE-5: over a limit of the six a client is answered 429 with the time to wait, nobody is
/// banned, the neighbours are served, and what was refused is not counted.
#[test]
fn a_limit_can_refuse_without_a_ban() {
    let application = Application::ok();
    let settings = [
        REFUSE,
        ("WAF_RATE_LIMIT_PER_HOUR", "3"),
        ("WAF_BAN_RESPONSE", "403"),
    ];
    let weir = Weir::start(&application, &settings);
    for _ in 0..3 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    for number in 0..3 {
        let answer = weir
            .get(&format!("/over-{number}"), "203.0.113.7")
            .expect(429);
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=7200).contains(&seconds), "{seconds}");
        assert!(answer.header("ratelimit").is_some(), "{answer:?}");
        let line = weir.line_of(&format!("/over-{number}"));
        assert_eq!(line["action"], "rate_limited");
        assert_eq!(line["limit_hit"], "hour");
        assert_eq!(
            line["counts"]["hour"], 3,
            "a refused request is not counted"
        );
    }
    weir.get("/neighbour", "203.0.113.8").expect(200);
    assert_eq!(weir.bans(), Vec::<Value>::new());
    assert_eq!(
        weir.metric("waf_limit_hits_total{kind=\"hour\"}"),
        Some(3.0)
    );
    assert_eq!(application.requests().len(), 4);
}

/// LIMIT-8: an answer of a limit says that nothing remains of it, also where the bucket before
/// leaves less than a request.
#[test]
fn a_broken_limit_has_nothing_left() {
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let mut clocks = Clocks::new(directory.path());
    let (name, file) = clocks.setting();
    let settings = [
        REFUSE,
        ("WAF_RATE_LIMIT_PER_HOUR", "10"),
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
        (name.as_str(), file.as_str()),
    ];
    let weir = Weir::start(&application, &settings);
    for _ in 0..10 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    clocks.move_on(60 * 60 * 1000);
    let mut answers = (0..11).map(|_| weir.get("/b", "203.0.113.7"));
    let refused = answers.find(|answer| answer.status == 429);
    let refused = refused.expect("the eleventh request is over");
    let left = refused.header("ratelimit").expect("RateLimit");
    assert!(left.contains(r#""hour";r=0;"#), "{left}");
}

/// RULE-5: over a byte limit the next requests are answered 429, until the bytes fit.
#[test]
fn a_byte_limit_can_refuse_without_a_ban() {
    let application = Application::echo();
    let weir = Weir::start(&application, &[REFUSE, ("WAF_BYTES_LIMIT_PER_HOUR", "100")]);
    let post = crate::support::raw_client::request(
        "POST",
        "/large",
        &[("X-Forwarded-For", "203.0.113.7")],
        Some(&[b'x'; 80]),
    );
    weir.send(&post).expect(200);
    let charged = weir.line_of("/large");
    assert_eq!(charged["counts"]["hour_bytes"], 160);
    assert!(
        charged.get("limit_hit").is_none(),
        "nothing is cut short: {charged}"
    );
    let answer = weir.get("/after", "203.0.113.7").expect(429);
    assert!(answer.header("retry-after").is_some());
    assert_eq!(weir.line_of("/after")["limit_hit"], "hour_bytes");
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

/// RULE-5: a bucket of a burst and a rate: what comes at once beyond the burst is answered 429 and
/// told when the next fits. In observe mode everything passes and the same is logged.
#[test]
fn a_bucket_bounds_what_comes_at_once() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let settings = [
            ("WAF_MODE", mode),
            ("WAF_RATE_LIMIT_PER_SECOND", "1"),
            ("WAF_RATE_LIMIT_BURST", "3"),
        ];
        let weir = Weir::start(&application, &settings);
        let begun = Instant::now();
        let mut connection = Connection::open(weir.address());
        for _ in 0..8 {
            connection.send(&get("/burst", &[("X-Forwarded-For", "203.0.113.7")]));
        }
        let answers: Vec<_> = (0..8).map(|_| connection.response()).collect();
        let lines = weir.lines_of("/burst", 8);
        let refused = lines
            .iter()
            .filter(|line| line["limit_hit"] == "second")
            .count();
        // As many as the burst, and one for each second that went by.
        let most = 3 + begun.elapsed().as_secs() as usize + 1;
        assert!((3..=most).contains(&(8 - refused)), "{refused} refused");
        assert!(refused > 0 || most >= 8, "nobody was refused");
        let told = answers.iter().filter(|answer| answer.status == 429);
        if mode == "enforce" {
            assert_eq!(told.clone().count(), refused);
            assert!(
                told.into_iter()
                    .all(|answer| answer.header("retry-after") == Some("1"))
            );
        } else {
            assert_eq!(told.count(), 0);
        }
        for line in lines.iter().filter(|line| line["limit_hit"] == "second") {
            assert_eq!(line["action"], "rate_limited");
            assert_eq!(line["enforced"], mode == "enforce");
        }
        assert_eq!(weir.bans(), Vec::<Value>::new());
    }
}

/// RULE-5: requests under way at once are bounded; one that has ended makes room, and so does one
/// whose client went away.
#[test]
fn requests_under_way_are_bounded() {
    let (application, tell) = waiting();
    let weir = Weir::start(&application, &[("WAF_MAX_REQUESTS_PER_CLIENT", "1")]);
    let client = [("X-Forwarded-For", "203.0.113.7")];
    let mut slow = Connection::open(weir.address());
    slow.send(&get("/slow", &client));
    wait_until("the slow request", || !application.requests().is_empty());
    let answer = weir.get("/second", "203.0.113.7").expect(429);
    assert_eq!(answer.header("retry-after"), Some("1"));
    weir.get("/other", "203.0.113.8").expect(200);
    let line = weir.line_of("/second");
    assert_eq!(
        (&line["action"], &line["limit_hit"]),
        (&"rate_limited".into(), &"concurrent".into())
    );
    tell.send(()).unwrap();
    slow.response().expect(200);
    wait_until("room", || weir.get("/third", "203.0.113.7").status == 200);
    slow.send(&get("/slow", &client));
    wait_until("the slow request", || application.requests().len() >= 4);
    drop(slow);
    wait_until("room again", || {
        weir.get("/fourth", "203.0.113.7").status == 200
    });
    drop(tell);
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

/// RULE-5, CHECK-3: in observe mode what enforce mode would have refused is not under way for the
/// next: the counts are those that enforce mode would have.
#[test]
fn observe_mode_counts_as_enforce_mode_would() {
    let (application, tell) = waiting();
    let settings = [
        ("WAF_MODE", "observe"),
        REFUSE,
        ("WAF_MAX_REQUESTS_PER_CLIENT", "2"),
        ("WAF_RATE_LIMIT_PER_HOUR", "3"),
    ];
    let weir = Weir::start(&application, &settings);
    let mut connections = Vec::new();
    for number in 1..=4 {
        let mut connection = Connection::open(weir.address());
        connection.send(&get("/slow", &[("X-Forwarded-For", "203.0.113.7")]));
        wait_until("the request", || application.requests().len() == number);
        connections.push(connection);
    }
    for _ in 0..4 {
        tell.send(()).unwrap();
    }
    for mut connection in connections {
        connection.response().expect(200);
    }
    let lines = weir.lines_of("/slow", 4);
    let hits = |hit: &str| lines.iter().filter(|line| line["limit_hit"] == hit).count();
    assert_eq!((hits("concurrent"), hits("hour")), (2, 0), "{lines:#?}");
    for path in ["/three", "/four"] {
        weir.get(path, "203.0.113.7").expect(200);
    }
    assert!(weir.line_of("/three").get("limit_hit").is_none());
    let line = weir.line_of("/four");
    assert_eq!(
        (&line["limit_hit"], &line["enforced"]),
        (&"hour".into(), &false.into())
    );
    assert_eq!(line["counts"]["hour"], 3);
}

/// RULE-5: a WebSocket is under way for as long as it lives.
#[test]
fn a_websocket_is_under_way() {
    let closing = Arc::new(AtomicBool::new(false));
    let close = Arc::clone(&closing);
    let application = Application::start(move |exchange| {
        if exchange.request.header("upgrade") != Some("websocket") {
            exchange.read_body();
            exchange.answer(200, &[], b"");
            return After::KeepAlive;
        }
        exchange.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\n",
        );
        wait_until("the end", || close.load(Ordering::SeqCst));
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_MAX_REQUESTS_PER_CLIENT", "1")]);
    let mut websocket = Connection::open(weir.address());
    websocket.send(&get(
        "/socket",
        &[
            ("X-Forwarded-For", "203.0.113.7"),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "13"),
        ],
    ));
    assert_eq!(websocket.response().status, 101);
    weir.get("/meanwhile", "203.0.113.7").expect(429);
    closing.store(true, Ordering::SeqCst);
    assert!(websocket.ends());
    wait_for("room", || {
        (weir.get("/after", "203.0.113.7").status == 200).then_some(())
    });
    assert_eq!(weir.line_of("/meanwhile")["limit_hit"], "concurrent");
}

/// RULE-5: a burst without a rate does nothing, and the start says so.
#[test]
fn a_burst_without_a_rate_is_told() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_BURST", "5")]);
    weir.wait_for_process_log(&["WAF_RATE_LIMIT_BURST does nothing"]);
}
