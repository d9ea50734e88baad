//! The schemas of the proxy's own documents (STATE-8): what the service writes fits them, and they
//! judge a hand-written document as the service does.
//!
//! They stand in `schema/proxy/`, each in one file that needs no other, so that an editor can use
//! it as it lies there.

use std::collections::BTreeMap;
use std::fs;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::application::{After, Application};
use crate::support::geo::Geo;
use crate::support::raw_client::{Connection, get, request, try_exchange};
use crate::support::weir::{Weir, pretty, state_dir};
use crate::support::{GATHERED, wait_for, wait_until};

const FILES: [&str; 12] = [
    "bans",
    "clients",
    "lookups",
    "alerts",
    "ban-order",
    "list-entry",
    "lists",
    "replay",
    "request-log",
    "requests-left-out",
    "rules",
    "shared",
];

/// STATE-8: each file is a schema of draft 2020-12, with a title and a description at every member,
/// that needs no other file; what stands in several of them is the same.
#[test]
fn every_file_is_a_schema() {
    let mut shared: BTreeMap<String, Value> = BTreeMap::new();
    for name in FILES {
        let schema = schema(name);
        assert_eq!(
            schema["$schema"],
            "https://json-schema.org/draft/2020-12/schema"
        );
        assert_eq!(
            schema["$id"],
            format!("https://weir.example/schema/proxy/{name}.schema.json")
        );
        assert!(jsonschema::meta::is_valid(&schema), "{name}");
        described(name, &schema);
        for (definition, text) in schema["$defs"].as_object().expect("definitions") {
            assert!(text["title"].is_string(), "{name}, {definition}");
            let held = shared
                .entry(definition.clone())
                .or_insert_with(|| text.clone());
            assert_eq!(held, text, "{name}, {definition}");
        }
        let text = schema.to_string();
        for reference in text.split("\"$ref\":\"").skip(1) {
            assert!(reference.starts_with("#/$defs/"), "{name}: {reference:.40}");
        }
    }
    let lying: Vec<_> = fs::read_dir(directory())
        .expect("schema/proxy")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().ends_with(".schema.json"))
        .collect();
    assert_eq!(lying.len(), FILES.len(), "{lying:?}");
}

