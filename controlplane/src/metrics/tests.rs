use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use weir_shared::rules::{Claim, ClaimState, Crawler, Purpose, Rule, RuleKind, Verify};
use weir_shared::table::{SharedCountsUse, SharedUse};
use weir_shared::totals::{ConnectionError, Totals};
use weir_shared::verdict::{Action, LimitKind};

use super::*;
use crate::certificates::Validity;
use crate::feeds::facts::FeedFacts;
use crate::fleet::event::Rejected;
use crate::fleet::facts::FleetFacts;
use crate::lookup::LookupFacts;
use crate::rules::RulesFacts;
use crate::state::FileCounts;

/// A rule that was hit once.
fn hit(kind: RuleKind, name: &str) -> Arc<Rule> {
    let rule = Rule::new(kind, name.to_owned());
    rule.hit();
    Arc::new(rule)
}

/// A crawler that somebody said he is, and was refused.
fn crawler() -> Arc<Crawler> {
    let crawler = Arc::new(Crawler {
        rule: hit(RuleKind::Crawler, "googlebot"),
        purpose: Purpose::Search,
        user_agent: Vec::new(),
        verify: Verify::Dns(Vec::new()),
        quotas: Vec::new(),
        counts: Arc::default(),
    });
    let claim = Claim {
        crawler: Arc::clone(&crawler),
        state: ClaimState::Fake,
    };
    claim.count(true);
    crawler
}

fn facts() -> Facts {
    let mut totals = Totals {
        request_bytes: 100,
        response_bytes: 200,
        connections: 3,
        breaks_dropped: 4,
        finished_dropped: 28,
        records_dropped: 5,
        records_left_out: 61,
        process_log_lines_dropped: 29,
        upstream: 51,
        upstream_waiting: 52,
        clients: 6,
        clients_evicted: 7,
        ..Totals::default()
    };
    totals.requests[Action::Passed.index()] = 10;
    totals.requests[Action::Banned.index()] = 2;
    totals.limit_hits[LimitKind::HourBytes.index()] = 1;
    totals.connection_errors[ConnectionError::Panic.index()] = 8;
    totals.handshakes[0] = 41;
    totals.application = [71, 72, 73, 74, 75];
    totals.request_duration.buckets[0] = 2;
    totals.request_duration.buckets[14] = 1;
    totals.request_duration.sum_us = 61_000_250;
    let file = |file, writes_ok| FileCounts {
        file,
        writes_ok,
        writes_error: 1,
        edits_taken: 2,
        edits_bad: 3,
    };
    Facts {
        totals,
        observe: false,
        bans_active: 9,
        bans_made: [1, 2, 3, 4, 5, 6, 7, 8],
        bans_dropped: 5,
        untrusted_forwarders: 31,
        alerts: [21, 22, 23, 24, 25, 26, 30, 32, 33, 34, 35, 36],
        alert_lines_dropped: 27,
        countries: BTreeMap::from([("DE".to_owned(), 3), ("other".to_owned(), 4)]),
        asns: BTreeMap::new(),
        state: [
            file("bans.json", 11),
            file("clients.json", 12),
            file("lookups.json", 13),
            file("alerts.json", 14),
            file("bans.journal", 15),
        ],
        lookups: LookupFacts {
            outcomes: [21, 22, 23, 24, 25],
            file_read_ms: 1_795_276_800_500,
            file_errors: 26,
        },
        certificates: vec![Validity {
            name: "a.test".to_owned(),
            begins_ms: 1_787_500_800_000,
            ends_ms: 1_795_276_800_500,
        }],
        known: 76,
        shared: SharedCountsUse {
            evicted: 34,
            rules: vec![SharedUse {
                rule: hit(RuleKind::Limit, "search"),
                per: "all",
                ratio: 0.5,
                keys: 3,
                counts: 33,
            }],
        },
        fleet: Some(FleetFacts {
            connected: true,
            instances: 3,
            in_step: true,
            waiting: 77,
            events: [78, 79],
            rejected: [80; Rejected::ALL.len()],
            resyncs: 81,
            clock_seconds: -0.25,
            round_trip_seconds: 0.002,
            deltas: [83, 84],
            held: 85,
            batches: [86, 87, 88],
            decisive: 89,
            settings_differ: 82,
        }),
        rules: RulesFacts {
            edits_taken: 30,
            edits_bad: 31,
            rules: vec![
                hit(RuleKind::Limit, "login"),
                hit(RuleKind::Deny, "a\"b.txt"),
            ],
            crawlers: vec![crawler()],
        },
        feeds: vec![
            FeedFacts {
                name: "drop".to_owned(),
                entries: 36,
                age_ms: Some(37_500),
                fetches: [38, 39, 40, 41],
            },
            FeedFacts {
                name: "none".to_owned(),
                entries: 0,
                age_ms: None,
                fetches: [0, 0, 0, 42],
            },
        ],
    }
}

