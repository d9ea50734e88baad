//! The control socket and the admin listener (CONTROL-1, CONTROL-2): who may speak, what is
//! answered, and that the answers are those of `schema/proxy/openapi.json`.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use jsonschema::Validator;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_shared::api;

use crate::feeds::publisher::Publisher;
use crate::support::application::Application;
use crate::support::engine::Engine;
use crate::support::process::{OWN_ADDRESS, wait_for_keep_alive};
use crate::support::raw_client::{Connection, Response, exchange, get, request};
use crate::support::weir::{ADMIN_TOKEN, METRICS_TOKEN, ONE_PER_HOUR, Weir, state_dir};
use crate::support::{wait_for, wait_for_within, wait_until};

const SCHEMAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/proxy");

pub(crate) fn file(name: &str) -> Value {
    let text = fs::read_to_string(format!("{SCHEMAS}/{name}")).expect("the file");
    serde_json::from_str(&text).expect("JSON")
}

/// A schema of the document, with those of the other files beside it and members that are not named
/// refused.
pub(crate) fn validator(document: &Value, schema: &Value) -> Validator {
    fn close(schema: &mut Value) {
        if let Value::Object(members) = schema {
            let closes = members.contains_key("properties") && !members.contains_key("allOf");
            if closes && !members.contains_key("additionalProperties") {
                members.insert("additionalProperties".to_owned(), json!(false));
            }
            members.values_mut().for_each(close);
        }
    }
    let mut components = document["components"].clone();
    close(&mut components["schemas"]);
    let others = [
        "bans",
        "clients",
        "alerts",
        "request-log",
        "requests-left-out",
        "ban-order",
    ];
    let others: serde_json::Map<_, _> = others
        .iter()
        .map(|name| ((*name).to_owned(), file(&format!("{name}.schema.json"))))
        .collect();
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://weir.example/schema/proxy/openapi.json",
        "allOf": [schema],
        "components": components,
        "$defs": others,
    });
    jsonschema::options()
        .should_validate_formats(true)
        .build(&whole)
        .expect("a schema")
}

/// The answers that were compared with the document.
struct Compared {
    document: Value,
    seen: BTreeSet<(String, String, String)>,
}

impl Compared {
    fn new() -> Self {
        Self {
            document: file("openapi.json"),
            seen: BTreeSet::new(),
        }
    }

    /// The answer is one that the document describes for this path and method.
    #[track_caller]
    fn fits(&mut self, method: &str, path: &str, answer: &Response) -> Value {
        let status = answer.status.to_string();
        let mut method = method.to_ascii_lowercase();
        if status == "405" && self.document["paths"][path][&method].is_null() {
            // Told where the right method is described.
            let methods = self.document["paths"][path].as_object();
            let first = methods.and_then(|methods| methods.keys().next().cloned());
            method = first.expect("a method");
        }
        let described = &self.document["paths"][path][&method]["responses"][&status];
        assert!(
            described.is_object(),
            "{method} {path} {status}: {answer:?}"
        );
        let kind = answer.header("content-type").expect("a content type");
        let kind = kind.split(';').next().expect("a type");
        let schema = &described["content"][kind]["schema"];
        assert!(schema.is_object(), "{method} {path} {status} {kind}");
        let value = match kind {
            "text/plain" => json!(answer.text()),
            _ => answer.json(),
        };
        let validator = validator(&self.document, schema);
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{} at {}", error, error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{method} {path}: {errors:#?}\n{value:#}");
        self.seen.insert((path.to_owned(), method, status));
        value
    }
}

/// The type of the commands has every member of the answer, and no other.
#[track_caller]
pub(crate) fn same<T: Serialize + DeserializeOwned>(answer: &Value) {
    let read: T = serde_json::from_value(answer.clone()).expect("it fits");
    assert_eq!(serde_json::to_value(read).expect("JSON"), *answer);
}

