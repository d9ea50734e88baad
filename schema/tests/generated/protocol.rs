//! The generated parts of PROTOCOL.md: shared types, a section for each message, the table of
//! limits.

use std::fmt::Write;

use serde_json::Value;
use weir_schema::{Family, strict::Limits};

use super::{ENVELOPE, Message, keep_part, shared_name};
use crate::support::{EXAMPLES, Examples, Invalid, read_json, schema_names, schema_path};

/// Longer examples show a limit, and are better read in their files.
const EXAMPLE_BYTES: usize = 400;

/// SCHEMA-1. One test: the parts stand in one file.
#[test]
fn the_protocol_is_up_to_date() {
    keep_part("PROTOCOL.md", "messages", &messages());
    keep_part("PROTOCOL.md", "types", &types());
    keep_part("PROTOCOL.md", "limits", &limits());
}

fn messages() -> String {
    let envelope = read_json(&schema_path("message"));
    let names = schema_names();
    let mut out = String::new();
    for family in Family::ALL {
        let what = match family {
            Family::C2s => "client to server",
            Family::S2c => "server to client",
            Family::S2s => "server to server",
        };
        writeln!(out, "### {}: {what}\n", family.name().to_uppercase()).unwrap();
        for name in names.iter().filter(|name| name.starts_with(family.name())) {
            section(&mut out, &Message::read(name), &envelope);
        }
    }
    out.trim_end().to_owned() + "\n"
}

fn section(out: &mut String, message: &Message, envelope: &Value) {
    writeln!(out, "#### {}\n", message.text("title")).unwrap();
    writeln!(
        out,
        "{} Schema: [`{1}`]({1}.schema.json).\n",
        message.text("description"),
        message.name
    )
    .unwrap();
    out.push_str("| Member | Required | What it is |\n|---|---|---|\n");
    for member in message.members(envelope) {
        if member.name != "command" && member.own.is_null() && !member.required {
            continue; // what every message may carry
        }
        let own = if member.own.is_null() {
            member.general
        } else {
            member.own
        };
        let what = says(own, Some(member.general));
        row(out, member.name, member.required, &what);
        nested(out, member.name, own);
    }
    let examples = EXAMPLES
        .iter()
        .find(|examples| examples.schema == message.name)
        .unwrap();
    let is_short = |message: &Value| message.to_string().len() <= EXAMPLE_BYTES;
    let valid = examples
        .valid
        .iter()
        .find(|example| is_short(&example.message))
        .unwrap();
    writeln!(
        out,
        "\nValid, {}:\n\n```json\n{}\n```\n",
        valid.why, valid.message
    )
    .unwrap();
    let invalid = telling(examples, is_short);
    let place = if invalid.path.is_empty() {
        "the whole".to_owned()
    } else {
        format!("`{}`", invalid.path)
    };
    writeln!(
        out,
        "Invalid, {}: {place} fails `{}`.\n\n```json\n{}\n```\n",
        invalid.why, invalid.keyword, invalid.message
    )
    .unwrap();
}

/// An invalid example of this message's own rules, if there is one, not of those of every message.
fn telling(examples: &Examples, is_short: impl Fn(&Value) -> bool) -> &Invalid {
    let general = |example: &&Invalid| {
        example.path == "/command"
            || ["additionalProperties", "required"].contains(&example.keyword.as_str())
    };
    let short = || {
        examples
            .invalid
            .iter()
            .filter(|example| is_short(&example.message))
    };
    let other_types = |example: &&Invalid| {
        example.keyword == "not" && ["/params", "/body", "/to"].contains(&example.path.as_str())
    };
    short()
        .find(|example| !general(example) && !other_types(example))
        .or_else(|| short().find(|example| !general(example)))
        .or_else(|| short().next())
        .unwrap()
}

fn row(out: &mut String, member: &str, required: bool, what: &str) {
    let required = if required { "yes" } else { "" };
    writeln!(
        out,
        "| `{member}` | {required} | {} |",
        what.replace('|', "\\|")
    )
    .unwrap();
}

/// The members of an object that a message describes itself, below it.
fn nested(out: &mut String, at: &str, schema: &Value) {
    let schema = if schema["properties"].is_null() && schema["items"]["properties"].is_object() {
        &schema["items"]
    } else {
        schema
    };
    let Some(members) = schema["properties"].as_object() else {
        return;
    };
    if schema["$ref"].is_string() {
        return; // the message inside RELAY
    }
    for (name, member) in members {
        let required = schema["required"].as_array();
        let required = required.is_some_and(|names| names.iter().any(|other| other == name));
        let at = format!("{at}.{name}");
        row(out, &at, required, &says(member, None));
        nested(out, &at, member);
    }
}

