//! Alerts: the members of each kind, the bound on lines in a minute, and the newest 1,000 alerts
//! (ALERT-4).
//!
//! An alert is counted, written as one JSON line to the request log and kept for alerts.json. If
//! its kind has used up its lines of this minute, only the number of further alerts is logged, once
//! the minute is over. An alert never refuses a request and never blocks: if the log's channel is
//! full, the line is dropped and counted.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Sender;
use serde::Serialize;
use serde_json::{Map, Value, json};
use weir_shared::api::alerts::Alert;
use weir_shared::ban::Ban;
use weir_shared::rules::{Crawler, Fallen};
use weir_shared::table::SharedRefusal;
use weir_shared::units::Time;

use crate::anomaly::cooldown::Summary;
use crate::anomaly::{Measure, Over, Scope};
use crate::bans::document::BansFile;
use crate::faults::{FaultOf, PartFault};
use crate::line_limit::LineLimit;
use crate::state::document::Document as _;

pub(crate) mod detection;
pub(crate) mod document;
mod shared_cooldowns;

/// The most alerts that alerts.json holds. Not a setting.
pub(crate) const MAX_ALERTS: usize = 1000;
/// An alert that is further ahead of the clock than this was raised while the clock was wrong.
const AHEAD_MS: u64 = 1000;
/// The most scopes that a summary names; of the others it has the number.
const MAX_SCOPES: usize = 100;

/// `kind` of an alert and of `waf_alerts_total`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AlertKind {
    /// A count went over a threshold.
    Anomaly,
    /// What cooldowns held back in an hour.
    AnomalySummary,
    /// The count of a watched netblock went over a threshold.
    Watch,
    /// A ban was made.
    Ban,
    /// A replacement of the lookup database cannot be read.
    FileError,
    /// A state file cannot be written.
    StateError,
    /// An edit of bans.json bans everyone, a proxy, or very much (ALIVE-5).
    Edit,
    /// A certificate has less than a third of its life left, and less than 14 days (EDGE-2).
    Certificate,
    /// A limit that clients share began to refuse (SHARE-8).
    SharedLimit,
    /// Something is wrong with the fleet (FLEET).
    Fleet,
    /// A verified crawler fell into a trap or a jail (CRAWL-4).
    Crawler,
    /// A version of a feed is not taken (FEED-5).
    FeedError,
}

impl AlertKind {
    /// Every kind, in the order of the metrics.
    pub const ALL: [Self; 12] = [
        Self::Anomaly,
        Self::AnomalySummary,
        Self::Watch,
        Self::Ban,
        Self::FileError,
        Self::StateError,
        Self::Edit,
        Self::Certificate,
        Self::SharedLimit,
        Self::Fleet,
        Self::Crawler,
        Self::FeedError,
    ];

    /// The name in log lines, alerts.json and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anomaly => "anomaly",
            Self::AnomalySummary => "anomaly_summary",
            Self::Watch => "watch",
            Self::Ban => "ban",
            Self::FileError => "file_error",
            Self::StateError => "state_error",
            Self::Edit => "edit",
            Self::Certificate => "certificate",
            Self::SharedLimit => "shared_limit",
            Self::Fleet => "fleet",
            Self::Crawler => "crawler",
            Self::FeedError => "feed_error",
        }
    }
}

/// The newest alerts, and the channel to the log.
pub(crate) struct Alerts {
    lines: Sender<Vec<u8>>,
    /// Oldest first.
    recent: VecDeque<Arc<Alert>>,
    raised: [u64; AlertKind::ALL.len()],
    notices: [LineLimit; AlertKind::ALL.len()],
    lines_dropped: u64,
}

impl Alerts {
    pub(crate) fn new(lines: Sender<Vec<u8>>) -> Self {
        Self {
            lines,
            recent: VecDeque::new(),
            raised: [0; AlertKind::ALL.len()],
            notices: Default::default(),
            lines_dropped: 0,
        }
    }

    /// Raises an alert: a count went over its threshold, outside of a cooldown.
    pub(crate) fn anomaly(&mut self, over: &Over, now_ms: u64) {
        let kind = match over.scope {
            Scope::Watch(_) => AlertKind::Watch,
            Scope::Client(_) | Scope::Net(_) | Scope::Asn(_) | Scope::Total => AlertKind::Anomaly,
        };
        self.raise(kind, now_ms, || {
            let mut members = scope_members(over.scope);
            if let Some(watch) = &over.watch {
                members.insert("watch".to_owned(), json!(watch));
            }
            members.insert("threshold".to_owned(), json!(over.measure.name()));
            members.insert("limit".to_owned(), json!(over.threshold));
            members.insert("count".to_owned(), json!(over.count));
            members.insert("cooldown_ends".to_owned(), json!(over.cooldown_ends));
            members
        });
    }

