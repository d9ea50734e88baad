//! The files that are made from the schemas and the examples: the index of README.md, most of
//! PROTOCOL.md, message.d.ts and asyncapi.json. Each test fails when its file is stale; run with
//! `WEIR_BLESS=1` it writes the file anew.

mod asyncapi;
mod index;
mod protocol;
mod typescript;

use std::fs;

use serde_json::Value;

use crate::support::{folder, read_json, schema_path};

/// Where the files refer to the envelope.
const ENVELOPE: &str = "../message.schema.json";
const SHARED: &str = "../message.schema.json#/$defs/";

/// Compares the file `name` with `fresh`, or writes it.
fn keep(name: &str, fresh: &str) {
    let path = folder().join(name);
    if std::env::var_os("WEIR_BLESS").is_some() {
        fs::write(&path, fresh).unwrap();
    } else {
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            fresh == text,
            "schema/{name} is stale: run the tests with WEIR_BLESS=1"
        );
    }
}

/// The same for the part of the file between its two markers for `part`.
fn keep_part(name: &str, part: &str, fresh: &str) {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    let begin = format!(
        "<!-- {part}: begin (generated; WEIR_BLESS=1 cargo test -p weir-schema generated) -->\n"
    );
    let end = format!("<!-- {part}: end -->\n");
    let (before, rest) = text.split_once(&begin).expect("the begin marker");
    let (_, after) = rest.split_once(&end).expect("the end marker");
    keep(name, &format!("{before}{begin}\n{fresh}\n{end}{after}"));
}

/// One message as its schema and the envelope say it.
struct Message {
    name: String,
    schema: Value,
}

/// A member of a message: its name, whether it is required, and what the message's own schema and
/// the envelope's say of it. Those that the message does not have are not among the members.
struct Member<'a> {
    name: &'a str,
    required: bool,
    own: &'a Value,
    general: &'a Value,
}

impl Message {
    fn read(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            schema: read_json(&schema_path(name)),
        }
    }

    fn text(&self, member: &str) -> &str {
        self.schema[member].as_str().unwrap()
    }

    /// The members of the message, in the order of the envelope.
    fn members<'a>(&'a self, envelope: &'a Value) -> Vec<Member<'a>> {
        let every = self.every_member(envelope).into_iter();
        every.filter(|member| !is_absent(member.own)).collect()
    }

    /// The same with those that the message does not have.
    fn every_member<'a>(&'a self, envelope: &'a Value) -> Vec<Member<'a>> {
        let required = |of: &Value, name: &str| {
            let list = of["required"].as_array();
            list.is_some_and(|list| list.iter().any(|other| other == name))
        };
        let properties = envelope["properties"].as_object().unwrap();
        properties
            .iter()
            .map(|(name, general)| Member {
                name,
                required: required(&self.schema, name) || required(envelope, name),
                own: &self.schema["properties"][name],
                general,
            })
            .collect()
    }
}

fn is_absent(schema: &Value) -> bool {
    schema["$ref"] == format!("{SHARED}absent")
}

/// The name of the shared type to which `schema` refers, from a message or from the envelope.
fn shared_name(schema: &Value) -> Option<&str> {
    let reference = schema["$ref"].as_str()?;
    reference.rsplit_once("#/$defs/").map(|(_, name)| name)
}