/// STATE-8: everything that a varied run writes fits, and has no member that the schemas do not
/// name: state files, the answers about bans and clients, every line of the request log.
#[test]
fn what_the_service_writes_fits() {
    let application = Application::start(|exchange| {
        if exchange.request.target == "/cut" {
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
            return After::Reset;
        }
        exchange.read_body();
        exchange.answer(
            302,
            &[
                ("Content-Type", "text/html"),
                ("Cache-Control", "private"),
                ("Location", "/b"),
            ],
            b"body",
        );
        After::KeepAlive
    });
    let state = state_dir();
    let database = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/lite.mmdb");
    let settings = [
        ("WAF_RATE_LIMIT_PER_HOUR", "3"),
        ("WAF_BYTES_LIMIT_PER_DAY", "1000"),
        ("WAF_MAX_BODY_SIZE", "40000"),
        ("WAF_DENY_NETS", "198.51.100.0/24"),
        ("WAF_INSTANCE_NAME", "edge-1"),
        ("WAF_LOG_REQUEST_HEADERS", "Accept, X-Odd"),
        ("WAF_STATE_WRITE_DELAY", "10ms"),
        ("WAF_LOOKUP_SOURCE", "file"),
        ("WAF_LOOKUP_DB_PATH", database),
        ("WAF_COUNTRY_LIMIT_PERCENT", "DE=50"),
        ("WAF_DENY_COUNTRIES", "GB"),
        ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "2"),
        ("WAF_ANOMALY_TOTAL_BYTES_PER_HOUR", "1"),
        ("WAF_WATCH_NETS", "odd=192.0.0.0/16"),
        ("WAF_WATCH_BYTES_PER_MINUTE", "1"),
    ];
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    let from = |client: &str| [("X-Forwarded-For", client.to_owned())];
    for client in ["203.0.113.7", "2001:db8:1:2::3", "::ffff:203.0.114.9"] {
        for _ in 0..5 {
            weir.get("/a?b=c", client);
        }
    }
    let post = |client: &str, size: usize| {
        let [(name, client)] = from(client);
        weir.send(&request(
            "POST",
            "/up",
            &[
                (name, &client),
                ("Accept", "*/*"),
                ("X-Odd", "\t\"\\"),
                ("Content-Type", "text/plain"),
                ("Cookie", "a=b"),
            ],
            Some(&vec![b'x'; size]),
        ))
        .status
    };
    // A byte limit broken, and bodies that are too large.
    assert_eq!(
        [post("192.0.2.1", 1100), post("192.0.3.1", 40_001)],
        [302, 413]
    );
    weir.get("/denied", "198.51.100.1");
    weir.get("/denied-country", "81.2.69.7");
    weir.get("/lowered", "2a02:d0c0::1");
    weir.get("/_waf/nothing", "192.0.4.1");
    weir.get("/_waf/bans", "192.0.4.1");
    let _ = try_exchange(
        weir.address(),
        b"GET /old HTTP/1.0\r\nX-Forwarded-For: 192.0.5.1\r\n\r\n",
    );
    weir.send(b"GET http://user@example.org/absolute HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.6.1, 127.0.0.1\r\nX-Forwarded-Proto: https\r\nReferer: \xff\r\nUser-Agent: \xf0\x9f\xa6\x80\r\n\r\n");
    let _ = try_exchange(
        weir.address(),
        &get("/cut", &[("X-Forwarded-For", "192.0.7.1")]),
    );
    let mut gone = Connection::open(weir.address());
    gone.send(b"POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: 39999\r\nX-Forwarded-For: 192.0.8.1\r\n\r\n");
    gone.send(&vec![b'x'; GATHERED]);
    wait_until("it at the application", || {
        application
            .requests()
            .iter()
            .any(|seen| seen.target == "/gone")
    });
    gone.reset();
    weir.line_of("/gone");

    let ban = closed("bans", "#/$defs/ban");
    fits(
        &ban,
        "an order's answer",
        &weir.ban("client", "10.1.2.3", "2h"),
    );
    fits(
        &ban,
        "an order's answer",
        &weir.ban("netblock", "2001:db8:ff::/48", "permanent"),
    );
    let lifted = weir.admin("DELETE", "/_waf/bans/10.1.2.3", None).json();
    fits(&ban, "a lifted ban", &lifted["lifted"][0]);
    wait_until("four bans of limits", || weir.bans().len() >= 6);
    let bans = weir.bans();
    for ban_held in &bans {
        fits(&ban, "a ban", ban_held);
    }
    assert!(
        bans.iter().any(|ban| ban["cause"] == "byte_limit")
            && bans.iter().any(|ban| ban["notes"]["limit"] == "hour"),
        "{bans:#?}"
    );
    let row = closed("clients", "#/$defs/clientRow");
    for client in ["203.0.113.7", "2001:db8:1:2::3"] {
        fits(
            &row,
            "a client",
            &weir
                .admin("GET", &format!("/_waf/clients/{client}"), None)
                .json()["client"],
        );
    }
    weir.stop();
    for name in ["bans", "clients", "lookups", "alerts"] {
        fits(
            &closed(name, "#"),
            name,
            &weir.state_file(&format!("{name}.json")).expect("the file"),
        );
    }
    let alerts = weir.state_file("alerts.json").expect("the file");
    for (list, least) in [("counters", 5), ("cooldowns", 4), ("alerts", 10)] {
        let held = alerts[list].as_array().expect("a list").len();
        assert!(held >= least, "{list}: {alerts:#}");
    }
    let line = closed("request-log", "#");
    let lines = weir.request_log();
    for held in &lines {
        fits(&line, "a log line", held);
    }
    let actions: std::collections::BTreeSet<_> = lines
        .iter()
        .filter_map(|line| line["action"].as_str())
        .collect();
    for action in [
        "passed",
        "upstream_error",
        "client_aborted",
        "answered",
        "unauthorized",
        "not_found",
        "denied_net",
        "denied_country",
        "rate_limited",
        "body_too_large",
    ] {
        assert!(actions.contains(action), "{action} is missing: {actions:?}");
    }
}

