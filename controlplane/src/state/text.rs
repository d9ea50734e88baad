//! One state file as text: `{"version":1,"written":"…","<list>":[…]}`, with one list or several,
//! read strictly and written in a stable order.
//!
//! Top-level members that this version does not know (`"$schema"` among them) are kept in their
//! place. What one entry means is left to the [`Document`] of its file, and what `written` means to
//! [`super::diff`].

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use serde_path_to_error::{Deserializer as Tracked, Track};
use weir_shared::units::Time;

use super::document::{Document, Entry as _, lists};
use super::fault::Fault;
use super::schema::{FileSchema, List, Unknown};
use crate::json::{self, Strict, Twice};

/// The only version there is.
const VERSION: u64 = 1;

/// The member that says of which moment the file is.
const WRITTEN: &str = "written";

/// A file as it was read.
pub(crate) struct Content<D: Document> {
    pub(crate) entries: Vec<D::Entry>,
    pub(crate) envelope: Envelope,
    /// What it says of the moment it is of.
    pub(crate) written: Option<Time>,
}

/// The top-level members in their order; the place of a list is held by an empty one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Envelope(Map<String, Value>);

/// Reads a whole file. An entry is read as a value, judged by the file's schema (STATE-8), and only
/// then understood.
pub(crate) fn parse<D: Document>(bytes: &[u8]) -> Result<Content<D>, Fault> {
    judged::<D>(bytes, 1, &|_| Ok(())).map_err(|faults| {
        let first = faults.told.into_iter().next();
        first.unwrap_or_else(|| Fault::new(0, 0, "", "it is not valid"))
    })
}

/// The faults of a file. While the file is read, a fault is a pointer and a message; its line is
/// looked up afterwards.
#[derive(Default)]
pub(crate) struct Faults<T = Fault> {
    /// The first of them.
    pub(crate) told: Vec<T>,
    /// How many more entries have one.
    pub(crate) further: usize,
}

/// An owner's objection to an entry that fits its schema: a pointer inside of it, and a message.
pub(crate) type Judge<'a, D> = &'a dyn Fn(&<D as Document>::Entry) -> Result<(), (String, String)>;

/// [`parse`] that tells up to `most` faults, and goes on behind a fault unless `most` is 1. A text
/// that is no JSON ends it.
pub(crate) fn judged<D: Document>(
    bytes: &[u8],
    most: usize,
    judge: Judge<'_, D>,
) -> Result<Content<D>, Faults> {
    let schema = D::schema().as_ref().map_err(|error| {
        let message = format!("the schema of {} is wrong: {error}", D::FILE);
        Faults {
            told: vec![Fault::new(0, 0, "", &message)],
            further: 0,
        }
    })?;
    let refused = RefCell::default();
    let whole = || Whole::<D> {
        schema,
        refused: &refused,
        most,
        judge,
        noting: None,
    };
    whole().read(bytes).map_err(|error| {
        let Faults { told, further } = refused.take();
        let at_place = |(pointer, message): (String, String)| {
            let (line, column) = json::place(bytes, &pointer);
            Fault::new(line, column, &pointer, &message)
        };
        let mut told: Vec<Fault> = told.into_iter().map(at_place).collect();
        let message = json::sentence(&error);
        if told.is_empty() || message != REFUSED {
            // No JSON, or JSON of another kind: a second reading tells at which member.
            let pointer = json::explain(whole(), bytes).err();
            let pointer = pointer.map(|refused| refused.pointer).unwrap_or_default();
            told.push(Fault::new(error.line(), error.column(), &pointer, &message));
        }
        Faults { told, further }
    })
}

/// [`parse`] that also says where each entry stands in the bytes. An entry whose text is `known` is
/// not judged again.
pub(crate) fn parse_noting<D: Document>(
    bytes: &[u8],
    known: impl Fn(&[u8]) -> Option<D::Entry>,
) -> Result<(Content<D>, Vec<Range<usize>>), Fault> {
    let places = RefCell::new(Vec::new());
    let read = D::schema().as_ref().ok().and_then(|schema| {
        let whole = Whole::<D> {
            schema,
            refused: &RefCell::default(),
            most: 1,
            judge: &|_| Ok(()),
            noting: Some(Noting {
                known: &known,
                begin: bytes.as_ptr().addr(),
                places: &places,
            }),
        };
        whole.read(bytes).ok()
    });
    match read {
        Some(content) => Ok((content, places.into_inner())),
        // Rare: a second reading tells what is wrong.
        None => parse(bytes).map(|content| (content, Vec::new())),
    }
}