fn process() -> Option<Process> {
    Process::parse(
        "42 (we ir) x) S 1 2 3 4 5 6 7 8 9 10 150 75 0 0 20 0 5 0 1234 99 98",
        "Name:\tweir\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\n",
        "Limit  Soft Limit Hard Limit Units\nMax open files            1024                 4096                 files\n",
        1_700_000_000.0,
        17,
    )
}

fn rendered(metrics: &Metrics, facts: &Facts) -> String {
    metrics.render(facts, process().as_ref())
}

/// METRIC: the whole text for known facts. Series of fixed label sets are there with 0.
#[test]
fn the_text_is_exact() {
    let rendered = rendered(&Metrics::new("1.2.3"), &facts());
    let samples: Vec<&str> = rendered
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let expected = r#"process_cpu_seconds_total 2.25
process_max_fds 1024
process_open_fds 17
process_resident_memory_bytes 1048576
process_start_time_seconds 1700000012.34
process_threads 5
process_virtual_memory_bytes 2097152
waf_alerts_total{kind="anomaly"} 21
waf_alerts_total{kind="anomaly_summary"} 22
waf_alerts_total{kind="ban"} 24
waf_alerts_total{kind="certificate"} 32
waf_alerts_total{kind="crawler"} 35
waf_alerts_total{kind="edit"} 30
waf_alerts_total{kind="feed_error"} 36
waf_alerts_total{kind="file_error"} 25
waf_alerts_total{kind="fleet"} 34
waf_alerts_total{kind="shared_limit"} 33
waf_alerts_total{kind="state_error"} 26
waf_alerts_total{kind="watch"} 23
waf_application_total{word="ban"} 72
waf_application_total{word="ban_left_out"} 73
waf_application_total{word="count"} 71
waf_application_total{word="ignored"} 75
waf_application_total{word="trust"} 74
waf_bans_active 9
waf_bans_dropped_total 5
waf_bans_total{cause="admin"} 3
waf_bans_total{cause="application"} 8
waf_bans_total{cause="byte_limit"} 2
waf_bans_total{cause="edit"} 4
waf_bans_total{cause="jail"} 7
waf_bans_total{cause="rate_limit"} 1
waf_bans_total{cause="rule_limit"} 5
waf_bans_total{cause="trap"} 6
waf_build_info{version="1.2.3"} 1
waf_bytes_total{direction="request"} 100
waf_bytes_total{direction="response"} 200
waf_clients 6
waf_clients_evicted_total 7
waf_connection_errors_total{kind="accept"} 0
waf_connection_errors_total{kind="bad_request"} 0
waf_connection_errors_total{kind="banned"} 0
waf_connection_errors_total{kind="framing"} 0
waf_connection_errors_total{kind="h2_flood"} 0
waf_connection_errors_total{kind="head_timeout"} 0
waf_connection_errors_total{kind="head_too_large"} 0
waf_connection_errors_total{kind="panic"} 8
waf_connection_errors_total{kind="proxy_protocol"} 0
waf_connection_errors_total{kind="tls"} 0
waf_connection_errors_total{kind="too_many"} 0
waf_connection_errors_total{kind="too_many_client"} 0
waf_connection_errors_total{kind="too_many_netblock"} 0
waf_connection_errors_total{kind="too_slow"} 0
waf_connections 3
waf_crawler_requests_total{crawler="googlebot",state="verified",outcome="passed"} 0
waf_crawler_requests_total{crawler="googlebot",state="verified",outcome="refused"} 0
waf_crawler_requests_total{crawler="googlebot",state="fake",outcome="passed"} 0
waf_crawler_requests_total{crawler="googlebot",state="fake",outcome="refused"} 1
waf_crawler_requests_total{crawler="googlebot",state="unproven",outcome="passed"} 0
waf_crawler_requests_total{crawler="googlebot",state="unproven",outcome="refused"} 0
waf_events_dropped_total{kind="alert"} 27
waf_events_dropped_total{kind="break"} 4
waf_events_dropped_total{kind="request"} 28
waf_feed_age_seconds{feed="drop"} 37.5
waf_feed_entries{feed="drop"} 36
waf_feed_entries{feed="none"} 0
waf_feed_fetches_total{feed="drop",outcome="taken"} 38
waf_feed_fetches_total{feed="drop",outcome="unchanged"} 39
waf_feed_fetches_total{feed="drop",outcome="refused"} 40
waf_feed_fetches_total{feed="drop",outcome="failed"} 41
waf_feed_fetches_total{feed="none",outcome="taken"} 0
waf_feed_fetches_total{feed="none",outcome="unchanged"} 0
waf_feed_fetches_total{feed="none",outcome="refused"} 0
waf_feed_fetches_total{feed="none",outcome="failed"} 42
waf_fleet_batches_total{outcome="taken"} 86
waf_fleet_batches_total{outcome="again"} 87
waf_fleet_batches_total{outcome="unanswered"} 88
waf_fleet_clock_offset_seconds -0.25
waf_fleet_connected 1
waf_fleet_decisive_total 89
waf_fleet_deltas_held 85
waf_fleet_deltas_total{outcome="sent"} 83
waf_fleet_deltas_total{outcome="stale"} 84
waf_fleet_events_total{direction="sent"} 78
waf_fleet_events_total{direction="received"} 79
waf_fleet_in_step 1
waf_fleet_instances 3
waf_fleet_outbox 77
waf_fleet_rejected_total{reason="seal"} 80
waf_fleet_rejected_total{reason="schema"} 80
waf_fleet_rejected_total{reason="size"} 80
waf_fleet_rejected_total{reason="clock"} 80
waf_fleet_resyncs_total 81
waf_fleet_round_trip_seconds 0.002
waf_fleet_settings_differ 82
waf_known_clients 76
waf_limit_hits_total{kind="concurrent"} 0
waf_limit_hits_total{kind="day"} 0
waf_limit_hits_total{kind="day_bytes"} 0
waf_limit_hits_total{kind="hour"} 0
waf_limit_hits_total{kind="hour_bytes"} 1
waf_limit_hits_total{kind="minute"} 0
waf_limit_hits_total{kind="minute_bytes"} 0
waf_limit_hits_total{kind="second"} 0
waf_log_lines_dropped_total 5
waf_log_lines_left_out_total 61
waf_lookup_file_errors_total 26
waf_lookup_file_read_timestamp_seconds 1795276800.5
waf_lookups_total{outcome="error"} 24
waf_lookups_total{outcome="known"} 21
waf_lookups_total{outcome="skipped"} 25
waf_lookups_total{outcome="timeout"} 23
waf_lookups_total{outcome="unknown"} 22
waf_process_log_lines_dropped_total 29
waf_request_duration_seconds_bucket{le="0.0005"} 2
waf_request_duration_seconds_bucket{le="0.001"} 2
waf_request_duration_seconds_bucket{le="0.0025"} 2
waf_request_duration_seconds_bucket{le="0.005"} 2
waf_request_duration_seconds_bucket{le="0.01"} 2
waf_request_duration_seconds_bucket{le="0.025"} 2
waf_request_duration_seconds_bucket{le="0.05"} 2
waf_request_duration_seconds_bucket{le="0.1"} 2
waf_request_duration_seconds_bucket{le="0.25"} 2
waf_request_duration_seconds_bucket{le="0.5"} 2
waf_request_duration_seconds_bucket{le="1"} 2
waf_request_duration_seconds_bucket{le="2.5"} 2
waf_request_duration_seconds_bucket{le="10"} 2
waf_request_duration_seconds_bucket{le="60"} 2
waf_request_duration_seconds_bucket{le="+Inf"} 3
waf_request_duration_seconds_sum 61.00025
waf_request_duration_seconds_count 3
waf_requests_by_country_total{country="DE"} 3
waf_requests_by_country_total{country="other"} 4
waf_responses_total{class="1xx"} 0
waf_responses_total{class="2xx"} 0
waf_responses_total{class="3xx"} 0
waf_responses_total{class="4xx"} 0
waf_responses_total{class="5xx"} 0
waf_rule_hits_total{rule="a\"b.txt",kind="deny"} 1
waf_rule_hits_total{rule="login",kind="limit"} 1
"#;
    let (requests, rest): (Vec<&str>, Vec<&str>) = samples
        .into_iter()
        .partition(|line| line.starts_with("waf_requests_total"));
    let rest = rest.join("\n");
    assert!(rest.starts_with(expected), "{rest}");
    let rest = rest.strip_prefix(expected).unwrap();
    assert!(rest.starts_with(
        r#"waf_shared_keys 33
waf_shared_keys_evicted_total 34
waf_shared_use_ratio{rule="search"} 0.5
waf_state_edits_total{file="alerts.json",outcome="bad"} 3
waf_state_edits_total{file="alerts.json",outcome="taken"} 2
waf_state_edits_total{file="bans.json",outcome="bad"} 3
waf_state_edits_total{file="bans.json",outcome="taken"} 2
waf_state_edits_total{file="clients.json",outcome="bad"} 3
waf_state_edits_total{file="clients.json",outcome="taken"} 2
waf_state_edits_total{file="lookups.json",outcome="bad"} 3
waf_state_edits_total{file="lookups.json",outcome="taken"} 2
waf_state_edits_total{file="rules.json",outcome="bad"} 31
waf_state_edits_total{file="rules.json",outcome="taken"} 30
waf_state_writes_total{file="alerts.json",outcome="error"} 1
waf_state_writes_total{file="alerts.json",outcome="ok"} 14
waf_state_writes_total{file="bans.journal",outcome="error"} 1
waf_state_writes_total{file="bans.journal",outcome="ok"} 15
waf_state_writes_total{file="bans.json",outcome="error"} 1
waf_state_writes_total{file="bans.json",outcome="ok"} 11
waf_state_writes_total{file="clients.json",outcome="error"} 1
waf_state_writes_total{file="clients.json",outcome="ok"} 12
waf_state_writes_total{file="lookups.json",outcome="error"} 1
waf_state_writes_total{file="lookups.json",outcome="ok"} 13
waf_tls_certificate_expiry_timestamp_seconds{name="a.test"} 1795276800
waf_tls_certificate_start_timestamp_seconds{name="a.test"} 1787500800
waf_tls_handshakes_total{outcome="aborted"} 0
waf_tls_handshakes_total{outcome="failed"} 0
waf_tls_handshakes_total{outcome="full"} 41
waf_tls_handshakes_total{outcome="resumed"} 0
waf_tls_handshakes_total{outcome="timed_out"} 0
waf_untrusted_forwarders 31
waf_upstream_duration_seconds_bucket{le="0.0005"} 0
"#
    ));
    assert!(rest.ends_with(
        r#"waf_upstream_duration_seconds_sum 0
waf_upstream_duration_seconds_count 0
waf_upstream_requests 51
waf_upstream_waiting 52"#
    ));
    assert_eq!(requests.len(), 2 * Action::ALL.len());
    for line in [
        r#"waf_requests_total{action="passed",mode="enforce"} 10"#,
        r#"waf_requests_total{action="banned",mode="enforce"} 2"#,
        r#"waf_requests_total{action="passed",mode="observe"} 0"#,
    ] {
        assert!(requests.contains(&line), "{line}");
    }
}

