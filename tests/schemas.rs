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
use crate::support::{wait_for, wait_until};

const FILES: [&str; 6] = [
    "bans",
    "clients",
    "lookups",
    "alerts",
    "ban-order",
    "request-log",
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
        ("WAF_MAX_BODY_SIZE", "2000"),
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
        [post("192.0.2.1", 1100), post("192.0.3.1", 3000)],
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
    gone.send(b"POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nX-Forwarded-For: 192.0.8.1\r\n\r\nabc");
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

/// STATE-8, STATE-6: a hand-written file is judged by the schema as the service judges it at the
/// start; `"$schema"` and unknown members are allowed and kept.
#[test]
fn the_schemas_judge_files_as_the_start_does() {
    let time = "2026-11-21T16:00:00Z";
    let client = json!({"client": "203.0.113.7", "first_seen": time, "last_seen": time});
    let bans = |change: Value| json!({"version": 1, "bans": [with(json!({"netblock": "203.0.113.0/24", "ban_expires": "permanent"}), change)]});
    let clients = |change: Value| json!({"version": 1, "clients": [with(client.clone(), change)]});
    let lookups = |change: Value| json!({"version": 1, "lookups": [with(json!({"client": "203.0.113.7"}), change)]});
    let window = json!({"start": time, "current": 3, "previous": 9});
    let good = [
        ("bans", json!({"version": 1, "bans": []})),
        (
            "bans",
            json!({"$schema": "bans.schema.json", "version": 1, "bans": [], "owner": {"team": "ops"}}),
        ),
        ("bans", bans(json!({}))),
        ("bans", bans(json!({"ban_expires": "9999-12-31T23:59:59Z"}))),
        (
            "bans",
            bans(json!({"notes": {"limit_percent": 100.0, "limit_value": 7.0}})),
        ),
        ("bans", bans(json!({"netblock": "203.0.113.9"}))),
        ("bans", bans(json!({"netblock": "203.0.113.9/8"}))),
        ("bans", bans(json!({"netblock": "2001:db8::1"}))),
        ("bans", bans(json!({"netblock": "::/0"}))),
        ("bans", bans(json!({"netblock": "::ffff:203.0.113.9"}))),
        (
            "bans",
            bans(json!({"ban_expires": "2026-11-21T17:00:00.123+01:00"})),
        ),
        (
            "bans",
            bans(json!({"client": null, "ban_started": null, "lifted": null, "notes": null})),
        ),
        (
            "bans",
            bans(
                json!({"client": "2001:db8:1:2::/64", "ban_started": time, "lifted": time, "cause": "admin", "reason": "r", "observed": true}),
            ),
        ),
        (
            "bans",
            bans(
                json!({"notes": {"request": {"method": "GET"}, "netblock_requests": 5, "limit": "day_bytes", "limit_value": 7, "limit_percent": 50, "lookup": {"country": "DE", "asn": "AS64496", "as_name": "Example"}}}),
            ),
        ),
        (
            "bans",
            bans(json!({"ticket": "OPS-1", "notes": {"by": "hand"}})),
        ),
        ("lookups", json!({"version": 1, "lookups": []})),
        ("lookups", lookups(json!({}))),
        (
            "lookups",
            json!({"version": 1, "lookups": [{"client": "203.0.113.7"}]}),
        ),
        (
            "lookups",
            lookups(
                json!({"client": "2001:db8:1:2::/64", "answered": time, "country": "DE", "asn": "AS64496", "as_name": "Example", "note": 1}),
            ),
        ),
        (
            "lookups",
            lookups(json!({"country": null, "asn": null, "as_name": null})),
        ),
        ("clients", json!({"version": 1, "clients": []})),
        ("clients", clients(json!({}))),
        (
            "clients",
            clients(json!({"client": "2001:db8:1:2::/64", "note": [1]})),
        ),
        (
            "clients",
            clients(
                json!({"lookup": null, "passed": 0, "refused": 18_446_744_073_709_551_615_u64, "requests": {"minute": window}, "bytes": {}}),
            ),
        ),
    ];
    let alerts = |list: &str, entry: Value| {
        let empty = json!({"version": 1, "counters": [], "cooldowns": [], "alerts": []});
        with(empty, json!({list: [entry]}))
    };
    let cooldown = |change: Value| {
        let whole = json!({"scope": "asn", "of": "AS64496", "started": time, "ends": time});
        alerts("cooldowns", with(whole, change))
    };
    let good_alerts = [
        alerts("counters", json!({"scope": "total"})),
        alerts(
            "counters",
            json!({"scope": "client", "of": "203.0.113.7", "requests": {"minute": window}, "note": 1}),
        ),
        alerts(
            "counters",
            json!({"scope": "watch", "of": "203.0.113.7/32", "bytes": {"hour": window}}),
        ),
        cooldown(json!({})),
        cooldown(json!({"hour": time, "held_back": {"bytes_per_hour": 7}})),
        alerts("alerts", json!({"time": time, "kind": "ban", "by": "hand"})),
    ];
    let wrong_alerts = [
        json!({"version": 1, "counters": [], "cooldowns": []}),
        alerts("counters", json!({"scope": "country", "of": "DE"})),
        alerts("counters", json!({"scope": "client"})),
        alerts(
            "counters",
            json!({"scope": "client", "of": "203.0.113.0/24"}),
        ),
        alerts("counters", json!({"scope": "net", "of": "203.0.113.0/33"})),
        alerts("counters", json!({"scope": "asn", "of": "64496"})),
        alerts(
            "counters",
            json!({"scope": "total", "requests": {"minute": {"start": time}}}),
        ),
        cooldown(json!({"ends": "soon"})),
        cooldown(json!({"held_back": {"bytes_per_day": 1}})),
        cooldown(json!({"held_back": {"bytes_per_hour": -1}})),
        alerts("counters", json!({"scope": "total", "bytes": []})),
        alerts("alerts", json!({"kind": "ban"})),
        alerts("alerts", json!({"time": time, "kind": "storm"})),
    ];
    let good: Vec<_> = good
        .into_iter()
        .chain(good_alerts.map(|file| ("alerts", file)))
        .collect();
    let wrong = [
        ("bans", json!([])),
        ("bans", json!({"bans": []})),
        ("bans", json!({"version": 2, "bans": []})),
        ("bans", json!({"version": "1", "bans": []})),
        ("bans", json!({"version": 1})),
        ("bans", json!({"version": 1, "bans": {}})),
        ("bans", json!({"version": 1, "bans": [null]})),
        (
            "bans",
            json!({"version": 1, "bans": [{"netblock": "10.0.0.0/8"}]}),
        ),
        (
            "bans",
            json!({"version": 1, "bans": [{"ban_expires": "permanent"}]}),
        ),
        ("bans", bans(json!({"netblock": 7}))),
        ("bans", bans(json!({"netblock": "203.0.113.0/33"}))),
        ("bans", bans(json!({"netblock": "203.0.113.256"}))),
        ("bans", bans(json!({"netblock": "203.0.113.0/24/8"}))),
        ("bans", bans(json!({"netblock": "2001:db8::/129"}))),
        ("bans", bans(json!({"netblock": "fe80::1%eth0"}))),
        ("bans", bans(json!({"netblock": "example.org"}))),
        ("bans", bans(json!({"netblock": ""}))),
        ("bans", bans(json!({"ban_expires": "soon"}))),
        ("bans", bans(json!({"ban_expires": "2026-11-21"}))),
        ("bans", bans(json!({"ban_expires": "2026-13-21T16:00:00Z"}))),
        ("bans", bans(json!({"ban_expires": "2026-02-30T16:00:00Z"}))),
        ("bans", bans(json!({"ban_expires": "2026-11-21T16:00:00"}))),
        ("bans", bans(json!({"ban_expires": null}))),
        ("bans", bans(json!({"client": "203.0.113.0/24"}))),
        ("bans", bans(json!({"cause": "anger"}))),
        ("bans", bans(json!({"reason": null}))),
        ("bans", bans(json!({"observed": "yes"}))),
        ("bans", bans(json!({"lifted": true}))),
        ("bans", bans(json!({"notes": []}))),
        ("bans", bans(json!({"notes": {"limit": "week"}}))),
        ("bans", bans(json!({"notes": {"limit_percent": 101}}))),
        ("bans", bans(json!({"notes": {"limit_percent": 255}}))),
        ("bans", bans(json!({"notes": {"request": []}}))),
        ("bans", bans(json!({"notes": {"lookup": []}}))),
        ("bans", bans(json!({"ban_expires": "2026-11-21 16:00:00Z"}))),
        ("bans", bans(json!({"notes": {"netblock_requests": -1}}))),
        ("bans", bans(json!({"notes": {"limit_value": 1.5}}))),
        ("bans", bans(json!({"notes": {"request": {"path": 1}}}))),
        (
            "lookups",
            json!({"version": 1, "lookups": [{"answered": time}]}),
        ),
        ("lookups", lookups(json!({"country": 49}))),
        ("lookups", lookups(json!({"asn": "Google"}))),
        ("lookups", lookups(json!({"client": "203.0.113.0/24"}))),
        ("lookups", lookups(json!({"answered": "soon"}))),
        ("lookups", lookups(json!({"answered": null}))),
        ("lookups", lookups(json!({"country": "Germany"}))),
        ("lookups", lookups(json!({"country": "de"}))),
        ("lookups", lookups(json!({"asn": "64496"}))),
        ("lookups", lookups(json!({"asn": 64496}))),
        ("lookups", lookups(json!({"as_name": {}}))),
        (
            "clients",
            json!({"version": 1, "clients": [{"client": "203.0.113.7"}]}),
        ),
        (
            "clients",
            json!({"version": 1, "clients": [{"first_seen": time, "last_seen": time}]}),
        ),
        ("clients", clients(json!({"client": "203.0.113.0/24"}))),
        ("clients", clients(json!({"client": "203.0.113.7/64"}))),
        ("clients", clients(json!({"last_seen": 7}))),
        ("clients", clients(json!({"passed": -1}))),
        ("clients", clients(json!({"passed": "1"}))),
        ("clients", clients(json!({"refused": null}))),
        (
            "clients",
            clients(json!({"requests": {"minute": {"start": time}}})),
        ),
        ("clients", clients(json!({"bytes": {"day": null}}))),
        ("clients", clients(json!({"lookup": "DE"}))),
        ("clients", clients(json!({"lookup": []}))),
        ("clients", clients(json!({"requests": []}))),
        ("clients", clients(json!({"requests": {"minute": []}}))),
        ("bans", json!({"$schema": 7, "version": 1, "bans": []})),
    ];
    let wrong: Vec<_> = wrong
        .into_iter()
        .chain(wrong_alerts.map(|file| ("alerts", file)))
        .collect();
    let lists = [
        "bans",
        "clients",
        "lookups",
        "counters",
        "cooldowns",
        "alerts",
    ];
    let schemas: BTreeMap<_, _> = ["bans", "clients", "lookups", "alerts"]
        .map(|name| (name, validator(&schema(name))))
        .into();
    for (documents, expected) in [(&good[..], true), (&wrong[..], false)] {
        for (name, document) in documents {
            assert_eq!(
                schemas[name].is_valid(document),
                expected,
                "the schema: {name} {document}"
            );
            let state = state_dir();
            let path = state.path().join(format!("{name}.json"));
            fs::write(&path, pretty(document)).expect("writes");
            let started = Weir::try_start(
                &[],
                ([127, 0, 0, 1], 9).into(),
                &state,
                &[("WAF_MAX_BANS", "10")],
            );
            assert_eq!(
                started.is_ok(),
                expected,
                "the start: {name} {document}: {:?}",
                started.err()
            );
            let Ok(mut weir) = started else { continue };
            weir.stop();
            let kept = weir.state_file(&format!("{name}.json")).expect("the file");
            for member in document
                .as_object()
                .expect("an object")
                .keys()
                .filter(|name| !lists.contains(&name.as_str()))
            {
                assert_eq!(kept[member], document[member], "kept: {member}");
            }
            assert!(schemas[name].is_valid(&kept), "{kept}");
        }
    }
}

/// STATE-8, ADMIN-2: an order is judged by the schema as the endpoint judges it.
#[test]
fn the_schema_judges_orders_as_the_endpoint_does() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let schema = validator(&schema("ban-order"));
    let order = |change: Value| with(json!({"duration": "2h", "reason": "r"}), change);
    for (order, expected) in [
        (order(json!({"client": "203.0.113.7"})), true),
        (order(json!({"client": "2001:db8::1"})), true),
        (order(json!({"client": "2001:db8:1:2::/64"})), true),
        (
            order(json!({"netblock": "203.0.113.0/24", "duration": "permanent"})),
            true,
        ),
        (
            order(json!({"netblock": "203.0.113.7", "duration": "1d2h30m5s1ms"})),
            true,
        ),
        (order(json!({"netblock": "0.0.0.0/0", "force": true})), true),
        (
            order(json!({"netblock": "2001:db8::/32", "force": false, "reason": "x".repeat(500)})),
            true,
        ),
        (json!([]), false),
        (json!("ban"), false),
        (json!({}), false),
        (order(json!({})), false),
        (
            order(json!({"client": "203.0.113.7", "netblock": "203.0.113.0/24"})),
            false,
        ),
        (json!({"client": "203.0.113.7", "reason": "r"}), false),
        (json!({"client": "203.0.113.7", "duration": "2h"}), false),
        (order(json!({"client": "203.0.113.0/24"})), false),
        (order(json!({"client": 7})), false),
        (order(json!({"client": null})), false),
        (order(json!({"netblock": "203.0.113.0/33"})), false),
        (order(json!({"netblock": "fe80::1%eth0"})), false),
        (order(json!({"netblock": "::ffff:203.0.113.7"})), false),
        (order(json!({"netblock": "::FFFF:203.0.113.0/120"})), false),
        (
            order(json!({"client": "203.0.113.7", "duration": "0s"})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "duration": "0h0m"})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "duration": "2"})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "duration": "2w"})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "duration": "-2h"})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "duration": 7200})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "duration": "off"})),
            false,
        ),
        (order(json!({"client": "203.0.113.7", "reason": ""})), false),
        (
            order(json!({"client": "203.0.113.7", "reason": "x".repeat(501)})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "reason": null})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "force": "yes"})),
            false,
        ),
        (
            order(json!({"client": "203.0.113.7", "ban_expires": "permanent"})),
            false,
        ),
    ] {
        assert_eq!(schema.is_valid(&order), expected, "the schema: {order}");
        let answer = weir.admin("POST", "/_waf/bans", Some(&order.to_string()));
        let status = if expected { 201 } else { 422 };
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
fn schema(name: &str) -> Value {
    let text =
        fs::read_to_string(directory().join(format!("{name}.schema.json"))).expect("the schema");
    serde_json::from_str(&text).expect("JSON")
}

#[track_caller]
fn validator(schema: &Value) -> Validator {
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
fn fits(schema: &Validator, what: &str, document: &Value) {
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

/// The members of `change` put into `document`.
#[track_caller]
fn with(mut document: Value, change: Value) -> Value {
    for (name, value) in change.as_object().expect("an object") {
        document[name] = value.clone();
    }
    document
}