/// Writes a whole file, pretty-printed, with a newline at its end.
pub(crate) fn write<D: Document>(
    out: &mut dyn Write,
    entries: &[D::Entry],
    envelope: &Envelope,
) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Written::<D> { entries, envelope })?;
    out.write_all(b"\n")
}

impl Envelope {
    /// Of a file that this service makes.
    pub(crate) fn new<D: Document>() -> Self {
        let lists = lists::<D>().map(|list| (list.to_owned(), Value::Array(Vec::new())));
        Self(
            std::iter::once(("version".to_owned(), VERSION.into()))
                .chain(lists)
                .collect(),
        )
    }

    /// Says that the file is of this moment, behind its version.
    pub(crate) fn stamp(&mut self, written: Time) {
        let written = Value::String(written.to_string());
        if let Some(held) = self.0.get_mut(WRITTEN) {
            *held = written;
        } else if let Some(version) = self.0.keys().position(|name| name == "version") {
            let _ = self
                .0
                .shift_insert(version + 1, WRITTEN.to_owned(), written);
        }
    }
}

/// Entries of memory, with the unknown members that they had in the file.
pub(crate) fn with_unknown<D: Document>(entries: &mut [D::Entry], base: &[D::Entry]) {
    let held: HashMap<D::Key, &Unknown> = base
        .iter()
        .filter(|entry| entry.unknown().is_some())
        .map(|entry| (D::key(entry), entry.unknown()))
        .collect();
    if held.is_empty() {
        return;
    }
    for entry in entries {
        if let Some(unknown) = held.get(&D::key(entry)) {
            entry.keep((*unknown).clone());
        }
    }
}

struct Written<'a, D: Document> {
    entries: &'a [D::Entry],
    envelope: &'a Envelope,
}

impl<D: Document> Serialize for Written<'_, D> {
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

/// The reading of a whole file.
struct Whole<'a, D: Document> {
    schema: &'a FileSchema,
    /// What was refused for another reason than that it is no JSON.
    refused: &'a RefCell<Faults<(String, String)>>,
    /// Faults that are told.
    most: usize,
    judge: Judge<'a, D>,
    noting: Option<Noting<'a, D>>,
}

/// The text of the error that ends such a reading; nobody sees it.
const REFUSED: &str = "refused";

/// What is noted of the texts of entries.
struct Noting<'a, D: Document> {
    known: &'a dyn Fn(&[u8]) -> Option<D::Entry>,
    /// Address of the first byte of the file.
    begin: usize,
    places: &'a RefCell<Vec<Range<usize>>>,
}

impl<D: Document> Noting<'_, D> {
    /// Notes where this text stands, and gives the entry that it is known for.
    fn note(&self, text: &str) -> Option<D::Entry> {
        let begin = text.as_ptr().addr().saturating_sub(self.begin);
        self.places.borrow_mut().push(begin..begin + text.len());
        (self.known)(text.as_bytes())
    }
}

impl<D: Document> Whole<'_, D> {
    fn read(self, bytes: &[u8]) -> serde_json::Result<Content<D>> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let content = self.deserialize(&mut json)?;
        json.end()?;
        Ok(content)
    }

    /// Ends the reading.
    fn refuse<E: serde::de::Error>(&self, pointer: String, message: String) -> E {
        self.note(pointer, message);
        E::custom(REFUSED)
    }

    fn note(&self, pointer: String, message: String) {
        let mut refused = self.refused.borrow_mut();
        if refused.told.len() < self.most {
            refused.told.push((pointer, message));
        } else {
            refused.further += 1;
        }
    }
}

