//! Limits as a client and an operator see them (LIMIT): who is refused, when, and what the answer
//! says.

use serde_json::json;

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Ended, Response, get, request, try_exchange};
use crate::support::wait_until;
use crate::support::weir::Weir;

/// LIMIT-1, LIMIT-6: with a limit of 5, request 6 breaks it; it is refused itself, and so is
/// everyone in the netblock.
#[test]
fn the_request_over_the_limit_is_refused_and_bans() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_PER_HOUR", "5")]);
    for _ in 0..5 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    weir.get("/broken", "203.0.113.7").expect(429);
    // In the moments until the ban is published its client is refused as over the limit.
    weir.get("/between", "203.0.113.7").expect(429);
    wait_until("the ban", || !weir.bans().is_empty());
    weir.get("/after", "203.0.113.7").expect(429);
    weir.get("/neighbour", "203.0.113.200").expect(429);
    weir.get("/far", "203.0.114.7").expect(200);
    let line = weir.line_of("/broken");
    assert_eq!(line["action"], "rate_limited");
    assert_eq!(line["limit_hit"], "hour");
    assert_eq!(line["enforced"], true);
    assert_eq!(line["counts"]["hour"], 6);
    assert_eq!(weir.line_of("/after")["action"], "banned");
    let refused = ["/broken", "/between", "/after", "/neighbour"];
    let seen = application.requests();
    assert!(seen.iter().all(|seen| !refused.contains(&&*seen.target)));
}

/// LIMIT-1: each of the three windows has its own limit, and `off` switches one off.
#[test]
fn every_request_window_limits() {
    let all = [
        ("WAF_RATE_LIMIT_PER_MINUTE", "minute"),
        ("WAF_RATE_LIMIT_PER_HOUR", "hour"),
        ("WAF_RATE_LIMIT_PER_DAY", "day"),
    ];
    for (setting, kind) in all {
        let application = Application::ok();
        let settings: Vec<_> = all
            .iter()
            .map(|(name, _)| (*name, if *name == setting { "3" } else { "off" }))
            .collect();
        let weir = Weir::start(&application, &settings);
        for _ in 0..3 {
            weir.get("/a", "203.0.113.7").expect(200);
        }
        weir.get("/broken", "203.0.113.7").expect(429);
        assert_eq!(weir.line_of("/broken")["limit_hit"], kind);
        let bans = weir.bans();
        assert_eq!(bans[0]["notes"]["limit"], kind);
        assert_eq!(bans[0]["notes"]["limit_value"], 3);
    }
}

/// LIMIT-2: 413 is counted; what the ladder ended before step 10 is not.
#[test]
fn refusals_by_size_are_counted() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_HOUR", "3"),
            ("WAF_MAX_BODY_SIZE", "10"),
            ("WAF_EXEMPT_PATHS", "/free"),
        ],
    );
    let post = || {
        weir.send(&request(
            "POST",
            "/up",
            &[("X-Forwarded-For", "203.0.113.7")],
            Some(&[b'x'; 11]),
        ))
        .status
    };
    for _ in 0..5 {
        weir.get("/free", "203.0.113.7").expect(200);
    }
    assert_eq!([post(), post(), post(), post()], [413, 413, 413, 429]);
    // Each worker has its own reading of the clock, a millisecond apart at most: times are no
    // order.
    let mut counts: Vec<_> = weir
        .lines_of("/up", 4)
        .iter()
        .map(|line| line["counts"]["hour"].as_u64())
        .collect();
    counts.sort();
    assert_eq!(counts, [Some(1), Some(2), Some(3), Some(4)]);
}

/// LIMIT-6: with a ledger full of bans that may not be dropped the answer is 429 and the count
/// stays.
#[test]
fn without_a_ban_the_answer_is_429_and_the_count_stays() {
    let application = Application::ok();
    let weir = Weir::start_with_bans(
        &application,
        &json!([{"netblock": "198.51.100.0/24", "ban_expires": "permanent", "cause": "admin"}]),
        &[
            ("WAF_MAX_BANS", "1"),
            ("WAF_RATE_LIMIT_PER_HOUR", "2"),
            ("WAF_BAN_RESPONSE", "403"),
        ],
    );
    for _ in 0..2 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    for number in 3..6 {
        let path = format!("/over-{number}");
        let answer = weir.get(&path, "203.0.113.7");
        assert_eq!(answer.status, 429, "no ban, so not WAF_BAN_RESPONSE");
        assert!(retry_after(&answer) >= 1);
        let line = weir.line_of(&path);
        assert_eq!(line["action"], "rate_limited");
        assert_eq!(line["counts"]["hour"], number);
    }
    assert_eq!(weir.get("/n", "203.0.113.8").status, 200, "no ban was made");
    assert_eq!(weir.bans().len(), 1);
}

