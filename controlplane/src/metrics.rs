//! Every metric: name, help, unit, labels. Nothing is counted here: the control loop gathers the facts when Prometheus
//! asks, and another thread writes them in its text format, with what the system says of the process.
//!
//! Counters and gauges go through the exporter, which is never installed as the process's recorder. What it has no
//! words for is written here: histograms that arrive as exact buckets (its own would keep every sample until upkeep
//! runs), and the processor time, a counter with a fraction.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use weir_shared::ban::Cause;
use weir_shared::totals::{
    ConnectionError, DURATION_BOUNDS_US, Histogram, RESPONSE_CLASSES, Totals,
};
use weir_shared::verdict::{Action, LimitKind};

use crate::alert::AlertKind;
use crate::lookup::{LookupFacts, Outcome};
use crate::state::FileCounts;

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The metrics endpoint's recorder.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    /// When the machine started, seconds since 1970. Read once: the file that tells it lists every interrupt.
    boot_seconds: Option<u64>,
}

/// What is true at the moment of asking.
pub(crate) struct Facts {
    /// From the data plane.
    pub(crate) totals: Totals,
    /// `WAF_MODE=observe`
    pub(crate) observe: bool,
    /// Bans that are active now.
    pub(crate) bans_active: usize,
    /// Bans made, by position in [`Cause::ALL`].
    pub(crate) bans_made: [u64; Cause::ALL.len()],
    /// Bans dropped for `WAF_MAX_BANS`.
    pub(crate) bans_dropped: u64,
    /// Alerts raised, by position in [`AlertKind::ALL`].
    pub(crate) alerts: [u64; AlertKind::ALL.len()],
    /// Alert lines that found the log's channel full.
    pub(crate) alert_lines_dropped: u64,
    /// Requests by country, by label.
    pub(crate) countries: BTreeMap<String, u64>,
    /// Requests by AS number, by label.
    pub(crate) asns: BTreeMap<String, u64>,
    /// Of the state files.
    pub(crate) state: [FileCounts; 4],
    /// From the lookups.
    pub(crate) lookups: LookupFacts,
}

impl Metrics {
    /// Describes every metric.
    pub(crate) fn new(version: &'static str) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            describe();
            gauge!("waf_build_info", "version" => version).set(1.0);
        });
        Self {
            recorder,
            boot_seconds: boot_seconds(),
        }
    }

    /// What the system says of the process now.
    pub(crate) fn process(&self) -> Option<Process> {
        Process::read(self.boot_seconds?)
    }

    /// The text for Prometheus: in the order of the names, so that two scrapes can be compared by eye.
    pub(crate) fn render(&self, facts: &Facts, process: Option<&Process>) -> String {
        with_local_recorder(&self.recorder, || {
            record(facts);
            process.into_iter().for_each(record_process);
        });
        let rendered = self.recorder.handle().render();
        let mut blocks: Vec<String> = rendered
            .split("\n\n")
            .filter(|block| !block.trim().is_empty())
            .map(sorted_block)
            .collect();
        blocks.push(histogram_block(
            "waf_request_duration_seconds",
            "Time from the head of a request to the end of its answer, in seconds.",
            &facts.totals.request_duration,
        ));
        blocks.push(histogram_block(
            "waf_upstream_duration_seconds",
            "Time from the request sent to the application to the head of its answer, in seconds.",
            &facts.totals.upstream_duration,
        ));
        blocks.push(labelled_block(
            "waf_requests_by_country_total",
            "Requests by the country of their client, those with most requests; the rest is other.",
            "country",
            &facts.countries,
        ));
        blocks.push(labelled_block(
            "waf_requests_by_asn_total",
            "Requests by the AS number of their client, those with most requests; the rest is other.",
            "asn",
            &facts.asns,
        ));
        if let Some(process) = process {
            blocks.push(format!(
                "# HELP process_cpu_seconds_total Processor time used by the process, in seconds.\n\
                 # TYPE process_cpu_seconds_total counter\n\
                 process_cpu_seconds_total {}\n",
                process.cpu_seconds
            ));
        }
        blocks.sort_unstable();
        blocks.concat()
    }
}

