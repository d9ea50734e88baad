//! alerts.json: `{"version":1,"counters":[…],"cooldowns":[…],"alerts":[…]}`: the anomaly counters, least recently seen
//! first; the cooldowns by their end; the newest alerts, oldest first.
//!
//! Counters and cooldowns are named by their scope, alerts by their time. An entry that was edited by hand stands whole
//! as edited: its counts only make sense together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use weir_shared::units::Time;
use weir_shared::window::Window;

use super::document::Document;
use super::keeper;
use super::merge::Diff;
use super::{Edit, EditChange};
use crate::alert::{Alert, MAX_ALERTS, held_back};
use crate::anomaly::counters::MAX_COUNTERS;
use crate::anomaly::{Cooldown, Counter, Measure, Scope};

/// alerts.json
pub(super) struct Alerts;

const COUNTERS: &str = "counters";
const COOLDOWNS: &str = "cooldowns";
const ALERTS: &str = "alerts";

/// One entry of one of the three lists.
#[derive(Clone, PartialEq, Debug)]
pub enum AlertsEntry {
    /// Of `counters`.
    Counter(Scope, Counter, Unknown),
    /// Of `cooldowns`.
    Cooldown(Scope, Cooldown, Unknown),
    /// Of `alerts`.
    Alert(Arc<Alert>),
}

/// Members of an entry that this version does not know. Boxed: nearly every entry has none.
pub type Unknown = Option<Box<Map<String, Value>>>;

/// What names an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum AlertsKey {
    /// A counter.
    Counter(Scope),
    /// A cooldown.
    Cooldown(Scope),
    /// An alert.
    Alert(Time),
}

impl AlertsKey {
    /// The name of an entry.
    pub fn of(entry: &AlertsEntry) -> Self {
        match entry {
            AlertsEntry::Counter(scope, ..) => Self::Counter(*scope),
            AlertsEntry::Cooldown(scope, ..) => Self::Cooldown(*scope),
            AlertsEntry::Alert(alert) => Self::Alert(alert.time),
        }
    }
}

/// Entries of memory, with the unknown members they had in the file.
pub(super) fn entries(mut entries: Vec<AlertsEntry>, base: &[AlertsEntry]) -> Vec<AlertsEntry> {
    let held: HashMap<AlertsKey, &Box<Map<String, Value>>> =
        base.iter()
            .filter_map(|entry| match entry {
                AlertsEntry::Counter(.., Some(unknown))
                | AlertsEntry::Cooldown(.., Some(unknown)) => Some((AlertsKey::of(entry), unknown)),
                _ => None,
            })
            .collect();
    if held.is_empty() {
        return entries;
    }
    for entry in &mut entries {
        let key = AlertsKey::of(entry);
        if let AlertsEntry::Counter(.., unknown) | AlertsEntry::Cooldown(.., unknown) = entry {
            *unknown = held.get(&key).map(|members| (*members).clone());
        }
    }
    entries
}