/// LIMIT-6: the counters of the client are reset once the ban is there.
#[test]
fn a_ban_resets_the_counters_of_its_client() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_PER_HOUR", "2")]);
    // Two and the one that breaks: a request more might still be counted, or be banned already.
    for _ in 0..3 {
        weir.get("/a", "203.0.113.7");
    }
    let ban = &weir.bans()[0];
    assert_eq!(ban["notes"]["netblock_requests"], 3);
    wait_until("the reset", || {
        let answer = weir.admin("GET", "/_waf/clients/203.0.113.7", None).json();
        let hour = &answer["client"]["requests"]["hour"];
        hour["current"] == 0 && hour["previous"] == 0
    });
    weir.admin("DELETE", "/_waf/bans/203.0.113.7", None)
        .expect(200);
    weir.get("/again", "203.0.113.7").expect(200);
    weir.get("/again", "203.0.113.7").expect(200);
    weir.get("/again", "203.0.113.7").expect(429);
}

/// LIMIT-6: no request slips between the break and the ban, on however many connections the client
/// comes.
#[test]
fn no_request_slips_between_break_and_ban() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[("WAF_RATE_LIMIT_PER_HOUR", "20"), ("WAF_WORKERS", "2")],
    );
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = Connection::open(weir.address());
                for _ in 0..25 {
                    connection.send(&get("/a", &[("X-Forwarded-For", "203.0.113.7")]));
                    connection.response();
                }
            });
        }
    });
    let lines = weir.lines_of("/a", 200);
    let count = |action: &str| lines.iter().filter(|line| line["action"] == action).count();
    assert_eq!(count("passed"), 20);
    assert_eq!(application.requests().len(), 20);
    assert_eq!(count("rate_limited") + count("banned"), 180);
    assert_eq!(weir.bans().len(), 1, "one ban, not two");
}

/// LIMIT-5: bytes over the limit cut nothing short; the ban follows once the answer has ended.
#[test]
fn bytes_ban_after_the_answer() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], &[b'y'; 800]);
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_BYTES_LIMIT_PER_HOUR", "1000")]);
    assert_eq!(weir.get("/one", "203.0.113.7").body.len(), 800);
    weir.line_of("/one");
    assert_eq!(weir.get("/two", "203.0.113.7").body.len(), 800);
    banned(&weir, "203.0.113.7");
    let ban = &weir.bans()[0];
    assert_eq!(ban["cause"], "byte_limit");
    assert_eq!(ban["notes"]["limit"], "hour_bytes");
    assert_eq!(ban["notes"]["limit_value"], 1000);
    assert_eq!(ban["notes"]["request"]["path"], "/two");
    let line = weir.line_of("/two");
    assert_eq!(line["status"], 200);
    assert_eq!(line["bytes"]["response"], 800);
    assert_eq!(line["counts"]["hour_bytes"], 1600);
    assert_eq!(line["limit_hit"], "hour_bytes");
}

/// LIMIT-5: `WAF_BYTES_COUNT` says which direction counts; heads never do.
#[test]
fn the_counted_direction_can_be_chosen() {
    for (count, direction) in [("request", "up"), ("response", "down"), ("both", "half")] {
        let application = Application::start(|exchange| {
            exchange.read_body();
            let size = exchange.request.target.rsplit('-').next().unwrap_or("0");
            let size: usize = size.parse().unwrap_or(0);
            exchange.answer(200, &[("X-Long", &"h".repeat(2000))], &vec![b'y'; size]);
            After::KeepAlive
        });
        let weir = Weir::start(
            &application,
            &[
                ("WAF_BYTES_LIMIT_PER_HOUR", "1000"),
                ("WAF_BYTES_COUNT", count),
            ],
        );
        // (bytes up, bytes down) that must not ban, then what must.
        let (harmless, harmful) = match direction {
            "up" => ((500, 5000), (501, 0)),
            "down" => ((5000, 500), (0, 501)),
            _ => ((500, 500), (1, 0)),
        };
        let exchange = |(up, down): (usize, usize), name: &str| {
            let path = format!("/{name}-{down}");
            let answer = weir.send(&request(
                "POST",
                &path,
                &[("X-Forwarded-For", "203.0.113.7")],
                Some(&vec![b'x'; up]),
            ));
            assert_eq!(answer.status, 200, "{count} {name}");
            let line = weir.line_of(&path);
            assert_eq!(line["bytes"]["request"], up);
            assert_eq!(line["bytes"]["response"], down);
        };
        exchange(harmless, "harmless");
        assert!(weir.bans().is_empty(), "{count}");
        exchange(harmful, "harmful");
        banned(&weir, "203.0.113.7");
    }
}

