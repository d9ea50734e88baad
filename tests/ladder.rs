//! The order of the checks (CHECK) and the paths that are the service's own, however they are
//! written.

use crate::support::application::Application;
use crate::support::raw_client::{Connection, exchange, get, request};
use crate::support::weir::Weir;

/// CHECK-7: the health check passes no check, is counted nowhere and leaves no log line.
#[test]
fn the_health_check_stands_outside_the_ladder() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_DENY_NETS", "203.0.113.0/24"),
            ("WAF_RATE_LIMIT_PER_MINUTE", "1"),
        ],
    );
    for client in [
        "203.0.113.7",
        "198.51.100.1",
        "198.51.100.1",
        "198.51.100.1",
    ] {
        let answer = weir.get("/_waf/health", client);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["status"], "pass");
    }
    let head = exchange(weir.address(), &request("HEAD", "/_waf/health", &[], None));
    assert_eq!((head.status, head.body.len()), (200, 0));
    weir.get("/_waf/health?probe=1", "198.51.100.1").expect(200);
    weir.get("/marker", "198.51.100.1").expect(200);
    weir.line_of("/marker");
    assert_eq!(weir.request_log().len(), 1, "{:?}", weir.request_log());
    assert!(
        application
            .requests()
            .iter()
            .all(|seen| seen.target == "/marker")
    );
}

/// CHECK-1: with another method it is no health check: it goes through the ladder and is answered
/// 405.
#[test]
fn another_method_on_the_health_path_goes_through_the_ladder() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "203.0.113.0/24")]);
    let post = |client: &str| {
        weir.send(&request(
            "POST",
            "/_waf/health",
            &[("X-Forwarded-For", client)],
            Some(b""),
        ))
    };
    let answer = post("198.51.100.1");
    assert_eq!(answer.status, 405);
    let allow = answer.header("allow").expect("Allow");
    assert!(allow.contains("GET") && allow.contains("HEAD"), "{allow}");
    assert_eq!(post("203.0.113.7").status, 429);
    let lines = weir.lines_of("/_waf/health", 2);
    assert!(lines.iter().any(|line| line["action"] == "denied_net"));
}

/// CHECK, steps 3 and 4: the allow list goes before the deny list, the limits and the body bound.
#[test]
fn the_allow_list_goes_first() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_ALLOW_NETS", "203.0.113.7, 2001:db8:1::/48"),
            ("WAF_DENY_NETS", "203.0.113.0/24, 2001:db8::/32"),
            ("WAF_RATE_LIMIT_PER_MINUTE", "2"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    for _ in 0..5 {
        weir.get("/allowed", "203.0.113.7").expect(200);
    }
    weir.get("/v6", "2001:db8:1:2::3").expect(200);
    let upload = weir.send(&request(
        "POST",
        "/upload",
        &[("X-Forwarded-For", "203.0.113.7")],
        Some(&[b'x'; 100]),
    ));
    assert_eq!(upload.status, 200);
    weir.get("/denied", "203.0.113.8").expect(429);
    weir.get("/denied6", "2001:db8:2::3").expect(429);
    assert_eq!(weir.lines_of("/allowed", 5)[4]["client_group"], "allow");
    let denied = weir.line_of("/denied");
    assert_eq!(denied["client_group"], "deny");
    assert_eq!(denied["action"], "denied_net");
    assert!(denied.get("limit_hit").is_none(), "{denied}");
    weir.get("/other", "198.51.100.1");
    assert_eq!(weir.line_of("/other")["client_group"], "default");
}

/// CHECK, step 6: a request refused by the ledger is not counted toward rate limits.
#[test]
fn banned_requests_are_not_counted() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_PER_MINUTE", "1000")]);
    weir.get("/first", "203.0.113.7");
    let ban = weir.ban("client", "203.0.113.7", "1h");
    assert_eq!(ban["netblock"], "203.0.113.0/24");
    for _ in 0..5 {
        weir.get("/banned", "203.0.113.7").expect(429);
    }
    assert_eq!(weir.lines_of("/banned", 5)[0]["action"], "banned");
    let client = weir.admin("GET", "/_waf/clients/203.0.113.7", None).json();
    assert_eq!(
        client["client"]["requests"]["day"]["current"], 1,
        "{client}"
    );
    assert_eq!(client["client"]["passed"], 1);
    assert_eq!(client["client"]["refused"], 5);
}

/// CHECK-5: exempt prefixes match whole segments of the resolved path.
#[test]
fn exempt_paths_skip_the_limits() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_MINUTE", "1"),
            ("WAF_EXEMPT_PATHS", "/static, /img/"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    for path in [
        "/static",
        "/static/a",
        "/static?x=/",
        "/%73tatic/b",
        "/a/../static/c",
        "/./static/d",
        "/img/e",
    ] {
        for _ in 0..2 {
            assert_eq!(weir.get(path, "203.0.113.7").status, 200, "{path}");
        }
    }
    let big = request(
        "POST",
        "/static/up",
        &[("X-Forwarded-For", "203.0.113.7")],
        Some(&[b'x'; 100]),
    );
    assert_eq!(weir.send(&big).status, 200, "exempt from step 11 too");
    for (number, path) in [
        "/staticx",
        "/static/../b",
        "/",
        "/x/static",
        "/static%2f../b",
    ]
    .into_iter()
    .enumerate()
    {
        let client = format!("198.51.{number}.1");
        assert_eq!(weir.get(path, &client).status, 200, "{path}");
        assert_eq!(weir.get(path, &client).status, 429, "{path} is exempt");
    }
}

