use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::alert::document::AlertsFile as Alerts;
use crate::bans::document::BansFile as Bans;
use crate::clients::ClientsFile as Clients;
use crate::lookup::document::LookupsFile as Lookups;

/// Values that fit some member and no other.
fn value() -> impl Strategy<Value = Value> {
    let time = "2026-11-21T16:00:00Z";
    let window = json!({"start": time, "current": 3, "previous": 9});
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(7),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!(""),
        json!("permanent"),
        json!(time),
        json!("2026-11-21T16:00:00.5+01:00"),
        json!("2026-11-21"),
        json!("2026-02-30T16:00:00Z"),
        json!("203.0.113.7"),
        json!("203.0.113.7/24"),
        json!("203.0.113.0/33"),
        json!("203.0.113.07"),
        json!("::1"),
        json!("2001:db8::/32"),
        json!("2001:db8:1:2::/64"),
        json!("::/129"),
        json!("::ffff:203.0.113.7"),
        json!("fe80::1%x"),
        json!("203.0.113.7/64"),
        json!("admin"),
        json!("edit"),
        json!("day"),
        json!("week"),
        json!("DE"),
        json!("AS64496"),
        json!("64496"),
        json!([]),
        json!([7]),
        json!({}),
        json!(0.0),
        json!(-0.0),
        json!(3.0),
        json!(1e19),
        json!(1e20),
        json!("9999-12-31T23:59:59Z"),
        json!("9999-12-31T23:59:59-23:59"),
        json!("0000-01-01T00:00:00+23:59"),
        json!("2026-11-21T16:00:60Z"),
        json!("2026-12-31T23:59:60Z"),
        json!("2026-11-21t16:00:00z"),
        json!("2026-11-21 16:00:00Z"),
        json!({"limit": "day", "limit_percent": 50}),
        json!({"limit_percent": 101}),
        json!({"limit_percent": 255}),
        json!({"limit_percent": 256}),
        json!({"limit_percent": 100.0}),
        json!({"limit_value": 3.0, "netblock_requests": 1e19}),
        json!({"limit_value": 3.5}),
        json!({"request": []}),
        json!({"request": {"x": 1}, "lookup": {"x": []}}),
        json!({"lookup": []}),
        json!({"minute": []}),
        json!({"minute": {"start": time, "current": 3.0, "previous": -0.0, "x": 1}}),
        json!({"bytes_per_hour": 7.0}),
        json!({"bytes_per_day": 7}),
        json!("client"),
        json!("net"),
        json!("asn"),
        json!("total"),
        json!({"limit": 1}),
        json!({"limit_value": -1}),
        json!({"request": {"path": "/", "host": null}}),
        json!({"request": {"path": 7}}),
        json!({"lookup": {"country": "DE"}}),
        json!({"lookup": [7]}),
        json!({"country": "DE", "asn": null}),
        json!({"as_name": 7}),
        json!({"minute": window}),
        json!({"day": {"start": time}}),
        json!({"hour": null}),
    ])
}

/// A whole document whose one entry had some members put in, changed or taken out.
fn document<D: Document>(
    list: &'static str,
    entry: Value,
    members: &'static [&'static str],
) -> impl Strategy<Value = Value> {
    let change = (
        prop::sample::select(members.to_vec()),
        prop::option::weighted(0.9, value()),
    );
    prop::collection::vec(change, 0..4).prop_map(move |changes| {
        let mut entry = entry.clone();
        for (member, value) in changes {
            match value {
                Some(value) => entry[member] = value,
                None => drop(entry.as_object_mut().unwrap().remove(member)),
            }
        }
        let mut document = json!({"version": 1});
        for name in lists::<D>() {
            document[name] = json!([]);
        }
        document[list] = json!([entry]);
        document
    })
}

/// Compiled by other means than the service's.
fn validator<D: Document>() -> jsonschema::Validator {
    let schema = serde_json::from_str(D::SCHEMA).unwrap();
    jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap()
}