/// CONTROL-2: every operation of the OpenAPI document is served, and every answer is as described.
#[test]
fn the_document_describes_what_is_served() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR]);
    let mut compared = Compared::new();
    assert!(jsonschema::meta::is_valid(
        &compared.document["components"]["schemas"]["Status"]
    ));
    weir.break_limit("203.0.113.7");
    weir.get("/a", "198.51.100.7").expect(200);
    let mut ask = |method: &str, path: &str, target: &str, body: Option<&str>| {
        let answer = weir.control(method, target, body);
        compared.fits(method, path, &answer)
    };
    let status = ask("GET", "/v1/status", "/v1/status", None);
    same::<api::status::Status>(&status);
    assert_eq!(status["mode"], "enforce");
    assert_eq!(status["bans"]["active"], 1);
    assert_eq!(status["total"]["actions"]["rate_limited"], 1);
    assert_eq!(status["address"], weir.places()[0]);
    let health = ask("GET", "/v1/health", "/v1/health", None);
    assert_eq!(health["status"], "pass");
    let metrics = ask("GET", "/v1/metrics", "/v1/metrics", None);
    assert!(
        metrics
            .as_str()
            .expect("text")
            .contains("waf_bans_active 1")
    );
    let settings = ask("GET", "/v1/settings", "/v1/settings", None);
    assert!(!settings.to_string().contains(ADMIN_TOKEN), "{settings}");
    same::<api::settings::SettingList>(&settings);
    let limit = settings["settings"].as_array().expect("a list").iter();
    let limit: Vec<_> = limit.filter(|one| one["name"] == ONE_PER_HOUR.0).collect();
    assert_eq!(limit[0]["value"], "1");
    assert_eq!(limit[0]["origin"], "environment");
    let clients = ask(
        "GET",
        "/v1/clients",
        "/v1/clients?sort=refused&limit=1",
        None,
    );
    same::<api::clients::ClientList>(&clients);
    assert_eq!(clients["clients"][0]["client"], "203.0.113.7");
    assert!(
        clients["clients"][0]["ban_expires"].is_string(),
        "{clients}"
    );
    assert_eq!(clients["clients"].as_array().map(Vec::len), Some(1));
    ask("GET", "/v1/clients", "/v1/clients?sort=size", None);
    ask("GET", "/v1/clients", "/v1/clients?limit=0", None);
    let groups = ask(
        "GET",
        "/v1/groups",
        "/v1/groups?by=netblock&sort=refused",
        None,
    );
    same::<api::groups::Groups>(&groups);
    let first = &groups["groups"][0];
    assert_eq!(first["group"], "203.0.113.0/24", "{groups}");
    assert_eq!(
        (&first["clients"], &first["banned"]),
        (&json!(1), &json!(1))
    );
    let groups = ask("GET", "/v1/groups", "/v1/groups?by=country&limit=1", None);
    assert_eq!(groups["groups"][0]["group"], Value::Null);
    ask("GET", "/v1/groups", "/v1/groups?by=asn", None);
    ask("GET", "/v1/groups", "/v1/groups", None);
    let history = ask("GET", "/v1/history", "/v1/history", None);
    same::<api::history::History>(&history);
    assert_eq!(
        history["requests"].as_array().map(Vec::is_empty),
        Some(false)
    );
    ask("GET", "/v1/history", "/v1/history?minutes=0", None);
    let one = "/v1/clients/{address}";
    let client = ask("GET", one, "/v1/clients/203.0.113.7", None);
    assert_eq!(client["bans"].as_array().map(Vec::len), Some(1));
    ask("GET", one, "/v1/clients/192.0.2.77", None);
    ask("GET", one, "/v1/clients/nobody", None);
    let bans = ask("GET", "/v1/bans", "/v1/bans?active=true", None);
    assert_eq!(bans["bans"].as_array().map(Vec::len), Some(1));
    ask("GET", "/v1/bans", "/v1/bans?active=maybe", None);
    let order = r#"{"netblock":"192.0.2.0/25","duration":"1h","reason":"r"}"#;
    let ban = ask("POST", "/v1/bans", "/v1/bans", Some(order));
    assert_eq!(ban["netblock"], "192.0.2.0/25");
    ask("POST", "/v1/bans", "/v1/bans", Some("no JSON"));
    ask("POST", "/v1/bans", "/v1/bans", Some(r#"{"netblock":"x"}"#));
    ask("POST", "/v1/bans", "/v1/bans", Some(&"x".repeat(70_000)));
    let explain = "/v1/explain";
    let explained = ask(
        "GET",
        explain,
        "/v1/explain?address=203.0.113.9&path=%2Fx",
        None,
    );
    same::<api::explain::Explained>(&explained);
    assert_eq!(explained["now"]["action"], "banned");
    assert_eq!(explained["otherwise"]["result"], "passed");
    for wrong in [
        "",
        "?address=nobody",
        "?address=::1&path=x",
        "?address=::1&method=%20",
    ] {
        ask("GET", explain, &format!("{explain}{wrong}"), None);
    }
    let lifted = ask("DELETE", "/v1/bans/{subject}", "/v1/bans/203.0.113.9", None);
    assert_eq!(lifted["lifted"].as_array().map(Vec::len), Some(1));
    ask("DELETE", "/v1/bans/{subject}", "/v1/bans/nobody", None);
    let import = "/v1/bans/import";
    let imported = ask(
        "POST",
        import,
        import,
        Some(&bans.to_string().replace("{\"bans", "{\"version\":1,\"bans")),
    );
    assert_eq!(
        (&imported["imported"], &imported["new"]),
        (&json!(1), &json!(0))
    );
    let of_list = "/v1/bans/import?duration=2h&reason=why%20not";
    let imported = ask("POST", import, of_list, Some("192.0.2.64/26 # one\n"));
    assert_eq!(
        (&imported["imported"], &imported["new"]),
        (&json!(1), &json!(1))
    );
    ask("POST", import, import, Some("192.0.2.64/26"));
    ask("POST", import, "/v1/bans/import?forse=true", Some("{}"));
    ask("POST", import, of_list, Some("nowhere"));
    ask("POST", import, import, Some("{}"));
    ask("GET", import, import, None);
    let id = bans["bans"][0]["notes"]["request"]["request_id"]
        .as_str()
        .expect("an id");
    let target = format!("/v1/explain?request={id}");
    let explained = crate::support::wait_for("the refusal", || {
        let explained = ask("GET", "/v1/explain", &target, None);
        explained["request"].is_object().then_some(explained)
    });
    assert_eq!(explained["request"]["action"], "rate_limited");
    assert_eq!(explained["address"], "203.0.113.7");
    ask("GET", "/v1/explain", "/v1/explain?request=nobody", None);
    ask(
        "GET",
        "/v1/explain",
        "/v1/explain?request=nobody&path=%2F",
        None,
    );
    let lists = "/v1/lists";
    let entry =
        r#"{"list":"deny","netblock":"192.0.2.9","until":"2999-01-01T00:00:00Z","comment":"r"}"#;
    let listed = ask("POST", lists, lists, Some(entry));
    assert_eq!(
        (&listed["changed"], &listed["in_force"]),
        (&json!(true), &json!(true))
    );
    ask("POST", lists, lists, Some("no JSON"));
    ask(
        "POST",
        lists,
        lists,
        Some(r#"{"list":"deny","netblock":"::/0"}"#),
    );
    ask("POST", lists, lists, Some(&"x".repeat(70_000)));
    ask("GET", lists, lists, None);
    let unlist = "/v1/lists/{list}/{netblock}";
    let out = ask("DELETE", unlist, "/v1/lists/deny/192.0.2.9%2F32", None);
    same::<api::lists::ListChanged>(&out);
    assert_eq!(
        (&out["removed"], &out["changed"]),
        (&json!(true), &json!(true))
    );
    let out = ask("DELETE", unlist, "/v1/lists/deny/192.0.2.9", None);
    assert_eq!(out["changed"], false);
    ask("DELETE", unlist, "/v1/lists/deny/nobody", None);
    ask("DELETE", unlist, "/v1/lists/ban/192.0.2.9", None);
    ask("GET", unlist, "/v1/lists/deny/192.0.2.9", None);
    let feeds = ask("GET", "/v1/feeds", "/v1/feeds", None);
    assert_eq!(feeds["feeds"], json!([]));
    let fetch = "/v1/feeds/{name}/fetch";
    let accept = "/v1/feeds/{name}/accept";
    ask("POST", fetch, "/v1/feeds/nobody/fetch", None);
    ask("GET", fetch, "/v1/feeds/nobody/fetch", None);
    ask("POST", accept, "/v1/feeds/nobody/accept", None);
    let alerts = ask("GET", "/v1/alerts", "/v1/alerts", None);
    same::<api::alerts::AlertList<api::alerts::Alert>>(&alerts);
    assert_eq!(alerts["alerts"][0]["kind"], "ban");
    let reloaded = ask("POST", "/v1/reload", "/v1/reload", None);
    same::<api::process::Reloaded>(&reloaded);
    assert_eq!(reloaded["taken"], json!([]));
    ask("GET", "/v1/reload", "/v1/reload", None);
    ask("GET", "/v1/upgrade", "/v1/upgrade", None);
    let events = "/v1/events";
    let stream = "/v1/bans/stream";
    ask("GET", stream, "/v1/bans/stream?cursor=x", None);
    for target in ["/v1/clients", "/v1/alerts", events, stream] {
        let answer = weir.control("POST", target, Some("x"));
        compared.fits("GET", target, &answer);
        assert_eq!(answer.header("allow"), Some("GET"));
    }
    // Of a fleet whose engine is away; that of others is in tests/fleet.rs.
    let none = weir.control("GET", "/v1/fleet", None).expect(404);
    compared.fits("GET", "/v1/fleet", &none);
    let engine = Engine::away();
    let (place, key) = (engine.place(), engine.key_file().display().to_string());
    let fleet = [
        ("WAF_FLEET", place.as_str()),
        ("WAF_FLEET_KEY_FILE", key.as_str()),
    ];
    let of_fleet = Weir::start(&application, &fleet);
    let answer = of_fleet.control("GET", "/v1/fleet", None);
    let alone = compared.fits("GET", "/v1/fleet", &answer);
    same::<api::fleet::Fleet>(&alone);
    let answer = of_fleet.control("POST", "/v1/bans", Some(order));
    let made = compared.fits("POST", "/v1/bans", &answer);
    assert_eq!(made["fleet"], json!({"queued": true}));
    answers_of_feeds(&mut compared, &application);
    // Shown where a hand-over is.
    for (path, method) in [(events, "get"), (stream, "get"), ("/v1/upgrade", "post")] {
        compared
            .seen
            .insert((path.to_owned(), method.to_owned(), "200".to_owned()));
    }
    let described = compared.document["paths"]
        .as_object()
        .expect("paths")
        .iter();
    let operations = described.flat_map(|(path, of)| {
        let methods = of.as_object().expect("methods").keys();
        methods.map(move |method| (path.clone(), method.clone()))
    });
    for (path, method) in operations {
        let good = |seen: &&(String, String, String)| {
            (&seen.0, &seen.1) == (&path, &method) && seen.2.starts_with('2')
        };
        assert!(
            compared.seen.iter().any(|seen| good(&seen)),
            "{method} {path}"
        );
    }
    let location = weir.control("POST", "/v1/bans", Some(order));
    let location = location.header("location").expect("a location").to_owned();
    assert_eq!(location, "/v1/bans?ip=192.0.2.0");
}

/// CONTROL-2, FEED-8: what is answered where there are feeds: of one that is taken, of one that has
/// a version that is not, and of one that was not asked yet.
#[track_caller]
fn answers_of_feeds(compared: &mut Compared, application: &Application) {
    let publisher = Publisher::plain();
    publisher.publishes("198.51.100.1\n198.51.100.2\n198.51.100.3\n");
    let state = state_dir();
    let rules = json!({"version": 1, "feeds": [
        {"name": "drop", "url": publisher.url("/drop"), "use": "deny"}]});
    fs::write(state.path().join("rules.json"), rules.to_string()).expect("writes");
    let weir = Weir::start_at(application.address(), &state, &[]);
    let list = ("/v1/feeds", "/v1/feeds");
    let fetch = ("/v1/feeds/{name}/fetch", "/v1/feeds/drop/fetch");
    let accept = ("/v1/feeds/{name}/accept", "/v1/feeds/drop/accept");
    let mut ask = |method: &str, path: (&str, &str), status: u16| {
        let answer = weir.control(method, path.1, None).expect(status);
        compared.fits(method, path.0, &answer)
    };
    let taken = wait_for("the version", || {
        let answer = ask("GET", list, 200);
        same::<api::feeds::FeedList>(&answer);
        let feed = answer["feeds"][0].clone();
        (feed["outcome"] == "taken").then_some(feed)
    });
    assert_eq!(
        (&taken["entries"], &taken["use"]),
        (&json!(3), &json!("deny"))
    );
    publisher.publishes("198.51.100.9\n");
    ask("POST", accept, 409);
    assert_eq!(ask("POST", fetch, 202), json!({"name": "drop"}));
    wait_until("it is refused", || {
        ask("GET", list, 200)["feeds"][0]["outcome"] == "refused"
    });
    let accepted = ask("POST", accept, 200);
    assert_eq!(accepted, json!({"name": "drop", "entries": 1}));
    ask("GET", accept, 405);
    ask(
        "POST",
        ("/v1/feeds/{name}/accept", "/v1/feeds/nobody/accept"),
        404,
    );
}

/// CONTROL-1: mode 0600 in the state directory; gone after a stop; what a kill left is replaced;
/// one that another holds, or that is something else, stops the start; it can be elsewhere or off.
#[test]
fn the_socket_comes_and_goes() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    let path = weir.state_path("weir.sock");
    let mode = fs::metadata(&path)
        .expect("the socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    weir.control("GET", "/v1/health", None).expect(200);
    weir.kill();
    assert!(path.exists());
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    weir.control("GET", "/v1/health", None).expect(200);
    // Removed by hand, it comes back.
    fs::remove_file(&path).expect("removes it");
    wait_until("the socket again", || path.exists());
    wait_until("an answer", || {
        std::os::unix::net::UnixStream::connect(&path).is_ok()
    });
    weir.control("GET", "/v1/health", None).expect(200);
    weir.stop();
    assert!(!path.exists());

    let _held = UnixListener::bind(&path).expect("binds");
    let refused = Weir::refuse(&state, &[]);
    assert_eq!(refused.code, Some(78));
    assert!(
        refused.stderr.contains("is held by another service"),
        "{refused:?}"
    );
    let other = state.path().join("elsewhere");
    let mut weir = Weir::start_at(
        application.address(),
        &state,
        &[("WAF_CONTROL_SOCKET", other.to_str().expect("a path"))],
    );
    assert!(other.exists());
    // A stop would remove it.
    weir.kill();
    fs::remove_file(&other).expect("removes it");
    fs::write(&other, "a note").expect("writes");
    let refused = Weir::refuse(
        &state,
        &[("WAF_CONTROL_SOCKET", other.to_str().expect("a path"))],
    );
    assert!(
        refused.stderr.contains("is there and is no socket"),
        "{refused:?}"
    );
    let off = Weir::start_at(
        application.address(),
        &state,
        &[("WAF_CONTROL_SOCKET", "off")],
    );
    off.get("/a", "203.0.113.7").expect(200);
}

/// CONTROL-2: an address lifts every ban that covers it, a netblock exactly its own; the slash is
/// raw or encoded.
#[test]
fn an_address_lifts_all_and_a_netblock_its_own() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let netblocks = [
        "203.0.113.0/24",
        "203.0.0.0/16",
        "2001:db8::/32",
        "2001:db8::/48",
    ];
    for netblock in netblocks {
        weir.ban("netblock", netblock, "1h");
    }
    let lift = |subject: &str| {
        let answer = weir.control("DELETE", &format!("/v1/bans/{subject}"), None);
        let answer = answer.expect(200).json();
        let lifted = answer["lifted"].as_array().expect("a list").clone();
        lifted
            .into_iter()
            .map(|ban| ban["netblock"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(lift("203.0.113.0/25"), [json!(null); 0]);
    assert_eq!(lift("203.0.113.0/24"), ["203.0.113.0/24"]);
    assert_eq!(lift("203.0.113.0%2f24"), [json!(null); 0]);
    assert_eq!(lift("2001:db8::%2F32"), ["2001:db8::/32"]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    assert_eq!(lift("203.0.113.9").len(), 2);
    assert_eq!(lift("2001:db8::1"), ["2001:db8::/48"]);
    let wrong = weir
        .control("DELETE", "/v1/bans/203.0.113.0/33", None)
        .expect(400);
    assert!(wrong.text().contains("203.0.113.0/33"), "{}", wrong.text());
}

/// CONTROL-1: it answers when the operator's own address is banned, and the public port does not
/// know its routes.
#[test]
fn it_stands_outside_the_checks() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_DENY_COUNTRIES", "")]);
    let everything = r#"{"netblock":"0.0.0.0/0","duration":"1h","reason":"r","force":true}"#;
    weir.control("POST", "/v1/bans", Some(everything))
        .expect(201);
    weir.get("/a", "198.51.100.7").expect(429);
    for _ in 0..50 {
        weir.control("GET", "/v1/status", None).expect(200);
    }
    weir.control("DELETE", "/v1/bans/0.0.0.0/0", None)
        .expect(200);
    weir.get("/a", "198.51.100.7").expect(200);
    // To the public port these are paths of the application, or nothing.
    weir.admin("GET", "/_waf/status", None).expect(404);
    weir.admin("GET", "/_waf/events", None).expect(404);
    weir.admin("DELETE", "/_waf/bans/0.0.0.0/0", None)
        .expect(400);
    weir.control("GET", "/_waf/bans", None).expect(404);
}

/// CONTROL-1, CONTROL-10: connections that say nothing are bounded, and the oldest give their
/// places to those that come, at both doors: whoever asks waits for none of them. Those that keep
/// their places may still ask.
#[test]
fn silent_connections_give_way() {
    const SILENT: usize = 40;
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_ADMIN_LISTEN", "127.0.0.1:0")]);
    let log = weir.wait_for_process_log(&["listening"]);
    let address = log["admin"].as_str().expect("an address");
    let address = address.parse().expect("an address");
    let path = weir.state_path("weir.sock");
    let health = get("/v1/health", &[("Host", "localhost")]);
    let metrics = format!("Bearer {METRICS_TOKEN}");
    let metrics = get(
        "/metrics",
        &[("Host", "localhost"), ("Authorization", &metrics)],
    );
    type Door<'a> = (&'a dyn Fn() -> Connection, &'a [u8], u16);
    let doors: [Door<'_>; 2] = [
        (&|| Connection::open_unix(&path), &health, 200),
        (&|| Connection::open(address), &metrics, 200),
    ];
    for (open, question, status) in doors {
        let mut silent: Vec<Connection> = (0..SILENT).map(|_| open()).collect();
        let mut asking = open();
        asking.send(question);
        assert_eq!(asking.response().status, status);
        // Sixteen have a place, the one that has asked among them.
        let mut kept = silent.split_off(SILENT - 15);
        assert!(silent.iter_mut().all(Connection::ends));
        for connection in &mut kept {
            connection.send(question);
            assert_eq!(connection.response().status, status);
        }
    }
}

/// CONTROL-10: as many as may follow a stream, of each kind, leave all places to those that ask.
#[test]
fn streams_take_no_place() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let path = weir.state_path("weir.sock");
    let follow = |target: &str| {
        let mut connection = Connection::open_unix(&path);
        connection.send(&get(target, &[]));
        assert_eq!(connection.head().expect("a head").status, 200, "{target}");
        connection
    };
    let targets = ["/v1/events", "/v1/bans/stream"];
    let following: Vec<_> = (0..16).map(|one| follow(targets[one % 2])).collect();
    for _ in 0..20 {
        weir.control("GET", "/v1/health", None).expect(200);
    }
    // They are followed still.
    let ban = r#"{"netblock":"203.0.113.0/24","duration":"1h","reason":"x"}"#;
    weir.control("POST", "/v1/bans", Some(ban)).expect(201);
    for mut connection in following {
        assert!(!connection.one_chunk().expect("a line").is_empty());
    }
}

/// CONTROL-10: the system asks a client of the admin listener whether it is still there: one that
/// follows a stream without news would otherwise never be missed, and keep its place.
#[test]
fn a_client_of_the_admin_listener_has_tcp_keep_alive() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_ADMIN_LISTEN", "127.0.0.1:0")]);
    let log = weir.wait_for_process_log(&["listening"]);
    let address = log["admin"].as_str().expect("an address");
    let address: SocketAddr = address.parse().expect("an address");
    let token = format!("Bearer {ADMIN_TOKEN}");
    let mut follower = Connection::open(address);
    follower.send(&get(
        "/v1/bans/stream",
        &[("Host", "localhost"), ("Authorization", &token)],
    ));
    assert_eq!(follower.head().expect("a head").status, 200);
    wait_for_keep_alive(weir.pid(), address.port(), OWN_ADDRESS);
}

/// CONTROL-10: followers that read nothing do not keep their places for ever: after a minute
/// another one may follow.
#[test]
#[ignore = "takes more than a minute"]
fn a_follower_that_reads_nothing_gives_its_place_up() {
    const LONG: Duration = Duration::from_secs(150);
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let path = weir.state_path("weir.sock");
    let follow = || {
        let mut connection = Connection::open_unix(&path);
        connection.send(&get("/v1/bans/stream", &[]));
        let status = connection.head().expect("a head").status;
        (status == 200).then_some(connection)
    };
    let reading_nothing: Vec<_> = (0..8).map(|_| follow().expect("a place")).collect();
    assert!(follow().is_none());
    // In pieces, so that they are behind by less than what is kept for them.
    for piece in 0..15 {
        let list: String = (0..500)
            .map(|number| format!("10.{piece}.{}.{}\n", number / 256, number % 256))
            .collect();
        let target = "/v1/bans/import?duration=1h&reason=x";
        weir.control("POST", target, Some(&list)).expect(200);
    }
    assert!(follow().is_none());
    wait_for_within(LONG, "a place", follow);
    drop(reading_nothing);
}

/// CONTROL-10: a name that a query does not know is 400, with what is known and what was meant;
/// nothing is left aside without a word.
#[test]
fn unknown_names_of_a_query_are_told() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for (method, target, told) in [
        (
            "GET",
            "/v1/bans?activ=false",
            "\"activ\" is not known: expected active, ip",
        ),
        ("GET", "/v1/bans?activ=false", "; did you mean active?"),
        ("GET", "/v1/clients?sortt=bytes", "did you mean sort?"),
        ("GET", "/v1/groups?by=asn&limits=3", "did you mean limit?"),
        (
            "GET",
            "/v1/explain?adress=203.0.113.7",
            "did you mean address?",
        ),
        (
            "GET",
            "/v1/status?x=1",
            "\"x\" is not known: expected no query",
        ),
        ("GET", "/v1/clients/203.0.113.7?x=1", "expected no query"),
        ("DELETE", "/v1/bans/203.0.113.7?force", "expected no query"),
        ("POST", "/v1/reload?now", "expected no query"),
        ("GET", "/v1/events?limit=1", "expected no query"),
        (
            "GET",
            "/v1/bans/stream?curser=1",
            "\"curser\" is not known: expected cursor; did you mean cursor?",
        ),
    ] {
        let answer = weir.control(method, target, None).expect(400).json();
        let detail = answer["detail"].as_str().expect("a detail");
        assert!(detail.contains(told), "{target}: {detail}");
    }
    assert!(!weir.process_log_text().contains("reloaded"));
    // On the public port as well.
    weir.admin("GET", "/_waf/bans?activ=false", None)
        .expect(400);
    weir.admin("GET", "/_waf/bans?", None).expect(200);
}

/// CONTROL-1: over TCP, the admin token opens everything but `/metrics`, which has its own; another
/// `Host` than an address is turned away, and no other site is let in.
#[test]
fn the_admin_listener_asks_for_tokens() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_ADMIN_LISTEN", "127.0.0.1:0")]);
    let log = weir.wait_for_process_log(&["listening"]);
    let address = log["admin"]
        .as_str()
        .expect("an address")
        .parse()
        .expect("an address");
    let admin = format!("Bearer {ADMIN_TOKEN}");
    let metrics = format!("Bearer {METRICS_TOKEN}");
    for (target, token, status) in [
        ("/v1/status", &admin, 200),
        ("/v1/bans", &admin, 200),
        ("/v1/metrics", &admin, 200),
        ("/metrics", &metrics, 200),
        ("/v1/status", &metrics, 401),
        ("/v1/health", &metrics, 401),
        ("/v1/events", &metrics, 401),
        ("/v1/metrics", &metrics, 401),
        ("/metrics", &admin, 401),
        ("/_waf/bans", &admin, 404),
        ("/", &admin, 404),
    ] {
        let headers = [
            ("Authorization", token.as_str()),
            ("Origin", "http://a.example"),
            ("Host", "127.0.0.1"),
        ];
        let answer = exchange(address, &get(target, &headers));
        assert_eq!(answer.status, status, "{target}: {answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let rebound =
        format!("GET /v1/status HTTP/1.1\r\nHost: a.example\r\nAuthorization: {admin}\r\n\r\n");
    let answer = exchange(address, rebound.as_bytes());
    Compared::new().fits("GET", "/v1/status", &answer);
    assert_eq!(answer.status, 421);
    let order = br#"{"client":"203.0.113.7","duration":"1h","reason":"r"}"#;
    let bans = request(
        "POST",
        "/v1/bans",
        &[("Authorization", &admin), ("Host", "localhost:1")],
        Some(order),
    );
    assert_eq!(exchange(address, &bans).status, 201);
    weir.get("/a", "203.0.113.8").expect(429);
    let refused = Weir::refuse(&state_dir(), &[("WAF_ADMIN_LISTEN", &address.to_string())]);
    assert!(refused.stderr.contains("WAF_ADMIN_LISTEN: "), "{refused:?}");
    assert_eq!(refused.code, Some(78));
}

/// CONTROL-2: requests and alerts come as lines while they happen; who leaves makes room.
#[test]
fn events_come_as_they_happen() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let document = file("openapi.json");
    let event = &document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"];
    let event = validator(&document, &event["application/x-ndjson"]["schema"]);
    let path = weir.state_path("weir.sock");
    for _ in 0..12 {
        let mut connection = wait_for("a place", || {
            let mut connection = Connection::open_unix(&path);
            connection.send(&get("/v1/events", &[]));
            (connection.head().expect("a head").status == 200).then_some(connection)
        });
        weir.get("/seen", "203.0.113.7").expect(200);
        weir.ban("client", "198.51.100.7", "1h");
        let mut text = String::new();
        while !(text.contains("\"/seen\"") && text.contains("\"kind\":\"ban\"")) {
            let chunk = connection.one_chunk().expect("a line");
            text.push_str(&String::from_utf8(chunk).expect("UTF-8"));
        }
        for line in text.lines() {
            let line = serde_json::from_str(line).expect("JSON");
            assert!(event.is_valid(&line), "{line}");
        }
    }
}

/// CONTROL-10: a list has the cursor from which the stream of changes goes on: what was made,
/// lifted, edited and forgotten since comes, complete and in order, also in pages. A cursor of
/// another process, or of one before, is told to list again.
#[test]
fn a_list_and_its_stream_are_the_whole_ledger() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[ONE_PER_HOUR]);
    for number in 0..5 {
        weir.ban("netblock", &format!("10.0.{number}.0/24"), "1h");
    }
    let list = |weir: &Weir, query: &str| {
        let answer = weir.control("GET", &format!("/v1/bans?{query}"), None);
        answer.expect(200).json()
    };
    let first = list(&weir, "limit=2");
    let mut ledger: Vec<Value> = first["bans"].as_array().expect("a list").clone();
    let mut next = first["next"].clone();
    while let Some(after) = next.as_str() {
        let page = list(&weir, &format!("limit=2&after={after}"));
        ledger.extend(page["bans"].as_array().expect("a list").clone());
        next = page["next"].clone();
    }
    assert_eq!(ledger.len(), 5);

    let document = file("openapi.json");
    let content = &document["paths"]["/v1/bans/stream"]["get"]["responses"]["200"]["content"];
    let fits = validator(&document, &content["application/x-ndjson"]["schema"]);
    let follow = |weir: &Weir, cursor: &Value| {
        let mut connection = Connection::open_unix(&weir.state_path("weir.sock"));
        let cursor = cursor.as_str().expect("a cursor");
        connection.send(&get(&format!("/v1/bans/stream?cursor={cursor}"), &[]));
        assert_eq!(connection.head().expect("a head").status, 200);
        connection
    };
    weir.admin("DELETE", "/_waf/bans/10.0.1.7", None)
        .expect(200);
    let mut stream = follow(&weir, &first["cursor"]);
    weir.break_limit("203.0.113.7");
    let mut edited = weir.wait_for_bans("all six", |bans| bans.len() == 6);
    let bans = edited["bans"].as_array_mut().expect("a list");
    bans.retain(|ban| ban["netblock"] != "10.0.2.0/24");
    bans[0]["reason"] = json!("edited");
    fs::write(weir.state_path("bans.json"), edited.to_string()).expect("writes");
    let name = |of: &Value| (of["netblock"].clone(), of["ban_started"].clone());
    let mut told = Vec::new();
    while !told.contains(&json!("edited")) {
        let chunk = stream.one_chunk().expect("a line");
        for line in String::from_utf8(chunk).expect("UTF-8").lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            assert!(fits.is_valid(&line), "{line}");
            ledger.retain(|ban| name(ban) != name(&line));
            ledger.extend(line.get("ban").cloned());
            told.push(line["event"].clone());
        }
    }
    for event in ["lifted", "made", "forgotten", "edited"] {
        assert!(told.contains(&json!(event)), "{told:?}");
    }
    let sorted = |mut bans: Vec<Value>| {
        bans.sort_by_key(|ban| ban["netblock"].to_string());
        bans
    };
    let held = list(&weir, "active=true")["bans"]
        .as_array()
        .expect("it")
        .len();
    assert_eq!(held, 4);
    // The newest of them, for those who look each second.
    let newest = list(&weir, "active=true&newest=2");
    let all = list(&weir, "active=true");
    let all = all["bans"].as_array().expect("it");
    assert_eq!(newest["bans"].as_array().expect("it"), &all[2..]);
    assert_eq!(newest["next"], Value::Null);
    assert_eq!(sorted(ledger), sorted(weir.bans()));

    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &[]);
    let mut stream = follow(&weir, &first["cursor"]);
    let chunk = stream.one_chunk().expect("a line");
    assert_eq!(chunk, b"{\"event\":\"list_again\"}\n");
    for wrong in [
        "limit=0",
        "limit=x",
        "after=10.0.0.0/24",
        "limit=1&limit=2",
        "newest=0",
        "newest=1&limit=1",
    ] {
        let answer = weir.control("GET", &format!("/v1/bans?{wrong}"), None);
        assert_eq!(answer.status, 400, "{wrong}");
    }
}