impl<'de, D: Document> DeserializeSeed<'de> for Whole<'_, D> {
    type Value = Content<D>;

    fn deserialize<T: Deserializer<'de>>(self, deserializer: T) -> Result<Content<D>, T::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, D: Document> Visitor<'de> for Whole<'_, D> {
    type Value = Content<D>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with \"version\" and \"{}\"", D::LIST)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content<D>, A::Error> {
        let mut envelope = Map::new();
        let mut entries = Vec::new();
        let mut written = None;
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if envelope.contains_key(&name) {
                map.next_value_seed(Twice(&name))?;
            }
            let value = if let Some(list) = self.schema.list(&name) {
                map.next_value_seed(Entries {
                    whole: &self,
                    list,
                    entries: &mut entries,
                    seen: &mut seen,
                })?;
                Value::Array(Vec::new())
            } else {
                let Strict(value) = map.next_value()?;
                // At once: what the entries of another version mean is not known.
                if name == "version" && value.as_f64() != Some(1.0) {
                    let message = format!("unknown version {value}: {VERSION} is known");
                    return Err(self.refuse("/version".to_owned(), message));
                }
                if name == WRITTEN
                    && let Some(text) = value.as_str()
                {
                    let read = text.parse::<Time>();
                    written =
                        Some(read.map_err(|message| self.refuse(json::member(WRITTEN), message))?);
                }
                value
            };
            envelope.insert(name, value);
        }
        let envelope = Value::Object(envelope);
        if let Some(fault) = self.schema.judge_envelope(&envelope) {
            return Err(self.refuse(fault.instance_path, sentence(&fault.sentence)));
        }
        if !self.refused.borrow().told.is_empty() {
            return Err(A::Error::custom(REFUSED));
        }
        // In the order of the lists, whatever the order of the members.
        let place = |entry: &D::Entry| lists::<D>().position(|list| list == D::list(entry));
        if !D::MORE.is_empty() && !entries.is_sorted_by_key(place) {
            entries.sort_by_key(place);
            if let Some(noting) = &self.noting {
                // They are in another order.
                noting.places.borrow_mut().clear();
            }
        }
        let Value::Object(envelope) = envelope else {
            return Err(A::Error::custom("no object"));
        };
        Ok(Content {
            entries,
            envelope: Envelope(envelope),
            written,
        })
    }
}

/// A sentence in the middle of a longer one.
fn sentence(text: &str) -> String {
    text.trim_end_matches('.').to_owned()
}

/// One list, each entry judged where it stands so that the error names its place.
struct Entries<'a, D: Document> {
    whole: &'a Whole<'a, D>,
    list: &'a List,
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
        let mut index = 0_usize;
        while let Some(understood) = self.next(&mut list)? {
            let entry = understood.and_then(|entry| {
                D::check(&entry, self.seen).map_err(|message| (String::new(), message))?;
                (self.whole.judge)(&entry)?;
                Ok(entry)
            });
            match entry {
                Ok(entry) => self.entries.push(entry),
                Err((inside, message)) => {
                    let pointer = format!("/{}/{index}{inside}", self.list.name);
                    if self.whole.most == 1 {
                        return Err(self.whole.refuse(pointer, message));
                    }
                    self.whole.note(pointer, message);
                }
            }
            index += 1;
        }
        Ok(())
    }
}

impl<D: Document> Entries<'_, D> {
    /// What comes next in the list; an entry whose text is known is not judged.
    fn next<'de, A: SeqAccess<'de>>(
        &self,
        list: &mut A,
    ) -> Result<Option<Understood<D>>, A::Error> {
        let next: Option<Strict> = if let Some(noting) = &self.whole.noting {
            let Some(text) = list.next_element::<&RawValue>()? else {
                return Ok(None);
            };
            if let Some(entry) = noting.note(text.get()) {
                return Ok(Some(Ok(entry)));
            }
            Some(serde_json::from_str(text.get()).map_err(A::Error::custom)?)
        } else {
            list.next_element()?
        };
        Ok(next.map(|Strict(value)| understand::<D>(self.list, value)))
    }
}

/// An entry, or pointer and message of why it is none.
type Understood<D> = Result<<D as Document>::Entry, (String, String)>;

/// The entry that a value is.
///
/// The schema is checked first, then serde, since a schema cannot say everything (that two entries
/// have one name, that `1::2::3` is no address). If both refuse, serde's message is shown.
fn understand<D: Document>(list: &List, value: Value) -> Understood<D> {
    let fault = list.judge(&value);
    if fault.is_none()
        && let Ok(mut entry) = D::read(list.name, &value)
    {
        entry.keep(list.unknown(value));
        return Ok(entry);
    }
    let mut track = Track::new();
    let read = D::read(list.name, Tracked::new(&value, &mut track));
    let inside = json::pointer(&track.path());
    Err(match (fault, read) {
        (Some(fault), Err(error)) if inside.starts_with(&fault.instance_path) => {
            (inside, json::sentence(&error))
        }
        (None, Err(error)) => (inside, json::sentence(&error)),
        (Some(fault), _) => (fault.instance_path, sentence(&fault.sentence)),
        (None, Ok(_)) => (String::new(), "it is not valid".to_owned()),
    })
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
