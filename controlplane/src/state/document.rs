//! One state file as text: `{"version":1,"<list>":[…]}`, with one list or several, read strictly and written in a
//! stable order.
//!
//! Top-level members that this version does not know (`"$schema"` among them) are kept in their place. What one entry
//! means is left to the [`Document`] of its file.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::io::{self, Write};
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_path_to_error::{Deserializer as Tracked, Path, Segment, Track};
use weir_shared::units::Time;

use super::keeper::{Counters, Shared};
use super::merge::Diff;

/// The only version there is.
const VERSION: u64 = 1;
/// The most characters of a fault's message and of its pointer.
const MAX_QUOTE: usize = 300;

/// What one state file holds. One implementation a file.
pub(super) trait Document: Sized + 'static {
    /// The file's name.
    const FILE: &'static str;
    /// The member that holds the entries.
    const LIST: &'static str;
    /// Further members that hold entries, in the order of the file.
    const MORE: &'static [&'static str] = &[];
    /// One entry.
    type Entry: Clone + PartialEq + Serialize;
    /// What names an entry in the file and in memory.
    type Key: Copy + Eq + Hash + Ord + fmt::Debug;

    /// The member that holds this entry.
    fn list(_: &Self::Entry) -> &'static str {
        Self::LIST
    }

    /// Reads an entry of the list of this name.
    fn read<'de, T: Deserializer<'de>>(list: &str, entry: T) -> Result<Self::Entry, T::Error>;

    /// The entry's name.
    fn key(entry: &Self::Entry) -> Self::Key;

    /// Refuses an entry that parses but cannot stand beside those `seen` before it.
    fn check(entry: &Self::Entry, seen: &mut HashSet<Self::Key>) -> Result<(), String>;

    /// Completes what was read: members left out, keys made unique, bounds kept. `base` is what was last read or
    /// written, so that an entry which is read twice is completed the same way.
    fn complete(entries: Vec<Self::Entry>, base: &[Self::Entry], now: Time) -> Vec<Self::Entry>;

    /// An entry that the edit changed from `before` to `theirs` while memory holds `ours`.
    fn merge(before: &Self::Entry, ours: &Self::Entry, theirs: &Self::Entry) -> Self::Entry;

    /// Whether the change from `before` to `after` lifts the entry.
    fn lifts(before: &Self::Entry, after: &Self::Entry) -> bool;

    /// Puts the entries into the order of the file.
    fn sort(entries: &mut [Self::Entry]);

    /// Where its reads and writes are counted.
    fn counters(shared: &Shared) -> &Counters;

    /// The difference as the control loop takes it.
    fn edit(number: u64, diff: &Diff<Self>) -> super::Edit;
}

/// A file as it was read.
pub(super) struct Content<D: Document> {
    pub(super) entries: Vec<D::Entry>,
    pub(super) envelope: Envelope,
}

/// The top-level members in their order; the list's place is held by null.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Envelope(Vec<(String, Value)>);

/// Why a file cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}, at \"{pointer}\": {message}")]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) column: usize,
    /// JSON Pointer (RFC 6901); empty for the whole document.
    pub(super) pointer: String,
    pub(super) message: String,
}

/// Reads a whole file.
pub(super) fn parse<D: Document>(bytes: &[u8]) -> Result<Content<D>, Fault> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = Content::deserialize(&mut json).and_then(|content| json.end().map(|()| content));
    // Following the path costs an allocation a member: only a file that is refused pays for it.
    read.map_err(|error| {
        let mut track = Track::new();
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let tracked = Content::<D>::deserialize(Tracked::new(&mut json, &mut track));
        let pointer = match tracked {
            Ok(_) => String::new(),
            Err(_) => pointer(&track.path()),
        };
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let message = text
            .strip_suffix(&format!(" at line {line} column {column}"))
            .unwrap_or(&text);
        Fault {
            line,
            column,
            pointer: shortened(&pointer),
            message: shortened(message),
        }
    })
}

/// A fault quotes what it found, and that may be a megabyte: its beginning is enough to find it by.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

/// Writes a whole file, pretty-printed, with a newline at its end.
pub(super) fn write<D: Document>(
    out: &mut dyn Write,
    entries: &[D::Entry],
    envelope: &Envelope,
) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Whole::<D> { entries, envelope })?;
    out.write_all(b"\n")
}