/// LIMIT-5: an answer that was broken off counts as far as it was carried.
#[test]
fn a_broken_answer_counts_as_far_as_it_came() {
    let application = Application::start(|exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        exchange.send(&[b'y'; 2000]);
        After::Close
    });
    let weir = Weir::start(&application, &[("WAF_BYTES_LIMIT_PER_DAY", "1000")]);
    let answer = try_exchange(
        weir.address(),
        &get("/cut", &[("X-Forwarded-For", "203.0.113.7")]),
    );
    assert!(
        answer.is_err(),
        "a cut answer must not look whole: {answer:?}"
    );
    banned(&weir, "203.0.113.7");
    assert_eq!(weir.line_of("/cut")["bytes"]["response"], 2000);
    assert_eq!(weir.bans()[0]["notes"]["limit"], "day_bytes");
}

/// LIMIT-5: bytes of requests that were not passed on are not counted.
#[test]
fn bytes_of_our_own_answers_are_not_counted() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_BYTES_LIMIT_PER_HOUR", "500"),
            ("WAF_EXEMPT_PATHS", "/free"),
        ],
    );
    for _ in 0..20 {
        weir.get("/_waf/nothing", "203.0.113.7").expect(404);
    }
    let upload = request(
        "POST",
        "/free/up",
        &[("X-Forwarded-For", "203.0.113.7")],
        Some(&[b'x'; 1000]),
    );
    assert_eq!(
        weir.send(&upload).status,
        200,
        "exempt from byte limits too"
    );
    assert_eq!(weir.line_of("/free/up")["action"], "passed");
    weir.get("/a", "203.0.113.7").expect(200);
    assert!(weir.bans().is_empty());
}

/// LIMIT-7: at most 20,000 clients are kept, and the one seen longest ago goes first.
#[test]
fn the_client_table_holds_20000() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_LOG_REQUESTS", "off")]);
    let mut connection = Connection::open(weir.address());
    let address = |n: usize| format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255);
    // Pipelined and answered by the service: what counts here is the table, not the application.
    for start in (0..20_010).step_by(115) {
        let end = (start + 115).min(20_010);
        let mut batch = Vec::new();
        for n in start..end {
            batch.extend(get("/_waf/x", &[("X-Forwarded-For", &address(n))]));
        }
        connection.send(&batch);
        for _ in start..end {
            connection.response().expect(404);
        }
    }
    let known = |n: usize| {
        let target = format!("/_waf/clients/{}", address(n));
        weir.admin("GET", &target, None).status == 200
    };
    // The admin's own client may be one of the 20,000; more than these two are not at stake.
    assert!(!known(0) && !known(9));
    assert!(known(12) && known(20_009));
    let clients = weir.metric("waf_clients").expect("waf_clients");
    assert!((19_999.0..=20_000.0).contains(&clients), "{clients}");
    let evicted = weir.metric("waf_clients_evicted_total").expect("evicted");
    assert!((10.0..=12.0).contains(&evicted), "{evicted}");
}

/// LIMIT-9: neither refused clients nor those of one /48 push the counts of another client out of
/// the table, however many they are.
#[test]
fn one_network_does_not_take_the_table() {
    let application = Application::ok();
    let settings = [
        ("WAF_LOG_REQUESTS", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "7"),
        ("WAF_DENY_NETS", "2001:db8:d::/48,2001:db8:e::/48"),
    ];
    let weir = Weir::start(&application, &settings);
    let ask = |weir: &Weir| weir.get("/a", "203.0.113.7").status;
    for _ in 0..3 {
        assert_eq!(ask(&weir), 200);
    }
    let clients = || weir.metric("waf_clients").expect("waf_clients");
    // Answered by the service: what counts here is the table, not the application.
    let mut connection = Connection::open(weir.address());
    let mut flood = |network: &str, status: u16| {
        for start in (0..20_240).step_by(115) {
            let mut batch = Vec::new();
            for n in start..start + 115 {
                let client = format!("2001:db8:{network}:{n:x}::1");
                batch.extend(get("/_waf/x", &[("X-Forwarded-For", &client)]));
            }
            connection.send(&batch);
            for _ in 0..115 {
                connection.response().expect(status);
            }
        }
    };
    flood("d", 429);
    flood("e", 429);
    assert!(clients() <= 3.0, "{}", clients());
    for _ in 0..2 {
        assert_eq!(ask(&weir), 200);
    }
    flood("f", 404);
    flood("a", 404);
    flood("f", 404);
    for _ in 0..2 {
        assert_eq!(ask(&weir), 200);
    }
    assert_eq!(ask(&weir), 429);
}

