//! Is each constraint of each schema shown by an example? Every constraint is dropped in turn, and
//! some example must then be judged otherwise. Limits, those of a pattern too, are moved by one
//! each way as well, and alternatives taken away.
//!
//! Two readings of a pattern are tried. Python's `$` lets one line break stand before the end,
//! every other dialect's does not; some constraints stand in the files for the first alone, and
//! only that reading can miss them.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
    (
        "message",
        "/if/properties/meta/type",
        "a meta that is no object is refused anyway; this spares three violations more, which the \
         example shows that has nothing but such a meta",
    ),
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

    let all: Vec<(&String, Mutant)> = names
        .iter()
        .zip(&documents)
        .flat_map(|(name, document)| mutants(document).into_iter().map(move |it| (name, it)))
        .collect();
    // Most of the time of this crate's tests goes here, so each core takes the next one.
    let next = AtomicUsize::new(0);
    let look = || {
        let mut survivors = Vec::new();
        while let Some((name, mutant)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let excepted = EXCEPTIONS
                .iter()
                .any(|(schema, pointer, _)| schema == name && *pointer == mutant.pointer);
            if is_noticed(name, mutant, &documents) == excepted {
                survivors.push(format!(
                    "{name}.schema.json#{} {} ({:?})",
                    mutant.pointer, mutant.becomes, mutant.change
                ));
            }
        }
        survivors
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let survivors: Vec<String> = thread::scope(|scope| {
        let looking: Vec<_> = (0..cores).map(|_| scope.spawn(look)).collect();
        let found = looking.into_iter().map(|each| each.join().unwrap());
        found.flatten().collect()
    });
    assert!(
        survivors.is_empty(),
        "untested, or a needless exception:\n{}",
        survivors.join("\n")
    );
    // So that a walk that finds nothing cannot pass.
    assert!(all.len() > 600, "only {} changes were made", all.len());
}

/// A document with one change.
struct Mutant {
    pointer: String,
    change: Change,
    /// What stands there now, for people.
    becomes: String,
    document: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// More is accepted: an invalid example must be.
    Wider,
    /// Less is accepted: a valid example must be refused.
    Narrower,
    /// Something else is accepted: one or the other must show it.
    Other,
}

impl Change {
    const fn within(self, negation: bool) -> Self {
        match (self, negation) {
            (Self::Wider, false) | (Self::Narrower, true) => Self::Wider,
            (Self::Wider, true) | (Self::Narrower, false) => Self::Narrower,
            (Self::Other, _) => Self::Other,
        }
    }
}

/// The pointer of one place, what a change there does, and what stands there afterwards, if
/// anything.
type Edit = (String, Change, Option<Value>);

fn mutants(document: &Value) -> Vec<Mutant> {
    let mut edits = Vec::new();
    walk(document, "", false, &mut edits);
    edits
        .into_iter()
        .map(|(pointer, change, replacement)| {
            let mut document = document.clone();
            let becomes = match &replacement {
                Some(value) => format!("becomes {value}"),
                None => "dropped".to_owned(),
            };
            let (parent, last) = pointer.rsplit_once('/').unwrap();
            match (document.pointer_mut(parent).unwrap(), replacement) {
                (Value::Object(members), Some(value)) => members[last] = value,
                (Value::Object(members), None) => drop(members.remove(last).unwrap()),
                (Value::Array(items), None) => drop(items.remove(last.parse().unwrap())),
                (other, _) => panic!("{pointer}: {other}"),
            }
            Mutant {
                pointer,
                change,
                becomes,
                document,
            }
        })
        .collect()
}

/// The limit `value` moved by one each way, and what that does. None goes below 0.
fn moved(keyword: &str, value: &Value, negation: bool) -> Vec<(Change, Value)> {
    let limit = value.as_u64().unwrap();
    let (more, less) = if keyword.starts_with("max") {
        (Change::Wider, Change::Narrower)
    } else {
        (Change::Narrower, Change::Wider)
    };
    let mut out = vec![(more.within(negation), json!(limit + 1))];
    if let Some(limit) = limit.checked_sub(1) {
        out.push((less.within(negation), json!(limit)));
    }
    out
}

