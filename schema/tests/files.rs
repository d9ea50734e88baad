//! The schema files themselves: their form.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;
use weir_schema::{BASE, Catalog};

use crate::support::{CATALOG, folder, read_json, schema_names, schema_path};

/// The messages of the specification, by family.
const MESSAGES: [(&str, &str); 3] = [
    (
        "c2s",
        "PRIVMSG NOTICE JOIN PART QUIT NICK MODE TOPIC KICK PING PUBKEY",
    ),
    (
        "s2c",
        "PRIVMSG NOTICE JOIN PART QUIT NICK MODE TOPIC KICK PUBKEY PONG ERROR \
         001 002 322 353 366 372 375 376 401 403 433",
    ),
    ("s2s", "RELAY LINK UNLINK SYNC PING PONG"),
];

/// SCHEMA-1, SCHEMA-10
#[test]
fn there_is_one_file_for_each_message_and_the_program_has_them_all() {
    let mut expected: BTreeSet<String> = MESSAGES
        .iter()
        .flat_map(|(family, commands)| {
            commands
                .split_whitespace()
                .map(move |command| format!("{family}/{}", command.to_lowercase()))
        })
        .collect();
    expected.insert("message".to_owned());
    assert_eq!(expected.len(), 41);
    let files: BTreeSet<String> = schema_names().into_iter().collect();
    assert_eq!(files, expected);
    let built_in: Vec<String> = CATALOG.names().map(str::to_owned).collect();
    assert_eq!(built_in, schema_names());
    for name in built_in {
        let file = fs::read_to_string(schema_path(&name)).unwrap();
        assert_eq!(CATALOG.text(&name), Some(file.as_str()), "{name}");
    }
}