/// LIMIT-8: the answer that breaks a limit says how long the ban lasts, and names the quota.
#[test]
fn limit_answers_say_when_and_how_much() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
            ("WAF_RATE_LIMIT_PER_HOUR", "2"),
            ("WAF_RATE_LIMIT_PER_DAY", "50"),
            ("WAF_BYTES_LIMIT_PER_DAY", "1M"),
        ],
    );
    for _ in 0..2 {
        let passed = weir.get("/a", "203.0.113.7");
        assert_eq!(passed.status, 200);
        assert_eq!(passed.header("ratelimit"), None);
        assert_eq!(passed.header("ratelimit-policy"), None);
    }
    let broken = weir.get("/a", "203.0.113.7");
    assert_eq!(broken.status, 429);
    assert!((3590..=3600).contains(&retry_after(&broken)));
    let policies = items(&broken, "ratelimit-policy");
    let policy = policies
        .iter()
        .find(|item| item.number("w") == Some(3600) && item.number("q") == Some(2))
        .unwrap_or_else(|| panic!("the broken policy: {policies:?}"));
    let limits = items(&broken, "ratelimit");
    let limit = limits
        .iter()
        .find(|item| item.name == policy.name)
        .unwrap_or_else(|| panic!("the broken limit: {limits:?}"));
    assert_eq!(limit.number("r"), Some(0), "{limits:?}");
    for item in &policies {
        let unit = item.text("qu").unwrap_or("requests".to_owned());
        assert!(["requests", "content-bytes"].contains(&&*unit), "{item:?}");
    }
    wait_until("the ban", || !weir.bans().is_empty());
    // Section 13.6: not with later answers to a banned client.
    let banned = weir.get("/a", "203.0.113.7");
    assert_eq!(banned.status, 429);
    assert!((3590..=3600).contains(&retry_after(&banned)));
    assert_eq!(banned.header("ratelimit"), None);
    assert_eq!(banned.header("ratelimit-policy"), None);
}

/// LIMIT-8: `always` gives the fields with every answer, byte quotas in `content-bytes`; `off`
/// never.
#[test]
fn the_fields_can_be_always_or_never() {
    let application = Application::ok();
    let settings = |mode| {
        [
            ("WAF_RATE_LIMIT_HEADERS", mode),
            ("WAF_RATE_LIMIT_PER_HOUR", "2"),
            ("WAF_BYTES_LIMIT_PER_HOUR", "100000"),
        ]
    };
    let always = Weir::start(&application, &settings("always"));
    let passed = always.get("/a", "203.0.113.7");
    let policies = items(&passed, "ratelimit-policy");
    let of_unit = |unit: &str, quota: u64| {
        policies
            .iter()
            .find(|item| {
                item.text("qu").unwrap_or("requests".to_owned()) == unit
                    && item.number("q") == Some(quota)
                    && item.number("w") == Some(3600)
            })
            .unwrap_or_else(|| panic!("{unit} {quota}: {policies:?}"))
    };
    of_unit("content-bytes", 100_000);
    let requests = of_unit("requests", 2);
    let limits = items(&passed, "ratelimit");
    let left = limits.iter().find(|item| item.name == requests.name);
    assert_eq!(
        left.and_then(|item| item.number("r")),
        Some(1),
        "{limits:?}"
    );

    let never = Weir::start(&application, &settings("off"));
    for _ in 0..3 {
        let answer = never.get("/a", "203.0.113.7");
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(answer.header("ratelimit-policy"), None);
    }
    assert!(
        retry_after(&never.get("/a", "203.0.113.7")) > 0,
        "Retry-After stays"
    );
}

