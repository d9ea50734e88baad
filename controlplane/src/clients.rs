//! clients.json: `{"version":1,"clients":[…]}`, least recently seen first; also the form of a
//! client in the admin answer (ADMIN-4). A client that was edited by hand stands whole as edited.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use weir_shared::client::Client;
use weir_shared::lookup::Lookup;
use weir_shared::rules::{Rule, RuleKind};
use weir_shared::table::{ClientRow, MAX_CLIENTS, OtherSites, RuleCount};
use weir_shared::units::{Count, Time};
use weir_shared::window::{PerSpan, RuleSpan, Span, Window};

use crate::buckets::Buckets;
use crate::state::document::{self, Document, Row, drop_over, refuse_duplicate};
use crate::state::schema::{self, LazySchema};

/// clients.json
pub(crate) struct ClientsFile;

/// A client with the members of its entry that this version does not know.
pub(crate) type Entry = Row<ClientRow>;

/// A client as clients.json and the admin answer write it.
pub fn client_json(row: &ClientRow) -> Value {
    // Numbers, texts and times only: there is nothing in it that JSON cannot hold.
    serde_json::to_value(Form::of(row)).unwrap_or(Value::Null)
}

impl Document for ClientsFile {
    const FILE: &'static str = "clients.json";
    const SCHEMA: &'static str = include_str!("../../schema/proxy/clients.schema.json");
    const LIST: &'static str = "clients";
    type Entry = Entry;
    type Key = Client;

    fn schema() -> &'static LazySchema {
        static SCHEMA: LazySchema = document::schema::<ClientsFile>();
        &SCHEMA
    }

    fn read<'de, T: Deserializer<'de>>(_: &str, entry: T) -> Result<Entry, T::Error> {
        Entry::deserialize(entry)
    }

    fn key(entry: &Entry) -> Client {
        entry.row.client
    }

    fn check(entry: &Entry, seen: &mut HashSet<Client>) -> Result<(), String> {
        refuse_duplicate(entry.row.client, "client", seen)
    }

    fn complete(mut entries: Vec<Entry>, _: &[Entry], _: Time) -> Vec<Entry> {
        // Entries are in the order in which clients were last seen. If an edit moved them, their
        // times decide, not their places.
        let what = ("clients", "least recently seen");
        drop_over::<Self, _>(&mut entries, MAX_CLIENTS, what, |entry| entry.row.last_seen);
        entries
    }

    fn sort(_: &mut [Entry]) {
        // Memory's order is the exact order in which clients were seen; times alone would not tell
        // it.
    }
}

/// The members of an entry, in their order.
#[derive(Serialize, Deserialize)]
struct Form {
    client: Client,
    first_seen: Time,
    last_seen: Time,
    #[serde(default)]
    lookup: Option<Arc<Lookup>>,
    #[serde(default)]
    passed: Count,
    #[serde(default)]
    refused: Count,
    #[serde(default)]
    requests: Windows,
    #[serde(default)]
    bytes: Windows,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rules: Vec<CountOfRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    other_sites: Option<PartOfWindows>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_passed: Option<Time>,
}

/// What other sites asked for of what the windows have counted (RULE-8).
#[derive(Serialize, Deserialize)]
struct PartOfWindows {
    #[serde(default)]
    requests: Windows,
    #[serde(default)]
    bytes: Windows,
}

impl PartOfWindows {
    /// None where it is nothing.
    fn of(part: &OtherSites) -> Option<Self> {
        (*part != OtherSites::default()).then(|| Self {
            requests: Windows::of(&part.requests),
            bytes: Windows::of(&part.bytes),
        })
    }

    fn part(self) -> OtherSites {
        OtherSites {
            requests: self.requests.windows(),
            bytes: self.bytes.windows(),
        }
    }
}

/// What one window of one rule has counted.
#[derive(Serialize, Deserialize)]
struct CountOfRule {
    rule: String,
    kind: RuleKind,
    window: RuleSpan,
    #[serde(flatten)]
    buckets: Buckets,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    other_sites: Option<Buckets>,
}

impl CountOfRule {
    fn of(count: &RuleCount) -> Self {
        Self {
            rule: count.rule.name.clone(),
            kind: count.rule.kind,
            window: count.span,
            buckets: Buckets::of(&count.window),
            other_sites: (count.other_sites != Window::default())
                .then(|| Buckets::of(&count.other_sites)),
        }
    }