    /// Raises the summary of the alerts that cooldowns held back in an hour.
    pub(crate) fn summary(&mut self, summary: &Summary, now_ms: u64) {
        self.raise(AlertKind::AnomalySummary, now_ms, || {
            let scopes: Vec<Value> = summary
                .scopes
                .iter()
                .take(MAX_SCOPES)
                .map(|(scope, held)| {
                    let mut members = scope_members(*scope);
                    members.insert("held_back".to_owned(), held_back(held));
                    Value::Object(members)
                })
                .collect();
            let mut members = Map::new();
            members.insert("hour".to_owned(), json!(summary.hour));
            members.insert("held_back".to_owned(), json!(summary.held_back()));
            members.insert("scopes".to_owned(), Value::Array(scopes));
            if summary.scopes.len() > MAX_SCOPES {
                let more = summary.scopes.len() - MAX_SCOPES;
                members.insert("more_scopes".to_owned(), json!(more));
            }
            members
        });
    }

    /// Raises an alert about a ban whose notes are complete.
    pub(crate) fn ban(&mut self, ban: &Ban, now_ms: u64) {
        self.raise(AlertKind::Ban, now_ms, || {
            let mut members = Map::new();
            members.insert("netblock".to_owned(), json!(ban.netblock));
            if let Some(client) = ban.client {
                members.insert("client".to_owned(), json!(client));
            }
            members.insert("ban_started".to_owned(), json!(ban.ban_started));
            members.insert("ban_expires".to_owned(), json!(ban.ban_expires));
            members.insert("cause".to_owned(), json!(ban.cause));
            members.insert("reason".to_owned(), json!(ban.reason));
            members.insert("observed".to_owned(), json!(ban.observed));
            let Some(notes) = &ban.notes else {
                return members;
            };
            for (name, value) in [
                ("limit", json!(notes.limit)),
                ("limit_value", json!(notes.limit_value)),
                ("limit_percent", json!(notes.limit_percent)),
                ("netblock_requests", json!(notes.netblock_requests)),
                ("lookup", json!(notes.lookup)),
            ] {
                if !value.is_null() {
                    members.insert(name.to_owned(), value);
                }
            }
            members
        });
    }

    /// Raises an alert: a certificate expires soon.
    pub(crate) fn certificate(&mut self, name: &str, expires: Time, now_ms: u64) {
        self.raise(AlertKind::Certificate, now_ms, || {
            let mut members = Map::new();
            members.insert("name".to_owned(), json!(name));
            members.insert("expires".to_owned(), json!(expires));
            members
        });
    }

    /// A limit that clients share began to refuse (SHARE-8).
    pub(crate) fn shared_limit(
        &mut self,
        refusal: &SharedRefusal,
        cooldown_ends: Time,
        now_ms: u64,
    ) {
        self.raise(AlertKind::SharedLimit, now_ms, || {
            let SharedRefusal {
                rule,
                key,
                quota,
                estimate,
                clients,
                ..
            } = refusal;
            let mut members = Map::new();
            members.insert("rule".to_owned(), json!(rule.name));
            members.insert("per".to_owned(), json!(key.per()));
            members.insert("key".to_owned(), json!(key.to_string()));
            members.insert("window".to_owned(), json!(quota.span.name()));
            members.insert("limit".to_owned(), json!(quota.limit));
            members.insert("count".to_owned(), json!(estimate));
            members.insert("clients".to_owned(), json!(clients));
            members.insert("cooldown_ends".to_owned(), json!(cooldown_ends));
            members
        });
    }

    /// Raises an alert about the fleet: `what` names the problem, `detail` is a sentence.
    pub(crate) fn fleet(&mut self, what: &str, detail: &str, now_ms: u64) {
        self.raise(AlertKind::Fleet, now_ms, || {
            let mut members = Map::new();
            members.insert("what".to_owned(), json!(what));
            members.insert("detail".to_owned(), json!(detail));
            members
        });
    }

