//! alerts.json: `{"version":1,"counters":[…],"cooldowns":[…],"alerts":[…]}`: the anomaly counters,
//! least recently seen first; the cooldowns by their end; the newest alerts, oldest first.
//!
//! The key of a counter or cooldown is its scope, that of an alert its time. An edited entry
//! replaces the whole entry in memory, because its counts only make sense together.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use weir_shared::api::alerts::Alert;
use weir_shared::api::buckets::Buckets;
use weir_shared::units::{Count, Time};

use crate::alert::{MAX_ALERTS, held_back};
use crate::anomaly::counters::MAX_COUNTERS;
use crate::anomaly::{Cooldown, Counter, Measure, Scope};
use crate::state::document::{self, Document, Row};
use crate::state::schema::{self, LazySchema};

/// alerts.json
pub(crate) struct AlertsFile;

const COUNTERS: &str = "counters";
const COOLDOWNS: &str = "cooldowns";
const ALERTS: &str = "alerts";

/// One entry of one of the three lists.
#[derive(Clone, PartialEq, Debug)]
pub enum AlertsEntry {
    /// An entry of `counters`.
    Counter(Scope, Counter),
    /// An entry of `cooldowns`.
    Cooldown(Scope, Cooldown),
    /// An entry of `alerts`.
    Alert(Arc<Alert>),
}

/// The key of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum AlertsKey {
    /// A counter.
    Counter(Scope),
    /// A cooldown.
    Cooldown(Scope),
    /// An alert.
    Alert(Time),
}

/// The name of an entry in the log.
impl fmt::Display for AlertsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, scope) = match self {
            Self::Counter(scope) => ("counter", scope),
            Self::Cooldown(scope) => ("cooldown", scope),
            Self::Alert(time) => return write!(f, "alert {time}"),
        };
        write!(f, "{what} {}", scope.kind())?;
        scope.of().map_or(Ok(()), |of| write!(f, " {of}"))
    }
}

impl AlertsKey {
    /// The key of an entry.
    pub fn of(entry: &AlertsEntry) -> Self {
        match entry {
            AlertsEntry::Counter(scope, ..) => Self::Counter(*scope),
            AlertsEntry::Cooldown(scope, ..) => Self::Cooldown(*scope),
            AlertsEntry::Alert(alert) => Self::Alert(alert.time),
        }
    }
}

/// An entry with the members that this version does not know.
pub(crate) type Entry = Row<AlertsEntry>;

impl Document for AlertsFile {
    const FILE: &'static str = "alerts.json";
    const SCHEMA: &'static str = include_str!("../../../schema/proxy/alerts.schema.json");
    const LIST: &'static str = COUNTERS;
    const MORE: &'static [&'static str] = &[COOLDOWNS, ALERTS];
    type Entry = Entry;
    type Key = AlertsKey;

    fn schema() -> &'static LazySchema {
        static SCHEMA: LazySchema = document::schema::<AlertsFile>();
        &SCHEMA
    }

    fn list(entry: &Entry) -> &'static str {
        match entry.row {
            AlertsEntry::Counter(..) => COUNTERS,
            AlertsEntry::Cooldown(..) => COOLDOWNS,
            AlertsEntry::Alert(_) => ALERTS,
        }
    }

    fn read<'de, T: Deserializer<'de>>(list: &str, deserializer: T) -> Result<Entry, T::Error> {
        let row = match list {
            COUNTERS => CounterForm::deserialize(deserializer)?
                .row()
                .map_err(T::Error::custom),
            COOLDOWNS => CooldownForm::deserialize(deserializer)?
                .row()
                .map_err(T::Error::custom),
            _ => Alert::deserialize(deserializer).map(|alert| AlertsEntry::Alert(Arc::new(alert))),
        };
        row.map(|row| Row { row, unknown: None })
    }

    fn key(entry: &Entry) -> AlertsKey {
        AlertsKey::of(&entry.row)
    }

    fn check(entry: &Entry, seen: &mut HashSet<AlertsKey>) -> Result<(), String> {
        let key = AlertsKey::of(&entry.row);
        if seen.insert(key) {
            return Ok(());
        }
        Err(match key {
            AlertsKey::Counter(scope) | AlertsKey::Cooldown(scope) => format!(
                "duplicate scope {} {}",
                scope.kind(),
                scope.of().unwrap_or_default()
            ),
            AlertsKey::Alert(time) => format!("duplicate time {time} of an alert"),
        })
    }

    fn complete(entries: Vec<Entry>, _: &[Entry], _: Time) -> Vec<Entry> {
        // A list that an edit made too long loses its first entries, as memory would drop them.
        let mut over: HashMap<&str, usize> = HashMap::new();
        for entry in &entries {
            *over.entry(Self::list(entry)).or_default() += 1;
        }
        for (list, count) in &mut over {
            let most = if *list == ALERTS {
                MAX_ALERTS
            } else {
                MAX_COUNTERS
            };
            *count = count.saturating_sub(most);
        }
        let keep = |entry: &Entry| match over.get_mut(Self::list(entry)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        };
        let mut entries = entries;
        entries.retain(keep);
        entries
    }

    fn sort(_: &mut [Entry]) {
        // Memory keeps the order of the file: that of counters is by last sight, which their times
        // do not tell exactly.
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.row {
            AlertsEntry::Counter(scope, counter) => {
                schema::write(&CounterForm::of(*scope, counter), &self.unknown, serializer)
            }
            AlertsEntry::Cooldown(scope, cooldown) => schema::write(
                &CooldownForm::of(*scope, cooldown),
                &self.unknown,
                serializer,
            ),
            // An alert keeps its unknown members itself.
            AlertsEntry::Alert(alert) => alert.serialize(serializer),
        }
    }
}

