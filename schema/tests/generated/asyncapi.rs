//! `asyncapi.json`: AsyncAPI 3.0, a channel for each family, seen from a server.
//!
//! Its payloads are the flat form of draft 07, which is what the tools of AsyncAPI read. The
//! address of a channel and the transport are open, as they are in the protocol.

use serde_json::{Map, Value, json};
use weir_schema::{
    Family,
    bundle::{self, Form},
};

use super::{Message, keep};
use crate::support::{CATALOG, EXAMPLES, schema_names};

/// Examples of at most this many bytes make the document readable.
const EXAMPLE_BYTES: usize = 400;

/// SCHEMA-1
#[test]
fn the_asyncapi_document_is_up_to_date() {
    keep("asyncapi.json", &format!("{:#}\n", document()));
}

fn document() -> Value {
    let (mut channels, mut operations, mut messages) = (Map::new(), Map::new(), Map::new());
    for (family, what, does) in [
        (
            Family::C2s,
            "From clients to their server.",
            &["receive"][..],
        ),
        (Family::S2c, "From a server to its clients.", &["send"]),
        (Family::S2s, "Between servers.", &["send", "receive"]),
    ] {
        let mut of_channel = Map::new();
        for name in schema_names() {
            let Some(command) = name.strip_prefix(&format!("{family}/")) else {
                continue;
            };
            let key = bundle::key(&name);
            of_channel.insert(
                command.to_owned(),
                json!({ "$ref": format!("#/components/messages/{key}") }),
            );
            messages.insert(key, message(&name));
        }
        for action in does {
            let references: Vec<Value> = of_channel
                .keys()
                .map(|command| json!({ "$ref": format!("#/channels/{family}/messages/{command}") }))
                .collect();
            operations.insert(
                format!("{action}-{family}"),
                json!({
                    "action": action,
                    "channel": { "$ref": format!("#/channels/{family}") },
                    "messages": references,
                }),
            );
        }
        channels.insert(
            family.name().to_owned(),
            json!({ "address": null, "title": family.name().to_uppercase(), "description": what, "messages": of_channel }),
        );
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Chat messages",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The messages of an IRC-style chat, seen from a server. The transport is open. PROTOCOL.md tells who may send what when.",
            "license": { "name": env!("CARGO_PKG_LICENSE") },
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages, "schemas": schemas() },
    })
}

fn message(name: &str) -> Value {
    let schema = Message::read(name);
    let examples = EXAMPLES
        .iter()
        .find(|examples| examples.schema == name)
        .unwrap();
    let examples: Vec<Value> = examples
        .valid
        .iter()
        .filter(|example| example.message.to_string().len() <= EXAMPLE_BYTES)
        .take(3)
        .map(|example| json!({ "summary": example.why, "payload": example.message }))
        .collect();
    json!({
        "name": schema.schema["properties"]["command"]["const"],
        "title": schema.text("title"),
        "summary": schema.text("description"),
        "payload": { "$ref": format!("#/components/schemas/{}", bundle::key(name)) },
        "examples": examples,
    })
}

/// The definitions of the bundle of draft 07, with references into this document.
fn schemas() -> Value {
    let bundle = bundle::all(&CATALOG, Form::Draft07);
    let text = bundle["definitions"].to_string();
    let text = text.replace("\"#/definitions/", "\"#/components/schemas/");
    serde_json::from_str(&text).unwrap()
}