    /// Raises an alert: a verified crawler fell into a trap or a jail. Nobody is banned for it.
    pub(crate) fn crawler(&mut self, crawler: &Crawler, fallen: &Fallen, now_ms: u64) {
        self.raise(AlertKind::Crawler, now_ms, || {
            let rule = &fallen.rule;
            let mut members = Map::new();
            members.insert("name".to_owned(), json!(crawler.rule.name));
            members.insert("purpose".to_owned(), json!(crawler.purpose.name()));
            members.insert("client".to_owned(), json!(fallen.client));
            members.insert("rule".to_owned(), json!(rule.name));
            members.insert("rule_kind".to_owned(), json!(rule.kind.name()));
            members
        });
    }

    /// Raises an alert about a fault: a file or version that a part cannot read, write or apply.
    pub(crate) fn fault(&mut self, fault: &PartFault, now_ms: u64) {
        let (kind, member) = match fault.about {
            FaultOf::File => (AlertKind::FileError, "file"),
            FaultOf::State => (AlertKind::StateError, "file"),
            FaultOf::Feed => (AlertKind::FeedError, "feed"),
        };
        self.raise(kind, now_ms, || {
            error_members(member, &fault.of, &fault.error)
        });
    }

    /// Raises an alert: an edit of bans.json has an entry for which an administrator's request
    /// would need force.
    pub(crate) fn edit(&mut self, ban: &Ban, why: &str, now_ms: u64) {
        self.raise(AlertKind::Edit, now_ms, || {
            let mut members = error_members("file", BansFile::FILE, why);
            members.insert("netblock".to_owned(), json!(ban.netblock));
            members
        });
    }

    /// Logs the number of alerts that were held back in the last minute, once it is over. Called in
    /// every turn of the loop.
    pub(crate) fn turn(&mut self, now_ms: u64) {
        self.bring_back(now_ms);
        self.tell_rest(now_ms, |notices| notices.turn(now_ms));
    }

    /// Logs that number before the minute is over, because the service stops.
    pub(crate) fn finish(&mut self, now_ms: u64) {
        self.tell_rest(now_ms, LineLimit::take_rest);
    }

    fn tell_rest(&mut self, now_ms: u64, rest: impl Fn(&mut LineLimit) -> Option<u64>) {
        for kind in AlertKind::ALL {
            let rest = self.notices.get_mut(kind as usize).and_then(&rest);
            if let Some(rest) = rest {
                let mut members = Map::new();
                members.insert("more".to_owned(), json!(rest));
                self.write(kind, now_ms, members);
            }
        }
    }

    /// Alerts raised, by position in [`AlertKind::ALL`], including those whose line was held back.
    pub(crate) const fn raised(&self) -> [u64; AlertKind::ALL.len()] {
        self.raised
    }

    /// Lines that found the log's channel full.
    pub(crate) const fn lines_dropped(&self) -> u64 {
        self.lines_dropped
    }

    /// The newest alerts, oldest first.
    pub(crate) fn recent(&self) -> impl Iterator<Item = &Arc<Alert>> {
        self.recent.iter()
    }

    /// Inserts an alert of alerts.json.
    pub(crate) fn put(&mut self, alert: Arc<Alert>) {
        self.remove(alert.time);
        let place = self.recent.partition_point(|held| held.time < alert.time);
        self.recent.insert(place, alert);
        self.bound();
    }

    /// Removes an alert.
    pub(crate) fn remove(&mut self, time: Time) {
        self.recent.retain(|alert| alert.time != time);
    }

    fn raise(
        &mut self,
        kind: AlertKind,
        now_ms: u64,
        members: impl FnOnce() -> Map<String, Value>,
    ) {
        self.turn(now_ms);
        if let Some(raised) = self.raised.get_mut(kind as usize) {
            *raised += 1;
        }
        let allowed = self
            .notices
            .get_mut(kind as usize)
            .is_some_and(LineLimit::allow);
        if allowed {
            self.write(kind, now_ms, members());
        }
    }

    fn write(&mut self, kind: AlertKind, now_ms: u64, members: Map<String, Value>) {
        let line = Line {
            time: Time(now_ms),
            event: "alert",
            kind: kind.name(),
            members: &members,
        };
        // Cannot fail: the line has only texts, numbers and times.
        let mut line = serde_json::to_vec(&line).unwrap_or_default();
        line.push(b'\n');
        if self.lines.try_send(line).is_err() {
            self.lines_dropped += 1;
        }
        self.bring_back(now_ms);
        let time = self.free_time(now_ms);
        self.recent.push_back(Arc::new(Alert {
            time,
            kind: kind.name().into(),
            members,
        }));
        self.bound();
    }

