//! Who a client is, as an operator, an application and a lookup service see it (LOOKUP, CHECK-2,
//! LIMIT-4). The addresses are public ones, because private and documentation ranges are never
//! looked up; nothing leaves the machine.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::application::{After, Application};
use crate::support::geo::{Geo, Question};
use crate::support::raw_client::{Connection, get, request};
use crate::support::weir::{StateDir, Weir, state_dir};
use crate::support::{wait_for, wait_until};

const GERMANY: &str = r#"{"ip":"x","country_code":"DE","asn":64496,"organization_name":"Example"}"#;
const CLIENT: &str = "81.2.69.7";

fn start(application: &Application, settings: &[(&'static str, String)]) -> Weir {
    start_on(application, &state_dir(), settings)
}

#[track_caller]
fn start_on(application: &Application, state: &StateDir, settings: &[(&str, String)]) -> Weir {
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    Weir::start_at(application.address(), state, &settings)
}

#[track_caller]
fn lookups(weir: &Weir, outcome: &str) -> f64 {
    let series = format!("waf_lookups_total{{outcome=\"{outcome}\"}}");
    weir.metric(&series)
        .unwrap_or_else(|| panic!("no {series}"))
}

#[track_caller]
fn wait_for_lookups(weir: &Weir, outcome: &str, count: f64) {
    wait_until(&format!("{count} lookups {outcome}"), || {
        lookups(weir, outcome) == count
    });
}

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

/// LOOKUP-7: with a service one line says where addresses go and how to stop it; with `file` and
/// `off` there is none.
#[test]
fn the_start_says_where_addresses_go() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let with_service = start(&application, &geo.settings(&[]));
    let line = with_service.wait_for_process_log(&["visitors' addresses"]);
    let text = line.to_string();
    for part in [
        "https://localhost:",
        "WAF_LOOKUP_SOURCE=file",
        "WAF_LOOKUP_SOURCE=off",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let path = fixture("lite.mmdb").display().to_string();
    let file = vec![
        ("WAF_LOOKUP_SOURCE", "file".to_owned()),
        ("WAF_LOOKUP_DB_PATH", path),
    ];
    for settings in [file, vec![]] {
        let weir = start(&application, &settings);
        assert!(!weir.process_log_text().contains("visitors' addresses"));
    }
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
    for client in 6..=20 {
        let path = format!("/open-{client}");
        weir.get(&path, &format!("81.2.69.{client}")).expect(200);
        assert!(weir.line_of(&path)["timings"].get("lookup_wait").is_none());
    }
    assert_eq!(geo.asked().len(), 5);
    weir.wait_for_process_log(&["no request waits", "WAF_LOOKUP_TIMEOUT"]);
}

/// LOOKUP-2: 1,000 first requests of one client at once are one question, and each of them gets its
/// answer.
#[test]
fn a_thousand_first_requests_are_one_question() {
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

/// CHECK, CHECK-2: the deny list refuses by the fresh answer (step 8) and by the known one (step
/// 5), which comes before the ban ledger (step 6); a banned client that is not known is not asked
/// about.
#[test]
fn the_deny_list_stands_before_the_bans_once_known() {
    let application = Application::ok();
    let geo = Geo::start(|question| match &*question.address {
        "81.2.69.7" => question.say(GERMANY),
        "81.2.70.7" => question.say(r#"{"asn":64496}"#),
        _ => question.say(r#"{"country_code":"FR"}"#),
    });
    let settings = geo.settings(&[
        ("WAF_DENY_COUNTRIES", "DE,unknown"),
        ("WAF_BAN_RESPONSE", "403"),
    ]);
    let weir = start(&application, &settings);
    weir.get("/fresh", CLIENT).expect(403);
    weir.get("/known", CLIENT).expect(403);
    weir.get("/unknown", "81.2.70.7").expect(403);
    weir.get("/private", "10.0.0.1").expect(403);
    weir.get("/france", "81.2.71.7").expect(200);
    for path in ["/fresh", "/known", "/unknown", "/private"] {
        let line = weir.line_of(path);
        assert_eq!(line["action"], "denied_country", "{line}");
        assert!(line.get("counts").is_none(), "not counted: {line}");
    }
    weir.ban("netblock", "81.2.0.0/16", "1h");
    weir.get("/known-and-banned", CLIENT);
    assert_eq!(
        weir.line_of("/known-and-banned")["action"],
        "denied_country"
    );
    weir.get("/banned", "81.2.99.7");
    assert_eq!(weir.line_of("/banned")["action"], "banned");
    assert!(!geo.asked().contains(&"81.2.99.7".to_owned()));
    let client = weir
        .admin("GET", &format!("/_waf/clients/{CLIENT}"), None)
        .json();
    assert_eq!(
        (&client["client"]["refused"], &client["client"]["passed"]),
        (&3.into(), &0.into())
    );
}

/// CHECK-2, LOOKUP-3: an allow list lets its countries in and nobody else; a lookup that fails is
/// refused by it, unless `unknown` is listed.
#[test]
fn the_allow_list_asks_for_a_country() {
    let application = Application::ok();
    for (list, failed) in [("DE", 429), ("DE,unknown", 200)] {
        let geo = Geo::start(|question| match &*question.address {
            "81.2.69.7" => question.say(GERMANY),
            "81.2.70.7" => question.say(r#"{"country_code":"FR"}"#),
            _ => question.answer("HTTP/1.1 500 Oops", "", ""),
        });
        let weir = start(
            &application,
            &geo.settings(&[("WAF_ALLOW_COUNTRIES", list)]),
        );
        weir.get("/de", CLIENT).expect(200);
        weir.get("/fr", "81.2.70.7").expect(429);
        assert_eq!(weir.get("/failed", "81.2.71.7").status, failed);
        assert_eq!(weir.get("/failed", "81.2.71.7").status, failed);
        // The health check and allowed nets ask nobody.
        weir.get("/_waf/health", "81.2.72.7").expect(200);
        assert_eq!(geo.asked().len(), 3);
    }
}

/// CHECK-3: in observe mode a denied country is logged and let through.
#[test]
fn observe_mode_lets_a_denied_country_through() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let settings = geo.settings(&[("WAF_DENY_COUNTRIES", "DE"), ("WAF_MODE", "observe")]);
    let weir = start(&application, &settings);
    weir.get("/a", CLIENT).expect(200);
    let line = weir.line_of("/a");
    assert_eq!(
        (&line["action"], &line["enforced"]),
        (&"denied_country".into(), &false.into())
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

/// LIMIT-4: a lowered limit is the limit times the percentage, rounded down; log, ban and RateLimit
/// fields name it.
#[test]
fn a_lowered_limit_breaks_earlier_and_says_why() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let settings = geo.settings(&[
        ("WAF_RATE_LIMIT_PER_HOUR", "7"),
        ("WAF_ASN_LIMIT_PERCENT", "AS64496=50"),
        ("WAF_COUNTRY_LIMIT_PERCENT", "DE=80"),
        ("WAF_RATE_LIMIT_HEADERS", "always"),
    ]);
    let weir = start(&application, &settings);
    for number in 1..=3 {
        let answer = weir.get("/a", CLIENT);
        assert_eq!(answer.status, 200);
        let fields = answer.header("ratelimit").unwrap();
        assert!(
            fields.contains(&format!("\"hour\";r={};", 3 - number)),
            "{fields}"
        );
        assert!(
            answer
                .header("ratelimit-policy")
                .unwrap()
                .contains("\"hour\";q=3;")
        );
    }
    weir.get("/broken", CLIENT).expect(429);
    let line = weir.line_of("/broken");
    let applied = serde_json::json!({"percent": 50, "setting": "WAF_ASN_LIMIT_PERCENT"});
    assert_eq!(
        (&line["limit_percent"], &line["bytes_percent"]),
        (&applied, &applied)
    );
    assert_eq!(line["limit_hit"], "hour");
    let notes = &weir.bans()[0]["notes"];
    assert_eq!(
        (&notes["limit_percent"], &notes["limit_value"]),
        (&50.into(), &3.into())
    );
    assert_eq!(
        notes["lookup"],
        serde_json::json!({"country": "DE", "asn": "AS64496", "as_name": "Example"})
    );
}

/// LIMIT-4, LIMIT-5: a byte percentage replaces the other for byte limits alone; both are in the
/// log.
#[test]
fn byte_percentages_replace_the_others_for_bytes() {
    let geo = Geo::saying(GERMANY);
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], &[b'x'; 60]);
        After::KeepAlive
    });
    let settings = geo.settings(&[
        ("WAF_COUNTRY_LIMIT_PERCENT", "DE=90"),
        ("WAF_COUNTRY_BYTES_PERCENT", "DE=10"),
        ("WAF_BYTES_LIMIT_PER_HOUR", "1199"),
    ]);
    let weir = start(&application, &settings);
    weir.get("/within", CLIENT).expect(200);
    assert_eq!(
        weir.get("/over", CLIENT).status,
        200,
        "nothing is cut short"
    );
    let line = weir.line_of("/over");
    let percent =
        |percent: u8, setting: &str| serde_json::json!({"percent": percent, "setting": setting});
    assert_eq!(
        line["limit_percent"],
        percent(90, "WAF_COUNTRY_LIMIT_PERCENT")
    );
    assert_eq!(
        line["bytes_percent"],
        percent(10, "WAF_COUNTRY_BYTES_PERCENT")
    );
    assert_eq!(line["limit_hit"], "hour_bytes");
    let notes = wait_for("the ban", || {
        weir.bans().first().map(|ban| ban["notes"].clone())
    });
    assert_eq!(
        (&notes["limit_percent"], &notes["limit_value"]),
        (&10.into(), &119.into())
    );
}

/// LIMIT-4: 0 percent refuses the first request; a client without a country has the unknown
/// percentage whatever its AS number; exempt paths wait for nothing that only limits need.
#[test]
fn zero_percent_and_clients_without_a_country() {
    let application = Application::ok();
    let geo = Geo::start(|question| match &*question.address {
        "81.2.69.7" => question.say(GERMANY),
        "81.2.70.7" => question.say(r#"{"country_code":"nil","asn":64496}"#),
        _ => std::thread::sleep(Duration::from_secs(60)),
    });
    let settings = geo.settings(&[
        ("WAF_RATE_LIMIT_PER_MINUTE", "4"),
        ("WAF_COUNTRY_LIMIT_PERCENT", "DE=0"),
        ("WAF_ASN_LIMIT_PERCENT", "AS64496=100"),
        ("WAF_UNKNOWN_LIMIT_PERCENT", "25"),
        ("WAF_EXEMPT_PATHS", "/static"),
    ]);
    let weir = start(&application, &settings);
    weir.get("/zero", CLIENT).expect(429);
    assert_eq!(weir.line_of("/zero")["limit_percent"]["percent"], 0);
    assert_eq!(weir.bans()[0]["notes"]["limit_value"], 0);
    weir.get("/one", "81.2.70.7").expect(200);
    weir.get("/two", "81.2.70.7").expect(429);
    let line = weir.line_of("/two");
    assert_eq!(
        line["limit_percent"],
        serde_json::json!({"percent": 25, "setting": "WAF_UNKNOWN_LIMIT_PERCENT"})
    );
    weir.get("/static/a", "81.2.71.7").expect(200);
    assert!(
        weir.line_of("/static/a")["timings"]
            .get("lookup_wait")
            .is_none()
    );
}

/// STATE-3, LOOKUP-2: an edit of lookups.json counts: what a hand says of a client is what is known
/// of it.
#[test]
fn an_edit_of_lookups_json_counts() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let settings = geo.settings(&[
        ("WAF_ADD_LOOKUP_HEADERS", "on"),
        ("WAF_STATE_COUNTER_INTERVAL", "200ms"),
        // The test asks until the answer is there.
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
    ]);
    let weir = start(&application, &settings);
    weir.get("/a", CLIENT);
    let mut file = wait_for("the answer in lookups.json", || {
        let text = std::fs::read_to_string(weir.state_path("lookups.json")).ok()?;
        let file: serde_json::Value = serde_json::from_str(&text).ok()?;
        file["lookups"].get(0)?;
        Some(file)
    });
    file["lookups"][0]["country"] = "FR".into();
    std::fs::write(weir.state_path("lookups.json"), file.to_string()).unwrap();
    let mut number = 0;
    wait_until("the edited country", || {
        number += 1;
        let path = format!("/try-{number}");
        weir.get(&path, CLIENT);
        application.request(&path).header("x-client-country") == Some("FR")
    });
    assert_eq!(geo.asked().len(), 1);
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// LOOKUP-5: both layouts and a list of two files; nobody waits.
#[test]
fn database_files_tell_who_a_client_is() {
    let application = Application::ok();
    let two = format!(
        "{}, {}",
        fixture("country.mmdb").display(),
        fixture("asn.mmdb").display()
    );
    let one = fixture("lite.mmdb").display().to_string();
    for (paths, german_as) in [(two, None), (one, Some("AS64496"))] {
        let settings = [
            ("WAF_LOOKUP_SOURCE", "file".to_owned()),
            ("WAF_LOOKUP_DB_PATH", paths),
            ("WAF_ADD_LOOKUP_HEADERS", "on".to_owned()),
            ("WAF_DENY_COUNTRIES", "SE".to_owned()),
        ];
        let weir = start(&application, &settings);
        for (client, country, asn) in [
            ("81.2.69.7", Some("GB"), Some("AS20712")),
            ("::ffff:81.2.69.8", Some("GB"), Some("AS20712")),
            ("2a02:d0c0:7::9", Some("DE"), german_as),
            ("8.8.8.8", None, None),
            ("10.0.0.1", None, None),
        ] {
            let path = format!("/{}-{client}", german_as.unwrap_or("two"));
            weir.get(&path, client).expect(200);
            let seen = application.request(&path);
            assert_eq!(
                (seen.header("x-client-country"), seen.header("x-client-asn")),
                (country, asn),
                "{path}"
            );
            assert!(weir.line_of(&path)["timings"].get("lookup_wait").is_none());
        }
        assert!(
            weir.metric("waf_lookup_file_read_timestamp_seconds")
                .unwrap()
                > 1.7e9
        );
    }
}

/// LOOKUP-5, METRIC: a replacement is read 2 seconds after its last change, atomically or in place,
/// also one of an earlier build, and clients that are known already get the new answer; garbage and
/// a truncated file are logged and counted, and what was read before stays in use.
#[test]
fn a_database_file_is_replaced_while_the_service_runs() {
    let application = Application::ok();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db.mmdb");
    std::fs::copy(fixture("lite.mmdb"), &file).unwrap();
    let settings = [
        ("WAF_LOOKUP_SOURCE", "file".to_owned()),
        ("WAF_LOOKUP_DB_PATH", file.display().to_string()),
        ("WAF_ADD_LOOKUP_HEADERS", "on".to_owned()),
        // The test asks until the answer is there.
        ("WAF_RATE_LIMIT_PER_MINUTE", "off".to_owned()),
        ("WAF_RATE_LIMIT_PER_HOUR", "off".to_owned()),
    ];
    let weir = start(&application, &settings);
    let mut number = 0;
    let mut country = || {
        number += 1;
        let path = format!("/{number}");
        weir.get(&path, CLIENT).expect(200);
        application
            .request(&path)
            .header("x-client-country")
            .map(str::to_owned)
    };
    assert_eq!(country().as_deref(), Some("GB"));
    let read_at = || {
        weir.metric("waf_lookup_file_read_timestamp_seconds")
            .unwrap()
    };
    let started = read_at();

    let whole = std::fs::read(fixture("lite-later.mmdb")).unwrap();
    for (count, bad) in [(1.0, &b"garbage"[..]), (2.0, &whole[..whole.len() / 2])] {
        std::fs::write(&file, bad).unwrap();
        wait_for("the count of a bad replacement", || {
            (weir.metric("waf_lookup_file_errors_total")? == count).then_some(())
        });
        assert_eq!(country().as_deref(), Some("GB"));
        assert_eq!(read_at(), started);
    }
    weir.wait_for_process_log(&["file_error", "db.mmdb", "stays in use"]);
    // ALERT-4: each is an alert on the log.
    let alerts = wait_for("two alerts", || {
        let lines = weir.log_lines().into_iter();
        let alerts: Vec<_> = lines.filter(|line| line["kind"] == "file_error").collect();
        (alerts.len() == 2).then_some(alerts)
    });
    assert_eq!(alerts[0]["event"], "alert");
    assert_eq!(alerts[0]["file"], file.to_str().unwrap());
    assert_eq!(
        weir.metric("waf_alerts_total{kind=\"file_error\"}"),
        Some(2.0)
    );

    let changed = Instant::now();
    std::fs::write(&file, &whole).unwrap();
    wait_until("the file written in place", || {
        country().as_deref() == Some("FR")
    });
    assert!(
        changed.elapsed() >= Duration::from_secs(2),
        "read before it had settled"
    );
    let next = directory.path().join("next.mmdb");
    std::fs::copy(fixture("lite-earlier.mmdb"), &next).unwrap();
    std::fs::rename(&next, &file).unwrap();
    wait_until("the file renamed into place", || {
        country().as_deref() == Some("IT")
    });
    weir.wait_for_process_log(&["built earlier"]);
    assert!(read_at() > started);
    assert_eq!(weir.metric("waf_lookup_file_errors_total"), Some(2.0));
}

/// SETTING-2: the start is stopped with status 78 and a sentence.
#[test]
fn what_does_not_fit_stops_the_start() {
    let missing = "/nowhere/db.mmdb";
    let other = fixture("other.mmdb").display().to_string();
    for (settings, sentence) in [
        (
            vec![("WAF_LOOKUP_SOURCE", "file")],
            "WAF_LOOKUP_DB_PATH is not set",
        ),
        (
            vec![("WAF_LOOKUP_DB_PATH", missing)],
            "expected a path with file only",
        ),
        (
            vec![
                ("WAF_LOOKUP_SOURCE", "file"),
                ("WAF_LOOKUP_DB_PATH", missing),
            ],
            "the lookup database /nowhere/db.mmdb cannot be read: No such file or directory",
        ),
        (
            vec![
                ("WAF_LOOKUP_SOURCE", "file"),
                ("WAF_LOOKUP_DB_PATH", &other),
            ],
            "holds neither countries nor AS numbers",
        ),
        (
            vec![("WAF_ASN_LIMIT_PERCENT", "AS1=50")],
            "WAF_ASN_LIMIT_PERCENT=\"AS1=50\" needs lookups",
        ),
        (
            vec![("WAF_COUNTRY_BYTES_PERCENT", "DE=0")],
            "WAF_COUNTRY_BYTES_PERCENT=\"DE=0\" needs lookups",
        ),
        (
            vec![("WAF_ALLOW_COUNTRIES", "DE"), ("WAF_DENY_COUNTRIES", "FR")],
            "expected only one of them",
        ),
        (
            vec![
                ("WAF_LOOKUP_SOURCE", "geojs"),
                ("WAF_LOOKUP_URL", "http://127.0.0.1:9/{ip}"),
                ("WAF_LOOKUP_CA_FILE", missing),
            ],
            "WAF_LOOKUP_CA_FILE=\"/nowhere/db.mmdb\" cannot be used",
        ),
    ] {
        let refused = Weir::refuse(&state_dir(), &settings);
        assert_eq!(refused.code, Some(78), "{settings:?}");
        assert!(
            refused.stderr.contains(&sentence.replace('"', "\\\""))
                || refused.stderr.contains(sentence),
            "{}",
            refused.stderr
        );
    }
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