/// Whether the schema and the service say the same.
fn agree<D: Document>(
    schema: &jsonschema::Validator,
    document: &Value,
) -> Result<(), TestCaseError> {
    let text = document.to_string();
    let taken = parse::<D>(text.as_bytes());
    // RESTART-1: with the places of entries noted it is the same, also where all are known.
    if let Ok(taken) = &taken {
        let (noted, places) = parse_noting::<D>(text.as_bytes(), |_| None).unwrap();
        prop_assert!(noted.entries == taken.entries && noted.envelope == taken.envelope);
        prop_assert_eq!(places.len(), noted.entries.len());
        let known = |part: &[u8]| {
            let place = places
                .iter()
                .position(|place| text[place.clone()].as_bytes() == part);
            place.map(|place| noted.entries[place].clone())
        };
        let (again, _) = parse_noting::<D>(text.as_bytes(), known).unwrap();
        prop_assert!(again.entries == taken.entries);
    }
    prop_assert_eq!(
        schema.is_valid(document),
        taken.is_ok(),
        "{}: {:?}",
        document,
        taken.err()
    );
    Ok(())
}

static SCHEMAS: LazyLock<[jsonschema::Validator; 4]> = LazyLock::new(|| {
    [
        validator::<Bans>(),
        validator::<Clients>(),
        validator::<Lookups>(),
        validator::<Alerts>(),
    ]
});

/// Texts made of the pieces of state files, well put together or not.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"version\":1",
        "\"version\":2",
        "\"bans\":[",
        "\"clients\":[",
        "\"netblock\":\"10.0.0.0/8\"",
        "\"netblock\":\"::1/200\"",
        "\"ban_expires\":\"permanent\"",
        "\"ban_expires\":\"2026-11-21T16:00:00Z\"",
        "\"ban_expires\":\"9999-99-99\"",
        "\"notes\":{\"limit_percent\":300}",
        "\"client\":\"203.0.113.7\"",
        "\"first_seen\":\"2026-11-21T16:00:00Z\"",
        "\"last_seen\":\"1969-12-31T23:59:59Z\"",
        "\"passed\":18446744073709551616",
        "\"lifted\":null",
        "\"$schema\":\"x\"",
        "\"\\ud800\"",
        "1e999",
        "-0",
        "null",
        " ",
        "\n",
        "\u{feff}",
        "\u{0}",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

const GOOD: &str = r#"{"$schema":"x","version":1,"bans":[{"netblock":"203.0.113.0/24","client":"203.0.113.7","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent","cause":"admin","reason":"r","notes":{"limit":"day","netblock_requests":7,"x":[1]},"ticket":{"a":1}},{"netblock":"2001:db8::/32","ban_expires":"2026-11-21T17:00:00Z"}],"owner":"ops"}"#;