/// CONTROL-2: eight listen to the events; the next is told so in one sentence.
#[test]
fn the_ninth_listener_is_told() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let path = weir.state_path("weir.sock");
    let listen = || {
        let mut connection = Connection::open_unix(&path);
        connection.send(&get("/v1/events", &[]));
        connection
    };
    let listeners: Vec<_> = (0..8).map(|_| listen()).collect();
    let listeners: Vec<_> = listeners
        .into_iter()
        .map(|mut connection| {
            assert_eq!(connection.head().expect("a head").status, 200);
            connection
        })
        .collect();
    let refused = listen().response();
    Compared::new().fits("GET", "/v1/events", &refused);
    let refused = refused.expect(503);
    assert_eq!(
        refused.json()["detail"],
        "8 others listen to the events, which is the most: try again later"
    );
    drop(listeners);
}

/// CONTROL-1: while the service stops, health says so; then the socket is gone.
#[test]
fn health_tells_of_the_stop() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_DELAY", "5s")]);
    weir.signal("TERM");
    let answer = wait_for("the stop in the health", || {
        let answer = weir.control("GET", "/v1/health", None);
        (answer.status == 503).then_some(answer)
    });
    let health = Compared::new().fits("GET", "/v1/health", &answer);
    assert_eq!(health["status"], "draining");
    weir.wait();
    assert!(!weir.state_path("weir.sock").exists());
}