/// STATE-8: the same for what a lookup brings: members of lines, bans and clients, percentages,
/// lookups.json.
#[test]
fn what_follows_from_a_lookup_fits() {
    let application = Application::ok();
    let geo = Geo::saying(r#"{"country_code":"DE","asn":64496,"organization_name":"Example"}"#);
    let settings = geo.settings(&[
        ("WAF_RATE_LIMIT_PER_HOUR", "4"),
        ("WAF_COUNTRY_LIMIT_PERCENT", "DE=50"),
        ("WAF_ASN_BYTES_PERCENT", "AS64496=10"),
        ("WAF_DENY_COUNTRIES", "FR"),
    ]);
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let mut weir = Weir::start(&application, &settings);
    for _ in 0..4 {
        weir.get("/a", "81.2.69.7");
    }
    let bans = wait_for("the ban", || {
        Some(weir.bans()).filter(|bans| !bans.is_empty())
    });
    assert_eq!(bans[0]["notes"]["limit_percent"], 50, "{bans:#?}");
    fits(&closed("bans", "#/$defs/ban"), "a ban", &bans[0]);
    weir.stop();
    for name in ["bans", "clients", "lookups"] {
        let file = weir.state_file(&format!("{name}.json")).expect("the file");
        assert_ne!(file[name], json!([]), "{name}");
        fits(&closed(name, "#"), name, &file);
    }
    let lines = weir.request_log();
    assert!(
        lines
            .iter()
            .any(|line| line["limit_percent"]["percent"] == 50 && line["country"] == "DE"),
        "{lines:#?}"
    );
    for line in &lines {
        fits(&closed("request-log", "#"), "a log line", line);
    }
}

/// STATE-8, MATCH-3, MATCH-5: the lines of what a denial and a list of AS numbers refuse.
#[test]
fn lines_of_denials_fit() {
    let application = Application::ok();
    let geo = Geo::saying(r#"{"country_code":"DE","asn":64496,"organization_name":"Example"}"#);
    let settings = geo.settings(&[("WAF_DENY_ASNS", "AS64496")]);
    let settings: Vec<(&str, &str)> = (settings.iter())
        .map(|(name, value)| (*name, &**value))
        .collect();
    let state = state_dir();
    let rules = r#"{"version":1,"denials":[{"name":"off","match":{"paths":["/off"]}}]}"#;
    fs::write(state.path().join("rules.json"), rules).expect("writes");
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    weir.get("/a", "81.2.69.7");
    // A private address has no AS number.
    weir.get("/off", "192.168.0.7");
    let action_of = |path: &str| weir.line_of(path)["action"].clone();
    assert_eq!(
        [action_of("/a"), action_of("/off")],
        ["denied_asn", "denied_rule"]
    );
    weir.stop();
    for line in &weir.request_log() {
        fits(&closed("request-log", "#"), "a log line", line);
    }
}

/// A document of `tests/fixtures/documents.jsonl`, one a line.
struct Judged {
    /// The schema's name.
    schema: String,
    /// Whether it fits.
    valid: bool,
    document: Value,
}

#[track_caller]
fn judged() -> Vec<Judged> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let text = fs::read_to_string(path.join("documents.jsonl")).expect("the documents");
    let line = |line| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        Judged {
            schema: line["schema"].as_str().expect("a name").to_owned(),
            valid: line["valid"].as_bool().expect("valid"),
            document: line["document"].take(),
        }
    };
    text.lines().map(line).collect()
}

/// STATE-8, STATE-6: a hand-written file is judged by the schema as the service judges it at the
/// start; `"$schema"` and unknown members are allowed and kept.
#[test]
fn the_schemas_judge_files_as_the_start_does() {
    let names = ["bans", "clients", "lookups", "alerts"];
    let schemas: BTreeMap<_, _> = names.map(|name| (name, validator(&schema(name)))).into();
    let mut seen = BTreeMap::new();
    for Judged {
        schema: name,
        valid,
        document,
    } in judged()
    {
        let Some(schema) = schemas.get(name.as_str()) else {
            continue;
        };
        *seen.entry((name.clone(), valid)).or_insert(0) += 1;
        assert_eq!(
            schema.is_valid(&document),
            valid,
            "the schema: {name} {document}"
        );
        judged_by_a_start(&name, schema, &document, valid);
    }
    assert_eq!(seen.len(), 2 * names.len(), "each has both kinds: {seen:?}");
}