/// What is taken is written so that it is read back as it was; what is not is a fault of one line
/// that lies inside.
fn judged<D: Document>(bytes: &[u8]) -> Result<bool, TestCaseError> {
    match parse::<D>(bytes) {
        Ok(content) => {
            let mut out = Vec::new();
            write::<D>(&mut out, &content.entries, &content.envelope).unwrap();
            let again = parse::<D>(&out).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
            prop_assert!(again.entries == content.entries);
            prop_assert_eq!(again.envelope, content.envelope);
            Ok(true)
        }
        Err(fault) => {
            prop_assert!(fault.line <= 1 + bytes.iter().filter(|byte| **byte == b'\n').count());
            prop_assert!(fault.pointer.is_empty() || fault.pointer.starts_with('/'));
            prop_assert!(!fault.message.is_empty());
            Ok(false)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// STATE-5, STATE-6: whatever a file holds, it is judged and never a panic.
    #[test]
    fn any_file_is_judged(bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), pieces().prop_map(String::into_bytes)]) {
        judged::<Bans>(&bytes)?;
        judged::<Clients>(&bytes)?;
    }

    /// STATE-8: the schemas in `schema/proxy/` judge an entry as the service does, whatever stands
    /// in its members.
    #[test]
    fn schemas_and_service_agree(
        bans in document::<Bans>("bans", json!({"netblock": "203.0.113.0/24", "ban_expires": "permanent"}),
            &["netblock", "client", "ban_started", "ban_expires", "cause", "reason", "lifted", "observed", "notes", "x"]),
        clients in document::<Clients>("clients", json!({"client": "203.0.113.7", "first_seen": "2026-11-21T16:00:00Z", "last_seen": "2026-11-21T16:00:00Z"}),
            &["client", "first_seen", "last_seen", "lookup", "passed", "refused", "requests", "bytes", "x"]),
        lookups in document::<Lookups>("lookups", json!({"client": "203.0.113.7", "answered": "2026-11-21T16:00:00Z"}),
            &["client", "answered", "country", "asn", "as_name", "x"]),
        counters in document::<Alerts>("counters", json!({"scope": "total"}), &["scope", "of", "requests", "bytes", "x"]),
        cooldowns in document::<Alerts>("cooldowns", json!({"scope": "total", "started": "2026-11-21T16:00:00Z", "ends": "2026-11-21T16:00:00Z"}),
            &["scope", "of", "started", "ends", "hour", "held_back", "x"]),
    ) {
        let [of_bans, of_clients, of_lookups, of_alerts] = &*SCHEMAS;
        agree::<Alerts>(of_alerts, &counters)?;
        agree::<Alerts>(of_alerts, &cooldowns)?;
        agree::<Bans>(of_bans, &bans)?;
        agree::<Clients>(of_clients, &clients)?;
        agree::<Lookups>(of_lookups, &lookups)?;
    }

    /// STATE-5: the same for a good file with one byte changed, and for one that was cut off, which
    /// never is one.
    #[test]
    fn a_damaged_file_is_judged(at in 0..GOOD.len(), byte in any::<u8>()) {
        let mut bytes = GOOD.as_bytes().to_vec();
        prop_assert!(judged::<Bans>(&bytes)?);
        bytes[at] = byte;
        judged::<Bans>(&bytes)?;
        prop_assert!(!judged::<Bans>(&GOOD.as_bytes()[..at])?);
    }
}

fn fault<D: Document>(text: &str) -> String {
    match parse::<D>(text.as_bytes()) {
        Ok(_) => panic!("{text} was taken"),
        Err(fault) => fault.to_string(),
    }
}

