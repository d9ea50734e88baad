//! A lookup service is asked: what leaves, what its answers and faults lead to (LOOKUP-1..7).

use crate::support::application::Application;
use crate::support::geo::{Geo, Question};
use crate::support::raw_client::{Connection, get, request};
use crate::support::transport;
use crate::support::weir::state_dir;
use crate::support::{wait_for, wait_until};

use super::{CLIENT, GERMANY, lookups, start, start_on, wait_for_lookups};

/// LOOKUP-1, LOOKUP-2, LOOKUP-6, CLIENT-5: a service over HTTPS is asked once; the application, the
/// log, the admin endpoint and lookups.json know the client from then on, across a restart too.
/// What the client says itself never arrives.
#[test]
fn a_client_is_known_everywhere_and_across_a_restart() {
    let (application, geo, state) = (Application::ok(), Geo::saying(GERMANY), state_dir());
    let settings = geo.settings(&[("WAF_ADD_LOOKUP_HEADERS", "on")]);
    let mut weir = start_on(&application, &state, &settings);
    let forged = [
        ("X-Forwarded-For", CLIENT),
        ("X-Client-ASN", "AS1"),
        ("X-Client-Country", "XX"),
        ("X_Client_Country", "XX"),
    ];
    for path in ["/first", "/second"] {
        weir.send(&get(path, &forged)).expect(200);
        let seen = application.request(path);
        assert_eq!(seen.header("x-client-asn"), Some("AS64496"));
        assert_eq!(seen.header("x-client-country"), Some("DE"));
        assert_eq!(seen.header("x_client_country"), None);
        let line = weir.line_of(path);
        assert_eq!(
            [&line["country"], &line["asn"], &line["as_name"]],
            ["DE", "AS64496", "Example"]
        );
        assert_eq!(
            line["timings"]["lookup_wait"].is_number(),
            path == "/first",
            "{line}"
        );
    }
    assert_eq!(geo.asked(), [CLIENT]);
    assert_eq!(lookups(&weir, "known"), 1.0);
    let known = serde_json::json!({"country": "DE", "asn": "AS64496", "as_name": "Example"});
    let client = weir
        .admin("GET", &format!("/_waf/clients/{CLIENT}"), None)
        .json();
    assert_eq!(client["client"]["lookup"], known);
    weir.stop();
    let entry = &weir.state_file("lookups.json").unwrap()["lookups"][0];
    assert_eq!(
        [
            &entry["client"],
            &entry["country"],
            &entry["asn"],
            &entry["as_name"]
        ],
        [CLIENT, "DE", "AS64496", "Example"]
    );

    // Without clients.json the answer comes from lookups.json alone.
    std::fs::remove_file(state.path().join("clients.json")).unwrap();
    let weir = start_on(&application, &state, &settings);
    weir.get("/third", CLIENT).expect(200);
    assert_eq!(
        application.request("/third").header("x-client-country"),
        Some("DE")
    );
    assert_eq!(geo.asked().len(), 1);
}

/// LOOKUP-2: private, reserved and documentation ranges are never asked about; of an IPv6 client
/// its /64 is.
#[test]
fn only_public_addresses_leave_and_of_ipv6_the_64() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let weir = start(
        &application,
        &geo.settings(&[("WAF_ADD_LOOKUP_HEADERS", "on")]),
    );
    for client in [
        "10.0.0.1",
        "192.168.1.1",
        "203.0.113.7",
        "127.0.0.1",
        "::1",
        "fd00::1",
        "2001:db8::1",
        "100.64.0.1",
    ] {
        assert_eq!(weir.get("/private", client).status, 200, "{client}");
    }
    weir.get("/a", "2a02:d0c0:1:2:3:4:5:6").expect(200);
    weir.get("/b", "2a02:d0c0:1:2::9").expect(200);
    weir.get("/c", "::ffff:81.2.69.7").expect(200);
    assert_eq!(geo.asked(), ["2a02:d0c0:1:2::", CLIENT]);
    assert_eq!(
        application.request("/b").header("x-client-country"),
        Some("DE")
    );
}

