//! The index of README.md.

use std::fs;

use serde_json::Value;

use super::{Message, keep_part};
use crate::support::{proxy_names, read_json, schema_names, schema_path};

/// SCHEMA-1
#[test]
fn the_index_is_up_to_date() {
    keep_part("README.md", "index", &index());
}

/// The table of all schemas, members in the order of the envelope. A required member is printed
/// bold, one the message does not have not at all, and those that every message may carry neither.
/// The proxy's documents are no messages and have no members there.
fn index() -> String {
    let mut out =
        String::from("| File | Title | Members beside `command` | Purpose |\n|---|---|---|---|\n");
    let envelope = read_json(&schema_path("message"));
    for name in schema_names() {
        let message = Message::read(&name);
        let members: Vec<String> = message
            .members(&envelope)
            .into_iter()
            .filter(|member| member.name != "command")
            .filter(|member| member.required || !member.own.is_null())
            .map(|member| match member.required {
                true => format!("**{}**", member.name),
                false => member.name.to_owned(),
            })
            .collect();
        out.push_str(&row(&name, &message.schema, &members.join(", ")));
    }
    for name in proxy_names() {
        // Not strictly: their integers go up to 2^64 − 1.
        let text = fs::read_to_string(schema_path(&name)).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        out.push_str(&row(&name, &schema, "(no chat message)"));
    }
    out
}

fn row(name: &str, schema: &Value, members: &str) -> String {
    format!(
        "| [`{name}`]({name}.schema.json) | {} | {members} | {} |\n",
        schema["title"].as_str().unwrap(),
        schema["description"].as_str().unwrap().replace('|', "\\|"),
    )
}
