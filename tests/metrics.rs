//! The metrics endpoint (METRIC): the form of the page, and its numbers against what the clients
//! saw.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::application::Application;
use crate::support::raw_client::{get, request, try_exchange};
use crate::support::wait_until;
use crate::support::weir::{METRICS_TOKEN, Weir};

/// METRIC-1: a known mix of requests gives known counters.
#[test]
fn the_counters_agree_with_what_clients_saw() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_HOUR", "5"),
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_MAX_BODY_SIZE", "100"),
        ],
    );
    for _ in 0..5 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    weir.get("/a", "203.0.113.7").expect(429);
    // Until the ban can be seen, a request more would count as a further hit.
    wait_until("the ban", || weir.bans().len() == 1);
    for _ in 0..3 {
        weir.get("/a", "203.0.113.7").expect(429);
    }
    for _ in 0..2 {
        weir.get("/a", "198.51.100.7").expect(429);
    }
    let post = |size: usize| {
        request(
            "POST",
            "/up",
            &[("X-Forwarded-For", "203.0.114.7")],
            Some(&vec![b'x'; size]),
        )
    };
    weir.send(&post(50)).expect(200);
    weir.send(&post(101)).expect(413);
    weir.get("/_waf/nothing", "203.0.114.7").expect(404);
    weir.get("/_waf/bans", "203.0.114.7").expect(401);
    weir.get("/_waf/health", "203.0.114.7").expect(200);
    weir.lines_of("/up", 2);
    let samples = samples(&weir.metrics());
    let value = |series: &str| {
        *samples
            .get(series)
            .unwrap_or_else(|| panic!("{series} is missing: {samples:#?}"))
    };
    let requests = |action: &str| {
        value(&format!(
            "waf_requests_total{{action=\"{action}\",mode=\"enforce\"}}"
        ))
    };
    assert_eq!(requests("passed"), 6.0);
    assert_eq!(requests("rate_limited"), 1.0);
    assert_eq!(requests("banned"), 3.0);
    assert_eq!(requests("denied_net"), 2.0);
    assert_eq!(requests("body_too_large"), 1.0);
    assert_eq!(requests("not_found"), 1.0);
    assert_eq!(requests("unauthorized"), 1.0);
    assert_eq!(requests("upstream_error"), 0.0);
    assert_eq!(requests("client_aborted"), 0.0);
    assert_eq!(requests("denied_country"), 0.0);
    assert_eq!(value("waf_limit_hits_total{kind=\"hour\"}"), 1.0);
    assert_eq!(value("waf_limit_hits_total{kind=\"minute_bytes\"}"), 0.0);
    assert_eq!(value("waf_bans_total{cause=\"rate_limit\"}"), 1.0);
    assert_eq!(value("waf_bans_total{cause=\"admin\"}"), 0.0);
    assert_eq!(value("waf_bans_active"), 1.0);
    assert_eq!(value("waf_bytes_total{direction=\"request\"}"), 50.0);
    let to_clients = value("waf_bytes_total{direction=\"response\"}");
    assert!(
        to_clients > 5.0 * 8.0 + 9.0,
        "the answers of the service count too: {to_clients}"
    );
    assert_eq!(
        value("waf_request_duration_seconds_count"),
        value_of_all(&samples)
    );
    assert_eq!(value("waf_upstream_duration_seconds_count"), 6.0);
    assert_eq!(value("waf_clients_evicted_total"), 0.0);
    assert!(value("waf_connections") >= 1.0);
    assert!(value("waf_clients") >= 2.0);
}

fn value_of_all(samples: &BTreeMap<String, f64>) -> f64 {
    samples
        .iter()
        .filter(|(name, _)| name.starts_with("waf_requests_total{"))
        .map(|(_, value)| value)
        .sum()
}