/// LOOKUP-3, LOOKUP-4: every way a service can misbehave is a failure, which is not kept and
/// refuses nobody; an AS 64512 and a missing country are answers. The redirect is not followed.
#[test]
fn a_service_that_misbehaves_refuses_nobody() {
    type Handler = Box<dyn Fn(&mut Question) + Send + Sync>;
    let cases: Vec<(&str, &str, Handler)> = vec![
        (
            "500",
            "error",
            Box::new(|q| q.answer("HTTP/1.1 500 Oops", "", GERMANY)),
        ),
        (
            "429",
            "error",
            Box::new(|q| q.answer("HTTP/1.1 429 Slow down", "Retry-After: 60\r\n", GERMANY)),
        ),
        (
            "a redirect",
            "error",
            Box::new(|q| match &*q.address {
                "elsewhere" => q.say(GERMANY),
                _ => q.answer("HTTP/1.1 302 Found", "Location: /elsewhere\r\n", ""),
            }),
        ),
        (
            "a body of 10 MB",
            "error",
            Box::new(|q| {
                let body = format!(
                    "{{\"country_code\":\"DE\",\"x\":\"{}\"}}",
                    "x".repeat(10_000_000)
                );
                q.say(&body);
            }),
        ),
        (
            "an endless body",
            "error",
            Box::new(|q| {
                q.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                while q.send(b"4\r\n    \r\n") {}
            }),
        ),
        (
            "wrong JSON",
            "error",
            Box::new(|q| q.say("{\"country_code\":\"DE\"")),
        ),
        (
            "another document",
            "error",
            Box::new(|q| q.say("{\"error\":\"quota\"}")),
        ),
        ("nil", "error", Box::new(|q| q.say("nil"))),
        ("a reset", "error", Box::new(Question::reset)),
        (
            "a reset in the body",
            "error",
            Box::new(|q| {
                q.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"country_code\":");
                q.reset();
            }),
        ),
        (
            "no HTTP",
            "error",
            Box::new(|q| {
                q.send(b"SSH-2.0-OpenSSH\r\n\r\n");
                q.close();
            }),
        ),
        ("no country", "unknown", Box::new(|q| q.say("{\"asn\":7}"))),
        (
            "country nil",
            "unknown",
            Box::new(|q| q.say("{\"country_code\":\"nil\",\"asn\":7}")),
        ),
    ];
    let application = Application::ok();
    for (case, outcome, handler) in cases {
        let geo = Geo::start(handler);
        let denied = [
            ("WAF_DENY_COUNTRIES", "DE"),
            ("WAF_ADD_LOOKUP_HEADERS", "on"),
        ];
        let weir = start(&application, &geo.settings(&denied));
        let path = format!("/{}", case.replace(' ', "-"));
        assert_eq!(weir.get(&path, CLIENT).status, 200, "{case}");
        assert_eq!(lookups(&weir, outcome), 1.0, "{case}: {}", weir.metrics());
        assert_eq!(
            weir.line_of(&path)["country"],
            serde_json::Value::Null,
            "{case}"
        );
        assert_eq!(
            application.request(&path).header("x-client-country"),
            None,
            "{case}"
        );
        assert_eq!(geo.asked(), [CLIENT], "{case}");
        // A failure is not asked about again at once.
        assert_eq!(weir.get("/again", CLIENT).status, 200, "{case}");
        assert_eq!(geo.asked().len(), 1, "{case}");
    }
}

/// LOOKUP-1: an answer in HTTP/1.0 is an answer; an AS 64512 is unknown, its country is not.
#[test]
fn http_1_0_is_understood_and_64512_is_unknown() {
    let application = Application::ok();
    let geo = Geo::start(|question| {
        let body = r#"{"country_code":"at","asn":"AS64512 Unknown","organization_name":"Unknown"}"#;
        question.send(format!("HTTP/1.0 200 OK\r\n\r\n{body}").as_bytes());
        question.close();
    });
    let weir = start(
        &application,
        &geo.settings(&[("WAF_ADD_LOOKUP_HEADERS", "on")]),
    );
    weir.get("/a", CLIENT).expect(200);
    let seen = application.request("/a");
    assert_eq!(
        (seen.header("x-client-country"), seen.header("x-client-asn")),
        (Some("AT"), None)
    );
    assert_eq!(lookups(&weir, "known"), 1.0);
    let line = weir.line_of("/a");
    assert!(
        line.get("asn").is_none() && line.get("as_name").is_none(),
        "{line}"
    );
}

/// LOOKUP-1: `url` reads another service's answer through JSON Pointers.
#[test]
fn another_service_is_read_through_pointers() {
    let application = Application::ok();
    let geo = Geo::saying(r#"{"data":[{"geo":{"cc":"FR"},"as":"AS64499 Quelqu'un"}]}"#);
    let settings = geo.settings(&[
        ("WAF_LOOKUP_SOURCE", "url"),
        ("WAF_LOOKUP_JSON_COUNTRY", "/data/0/geo/cc"),
        ("WAF_LOOKUP_JSON_ASN", "/data/0/as"),
        ("WAF_DENY_COUNTRIES", "XX"),
    ]);
    let weir = start(&application, &settings);
    weir.get("/a", CLIENT).expect(200);
    let line = weir.line_of("/a");
    assert_eq!(
        [&line["country"], &line["asn"], &line["as_name"]],
        ["FR", "AS64499", "Quelqu'un"]
    );
}

/// LOOKUP-2: without the right certificate authority nothing is asked and nothing is believed.
#[test]
fn a_wrong_certificate_is_refused() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let other = geo.file("other.pem").display().to_string();
    let settings = geo.settings(&[("WAF_DENY_COUNTRIES", "DE"), ("WAF_LOOKUP_CA_FILE", &other)]);
    let weir = start(&application, &settings);
    weir.get("/a", CLIENT).expect(200);
    assert_eq!(lookups(&weir, "error"), 1.0);
    assert!(geo.asked().is_empty());
}

