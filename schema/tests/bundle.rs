//! Bundles judge as the files do, and need nothing but themselves (SCHEMA-2). `agree/run` asks two
//! other validators the same.

use std::collections::BTreeSet;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Value, json};
use weir_schema::{
    Family,
    bundle::{self, Form},
};

use crate::support::{CATALOG, EXAMPLES, Examples, mutants};

const FORMS: [Form; 2] = [Form::Draft202012, Form::Draft07];

fn compile(document: &Value, form: Form) -> Validator {
    let draft = match form {
        Form::Draft202012 => Draft::Draft202012,
        Form::Draft07 => Draft::Draft7,
    };
    jsonschema::options()
        .with_draft(draft)
        .offline()
        .should_validate_formats(true)
        .with_pattern_options(PatternOptions::regex())
        .build(document)
        .unwrap()
}

/// The part of the bundle `document` that judges the message `name`.
fn part(document: &Value, name: &str, form: Form) -> Value {
    let mut document = document.clone();
    let members = document.as_object_mut().unwrap();
    members.shift_remove("anyOf");
    let definitions = match form {
        Form::Draft202012 => "$defs",
        Form::Draft07 => "definitions",
    };
    let reference = format!("#/{definitions}/{}", bundle::key(name));
    members.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
    document
}

fn assert_judges_as_the_file(validator: &Validator, examples: &Examples, at: &str) {
    for example in &examples.valid {
        assert!(
            validator.is_valid(&example.message),
            "{at}: {}",
            example.why
        );
    }
    for example in &examples.invalid {
        let paths: BTreeSet<String> = validator
            .iter_errors(&example.message)
            .map(|error| error.instance_path().as_str().to_owned())
            .collect();
        let expected = BTreeSet::from([example.path.clone()]);
        assert_eq!(paths, expected, "{at}: {}", example.why);
    }
}

/// SCHEMA-2, SCHEMA-4: verdict and failing path, for every example.
#[test]
fn one_document_a_message_judges_as_the_file() {
    for form in FORMS {
        for examples in EXAMPLES.iter() {
            let document = bundle::one(&CATALOG, &examples.schema, form).unwrap();
            let at = format!("{} in {form:?}", examples.schema);
            assert_judges_as_the_file(&compile(&document, form), examples, &at);
        }
        assert_eq!(bundle::one(&CATALOG, "c2s/nothing", form), None);
        assert_eq!(bundle::one(&CATALOG, "proxy/bans", form), None);
    }
}

/// SCHEMA-2, SCHEMA-4
#[test]
fn the_document_of_all_messages_judges_as_the_files() {
    for form in FORMS {
        let document = bundle::all(&CATALOG, form);
        let whole = compile(&document, form);
        let families = Family::ALL.map(|family| {
            let part = part(&document, family.name(), form);
            (family.name(), compile(&part, form))
        });
        for examples in EXAMPLES.iter() {
            let part = part(&document, &examples.schema, form);
            let at = format!("{} in the bundle in {form:?}", examples.schema);
            assert_judges_as_the_file(&compile(&part, form), examples, &at);
            let own = |(name, _): &&(&str, _)| examples.schema.starts_with(*name);
            if let Some((_, family)) = families.iter().find(own) {
                for example in &examples.valid {
                    assert!(whole.is_valid(&example.message), "{at}: {}", example.why);
                    assert!(family.is_valid(&example.message), "{at}: {}", example.why);
                }
            }
        }
        assert!(!whole.is_valid(&json!({ "command": "LIST" })));
        assert!(!whole.is_valid(&json!("QUIT")));
    }
}

/// SCHEMA-2: also for messages that differ from an example in one place, which nobody thought of.
#[test]
fn bundles_fail_at_the_same_places_as_the_files() {
    let wholes = FORMS.map(|form| (form, bundle::all(&CATALOG, form)));
    let mut compared = 0;
    for examples in EXAMPLES.iter() {
        let name = &examples.schema;
        let schema = CATALOG.schema(name).unwrap();
        let others: Vec<Validator> = wholes
            .iter()
            .flat_map(|(form, whole)| {
                let one = bundle::one(&CATALOG, name, *form).unwrap();
                [
                    compile(&one, *form),
                    compile(&part(whole, name, *form), *form),
                ]
            })
            .collect();
        // Every seventh: another value at each place.
        let mutants = examples
            .valid
            .iter()
            .flat_map(|valid| mutants(&valid.message));
        for mutant in mutants
            .filter(|message| message["command"].is_string())
            .step_by(7)
        {
            let expected: BTreeSet<String> = schema
                .validate(&mutant)
                .err()
                .into_iter()
                .flatten()
                .map(|violation| violation.instance_path)
                .collect();
            for other in &others {
                let paths: BTreeSet<String> = other
                    .iter_errors(&mutant)
                    .map(|error| error.instance_path().as_str().to_owned())
                    .collect();
                assert_eq!(paths, expected, "{name}: {mutant}");
                compared += 1;
            }
        }
    }
    assert!(compared > 5_000, "{compared}");
}

/// SCHEMA-2: every `$id` but the first is relative, every `$ref` is, and the first has the version.
#[test]
fn a_bundle_refers_to_nothing_outside() {
    for form in FORMS {
        let documents = CATALOG
            .names()
            .map(|name| bundle::one(&CATALOG, name, form).unwrap())
            .chain([bundle::all(&CATALOG, form)]);
        for document in documents {
            let id = document["$id"].as_str().unwrap();
            assert!(id.starts_with("https://weir.example/v1/schema/"), "{id}");
            let mut ids = 0;
            visit(&document, &mut |keyword, text| match keyword {
                "$id" => {
                    ids += 1;
                    assert!(text == id || !text.contains(':'), "{text}");
                }
                "$ref" => match form {
                    Form::Draft202012 => assert!(!text.contains(':'), "{text}"),
                    Form::Draft07 => assert!(text.starts_with("#/definitions/"), "{text}"),
                },
                _ => {}
            });
            assert!(form == Form::Draft202012 || ids == 1, "{id}: {ids}");
        }
    }
}

/// SCHEMA-2: draft 07 ignores what stands beside a `$ref`, and knows none of the newer keywords.
#[test]
fn the_form_of_draft_07_keeps_to_draft_07() {
    let document = bundle::all(&CATALOG, Form::Draft07);
    jsonschema::draft7::meta::validate(&document).unwrap();
    let text = document.to_string();
    for newer in ["$defs", "prefixItems", "dependentRequired", "unevaluated"] {
        assert!(!text.contains(newer), "{newer}");
    }
    fn walk(value: &Value) {
        match value {
            Value::Object(members) => {
                let alone = !members.contains_key("$ref") || members.len() == 1;
                assert!(alone, "{value}");
                members.values().for_each(walk);
            }
            Value::Array(items) => items.iter().for_each(walk),
            _ => {}
        }
    }
    walk(&document);
}

fn visit(value: &Value, look: &mut impl FnMut(&str, &str)) {
    match value {
        Value::Object(members) => {
            for (keyword, value) in members {
                if let Value::String(text) = value {
                    look(keyword, text);
                }
                visit(value, look);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
        _ => {}
    }
}
