//! Is each constraint of each schema shown by an example? Every constraint is dropped in turn, and some
//! example must then be judged otherwise. Limits are moved by one as well, and alternatives taken away.
//!
//! Two readings of a pattern are tried. Python's `$` lets one line break stand before the end, every
//! other dialect's does not; some constraints stand in the files for the first alone, and only that
//! reading can miss them.

use serde_json::{Value, json};
use weir_schema::Schema;

use crate::support::{EXAMPLES, Examples, read_json, schema_names, schema_path};

/// Constraints that no example can show, and why. One that is no longer needed fails the test.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "message",
        "/$defs/uuid/format",
        "the pattern beside it says more; for readers to whom a format is a note",
    ),
    ("message", "/$defs/plain/type", NOT_REFUSES_ALL_BUT_STRINGS),
    ("message", "/$defs/token/type", NOT_REFUSES_ALL_BUT_STRINGS),
    ("message", "/$defs/param/type", NOT_REFUSES_ALL_BUT_STRINGS),
];
const NOT_REFUSES_ALL_BUT_STRINGS: &str =
    "a number fits every pattern, so that `not` refuses it; for people";

/// SCHEMA-4
#[test]
fn each_constraint_is_shown_by_an_example() {
    let names = schema_names();
    let documents: Vec<Value> = names
        .iter()
        .map(|name| read_json(&schema_path(name)))
        .collect();
    let envelope = &documents[0];
    for reading in [Reading::AsWritten, Reading::Python] {
        for (document, examples) in documents.iter().zip(EXAMPLES.iter()) {
            let schema = compile(document, envelope, reading);
            for example in &examples.valid {
                assert!(
                    schema.validate(&example.message).is_ok(),
                    "{}: {}",
                    examples.schema,
                    example.why
                );
            }
            for example in &examples.invalid {
                assert!(
                    schema.validate(&example.message).is_err(),
                    "{}: {}",
                    examples.schema,
                    example.why
                );
            }
        }
    }

    let mut tried = 0;
    let mut survivors = Vec::new();
    for (name, document) in names.iter().zip(&documents) {
        for mutant in mutants(document) {
            tried += 1;
            let excepted = EXCEPTIONS
                .iter()
                .any(|(schema, pointer, _)| schema == name && *pointer == mutant.pointer);
            if is_noticed(name, &mutant, &documents) == excepted {
                survivors.push(format!(
                    "{name}.schema.json#{} ({:?})",
                    mutant.pointer, mutant.change
                ));
            }
        }
    }
    assert!(
        survivors.is_empty(),
        "untested, or a needless exception:\n{}",
        survivors.join("\n")
    );
    // So that a walk that finds nothing cannot pass.
    assert!(tried > 400, "only {tried} constraints were found");
}

/// A document with one change.
struct Mutant {
    pointer: String,
    change: Change,
    document: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// More is accepted: an invalid example must be.
    Wider,
    /// Less is accepted: a valid example must be refused.
    Narrower,
}

impl Change {
    const fn within(self, negation: bool) -> Self {
        match (self, negation) {
            (Self::Wider, false) | (Self::Narrower, true) => Self::Wider,
            (Self::Wider, true) | (Self::Narrower, false) => Self::Narrower,
        }
    }
}

fn mutants(document: &Value) -> Vec<Mutant> {
    let mut changes = Vec::new();
    walk(document, "", false, &mut changes);
    changes
        .into_iter()
        .map(|(pointer, change)| {
            let mut document = document.clone();
            let (parent, last) = pointer.rsplit_once('/').unwrap();
            match document.pointer_mut(parent).unwrap() {
                Value::Object(members) => drop(members.remove(last).unwrap()),
                Value::Array(items) => drop(items.remove(last.parse().unwrap())),
                other => panic!("{pointer}: {other}"),
            }
            Mutant {
                pointer,
                change,
                document,
            }
        })
        .collect()
}

