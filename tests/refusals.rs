//! What the answers that the service writes itself say (TELL-1): to programs, and to people.

use std::fs;

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::raw_client::{Connection, Response, get, request};
use crate::support::wait_until;
use crate::support::weir::{ADMIN, EXEMPT, ONE_PER_HOUR, Weir, state_dir};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

const CLIENTS: &str = "/_waf/clients/203.0.113.9";

/// A ban that lasts 41 minutes.
const FIRST: (&str, &str) = ("WAF_BAN_FIRST", "41m");

/// The id that an answer names in its field, and in its document if it is one.
#[track_caller]
fn id_of(answer: &Response) -> String {
    let id = answer.header("x-request-id").expect("an id").to_owned();
    if answer.header("content-type") == Some("application/problem+json") && !answer.body.is_empty()
    {
        assert_eq!(answer.json()["request_id"], id);
    }
    id
}

/// TELL-1: every answer of the service names its request as the log does: refusals, failures of the
/// application, answers under `/_waf/`.
#[test]
fn every_answer_of_ours_names_its_request() {
    let application = Application::raw(b"nonsense\r\n\r\n", true);
    let weir = Weir::start(
        &application,
        &[
            ("WAF_DENY_NETS", "198.51.100.0/24"),
            ("WAF_MAX_BODY_SIZE", "10"),
        ],
    );
    weir.ban("netblock", "10.9.0.0/16", "1h");
    let large = [b'a'; 11];
    let from = |method: &str, path: &str, client: &str, body: Option<&[u8]>| {
        request(method, path, &[("X-Forwarded-For", client)], body)
    };
    for (bytes, path, status) in [
        (from("GET", "/banned", "10.9.0.1", None), "/banned", 429),
        (
            from("POST", "/sent", "10.9.0.1", Some(b"body")),
            "/sent",
            429,
        ),
        (from("GET", "/denied", "198.51.100.1", None), "/denied", 429),
        (
            from("POST", "/large", "10.1.0.1", Some(&large)),
            "/large",
            413,
        ),
        (from("GET", "/broken", "10.1.0.1", None), "/broken", 502),
        (from("TRACE", "/trace", "10.1.0.1", None), "/trace", 405),
        (
            from("GET", "/_waf/none", "10.1.0.1", None),
            "/_waf/none",
            404,
        ),
        (from("GET", CLIENTS, "10.1.0.1", None), CLIENTS, 401),
    ] {
        let answer = weir.send(&bytes).expect(status);
        let id = id_of(&answer);
        assert_eq!(weir.line_of(path)["request_id"], id, "{path}");
        assert!(answer.header("content-type") == Some("application/problem+json"));
    }
    let bearer = format!("Bearer {}", crate::support::weir::ADMIN_TOKEN);
    let fine = weir.send(&get(
        "/_waf/bans",
        &[("X-Forwarded-For", ADMIN), ("Authorization", &bearer)],
    ));
    id_of(&fine.expect(200));
    id_of(&weir.get("/_waf/health", "10.1.0.1").expect(200));
    // That of a trusted proxy is taken, whatever it is made of.
    let mine = r#"a"b\c"#;
    let bytes = get(
        "/mine",
        &[("X-Forwarded-For", "10.9.0.1"), ("X-Request-ID", mine)],
    );
    assert_eq!(id_of(&weir.send(&bytes).expect(429)), mine);
}

/// TELL-1: what was no request has no id.
#[test]
fn what_was_no_request_has_no_id() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_HEADER_TIMEOUT", "2s")]);
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(40_000));
    for (bytes, status) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"[..], 400),
        (b"GET / HTTP/1.1\r\n : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost:", 408),
        (long.as_bytes(), 414),
    ] {
        let mut connection = Connection::open(weir.address());
        connection.send_what_is_taken(bytes);
        let answer = connection.response().expect(status);
        assert_eq!(answer.header("x-request-id"), None, "{status}");
        assert!(!answer.text().contains("request_id"), "{status}");
    }
}

/// TELL-1: limits and bans say how long to wait, and nothing of lists, thresholds or neighbours;
/// lists say nothing at all.
#[test]
fn a_refusal_says_how_long_to_wait() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ONE_PER_HOUR,
            EXEMPT,
            FIRST,
            ("WAF_DENY_NETS", "198.51.100.0/24"),
        ],
    );
    let document = |answer: &Response, detail: Option<&str>| {
        let mut expected = json!({"type": "about:blank", "title": "Too Many Requests",
            "status": 429, "request_id": id_of(answer)});
        if let Some(detail) = detail {
            expected["detail"] = detail.into();
        }
        assert_eq!(answer.json(), expected);
    };
    let wait = Some("Too many requests. Try again in 41 minutes.");
    weir.get("/", "203.0.113.7").expect(200);
    document(&weir.get("/", "203.0.113.7").expect(429), wait);
    weir.wait_until_refused("203.0.113.8");
    // A neighbour, in its first minute.
    document(&weir.get("/", "203.0.113.8").expect(429), wait);
    weir.ban("netblock", "10.9.0.0/16", "permanent");
    document(
        &weir.get("/", "10.9.0.1").expect(429),
        Some("Too many requests."),
    );
    document(&weir.get("/", "198.51.100.1").expect(429), None);
}