/// STATE-5, STATE-6: what does not parse, has an unknown version or lacks a needed member is named
/// with line, column and JSON pointer.
#[test]
fn faults_name_line_column_and_pointer() {
    for (text, expected) in [
        ("", "line 1, column 0, at \"\": EOF while parsing a value"),
        (
            "{\"version\":1,\"bans\":[",
            "line 1, column 21, at \"/bans\": EOF while parsing a list",
        ),
        (
            "{\"version\":1,\n \"bans\":[]} x",
            "line 2, column 13, at \"\": trailing characters",
        ),
        (
            "{\"version\":2,\"bans\":[]}",
            "line 1, column 12, at \"/version\": unknown version 2: 1 is known",
        ),
        (
            "{\"bans\":[]}",
            "line 1, column 11, at \"\": \"version\" is a required property",
        ),
        (
            "{\"version\":1}",
            "line 1, column 13, at \"\": \"bans\" is a required property",
        ),
        (
            "{\"version\":1,\"version\":1,\"bans\":[]}",
            "line 1, column 24, at \"/version\": duplicate member \"version\"",
        ),
        (
            "{\"version\":1,\"bans\":[\n{\"netblock\":\"203.0.113.0/24\"}]}",
            "line 2, column 29, at \"/bans/0\": missing field `ban_expires`",
        ),
        (
            "{\"version\":1,\"bans\":[{\"netblock\":\"x\",\"ban_expires\":\"permanent\"}]}",
            "line 1, column 36, at \"/bans/0/netblock\": \"x\" is not a netblock: expected an address or a prefix such as 192.0.2.0/24 or 2001:db8::/32",
        ),
        (
            "{\"version\":1,\"bans\":[{\"netblock\":\"::1\",\"ban_expires\":\"soon\"}]}",
            "line 1, column 59, at \"/bans/0/ban_expires\": \"soon\" is not an end: expected RFC 3339 such as 2026-11-21T16:00:00Z, or \"permanent\"",
        ),
        (
            "[]",
            "line 1, column 0, at \"\": invalid type: sequence, expected an object with \"version\" and \"bans\"",
        ),
    ] {
        assert_eq!(fault::<Bans>(text), expected, "{text}");
    }
    let client = r#"{"client":"203.0.113.7","first_seen":"2026-11-21T16:00:00Z","last_seen":"2026-11-21T16:00:00Z"}"#;
    let twice = fault::<Clients>(&format!(r#"{{"version":1,"clients":[{client},{client}]}}"#));
    assert!(
        twice.contains("at \"/clients/1\": duplicate client 203.0.113.7"),
        "{twice}"
    );
}

/// STATE-5, STATE-6: a fault is a sentence, however long what it quotes is.
#[test]
fn a_fault_is_short() {
    let long = "ä".repeat(1 << 20);
    for text in [
        format!("\"{long}\""),
        format!("{{\"version\":\"{long}\"}}"),
        format!("{{\"version\":1,\"bans\":[{{\"netblock\":\"{long}\"}}]}}"),
        format!("{{\"{long}\":1,\"{long}\":2}}"),
        format!("{{\"{long}\":nil}}"),
    ] {
        let fault = fault::<Bans>(&text);
        assert!(fault.len() < 2000, "{}", fault.len());
        assert!(fault.contains('…'), "{fault}");
    }
}

/// STATE-6: a fault is one line, and no command to a terminal, whatever names it quotes.
#[test]
fn a_fault_is_one_line() {
    let text = r#"{"version":1,"\n":{"\u001b[2J":nil}}"#;
    assert_eq!(
        fault::<Bans>(text),
        r#"line 1, column 33, at "/\n/\u{1b}[2J": expected ident"#
    );
    let twice = fault::<Bans>(r#"{"\n":1,"\n":2}"#);
    assert!(!twice.contains('\n'), "{twice}");
}

/// STATE-5: hostile texts are faults, never panics; deep nesting is cut.
#[test]
fn hostile_texts_are_faults() {
    let deep = format!("{{\"version\":1,\"x\":{}", "[".repeat(100_000));
    for text in [
        deep.as_bytes(),
        b"\xff\xfe",
        b"{\"version\":1e999,\"bans\":[]}",
        b"{\"version\":1,\"bans\":[{\"netblock\":\"\xff\"}]}",
        b"\0",
        b"{\"version\":1,\"bans\":[null]}",
    ] {
        assert!(parse::<Bans>(text).is_err());
    }
}

/// STATE: what is read and written again is the same text: unknown members, their places,
/// pretty-printed.
#[test]
fn unknown_members_keep_their_place() {
    let text = r#"{
  "$schema": "schema/bans.schema.json",
  "version": 1,
  "bans": [
    {
      "netblock": "203.0.113.0/24",
      "client": null,
      "ban_started": "2026-11-21T16:00:00Z",
      "ban_expires": "permanent",
      "cause": "edit",
      "reason": "",
      "lifted": null,
      "observed": false,
      "ticket": {
        "b": 1,
        "a": [
          2
        ]
      }
    }
  ],
  "owner": "ops"
}
"#;
    let content = parse::<Bans>(text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
    let mut out = Vec::new();
    write::<Bans>(&mut out, &content.entries, &content.envelope).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), text);
}
