//! The metrics endpoint: the metrics of `table.rs` in the text format of Prometheus. Nothing is
//! counted here: the control loop gathers the facts when Prometheus asks, and another thread writes
//! them, together with the system's figures of the process.
//!
//! Counters and gauges go through the exporter, which is never installed as the process's recorder.
//! Metrics that the exporter cannot express are written here: histograms that arrive as exact
//! buckets (its own would keep every sample until upkeep runs), series that come and go, and
//! counters with a fraction.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use weir_shared::rules::{Crawler, Rule, RuleKind};
use weir_shared::totals::{DURATION_BOUNDS_US, Histogram};

use crate::feeds::facts::FeedFacts;
use crate::feeds::report::Outcome;

mod facts;
mod process;
mod table;

pub(crate) use facts::Facts;
pub(crate) use process::Process;
use process::{boot_seconds, float};
use table::{METRICS, Values};

/// The most lists of each kind with a series of their own: the first ones in rules.json.
const MAX_LIST_SERIES: usize = 64;
/// The name of the series for the hits of all further lists; no file has this name.
const OTHER_LISTS: &str = "other/lists/";

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The metrics endpoint's recorder.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    /// When the machine started, in seconds since 1970. Read once, so that the start of the process
    /// does not seem to move if the wall clock is set later.
    boot_seconds: f64,
}

impl Metrics {
    /// Describes every metric that the exporter renders.
    pub(crate) fn new(version: &'static str) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for metric in METRICS {
            let (name, help) = (KeyName::from(metric.name), metric.help.into());
            match metric.values {
                Values::Counter(_) | Values::CounterBy(..) | Values::CounterByTwo(..) => {
                    recorder.describe_counter(name, None, help);
                }
                Values::Gauge(_) | Values::ProcessGauge(_) => {
                    recorder.describe_gauge(name, None, help);
                }
                Values::Version => {
                    recorder.describe_gauge(name, None, help);
                    gauge(&recorder, metric.name, [("version", version)], 1.0);
                }
                Values::CounterOfSome(..)
                | Values::CertificateTime(_)
                | Values::RuleHits(_)
                | Values::CrawlerRequests(_)
                | Values::SharedUse(_)
                | Values::FleetGauge(_)
                | Values::FleetCounter(..)
                | Values::FeedGauge(_)
                | Values::FeedFetches(_)
                | Values::Durations(_)
                | Values::ProcessCounter(_) => {}
            }
        }
        Self {
            recorder,
            boot_seconds: boot_seconds(),
        }
    }

    /// The system's figures of the process now.
    pub(crate) fn process(&self) -> Option<Process> {
        Process::read(self.boot_seconds)
    }

    /// The text for Prometheus: in the order of the names, so that two scrapes can be compared by
    /// eye.
    // long: a flat list of the kinds of metrics
    pub(crate) fn render(&self, facts: &Facts, process: Option<&Process>) -> String {
        let recorder = &self.recorder;
        let mut blocks = Vec::new();
        for metric in METRICS {
            let (name, help) = (metric.name, metric.help);
            match metric.values {
                Values::Counter(of) => counter(recorder, name, [], of(facts)),
                Values::CounterBy(label, of) => {
                    for (value, count) in of(facts) {
                        counter(recorder, name, [(label, value)], count);
                    }
                }
                Values::CounterByTwo([one, other], of) => {
                    for ([first, second], count) in of(facts) {
                        counter(recorder, name, [(one, first), (other, second)], count);
                    }
                }
                Values::Gauge(of) => gauge(recorder, name, [], of(facts)),
                Values::ProcessGauge(of) => {
                    if let Some(process) = process {
                        gauge(recorder, name, [], of(process));
                    }
                }
                Values::Version => {}
                Values::CounterOfSome(label, of) => {
                    let series = of(facts).iter();
                    let series =
                        series.map(|(value, count)| (format!("{label}=\"{value}\""), count));
                    blocks.push(block(name, help, "counter", series));
                }
                Values::RuleHits(of) => {
                    blocks.push(block(name, help, "counter", rule_hits(of(facts))));
                }
                Values::CrawlerRequests(of) => {
                    let requests = of(facts).iter().flat_map(|one| crawler_requests(one));
                    blocks.push(block(name, help, "counter", requests));
                }
                Values::SharedUse(of) => {
                    let ratios = of(facts).iter();
                    let ratios = ratios.map(|one| (label("rule", &one.rule.name), one.ratio));
                    let mut ratios: Vec<(String, f64)> = ratios.collect();
                    ratios.sort_by(|(one, _), (other, _)| one.cmp(other));
                    blocks.push(block(name, help, "gauge", ratios));
                }
                Values::FeedGauge(_) | Values::FeedFetches(_) if facts.feeds.is_empty() => {}
                Values::FeedGauge(of) => {
                    let values = facts.feeds.iter();
                    let values =
                        values.filter_map(|feed| Some((label("feed", &feed.name), of(feed)?)));
                    blocks.push(block(name, help, "gauge", values));
                }
                Values::FeedFetches(of) => {
                    blocks.push(block(name, help, "counter", feed_fetches(&facts.feeds, of)));
                }
                Values::CertificateTime(_) if facts.certificates.is_empty() => {}
                Values::CertificateTime(of) => {
                    let times = facts.certificates.iter();
                    let times = times.map(|one| (label("name", &one.name), of(one) / 1000));
                    blocks.push(block(name, help, "gauge", times));
                }
                Values::FleetGauge(of) => {
                    let value = facts.fleet.as_ref().map(|fleet| (String::new(), of(fleet)));
                    blocks.extend(value.map(|value| block(name, help, "gauge", [value])));
                }
                Values::FleetCounter(labels, of) => {
                    blocks.extend(facts.fleet.as_ref().map(|fleet| {
                        let counts = of(fleet).into_iter().map(|(value, count)| {
                            (
                                labels.map_or_else(String::new, |name| label(name, value)),
                                count,
                            )
                        });
                        block(name, help, "counter", counts)
                    }));
                }
                Values::Durations(of) => blocks.push(histogram_block(name, help, of(facts))),
                Values::ProcessCounter(of) => {
                    let value = process.map(|process| (String::new(), of(process)));
                    blocks.extend(value.map(|value| block(name, help, "counter", [value])));
                }
            }
        }
        let rendered = recorder.handle().render();
        let of_exporter = rendered.split("\n\n");
        blocks.extend(
            of_exporter
                .filter(|block| !block.trim().is_empty())
                .map(sorted_block),
        );
        blocks.sort_unstable();
        blocks.concat()
    }
}