/// METRIC: every line parses; each family has one HELP, then one TYPE, then its samples, together;
/// no series appears twice, even after a second scrape.
#[test]
fn the_text_is_well_formed() {
    let metrics = Metrics::new("1.2.3");
    rendered(&metrics, &facts());
    let rendered = rendered(&metrics, &facts());
    let (mut families, mut series) = (HashSet::new(), HashSet::new());
    let (mut helped, mut family) = (String::new(), String::new());
    for line in rendered.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(text.ends_with('.'), "{line}");
            helped = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, helped);
            assert!(families.insert(name.to_owned()), "{name} is there twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind));
            family = name.to_owned();
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            assert!(series.insert(name.to_owned()), "{name} is there twice");
            let name = name.split('{').next().unwrap();
            let own = name.strip_prefix(&family).unwrap();
            assert!(["", "_bucket", "_sum", "_count"].contains(&own), "{line}");
        }
    }
    assert!(rendered.ends_with('\n'));
    assert!(!rendered.contains("\n\n"));
}

/// METRIC: at the next scrape a counter has its new value, and a gauge may have fallen.
#[test]
fn a_scrape_tells_what_is_true_then() {
    let metrics = Metrics::new("1.2.3");
    let mut facts = facts();
    rendered(&metrics, &facts);
    facts.totals.requests[Action::Passed.index()] = 11;
    facts.bans_active = 1;
    let rendered = rendered(&metrics, &facts);
    assert!(rendered.contains("{action=\"passed\",mode=\"enforce\"} 11\n"));
    assert!(rendered.contains("\nwaf_bans_active 1\n"));
}