    /// A time that no other alert has: the file needs a key for each alert, in their order, even if
    /// two are raised in one millisecond or the clock was set back a little.
    fn free_time(&self, now_ms: u64) -> Time {
        let after_last = self.recent.back().map_or(0, |last| last.time.0 + 1);
        Time(now_ms.max(after_last))
    }

    /// Corrects alerts that were raised while the clock was ahead: they get a time before now, and
    /// do not stay a year ahead once the clock is right again (STATE-11).
    fn bring_back(&mut self, now_ms: u64) {
        let is_past = |alert: &Arc<Alert>| alert.time.0 < now_ms.saturating_add(AHEAD_MS);
        if self.recent.back().is_none_or(is_past) {
            return;
        }
        let past = self.recent.partition_point(is_past);
        for alert in self.recent.split_off(past) {
            let time = self.free_time(now_ms);
            let alert = Arc::unwrap_or_clone(alert);
            self.recent.push_back(Arc::new(Alert { time, ..alert }));
        }
    }

    fn bound(&mut self) {
        while self.recent.len() > MAX_ALERTS {
            self.recent.pop_front();
        }
    }
}

/// One line of the log.
#[derive(Serialize)]
struct Line<'a> {
    time: Time,
    event: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    members: &'a Map<String, Value>,
}

/// `scope` and, but for everybody, `of`.
pub(crate) fn scope_members(scope: Scope) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("scope".to_owned(), json!(scope.kind()));
    if let Some(of) = scope.of() {
        members.insert("of".to_owned(), json!(of));
    }
    members
}

/// The counts above 0, by the name of their measure.
pub(crate) fn held_back(held: &[u64; 4]) -> Value {
    let named = Measure::ALL.into_iter().zip(held);
    let named = named.filter(|(_, count)| **count > 0);
    Value::Object(
        named
            .map(|(measure, count)| (measure.name().to_owned(), json!(count)))
            .collect(),
    )
}