/// Metadata that the exporter requires and does not show.
static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

type Labels<const N: usize> = [(&'static str, &'static str); N];

fn key<const N: usize>(name: &'static str, labels: Labels<N>) -> Key {
    let labels = labels.map(|(name, value)| Label::from_static_parts(name, value));
    Key::from_parts(name, labels.to_vec())
}

/// Writes a counter. Series of fixed label sets exist from the start, with 0.
fn counter<const N: usize>(
    recorder: &PrometheusRecorder,
    name: &'static str,
    labels: Labels<N>,
    count: u64,
) {
    let key = key(name, labels);
    recorder.register_counter(&key, &METADATA).absolute(count);
}

fn gauge<const N: usize>(
    recorder: &PrometheusRecorder,
    name: &'static str,
    labels: Labels<N>,
    value: f64,
) {
    let key = key(name, labels);
    recorder.register_gauge(&key, &METADATA).set(value);
}

/// Sorts the lines of a block of the exporter, which walks a hash map.
fn sorted_block(block: &str) -> String {
    let mut lines: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    // `# HELP` before `# TYPE` before the samples: the order of the bytes.
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

/// Writes a metric family without the exporter. `labels` are in their written form.
fn block<V: Display>(
    name: &str,
    help: &str,
    kind: &str,
    series: impl IntoIterator<Item = (String, V)>,
) -> String {
    let mut block = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in series {
        // Writing to a String cannot fail.
        let _ = if labels.is_empty() {
            writeln!(block, "{name} {value}")
        } else {
            writeln!(block, "{name}{{{labels}}} {value}")
        };
    }
    block
}

/// A label whose value comes from an operator.
fn label(name: &str, value: &str) -> String {
    let value = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Hits of the rules, by name. The names of files come from the operator, and `allow` and `deny` of
/// rules.json may name any number of files: those after the first [`MAX_LIST_SERIES`] share one
/// series.
fn rule_hits(rules: &[Arc<Rule>]) -> impl Iterator<Item = (String, u64)> {
    let mut lists: BTreeMap<RuleKind, usize> = BTreeMap::new();
    let mut hits: BTreeMap<(&str, RuleKind), u64> = BTreeMap::new();
    for rule in rules {
        let is_list = matches!(rule.kind, RuleKind::Allow | RuleKind::Deny);
        let before = lists.entry(rule.kind).or_default();
        *before += usize::from(is_list);
        let name = match *before > MAX_LIST_SERIES {
            true => OTHER_LISTS,
            false => &rule.name,
        };
        *hits.entry((name, rule.kind)).or_default() += rule.hits();
    }
    hits.into_iter().map(|((name, kind), hits)| {
        let labels = format!("{},kind=\"{}\"", label("rule", name), kind.name());
        (labels, hits)
    })
}

/// Requests that claim to come from a crawler.
fn crawler_requests(crawler: &Crawler) -> impl Iterator<Item = (String, u64)> {
    let name = label("crawler", &crawler.rule.name);
    let requests = crawler.counts.requests();
    requests.map(move |(state, outcome, count)| {
        let labels = format!("{name},state=\"{}\",outcome=\"{outcome}\"", state.name());
        (labels, count)
    })
}

/// Fetches of feeds, by feed and outcome.
fn feed_fetches(
    feeds: &[FeedFacts],
    of: fn(&FeedFacts) -> &[u64; Outcome::ALL.len()],
) -> impl Iterator<Item = (String, u64)> {
    feeds.iter().flat_map(move |feed| {
        let outcomes = Outcome::ALL.into_iter().zip(of(feed));
        outcomes.map(|(outcome, count)| {
            let feed = label("feed", &feed.name);
            (format!("{feed},outcome=\"{}\"", outcome.name()), *count)
        })
    })
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