/// Notes the pointer of everything in `schema` that can be dropped. `negation` is whether `schema`
/// stands under an odd number of `not` and `if`, where to drop a constraint narrows.
fn walk(schema: &Value, at: &str, negation: bool, changes: &mut Vec<(String, Change)>) {
    let Value::Object(members) = schema else {
        return; // `false`, which goes with its keyword
    };
    let closed = members.get("additionalProperties") == Some(&json!(false));
    let wider = Change::Wider.within(negation);
    let narrower = Change::Narrower.within(negation);
    for (keyword, value) in members {
        let here = format!("{at}/{keyword}");
        let each = |changes: &mut Vec<_>, base: &str, value: &Value, change| {
            for index in 0..value.as_array().unwrap().len() {
                changes.push((format!("{base}/{index}"), change));
            }
        };
        match keyword.as_str() {
            "$schema" | "$id" | "title" | "description" | "$comment" => {}
            "required" => each(changes, &here, value, wider),
            "dependentRequired" => {
                for (member, needs) in value.as_object().unwrap() {
                    each(changes, &format!("{here}/{member}"), needs, wider);
                }
            }
            "enum" => {
                changes.push((here.clone(), wider));
                each(changes, &here, value, narrower);
            }
            "type" => {
                changes.push((here.clone(), wider));
                if value.is_array() {
                    each(changes, &here, value, narrower);
                }
            }
            "anyOf" => {
                changes.push((here.clone(), wider));
                each(changes, &here, value, narrower);
                for (index, branch) in value.as_array().unwrap().iter().enumerate() {
                    walk(branch, &format!("{here}/{index}"), negation, changes);
                }
            }
            "prefixItems" => {
                for (index, item) in value.as_array().unwrap().iter().enumerate() {
                    walk(item, &format!("{here}/{index}"), negation, changes);
                }
            }
            // A named type is no constraint by itself; its use is.
            "$defs" => {
                for (name, definition) in value.as_object().unwrap() {
                    walk(definition, &format!("{here}/{name}"), negation, changes);
                }
            }
            "properties" => {
                for (member, schema) in value.as_object().unwrap() {
                    if closed {
                        changes.push((format!("{here}/{member}"), narrower));
                    }
                    walk(schema, &format!("{here}/{member}"), negation, changes);
                }
            }
            "not" | "if" => {
                changes.push((here.clone(), wider));
                walk(value, &here, !negation, changes);
            }
            "items" | "then" => walk(value, &here, negation, changes),
            "contains" => {
                changes.push((here.clone(), wider));
                walk(value, &here, negation, changes);
            }
            "$ref"
            | "const"
            | "pattern"
            | "format"
            | "minLength"
            | "maxLength"
            | "minItems"
            | "maxItems"
            | "uniqueItems"
            | "minimum"
            | "maximum"
            | "maxProperties"
            | "additionalProperties" => {
                changes.push((here, wider));
            }
            unknown => panic!("the walk does not know the keyword {unknown}"),
        }
    }
}

/// Whether some example is judged otherwise by `mutant`, the new text of the schema `name`.
fn is_noticed(name: &str, mutant: &Mutant, documents: &[Value]) -> bool {
    if name != "message" {
        let examples = EXAMPLES
            .iter()
            .find(|examples| examples.schema == name)
            .unwrap();
        return [Reading::AsWritten, Reading::Python]
            .into_iter()
            .any(|reading| {
                judges_otherwise(
                    &compile(&mutant.document, &documents[0], reading),
                    mutant,
                    examples,
                )
            });
    }
    // The envelope's own examples first, then those with the richest bodies; the rest is seldom asked.
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by_key(|&index| match EXAMPLES[index].schema.as_str() {
        "message" => 0,
        "s2s/sync" => 1,
        "c2s/kick" => 2,
        "c2s/privmsg" => 3,
        _ => 4,
    });
    [Reading::AsWritten, Reading::Python]
        .into_iter()
        .any(|reading| {
            order.iter().any(|&index| {
                let document = if index == 0 {
                    &mutant.document
                } else {
                    &documents[index]
                };
                judges_otherwise(
                    &compile(document, &mutant.document, reading),
                    mutant,
                    &EXAMPLES[index],
                )
            })
        })
}

fn judges_otherwise(schema: &Schema, mutant: &Mutant, examples: &Examples) -> bool {
    match mutant.change {
        Change::Wider => examples
            .invalid
            .iter()
            .any(|example| schema.validate(&example.message).is_ok()),
        Change::Narrower => examples
            .valid
            .iter()
            .any(|example| schema.validate(&example.message).is_err()),
    }
}

/// How `$` is read.
#[derive(Clone, Copy)]
enum Reading {
    AsWritten,
    Python,
}

fn compile(document: &Value, envelope: &Value, reading: Reading) -> Schema {
    let read = |document: &Value| {
        let mut document = document.clone();
        if matches!(reading, Reading::Python) {
            as_python_reads(&mut document);
        }
        document
    };
    let others = if document["$id"] == envelope["$id"] {
        vec![]
    } else {
        vec![read(envelope)]
    };
    Schema::compile(&read(document), &others).unwrap()
}

/// Lets a line break stand before each `$`. A test of the files sees that `$` stands at the end only.
fn as_python_reads(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (keyword, value) in members {
                match value {
                    Value::String(pattern) if keyword == "pattern" => {
                        if let Some(start) = pattern.strip_suffix('$') {
                            *pattern = format!("{start}\\n?$");
                        }
                    }
                    other => as_python_reads(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(as_python_reads),
        _ => {}
    }
}