fn error_members(member: &str, of: &str, error: &str) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert(member.to_owned(), json!(of));
    members.insert("error".to_owned(), json!(error));
    members
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use weir_shared::lookup::AsNumber;
    use weir_shared::rules::{Purpose, Quota, Rule, RuleKind, SharedKey, Verify};
    use weir_shared::window::RuleSpan;

    use super::*;
    use crate::testing::NOW;

    const MINUTE: u64 = 60_000;

    fn alerts() -> (Alerts, Receiver<Vec<u8>>) {
        let (lines, written) = unbounded();
        (Alerts::new(lines), written)
    }

    fn lines(written: &Receiver<Vec<u8>>) -> Vec<String> {
        written
            .try_iter()
            .map(|line| {
                let line = String::from_utf8(line).unwrap();
                line.strip_suffix('\n').unwrap().to_owned()
            })
            .collect()
    }

    fn over(scope: Scope) -> Over {
        Over {
            scope,
            watch: matches!(scope, Scope::Watch(_)).then(|| "office".to_owned()),
            measure: Measure::BytesPerHour,
            count: 101,
            threshold: 100,
            cooldown_ends: Time(NOW + 60 * MINUTE),
        }
    }

    /// ALERT-4: each kind of alert is one JSON line with its members.
    #[test]
    fn each_kind_has_its_line() {
        let (mut alerts, written) = alerts();
        alerts.anomaly(&over(Scope::Total), NOW);
        alerts.anomaly(&over(Scope::Watch("192.0.2.0/24".parse().unwrap())), NOW);
        let summary = Summary {
            hour: Time(NOW),
            scopes: vec![(Scope::Asn(64_496), [3, 0, 0, 1])],
            beyond: 2,
        };
        alerts.summary(&summary, NOW);
        let ban: Ban = serde_json::from_value(json!({
            "netblock": "203.0.113.0/24", "client": "203.0.113.7", "ban_started": "2026-11-21T16:00:00Z",
            "ban_expires": "permanent", "cause": "byte_limit", "reason": "more than 10 bytes per day",
            "notes": {"limit": "day_bytes", "limit_value": 10, "limit_percent": 50, "netblock_requests": 9,
                "request": {"path": "/"}, "lookup": {"country": "DE", "asn": "AS64496", "as_name": "Example"}}
        }))
        .unwrap();
        alerts.ban(&ban, NOW);
        alerts.fault(&PartFault::file("/db.mmdb", "it is cut off"), NOW);
        alerts.fault(&PartFault::feed("drop", "it has no entry"), NOW);
        alerts.fault(
            &PartFault::state("bans.json", "No space left on device"),
            NOW,
        );
        alerts.edit(&ban, "it covers everyone", NOW);
        alerts.certificate("a.test", Time(NOW), NOW);
        let rule = Rule::new(RuleKind::Limit, "search".to_owned());
        let refusal = SharedRefusal {
            rule: Arc::new(rule),
            key: SharedKey::Asn(AsNumber::new(64_496)),
            quota: Quota {
                span: RuleSpan::Minute,
                limit: 600,
            },
            estimate: 601,
            clients: 590,
            at_ms: NOW,
        };
        alerts.shared_limit(&refusal, Time(NOW), NOW);
        alerts.fleet("alone", "it is away", NOW);
        let crawler = Crawler {
            rule: Arc::new(Rule::new(RuleKind::Crawler, "googlebot".to_owned())),
            purpose: Purpose::Search,
            user_agent: Vec::new(),
            verify: Verify::Dns(Vec::new()),
            quotas: Vec::new(),
            counts: Arc::default(),
        };
        let fallen = Fallen {
            rule: Arc::new(Rule::new(RuleKind::Jail, "gone".to_owned())),
            client: "203.0.113.7".parse().unwrap(),
        };
        alerts.crawler(&crawler, &fallen, NOW);
        let time = r#"{"time":"2026-11-21T16:00:00Z","event":"alert","#;
        assert_eq!(
            lines(&written),
            [
                r#""kind":"anomaly","scope":"total","threshold":"bytes_per_hour","limit":100,"count":101,"cooldown_ends":"2026-11-21T17:00:00Z"}"#,
                r#""kind":"watch","scope":"watch","of":"192.0.2.0/24","watch":"office","threshold":"bytes_per_hour","limit":100,"count":101,"cooldown_ends":"2026-11-21T17:00:00Z"}"#,
                r#""kind":"anomaly_summary","hour":"2026-11-21T16:00:00Z","held_back":6,"scopes":[{"scope":"asn","of":"AS64496","held_back":{"requests_per_minute":3,"bytes_per_hour":1}}]}"#,
                r#""kind":"ban","netblock":"203.0.113.0/24","client":"203.0.113.7","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent","cause":"byte_limit","reason":"more than 10 bytes per day","observed":false,"limit":"day_bytes","limit_value":10,"limit_percent":50,"netblock_requests":9,"lookup":{"country":"DE","asn":"AS64496","as_name":"Example"}}"#,
                r#""kind":"file_error","file":"/db.mmdb","error":"it is cut off"}"#,
                r#""kind":"feed_error","feed":"drop","error":"it has no entry"}"#,
                r#""kind":"state_error","file":"bans.json","error":"No space left on device"}"#,
                r#""kind":"edit","file":"bans.json","error":"it covers everyone","netblock":"203.0.113.0/24"}"#,
                r#""kind":"certificate","name":"a.test","expires":"2026-11-21T16:00:00Z"}"#,
                r#""kind":"shared_limit","rule":"search","per":"asn","key":"AS64496","window":"minute","limit":600,"count":601,"clients":590,"cooldown_ends":"2026-11-21T16:00:00Z"}"#,
                r#""kind":"fleet","what":"alone","detail":"it is away"}"#,
                r#""kind":"crawler","name":"googlebot","purpose":"search","client":"203.0.113.7","rule":"gone","rule_kind":"jail"}"#,
            ]
            .map(|rest| format!("{time}{rest}"))
        );
        assert_eq!(alerts.raised(), [1; 12]);
    }

    /// ALERT-4: of 100,000 alerts in a minute 60 have a line each, and one line has the number of
    /// the others. The count is right, alerts of another kind are not held back, and the kept
    /// alerts are bounded.
    #[test]
    fn a_flood_yields_bounded_lines_and_right_counts() {
        let (mut alerts, written) = alerts();
        for number in 0..100_000 {
            alerts.anomaly(&over(Scope::Asn(number)), NOW + u64::from(number) / 2);
        }
        alerts.fault(&PartFault::state("bans.json", "full"), NOW + 50_001);
        assert_eq!(lines(&written).len(), 61);
        assert_eq!(alerts.raised(), [100_000, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        alerts.turn(NOW + MINUTE - 1);
        assert!(written.is_empty());
        alerts.turn(NOW + MINUTE);
        assert_eq!(
            lines(&written),
            [r#"{"time":"2026-11-21T16:01:00Z","event":"alert","kind":"anomaly","more":99940}"#]
        );
        alerts.turn(NOW + 2 * MINUTE);
        assert!(written.is_empty());
        // A stop does not wait for the end of the minute.
        for number in 0..75 {
            alerts.anomaly(&over(Scope::Asn(number)), NOW + 2 * MINUTE);
        }
        assert_eq!(lines(&written).len(), 60);
        alerts.finish(NOW + 2 * MINUTE);
        assert!(lines(&written)[0].ends_with(r#""kind":"anomaly","more":15}"#));
        for minute in 0..100 {
            for number in 0..70 {
                alerts.anomaly(&over(Scope::Asn(number)), NOW + (3 + minute) * MINUTE);
            }
        }
        assert_eq!(alerts.recent().count(), MAX_ALERTS);
        assert_eq!(alerts.raised()[0], 107_075);
    }

    /// ALERT-4: alerts of one millisecond, or after a clock that was set back a little, have
    /// distinct names in their order.
    #[test]
    fn each_alert_has_a_name_of_its_own() {
        let (mut alerts, _written) = alerts();
        for at in [NOW, NOW, NOW - 500, NOW + 1000] {
            alerts.fault(&PartFault::state("bans.json", "full"), at);
        }
        let times: Vec<u64> = alerts.recent().map(|alert| alert.time.0 - NOW).collect();
        assert_eq!(times, [0, 1, 2, 1000]);
    }

    /// STATE-11: a clock that jumped a year forward and back leaves no alert a year ahead; alerts
    /// keep their order, and new ones have the present time.
    #[test]
    fn no_alert_stays_a_year_ahead() {
        const YEAR: u64 = 365 * 24 * 60 * MINUTE;
        let (mut alerts, _written) = alerts();
        for (file, at) in [("a", NOW), ("b", NOW + YEAR), ("c", NOW + YEAR)] {
            alerts.fault(&PartFault::state(file, "full"), at);
        }
        let kept = |alerts: &Alerts| -> Vec<(Value, u64)> {
            let recent = alerts.recent();
            let kept = recent.map(|alert| (alert.members["file"].clone(), alert.time.0 - NOW));
            kept.collect()
        };
        alerts.turn(NOW + YEAR);
        assert_eq!(kept(&alerts)[2], (json!("c"), YEAR + 1));
        alerts.turn(NOW + 10);
        alerts.fault(&PartFault::state("d", "full"), NOW + 20);
        let expected = [("a", 0), ("b", 10), ("c", 11), ("d", 20)];
        assert_eq!(kept(&alerts), expected.map(|(file, at)| (json!(file), at)));
    }

    /// ALERT-4: lines that the log does not accept are counted, and nothing waits for the log.
    #[test]
    fn a_full_channel_is_counted() {
        let (lines, _written) = crossbeam_channel::bounded(1);
        let mut alerts = Alerts::new(lines);
        alerts.fault(&PartFault::state("bans.json", "full"), NOW);
        alerts.fault(&PartFault::state("bans.json", "full"), NOW);
        assert_eq!((alerts.lines_dropped(), alerts.raised()[5]), (1, 2));
    }

    /// ALERT-2: a summary names a bounded number of scopes and the number of the others.
    #[test]
    fn a_summary_is_bounded() {
        let (mut alerts, written) = alerts();
        let summary = Summary {
            hour: Time(NOW),
            scopes: (0..250).map(|n| (Scope::Asn(n), [1, 0, 0, 0])).collect(),
            beyond: 0,
        };
        alerts.summary(&summary, NOW);
        let line: Value = serde_json::from_str(&lines(&written)[0]).unwrap();
        assert_eq!(line["scopes"].as_array().unwrap().len(), MAX_SCOPES);
        assert_eq!(
            (&line["more_scopes"], &line["held_back"]),
            (&json!(150), &json!(250))
        );
    }
}
