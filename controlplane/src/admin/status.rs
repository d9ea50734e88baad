//! `GET /v1/status`, `/v1/health` and `/v1/alerts` (CONTROL-2).

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::StatusCode;
use weir_shared::api::alerts::{Alert, AlertList};
use weir_shared::api::in_order::InOrder;
use weir_shared::api::status as api;
use weir_shared::ban::Cause;
use weir_shared::clock::Now;
use weir_shared::handover::OwnResponse;
use weir_shared::health::Health;
use weir_shared::reload::Reloaded;
use weir_shared::rules::{ClaimState, Crawler};
use weir_shared::settings::Upstream;
use weir_shared::snapshot::Snapshot;
use weir_shared::table::{ClientRow, ClientTable, MAX_CLIENTS, SharedUse};
use weir_shared::totals::{Histogram, RESPONSE_CLASSES, Totals};
use weir_shared::units::Time;
use weir_shared::verdict::{Action, History};
use weir_shared::window::Span;

use crate::events::Events;
use crate::history::quantile_us;
use crate::lookup::Outcome;
use crate::metrics::Facts;
use crate::recent::Since;

use super::problem::{answer as any_answer, json as json_answer};

/// Facts that do not change while the service runs, and handles by which the others are read.
pub(crate) struct Service {
    pub(crate) version: &'static str,
    pub(crate) places: Vec<String>,
    pub(crate) reloaded: Arc<ArcSwap<Reloaded>>,
    pub(crate) snapshots: Arc<ArcSwap<Snapshot>>,
    pub(crate) table: Arc<dyn ClientTable>,
    pub(crate) events: Arc<Events>,
    pub(crate) started: Now,
}

/// The part of the status that the control loop gathers.
pub(crate) struct Status {
    pub(crate) facts: Facts,
    pub(crate) since: Since,
    pub(crate) now: Now,
}

/// `GET /v1/health`, in the words of `/_waf/health`.
pub(crate) fn health(stopping: bool) -> OwnResponse {
    let health = Health::now(stopping);
    let body = format!("{}\n", health.json()).into();
    any_answer(
        health.status(),
        "application/health+json",
        body,
        Action::Answered,
    )
}

/// `GET /v1/alerts`: the newest alerts, oldest first, in the form of alerts.json.
pub(crate) fn alerts(alerts: Vec<Arc<Alert>>) -> OwnResponse {
    json_answer(StatusCode::OK, &AlertList { alerts })
}

/// `GET /v1/status`
pub(crate) fn answer(status: &Status, service: &Service) -> OwnResponse {
    let Status { facts, since, now } = status;
    let totals = &facts.totals;
    let reloaded = service.reloaded.load();
    let settings = &reloaded.settings;
    let crowd = one_for_all(&service.table.rows(), now.wall_ms);
    let uptime_ns = now.mono_ns.saturating_sub(service.started.mono_ns);
    let lost = &[
        ("exceeded_limits", totals.breaks_dropped),
        ("requests", totals.finished_dropped),
        ("log_lines", totals.records_dropped),
        ("process_log_lines", totals.process_log_lines_dropped),
        ("alert_lines", facts.alert_lines_dropped),
        ("event_lines", service.events.lost()),
    ];
    let document = api::Status {
        version: service.version.to_owned(),
        mode: if settings.observe {
            "observe"
        } else {
            "enforce"
        }
        .to_owned(),
        started: Time(service.started.wall_ms),
        uptime_seconds: uptime_ns / 1_000_000_000,
        address: service.places.first().cloned(),
        listen: service.places.clone(),
        upstream: upstream(&settings.upstream),
        recent: counted(&less(totals, &since.totals), Some(since.seconds)),
        total: counted(totals, None),
        bans: api::Bans {
            active: facts.bans_active as u64,
            max: settings.bans.max as u64,
            made: named(Cause::ALL.map(Cause::name), facts.bans_made),
            dropped: facts.bans_dropped,
        },
        clients: api::Clients {
            held: totals.clients,
            max: MAX_CLIENTS as u64,
            evicted: totals.clients_evicted,
        },
        connections: api::Connections {
            open: totals.connections,
            max: settings.connections.max as u64,
        },
        shared_limits: facts.shared.rules.iter().map(shared).collect(),
        crawlers: facts
            .rules
            .crawlers
            .iter()
            .flat_map(|one| crawler(one))
            .collect(),
        known_clients: facts.known,
        lookups: named(Outcome::ALL.map(Outcome::name), facts.lookups.outcomes),
        dropped: lost.iter().copied().collect(),
        warnings: reloaded.warnings.iter().chain(&crowd).cloned().collect(),
    };
    json_answer(StatusCode::OK, &document)
}

/// The use of a limit that clients share, from 0 to 1: that of its fullest count.
fn shared(of: &SharedUse) -> api::SharedLimit {
    api::SharedLimit {
        rule: of.rule.name.clone(),
        used: (of.ratio * 1000.0).round() / 1000.0,
        keys: of.keys,
        hits: of.rule.hits(),
    }
}

