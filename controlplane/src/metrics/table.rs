//! Every metric, one row each: its name, its help text, and the source of its values.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Cause;
use weir_shared::rules::{Crawler, Rule};
use weir_shared::table::SharedUse;
use weir_shared::totals::{
    ApplicationWord, ConnectionError, Handshake, Histogram, RESPONSE_CLASSES,
};
use weir_shared::verdict::{Action, LimitHit};

use super::facts::Facts;
use super::process::{Process, float};
use crate::alert::AlertKind;
use crate::certificates::Validity;
use crate::feeds::facts::FeedFacts;
use crate::feeds::report::Outcome as FeedOutcome;
use crate::fleet::event::Rejected;
use crate::fleet::facts::FleetFacts;
use crate::lookup::Outcome;
use crate::rules;
use crate::state::journal::JOURNAL;

/// One metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) values: Values,
}

/// Values by one label.
type ByLabel = Vec<(&'static str, u64)>;

/// Values by two labels.
type ByTwoLabels = Vec<([&'static str; 2], u64)>;

/// The kind of a metric, and the function that reads its values from the facts.
pub(super) enum Values {
    /// A counter without a label.
    Counter(fn(&Facts) -> u64),
    /// A counter by one label.
    CounterBy(&'static str, fn(&Facts) -> ByLabel),
    /// A counter by two labels.
    CounterByTwo([&'static str; 2], fn(&Facts) -> ByTwoLabels),
    /// A counter by one label whose series come and go. The exporter cannot express this: it would
    /// show a removed series forever. The labels are letters and digits.
    CounterOfSome(&'static str, fn(&Facts) -> &BTreeMap<String, u64>),
    /// Hits of the rules that are in force (RULE-6).
    RuleHits(fn(&Facts) -> &[Arc<Rule>]),
    /// Requests that claim to come from a crawler (CRAWL-7).
    CrawlerRequests(fn(&Facts) -> &[Arc<Crawler>]),
    /// How full the counts of shared limits are (SHARE-8).
    SharedUse(fn(&Facts) -> &[SharedUse]),
    /// A gauge of each feed; no series if there is no value.
    FeedGauge(fn(&FeedFacts) -> Option<f64>),
    /// Fetches of each feed, by their outcome.
    FeedFetches(fn(&FeedFacts) -> &[u64; FeedOutcome::ALL.len()]),
    /// A time of each certificate, in milliseconds since 1970.
    CertificateTime(fn(&Validity) -> u64),
    /// A gauge.
    Gauge(fn(&Facts) -> f64),
    /// Always 1, with the version as its label.
    Version,
    /// A gauge of the fleet; without a fleet there is no series.
    FleetGauge(fn(&FleetFacts) -> f64),
    /// A counter of the fleet, by a label or without one.
    FleetCounter(Option<&'static str>, fn(&FleetFacts) -> ByLabel),
    /// A histogram of durations in seconds.
    Durations(fn(&Facts) -> &Histogram),
    /// A gauge of the process.
    ProcessGauge(fn(&Process) -> f64),
    /// A counter of the process, with a fraction.
    ProcessCounter(fn(&Process) -> f64),
}

use Values::{
    CertificateTime, Counter, CounterBy, CounterByTwo, CounterOfSome, CrawlerRequests, Durations,
    FeedFetches, FeedGauge, FleetCounter, FleetGauge, Gauge, ProcessCounter, ProcessGauge,
    RuleHits, SharedUse as SharedRatios, Version,
};

const fn row(name: &'static str, help: &'static str, values: Values) -> Metric {
    Metric { name, help, values }
}

/// Requests by action and mode. The other mode has series with 0.
fn requests(facts: &Facts) -> ByTwoLabels {
    let modes = ["enforce", "observe"];
    let counts = Action::ALL.into_iter().zip(facts.totals.requests);
    let of_modes = |(action, count): (Action, u64)| {
        modes.map(|mode| {
            let is_ours = (mode == "observe") == facts.observe;
            ([action.name(), mode], if is_ours { count } else { 0 })
        })
    };
    counts.flat_map(of_modes).collect()
}

/// Edits of the state files and of rules.json, by file and outcome.
fn edits(facts: &Facts) -> ByTwoLabels {
    // Nobody edits the journal.
    let state = facts.state.iter().filter(|of| of.file != JOURNAL);
    let state = state.map(|of| (of.file, of.edits_taken, of.edits_bad));
    let rules = (rules::FILE, facts.rules.edits_taken, facts.rules.edits_bad);
    state
        .chain([rules])
        .flat_map(|(file, taken, bad)| [([file, "taken"], taken), ([file, "bad"], bad)])
        .collect()
}

/// Writes of the state files, by file and outcome.
fn writes(facts: &Facts) -> ByTwoLabels {
    let of_file = facts.state.iter().flat_map(|of| {
        [
            ([of.file, "ok"], of.writes_ok),
            ([of.file, "error"], of.writes_error),
        ]
    });
    of_file.collect()
}

/// All metrics.
pub(super) static METRICS: &[Metric] = &[
    row(
        "waf_requests_total",
        "Requests that ended, by how they ended and by mode; health checks are not counted.",
        CounterByTwo(["action", "mode"], requests),
    ),
    row(
        "waf_bytes_total",
        "Bytes of bodies and WebSocket streams, from clients (request) and to them (response).",
        CounterBy("direction", |facts| {
            let totals = &facts.totals;
            let (request, response) = (totals.request_bytes, totals.response_bytes);
            vec![("request", request), ("response", response)]
        }),
    ),
    row(
        "waf_responses_total",
        "Answers of the application, by the class of their status.",
        CounterBy("class", |facts| {
            let counts = facts.totals.responses;
            RESPONSE_CLASSES.into_iter().zip(counts).collect()
        }),
    ),
    row(
        "waf_request_duration_seconds",
        "Time from the head of a request to the end of its answer, in seconds.",
        Durations(|facts| &facts.totals.request_duration),
    ),
    row(
        "waf_upstream_duration_seconds",
        "Time from the request sent to the application to the head of its answer, in seconds.",
        Durations(|facts| &facts.totals.upstream_duration),
    ),
    row(
        "waf_upstream_requests",
        "Requests at the application now.",
        Gauge(|facts| float(facts.totals.upstream)),
    ),
    row(
        "waf_upstream_waiting",
        "Requests that wait for their turn at the application now.",
        Gauge(|facts| float(facts.totals.upstream_waiting)),
    ),
    row(
        "waf_requests_by_country_total",
        "Requests by the country of their client, those with most requests; the rest is other.",
        CounterOfSome("country", |facts| &facts.countries),
    ),
    row(
        "waf_requests_by_asn_total",
        "Requests by the AS number of their client, those with most requests; the rest is other.",
        CounterOfSome("asn", |facts| &facts.asns),
    ),
    row(
        "waf_limit_hits_total",
        "Broken limits, by the limit that was broken: a window, second or concurrent.",
        CounterBy("kind", |facts| {
            let kinds = LimitHit::ALL.into_iter().map(LimitHit::name);
            kinds.zip(facts.totals.limit_hits).collect()
        }),
    ),
    row(
        "waf_rule_hits_total",
        "Requests that a rule or a list of rules.json refused, banned or let through.",
        RuleHits(|facts| &facts.rules.rules),
    ),
    row(
        "waf_application_total",
        "Words of the application in WAF_APPLICATION_FIELD; of ignored its fields that were not understood, of ban_left_out the bans that were too many in a second.",
        CounterBy("word", |facts| {
            let words = ApplicationWord::ALL.into_iter().map(ApplicationWord::name);
            words.zip(facts.totals.application).collect()
        }),
    ),
    row(
        "waf_crawler_requests_total",
        "Requests that say that they are a crawler of rules.json, by whether they are, and by outcome.",
        CrawlerRequests(|facts| &facts.rules.crawlers),
    ),
    row(
        "waf_bans_active",
        "Bans that are active now; in enforce mode without those made in observe mode.",
        Gauge(|facts| float(facts.bans_active as u64)),
    ),
    row(
        "waf_bans_total",
        "Bans made since the start, by what made them.",
        CounterBy("cause", |facts| {
            let causes = Cause::ALL.into_iter().map(Cause::name);
            causes.zip(facts.bans_made).collect()
        }),
    ),
    row(
        "waf_bans_dropped_total",
        "Bans dropped or turned away because WAF_MAX_BANS was reached.",
        Counter(|facts| facts.bans_dropped),
    ),
    row(
        "waf_untrusted_forwarders",
        "Peers that forwarded for many clients in the last hour and are not in WAF_TRUSTED_PROXIES.",
        Gauge(|facts| float(facts.untrusted_forwarders as u64)),
    ),
    row(
        "waf_clients",
        "Clients in the table now.",
        Gauge(|facts| float(facts.totals.clients)),
    ),
    row(
        "waf_clients_evicted_total",
        "Clients dropped because the table was full.",
        Counter(|facts| facts.totals.clients_evicted),
    ),
    row(
        "waf_shared_use_ratio",
        "The fullest count of a limit that clients share, by its limit: 1 is full.",
        SharedRatios(|facts| &facts.shared.rules),
    ),
    row(
        "waf_shared_keys",
        "Counts of the limits in force that clients share, held now.",
        Gauge(|facts| float(facts.shared.counts())),
    ),
    row(
        "waf_shared_keys_evicted_total",
        "Counts of limits that clients share, dropped because there were too many.",
        Counter(|facts| facts.shared.evicted),
    ),
    row(
        "waf_known_clients",
        "Clients that are remembered as known, or are trusted by the application.",
        Gauge(|facts| float(facts.known)),
    ),
    row(
        "waf_state_edits_total",
        "Edits of state files, taken in or set aside as bad.",
        CounterByTwo(["file", "outcome"], edits),
    ),
    row(
        "waf_state_writes_total",
        "Writes of state files, by outcome.",
        CounterByTwo(["file", "outcome"], writes),
    ),
    row(
        "waf_lookups_total",
        "Lookups of clients, by outcome; answers that were kept are not counted.",
        CounterBy("outcome", |facts| {
            let outcomes = Outcome::ALL.into_iter().map(Outcome::name);
            outcomes.zip(facts.lookups.outcomes).collect()
        }),
    ),
    row(
        "waf_lookup_file_read_timestamp_seconds",
        "When the lookup database files were read last, in seconds since 1970; 0 without any.",
        Gauge(|facts| float(facts.lookups.file_read_ms) / 1000.0),
    ),
    row(
        "waf_lookup_file_errors_total",
        "Replacements of lookup database files that could not be used.",
        Counter(|facts| facts.lookups.file_errors),
    ),
    row(
        "waf_feed_entries",
        "Entries of each feed that hold.",
        FeedGauge(|feed| Some(float(u64::try_from(feed.entries).unwrap_or(u64::MAX)))),
    ),
    row(
        "waf_feed_age_seconds",
        "How long ago the version of each feed that holds was fetched or confirmed; none without one.",
        FeedGauge(|feed| feed.age_ms.map(|age_ms| float(age_ms) / 1000.0)),
    ),
    row(
        "waf_feed_fetches_total",
        "Fetches of each feed, by outcome.",
        FeedFetches(|feed| &feed.fetches),
    ),
    row(
        "waf_log_lines_dropped_total",
        "Request log lines lost because the writer was behind.",
        Counter(|facts| facts.totals.records_dropped),
    ),
    row(
        "waf_log_lines_left_out_total",
        "Refused requests without a line of their own, because their netblock had WAF_LOG_REFUSED_RATE of them in that second.",
        Counter(|facts| facts.totals.records_left_out),
    ),
    row(
        "waf_process_log_lines_dropped_total",
        "Process log lines lost because standard error was not read.",
        Counter(|facts| facts.totals.process_log_lines_dropped),
    ),
    row(
        "waf_events_dropped_total",
        "Events for the control plane lost because it was behind.",
        CounterBy("kind", |facts| {
            vec![
                ("break", facts.totals.breaks_dropped),
                ("request", facts.totals.finished_dropped),
                ("alert", facts.alert_lines_dropped),
            ]
        }),
    ),
    row(
        "waf_alerts_total",
        "Alerts raised, by kind; those without a line of their own too.",
        CounterBy("kind", |facts| {
            let kinds = AlertKind::ALL.into_iter().map(AlertKind::name);
            kinds.zip(facts.alerts).collect()
        }),
    ),
    row(
        "waf_connections",
        "Client connections open now.",
        Gauge(|facts| float(facts.totals.connections)),
    ),
    row(
        "waf_connection_errors_total",
        "Connections that ended without a request, or were turned away, by cause.",
        CounterBy("kind", |facts| {
            let kinds = ConnectionError::ALL.into_iter().map(ConnectionError::name);
            kinds.zip(facts.totals.connection_errors).collect()
        }),
    ),
    row(
        "waf_tls_handshakes_total",
        "TLS handshakes, by how they ended.",
        CounterBy("outcome", |facts| {
            let outcomes = Handshake::ALL.into_iter().map(Handshake::name);
            outcomes.zip(facts.totals.handshakes).collect()
        }),
    ),
    row(
        "waf_tls_certificate_expiry_timestamp_seconds",
        "When each certificate ends, in seconds since 1970.",
        CertificateTime(|validity| validity.ends_ms),
    ),
    row(
        "waf_tls_certificate_start_timestamp_seconds",
        "When each certificate begins, in seconds since 1970.",
        CertificateTime(|validity| validity.begins_ms),
    ),
    row(
        "waf_fleet_connected",
        "Whether the engine of the fleet answers.",
        FleetGauge(|fleet| float(fleet.connected.into())),
    ),
    row(
        "waf_fleet_instances",
        "Instances of the fleet that live, this one included.",
        FleetGauge(|fleet| float(fleet.instances)),
    ),
    row(
        "waf_fleet_in_step",
        "Whether all instances of the fleet hold the same bans.",
        FleetGauge(|fleet| float(fleet.in_step.into())),
    ),
    row(
        "waf_fleet_outbox",
        "Events of this instance that wait for the engine of the fleet.",
        FleetGauge(|fleet| float(fleet.waiting)),
    ),
    row(
        "waf_fleet_events_total",
        "Events that the engine of the fleet has taken, and events that came from there.",
        FleetCounter(Some("direction"), |fleet| {
            let [sent, received] = fleet.events;
            vec![("sent", sent), ("received", received)]
        }),
    ),
    row(
        "waf_fleet_rejected_total",
        "Entries of the engine of the fleet that were refused, by reason.",
        FleetCounter(Some("reason"), |fleet| {
            let reasons = Rejected::ALL.into_iter().map(Rejected::name);
            reasons.zip(fleet.rejected).collect()
        }),
    ),
    row(
        "waf_fleet_deltas_total",
        "Counts of clients that the engine of the fleet has taken, and those that it did not take.",
        FleetCounter(Some("outcome"), |fleet| {
            let [sent, stale] = fleet.deltas;
            vec![("sent", sent), ("stale", stale)]
        }),
    ),
    row(
        "waf_fleet_deltas_held",
        "Clients whose counts wait, for WAF_FLEET_RATE is reached.",
        FleetGauge(|fleet| float(fleet.held)),
    ),
    row(
        "waf_fleet_batches_total",
        "Batches of counts that the engine of the fleet has taken, that were sent again, and that got no answer.",
        FleetCounter(Some("outcome"), |fleet| {
            let [taken, again, unanswered] = fleet.batches;
            vec![
                ("taken", taken),
                ("again", again),
                ("unanswered", unanswered),
            ]
        }),
    ),
    row(
        "waf_fleet_decisive_total",
        "Bans that only the counts of other instances have made.",
        FleetCounter(None, |fleet| vec![("", fleet.decisive)]),
    ),
    row(
        "waf_fleet_resyncs_total",
        "How often the log of the fleet was read from its beginning.",
        FleetCounter(None, |fleet| vec![("", fleet.resyncs)]),
    ),
    row(
        "waf_fleet_clock_offset_seconds",
        "How far the clock is ahead of that of the engine of the fleet, in seconds.",
        FleetGauge(|fleet| fleet.clock_seconds),
    ),
    row(
        "waf_fleet_round_trip_seconds",
        "The last round trip to the engine of the fleet, in seconds.",
        FleetGauge(|fleet| fleet.round_trip_seconds),
    ),
    row(
        "waf_fleet_settings_differ",
        "Settings that should be the same in the whole fleet and differ at another instance.",
        FleetGauge(|fleet| float(fleet.settings_differ)),
    ),
    row(
        "waf_build_info",
        "Always 1; the label tells the version that runs.",
        Version,
    ),
    row(
        "process_cpu_seconds_total",
        "Processor time used by the process, in seconds.",
        ProcessCounter(|process| process.cpu_seconds),
    ),
    row(
        "process_resident_memory_bytes",
        "Resident memory of the process, in bytes.",
        ProcessGauge(|process| float(process.resident_bytes)),
    ),
    row(
        "process_virtual_memory_bytes",
        "Virtual memory of the process, in bytes.",
        ProcessGauge(|process| float(process.virtual_bytes)),
    ),
    row(
        "process_open_fds",
        "File descriptors that are open.",
        ProcessGauge(|process| float(process.open_fds)),
    ),
    row(
        "process_max_fds",
        "File descriptors that may be open at most.",
        ProcessGauge(|process| process.max_fds),
    ),
    row(
        "process_threads",
        "Threads of the process.",
        ProcessGauge(|process| float(process.threads)),
    ),
    row(
        "process_start_time_seconds",
        "When the process started, in seconds since 1970.",
        ProcessGauge(|process| process.start_seconds),
    ),
];
