//! Observe mode (CHECK-3): everything is decided, counted, logged and banned, and nobody is
//! refused.

use std::sync::{Mutex, mpsc};

use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, get, request};
use crate::support::wait_until;
use crate::support::weir::{Weir, state_dir};

/// CHECK-3: no request is refused, and each line has the action that enforce mode would have taken.
#[test]
fn nobody_is_refused_and_everything_is_told() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_MODE", "observe"),
            ("WAF_RATE_LIMIT_PER_HOUR", "2"),
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    weir.get("/one", "203.0.113.7").expect(200);
    weir.get("/two", "203.0.113.7").expect(200);
    weir.get("/broken", "203.0.113.7").expect(200);
    wait_until("the observed ban", || !weir.bans().is_empty());
    weir.get("/banned", "203.0.113.8").expect(200);
    weir.get("/denied", "198.51.100.1").expect(200);
    let large = weir.send(&request(
        "POST",
        "/large",
        &[("X-Forwarded-For", "192.0.2.1")],
        Some(&[b'x'; 100]),
    ));
    assert_eq!(large.status, 200);
    for (path, action, enforced) in [
        ("/one", "passed", true),
        ("/broken", "rate_limited", false),
        ("/banned", "banned", false),
        ("/denied", "denied_net", false),
        ("/large", "body_too_large", false),
    ] {
        let line = weir.line_of(path);
        assert_eq!(line["action"], action, "{path}");
        assert_eq!(line["enforced"], enforced, "{path}");
        assert_eq!(line["status"], 200, "{path}");
    }
    assert_eq!(weir.line_of("/broken")["limit_hit"], "hour");
    assert_eq!(application.requests().len(), 6);
    assert_eq!(application.request("/large").body.len(), 100);
    let ban = &weir.bans()[0];
    assert_eq!(ban["observed"], true);
    assert_eq!(ban["cause"], "rate_limit");
}

/// CHECK-3: a ban made in observe mode refuses nobody in enforce mode either.
#[test]
fn observed_bans_never_refuse() {
    let application = Application::ok();
    let state = state_dir();
    let mut observing = Weir::start_at(
        application.address(),
        &state,
        &[("WAF_MODE", "observe"), ("WAF_RATE_LIMIT_PER_HOUR", "1")],
    );
    observing.get("/a", "203.0.113.7");
    observing.get("/a", "203.0.113.7");
    wait_until("the observed ban", || !observing.bans().is_empty());
    observing.stop();
    let enforcing = Weir::start_at(application.address(), &state, &[]);
    assert_eq!(enforcing.bans()[0]["observed"], true);
    enforcing.get("/a", "203.0.113.8").expect(200);
}

/// CHECK-3: the bytes of a request that enforce mode would have refused are not counted.
#[test]
fn refused_bytes_are_not_counted() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_MODE", "observe"),
            ("WAF_MAX_BODY_SIZE", "100"),
            ("WAF_BYTES_LIMIT_PER_HOUR", "1000"),
        ],
    );
    let post = |size: usize, path: &str| {
        let answer = weir.send(&request(
            "POST",
            path,
            &[("X-Forwarded-For", "203.0.113.7")],
            Some(&vec![b'x'; size]),
        ));
        assert_eq!(answer.status, 200);
        weir.line_of(path)
    };
    post(5000, "/large");
    let shown = weir.admin("GET", "/_waf/clients/203.0.113.7", None).json();
    assert_eq!(shown["client"]["bytes"]["day"]["current"], 0, "{shown}");
    assert_eq!(shown["client"]["requests"]["day"]["current"], 1);
    assert_eq!(
        shown["client"]["passed"], 1,
        "CHECK-4: let through is passed"
    );
    post(50, "/small");
    let shown = weir.admin("GET", "/_waf/clients/203.0.113.7", None).json();
    assert_eq!(
        shown["client"]["bytes"]["day"]["current"],
        50 + 12,
        "{shown}"
    );
    assert_eq!(weir.bans(), Vec::<serde_json::Value>::new());
}

/// CHECK-3, METRIC: `mode` tells observed refusals from enforced ones.
#[test]
fn metrics_tell_the_mode() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_MODE", "observe"),
            ("WAF_DENY_NETS", "198.51.100.0/24"),
        ],
    );
    weir.get("/denied", "198.51.100.1");
    weir.line_of("/denied");
    let series = "waf_requests_total{action=\"denied_net\",mode=\"observe\"}";
    assert_eq!(weir.metric(series), Some(1.0));
    let body = json!({"netblock": "203.0.113.0/24", "duration": "1h", "reason": "r"});
    let made = weir.admin("POST", "/_waf/bans", Some(&body.to_string()));
    assert_eq!(made.status, 201);
    assert_eq!(
        weir.get("/a", "203.0.113.7").status,
        200,
        "observe refuses nobody"
    );
}

/// LOG: the line of a request that broke a limit has what was counted when it did, also where the
/// ban that followed had reset the counts before the request ended.
#[test]
fn a_line_counts_what_was_there() {
    let (answer, answered) = mpsc::channel::<()>();
    let answered = Mutex::new(answered);
    let application = Application::start(move |exchange| {
        exchange.read_body();
        if exchange.request.target == "/broken" {
            let _ = answered.lock().unwrap().recv();
        }
        exchange.answer(200, &[], b"ok");
        After::KeepAlive
    });
    let settings = [("WAF_MODE", "observe"), ("WAF_RATE_LIMIT_PER_HOUR", "2")];
    let weir = Weir::start(&application, &settings);
    weir.get("/one", "203.0.113.7").expect(200);
    weir.get("/two", "203.0.113.7").expect(200);
    let mut connection = Connection::open(weir.address());
    connection.send(&get("/broken", &[("X-Forwarded-For", "203.0.113.7")]));
    wait_until("the reset", || {
        let shown = weir.admin("GET", "/_waf/clients/203.0.113.7", None);
        shown.json()["client"]["requests"]["day"]["current"] == 0
    });
    answer.send(()).expect("the application waits");
    connection.response().expect(200);
    let line = weir.line_of("/broken");
    assert_eq!(line["action"], "rate_limited");
    assert_eq!(line["counts"]["day"], 3, "{line}");
    assert_eq!(line["counts"]["day_bytes"], 4, "{line}");
}