/// `pattern` with one number of one `{n}` or `{n,m}` moved by one each way, for each of them.
fn moved_quantifiers(pattern: &str, negation: bool) -> Vec<(Change, Value)> {
    let mut out = Vec::new();
    for (open, _) in pattern.match_indices('{') {
        let Some(length) = pattern[open..].find('}') else {
            continue;
        };
        let inside = &pattern[open + 1..open + length];
        let numbers: Result<Vec<u64>, _> = inside.split(',').map(str::parse).collect();
        let Ok(numbers) = numbers else {
            continue; // a brace that is a character of a class
        };
        let mut put = |numbers: &[u64], change: Change| {
            let text: Vec<String> = numbers.iter().map(u64::to_string).collect();
            let (before, after) = (&pattern[..=open], &pattern[open + length..]);
            let pattern = format!("{before}{}{after}", text.join(","));
            out.push((change.within(negation), json!(pattern)));
        };
        match numbers[..] {
            [exact] => {
                put(&[exact + 1], Change::Other);
                put(&[exact - 1], Change::Other);
            }
            [least, most] => {
                put(&[least, most + 1], Change::Wider);
                put(&[least, most - 1], Change::Narrower);
                put(&[least + 1, most], Change::Narrower);
                if least > 0 {
                    put(&[least - 1, most], Change::Wider);
                }
            }
            _ => panic!("{pattern}"),
        }
    }
    out
}

/// Notes everything in `schema` that can be dropped or moved. `negation` is whether `schema`
/// stands under an odd number of `not` and `if`, where to drop a constraint narrows.
fn walk(schema: &Value, at: &str, negation: bool, changes: &mut Vec<Edit>) {
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
                changes.push((format!("{base}/{index}"), change, None));
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
                changes.push((here.clone(), wider, None));
                each(changes, &here, value, narrower);
            }
            "type" => {
                changes.push((here.clone(), wider, None));
                if value.is_array() {
                    each(changes, &here, value, narrower);
                }
            }
            "anyOf" => {
                changes.push((here.clone(), wider, None));
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
                        changes.push((format!("{here}/{member}"), narrower, None));
                    }
                    walk(schema, &format!("{here}/{member}"), negation, changes);
                }
            }
            "not" | "if" => {
                changes.push((here.clone(), wider, None));
                walk(value, &here, !negation, changes);
            }
            "items" | "then" => walk(value, &here, negation, changes),
            "contains" => {
                changes.push((here.clone(), wider, None));
                walk(value, &here, negation, changes);
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minimum" | "maximum"
            | "maxProperties" => {
                changes.push((here.clone(), wider, None));
                for (change, value) in moved(keyword, value, negation) {
                    changes.push((here.clone(), change, Some(value)));
                }
            }
            "pattern" => {
                changes.push((here.clone(), wider, None));
                for (change, value) in moved_quantifiers(value.as_str().unwrap(), negation) {
                    changes.push((here.clone(), change, Some(value)));
                }
            }
            "$ref" | "const" | "format" | "uniqueItems" | "additionalProperties" => {
                changes.push((here, wider, None));
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
    // The envelope's own examples first, then those with the richest bodies; the rest is seldom
    // asked.
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
    let accepts_more = || {
        let mut invalid = examples.invalid.iter();
        invalid.any(|example| schema.validate(&example.message).is_ok())
    };
    let accepts_less = || {
        let mut valid = examples.valid.iter();
        valid.any(|example| schema.validate(&example.message).is_err())
    };
    match mutant.change {
        Change::Wider => accepts_more(),
        Change::Narrower => accepts_less(),
        Change::Other => accepts_more() || accepts_less(),
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

/// Lets a line break stand before each `$`. A test of the files sees that `$` stands at the end
/// only.
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