impl Envelope {
    /// Of a file that this service makes.
    pub(super) fn new<D: Document>() -> Self {
        let lists = lists::<D>().map(|list| (list.to_owned(), Value::Null));
        Self(
            std::iter::once(("version".to_owned(), VERSION.into()))
                .chain(lists)
                .collect(),
        )
    }
}

/// The members that hold entries.
fn lists<D: Document>() -> impl Iterator<Item = &'static str> {
    std::iter::once(D::LIST).chain(D::MORE.iter().copied())
}

fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Segment::Unknown => {}
        }
    }
    pointer
}

struct Whole<'a, D: Document> {
    entries: &'a [D::Entry],
    envelope: &'a Envelope,
}

impl<D: Document> Serialize for Whole<'_, D> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.envelope.0.len()))?;
        for (name, value) in &self.envelope.0 {
            if lists::<D>().any(|list| list == name) {
                map.serialize_entry(name, &Listed::<D>(name, self.entries))?;
            } else {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}

/// The entries of one list.
struct Listed<'a, D: Document>(&'a str, &'a [D::Entry]);

impl<D: Document> Serialize for Listed<'_, D> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(name, entries) = self;
        serializer.collect_seq(entries.iter().filter(|entry| D::list(entry) == *name))
    }
}

impl<'de, D: Document> Deserialize<'de> for Content<D> {
    fn deserialize<T: Deserializer<'de>>(deserializer: T) -> Result<Self, T::Error> {
        struct Members<D>(PhantomData<D>);

        impl<'de, D: Document> Visitor<'de> for Members<D> {
            type Value = Content<D>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object with \"version\" and \"{}\"", D::LIST)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content<D>, A::Error> {
                let mut envelope: Vec<(String, Value)> = Vec::new();
                let mut entries = Vec::new();
                let mut seen = HashSet::new();
                let mut version = false;
                while let Some(name) = map.next_key::<String>()? {
                    if envelope.iter().any(|(held, _)| *held == name) {
                        return Err(A::Error::custom(format!("\"{name}\" stands there twice")));
                    }
                    if lists::<D>().any(|list| list == name) {
                        map.next_value_seed(Entries::<D> {
                            list: &name,
                            entries: &mut entries,
                            seen: &mut seen,
                        })?;
                        envelope.push((name, Value::Null));
                    } else if name == "version" {
                        map.next_value::<Version>()?;
                        version = true;
                        envelope.push((name, VERSION.into()));
                    } else {
                        envelope.push((name, map.next_value()?));
                    }
                }
                if !version {
                    return Err(A::Error::missing_field("version"));
                }
                for list in lists::<D>() {
                    if !envelope.iter().any(|(name, _)| name == list) {
                        return Err(A::Error::missing_field(list));
                    }
                }
                // In the order of the lists, whatever the order of the members.
                let place = |entry: &D::Entry| lists::<D>().position(|list| list == D::list(entry));
                if !D::MORE.is_empty() {
                    entries.sort_by_key(place);
                }
                Ok(Content {
                    entries,
                    envelope: Envelope(envelope),
                })
            }
        }

        deserializer.deserialize_map(Members(PhantomData))
    }
}

struct Version;

impl<'de> Deserialize<'de> for Version {
    fn deserialize<T: Deserializer<'de>>(deserializer: T) -> Result<Self, T::Error> {
        let found = Value::deserialize(deserializer)?;
        if found.as_u64() == Some(VERSION) {
            Ok(Self)
        } else {
            Err(T::Error::custom(format!(
                "unknown version {found}: {VERSION} is known"
            )))
        }
    }
}

/// One list, each entry checked where it stands so that the error names its place.
struct Entries<'a, D: Document> {
    list: &'a str,
    entries: &'a mut Vec<D::Entry>,
    seen: &'a mut HashSet<D::Key>,
}

impl<'de, D: Document> DeserializeSeed<'de> for Entries<'_, D> {
    type Value = ();

    fn deserialize<T: Deserializer<'de>>(self, deserializer: T) -> Result<(), T::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, D: Document> Visitor<'de> for Entries<'_, D> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element_seed(Entry::<D> {
            list: self.list,
            seen: self.seen,
        })? {
            self.entries.push(entry);
        }
        Ok(())
    }
}

struct Entry<'a, D: Document> {
    list: &'a str,
    seen: &'a mut HashSet<D::Key>,
}

