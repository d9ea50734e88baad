//! `message.d.ts`: an interface for each message, and a union of each family, told apart by
//! `command`.
//!
//! Types say what is there and of which kind: members, tuples of a fixed length, literals. Lengths
//! and patterns stay with the schemas. `packages/run` asks the compiler about every example.

use std::fmt::Write;

use serde_json::Value;
use weir_schema::Family;

use super::{Message, keep, shared_name};
use crate::support::{read_json, schema_names, schema_path};

/// SCHEMA-1
#[test]
fn the_types_of_typescript_are_up_to_date() {
    keep("message.d.ts", &declarations());
}

fn declarations() -> String {
    let envelope = read_json(&schema_path("message"));
    let mut out = String::from(
        "// The chat messages as types, made from the schemas. They say which members there are and of\n\
         // which kind; lengths and patterns only the schemas say. Judge a message by its schema\n\
         // first.\n",
    );
    for (name, schema) in envelope["$defs"].as_object().unwrap() {
        if name == "absent" {
            continue;
        }
        comment(&mut out, "", schema["description"].as_str().unwrap());
        // What is free in meta keeps its name.
        let free = if name == "meta" {
            "  [member: string]: unknown;\n"
        } else {
            ""
        };
        if schema["properties"].is_object() {
            let members = members_of(schema, "");
            writeln!(
                out,
                "export interface {} {{\n{members}{free}}}",
                capital(name)
            )
            .unwrap();
        } else {
            let type_ = type_of(schema, None, "");
            writeln!(out, "export type {} = {type_};", capital(name)).unwrap();
        }
    }
    comment(&mut out, "", envelope["description"].as_str().unwrap());
    let members = members_of(&envelope, "");
    writeln!(out, "export interface Envelope {{\n{members}}}").unwrap();

    let names = schema_names();
    for family in Family::ALL {
        let upper = family.name().to_uppercase();
        let mut interfaces = Vec::new();
        for name in &names {
            let Some(command) = name.strip_prefix(&format!("{family}/")) else {
                continue;
            };
            let message = Message::read(name);
            let interface = format!("{upper}{}", capital(command));
            let description = message.text("description");
            comment(
                &mut out,
                "",
                &format!("{}. {description}", message.text("title")),
            );
            writeln!(out, "export interface {interface} {{").unwrap();
            for member in message.every_member(&envelope) {
                let own = if member.own.is_null() {
                    member.general
                } else {
                    member.own
                };
                let type_ = type_of(own, Some(member.general), "  ");
                let mark = if member.required { "" } else { "?" };
                writeln!(out, "  {}{mark}: {type_};", member.name).unwrap();
            }
            out.push_str("}\n");
            interfaces.push(interface);
        }
        comment(
            &mut out,
            "",
            &format!("Any {upper} message; `command` tells which."),
        );
        writeln!(
            out,
            "export type {upper} =\n  | {};",
            interfaces.join("\n  | ")
        )
        .unwrap();
    }
    out
}

/// The members of an object as lines of an interface.
fn members_of(schema: &Value, indent: &str) -> String {
    let required = schema["required"].as_array();
    let mut out = String::new();
    for (name, member) in schema["properties"].as_object().unwrap() {
        let must = required.is_some_and(|names| names.iter().any(|other| other == name));
        if let Some(description) = member["description"].as_str() {
            comment(&mut out, &format!("{indent}  "), description);
        }
        let type_ = type_of(member, None, &format!("{indent}  "));
        let mark = if must { "" } else { "?" };
        writeln!(out, "{indent}  {name}{mark}: {type_};").unwrap();
    }
    out
}

/// The type of what `schema` accepts. What it leaves open `general`, the envelope's schema, says.
fn type_of(schema: &Value, general: Option<&Value>, indent: &str) -> String {
    if let Some(name) = shared_name(schema) {
        return match name {
            "absent" => "never".to_owned(),
            "plain" => "string".to_owned(),
            name => capital(name),
        };
    }
    if schema["$ref"].is_string() {
        return "Envelope".to_owned();
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        return values.join(" | ");
    }
    if let Some(branches) = schema["anyOf"].as_array() {
        let branches: Vec<String> = branches
            .iter()
            .map(|branch| type_of(branch, None, indent))
            .collect();
        return branches.join(" | ");
    }
    let kind = if schema["type"].is_null() {
        general.map(|general| &general["type"])
    } else {
        Some(&schema["type"])
    };
    match kind.unwrap_or(&Value::Null) {
        Value::String(kind) if kind == "array" => array_of(schema, general, indent),
        Value::String(kind) if kind == "object" && schema["properties"].is_object() => {
            format!("{{\n{}{indent}}}", members_of(schema, indent))
        }
        Value::String(kind) => match kind.as_str() {
            "integer" | "number" => "number".to_owned(),
            "boolean" | "string" => kind.clone(),
            other => panic!("no type for {other}: {schema}"),
        },
        Value::Array(_) => "{ [member: string]: unknown } | unknown[]".to_owned(), // the envelope's body
        // A constraint of a string: what else may stand in an array of parameters, or in a name.
        Value::Null => "string".to_owned(),
        other => panic!("no type for {other}"),
    }
}

/// A tuple where the length is fixed or at most one, else an array of any length.
fn array_of(schema: &Value, general: Option<&Value>, indent: &str) -> String {
    let items = |of: &Value| of.get("items").map(|items| type_of(items, None, indent));
    let item = items(schema)
        .or_else(|| general.and_then(items))
        .unwrap_or_else(|| "unknown".to_owned());
    let bound = |keyword: &str| schema[keyword].as_u64();
    let fixed: Vec<String> = schema["prefixItems"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|first| type_of(first, None, indent))
        .collect();
    match (bound("minItems"), bound("maxItems")) {
        (Some(least), Some(most)) if least == most => {
            let each = (0..usize::try_from(most).unwrap())
                .map(|index| fixed.get(index).unwrap_or(&item).clone());
            format!("[{}]", each.collect::<Vec<_>>().join(", "))
        }
        (None, Some(1)) => format!("[] | [{item}]"),
        _ if !fixed.is_empty() => format!("[] | [{}, ...{item}[]]", fixed.join(", ")),
        _ => format!("{item}[]"),
    }
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().unwrap().to_uppercase();
    first.chain(letters).collect()
}

fn comment(out: &mut String, indent: &str, text: &str) {
    if indent.is_empty() {
        out.push('\n');
    }
    assert!(!text.contains("*/"));
    writeln!(out, "{indent}/** {text} */").unwrap();
}