fn describe() {
    describe_counter!(
        "waf_requests_total",
        Unit::Count,
        "Requests that ended, by how they ended and by mode; health checks are not counted."
    );
    describe_counter!(
        "waf_bytes_total",
        Unit::Bytes,
        "Bytes of bodies and WebSocket streams, from clients (request) and to them (response)."
    );
    describe_counter!(
        "waf_responses_total",
        Unit::Count,
        "Answers of the application, by the class of their status."
    );
    describe_counter!(
        "waf_limit_hits_total",
        Unit::Count,
        "Broken limits, by the window that was broken."
    );
    describe_gauge!(
        "waf_bans_active",
        Unit::Count,
        "Bans that are active now; in enforce mode without those made in observe mode."
    );
    describe_counter!(
        "waf_bans_total",
        Unit::Count,
        "Bans made since the start, by what made them."
    );
    describe_counter!(
        "waf_bans_dropped_total",
        Unit::Count,
        "Bans dropped or turned away because WAF_MAX_BANS was reached."
    );
    describe_gauge!("waf_clients", Unit::Count, "Clients in the table now.");
    describe_counter!(
        "waf_clients_evicted_total",
        Unit::Count,
        "Clients dropped because the table was full."
    );
    describe_counter!(
        "waf_state_edits_total",
        Unit::Count,
        "Edits of state files, taken in or set aside as bad."
    );
    describe_counter!(
        "waf_state_writes_total",
        Unit::Count,
        "Writes of state files, by outcome."
    );
    describe_counter!(
        "waf_lookups_total",
        Unit::Count,
        "Lookups of clients, by outcome; answers that were kept are not counted."
    );
    describe_gauge!(
        "waf_lookup_file_read_timestamp_seconds",
        Unit::Seconds,
        "When the lookup database files were read last, in seconds since 1970; 0 without any."
    );
    describe_counter!(
        "waf_lookup_file_errors_total",
        Unit::Count,
        "Replacements of lookup database files that could not be used."
    );
    describe_counter!(
        "waf_process_log_lines_dropped_total",
        Unit::Count,
        "Process log lines lost because standard error was not read."
    );
    describe_counter!(
        "waf_log_lines_dropped_total",
        Unit::Count,
        "Request log lines lost because the writer was behind."
    );
    describe_counter!(
        "waf_events_dropped_total",
        Unit::Count,
        "Events for the control plane lost because it was behind."
    );
    describe_counter!(
        "waf_alerts_total",
        Unit::Count,
        "Alerts raised, by kind; those without a line of their own too."
    );
    describe_gauge!(
        "waf_connections",
        Unit::Count,
        "Client connections open now."
    );
    describe_counter!(
        "waf_connection_errors_total",
        Unit::Count,
        "Connections that ended without a request, or were turned away, by cause."
    );
    describe_gauge!(
        "waf_build_info",
        Unit::Count,
        "Always 1; the label tells the version that runs."
    );
    describe_gauge!(
        "process_resident_memory_bytes",
        Unit::Bytes,
        "Resident memory of the process, in bytes."
    );
    describe_gauge!(
        "process_virtual_memory_bytes",
        Unit::Bytes,
        "Virtual memory of the process, in bytes."
    );
    describe_gauge!(
        "process_open_fds",
        Unit::Count,
        "File descriptors that are open."
    );
    describe_gauge!(
        "process_max_fds",
        Unit::Count,
        "File descriptors that may be open at most."
    );
    describe_gauge!("process_threads", Unit::Count, "Threads of the process.");
    describe_gauge!(
        "process_start_time_seconds",
        Unit::Seconds,
        "When the process started, in seconds since 1970."
    );
}

