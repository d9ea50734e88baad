//! Every metric: name, help, unit, labels. Nothing is counted here: the control loop gathers the
//! facts when Prometheus asks, and another thread writes them in its text format, with what the
//! system says of the process.
//!
//! Counters and gauges go through the exporter, which is never installed as the process's recorder.
//! What it has no words for is written here: histograms that arrive as exact buckets (its own would
//! keep every sample until upkeep runs), and the processor time, a counter with a fraction.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use weir_shared::ban::Cause;
use weir_shared::totals::{
    ConnectionError, DURATION_BOUNDS_US, Histogram, RESPONSE_CLASSES, Totals,
};
use weir_shared::verdict::{Action, LimitHit};

mod process;

pub(crate) use process::Process;
use process::{boot_seconds, float};

use crate::alert::AlertKind;
use crate::lookup::{LookupFacts, Outcome};
use crate::rules::{self, RulesFacts};
use crate::state::FileCounts;

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The metrics endpoint's recorder.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    /// When the machine started, seconds since 1970. Read once: the file that tells it lists every
    /// interrupt.
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
    /// Untrusted peers that forward for many clients (CLIENT-7), within the last hour.
    pub(crate) untrusted_forwarders: usize,
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
    /// From rules.json.
    pub(crate) rules: RulesFacts,
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

    /// The text for Prometheus: in the order of the names, so that two scrapes can be compared by
    /// eye.
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
        blocks.push(rules_block(&facts.rules));
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

// long: a flat list of metrics
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
        "Broken limits, by the limit that was broken: a window, second or concurrent."
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
    describe_gauge!(
        "waf_untrusted_forwarders",
        Unit::Count,
        "Peers that forwarded for many clients in the last hour and are not in WAF_TRUSTED_PROXIES."
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
// long: a flat list of metrics
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
    for (kind, count) in LimitHit::ALL.into_iter().zip(totals.limit_hits) {
        counter!("waf_limit_hits_total", "kind" => kind.name()).absolute(count);
    }
    gauge!("waf_bans_active").set(float(facts.bans_active as u64));
    for (cause, count) in Cause::ALL.into_iter().zip(facts.bans_made) {
        counter!("waf_bans_total", "cause" => cause.name()).absolute(count);
    }
    counter!("waf_bans_dropped_total").absolute(facts.bans_dropped);
    gauge!("waf_untrusted_forwarders").set(float(facts.untrusted_forwarders as u64));
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
    let rules = &facts.rules;
    for (outcome, count) in [("taken", rules.edits_taken), ("bad", rules.edits_bad)] {
        counter!("waf_state_edits_total", "file" => rules::FILE, "outcome" => outcome)
            .absolute(count);
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

/// Series that come and go, which the exporter knows no words for: it would show one that lost its
/// place for ever. The labels are letters and digits of our own making.
fn labelled_block(name: &str, help: &str, label: &str, series: &BTreeMap<String, u64>) -> String {
    let mut block = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
    for (value, count) in series {
        // Writing to a String cannot fail.
        let _ = writeln!(block, "{name}{{{label}=\"{value}\"}} {count}");
    }
    block
}

/// Hits of the rules that are in force (RULE-6). A file's name is whatever the operator wrote.
fn rules_block(rules: &RulesFacts) -> String {
    let mut block = "# HELP waf_rule_hits_total Requests that a rule or a list of rules.json refused, banned or let through.\n\
                     # TYPE waf_rule_hits_total counter\n"
        .to_owned();
    let mut rules: Vec<_> = rules.rules.iter().collect();
    rules.sort_by(|one, other| (&one.name, one.kind).cmp(&(&other.name, other.kind)));
    for rule in rules {
        let name = rule
            .name
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let (kind, hits) = (rule.kind.name(), rule.hits());
        // Writing to a String cannot fail.
        let _ = writeln!(
            block,
            "waf_rule_hits_total{{rule=\"{name}\",kind=\"{kind}\"}} {hits}"
        );
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

#[cfg(test)]
mod tests;