/// Requests that claim to be this crawler, by the result of the verification; results without
/// requests are left out (CRAWL-7).
fn crawler(crawler: &Crawler) -> impl Iterator<Item = api::Crawler> {
    ClaimState::ALL.into_iter().filter_map(|state| {
        let of = |outcome| -> u64 {
            let requests = crawler.counts.requests();
            let of = requests.filter(|(held, name, _)| (*held, *name) == (state, outcome));
            of.map(|(.., count)| count).sum()
        };
        let (passed, refused) = (of("passed"), of("refused"));
        (passed + refused > 0).then(|| api::Crawler {
            name: crawler.rule.name.clone(),
            purpose: crawler.purpose.name().to_owned(),
            state: state.name().to_owned(),
            passed,
            refused,
        })
    })
}

/// The fewest requests of an hour that [`one_for_all`] judges.
const CROWD: u64 = 1000;

/// The client of nearly all requests of the last hour, if there is one: probably a proxy or the
/// gateway of a container engine, not a visitor.
fn one_for_all(rows: &[ClientRow], now_ms: u64) -> Option<String> {
    let hour = |row: &ClientRow| row.requests.hour.estimate(Span::Hour, now_ms);
    let all: u64 = rows.iter().map(hour).sum();
    let first = rows.iter().max_by_key(|row| hour(row))?;
    let share = hour(first).saturating_mul(100) / all.max(1);
    let client = first.client;
    (all >= CROWD && share >= 95).then(|| {
        format!(
            "{share} % of the requests of the last hour are of {client}: where that is a proxy, or what a container \
             engine forwards by, all visitors are limited and banned as one; WAF_TRUSTED_PROXIES, or host \
             networking, tells them apart"
        )
    })
}

/// The application's address in the form of its setting.
fn upstream(upstream: &Upstream) -> String {
    match upstream {
        Upstream::Tcp { .. } => format!("http://{upstream}"),
        Upstream::Unix(_) => upstream.to_string(),
    }
}

/// Requests of a span of time, or since the start.
fn counted(totals: &Totals, seconds: Option<u64>) -> api::Counted {
    let of = |history| -> u64 {
        let requests = Action::ALL.into_iter().zip(totals.requests);
        requests
            .filter(|(action, _)| action.history() == history)
            .map(|(_, count)| count)
            .sum()
    };
    api::Counted {
        seconds,
        requests: totals.requests.iter().sum(),
        passed: of(History::Passed),
        refused: of(History::Refused),
        actions: named(Action::ALL.map(Action::name), totals.requests),
        request_bytes: totals.request_bytes,
        response_bytes: totals.response_bytes,
        upstream: api::Answers {
            responses: named(RESPONSE_CLASSES, totals.responses),
            p99_seconds: p99_seconds(&totals.upstream_duration),
        },
    }
}

/// Counts by name, without zeros.
fn named<const N: usize>(names: [&str; N], counts: [u64; N]) -> InOrder<u64> {
    let counts = names.into_iter().zip(counts);
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The counts between two looks.
fn less(now: &Totals, then: &Totals) -> Totals {
    fn each<const N: usize>(now: [u64; N], then: [u64; N]) -> [u64; N] {
        let mut then = then.into_iter();
        now.map(|count| count.saturating_sub(then.next().unwrap_or(0)))
    }
    Totals {
        requests: each(now.requests, then.requests),
        responses: each(now.responses, then.responses),
        upstream_duration: Histogram {
            buckets: each(
                now.upstream_duration.buckets,
                then.upstream_duration.buckets,
            ),
            sum_us: now
                .upstream_duration
                .sum_us
                .saturating_sub(then.upstream_duration.sum_us),
        },
        request_bytes: now.request_bytes.saturating_sub(then.request_bytes),
        response_bytes: now.response_bytes.saturating_sub(then.response_bytes),
        ..*now
    }
}

/// The bound of the histogram within which 99 of 100 answers of the application stayed; none
/// without answers, or if the answers took longer than the last bound.
fn p99_seconds(histogram: &Histogram) -> Option<f64> {
    let bound = quantile_us(histogram, 99).filter(|bound| *bound < u64::MAX);
    bound.map(|bound_us| std::time::Duration::from_micros(bound_us).as_secs_f64())
}

#[cfg(test)]
impl Service {
    /// A service for tests that do not use it.
    pub(crate) fn of_test() -> Self {
        let reloaded = Reloaded {
            settings: Arc::new(crate::testing::settings()),
            listing: Arc::from([]),
            warnings: Arc::from([]),
        };
        Self {
            version: "1.2.3",
            places: vec!["127.0.0.1:8080".to_owned()],
            reloaded: Arc::new(ArcSwap::from_pointee(reloaded)),
            snapshots: Arc::default(),
            table: crate::testing::empty_table(),
            events: Arc::default(),
            started: Now {
                wall_ms: 0,
                mono_ns: 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// CONTROL-2: the recent part holds only events since the look before.
    #[test]
    fn recent_is_the_difference() {
        let mut then = Totals::default();
        then.requests[Action::Passed.index()] = 5;
        then.upstream_duration.buckets[0] = 5;
        let mut now = then;
        now.requests[Action::Passed.index()] = 7;
        now.requests[Action::Banned.index()] = 3;
        now.upstream_duration.buckets[2] = 200;
        let recent = counted(&less(&now, &then), Some(60));
        assert_eq!((recent.requests, recent.passed, recent.refused), (5, 2, 3));
        assert_eq!(json!(recent.actions), json!({"passed": 2, "banned": 3}));
        assert_eq!(recent.upstream.p99_seconds, Some(0.0025));
        let nothing = counted(&less(&now, &now), Some(0));
        assert_eq!(nothing.upstream.p99_seconds, None);
    }
}