/// CHECK, steps 10 to 12: the limit goes before the body bound, and that before the service's own
/// answers.
#[test]
fn limit_then_body_then_own_paths() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_MINUTE", "1"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    let post = |target: &str, client: &str| {
        weir.send(&request(
            "POST",
            target,
            &[("X-Forwarded-For", client)],
            Some(&[b'x'; 100]),
        ))
        .status
    };
    assert_eq!(post("/_waf/bans", "203.0.113.7"), 413);
    assert_eq!(post("/_waf/bans", "203.0.113.7"), 429);
    let lines = weir.lines_of("/_waf/bans", 2);
    assert_eq!(lines[0]["action"], "body_too_large");
    assert_eq!(lines[1]["action"], "rate_limited");
}

/// CHECK-1: a path under `/_waf/` never reaches the application, however it is written.
#[test]
fn no_spelling_of_our_paths_is_forwarded() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for target in SPELLINGS {
        let bytes = get(target, &[("X-Forwarded-For", "203.0.113.7")]);
        let answer = exchange(weir.address(), &bytes);
        assert_eq!(answer.status, 404, "{target}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{target}"
        );
    }
    assert!(
        application.requests().is_empty(),
        "{:?}",
        application.requests()
    );
}

/// CHECK-1: nor is it unchecked: each spelling is refused to a banned client.
#[test]
fn no_spelling_of_our_paths_goes_round_the_checks() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_DENY_NETS", "203.0.113.0/24"),
            ("WAF_BAN_RESPONSE", "403"),
        ],
    );
    let own = ["/_waf/metrics", "/_waf/bans", "/_waf/clients/203.0.113.7"];
    for target in SPELLINGS.iter().chain(&own) {
        assert_eq!(weir.get(target, "203.0.113.7").status, 403, "{target}");
    }
    assert!(application.requests().is_empty());
}

/// ADMIN: a path of ours that is none is 404 from the service; what only looks alike is the
/// application's.
#[test]
fn what_only_looks_alike_is_the_applications() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for target in [
        "/_wafx",
        "/a/_waf/x",
        "/waf/",
        "/?/_waf/",
        "/_wa",
        "/%5fwafe",
    ] {
        assert_eq!(weir.get(target, "203.0.113.7").status, 200, "{target}");
        application.request(target);
    }
    weir.get("/_waf/nothing", "203.0.113.7");
    assert_eq!(weir.line_of("/_waf/nothing")["action"], "not_found");
}

/// CHECK-4: 401 counts as refused, metrics answers and our 404s as neither, answers of the admin
/// endpoints as passed.
#[test]
fn the_history_counts_what_it_must() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let client = "203.0.113.7";
    let with = |target: &str, token: &str| {
        weir.send(&get(
            target,
            &[("X-Forwarded-For", client), ("Authorization", token)],
        ))
        .status
    };
    let history = || {
        let answer = weir.admin("GET", "/_waf/clients/203.0.113.7", None).json();
        (
            answer["client"]["passed"].as_u64(),
            answer["client"]["refused"].as_u64(),
        )
    };
    weir.get("/a", client).expect(200);
    assert_eq!(history(), (Some(1), Some(0)));
    assert_eq!(with("/_waf/bans", "Bearer wrong"), 401);
    assert_eq!(history(), (Some(1), Some(1)));
    assert_eq!(with("/_waf/metrics", "Bearer metrics-token-77b1"), 200);
    assert_eq!(with("/_waf/nothing", "Bearer admin-token-3f9c"), 404);
    assert_eq!(history(), (Some(1), Some(1)));
    assert_eq!(with("/_waf/bans", "Bearer admin-token-3f9c"), 200);
    assert_eq!(history(), (Some(2), Some(1)));
    assert_eq!(with("/_waf/metrics", "Bearer wrong"), 401);
    assert_eq!(history(), (Some(2), Some(2)));
}

/// CHECK: refusals leave a kept-alive connection usable.
#[test]
fn a_refusal_does_not_cost_the_connection() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "203.0.113.0/24")]);
    let mut connection = Connection::open(weir.address());
    for (client, status) in [
        ("203.0.113.7", 429),
        ("198.51.100.1", 200),
        ("203.0.113.7", 429),
    ] {
        connection.send(&get("/", &[("X-Forwarded-For", client)]));
        connection.response().expect(status);
    }
}

const SPELLINGS: &[&str] = &[
    "/_waf",
    "/_waf/",
    "/_waf/x",
    "/_waf?x=1",
    "//_waf/x",
    "///_waf///x",
    "/%5fwaf/x",
    "/%5Fwaf/health",
    "/_%77af/x",
    "/_%57AF/x",
    "/_WAF/x",
    "/x/../_waf/x",
    "/./_waf/x",
    "/x/%2e%2e/_waf/x",
    "/x/.%2E/_waf/x",
    "/x//..//_waf/x",
    "/../_waf/x",
    "/_waf/../_waf/x",
    "/_waf/health/../x",
    "/_waf/health/../../_waf/x",
    "/_waf%2fx",
    "/%2f_waf/x",
    "/_waf;a=b/x",
    "/_waf/health;a=b",
    "/_waf\\x",
    "http://example.org/_waf/x",
    "http://example.org//_waf/x",
    "http://example.org/x/../%5fwaf",
];
