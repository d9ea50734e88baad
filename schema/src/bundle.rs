//! The schemas as single documents, for those who want one file: all messages, or one message, in
//! the dialect of the files or in draft 07.
//!
//! The bundle of draft 2020-12 is a compound document: each file stands in `$defs` as it is, under
//! an `$id` relative to the document's own, so that every `$ref` of the files resolves inside it.
//! The form of draft 07 is flat: no `$id` but one, every `$ref` points into `definitions`, and a
//! `$ref` that has siblings moves into `allOf`, because draft 07 ignores the siblings of a `$ref`.
//! Both judge as the files do; three validators are asked for every example and for mutants of them
//! (`agree/run`).

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::{Catalog, Family, documents::ENVELOPE};

/// The dialect and shape of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Draft 2020-12, a compound document of the files.
    Draft202012,
    /// Draft 07, flat, for the tools that know no newer one.
    Draft07,
}

/// All messages in one document.
///
/// The document itself accepts any message of any family. A program that knows the family and the
/// command asks for less: `#/$defs/c2s` is any message from a client, `#/$defs/c2s.join` is JOIN
/// (`#/definitions/…` in draft 07), and its violations are then those of that message alone.
#[must_use]
pub fn all(catalog: &Catalog, form: Form) -> Value {
    let mut definitions = Map::new();
    for family in Family::ALL {
        let names = catalog
            .names()
            .filter(|name| family_of(name) == family.name());
        let each: Vec<Value> = names
            .map(|name| match form {
                Form::Draft202012 => json!({ "$ref": format!("{name}.schema.json") }),
                Form::Draft07 => json!({ "$ref": format!("#/definitions/{}", key(name)) }),
            })
            .collect();
        let any = json!({
            "title": format!("A {} message", family.name().to_uppercase()),
            "description": format!("Any message of the family {family}."),
            "anyOf": each,
        });
        definitions.insert(family.name().to_owned(), any);
    }
    let definitions = match form {
        Form::Draft202012 => {
            for name in catalog.names() {
                let id = format!("{name}.schema.json");
                definitions.insert(key(name), resource(catalog, name, &id));
            }
            definitions
        }
        Form::Draft07 => {
            let mut flat = definitions_07(catalog);
            for name in catalog.names().filter(|name| *name != ENVELOPE) {
                flat.insert(key(name), draft_07(&document(catalog, name)));
            }
            flat.extend(definitions);
            flat
        }
    };
    let (schema, folder, keyword) = dialect(form);
    let each = Family::ALL.map(|family| json!({ "$ref": format!("#/{keyword}/{family}") }));
    json!({
        "$schema": schema,
        "$id": format!("{}/schema/{folder}bundle.schema.json", catalog.base()),
        "title": "Chat messages",
        "description": "Every message of the chat protocol, each under its family and command.",
        "anyOf": each,
        keyword: definitions,
    })
}

/// The schema `name`, such as `c2s/join`, and what it refers to in one document. `None` where there
/// is no such message.
#[must_use]
pub fn one(catalog: &Catalog, name: &str, form: Form) -> Option<Value> {
    catalog.schema(name)?;
    let (schema, folder, keyword) = dialect(form);
    let mut root = json!({
        "$schema": schema,
        "$id": format!("{}/schema/{folder}{name}.schema.json", catalog.base()),
    });
    let members = root.as_object_mut()?;
    let source = document(catalog, name);
    match form {
        Form::Draft202012 => {
            members.extend(source);
            if name != ENVELOPE {
                let envelope = resource(catalog, ENVELOPE, "../message.schema.json");
                members.insert(keyword.to_owned(), json!({ ENVELOPE: envelope }));
            }
        }
        Form::Draft07 => {
            if let Value::Object(converted) = draft_07(&source) {
                members.extend(converted);
            }
            let every = definitions_07(catalog);
            let mut used = HashSet::new();
            reached(&root, &every, &mut used);
            // In the order of the envelope, whatever was reached first.
            let in_order = every.into_iter().filter(|(name, _)| used.contains(name));
            let definitions: Map<String, Value> = in_order.collect();
            if let Some(members) = root.as_object_mut() {
                members.insert(keyword.to_owned(), definitions.into());
            }
        }
    }
    Some(root)
}