/// TELL-1, BAN-6: lists have an answer of their own, if it is set.
#[test]
fn lists_can_have_an_answer_of_their_own() {
    let application = Application::ok();
    let lists = ("WAF_DENY_NETS", "198.51.100.0/24");
    let weir = Weir::start(&application, &[lists, ("WAF_DENY_RESPONSE", "403")]);
    weir.ban("netblock", "10.9.0.0/16", "1h");
    weir.get("/", "10.9.0.1").expect(429);
    let denied = weir.get("/denied", "198.51.100.1").expect(403);
    assert_eq!(denied.json()["title"], "Forbidden");
    assert_eq!(weir.line_of("/denied")["status"], 403);

    let weir = Weir::start(&application, &[lists, ("WAF_DENY_RESPONSE", "drop")]);
    weir.ban("netblock", "10.9.0.0/16", "1h");
    weir.get("/", "10.9.0.1").expect(429);
    let mut connection = Connection::open(weir.address());
    connection.send(&get("/", &[("X-Forwarded-For", "198.51.100.1")]));
    assert!(connection.ends());
}

/// TELL-1: a browser gets the page that is built in, with the same status and fields.
#[test]
fn a_browser_gets_a_page() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.ban("netblock", "10.9.0.0/16", "1h");
    let ask = |accept: &str| {
        let fields = [("X-Forwarded-For", "10.9.0.1"), ("Accept", accept)];
        weir.send(&get("/", &fields)).expect(429)
    };
    let page = ask(BROWSER);
    let id = id_of(&page);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert!(page.header("retry-after").is_some());
    let text = page.text();
    assert!(
        text.contains("try again in 60 minutes") && text.contains(&id),
        "{text}"
    );
    let document = ask("application/json, text/html;q=0.9");
    assert_eq!(
        document.header("content-type"),
        Some("application/problem+json")
    );
}

/// TELL-1: `WAF_REFUSAL_PAGE` is the page; it is read again on a change, and a faulty one changes
/// nothing and is an alert.
#[test]
fn the_page_is_a_file_that_is_read_again() {
    let application = Application::ok();
    let state = state_dir();
    let file = state.path().join("refused.html");
    fs::write(&file, "<p>{{status}} {{request_id}} {{retry_after}}</p>").expect("written");
    let path = file.to_str().expect("a path");
    let weir = Weir::start_at(
        application.address(),
        &state,
        &[
            ("WAF_REFUSAL_PAGE", path),
            ("WAF_BAN_RESPONSE", "403"),
            ("WAF_DENY_NETS", "198.51.100.0/24"),
        ],
    );
    let ask = || {
        let fields = [
            ("X-Forwarded-For", "198.51.100.1"),
            ("Accept", BROWSER),
            ("X-Request-ID", "<b>"),
        ];
        weir.send(&get("/", &fields)).expect(403).text()
    };
    assert_eq!(ask(), "<p>403 &lt;b&gt; later</p>");
    fs::write(&file, "second {{status}}").expect("written");
    wait_until("the new page", || ask() == "second 403");
    fs::write(&file, "third {{reason}}").expect("written");
    weir.wait_for_process_log(&[path, "in line 1", "stays in use"]);
    assert_eq!(ask(), "second 403");
    wait_until("the alert", || {
        let alerts = weir.control("GET", "/v1/alerts", None).json();
        let alerts = alerts["alerts"].as_array().expect("a list");
        let is_it = |alert: &Value| alert["kind"] == "file_error" && alert["file"] == path;
        alerts.iter().any(is_it)
    });
}

/// TELL-1: a page that is missing or faulty stops the start with one sentence.
#[test]
fn a_faulty_page_stops_the_start() {
    let state = state_dir();
    let file = state.path().join("refused.html");
    let path = file.to_str().expect("a path");
    let refuse = || Weir::refuse(&state, &[("WAF_REFUSAL_PAGE", path)]);
    let missing = refuse();
    assert_eq!(missing.code, Some(78));
    let sentence = format!("WAF_REFUSAL_PAGE {path} cannot be read: No such file or directory");
    assert!(missing.stderr.contains(&sentence), "{}", missing.stderr);
    fs::write(&file, "a\n{{reason}}").expect("written");
    let faulty = refuse();
    assert_eq!(faulty.code, Some(78));
    assert!(
        faulty.stderr.contains("has, in line 2, {{…}}"),
        "{}",
        faulty.stderr
    );
}

/// METRIC: the body of an answer of ours to HEAD is not sent, and not counted.
#[test]
fn an_answer_to_head_counts_no_bytes() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "198.51.100.0/24")]);
    let mut connection = Connection::open(weir.address());
    let fields = [("X-Forwarded-For", "198.51.100.1")];
    connection.send(&request("HEAD", "/head", &fields, None));
    let answer = connection.response_to_head().expect(429);
    assert_ne!(answer.header("content-length"), Some("0"));
    assert_eq!(weir.line_of("/head")["bytes"]["response"], 0);
}