/// METRIC-3: the figures of this process can be read, and its start time agrees with `/proc/stat`,
/// which the reader does not need.
#[test]
fn this_process_can_be_read() {
    let process = Metrics::new("1.2.3").process().unwrap();
    assert!(process.resident_bytes > 1 << 20);
    assert!(process.open_fds >= 3 && process.threads >= 1);
    let stat = |path: &str| std::fs::read_to_string(path).unwrap();
    let boot = stat("/proc/stat");
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "));
    let boot: f64 = boot.unwrap().trim().parse().unwrap();
    let own = stat("/proc/self/stat");
    let ticks = own.rsplit_once(')').unwrap().1.split_whitespace().nth(19);
    let expected = boot + ticks.unwrap().parse::<f64>().unwrap() / 100.0;
    // `btime` is in whole seconds, and the clock may be moved by its service meanwhile.
    assert!((process.start_seconds - expected).abs() < 5.0);
}

/// METRIC: every metric, label and label value that the board and the alert rules name exists.
#[test]
fn the_board_and_the_rules_name_what_exists() {
    let page = rendered(&Metrics::new("1.2.3"), &facts());
    let board = include_str!("../../deploy/grafana-board.json");
    let rules = include_str!("../../deploy/prometheus-rules.yml");
    let board: serde_json::Value = serde_json::from_str(board).unwrap();
    let mut expressions: Vec<String> = rules.lines().map(str::to_owned).collect();
    let mut ids = HashSet::new();
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        let targets = panel["targets"].as_array();
        assert_eq!(targets.is_none(), panel["type"] == "row", "{panel}");
        for target in targets.into_iter().flatten() {
            expressions.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        expressions.push(variable["query"].as_str().unwrap().to_owned());
    }
    let mut named = HashSet::new();
    for expression in &expressions {
        for (name, selector) in metrics_in(expression) {
            named.insert(name.clone());
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(&name);
            assert!(
                page.contains(&format!("# TYPE {family} ")),
                "{name} does not exist: {expression}"
            );
            for matcher in selector.split(',').filter(|matcher| !matcher.is_empty()) {
                let (label, value) = matcher.split_once('=').unwrap();
                // Prometheus adds these two.
                if ["instance", "job"].contains(&label) {
                    continue;
                }
                for value in value.trim_start_matches('~').trim_matches('"').split('|') {
                    let found = page.lines().any(|line| {
                        line.starts_with(family) && line.contains(&format!("{label}=\"{value}\""))
                    });
                    assert!(found, "{name} has no {label}=\"{value}\": {expression}");
                }
            }
        }
    }
    // Everything of ours is on the board or in a rule, but for what says only that it is there.
    for line in page.lines() {
        let Some(family) = line.strip_prefix("# TYPE waf_") else {
            continue;
        };
        let family = format!("waf_{}", family.split(' ').next().unwrap());
        let shown = named.iter().any(|name| name.starts_with(&family));
        assert!(shown, "{family} is nowhere to be seen");
    }
}