impl<'de, D: Document> DeserializeSeed<'de> for Entry<'_, D> {
    type Value = D::Entry;

    fn deserialize<T: Deserializer<'de>>(self, deserializer: T) -> Result<D::Entry, T::Error> {
        let entry = D::read(self.list, deserializer)?;
        D::check(&entry, self.seen).map_err(T::Error::custom)?;
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::bans::Bans;
    use super::super::clients::Clients;
    use super::super::lookups::Lookups;
    use super::*;

    /// Values that fit some member and no other. Arrays have something in them: an empty one in the place of an object
    /// without needed members is taken by the service and refused by the schemas.
    fn value() -> impl Strategy<Value = Value> {
        let time = "2026-11-21T16:00:00Z";
        let window = json!({"start": time, "current": 3, "previous": 9});
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(7),
            json!(-1),
            json!(1.5),
            json!(u64::MAX),
            json!(""),
            json!("permanent"),
            json!(time),
            json!("2026-11-21T16:00:00.5+01:00"),
            json!("2026-11-21"),
            json!("2026-02-30T16:00:00Z"),
            json!("203.0.113.7"),
            json!("203.0.113.7/24"),
            json!("203.0.113.0/33"),
            json!("203.0.113.07"),
            json!("::1"),
            json!("2001:db8::/32"),
            json!("2001:db8:1:2::/64"),
            json!("::/129"),
            json!("::ffff:203.0.113.7"),
            json!("fe80::1%x"),
            json!("203.0.113.7/64"),
            json!("admin"),
            json!("edit"),
            json!("day"),
            json!("week"),
            json!("DE"),
            json!("AS64496"),
            json!("64496"),
            json!([7]),
            json!({}),
            json!({"limit": "day", "limit_percent": 50}),
            json!({"limit": 1}),
            json!({"limit_value": -1}),
            json!({"request": {"path": "/", "host": null}}),
            json!({"request": {"path": 7}}),
            json!({"lookup": {"country": "DE"}}),
            json!({"lookup": [7]}),
            json!({"country": "DE", "asn": null}),
            json!({"as_name": 7}),
            json!({"minute": window}),
            json!({"day": {"start": time}}),
            json!({"hour": null}),
        ])
    }

    /// A whole document whose one entry had some members put in, changed or taken out.
    fn document<D: Document>(
        entry: Value,
        members: &'static [&'static str],
    ) -> impl Strategy<Value = Value> {
        let change = (
            prop::sample::select(members.to_vec()),
            prop::option::weighted(0.9, value()),
        );
        prop::collection::vec(change, 0..4).prop_map(move |changes| {
            let mut entry = entry.clone();
            for (member, value) in changes {
                match value {
                    Some(value) => entry[member] = value,
                    None => drop(entry.as_object_mut().unwrap().remove(member)),
                }
            }
            json!({"version": 1, D::LIST: [entry]})
        })
    }

    fn schema(text: &str) -> jsonschema::Validator {
        let schema = serde_json::from_str(text).unwrap();
        jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap()
    }

    /// Whether the schema and the service say the same.
    fn agree<D: Document>(
        schema: &jsonschema::Validator,
        document: &Value,
    ) -> Result<(), TestCaseError> {
        let taken = parse::<D>(document.to_string().as_bytes());
        prop_assert_eq!(
            schema.is_valid(document),
            taken.is_ok(),
            "{}: {:?}",
            document,
            taken.err()
        );
        Ok(())
    }

    static SCHEMAS: LazyLock<[jsonschema::Validator; 3]> = LazyLock::new(|| {
        [
            schema(include_str!("../../../schema/proxy/bans.schema.json")),
            schema(include_str!("../../../schema/proxy/clients.schema.json")),
            schema(include_str!("../../../schema/proxy/lookups.schema.json")),
        ]
    });

    /// Texts made of the pieces of state files, well put together or not.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"version\":1",
            "\"version\":2",
            "\"bans\":[",
            "\"clients\":[",
            "\"netblock\":\"10.0.0.0/8\"",
            "\"netblock\":\"::1/200\"",
            "\"ban_expires\":\"permanent\"",
            "\"ban_expires\":\"2026-11-21T16:00:00Z\"",
            "\"ban_expires\":\"9999-99-99\"",
            "\"notes\":{\"limit_percent\":300}",
            "\"client\":\"203.0.113.7\"",
            "\"first_seen\":\"2026-11-21T16:00:00Z\"",
            "\"last_seen\":\"1969-12-31T23:59:59Z\"",
            "\"passed\":18446744073709551616",
            "\"lifted\":null",
            "\"$schema\":\"x\"",
            "\"\\ud800\"",
            "1e999",
            "-0",
            "null",
            " ",
            "\n",
            "\u{feff}",
            "\u{0}",
        ]);
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    const GOOD: &str = r#"{"$schema":"x","version":1,"bans":[{"netblock":"203.0.113.0/24","client":"203.0.113.7","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent","cause":"admin","reason":"r","notes":{"limit":"day","netblock_requests":7,"x":[1]},"ticket":{"a":1}},{"netblock":"2001:db8::/32","ban_expires":"2026-11-21T17:00:00Z"}],"owner":"ops"}"#;

    /// What is taken is written so that it is read back as it was; what is not is a fault of one line that lies inside.
    fn judged<D: Document>(bytes: &[u8]) -> Result<bool, TestCaseError> {
        match parse::<D>(bytes) {
            Ok(content) => {
                let mut out = Vec::new();
                write::<D>(&mut out, &content.entries, &content.envelope).unwrap();
                let again =
                    parse::<D>(&out).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
                prop_assert!(again.entries == content.entries);
                prop_assert_eq!(again.envelope, content.envelope);
                Ok(true)
            }
            Err(fault) => {
                prop_assert!(fault.line <= 1 + bytes.iter().filter(|byte| **byte == b'\n').count());
                prop_assert!(fault.pointer.is_empty() || fault.pointer.starts_with('/'));
                prop_assert!(!fault.message.is_empty());
                Ok(false)
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// STATE-5, STATE-6: whatever a file holds, it is judged and never a panic.
        #[test]
        fn any_file_is_judged(bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), pieces().prop_map(String::into_bytes)]) {
            judged::<Bans>(&bytes)?;
            judged::<Clients>(&bytes)?;
        }

        /// STATE-8: the schemas in `schema/proxy/` judge an entry as the service does, whatever stands in its members.
        #[test]
        fn schemas_and_service_agree(
            bans in document::<Bans>(json!({"netblock": "203.0.113.0/24", "ban_expires": "permanent"}),
                &["netblock", "client", "ban_started", "ban_expires", "cause", "reason", "lifted", "observed", "notes", "x"]),
            clients in document::<Clients>(json!({"client": "203.0.113.7", "first_seen": "2026-11-21T16:00:00Z", "last_seen": "2026-11-21T16:00:00Z"}),
                &["client", "first_seen", "last_seen", "lookup", "passed", "refused", "requests", "bytes", "x"]),
            lookups in document::<Lookups>(json!({"client": "203.0.113.7", "answered": "2026-11-21T16:00:00Z"}),
                &["client", "answered", "country", "asn", "as_name", "x"]),
        ) {
            let [of_bans, of_clients, of_lookups] = &*SCHEMAS;
            agree::<Bans>(of_bans, &bans)?;
            agree::<Clients>(of_clients, &clients)?;
            agree::<Lookups>(of_lookups, &lookups)?;
        }

        /// STATE-5: the same for a good file with one byte changed, and for one that was cut off, which never is one.
        #[test]
        fn a_damaged_file_is_judged(at in 0..GOOD.len(), byte in any::<u8>()) {
            let mut bytes = GOOD.as_bytes().to_vec();
            prop_assert!(judged::<Bans>(&bytes)?);
            bytes[at] = byte;
            judged::<Bans>(&bytes)?;
            prop_assert!(!judged::<Bans>(&GOOD.as_bytes()[..at])?);
        }
    }

    fn fault<D: Document>(text: &str) -> String {
        match parse::<D>(text.as_bytes()) {
            Ok(_) => panic!("{text} was taken"),
            Err(fault) => fault.to_string(),
        }
    }

    /// STATE-5, STATE-6: what does not parse, has an unknown version or lacks a needed member is named with line, column
    /// and JSON pointer.
    #[test]
    fn faults_name_line_column_and_pointer() {
        for (text, expected) in [
            ("", "line 1, column 0, at \"\": EOF while parsing a value"),
            (
                "{\"version\":1,\"bans\":[",
                "line 1, column 21, at \"/bans\": EOF while parsing a list",
            ),
            (
                "{\"version\":1,\n \"bans\":[]} x",
                "line 2, column 13, at \"\": trailing characters",
            ),
            (
                "{\"version\":2,\"bans\":[]}",
                "line 1, column 12, at \"/version\": unknown version 2: 1 is known",
            ),
            (
                "{\"bans\":[]}",
                "line 1, column 11, at \"\": missing field `version`",
            ),
            (
                "{\"version\":1}",
                "line 1, column 13, at \"\": missing field `bans`",
            ),
            (
                "{\"version\":1,\"version\":1,\"bans\":[]}",
                "line 1, column 22, at \"\": \"version\" stands there twice",
            ),
            (
                "{\"version\":1,\"bans\":[\n{\"netblock\":\"203.0.113.0/24\"}]}",
                "line 2, column 29, at \"/bans/0\": missing field `ban_expires`",
            ),
            (
                "{\"version\":1,\"bans\":[{\"netblock\":\"x\",\"ban_expires\":\"permanent\"}]}",
                "line 1, column 36, at \"/bans/0/netblock\": \"x\" is not a netblock: an address or a prefix such as 192.0.2.0/24 or 2001:db8::/32 is allowed",
            ),
            (
                "{\"version\":1,\"bans\":[{\"netblock\":\"::1\",\"ban_expires\":\"soon\"}]}",
                "line 1, column 60, at \"/bans/0/ban_expires\": \"soon\" is not an end: RFC 3339 such as 2026-11-21T16:00:00Z, or \"permanent\", is allowed",
            ),
            (
                "[]",
                "line 1, column 0, at \"\": invalid type: sequence, expected an object with \"version\" and \"bans\"",
            ),
        ] {
            assert_eq!(fault::<Bans>(text), expected, "{text}");
        }
        let client = r#"{"client":"203.0.113.7","first_seen":"2026-11-21T16:00:00Z","last_seen":"2026-11-21T16:00:00Z"}"#;
        let twice = fault::<Clients>(&format!(r#"{{"version":1,"clients":[{client},{client}]}}"#));
        assert!(
            twice.contains("at \"/clients/1\": client 203.0.113.7 stands there twice"),
            "{twice}"
        );
    }

    /// STATE-5, STATE-6: a fault is a sentence, however long what it quotes is.
    #[test]
    fn a_fault_is_short() {
        let long = "ä".repeat(1 << 20);
        for text in [
            format!("\"{long}\""),
            format!("{{\"version\":\"{long}\"}}"),
            format!("{{\"version\":1,\"bans\":[{{\"netblock\":\"{long}\"}}]}}"),
            format!("{{\"{long}\":1,\"{long}\":2}}"),
            format!("{{\"{long}\":nil}}"),
        ] {
            let fault = fault::<Bans>(&text);
            assert!(fault.len() < 2000, "{}", fault.len());
            assert!(fault.contains('…'), "{fault}");
        }
    }

    /// STATE-5: hostile texts are faults, never panics; deep nesting is cut.
    #[test]
    fn hostile_texts_are_faults() {
        let deep = format!("{{\"version\":1,\"x\":{}", "[".repeat(100_000));
        for text in [
            deep.as_bytes(),
            b"\xff\xfe",
            b"{\"version\":1e999,\"bans\":[]}",
            b"{\"version\":1,\"bans\":[{\"netblock\":\"\xff\"}]}",
            b"\0",
            b"{\"version\":1,\"bans\":[null]}",
        ] {
            assert!(parse::<Bans>(text).is_err());
        }
    }

    /// STATE: what is read and written again is the same text: unknown members, their places, pretty-printed.
    #[test]
    fn unknown_members_keep_their_place() {
        let text = r#"{
  "$schema": "schema/bans.schema.json",
  "version": 1,
  "bans": [
    {
      "netblock": "203.0.113.0/24",
      "client": null,
      "ban_started": "2026-11-21T16:00:00Z",
      "ban_expires": "permanent",
      "cause": "edit",
      "reason": "",
      "lifted": null,
      "observed": false,
      "ticket": {
        "b": 1,
        "a": [
          2
        ]
      }
    }
  ],
  "owner": "ops"
}
"#;
        let content = parse::<Bans>(text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
        let mut out = Vec::new();
        write::<Bans>(&mut out, &content.entries, &content.envelope).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}
