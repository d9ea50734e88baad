//! What a state file's JSON Schema says of it (STATE-8): whether it fits, and which members it
//! names. The others are unknown to this version: they are kept beside the entry and written back,
//! at every level.
//!
//! A file is never held whole: its entries are judged one by one, and the rest of it with empty
//! lists.

use std::sync::LazyLock;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use weir_schema::{Schema, Violation};

/// Members of an entry that this version does not know, in the objects that hold them. Boxed:
/// nearly every entry has none, and 20,000 empty maps are memory too.
pub(crate) type Unknown = Option<Box<Map<String, Value>>>;

/// A file's schema, compiled when a file is read for the first time: it costs more than all else of
/// a start that finds no files. That ours compile is tested.
pub(crate) type LazySchema = LazyLock<Result<FileSchema, String>>;

/// A file's schema, compiled.
pub(crate) struct FileSchema {
    envelope: Schema,
    lists: Vec<List>,
}

/// What it says of the entries of one list.
pub(super) struct List {
    pub(super) name: &'static str,
    entry: Schema,
    named: Named,
}

/// The members that a schema names, each with those inside of it.
struct Named(Vec<(String, Named)>);

impl FileSchema {
    /// Compiles the schema of a file with these lists.
    pub(super) fn compile(
        text: &str,
        lists: impl Iterator<Item = &'static str>,
    ) -> Result<Self, String> {
        let whole: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let id = whole.get("$id").and_then(Value::as_str).unwrap_or_default();
        let list = |name| {
            let items = format!("/properties/{name}/items");
            let entry = json!({"$ref": format!("{id}#{items}")});
            Ok(List {
                name,
                entry: Schema::compile(&entry, std::slice::from_ref(&whole))
                    .map_err(|error| error.to_string())?,
                named: Named::of(&whole, whole.pointer(&items).unwrap_or(&Value::Null)),
            })
        };
        Ok(Self {
            envelope: Schema::compile(&whole, &[]).map_err(|error| error.to_string())?,
            lists: lists.map(list).collect::<Result<_, String>>()?,
        })
    }

    pub(super) fn list(&self, name: &str) -> Option<&List> {
        self.lists.iter().find(|list| list.name == name)
    }

    /// The first fault of a file without its entries.
    pub(super) fn judge_envelope(&self, envelope: &Value) -> Option<Violation> {
        first(self.envelope.validate(envelope))
    }
}

impl List {
    /// The first fault of an entry.
    pub(super) fn judge(&self, entry: &Value) -> Option<Violation> {
        first(self.entry.validate(entry))
    }

    /// What the schema does not name of an entry.
    pub(super) fn unknown(&self, entry: Value) -> Unknown {
        match entry {
            Value::Object(members) => {
                let unknown = self.named.unknown(members);
                (!unknown.is_empty()).then(|| Box::new(unknown))
            }
            _ => None,
        }
    }
}

fn first(judged: Result<(), Vec<Violation>>) -> Option<Violation> {
    judged.err()?.into_iter().next()
}

impl Named {
    /// Of `part`, a subschema of `whole`.
    fn of(whole: &Value, part: &Value) -> Self {
        let mut members = Vec::new();
        if let Some(Value::Object(properties)) = part.get("properties") {
            members.extend(
                properties
                    .iter()
                    .map(|(name, part)| (name.clone(), Self::of(whole, part))),
            );
        }
        let referred = part
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|reference| whole.pointer(reference.strip_prefix('#')?));
        // `else` stands where a member may be null.
        for other in referred.into_iter().chain(part.get("else")) {
            members.extend(Self::of(whole, other).0);
        }
        Self(members)
    }

    fn unknown(&self, members: Map<String, Value>) -> Map<String, Value> {
        let keep = |(name, value): (String, Value)| {
            let Some((_, inside)) = self.0.iter().find(|(named, _)| *named == name) else {
                return Some((name, value));
            };
            let Value::Object(members) = value else {
                return None;
            };
            let unknown = inside.unknown(members);
            (!unknown.is_empty()).then_some((name, Value::Object(unknown)))
        };
        members.into_iter().filter_map(keep).collect()
    }
}

/// Writes an entry with its unknown members behind the known ones of each object.
pub(crate) fn write<S: Serializer>(
    known: &impl Serialize,
    unknown: &Unknown,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Some(unknown) = unknown else {
        return known.serialize(serializer);
    };
    let mut entry = serde_json::to_value(known).map_err(serde::ser::Error::custom)?;
    if let Value::Object(members) = &mut entry {
        put_back(members, unknown);
    }
    entry.serialize(serializer)
}

fn put_back(members: &mut Map<String, Value>, unknown: &Map<String, Value>) {
    for (name, value) in unknown {
        match (members.get_mut(name), value) {
            (None, value) => drop(members.insert(name.clone(), value.clone())),
            (Some(Value::Object(members)), Value::Object(unknown)) => put_back(members, unknown),
            // What held it is gone, such as a lookup that is known no more.
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// STATE: what a schema does not name is unknown, inside of what it names as well, also where
    /// that may be null; it is put back where it was, unless what held it is gone.
    #[test]
    fn what_is_not_named_is_kept_where_it_was() {
        let schema = json!({
            "$id": "https://weir.example/test",
            "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
            "$defs": {
                "row": {"properties": {
                    "name": {"type": "string"},
                    "inner": {"$ref": "#/$defs/inner"},
                    "other": {"if": {"type": "null"}, "else": {"$ref": "#/$defs/inner"}},
                }},
                "inner": {"properties": {"count": {"type": "integer"}}},
            },
        });
        let schema = FileSchema::compile(&schema.to_string(), ["rows"].into_iter()).unwrap();
        let list = schema.list("rows").unwrap();
        let known = json!({"name": "a", "inner": {"count": 1}, "other": {"count": 2}});
        assert_eq!(list.unknown(known.clone()), None);
        let entry = json!({"name": "a", "x": {"count": 1}, "inner": {"count": 1, "x": [1]}, "other": {"y": {}, "count": 2}});
        let unknown = list.unknown(entry.clone());
        assert_eq!(
            unknown.as_deref().cloned().map(Value::Object),
            Some(json!({"x": {"count": 1}, "inner": {"x": [1]}, "other": {"y": {}}}))
        );
        let written =
            |known: &Value| write(known, &unknown, serde_json::value::Serializer).unwrap();
        assert_eq!(written(&known), entry);
        let less = json!({"name": "a", "inner": {"count": 3}, "other": null});
        assert_eq!(
            written(&less),
            json!({"name": "a", "inner": {"count": 3, "x": [1]}, "other": null, "x": {"count": 1}})
        );
        assert!(list.judge(&entry).is_none());
        assert_eq!(
            list.judge(&json!({"inner": {"count": "1"}}))
                .unwrap()
                .instance_path,
            "/inner/count"
        );
    }
}