/// The key of the schema `name` in a bundle: `c2s.join`, which no JSON Pointer has to escape.
#[must_use]
pub fn key(name: &str) -> String {
    name.replace('/', ".")
}

/// The dialect's URI, the folder of its documents under `schema/`, and where its definitions stand.
const fn dialect(form: Form) -> (&'static str, &'static str, &'static str) {
    match form {
        Form::Draft202012 => ("https://json-schema.org/draft/2020-12/schema", "", "$defs"),
        Form::Draft07 => (
            "http://json-schema.org/draft-07/schema#",
            "draft-07/",
            "definitions",
        ),
    }
}

fn family_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(family, _)| family)
}

/// The file `name` without `$schema` and `$id`.
fn document(catalog: &Catalog, name: &str) -> Map<String, Value> {
    let text = catalog.text(name).unwrap_or_default();
    let mut members: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    members.shift_remove("$schema");
    members.shift_remove("$id");
    members
}

/// The file `name` as it stands, under the `$id` `id`.
fn resource(catalog: &Catalog, name: &str, id: &str) -> Value {
    let mut members = Map::new();
    members.insert("$id".to_owned(), id.into());
    members.extend(document(catalog, name));
    Value::Object(members)
}

/// The envelope and every shared type, in draft 07.
fn definitions_07(catalog: &Catalog) -> Map<String, Value> {
    let mut envelope = document(catalog, ENVELOPE);
    let shared = envelope.shift_remove("$defs");
    let mut out = Map::new();
    out.insert(ENVELOPE.to_owned(), draft_07(&envelope));
    if let Some(Value::Object(shared)) = shared {
        for (name, schema) in shared {
            out.insert(name, converted(&schema));
        }
    }
    out
}

/// `value`, a schema of draft 2020-12, in draft 07.
fn converted(value: &Value) -> Value {
    match value {
        Value::Object(members) => draft_07(members),
        other => other.clone(), // `false`
    }
}

fn draft_07(members: &Map<String, Value>) -> Value {
    let mut out = Map::new();
    for (keyword, value) in members {
        let each = |value: &Value| match value {
            Value::Array(schemas) => schemas.iter().map(converted).collect(),
            other => other.clone(),
        };
        let (keyword, value) = match keyword.as_str() {
            // Shared types stand at the top of the bundle.
            "$defs" => continue,
            "$ref" => {
                let reference = json!({ "$ref": reference_07(value.as_str().unwrap_or_default()) });
                if members.len() == 1 {
                    return reference;
                }
                ("allOf", json!([reference]))
            }
            "properties" => {
                let schemas = value.as_object().into_iter().flatten();
                let schemas = schemas.map(|(name, schema)| (name.clone(), converted(schema)));
                ("properties", Value::Object(schemas.collect()))
            }
            "dependentRequired" => ("dependencies", value.clone()),
            "prefixItems" => ("items", each(value)),
            // After `prefixItems`, `items` is what draft 07 calls `additionalItems`.
            "items" if members.contains_key("prefixItems") => ("additionalItems", converted(value)),
            "anyOf" => ("anyOf", each(value)),
            "additionalProperties" | "contains" | "if" | "items" | "not" | "then" => {
                (keyword.as_str(), converted(value))
            }
            other => (other, value.clone()),
        };
        out.insert(keyword.to_owned(), value);
    }
    Value::Object(out)
}

/// A `$ref` of the files as one into `definitions`.
fn reference_07(reference: &str) -> String {
    let (_, shared) = reference.rsplit_once("#/$defs/").unwrap_or(("", ENVELOPE));
    format!("#/definitions/{shared}")
}

/// Adds to `used` every definition of `every` to which `value` leads.
fn reached(value: &Value, every: &Map<String, Value>, used: &mut HashSet<String>) {
    match value {
        Value::Object(members) => {
            let name = members
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|reference| reference.strip_prefix("#/definitions/"));
            if let Some((name, schema)) = name.and_then(|name| Some((name, every.get(name)?)))
                && used.insert(name.to_owned())
            {
                reached(schema, every, used);
            }
            members
                .values()
                .for_each(|value| reached(value, every, used));
        }
        Value::Array(items) => items.iter().for_each(|item| reached(item, every, used)),
        _ => {}
    }
}