/// LIMIT-8: what the application says in these fields stays, however its answer goes on: as the
/// text that it was, or as fields.
#[test]
fn the_applications_fields_stay() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[("RateLimit", r#""app";r=5;t=9"#)], b"");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_HEADERS", "always")]);
    for te in [None, Some(("TE", "trailers"))] {
        let mut headers = vec![("X-Forwarded-For", "203.0.113.7")];
        headers.extend(te);
        let lines = weir.send(&get("/a", &headers)).expect(200).all("ratelimit");
        assert_eq!(lines.len(), 2, "{te:?}: {lines:?}");
        assert_eq!(lines[0], r#""app";r=5;t=9"#, "{te:?}");
    }
}

/// CHECK, step 11: a body that is longer than allowed is refused before a byte of it is passed on.
#[test]
fn a_sized_body_over_the_bound_is_413() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_MAX_BODY_SIZE", "1K")]);
    let post = |size: usize, path: &str| {
        weir.send(&request(
            "POST",
            path,
            &[("X-Forwarded-For", "203.0.113.7")],
            Some(&vec![b'x'; size]),
        ))
    };
    assert_eq!(post(1024, "/fits").status, 200);
    let refused = post(1025, "/over");
    assert_eq!(refused.status, 413);
    assert_eq!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(application.requests().len(), 1);
    assert_eq!(weir.line_of("/over")["action"], "body_too_large");
    assert!(weir.bans().is_empty(), "413 bans nobody");
}

/// CHECK, step 11: a body without length is refused when it passes the bound, and never looks whole
/// upstream.
#[test]
fn a_streamed_body_over_the_bound_is_413() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_MAX_BODY_SIZE", "1K")]);
    let mut connection = Connection::open(weir.address());
    connection.send(b"POST /over HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut chunk = b"200\r\n".to_vec();
    chunk.extend([b'x'; 512]);
    chunk.extend(b"\r\n");
    for _ in 0..3 {
        connection.send_what_is_taken(&chunk);
    }
    connection.send_what_is_taken(b"0\r\n\r\n");
    connection.response().expect(413);
    assert_eq!(weir.line_of("/over")["action"], "body_too_large");
    wait_until("the end of the upstream request", || {
        application.closed_connections() == application.connections()
    });
    assert!(application.requests().iter().all(|seen| !seen.whole));
    let line = weir.line_of("/over");
    assert_eq!(line["counts"]["day"], 1);
    assert_eq!(
        line["counts"]["day_bytes"], 0,
        "LIMIT-5: nothing was passed on"
    );
}

#[track_caller]
fn banned(weir: &Weir, client: &str) {
    wait_until("the ban", || !weir.bans().is_empty());
    match try_exchange(
        weir.address(),
        &get("/after-the-ban", &[("X-Forwarded-For", client)]),
    ) {
        Ok(answer) => assert_eq!(answer.status, 429),
        Err(Ended::Closed) => panic!("closed"),
        Err(other) => panic!("{other:?}"),
    }
}

#[track_caller]
fn retry_after(answer: &Response) -> u64 {
    let value = answer.header("retry-after").expect("Retry-After");
    value.parse().expect("whole seconds")
}

/// One member of a structured-field list (RFC 9651): a string with parameters.
#[derive(Debug)]
struct Item {
    name: String,
    parameters: Vec<(String, String)>,
}

impl Item {
    #[track_caller]
    fn number(&self, key: &str) -> Option<u64> {
        let (_, value) = self.parameters.iter().find(|(name, _)| name == key)?;
        Some(value.parse().expect("an integer"))
    }

    #[track_caller]
    fn text(&self, key: &str) -> Option<String> {
        let (_, value) = self.parameters.iter().find(|(name, _)| name == key)?;
        let inner = value
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        Some(inner.expect("a string").to_owned())
    }
}

#[track_caller]
fn items(answer: &Response, field: &str) -> Vec<Item> {
    let value = answer
        .header(field)
        .unwrap_or_else(|| panic!("{field}: {answer:?}"));
    value
        .split(',')
        .map(|member| {
            let mut parts = member.trim().split(';');
            let name = parts.next().expect("a name");
            let name = name
                .strip_prefix('"')
                .and_then(|rest| rest.strip_suffix('"'));
            let parameters = parts.map(|part| {
                let (key, value) = part.trim().split_once('=').expect("a parameter");
                (key.to_owned(), value.to_owned())
            });
            Item {
                name: name.expect("a string").to_owned(),
                parameters: parameters.collect(),
            }
        })
        .collect()
}