    fn count(self) -> RuleCount {
        RuleCount {
            rule: Arc::new(Rule::new(self.kind, self.rule)),
            span: self.window,
            window: self.buckets.window(self.window),
            other_sites: self.other_sites.unwrap_or_default().window(self.window),
            in_fleet: None,
        }
    }
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Windows {
    #[serde(default)]
    minute: Buckets,
    #[serde(default)]
    hour: Buckets,
    #[serde(default)]
    day: Buckets,
}

impl Form {
    fn of(row: &ClientRow) -> Self {
        Self {
            client: row.client,
            first_seen: row.first_seen,
            last_seen: row.last_seen,
            lookup: row.lookup.clone(),
            passed: Count(row.passed),
            refused: Count(row.refused),
            requests: Windows::of(&row.requests),
            bytes: Windows::of(&row.bytes),
            rules: row.rules.iter().map(CountOfRule::of).collect(),
            other_sites: PartOfWindows::of(&row.other_sites),
            first_passed: row.first_passed,
        }
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        schema::write(&Form::of(&self.row), &self.unknown, serializer)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = Form::deserialize(deserializer)?;
        Ok(Self {
            row: ClientRow {
                client: form.client,
                first_seen: form.first_seen,
                last_seen: form.last_seen,
                lookup: form.lookup,
                passed: form.passed.0,
                refused: form.refused.0,
                requests: form.requests.windows(),
                bytes: form.bytes.windows(),
                rules: form.rules.into_iter().map(CountOfRule::count).collect(),
                other_sites: form
                    .other_sites
                    .map(PartOfWindows::part)
                    .unwrap_or_default(),
                first_passed: form.first_passed,
            },
            unknown: None,
        })
    }
}

impl Windows {
    fn of(windows: &PerSpan<Window>) -> Self {
        Self {
            minute: Buckets::of(&windows.minute),
            hour: Buckets::of(&windows.hour),
            day: Buckets::of(&windows.day),
        }
    }

