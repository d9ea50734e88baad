//! lookups.json: `{"version":1,"lookups":[…]}`, by client. An entry has a client, its lookup, and
//! the time of the answer. An answer that a person wrote into the file counts like one of the
//! service.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_shared::client::Client;
use weir_shared::lookup::{AsNumber, Country, Interner, Lookup};
use weir_shared::units::Time;

use super::cache::{LookupRow, MAX_LOOKUPS};
use crate::state::document::{self, Document, Row, drop_over, refuse_duplicate};
use crate::state::schema::{self, LazySchema};

/// lookups.json
pub(crate) struct LookupsFile;

/// The time of an entry without one, until the reader fills it in.
const NOT_SAID: Time = Time(0);

/// An answer with the members of its entry that this version does not know.
pub(crate) type Entry = Row<LookupRow>;

impl Document for LookupsFile {
    const FILE: &'static str = "lookups.json";
    const SCHEMA: &'static str = include_str!("../../../schema/proxy/lookups.schema.json");
    const LIST: &'static str = "lookups";
    type Entry = Entry;
    type Key = Client;

    fn schema() -> &'static LazySchema {
        static SCHEMA: LazySchema = document::schema::<LookupsFile>();
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

    fn complete(mut entries: Vec<Entry>, base: &[Entry], now: Time) -> Vec<Entry> {
        let mut held: Option<HashMap<Client, Time>> = None;
        for entry in &mut entries {
            if entry.row.answered == NOT_SAID {
                let held = held.get_or_insert_with(|| {
                    let times = base.iter().map(|held| (held.row.client, held.row.answered));
                    times.collect()
                });
                entry.row.answered = held.get(&entry.row.client).copied().unwrap_or(now);
            }
            // An answer from the future would be valid for longer than WAF_LOOKUP_TTL.
            entry.row.answered = entry.row.answered.min(now);
        }
        let what = ("answers", "oldest");
        drop_over::<Self, _>(&mut entries, MAX_LOOKUPS, what, |entry| entry.row.answered);
        let mut lookups = Interner::default();
        for entry in &mut entries {
            lookups.intern(&mut entry.row.lookup);
        }
        entries
    }

    fn sort(entries: &mut [Entry]) {
        entries.sort_by_key(|entry| entry.row.client);
    }
}

/// The members of an entry, in their order.
#[derive(Serialize, Deserialize)]
struct Form {
    client: Client,
    #[serde(default)]
    answered: Time,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "country"
    )]
    country: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "as_number"
    )]
    asn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    as_name: Option<String>,
}

/// Two capital letters.
fn country<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let sound = |text: &str| {
        text.parse::<Country>()
            .is_ok_and(|code| code.to_string() == text)
    };
    match text {
        Some(text) if !sound(&text) => Err(serde::de::Error::custom(format!(
            "{text:?} is not a country: expected two capital letters such as DE"
        ))),
        text => Ok(text),
    }
}

/// `AS<number>`; 64512 stands for unknown (LOOKUP-4).
fn as_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match AsNumber::parse_named(&text) {
        Ok((number, None)) if text.starts_with("AS") => Ok(number.map(|number| number.to_string())),
        Ok(_) | Err(_) => Err(serde::de::Error::custom(format!(
            "{text:?} is not an AS number: expected AS and its number, such as AS64496"
        ))),
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let lookup = &self.row.lookup;
        let form = Form {
            client: self.row.client,
            answered: self.row.answered,
            country: lookup.country.clone(),
            asn: lookup.asn.clone(),
            as_name: lookup.as_name.clone(),
        };
        schema::write(&form, &self.unknown, serializer)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = Form::deserialize(deserializer)?;
        Ok(Self {
            row: LookupRow {
                client: form.client,
                lookup: Arc::new(Lookup {
                    country: form.country,
                    asn: form.asn,
                    as_name: form.as_name,
                }),
                answered: form.answered,
            },
            unknown: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::state::text::testing;

    fn read(entry: &Value) -> Result<Entry, String> {
        testing::read::<LookupsFile>("lookups", entry)
    }

    /// STATE, LOOKUP-2: an entry is read back as it was written, unknown members included.
    #[test]
    fn an_entry_has_one_form() {
        for form in [
            json!({"client":"8.8.8.8","answered":"2026-11-21T16:00:00Z","country":"US","asn":"AS15169","as_name":"Google LLC","note":"x"}),
            json!({"client":"2a00:1450:1:2::/64","answered":"2026-11-21T16:00:00Z"}),
        ] {
            assert_eq!(serde_json::to_value(read(&form).unwrap()).unwrap(), form);
        }
        let unknown = json!({"client":"8.8.8.8","answered":"2026-11-21T16:00:00Z","country":"US","asn":"AS64512"});
        let lookup = read(&unknown).unwrap().row.lookup;
        assert_eq!(
            (lookup.country.as_deref(), lookup.asn.as_deref()),
            (Some("US"), None)
        );
    }

    /// STATE-5, STATE-6: the error names the invalid member.
    #[test]
    fn what_does_not_fit_is_named() {
        let entry = json!({"client":"8.8.8.8","answered":"2026-11-21T16:00:00Z"});
        for (member, value, fault) in [
            (
                "country",
                json!("Germany"),
                "\"Germany\" is not a country: expected two capital letters such as DE",
            ),
            (
                "asn",
                json!("Google"),
                "\"Google\" is not an AS number: expected AS and its number, such as AS64496",
            ),
            (
                "answered",
                Value::Null,
                "invalid type: null, expected a string",
            ),
            (
                "client",
                json!("x"),
                "\"x\" is not a client: expected an IPv4 address, an IPv6 address or an IPv6 /64",
            ),
        ] {
            let mut wrong = entry.clone();
            wrong[member] = value;
            assert_eq!(read(&wrong).unwrap_err(), fault);
        }
        assert!(read(&json!({})).unwrap_err().contains("`client`"));
    }

    /// STATE-3: an answer written by hand without a time gets the time of its first reading, and
    /// keeps it when it is read again.
    #[test]
    fn an_answer_without_its_time_came_when_it_was_read() {
        let entry = vec![read(&json!({"client":"8.8.8.8"})).unwrap()];
        let first = LookupsFile::complete(entry.clone(), &[], Time(70));
        assert_eq!(first[0].row.answered, Time(70));
        assert_eq!(LookupsFile::complete(entry, &first, Time(90)), first);
    }

    /// LOOKUP-2: of a file that holds more, the 20,000 newest are loaded; an answer from the future
    /// counts as of now.
    #[test]
    fn the_bound_holds_for_files() {
        let row = |number: u32| LookupRow {
            client: Client::V4(number),
            lookup: Arc::default(),
            answered: Time(1 + u64::from(number)),
        };
        let entry = |number| Row {
            row: row(number),
            unknown: None,
        };
        let all = (0..20_003).map(entry).collect();
        let kept = LookupsFile::complete(all, &[], Time(20_001));
        let kept: Vec<_> = kept.into_iter().map(|entry| entry.row).collect();
        assert_eq!(kept.len(), MAX_LOOKUPS);
        assert!(
            kept.iter()
                .all(|row| row.client >= Client::V4(3) && row.answered <= Time(20_001))
        );
    }
}