/// What `schema` accepts, in words. `general` is the envelope's schema of the same member.
fn says(schema: &Value, general: Option<&Value>) -> String {
    let mut parts = Vec::new();
    if let Some(description) = schema["description"].as_str() {
        parts.push(description.trim_end_matches('.').to_owned());
    }
    if let Some(name) = shared_name(schema).filter(|name| *name != "plain" || parts.is_empty()) {
        parts.push(format!("[{name}](#shared-types)"));
    } else if schema["$ref"] == ENVELOPE {
        parts.push("an envelope, of any command but RELAY".to_owned());
    }
    if let Some(value) = schema.get("const") {
        parts.push(format!("always `{value}`"));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        parts.push(values.join(" or "));
    }
    if let Some(branches) = schema["anyOf"].as_array() {
        let branches: Vec<String> = branches.iter().map(|branch| says(branch, None)).collect();
        parts.push(branches.join(" or "));
    }
    match schema["type"]
        .as_str()
        .or_else(|| general.and_then(|general| general["type"].as_str()))
    {
        Some("array") => parts.push(list(schema)),
        Some("integer") => parts.push("a whole number".to_owned()),
        Some("boolean") => parts.push("true or false".to_owned()),
        Some("object") if shared_name(schema).is_none() => parts.push("an object".to_owned()),
        Some("string") if schema.get("description").is_none() => parts.push("a string".to_owned()),
        _ => {}
    }
    // Lengths the description says, and the table of limits.
    for (keyword, words) in [("minimum", "at least"), ("maximum", "at most")] {
        if let Some(limit) = schema[keyword].as_u64() {
            parts.push(format!("{words} {limit}"));
        }
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        parts.push(code(pattern));
    }
    if let Some(pattern) = schema["not"]["pattern"].as_str() {
        parts.push(format!("no part fits {}", code(pattern)));
    }
    parts.join("; ")
}

fn in_words(number: u64) -> String {
    match number {
        1 => "one".to_owned(),
        2 => "two".to_owned(),
        other => other.to_string(),
    }
}

/// `text` as code, also where it holds a backtick itself.
fn code(text: &str) -> String {
    match text.contains('`') {
        true => format!("`` {text} ``"),
        false => format!("`{text}`"),
    }
}

/// How many items, and which.
fn list(schema: &Value) -> String {
    let bound = |keyword: &str| schema[keyword].as_u64();
    let count = match (bound("minItems"), bound("maxItems")) {
        (Some(least), Some(most)) if least == most => format!("a list of {}", in_words(most)),
        (Some(least), Some(most)) => format!("a list of {least} to {most}"),
        (Some(least), None) => format!("a list of at least {least}"),
        (None, Some(most)) => format!("a list of at most {}", in_words(most)),
        (None, None) => "a list".to_owned(),
    };
    let mut items: Vec<String> = schema["prefixItems"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| says(item, None))
        .collect();
    if let Some(item) = schema.get("items") {
        let item = if item["properties"].is_object() {
            "an object".to_owned()
        } else {
            says(item, None)
        };
        items.push(item);
    }
    let unique = if schema["uniqueItems"] == true {
        ", none twice"
    } else {
        ""
    };
    match items.is_empty() {
        true => format!("{count}{unique}"),
        false => format!("{count}{unique}: {}", items.join(", then ")),
    }
}

fn types() -> String {
    let envelope = read_json(&schema_path("message"));
    let mut out = String::from("| Type | What it is |\n|---|---|\n");
    for (name, schema) in envelope["$defs"].as_object().unwrap() {
        let what = says(schema, None).replace('|', "\\|");
        writeln!(out, "| `{name}` | {what} |").unwrap();
        if name == "pubkey" || name == "meta" {
            for (member, schema) in schema["properties"].as_object().unwrap() {
                let what = says(schema, None).replace('|', "\\|");
                writeln!(out, "| `{name}.{member}` | {what} |").unwrap();
            }
        }
    }
    out
}

/// Every number that limits something, in the order of the files.
fn limits() -> String {
    let mut out = String::from("| Where | Limit | |\n|---|---|---|\n");
    let Limits { bytes, depth } = Limits::MESSAGE;
    writeln!(
        out,
        "| a message, checked by the parser | bytes, at most | {bytes} |"
    )
    .unwrap();
    writeln!(out, "| a message, checked by the parser | objects and lists inside one another, at most | {depth} |").unwrap();
    writeln!(
        out,
        "| an item of `params` | characters, at most | none of its own |"
    )
    .unwrap();
    writeln!(
        out,
        "| a line of `001` | characters, at most | none of its own |"
    )
    .unwrap();
    for name in schema_names() {
        collect(&mut out, &read_json(&schema_path(&name)), &name);
    }
    out
}

fn collect(out: &mut String, schema: &Value, at: &str) {
    let Value::Object(members) = schema else {
        return;
    };
    for (keyword, value) in members {
        let words = match keyword.as_str() {
            "minLength" => "characters, at least",
            "maxLength" => "characters, at most",
            "minItems" => "items, at least",
            "maxItems" => "items, at most",
            "maxProperties" => "members, at most",
            "minimum" => "at least",
            "maximum" => "at most",
            "properties" | "$defs" => {
                for (name, member) in value.as_object().unwrap() {
                    let at = if keyword == "$defs" {
                        format!("`{name}`")
                    } else {
                        format!("{at} `{name}`")
                    };
                    collect(out, member, &at);
                }
                continue;
            }
            "items" => {
                collect(out, value, &format!("{at}, each item"));
                continue;
            }
            "prefixItems" => {
                for (index, item) in value.as_array().unwrap().iter().enumerate() {
                    collect(out, item, &format!("{at}, item {}", index + 1));
                }
                continue;
            }
            "contains" => {
                collect(out, value, &format!("{at}, one item"));
                continue;
            }
            "pattern" => {
                // A pattern limits a length where it says a number.
                let text = value.as_str().unwrap();
                if text.contains("{0,") {
                    writeln!(out, "| {at} | pattern | `{}` |", text.replace('|', "\\|")).unwrap();
                }
                continue;
            }
            _ => continue,
        };
        writeln!(out, "| {at} | {words} | {value} |").unwrap();
    }
}