impl Document for Alerts {
    const FILE: &'static str = "alerts.json";
    const LIST: &'static str = COUNTERS;
    const MORE: &'static [&'static str] = &[COOLDOWNS, ALERTS];
    type Entry = AlertsEntry;
    type Key = AlertsKey;

    fn list(entry: &AlertsEntry) -> &'static str {
        match entry {
            AlertsEntry::Counter(..) => COUNTERS,
            AlertsEntry::Cooldown(..) => COOLDOWNS,
            AlertsEntry::Alert(_) => ALERTS,
        }
    }

    fn read<'de, T: Deserializer<'de>>(
        list: &str,
        deserializer: T,
    ) -> Result<AlertsEntry, T::Error> {
        match list {
            COUNTERS => CounterForm::deserialize(deserializer)?
                .entry()
                .map_err(T::Error::custom),
            COOLDOWNS => CooldownForm::deserialize(deserializer)?
                .entry()
                .map_err(T::Error::custom),
            _ => Alert::deserialize(deserializer).map(|alert| AlertsEntry::Alert(Arc::new(alert))),
        }
    }

    fn key(entry: &AlertsEntry) -> AlertsKey {
        AlertsKey::of(entry)
    }

    fn check(entry: &AlertsEntry, seen: &mut HashSet<AlertsKey>) -> Result<(), String> {
        let key = AlertsKey::of(entry);
        if seen.insert(key) {
            return Ok(());
        }
        Err(match key {
            AlertsKey::Counter(scope) | AlertsKey::Cooldown(scope) => format!(
                "the scope {} {} stands there twice",
                scope.kind(),
                scope.of().unwrap_or_default()
            ),
            AlertsKey::Alert(time) => format!("two alerts have the time {time}"),
        })
    }

    fn complete(entries: Vec<AlertsEntry>, _: &[AlertsEntry], _: Time) -> Vec<AlertsEntry> {
        // Lists that grew over their bound by hand lose what memory would lose: the first of each.
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
        let keep = |entry: &AlertsEntry| match over.get_mut(Self::list(entry)) {
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

    fn merge(_: &AlertsEntry, _: &AlertsEntry, theirs: &AlertsEntry) -> AlertsEntry {
        theirs.clone()
    }

    fn lifts(_: &AlertsEntry, _: &AlertsEntry) -> bool {
        false
    }

    fn sort(_: &mut [AlertsEntry]) {
        // Memory's order is that of the file: counters as they were seen, which their times alone would not tell.
    }

    fn counters(shared: &keeper::Shared) -> &keeper::Counters {
        &shared.alerts
    }

    fn edit(number: u64, diff: &Diff<Self>) -> Edit {
        Edit {
            number,
            change: EditChange::Alerts {
                put: diff.put().cloned().collect(),
                removed: diff.removed.clone(),
            },
            before: Vec::new(),
        }
    }
}

impl Serialize for AlertsEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Counter(scope, counter, unknown) => {
                CounterForm::of(*scope, counter, unknown).serialize(serializer)
            }
            Self::Cooldown(scope, cooldown, unknown) => {
                CooldownForm::of(*scope, cooldown, unknown).serialize(serializer)
            }
            Self::Alert(alert) => alert.serialize(serializer),
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
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Windows {
    #[serde(default)]
    minute: Buckets,
    #[serde(default)]
    hour: Buckets,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Buckets {
    start: Time,
    current: u64,
    previous: u64,
}

impl Buckets {
    fn of(window: &Window) -> Self {
        Self {
            start: Time(window.start_ms),
            current: window.current,
            previous: window.previous,
        }
    }

    /// Buckets begin at multiples of their length (LIMIT-1); a start written by hand is moved to the one before it.
    fn window(self, measure: Measure) -> Window {
        Window {
            start_ms: self.start.0 - self.start.0 % measure.span().ms(),
            current: self.current,
            previous: self.previous,
        }
    }
}

impl CounterForm {
    fn of(scope: Scope, counter: &Counter, unknown: &Unknown) -> Self {
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
            unknown: unknown.as_deref().cloned().unwrap_or_default(),
        }
    }

    fn entry(self) -> Result<AlertsEntry, String> {
        let scope = Scope::read(&self.scope, self.of.as_deref())?;
        let [requests_minute, requests_hour, bytes_minute, bytes_hour] = Measure::ALL;
        let windows = [
            self.requests.minute.window(requests_minute),
            self.requests.hour.window(requests_hour),
            self.bytes.minute.window(bytes_minute),
            self.bytes.hour.window(bytes_hour),
        ];
        Ok(AlertsEntry::Counter(
            scope,
            Counter { windows },
            boxed(self.unknown),
        ))
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
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl CooldownForm {
    fn of(scope: Scope, cooldown: &Cooldown, unknown: &Unknown) -> Self {
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
            unknown: unknown.as_deref().cloned().unwrap_or_default(),
        }
    }

    fn entry(self) -> Result<AlertsEntry, String> {
        let scope = Scope::read(&self.scope, self.of.as_deref())?;
        let mut held = [0; 4];
        for (name, count) in &self.held_back {
            let place = Measure::ALL
                .into_iter()
                .zip(&mut held)
                .find(|(measure, _)| measure.name() == name);
            let (Some((_, place)), Some(count)) = (place, count.as_u64()) else {
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
        Ok(AlertsEntry::Cooldown(scope, cooldown, boxed(self.unknown)))
    }
}

fn boxed(unknown: Map<String, Value>) -> Unknown {
    (!unknown.is_empty()).then(|| Box::new(unknown))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::document;
    use super::*;

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

    /// STATE: the three lists are read and written again as the same text, unknown members included.
    #[test]
    fn the_file_survives_its_text() {
        let content =
            document::parse::<Alerts>(TEXT.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(content.entries.len(), 3);
        let mut out = Vec::new();
        document::write::<Alerts>(&mut out, &content.entries, &content.envelope).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), TEXT);
    }

    /// STATE: an empty file has all three lists, and each of them is needed.
    #[test]
    fn every_list_is_needed() {
        let mut out = Vec::new();
        document::write::<Alerts>(&mut out, &[], &document::Envelope::new::<Alerts>()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read,
            json!({"version":1,"counters":[],"cooldowns":[],"alerts":[]})
        );
        for list in ["counters", "cooldowns", "alerts"] {
            let text = text.replace(&format!("\"{list}\""), "\"other\"");
            let fault = document::parse::<Alerts>(text.as_bytes()).err().unwrap();
            assert!(
                fault
                    .to_string()
                    .contains(&format!("missing field `{list}`")),
                "{fault}"
            );
        }
    }

    /// STATE-5: what does not fit is named with its place.
    #[test]
    fn faults_name_their_place() {
        for (was, is, expected) in [
            (
                "\"client\"",
                "\"country\"",
                "at \"/counters/0\": \"country\" is not a scope",
            ),
            (
                "203.0.113.7",
                "office",
                "at \"/counters/0\": \"office\" is not a client",
            ),
            (
                "bytes_per_hour",
                "bytes_per_day",
                "at \"/cooldowns/0\": \"held_back\" has \"bytes_per_day\": 7",
            ),
            (
                "state_error",
                "storm",
                "at \"/alerts/0/kind\": unknown variant `storm`",
            ),
        ] {
            let fault = document::parse::<Alerts>(TEXT.replace(was, is).as_bytes())
                .err()
                .unwrap();
            assert!(fault.to_string().contains(expected), "{fault}");
        }
        let twice = TEXT.replace(
            "\"alerts\": [",
            "\"alerts\": [{\"time\":\"2026-11-21T16:00:00Z\",\"kind\":\"ban\"},",
        );
        let fault = document::parse::<Alerts>(twice.as_bytes()).err().unwrap();
        assert!(
            fault.to_string().contains("two alerts have the time"),
            "{fault}"
        );
    }

    /// STATE: members of an entry that nobody here knows stay with it when memory writes it anew.
    #[test]
    fn unknown_members_stay_with_their_entry() {
        let content =
            document::parse::<Alerts>(TEXT.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
        let AlertsEntry::Counter(scope, ..) = content.entries[0] else {
            panic!("no counter")
        };
        let counted = AlertsEntry::Counter(scope, Counter::default(), None);
        let written = entries(vec![counted], &content.entries);
        assert_eq!(serde_json::to_value(&written[0]).unwrap()["note"], "ours");
    }

    /// ALERT-4: of a file that holds more, the newest 1,000 alerts are taken.
    #[test]
    fn the_bounds_hold_for_files() {
        let alert = |time| {
            AlertsEntry::Alert(Arc::new(Alert {
                time: Time(time),
                kind: crate::alert::AlertKind::Ban,
                members: Map::new(),
            }))
        };
        let counters =
            (0..20_003).map(|n| AlertsEntry::Counter(Scope::Asn(n), Counter::default(), None));
        let entries = counters.chain((0..1005).map(alert)).collect();
        let kept = Alerts::complete(entries, &[], Time(0));
        assert_eq!(kept.len(), MAX_COUNTERS + MAX_ALERTS);
        assert_eq!(AlertsKey::of(&kept[0]), AlertsKey::Counter(Scope::Asn(3)));
        assert_eq!(
            AlertsKey::of(&kept[MAX_COUNTERS]),
            AlertsKey::Alert(Time(5))
        );
    }
}
