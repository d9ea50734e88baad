//! The Rust types against the schemas: what fits a schema fits its type and comes back unchanged,
//! and the types alone refuse what types can refuse.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_schema::{
    Family,
    types::{C2s, Message, ReadError, S2c, S2s, read, write},
};

use crate::support::{CATALOG, EXAMPLES, folder, mutants, read_json, schema_names};

/// Equality in the sense of JSON: 1 and 1.0 are one number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, value)| other.get(name).is_some_and(|other| same(value, other)))
        }
        (one, other) => one == other,
    }
}

/// Reads `message` as `family` does and writes it again.
fn round_trip(family: Family, message: &Value) -> Result<Value, ReadError> {
    fn through<M: Message>(message: &Value) -> Result<Value, ReadError> {
        write(&CATALOG, &read::<M>(&CATALOG, message)?)
    }
    match family {
        Family::C2s => through::<C2s>(message),
        Family::S2c => through::<S2c>(message),
        Family::S2s => through::<S2s>(message),
    }
}

/// Whether the types of `family` take `message` without asking the catalog.
fn fits_the_type(family: Family, message: &Value) -> bool {
    match family {
        Family::C2s => serde_json::from_value::<C2s>(message.clone()).is_ok(),
        Family::S2c => serde_json::from_value::<S2c>(message.clone()).is_ok(),
        Family::S2s => serde_json::from_value::<S2s>(message.clone()).is_ok(),
    }
}

fn family_of(schema: &str) -> Option<Family> {
    schema
        .split_once('/')
        .map(|(family, _)| family.parse().unwrap())
}

/// SCHEMA-4: every valid example comes back as it was.
#[test]
fn every_valid_example_goes_through_its_type_unchanged() {
    let mut tried = 0;
    for examples in EXAMPLES.iter() {
        let Some(family) = family_of(&examples.schema) else {
            continue;
        };
        for example in &examples.valid {
            let back = round_trip(family, &example.message);
            let back = back.unwrap_or_else(|error| panic!("{}: {error}", examples.schema));
            assert!(same(&back, &example.message), "{back} {}", example.message);
            tried += 1;
        }
    }
    assert!(tried > 130, "{tried}");
}

/// SCHEMA-4: `read` refuses every invalid example, and the types alone those that lack a member,
/// have one too many, or one of another kind.
#[test]
fn every_invalid_example_is_refused() {
    let mut by_type = 0;
    for examples in EXAMPLES.iter() {
        let Some(family) = family_of(&examples.schema) else {
            continue;
        };
        for example in &examples.invalid {
            let at = format!("{}: {}", examples.schema, example.why);
            assert!(
                matches!(
                    round_trip(family, &example.message),
                    Err(ReadError::Violations(_))
                ),
                "{at}"
            );
            // What a signature needs, the envelope asks for; no type says so.
            let signed = !example.message["meta"]["sig"].is_null();
            // A body of RELAY is judged as an envelope, and `not` refuses one command there.
            let by_kind = match example.keyword.as_str() {
                "additionalProperties" | "enum" | "type" | "const" => true,
                "required" => !signed,
                "not" => example.path == "/body" || example.path == "/params",
                _ => false,
            };
            if by_kind {
                assert!(!fits_the_type(family, &example.message), "{at}");
                by_type += 1;
            }
        }
    }
    assert!(by_type > 240, "{by_type}");
}

/// SCHEMA-4: a message that differs from an example in one place: where the schema takes it, the
/// type takes it, too, and nothing of it is lost.
#[test]
fn what_fits_a_schema_fits_its_type() {
    let (mut tried, mut valid) = (0, 0);
    for examples in EXAMPLES.iter() {
        let Some(family) = family_of(&examples.schema) else {
            continue;
        };
        for example in &examples.valid {
            for mutant in mutants(&example.message) {
                tried += 1;
                match round_trip(family, &mutant) {
                    Ok(back) => assert!(same(&back, &mutant), "{back} {mutant}"),
                    Err(ReadError::Violations(_)) => continue,
                    Err(error) => panic!("{mutant}: {error}"),
                }
                valid += 1;
            }
        }
    }
    assert!(tried > 10_000 && valid > 1_000, "{tried} {valid}");
}

/// SCHEMA-1: an enum has the commands of its folder, each under its name.
#[test]
fn the_enums_have_every_command() {
    for (family, commands) in [
        ("c2s", C2s::COMMANDS),
        ("s2c", S2c::COMMANDS),
        ("s2s", S2s::COMMANDS),
    ] {
        let ours: BTreeSet<String> = commands
            .iter()
            .map(|command| format!("{family}/{}", command.to_lowercase()))
            .collect();
        let files: BTreeSet<String> = schema_names()
            .into_iter()
            .filter(|name| name.starts_with(family))
            .collect();
        assert_eq!(ours, files);
        for name in files {
            let file = read_json(&folder().join(format!("examples/{name}.json")));
            let message = &file["valid"][0]["message"];
            let command = match family {
                "c2s" => read::<C2s>(&CATALOG, message).unwrap().command(),
                "s2c" => read::<S2c>(&CATALOG, message).unwrap().command(),
                _ => read::<S2s>(&CATALOG, message).unwrap().command(),
            };
            assert_eq!(message["command"], command);
        }
    }
}

/// SCHEMA-4: what no schema takes is not written.
#[test]
fn what_the_types_cannot_know_is_judged_before_it_is_written() {
    let nick = weir_schema::types::c2s::Nick {
        params: ["9lives".to_owned()],
        ..Default::default()
    };
    let refused = write(&CATALOG, &C2s::from(nick)).unwrap_err();
    assert!(refused.to_string().starts_with("/params/0: "), "{refused}");
}
