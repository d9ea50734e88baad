//! Each example is judged as it says. `agree/` asks two other validators the same.

use std::collections::BTreeSet;

use weir_schema::Family;

use crate::support::{CATALOG, EXAMPLES};

/// SCHEMA-4
#[test]
fn every_schema_has_two_valid_and_three_invalid_examples() {
    for examples in EXAMPLES.iter() {
        assert!(examples.valid.len() >= 2, "{}", examples.schema);
        assert!(examples.invalid.len() >= 3, "{}", examples.schema);
        let whys = examples.valid.iter().map(|example| &example.why);
        let whys: Vec<_> = whys
            .chain(examples.invalid.iter().map(|example| &example.why))
            .collect();
        let distinct: BTreeSet<_> = whys.iter().collect();
        assert_eq!(
            whys.len(),
            distinct.len(),
            "{}: a name twice",
            examples.schema
        );
    }
}

/// SCHEMA-4, SCHEMA-11
#[test]
fn every_valid_example_is_accepted_by_its_schema_and_by_its_command() {
    for examples in EXAMPLES.iter() {
        let schema = CATALOG.schema(&examples.schema).unwrap();
        for example in &examples.valid {
            let at = format!("{}: {}", examples.schema, example.why);
            assert_eq!(schema.validate(&example.message), Ok(()), "{at}");
            if let Some((family, _)) = examples.schema.split_once('/') {
                let family: Family = family.parse().unwrap();
                assert_eq!(CATALOG.validate(family, &example.message), Ok(()), "{at}");
            }
        }
    }
}

/// SCHEMA-4: at the one path, with the keyword, and nowhere else.
#[test]
fn every_invalid_example_fails_where_it_says() {
    for examples in EXAMPLES.iter() {
        let schema = CATALOG.schema(&examples.schema).unwrap();
        for example in &examples.invalid {
            let at = format!("{}: {}", examples.schema, example.why);
            let violations = schema.validate(&example.message).expect_err(&at);
            assert!(
                violations
                    .iter()
                    .all(|violation| violation.instance_path == example.path),
                "{at}: {violations:#?}"
            );
            assert!(
                violations
                    .iter()
                    .any(|violation| violation.keyword == example.keyword),
                "{at}: {violations:#?}"
            );
            for violation in &violations {
                assert!(
                    violation
                        .schema_location
                        .starts_with("https://weir.example/v1/schema/")
                );
            }
            if let Some((family, _)) = examples.schema.split_once('/')
                && example.path != "/command"
            {
                let family: Family = family.parse().unwrap();
                assert_eq!(
                    CATALOG.validate(family, &example.message),
                    Err(violations),
                    "{at}"
                );
            }
        }
    }
}

/// SCHEMA-5: an example that no receiver would read shows nothing.
#[test]
fn every_example_can_be_sent() {
    for examples in EXAMPLES.iter() {
        let valid = examples
            .valid
            .iter()
            .map(|example| (&example.why, &example.message));
        let invalid = examples
            .invalid
            .iter()
            .map(|example| (&example.why, &example.message));
        for (why, message) in valid.chain(invalid) {
            let text = message.to_string();
            let read = weir_schema::strict::parse(text.as_bytes());
            assert_eq!(read.as_ref(), Ok(message), "{}: {why}", examples.schema);
        }
    }
}
