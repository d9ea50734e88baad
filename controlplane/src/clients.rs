//! clients.json: `{"version":1,"clients":[…]}`, least recently seen first; also the form of a
//! client in the admin answer (ADMIN-4). An edited client replaces the whole client in memory.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_shared::api::clients::Client as Form;
use weir_shared::client::Client;
use weir_shared::lookup::Interner;
use weir_shared::table::{ClientRow, MAX_CLIENTS};
use weir_shared::units::Time;

use crate::state::document::{self, Document, Row, drop_over, refuse_duplicate};
use crate::state::schema::{self, LazySchema};

/// clients.json
pub(crate) struct ClientsFile;

/// A client with the members of its entry that this version does not know.
pub(crate) type Entry = Row<ClientRow>;

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
        let mut lookups = Interner::default();
        let of_clients = entries
            .iter_mut()
            .filter_map(|entry| entry.row.lookup.as_mut());
        of_clients.for_each(|lookup| lookups.intern(lookup));
        entries
    }

    fn sort(_: &mut [Entry]) {
        // Memory keeps the exact order of last sight, which times alone would not tell.
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        schema::write(&Form::from(&self.row), &self.unknown, serializer)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(ClientRow::from(Form::deserialize(
            deserializer,
        )?)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use weir_shared::lookup::Lookup;
    use weir_shared::rules::{Rule, RuleKind};
    use weir_shared::table::{OtherSites, RuleCount};
    use weir_shared::window::{PerSpan, RuleSpan, Window};

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
            other_sites: None,
            first_passed: None,
        }
    }

    /// STATE, ADMIN-4: a client has one form, in the file and in the answer, and is read back as it
    /// was.
    #[test]
    fn a_client_has_one_form() {
        let row = row("2001:db8:1:2::/64");
        let none = json!({"start":"1970-01-01T00:00:00Z","current":0,"previous":0});
        let form = json!(Form::from(&row));
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

    /// RULE-2, RULE-4: the counts of rules are written with the rules' names, and read back.
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
        let form = json!(Form::from(&row));
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

    /// Equal lookup answers are held once: 20,000 clients are of far fewer networks.
    #[test]
    fn clients_of_one_network_share_their_answer() {
        let rows = ["192.0.2.1", "192.0.2.2"].map(|client| Row::from(row(client)));
        let read = ClientsFile::complete(rows.to_vec(), &[], Time(0));
        let [one, other] = [0, 1].map(|at| read[at].row.lookup.as_ref().unwrap());
        assert!(Arc::ptr_eq(one, other));
        assert_eq!(read, rows);
    }

    /// RULE-8: the requests that other sites made visitors send are written beside the counts, and
    /// read back.
    #[test]
    fn what_other_sites_asked_for_has_one_form() {
        let mut row = row("203.0.113.7");
        let window = Window {
            start_ms: 1_795_276_800_000,
            current: 2,
            previous: 1,
        };
        let mut part = OtherSites::default();
        part.requests.hour = window;
        row.other_sites = Some(Box::new(part));
        row.rules = vec![RuleCount {
            rule: Arc::new(Rule::new(RuleKind::Jail, "auth".to_owned())),
            span: RuleSpan::Hour,
            window,
            other_sites: window,
            in_fleet: None,
        }];
        let form = json!(Form::from(&row));
        let buckets = json!({"start":"2026-11-21T16:00:00Z","current":2,"previous":1});
        assert_eq!(form["other_sites"]["requests"]["hour"], buckets);
        assert_eq!(form["rules"][0]["other_sites"], buckets);
        let read = testing::read::<ClientsFile>("clients", &form).unwrap();
        assert_eq!((read.row, read.unknown), (row, None));
    }

    /// STATE: unknown members of an entry stay with their client when the service writes the entry
    /// again.
    #[test]
    fn unknown_members_stay_with_their_client() {
        let mut form = json!(Form::from(&row("203.0.113.7")));
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

    /// LIMIT-7: of a file that holds more, the 20,000 clients seen last are loaded.
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
        let mut form = json!(Form::from(&row("203.0.113.7")));
        form["requests"]["hour"]["start"] = json!("2026-11-21T16:12:13Z");
        let read: Entry = serde_json::from_value(form).unwrap();
        assert_eq!(read.row.requests.hour.start_ms, 1_795_276_800_000);
    }
}