/// LOOKUP-3, LOOKUP-8: with a service that never answers, requests that need nothing do not wait;
/// those that need the answer wait `WAF_LOOKUP_TIMEOUT` at most, once for each client, and after
/// five failures not at all.
#[test]
fn a_silent_service_delays_nobody_for_long() {
    let application = Application::ok();
    let geo = Geo::silent();
    let weir = start(
        &application,
        &geo.settings(&[("WAF_LOOKUP_TIMEOUT", "10s")]),
    );
    for number in 1..=200 {
        weir.get("/a", &format!("81.3.0.{number}")).expect(200);
    }
    for line in weir.lines_of("/a", 200) {
        assert!(line["timings"].get("lookup_wait").is_none(), "{line}");
    }
    wait_until("64 questions in flight", || geo.asked().len() == 64);

    let geo = Geo::silent();
    let weir = start(
        &application,
        &geo.settings(&[
            ("WAF_DENY_COUNTRIES", "DE"),
            ("WAF_LOOKUP_TIMEOUT", "400ms"),
        ]),
    );
    for client in 1..=5 {
        let path = format!("/waits-{client}");
        let client = format!("81.2.69.{client}");
        weir.get(&path, &client).expect(200);
        let waited = weir.line_of(&path)["timings"]["lookup_wait"]
            .as_f64()
            .expect("a wait");
        assert!(waited >= 400.0, "{waited} ms");
        let again = format!("{path}-not");
        weir.get(&again, &client).expect(200);
        assert!(weir.line_of(&again)["timings"].get("lookup_wait").is_none());
    }
    wait_for_lookups(&weir, "timeout", 5.0);
    weir.wait_for_process_log(&["no request waits", "WAF_LOOKUP_TIMEOUT"]);
    for client in 6..=20 {
        let path = format!("/open-{client}");
        weir.get(&path, &format!("81.2.69.{client}")).expect(200);
        assert!(weir.line_of(&path)["timings"].get("lookup_wait").is_none());
    }
    wait_for_lookups(&weir, "timeout", 5.0);
    // The handshake of one may have been late.
    assert!(geo.asked().len() <= 5, "{}", geo.asked().len());
}

/// LOOKUP-2: 1,000 first requests of one client at once are one question, and each of them gets its
/// answer.
#[test]
fn a_thousand_first_requests_are_one_question() {
    if transport::is_left_out_over_tls("a thousand handshakes take longer than a lookup may") {
        return;
    }
    let application = Application::ok();
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let geo = Geo::start(move |question| {
        // Until the test lets go.
        let _ = held.lock().expect("the gate").recv();
        question.say(GERMANY);
    });
    // Refused by country: a thousand answers without a thousand connections to the application.
    let weir = start(&application, &geo.settings(&[("WAF_DENY_COUNTRIES", "DE")]));
    let mut connections: Vec<Connection> = (0..1000)
        .map(|_| {
            let mut connection = Connection::open(weir.address());
            connection.send(&get("/a", &[("X-Forwarded-For", CLIENT)]));
            connection
        })
        .collect();
    wait_for("every connection", || {
        (weir.metric("waf_connections")? >= 1000.0).then_some(())
    });
    drop(go);
    for connection in &mut connections {
        connection.response().expect(429);
    }
    assert_eq!(geo.asked(), [CLIENT]);
    assert_eq!(lookups(&weir, "known"), 1.0);
    assert_eq!(
        weir.metric("waf_requests_total{action=\"denied_country\",mode=\"enforce\"}"),
        Some(1000.0)
    );
}

/// LOG-3: a client that goes away while its lookup is waited for has its line.
#[test]
fn a_client_that_leaves_while_it_waits_is_logged() {
    let (application, geo) = (Application::ok(), Geo::silent());
    let weir = start(&application, &geo.settings(&[("WAF_DENY_COUNTRIES", "DE")]));
    let mut connection = Connection::open(weir.address());
    connection.send(&get("/left", &[("X-Forwarded-For", CLIENT)]));
    wait_until("the question", || geo.asked().len() == 1);
    connection.reset();
    assert_eq!(weir.line_of("/left")["action"], "client_aborted");
}

/// LOOKUP-6, LOG-3: a POST that waits for its lookup arrives whole.
#[test]
fn a_body_survives_the_wait() {
    let (application, geo) = (Application::echo(), Geo::saying(GERMANY));
    let weir = start(
        &application,
        &geo.settings(&[("WAF_ADD_LOOKUP_HEADERS", "on")]),
    );
    let body = vec![b'x'; 200_000];
    let answer = weir.send(&request(
        "POST",
        "/up",
        &[("X-Forwarded-For", CLIENT)],
        Some(&body),
    ));
    assert_eq!((answer.status, answer.body.len()), (200, body.len()));
    assert_eq!(weir.line_of("/up")["country"], "DE");
}