/// METRIC-2: series of fixed label sets are there from the start with 0.
#[test]
fn fixed_series_are_there_from_the_start() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let samples = samples(&weir.metrics());
    for kind in [
        "minute",
        "hour",
        "day",
        "minute_bytes",
        "hour_bytes",
        "day_bytes",
        "second",
        "concurrent",
    ] {
        assert_eq!(
            samples[&format!("waf_limit_hits_total{{kind=\"{kind}\"}}")],
            0.0
        );
    }
    for kind in [
        "bad_request",
        "head_timeout",
        "head_too_large",
        "too_many",
        "too_many_client",
        "panic",
        "accept",
    ] {
        assert_eq!(
            samples[&format!("waf_connection_errors_total{{kind=\"{kind}\"}}")],
            0.0
        );
    }
    for cause in ["rate_limit", "byte_limit", "admin", "edit"] {
        assert_eq!(
            samples[&format!("waf_bans_total{{cause=\"{cause}\"}}")],
            0.0
        );
    }
    for file in ["bans.json", "clients.json", "alerts.json"] {
        for outcome in ["taken", "bad"] {
            let series = format!("waf_state_edits_total{{file=\"{file}\",outcome=\"{outcome}\"}}");
            assert_eq!(samples[&series], 0.0);
        }
        for outcome in ["ok", "error"] {
            let series = format!("waf_state_writes_total{{file=\"{file}\",outcome=\"{outcome}\"}}");
            assert!(samples.contains_key(&series), "{series}");
        }
    }
    assert_eq!(samples["waf_log_lines_dropped_total"], 0.0);
    for kind in [
        "anomaly",
        "anomaly_summary",
        "watch",
        "ban",
        "file_error",
        "state_error",
    ] {
        assert_eq!(
            samples[&format!("waf_alerts_total{{kind=\"{kind}\"}}")],
            0.0
        );
    }
    for kind in ["break", "request", "alert"] {
        let series = format!("waf_events_dropped_total{{kind=\"{kind}\"}}");
        assert_eq!(samples[&series], 0.0);
    }
    let build = samples
        .keys()
        .find(|name| name.starts_with("waf_build_info{version=\""));
    assert_eq!(build.map(|name| samples[name]), Some(1.0));
    assert!(samples.contains_key("process_resident_memory_bytes"));
}

/// METRIC: the text format of Prometheus: help and type once for each family, and no address in a
/// label.
#[test]
fn the_page_is_well_formed() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.get("/a", "203.0.113.7");
    let bearer = format!("Bearer {METRICS_TOKEN}");
    let answer = weir.send(&get("/_waf/metrics", &[("Authorization", &bearer)]));
    assert_eq!(answer.status, 200);
    let kind = answer.header("content-type").expect("Content-Type");
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let page = answer.text();
    let (mut helped, mut typed, mut seen) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind));
            assert!(
                typed.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{line}"
            );
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series.to_owned()), "twice: {line}");
            let name = series.split('{').next().expect("a name");
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| {
                    name.strip_suffix(end)
                        .filter(|family| typed.contains_key(*family))
                })
                .unwrap_or(name);
            let kind = typed
                .get(family)
                .unwrap_or_else(|| panic!("no type: {line}"));
            assert!(helped.contains(family), "no help: {line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(!series.contains("203.0.113"), "an address: {line}");
        }
    }
    assert!(seen.len() > 30, "{page}");
}

/// CONN-11: connections over the bounds are closed at once and counted; other clients are served.
#[test]
fn connections_are_bounded_and_counted() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_TRUSTED_PROXIES", ""),
            ("WAF_MAX_CONNECTIONS_PER_CLIENT", "3"),
            ("WAF_WORKERS", "1"),
        ],
    );
    let mut held: Vec<_> = (0..3)
        .map(|_| {
            let mut connection =
                crate::support::raw_client::Connection::open_from(weir.address(), "127.0.5.1");
            connection.send(&get("/held", &[]));
            connection.response().expect(200);
            connection
        })
        .collect();
    let mut over = crate::support::raw_client::Connection::open_from(weir.address(), "127.0.5.1");
    over.send_what_is_taken(&get("/over", &[]));
    assert!(over.try_response(false).is_err(), "closed at once");
    let mut other = crate::support::raw_client::Connection::open_from(weir.address(), "127.0.6.1");
    other.send(&get("/other", &[]));
    other.response().expect(200);
    let series = "waf_connection_errors_total{kind=\"too_many_client\"}";
    assert_eq!(weir.metric(series), Some(1.0));
    held.pop();
    crate::support::wait_for("room for one more", || {
        let mut next =
            crate::support::raw_client::Connection::open_from(weir.address(), "127.0.5.1");
        next.send_what_is_taken(&get("/next", &[]));
        (next.try_response(false).ok()?.status == 200).then_some(())
    });
    assert!(try_exchange(weir.address(), &get("/fine", &[])).is_ok());
}

#[track_caller]
fn samples(page: &str) -> BTreeMap<String, f64> {
    page.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}