/// Sets everything that the exporter renders. Series of fixed label sets are there from the start.
fn record(facts: &Facts) {
    let totals = &facts.totals;
    let mode = if facts.observe { "observe" } else { "enforce" };
    for (action, count) in Action::ALL.into_iter().zip(totals.requests) {
        for of in ["enforce", "observe"] {
            let count = if of == mode { count } else { 0 };
            counter!("waf_requests_total", "action" => action.name(), "mode" => of).absolute(count);
        }
    }
    counter!("waf_bytes_total", "direction" => "request").absolute(totals.request_bytes);
    counter!("waf_bytes_total", "direction" => "response").absolute(totals.response_bytes);
    for (class, count) in RESPONSE_CLASSES.into_iter().zip(totals.responses) {
        counter!("waf_responses_total", "class" => class).absolute(count);
    }
    for (kind, count) in LimitKind::ALL.into_iter().zip(totals.limit_hits) {
        counter!("waf_limit_hits_total", "kind" => kind.name()).absolute(count);
    }
    gauge!("waf_bans_active").set(float(facts.bans_active as u64));
    for (cause, count) in Cause::ALL.into_iter().zip(facts.bans_made) {
        counter!("waf_bans_total", "cause" => cause.name()).absolute(count);
    }
    counter!("waf_bans_dropped_total").absolute(facts.bans_dropped);
    gauge!("waf_clients").set(float(totals.clients));
    counter!("waf_clients_evicted_total").absolute(totals.clients_evicted);
    for of in &facts.state {
        for (outcome, count) in [("taken", of.edits_taken), ("bad", of.edits_bad)] {
            counter!("waf_state_edits_total", "file" => of.file, "outcome" => outcome)
                .absolute(count);
        }
        for (outcome, count) in [("ok", of.writes_ok), ("error", of.writes_error)] {
            counter!("waf_state_writes_total", "file" => of.file, "outcome" => outcome)
                .absolute(count);
        }
    }
    for (outcome, count) in Outcome::ALL.into_iter().zip(facts.lookups.outcomes) {
        counter!("waf_lookups_total", "outcome" => outcome.name()).absolute(count);
    }
    gauge!("waf_lookup_file_read_timestamp_seconds")
        .set(float(facts.lookups.file_read_ms) / 1000.0);
    counter!("waf_lookup_file_errors_total").absolute(facts.lookups.file_errors);
    counter!("waf_log_lines_dropped_total").absolute(totals.records_dropped);
    counter!("waf_process_log_lines_dropped_total").absolute(totals.process_log_lines_dropped);
    for (kind, count) in [
        ("break", totals.breaks_dropped),
        ("request", totals.finished_dropped),
        ("alert", facts.alert_lines_dropped),
    ] {
        counter!("waf_events_dropped_total", "kind" => kind).absolute(count);
    }
    for (kind, count) in AlertKind::ALL.into_iter().zip(facts.alerts) {
        counter!("waf_alerts_total", "kind" => kind.name()).absolute(count);
    }
    gauge!("waf_connections").set(float(totals.connections));
    for (kind, count) in ConnectionError::ALL
        .into_iter()
        .zip(totals.connection_errors)
    {
        counter!("waf_connection_errors_total", "kind" => kind.name()).absolute(count);
    }
}

fn record_process(process: &Process) {
    gauge!("process_resident_memory_bytes").set(float(process.resident_bytes));
    gauge!("process_virtual_memory_bytes").set(float(process.virtual_bytes));
    gauge!("process_open_fds").set(float(process.open_fds));
    gauge!("process_max_fds").set(process.max_fds);
    gauge!("process_threads").set(float(process.threads));
    gauge!("process_start_time_seconds").set(process.start_seconds);
}

/// A block of the exporter with its lines in order: it walks a hash map.
fn sorted_block(block: &str) -> String {
    let mut lines: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    // `# HELP` before `# TYPE` before the samples: the order of the bytes.
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

/// Series that come and go, which the exporter knows no words for: it would show one that lost its place for ever. The
/// labels are letters and digits of our own making.
fn labelled_block(name: &str, help: &str, label: &str, series: &BTreeMap<String, u64>) -> String {
    let mut block = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
    for (value, count) in series {
        // Writing to a String cannot fail.
        let _ = writeln!(block, "{name}{{{label}=\"{value}\"}} {count}");
    }
    block
}

fn histogram_block(name: &str, help: &str, histogram: &Histogram) -> String {
    let mut block = format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
    let mut count = 0;
    let bounds = DURATION_BOUNDS_US
        .into_iter()
        .map(|bound| seconds(bound).to_string())
        .chain(["+Inf".to_owned()]);
    for (bound, bucket) in bounds.zip(histogram.buckets) {
        count += bucket;
        // Writing to a String cannot fail.
        let _ = writeln!(block, "{name}_bucket{{le=\"{bound}\"}} {count}");
    }
    let sum = seconds(histogram.sum_us);
    let _ = writeln!(block, "{name}_sum {sum}\n{name}_count {count}");
    block
}

/// Microseconds in seconds.
fn seconds(microseconds: u64) -> f64 {
    float(microseconds) / 1e6
}

/// Exact up to 2⁵³, which no fact here reaches.
#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus knows no other number"
)]
fn float(value: u64) -> f64 {
    value as f64
}