    fn windows(self) -> PerSpan<Window> {
        PerSpan {
            minute: self.minute.window(Span::Minute),
            hour: self.hour.window(Span::Hour),
            day: self.day.window(Span::Day),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::state::text::{self, testing};

    fn row(client: &str) -> ClientRow {
        let window = |start_ms, current| Window {
            start_ms,
            current,
            previous: 9,
        };
        ClientRow {
            client: client.parse().unwrap(),
            first_seen: Time(1_795_276_800_000),
            last_seen: Time(1_795_276_800_001),
            lookup: Some(Arc::new(Lookup {
                country: Some("DE".to_owned()),
                asn: Some("AS64496".to_owned()),
                as_name: Some("Example".to_owned()),
            })),
            passed: 10,
            refused: 2,
            requests: [
                window(1_795_276_800_000, 3),
                window(1_795_276_800_000, 4),
                window(1_795_219_200_000, 5),
            ]
            .into(),
            bytes: PerSpan::default(),
            rules: Vec::new(),
            other_sites: OtherSites::default(),
            first_passed: None,
        }
    }

    /// STATE, ADMIN-4: a client has one form, in the file and in the answer, and is read back as it
    /// was.
    #[test]
    fn a_client_has_one_form() {
        let row = row("2001:db8:1:2::/64");
        let none = json!({"start":"1970-01-01T00:00:00Z","current":0,"previous":0});
        let form = client_json(&row);
        assert_eq!(
            form,
            json!({"client":"2001:db8:1:2::/64","first_seen":"2026-11-21T16:00:00Z","last_seen":"2026-11-21T16:00:00.001Z",
                "lookup":{"country":"DE","asn":"AS64496","as_name":"Example"},"passed":10,"refused":2,
                "requests":{"minute":{"start":"2026-11-21T16:00:00Z","current":3,"previous":9},
                    "hour":{"start":"2026-11-21T16:00:00Z","current":4,"previous":9},
                    "day":{"start":"2026-11-21T00:00:00Z","current":5,"previous":9}},
                "bytes":{"minute":none,"hour":none,"day":none}})
        );
        let read: Entry = serde_json::from_value(form).unwrap();
        assert_eq!(read.row, row);
    }

    /// RULE-2, RULE-4: what rules have counted is written with their names, and read back.
    #[test]
    fn counts_of_rules_have_one_form() {
        let mut row = row("203.0.113.7");
        let count = |kind, name: &str, span| RuleCount {
            rule: Arc::new(Rule::new(kind, name.to_owned())),
            span,
            window: Window {
                start_ms: 1_795_276_800_000,
                current: 3,
                previous: 1,
            },
            other_sites: Window::default(),
            in_fleet: None,
        };
        row.rules = vec![
            count(RuleKind::Limit, "login", RuleSpan::Second),
            count(RuleKind::Jail, "auth", RuleSpan::Hour),
        ];
        let form = client_json(&row);
        assert_eq!(
            form["rules"],
            json!([
                {"rule":"login","kind":"limit","window":"second","start":"2026-11-21T16:00:00Z","current":3,"previous":1},
                {"rule":"auth","kind":"jail","window":"hour","start":"2026-11-21T16:00:00Z","current":3,"previous":1}])
        );
        let read = testing::read::<ClientsFile>("clients", &form).unwrap();
        assert_eq!((read.row, read.unknown), (row, None));
        let mut wrong = form;
        wrong["rules"][0]["kind"] = json!("trap");
        let fault = testing::read::<ClientsFile>("clients", &wrong).unwrap_err();
        assert!(fault.to_string().contains("limit"), "{fault}");
    }

    /// RULE-8: what other sites asked for is written beside what was counted, and read back.
    #[test]
    fn what_other_sites_asked_for_has_one_form() {
        let mut row = row("203.0.113.7");
        let window = Window {
            start_ms: 1_795_276_800_000,
            current: 2,
            previous: 1,
        };
        row.other_sites.requests.hour = window;
        row.rules = vec![RuleCount {
            rule: Arc::new(Rule::new(RuleKind::Jail, "auth".to_owned())),
            span: RuleSpan::Hour,
            window,
            other_sites: window,
            in_fleet: None,
        }];
        let form = client_json(&row);
        let buckets = json!({"start":"2026-11-21T16:00:00Z","current":2,"previous":1});
        assert_eq!(form["other_sites"]["requests"]["hour"], buckets);
        assert_eq!(form["rules"][0]["other_sites"], buckets);
        let read = testing::read::<ClientsFile>("clients", &form).unwrap();
        assert_eq!((read.row, read.unknown), (row, None));
    }

    /// STATE: members of an entry that nobody here knows stay with their client when memory writes
    /// it anew.
    #[test]
    fn unknown_members_stay_with_their_client() {
        let mut form = client_json(&row("203.0.113.7"));
        form["note"] = json!("office");
        let read = testing::read::<ClientsFile>("clients", &form).unwrap();
        let mut seen_again = row("203.0.113.7");
        seen_again.passed = 11;
        let entry = |row| Entry { row, unknown: None };
        let mut written = vec![entry(row("203.0.113.8")), entry(seen_again)];
        text::with_unknown::<ClientsFile>(&mut written, &[read]);
        assert!(written[0].unknown.is_none());
        let written = serde_json::to_value(&written[1]).unwrap();
        assert_eq!(
            (&written["note"], &written["passed"]),
            (&json!("office"), &json!(11))
        );
    }

    /// LIMIT-7: of a file that holds more, the 20,000 seen last are taken.
    #[test]
    fn the_bound_holds_for_files() {
        let entries: Vec<_> = (0..u32::try_from(MAX_CLIENTS).unwrap() + 5)
            .map(|number| {
                let mut row = row("203.0.113.7");
                row.client = Client::V4(number);
                row.last_seen = Time(u64::from(u32::MAX - number));
                Entry { row, unknown: None }
            })
            .collect();
        let kept = ClientsFile::complete(entries, &[], Time(0));
        assert_eq!(kept.len(), MAX_CLIENTS);
        assert!(
            kept.iter()
                .all(|entry| entry.row.client < Client::V4(u32::try_from(MAX_CLIENTS).unwrap()))
        );
    }

    /// LIMIT-1: a bucket's start written by hand is moved to a multiple of its length.
    #[test]
    fn bucket_starts_are_multiples() {
        let mut form = client_json(&row("203.0.113.7"));
        form["requests"]["hour"]["start"] = json!("2026-11-21T16:12:13Z");
        let read: Entry = serde_json::from_value(form).unwrap();
        assert_eq!(read.row.requests.hour.start_ms, 1_795_276_800_000);
    }
}