/// The metrics that an expression names, each with the inside of its selector.
fn metrics_in(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = expression;
    while let Some(start) = rest.find(is_name) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if !name.starts_with("waf_") && !name.starts_with("process_") {
            continue;
        }
        let selector = after
            .strip_prefix('{')
            .and_then(|inside| inside.split_once('}'))
            .map_or("", |(inside, _)| inside);
        found.push((name.to_owned(), selector.to_owned()));
    }
    found
}

/// FEED-8: the first files that rules.json names have a series each; the hits of further files
/// share one.
#[test]
fn series_of_lists_are_bounded() {
    let all = (0..1000).flat_map(|at| {
        [RuleKind::Deny, RuleKind::Allow].map(|kind| {
            let rule = Rule::new(kind, format!("{at}.txt"));
            rule.hit();
            Arc::new(rule)
        })
    });
    let all: Vec<Arc<Rule>> = all.collect();
    let series: Vec<(String, u64)> = rule_hits(&all).collect();
    assert_eq!(series.len(), 2 * (MAX_LIST_SERIES + 1));
    let others = |kind: &str| (format!("rule=\"{OTHER_LISTS}\",kind=\"{kind}\""), 936);
    assert!(series.contains(&others("deny")) && series.contains(&others("allow")));
    assert!(series.contains(&("rule=\"63.txt\",kind=\"deny\"".to_owned(), 1)));
}