/// Starts with the document as a state file; what the service then leaves of it.
#[track_caller]
fn judged_by_a_start(name: &str, schema: &Validator, document: &Value, valid: bool) {
    const LISTS: [&str; 6] = [
        "bans",
        "clients",
        "lookups",
        "counters",
        "cooldowns",
        "alerts",
    ];
    let state = state_dir();
    let file = format!("{name}.json");
    fs::write(state.path().join(&file), pretty(document)).expect("writes");
    let upstream = ([127, 0, 0, 1], 9).into();
    let started = Weir::try_start(&[], upstream, &state, &[("WAF_MAX_BANS", "10")]);
    let error = started.as_ref().err();
    assert_eq!(
        started.is_ok(),
        valid,
        "the start: {name} {document}: {error:?}"
    );
    let Ok(mut weir) = started else { return };
    weir.stop();
    let kept = weir.state_file(&file).expect("the file");
    for (member, value) in document.as_object().expect("an object") {
        if !LISTS.contains(&member.as_str()) {
            assert_eq!(kept[member], *value, "kept: {member}");
        }
    }
    assert!(schema.is_valid(&kept), "{kept}");
}

/// STATE-8, ADMIN-2: an order is judged by the schema as the endpoint judges it.
#[test]
fn the_schema_judges_orders_as_the_endpoint_does() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let schema = validator(&schema("ban-order"));
    let orders: Vec<_> = judged()
        .into_iter()
        .filter(|judged| judged.schema == "ban-order")
        .collect();
    assert!(orders.iter().any(|order| order.valid) && orders.iter().any(|order| !order.valid));
    for Judged {
        valid,
        document: order,
        ..
    } in orders
    {
        assert_eq!(schema.is_valid(&order), valid, "the schema: {order}");
        let answer = weir.admin("POST", "/_waf/bans", Some(&order.to_string()));
        let status = if valid { 201 } else { 422 };
        assert_eq!(
            answer.status,
            status,
            "the endpoint: {order}: {}",
            answer.text()
        );
    }
}

fn directory() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/proxy")
}

#[track_caller]
pub(crate) fn schema(name: &str) -> Value {
    let text =
        fs::read_to_string(directory().join(format!("{name}.schema.json"))).expect("the schema");
    serde_json::from_str(&text).expect("JSON")
}

#[track_caller]
pub(crate) fn validator(schema: &Value) -> Validator {
    jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .expect("a schema")
}

/// The part of a schema that `reference` names, with members that it does not name refused.
fn closed(name: &str, reference: &str) -> Validator {
    fn close(schema: &mut Value) {
        if let Some(members) = schema.as_object_mut() {
            if members.contains_key("properties") {
                members.insert("additionalProperties".to_owned(), json!(false));
            }
            // Conditions name members that are described elsewhere, and refuse none.
            let parts = members.iter_mut().filter(|(name, _)| *name != "allOf");
            parts.for_each(|(_, part)| close(part));
        } else if let Some(list) = schema.as_array_mut() {
            list.iter_mut().for_each(close);
        }
    }
    let mut whole = schema(name);
    close(&mut whole);
    if reference != "#" {
        whole = json!({"$schema": whole["$schema"], "$ref": reference, "$defs": whole["$defs"]});
    }
    validator(&whole)
}

#[track_caller]
pub(crate) fn fits(schema: &Validator, what: &str, document: &Value) {
    let faults: Vec<_> = schema
        .iter_errors(document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{what}: {faults:#?}\n{document:#}");
}

/// Every member that a schema names says what it is.
#[track_caller]
fn described(place: &str, schema: &Value) {
    match schema {
        Value::Object(members) => {
            if let Some(properties) = members.get("properties").and_then(Value::as_object) {
                for (name, property) in properties {
                    let text = property["description"]
                        .as_str()
                        .unwrap_or_else(|| panic!("{place}/{name} has no description"));
                    assert!(text.ends_with('.'), "{place}/{name}: {text}");
                }
            }
            for (name, member) in members.iter().filter(|(name, _)| *name != "allOf") {
                described(&format!("{place}/{name}"), member);
            }
        }
        Value::Array(list) => list.iter().for_each(|member| described(place, member)),
        _ => {}
    }
}