/// A counter's members, in their order.
#[derive(Serialize, Deserialize)]
struct CounterForm {
    scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    #[serde(default)]
    requests: Windows,
    #[serde(default)]
    bytes: Windows,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Windows {
    #[serde(default)]
    minute: Buckets,
    #[serde(default)]
    hour: Buckets,
}

impl CounterForm {
    fn of(scope: Scope, counter: &Counter) -> Self {
        let [requests_minute, requests_hour, bytes_minute, bytes_hour] =
            counter.windows.each_ref().map(Buckets::of);
        Self {
            scope: scope.kind().to_owned(),
            of: scope.of(),
            requests: Windows {
                minute: requests_minute,
                hour: requests_hour,
            },
            bytes: Windows {
                minute: bytes_minute,
                hour: bytes_hour,
            },
        }
    }

    fn row(self) -> Result<AlertsEntry, String> {
        let scope = Scope::read(&self.scope, self.of.as_deref())?;
        let [requests_minute, requests_hour, bytes_minute, bytes_hour] = Measure::ALL;
        let windows = [
            self.requests.minute.window(requests_minute.span()),
            self.requests.hour.window(requests_hour.span()),
            self.bytes.minute.window(bytes_minute.span()),
            self.bytes.hour.window(bytes_hour.span()),
        ];
        Ok(AlertsEntry::Counter(scope, Counter { windows }))
    }
}

/// A cooldown's members, in their order.
#[derive(Serialize, Deserialize)]
struct CooldownForm {
    scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    started: Time,
    ends: Time,
    #[serde(default)]
    hour: Option<Time>,
    #[serde(default)]
    held_back: Map<String, Value>,
}

impl CooldownForm {
    fn of(scope: Scope, cooldown: &Cooldown) -> Self {
        let held = match held_back(&cooldown.held_back) {
            Value::Object(held) => held,
            _ => Map::new(),
        };
        Self {
            scope: scope.kind().to_owned(),
            of: scope.of(),
            started: cooldown.started,
            ends: cooldown.ends,
            hour: Some(cooldown.hour),
            held_back: held,
        }
    }

    fn row(self) -> Result<AlertsEntry, String> {
        let scope = Scope::read(&self.scope, self.of.as_deref())?;
        let mut held = [0; 4];
        for (name, count) in &self.held_back {
            let place = Measure::ALL
                .into_iter()
                .zip(&mut held)
                .find(|(measure, _)| measure.name() == name);
            let (Some((_, place)), Ok(Count(count))) = (place, Count::deserialize(count)) else {
                return Err(format!(
                    "\"held_back\" has {name:?}: {count}, which is no count of a measure"
                ));
            };
            *place = count;
        }
        let cooldown = Cooldown {
            started: self.started,
            ends: self.ends,
            hour: self.hour.unwrap_or(self.started),
            held_back: held,
        };
        Ok(AlertsEntry::Cooldown(scope, cooldown))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::state::text;

    fn row(row: AlertsEntry) -> Entry {
        Row { row, unknown: None }
    }

    const TEXT: &str = r#"{
  "version": 1,
  "counters": [
    {
      "scope": "client",
      "of": "203.0.113.7",
      "requests": {
        "minute": {
          "start": "2026-11-21T16:00:00Z",
          "current": 3,
          "previous": 9
        },
        "hour": {
          "start": "2026-11-21T16:00:00Z",
          "current": 3,
          "previous": 0
        }
      },
      "bytes": {
        "minute": {
          "start": "2026-11-21T16:00:00Z",
          "current": 30,
          "previous": 0
        },
        "hour": {
          "start": "2026-11-21T16:00:00Z",
          "current": 30,
          "previous": 0
        }
      },
      "note": "ours"
    }
  ],
  "cooldowns": [
    {
      "scope": "total",
      "started": "2026-11-21T16:00:00Z",
      "ends": "2026-11-21T17:00:00Z",
      "hour": "2026-11-21T16:00:00Z",
      "held_back": {
        "bytes_per_hour": 7
      }
    }
  ],
  "alerts": [
    {
      "time": "2026-11-21T16:00:00Z",
      "kind": "state_error",
      "file": "bans.json",
      "error": "full"
    }
  ]
}
"#;