/// SCHEMA-1
#[test]
fn each_file_has_schema_id_title_description_and_a_relative_ref_to_the_envelope() {
    for name in schema_names() {
        let schema = read_json(&schema_path(&name));
        assert_eq!(
            schema["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{name}"
        );
        assert_eq!(schema["$id"], format!("{BASE}/schema/{name}.schema.json"));
        assert!(
            schema["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{name}"
        );
        let title = schema["title"].as_str().unwrap();
        let Some((family, file)) = name.split_once('/') else {
            continue;
        };
        assert_eq!(schema["$ref"], "../message.schema.json", "{name}");
        let command = schema["properties"]["command"]["const"].as_str().unwrap();
        assert_eq!(command.to_lowercase(), file);
        assert!(title.starts_with(command), "{name}: {title}");
        assert!(
            title.ends_with(&format!("({})", family.to_uppercase())),
            "{name}: {title}"
        );
        if file.parse::<u16>().is_ok() {
            let words: Vec<_> = title.split(' ').collect();
            assert_eq!(words.len(), 3, "{name}: code, name, family");
            assert!(
                words[1].starts_with("RPL_") || words[1].starts_with("ERR_"),
                "{title}"
            );
        }
    }
    let welcome = read_json(&schema_path("s2c/001"));
    assert_eq!(welcome["title"], "001 RPL_WELCOME (S2C)");
}

/// SCHEMA-2: meta-validation.
#[test]
fn each_file_is_a_schema_of_draft_2020_12() {
    for name in schema_names() {
        jsonschema::draft202012::meta::validate(&read_json(&schema_path(&name)))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// SCHEMA-2: the rest stays byte for byte, and the same messages are valid.
#[test]
fn another_base_changes_the_prefix_of_each_id_and_nothing_else() {
    let other = Catalog::with_base("https://chat.example/a").unwrap();
    for name in CATALOG.names() {
        let before = CATALOG.text(name).unwrap();
        let after = other.text(name).unwrap();
        let changed: Vec<_> = before
            .lines()
            .zip(after.lines())
            .filter(|(a, b)| a != b)
            .collect();
        let id = format!("/schema/{name}.schema.json\",");
        assert_eq!(
            changed,
            [(
                format!("  \"$id\": \"{BASE}{id}").as_str(),
                format!("  \"$id\": \"https://chat.example/a{id}").as_str()
            )]
        );
        assert_eq!(before.lines().count(), after.lines().count());
    }
    let message = serde_json::json!({ "command": "NICK", "params": ["9"] });
    let violations = other
        .validate(weir_schema::Family::C2s, &message)
        .unwrap_err();
    assert_eq!(
        violations[0].schema_location,
        "https://chat.example/a/schema/message.schema.json#/$defs/nick/pattern"
    );
}

/// SCHEMA-2: under another spelling of the same address ajv, and under one with an empty segment
/// Python's jsonschema, does not find what the files refer to.
#[test]
fn a_base_is_written_in_its_normal_form() {
    for bad in [
        "HTTPS://a",
        "https://A.example/v1",
        "https://a:443/v1",
        "https://a/%7euser",
        "https://a/%c3%a9",
        "https://[2001:DB8::1]",
        "https://a/./b",
        "https://a//b",
    ] {
        assert!(Catalog::with_base(bad).is_err(), "{bad:?}");
    }
    for good in [
        "http://127.0.0.1:8080",
        "https://[2001:db8::1]/v1",
        "https://a/~user/%C3%A9",
        "file:///srv/schemas",
    ] {
        assert!(Catalog::with_base(good).is_ok(), "{good:?}");
    }
    let error = Catalog::with_base("https://Chat.example:443/v1").unwrap_err();
    let sentence = error.to_string();
    assert!(
        sentence.ends_with(": its normal form is https://chat.example/v1"),
        "{sentence}"
    );
}

/// SCHEMA-3, SCHEMA-9
#[test]
fn the_envelope_is_closed_and_leaves_name_only_its_members() {
    let envelope = read_json(&schema_path("message"));
    assert_eq!(envelope["additionalProperties"], false);
    for name in schema_names().iter().skip(1) {
        let leaf = read_json(&schema_path(name));
        for member in leaf["properties"].as_object().unwrap().keys() {
            assert!(
                envelope["properties"].get(member).is_some(),
                "{name}: {member}"
            );
        }
    }
}

/// SCHEMA-3: what ajv, Python and this crate read alike.
#[test]
fn schemas_and_patterns_keep_to_what_all_validators_read_alike() {
    let mut patterns = 0;
    for name in schema_names() {
        visit(&read_json(&schema_path(&name)), &mut |schema| {
            assert!(schema.get("unevaluatedProperties").is_none(), "{name}");
            assert!(schema.get("unevaluatedItems").is_none(), "{name}");
            if schema.contains_key("format") {
                assert!(
                    schema.contains_key("pattern"),
                    "{name}: a format without a pattern"
                );
            }
            let Some(Value::String(pattern)) = schema.get("pattern") else {
                return;
            };
            patterns += 1;
            for forbidden in [
                "(?=", "(?!", "(?<", "\\d", "\\w", "\\s", "\\b", "\\p", "\\n", "\n", "\\1",
            ] {
                assert!(
                    !pattern.contains(forbidden),
                    "{name}: {forbidden} in {pattern}"
                );
            }
            let anchored = pattern.strip_suffix('$').unwrap_or(pattern);
            assert!(
                !anchored.contains('$'),
                "{name}: $ before the end in {pattern}"
            );
            assert!(pattern.is_ascii(), "{name}: {pattern}");
        });
    }
    assert!(patterns > 15, "only {patterns} patterns were found");
}

/// SCHEMA-6: with `arbitrary_precision` a number is a string in disguise and the canonical form
/// breaks.
#[test]
fn arbitrary_precision_is_off() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args([
            "tree",
            "--locked",
            "--workspace",
            "-e",
            "features",
            "-i",
            "serde_json",
        ])
        .current_dir(folder())
        .output()
        .unwrap();
    let tree_text = String::from_utf8(tree.stdout).unwrap();
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    assert!(
        tree_text.contains("serde_json feature \"preserve_order\""),
        "{tree_text}"
    );
    assert!(!tree_text.contains("arbitrary_precision"), "{tree_text}");
    assert!(serde_json::from_str::<Value>("1e400").is_err());
}

/// SCHEMA-3: to find what comes twice, other validators compare each entry with each other. Those
/// that stop at the first violation look in the order of the file, and first for too many entries
/// and for entries of another kind, which they cannot sort.
#[test]
fn what_comes_twice_is_looked_for_last() {
    let mut lists = 0;
    for name in schema_names() {
        visit(&read_json(&schema_path(&name)), &mut |members| {
            let place = |keyword: &str| members.keys().position(|known| known == keyword);
            if let Some(unique) = place("uniqueItems") {
                lists += 1;
                for keyword in ["maxItems", "items"] {
                    let first = place(keyword);
                    assert!(
                        first.is_some_and(|first| first < unique),
                        "{name}: {keyword}"
                    );
                }
            }
        });
    }
    assert_eq!(lists, 4);
    for readme in ["README.md", "packages/npm/README.md"] {
        let text = fs::read_to_string(folder().join(readme)).unwrap();
        assert!(!text.contains("allErrors: true"), "{readme}");
    }
}

/// Calls `look` with each subschema, and with what else is an object in a schema, which does no
/// harm.
fn visit(schema: &Value, look: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match schema {
        Value::Object(members) => {
            look(members);
            members.values().for_each(|value| visit(value, look));
        }
        Value::Array(items) => items.iter().for_each(|value| visit(value, look)),
        _ => {}
    }
}