/// What the operating system says of the process.
pub(crate) struct Process {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_fds: u64,
    /// Infinite where there is no bound.
    max_fds: f64,
    threads: u64,
    start_seconds: f64,
}

/// Of proc_stat(5); nothing where there is none.
fn boot_seconds() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    boot.trim().parse().ok()
}

impl Process {
    /// Reads `/proc/self`; nothing where there is none.
    fn read(boot_seconds: u64) -> Option<Self> {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).ok();
        let open_fds = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        Self::parse(
            &file("stat")?,
            &file("status")?,
            &file("limits")?,
            boot_seconds,
            // One of them is the directory that is being read.
            open_fds.saturating_sub(1),
        )
    }

    fn parse(
        stat: &str,
        status: &str,
        limits: &str,
        boot_seconds: u64,
        open_fds: u64,
    ) -> Option<Self> {
        // proc_pid_stat(5): times are in USER_HZ, which is 100 on every architecture that Linux gives to programs.
        const TICKS_A_SECOND: f64 = 100.0;
        // The second field is the name in parentheses and may hold blanks: count from its end, at field 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let kibibytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let number = line.trim().strip_suffix("kB")?.trim();
            Some(number.parse::<u64>().ok()? * 1024)
        };
        let soft_limit = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?
            .split_whitespace()
            .next()?;
        Some(Self {
            cpu_seconds: float(field(14)? + field(15)?) / TICKS_A_SECOND,
            resident_bytes: kibibytes("VmRSS:")?,
            virtual_bytes: kibibytes("VmSize:")?,
            open_fds,
            max_fds: soft_limit.parse().unwrap_or(f64::INFINITY),
            threads: field(20)?,
            start_seconds: float(boot_seconds) + float(field(22)?) / TICKS_A_SECOND,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn facts() -> Facts {
        let mut totals = Totals {
            request_bytes: 100,
            response_bytes: 200,
            connections: 3,
            breaks_dropped: 4,
            finished_dropped: 28,
            records_dropped: 5,
            process_log_lines_dropped: 29,
            clients: 6,
            clients_evicted: 7,
            ..Totals::default()
        };
        totals.requests[Action::Passed.index()] = 10;
        totals.requests[Action::Banned.index()] = 2;
        totals.limit_hits[LimitKind::HourBytes.index()] = 1;
        totals.connection_errors[ConnectionError::Panic.index()] = 8;
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
            bans_made: [1, 2, 3, 4],
            bans_dropped: 5,
            alerts: [21, 22, 23, 24, 25, 26],
            alert_lines_dropped: 27,
            countries: BTreeMap::from([("DE".to_owned(), 3), ("other".to_owned(), 4)]),
            asns: BTreeMap::new(),
            state: [
                file("bans.json", 11),
                file("clients.json", 12),
                file("lookups.json", 13),
                file("alerts.json", 14),
            ],
            lookups: LookupFacts {
                outcomes: [21, 22, 23, 24, 25],
                file_read_ms: 1_795_276_800_500,
                file_errors: 26,
            },
        }
    }

    fn process() -> Option<Process> {
        Process::parse(
            "42 (we ir) x) S 1 2 3 4 5 6 7 8 9 10 150 75 0 0 20 0 5 0 1234 99 98",
            "Name:\tweir\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\n",
            "Limit  Soft Limit Hard Limit Units\nMax open files            1024                 4096                 files\n",
            1_700_000_000,
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
waf_alerts_total{kind="file_error"} 25
waf_alerts_total{kind="state_error"} 26
waf_alerts_total{kind="watch"} 23
waf_bans_active 9
waf_bans_dropped_total 5
waf_bans_total{cause="admin"} 3
waf_bans_total{cause="byte_limit"} 2
waf_bans_total{cause="edit"} 4
waf_bans_total{cause="rate_limit"} 1
waf_build_info{version="1.2.3"} 1
waf_bytes_total{direction="request"} 100
waf_bytes_total{direction="response"} 200
waf_clients 6
waf_clients_evicted_total 7
waf_connection_errors_total{kind="accept"} 0
waf_connection_errors_total{kind="bad_request"} 0
waf_connection_errors_total{kind="banned"} 0
waf_connection_errors_total{kind="framing"} 0
waf_connection_errors_total{kind="head_timeout"} 0
waf_connection_errors_total{kind="head_too_large"} 0
waf_connection_errors_total{kind="panic"} 8
waf_connection_errors_total{kind="too_many"} 0
waf_connection_errors_total{kind="too_many_client"} 0
waf_connection_errors_total{kind="too_many_netblock"} 0
waf_connections 3
waf_events_dropped_total{kind="alert"} 27
waf_events_dropped_total{kind="break"} 4
waf_events_dropped_total{kind="request"} 28
waf_limit_hits_total{kind="day"} 0
waf_limit_hits_total{kind="day_bytes"} 0
waf_limit_hits_total{kind="hour"} 0
waf_limit_hits_total{kind="hour_bytes"} 1
waf_limit_hits_total{kind="minute"} 0
waf_limit_hits_total{kind="minute_bytes"} 0
waf_log_lines_dropped_total 5
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
"#;
        let (requests, rest): (Vec<&str>, Vec<&str>) = samples
            .into_iter()
            .partition(|line| line.starts_with("waf_requests_total"));
        let rest = rest.join("\n");
        assert!(rest.starts_with(expected), "{rest}");
        let rest = rest.strip_prefix(expected).unwrap();
        assert!(rest.starts_with(
            r#"waf_state_edits_total{file="alerts.json",outcome="bad"} 3
waf_state_edits_total{file="alerts.json",outcome="taken"} 2
waf_state_edits_total{file="bans.json",outcome="bad"} 3
waf_state_edits_total{file="bans.json",outcome="taken"} 2
waf_state_edits_total{file="clients.json",outcome="bad"} 3
waf_state_edits_total{file="clients.json",outcome="taken"} 2
waf_state_edits_total{file="lookups.json",outcome="bad"} 3
waf_state_edits_total{file="lookups.json",outcome="taken"} 2
waf_state_writes_total{file="alerts.json",outcome="error"} 1
waf_state_writes_total{file="alerts.json",outcome="ok"} 14
waf_state_writes_total{file="bans.json",outcome="error"} 1
waf_state_writes_total{file="bans.json",outcome="ok"} 11
waf_state_writes_total{file="clients.json",outcome="error"} 1
waf_state_writes_total{file="clients.json",outcome="ok"} 12
waf_state_writes_total{file="lookups.json",outcome="error"} 1
waf_state_writes_total{file="lookups.json",outcome="ok"} 13
waf_upstream_duration_seconds_bucket{le="0.0005"} 0
"#
        ));
        assert!(rest.ends_with(
            "waf_upstream_duration_seconds_sum 0\nwaf_upstream_duration_seconds_count 0"
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

    /// METRIC: every line parses; each family has one HELP, then one TYPE, then its samples, in one piece; no series is
    /// there twice, also after a second scrape.
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

    /// METRIC: a counter goes on with what is true at the next scrape, a gauge may fall.
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

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_can_be_read() {
        let process = Metrics::new("1.2.3").process().unwrap();
        assert!(process.resident_bytes > 1 << 20);
        assert!(process.open_fds >= 3 && process.threads >= 1);
        assert!(process.start_seconds > 1.7e9);
    }

    /// METRIC: whatever the board and the alert rules ask for exists: each metric they name, each label, and each value of
    /// a label.
    #[test]
    fn the_board_and_the_rules_name_what_exists() {
        let page = rendered(&Metrics::new("1.2.3"), &facts());
        let board = include_str!("../deploy/grafana-board.json");
        let rules = include_str!("../deploy/prometheus-rules.yml");
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
                            line.starts_with(family)
                                && line.contains(&format!("{label}=\"{value}\""))
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
}