    /// STATE: the three lists are read and written again as the same text, unknown members
    /// included.
    #[test]
    fn the_file_survives_its_text() {
        let content =
            text::parse::<AlertsFile>(TEXT.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(content.entries.len(), 3);
        let mut out = Vec::new();
        text::write::<AlertsFile>(&mut out, &content.entries, &content.envelope).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), TEXT);
    }

    /// STATE: an empty file has all three lists, and a file without one of them is faulty.
    #[test]
    fn every_list_is_needed() {
        let mut out = Vec::new();
        text::write::<AlertsFile>(&mut out, &[], &text::Envelope::new::<AlertsFile>()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read,
            json!({"version":1,"counters":[],"cooldowns":[],"alerts":[]})
        );
        for list in ["counters", "cooldowns", "alerts"] {
            let text = text.replace(&format!("\"{list}\""), "\"other\"");
            let fault = text::parse::<AlertsFile>(text.as_bytes()).err().unwrap();
            assert!(
                fault
                    .to_string()
                    .contains(&format!("\"{list}\" is a required property")),
                "{fault}"
            );
        }
    }

    /// STATE-5: an error names the place of a member that is not valid.
    #[test]
    fn faults_name_their_place() {
        for (was, is, expected) in [
            (
                "\"client\"",
                "\"country\"",
                "at \"/counters/0/scope\": The value is not one of \"client\", \"net\", \"asn\", \"total\", \"watch\"",
            ),
            (
                "203.0.113.7",
                "office",
                "at \"/counters/0/of\": The value does not fit. Expected: One IPv4 address",
            ),
            (
                "bytes_per_hour",
                "bytes_per_day",
                "at \"/cooldowns/0/held_back\": Additional properties are not allowed ('bytes_per_day' was unexpected)",
            ),
            (
                "state_error",
                "a storm",
                "at \"/alerts/0/kind\": The value does not fit. Expected: What happened",
            ),
        ] {
            let fault = text::parse::<AlertsFile>(TEXT.replace(was, is).as_bytes())
                .err()
                .unwrap();
            assert!(fault.to_string().contains(expected), "{fault}");
        }
        let twice = TEXT.replace(
            "\"alerts\": [",
            "\"alerts\": [{\"time\":\"2026-11-21T16:00:00Z\",\"kind\":\"ban\"},",
        );
        let fault = text::parse::<AlertsFile>(twice.as_bytes()).err().unwrap();
        assert!(fault.to_string().contains("duplicate time"), "{fault}");
    }

    /// STATE: unknown members of an entry stay with it when the service writes the entry again.
    #[test]
    fn unknown_members_stay_with_their_entry() {
        let content =
            text::parse::<AlertsFile>(TEXT.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
        let AlertsEntry::Counter(scope, ..) = content.entries[0].row else {
            panic!("no counter")
        };
        let mut written = vec![row(AlertsEntry::Counter(scope, Counter::default()))];
        text::with_unknown::<AlertsFile>(&mut written, &content.entries);
        assert_eq!(serde_json::to_value(&written[0]).unwrap()["note"], "ours");
    }

    /// STATE-11: a kind of alert, or a topic of the fleet, that this version does not know stops no
    /// start.
    #[test]
    fn any_word_of_a_kind_and_of_a_fleet_is_kept() {
        for (kind, what) in [
            ("fleet", "eviction"),
            ("fleet", "aside"),
            ("fleet", "something_new"),
            ("new_kind", "wide"),
        ] {
            let alert = format!(
                r#"{{"time":"2026-11-21T16:00:00Z","kind":"{kind}","what":"{what}","detail":"a sentence"}}"#
            );
            let file =
                format!(r#"{{"version":1,"alerts":[{alert}],"counters":[],"cooldowns":[]}}"#);
            let content = text::parse::<AlertsFile>(file.as_bytes());
            let content = content.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            let written = serde_json::to_value(&content.entries[0]).unwrap();
            assert_eq!(
                (&written["kind"], &written["what"]),
                (&json!(kind), &json!(what))
            );
        }
    }

    /// ALERT-4: of a file that holds more, the newest 1,000 alerts are loaded.
    #[test]
    fn the_bounds_hold_for_files() {
        let alert = |time| {
            row(AlertsEntry::Alert(Arc::new(Alert {
                time: Time(time),
                kind: "ban".into(),
                members: Map::new(),
            })))
        };
        let counters =
            (0..20_003).map(|n| row(AlertsEntry::Counter(Scope::Asn(n), Counter::default())));
        let entries = counters.chain((0..1005).map(alert)).collect();
        let kept = AlertsFile::complete(entries, &[], Time(0));
        assert_eq!(kept.len(), MAX_COUNTERS + MAX_ALERTS);
        assert_eq!(AlertsFile::key(&kept[0]), AlertsKey::Counter(Scope::Asn(3)));
        assert_eq!(
            AlertsFile::key(&kept[MAX_COUNTERS]),
            AlertsKey::Alert(Time(5))
        );
    }
}
