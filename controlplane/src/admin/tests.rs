//! Routes, tokens and answers, against a loop that is turned by hand.

use bytes::Bytes;
use http::HeaderValue;
use serde_json::{Value, json};
use weir_shared::settings::TokenSource;
use weir_shared::verdict::{Action, History};

use super::*;
use crate::testing::{ADMIN, METRICS, NOW, Rig, body, request, row, settings, settings_with};

const BAN: &str = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;

fn with(token: Option<&'static str>, request: OwnRequest) -> OwnRequest {
    OwnRequest {
        authorization: token.map(HeaderValue::from_static),
        ..request
    }
}

fn header<'a>(answer: &'a OwnResponse, name: &str) -> Option<&'a str> {
    answer
        .headers
        .get(name)
        .map(|value| value.to_str().unwrap())
}

/// ADMIN-3: what every answer has in common.
fn check_problem(answer: &OwnResponse, status: u16, detail: &str) {
    let problem = body(answer);
    assert_eq!(answer.status, status, "{problem}");
    assert_eq!(
        header(answer, "content-type"),
        Some("application/problem+json")
    );
    assert_eq!(header(answer, "cache-control"), Some("no-store"));
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["status"], status);
    assert_eq!(problem["request_id"], "id-1");
    let title = answer.status.canonical_reason().unwrap();
    assert_eq!(problem["title"], title);
    let told = problem["detail"].as_str().unwrap();
    assert!(told.contains(detail), "{told:?} lacks {detail:?}");
}

/// ADMIN-1, ADMIN-3, CHECK-1: each wrong request gets its status and its text in the problem
/// document.
#[test]
fn every_wrong_request_has_its_answer() {
    let mut rig = Rig::new(settings());
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(65_536));
    let token = "the token is missing or wrong";
    let nothing = "there is nothing here";
    let no_address = "is not an address";
    for (method, path, authorization, text, status, detail) in [
        // Paths that are none of ours, with and without a token.
        ("GET", "/_waf/", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf/other", None, "", 404, nothing),
        ("GET", "/_waf/bans/", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf/Bans", Some(ADMIN), "", 404, nothing),
        ("GET", "//_waf/bans", Some(ADMIN), "", 404, nothing),
        ("GET", "/%5fwaf/bans", Some(ADMIN), "", 404, nothing),
        ("GET", "/x/../_waf/bans", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf//bans", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf/./bans", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf/b%61ns", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf/bans;x=1", Some(ADMIN), "", 404, nothing),
        ("GET", "/_waf/metrics/", Some(METRICS), "", 404, nothing),
        (
            "DELETE",
            "/_waf/bans//203.0.113.7",
            Some(ADMIN),
            "",
            404,
            nothing,
        ),
        ("DELETE", "/_waf/bans/..", Some(ADMIN), "", 404, nothing),
        (
            "DELETE",
            "/_waf/bans/%2e%2e/bans",
            Some(ADMIN),
            "",
            404,
            nothing,
        ),
        (
            "DELETE",
            "/_waf/bans/x/./203.0.113.7",
            Some(ADMIN),
            "",
            404,
            nothing,
        ),
        ("GET", "/_waf/health/x", Some(ADMIN), "", 404, nothing),
        // Tokens, whatever the method.
        ("GET", "/_waf/bans", None, "", 401, token),
        ("POST", "/_waf/bans", None, BAN, 401, token),
        ("PUT", "/_waf/bans", Some(METRICS), BAN, 401, token),
        (
            "DELETE",
            "/_waf/bans/203.0.113.7",
            Some("Bearer x"),
            "",
            401,
            token,
        ),
        (
            "GET",
            "/_waf/clients/x",
            Some("Basic admin-token"),
            "",
            401,
            token,
        ),
        ("GET", "/_waf/metrics", Some(ADMIN), "", 401, token),
        // Methods.
        ("POST", "/_waf/health", None, "", 405, "expected GET, HEAD"),
        (
            "HEAD",
            "/_waf/bans",
            Some(ADMIN),
            "",
            405,
            "expected GET, POST",
        ),
        (
            "DELETE",
            "/_waf/bans",
            Some(ADMIN),
            "",
            405,
            "expected GET, POST",
        ),
        (
            "GET",
            "/_waf/bans/203.0.113.7",
            Some(ADMIN),
            "",
            405,
            "expected DELETE",
        ),
        (
            "DELETE",
            "/_waf/clients/203.0.113.7",
            Some(ADMIN),
            "",
            405,
            "expected GET",
        ),
        (
            "POST",
            "/_waf/metrics",
            Some(METRICS),
            "",
            405,
            "expected GET",
        ),
        // Addresses and queries.
        (
            "DELETE",
            "/_waf/bans/203.0.113.0/24",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        (
            "DELETE",
            "/_waf/bans/203.0.113.0%2F24",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        (
            "DELETE",
            "/_waf/bans/203.0.113.0/",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        (
            "DELETE",
            "/_waf/bans/example.org",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        (
            "DELETE",
            "/_waf/bans/fe80::1%25eth0",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        ("DELETE", "/_waf/bans/%ff", Some(ADMIN), "", 400, no_address),
        (
            "DELETE",
            "/_waf/bans/..%2fmetrics",
            Some(ADMIN),
            "",
            404,
            nothing,
        ),
        (
            "GET",
            "/_waf/clients/2001:db8::/64",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        (
            "GET",
            "/_waf/clients/[::1]",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        (
            "GET",
            "/_waf/clients/203.0.113.7",
            Some(ADMIN),
            "",
            404,
            nothing,
        ),
        (
            "GET",
            "/_waf/bans?active=yes",
            Some(ADMIN),
            "",
            400,
            "true or false",
        ),
        (
            "GET",
            "/_waf/bans?active",
            Some(ADMIN),
            "",
            400,
            "true or false",
        ),
        (
            "GET",
            "/_waf/bans?active=true&active=true",
            Some(ADMIN),
            "",
            400,
            "given twice",
        ),
        (
            "GET",
            "/_waf/bans?ip=203.0.113.0/24",
            Some(ADMIN),
            "",
            400,
            no_address,
        ),
        ("GET", "/_waf/bans?ip=", Some(ADMIN), "", 400, no_address),
        // Bodies that are no JSON; those that do not fit have a test of their own.
        ("POST", "/_waf/bans", Some(ADMIN), "", 400, "not JSON"),
        ("POST", "/_waf/bans", Some(ADMIN), "{", 400, "not JSON"),
        (
            "POST",
            "/_waf/bans",
            Some(ADMIN),
            "{} {}",
            400,
            "trailing characters",
        ),
        (
            "POST",
            "/_waf/bans",
            Some(ADMIN),
            "{\"client\":}",
            400,
            "not JSON",
        ),
        (
            "POST",
            "/_waf/bans",
            Some(ADMIN),
            "\u{feff}{}",
            400,
            "not JSON",
        ),
        (
            "POST",
            "/_waf/bans",
            Some(ADMIN),
            &"[".repeat(60_000),
            400,
            "recursion limit",
        ),
        ("POST", "/_waf/bans", Some(ADMIN), &long, 413, "65536 bytes"),
    ] {
        let answer = rig.ask(with(authorization, request(method, path, text)));
        check_problem(&answer, status, detail);
        let (action, history) = match status {
            401 => (Action::Unauthorized, History::Refused),
            404 => (Action::NotFound, History::Neither),
            _ if path == "/_waf/metrics" => (Action::Answered, History::Neither),
            _ => (Action::Answered, History::Passed),
        };
        // CHECK-4
        assert_eq!((answer.action, answer.history), (action, history));
        assert_eq!(
            header(&answer, "www-authenticate"),
            (status == 401).then_some("Bearer")
        );
        assert_eq!(header(&answer, "allow").is_some(), status == 405);
    }
    let not_utf8 = OwnRequest {
        body: Some(Body::Whole(Bytes::from_static(b"{\"reason\":\"\xff\"}"))),
        ..request("POST", "/_waf/bans", "")
    };
    check_problem(&rig.ask(not_utf8), 400, "not JSON");
    let too_large = OwnRequest {
        body: Some(Body::TooLarge),
        ..request("POST", "/_waf/bans", "")
    };
    check_problem(&rig.ask(too_large), 413, "65536 bytes");
    let cut_off = OwnRequest {
        body: Some(Body::CutOff),
        ..request("POST", "/_waf/bans", "")
    };
    check_problem(&rig.ask(cut_off), 400, "ended early");
    assert!(rig.control.turn(std::time::Duration::ZERO) == crate::control_loop::Flow::Go);
    assert_eq!(body(&rig.get("/_waf/bans"))["bans"], json!([]));
}

/// ADMIN-1: without a token setting the endpoints do not exist, for any request.
#[test]
fn without_a_token_set_there_is_nothing() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.endpoints.metrics_token = TokenSource::Unset;
        settings.endpoints.admin_token = TokenSource::Unset;
    }));
    for (method, path, token) in [
        ("GET", "/_waf/bans", Some(ADMIN)),
        ("PUT", "/_waf/bans", None),
        ("POST", "/_waf/bans", Some("Bearer ")),
        ("DELETE", "/_waf/bans/x", Some(ADMIN)),
        ("GET", "/_waf/clients/203.0.113.7", Some(ADMIN)),
        ("GET", "/_waf/metrics", Some(METRICS)),
        ("POST", "/_waf/metrics", None),
    ] {
        let answer = rig.ask(with(token, request(method, path, "")));
        check_problem(&answer, 404, "there is nothing here");
    }
}

/// ADMIN-2: every fault of a body at once, each with its JSON pointer.
#[test]
fn every_fault_of_a_body_is_told_with_its_pointer() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.identity.trusted_proxies = ["192.0.2.1", "2001:db8:9::/48"]
            .map(|text| text.parse().unwrap())
            .into_iter()
            .collect();
    }));
    let whole = |scope: &str| format!(r#"{{{scope},"duration":"2h","reason":"r"}}"#);
    let rest = |rest: &str| format!(r#"{{"client":"203.0.113.7",{rest}}}"#);
    let reason = |text: &str| rest(&format!(r#""duration":"2h","reason":"{text}""#));
    let duration = |text: &str| rest(&format!(r#""duration":{text},"reason":"r""#));
    for (text, faults) in [
        ("[]".to_owned(), vec![("", "not of type \"object\"")]),
        ("null".to_owned(), vec![("", "not of type \"object\"")]),
        ("7".to_owned(), vec![("", "not of type \"object\"")]),
        ("-7".to_owned(), vec![("", "not of type \"object\"")]),
        ("7.5".to_owned(), vec![("", "not of type \"object\"")]),
        ("true".to_owned(), vec![("", "not of type \"object\"")]),
        ("\"x\"".to_owned(), vec![("", "not of type \"object\"")]),
        (
            "{}".to_owned(),
            vec![
                ("", "\"duration\" is a required"),
                ("", "\"reason\" is a required"),
                ("", "One of client and netblock"),
            ],
        ),
        (
            whole(r#""client":"203.0.113.7","netblock":"203.0.113.0/24""#),
            vec![("", "One of client and netblock, and not both")],
        ),
        (
            whole(r#""client":"203.0.113.7","client":"203.0.113.8""#),
            vec![("/client", "duplicate member")],
        ),
        (
            whole(r#""client":"203.0.113.7","until":1,"a/b~c":{}"#),
            vec![
                ("/until", "No further member"),
                ("/a~1b~0c", "No further member"),
            ],
        ),
        (
            whole(r#""client":null"#),
            vec![("/client", "not of type \"string\"")],
        ),
        (
            whole(r#""client":"example.org""#),
            vec![("/client", "One IPv4 address, or one IPv6 /64")],
        ),
        (
            whole(r#""client":"203.0.113.0/24""#),
            vec![("/client", "One IPv4 address, or one IPv6 /64")],
        ),
        (
            whole(r#""client":"fe80::1%eth0""#),
            vec![("/client", "One IPv4 address, or one IPv6 /64")],
        ),
        (
            whole(r#""netblock":7"#),
            vec![("/netblock", "not of type \"string\"")],
        ),
        (
            whole(r#""netblock":"203.0.113.0/33""#),
            vec![("/netblock", "An address or a prefix")],
        ),
        (
            whole(r#""netblock":"fe80::%eth0/64","force":true"#),
            vec![("/netblock", "An address or a prefix")],
        ),
        (
            whole(r#""netblock":"::ffff:203.0.113.0/120","force":true"#),
            vec![("/netblock", "IPv4-mapped")],
        ),
        (
            whole(r#""netblock":"::ffff:203.0.113.7","force":true"#),
            vec![("/netblock", "IPv4-mapped")],
        ),
        (
            whole(r#""netblock":"::ffff:203.0.113.7/64","force":true"#),
            vec![("/netblock", "IPv4-mapped")],
        ),
        (
            whole(r#""netblock":"0.0.0.0/0""#),
            vec![("/netblock", "covers every address")],
        ),
        (
            whole(r#""netblock":"::/0","force":false"#),
            vec![("/netblock", "covers every address")],
        ),
        (
            whole(r#""netblock":"192.0.2.0/24""#),
            vec![("/netblock", "192.0.2.1/32 of WAF_TRUSTED_PROXIES")],
        ),
        (
            whole(r#""client":"192.0.2.99""#),
            vec![("/client", "WAF_TRUSTED_PROXIES")],
        ),
        (
            whole(r#""netblock":"2001:db8:9:1::/64""#),
            vec![("/netblock", "2001:db8:9::/48 of WAF_TRUSTED_PROXIES")],
        ),
        (
            whole(r#""client":"203.0.113.7","force":1"#),
            vec![("/force", "not of type \"boolean\"")],
        ),
        (duration("\"0s\""), vec![("/duration", "more than nothing")]),
        (
            duration("\"2\""),
            vec![("/duration", "numbers with ms, s, m, h or d")],
        ),
        (
            duration("7200"),
            vec![("/duration", "not of type \"string\"")],
        ),
        (
            duration("\"-2h\""),
            vec![("/duration", "numbers with ms, s, m, h or d")],
        ),
        (
            duration("\"99999999999999999999d\""),
            vec![("/duration", "is not a duration")],
        ),
        (reason(""), vec![("/reason", "shorter than 1 character")]),
        (
            reason(&"ü".repeat(501)),
            vec![("/reason", "longer than 500 characters")],
        ),
        (
            rest(r#""duration":[],"reason":{}"#),
            vec![("/duration", "string"), ("/reason", "string")],
        ),
    ] {
        let answer = rig.post(&text);
        check_problem(&answer, 422, "fault");
        let problem = body(&answer);
        let told = problem["errors"].as_array().unwrap();
        let pointers: Vec<_> = told.iter().map(|fault| &fault["pointer"]).collect();
        let expected: Vec<_> = faults.iter().map(|(pointer, _)| pointer).collect();
        assert_eq!(pointers, expected, "{text}");
        for (fault, (_, detail)) in told.iter().zip(&faults) {
            let said = fault["detail"].as_str().unwrap();
            assert!(said.contains(detail), "{text}: {said:?} lacks {detail:?}");
        }
    }
    assert!(rig.disk.is_idle());
    assert_eq!(body(&rig.get("/_waf/bans"))["bans"], json!([]));
}

/// BAN-3, ADMIN-2: the netblock that a POST bans, and its answer.
#[test]
fn a_ban_is_made_as_it_was_asked_for() {
    let longest = "ü".repeat(500);
    for (scope, netblock, client, location) in [
        (
            r#""client":"203.0.113.7""#,
            "203.0.113.0/24",
            json!("203.0.113.7"),
            "203.0.113.7",
        ),
        (
            r#""client":"::ffff:203.0.113.7""#,
            "203.0.113.0/24",
            json!("203.0.113.7"),
            "203.0.113.7",
        ),
        (
            r#""client":"2001:db8:1:2::9""#,
            "2001:db8:1::/56",
            json!("2001:db8:1:2::/64"),
            "2001:db8:1:2::",
        ),
        (
            r#""netblock":"203.0.113.7/28""#,
            "203.0.113.0/28",
            Value::Null,
            "203.0.113.0",
        ),
        (
            r#""netblock":"203.0.113.7""#,
            "203.0.113.7/32",
            Value::Null,
            "203.0.113.7",
        ),
        (
            r#""netblock":"2001:db8::1""#,
            "2001:db8::/64",
            Value::Null,
            "2001:db8::",
        ),
        (
            r#""netblock":"0.0.0.0/0","force":true"#,
            "0.0.0.0/0",
            Value::Null,
            "0.0.0.0",
        ),
        (
            r#""netblock":"192.0.2.0/24","force":true"#,
            "192.0.2.0/24",
            Value::Null,
            "192.0.2.0",
        ),
    ] {
        let mut rig = Rig::new(settings_with(|settings| {
            settings.identity.trusted_proxies =
                std::iter::once("192.0.2.1".parse().unwrap()).collect();
        }));
        let text = format!(r#"{{{scope},"duration":"1h30m","reason":"{longest}"}}"#);
        let answer = rig.post(&text);
        assert_eq!(answer.status, 201, "{scope}");
        let location = format!("/_waf/bans?ip={location}");
        assert_eq!(header(&answer, "location"), Some(location.as_str()));
        assert_eq!(header(&answer, "content-type"), Some("application/json"));
        assert_eq!(header(&answer, "cache-control"), Some("no-store"));
        assert_eq!(
            (answer.action, answer.history),
            (Action::Answered, History::Passed)
        );
        let mut ban = json!({
            "netblock": netblock, "client": client, "ban_started": "2026-11-21T16:00:00Z",
            "ban_expires": "2026-11-21T17:30:00Z", "cause": "admin", "origin": "admin", "reason": longest, "lifted": null,
            "observed": false
        });
        if scope.contains("force") {
            ban["force"] = json!(true);
        }
        assert_eq!(body(&answer), ban);
        // The location leads to the ban.
        assert_eq!(body(&rig.get(&location))["bans"], json!([ban]));
    }
}

/// BAN-5: a full ledger is 409.
#[test]
fn a_full_ledger_is_a_conflict() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.bans.max = 1;
    }));
    assert_eq!(rig.post(BAN).status, 201);
    check_problem(&rig.post(BAN), 409, "WAF_MAX_BANS");
}

/// ADMIN: DELETE lifts every active ban that covers the address, and no other ban; lifted bans are
/// kept and marked.
#[test]
fn every_active_ban_of_an_address_is_lifted() {
    let mut rig = Rig::new(settings());
    for netblock in [
        "203.0.113.0/24",
        "203.0.0.0/16",
        "203.0.113.7",
        "203.0.113.8",
        "2001:db8::/56",
    ] {
        let text = format!(r#"{{"netblock":"{netblock}","duration":"permanent","reason":"r"}}"#);
        assert_eq!(rig.post(&text).status, 201);
    }
    rig.post(r#"{"netblock":"203.0.113.0/25","duration":"1s","reason":"over soon"}"#);
    rig.clock.advance_ms(1000);
    let answer = rig.ask(request("DELETE", "/_waf/bans/203.0.113.7", ""));
    assert_eq!(answer.status, 200);
    let lifted = body(&answer);
    let lifted = lifted["lifted"].as_array().unwrap();
    let netblocks: Vec<_> = lifted.iter().map(|ban| &ban["netblock"]).collect();
    assert_eq!(
        netblocks,
        ["203.0.0.0/16", "203.0.113.0/24", "203.0.113.7/32"]
    );
    assert!(
        lifted
            .iter()
            .all(|ban| ban["lifted"] == "2026-11-21T16:00:01Z")
    );
    assert_eq!(rig.banned_until("203.0.113.7"), None);
    assert_eq!(rig.banned_until("203.0.113.8"), Some(u64::MAX));
    let again = rig.ask(request("DELETE", "/_waf/bans/203.0.113.7", ""));
    assert_eq!(body(&again), json!({"lifted": []}));
    let six = rig.ask(request("DELETE", "/_waf/bans/2001%3Adb8%3A%3A9", ""));
    assert_eq!(body(&six)["lifted"][0]["netblock"], "2001:db8::/56");
    assert_eq!(
        body(&rig.get("/_waf/bans"))["bans"]
            .as_array()
            .unwrap()
            .len(),
        6
    );
}

/// CHECK-3: a ban made in observe mode can be lifted in enforce mode too.
#[test]
fn an_observed_ban_is_lifted_too() {
    let ban = r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent","observed":true}"#;
    let bans = vec![serde_json::from_str(ban).unwrap()];
    let mut rig = Rig::with_bans(settings(), bans).ok().unwrap();
    assert_eq!(rig.banned_until("203.0.113.7"), None);
    let answer = rig.ask(request("DELETE", "/_waf/bans/203.0.113.7", ""));
    assert_eq!(body(&answer)["lifted"].as_array().unwrap().len(), 1);
}

/// ADMIN: the list has bans oldest first, and can be filtered by active or not, and by address.
#[test]
fn bans_are_listed_as_asked() {
    let mut rig = Rig::new(settings());
    for (netblock, duration) in [
        ("203.0.113.0/24", "1h"),
        ("203.0.0.0/16", "2h"),
        ("10.0.0.0/8", "3h"),
    ] {
        let text = format!(r#"{{"netblock":"{netblock}","duration":"{duration}","reason":"r"}}"#);
        rig.post(&text);
        rig.clock.advance_ms(1);
    }
    rig.clock.advance_ms(3_600_000);
    for (query, expected) in [
        ("", vec!["203.0.113.0/24", "203.0.0.0/16", "10.0.0.0/8"]),
        ("?", vec!["203.0.113.0/24", "203.0.0.0/16", "10.0.0.0/8"]),
        ("?active=true", vec!["203.0.0.0/16", "10.0.0.0/8"]),
        ("?active=false", vec!["203.0.113.0/24"]),
        ("?ip=203.0.113.7", vec!["203.0.113.0/24", "203.0.0.0/16"]),
        ("?ip=203.0.113.7&active=true", vec!["203.0.0.0/16"]),
        (
            "?ip=%3A%3Affff%3A203.0.113.7",
            vec!["203.0.113.0/24", "203.0.0.0/16"],
        ),
        ("?ip=192.0.2.1", vec![]),
    ] {
        let answer = rig.get(&format!("/_waf/bans{query}"));
        let document = body(&answer);
        let members: Vec<_> = document.as_object().unwrap().keys().collect();
        assert_eq!(members, ["bans", "cursor"], "no version");
        let netblocks: Vec<_> = document["bans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ban| ban["netblock"].as_str().unwrap())
            .collect();
        assert_eq!(netblocks, expected, "{query}");
    }
    assert_eq!(rig.get("/_waf/bans?other=1").status, 400);
}

/// ADMIN-4: the answer has the client as clients.json holds it, with its bans; 404 if neither is
/// known.
#[test]
fn a_client_comes_with_its_bans() {
    let mut rig = Rig::new(settings());
    weir_shared::table::ClientTable::put(&*rig.table, row("203.0.113.7"));
    let known = body(&rig.get("/_waf/clients/203.0.113.7"));
    let held = json!(weir_shared::api::clients::Client::from(&row("203.0.113.7")));
    assert_eq!(known, json!({"client": held, "bans": []}));
    assert_eq!(held["client"], "203.0.113.7");
    rig.post(BAN);
    let banned = body(&rig.get("/_waf/clients/203.0.113.9"));
    assert_eq!(banned["client"], Value::Null);
    assert_eq!(banned["bans"][0]["netblock"], "203.0.113.0/24");
    assert_eq!(rig.get("/_waf/clients/192.0.2.1").status, 404);
}

/// METRIC, CHECK-4: the metrics are answered, and a client's history counts the request neither as
/// passed nor as refused.
#[test]
fn metrics_are_answered_to_their_own_token() {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    let answer = rig.ask(with(Some(METRICS), request("GET", "/_waf/metrics", "")));
    assert_eq!(answer.status, 200);
    assert_eq!(
        header(&answer, "content-type"),
        Some("text/plain; version=0.0.4")
    );
    assert_eq!(header(&answer, "cache-control"), Some("no-store"));
    assert_eq!(
        (answer.action, answer.history),
        (Action::Answered, History::Neither)
    );
    let text = std::str::from_utf8(&answer.body).unwrap();
    assert!(text.contains("\nwaf_bans_total{cause=\"rate_limit\"} 1\n"));
    assert!(text.contains("\nwaf_bans_active 1\n"));
    assert!(!text.contains("203.0.113"), "no client address in a label");
}

/// A full queue is answered 503 with Retry-After at once; nothing waits on the data plane's thread.
#[test]
fn a_full_queue_is_answered_at_once() {
    let mut rig = Rig::new(settings());
    let waiting: Vec<_> = (0..64)
        .map(|_| rig.hand(request("GET", "/_waf/bans", "")))
        .collect();
    let busy = rig
        .hand(request("GET", "/_waf/bans", ""))
        .try_recv()
        .unwrap();
    check_problem(&busy, 503, "try again");
    assert_eq!(header(&busy, "retry-after"), Some("1"));
    let metrics = with(Some(METRICS), request("GET", "/_waf/metrics", ""));
    let busy = rig.hand(metrics).try_recv().unwrap();
    assert_eq!(
        (busy.status.as_u16(), busy.history),
        (503, History::Neither)
    );
    for _ in 0..16 {
        rig.turn();
    }
    let wait = std::time::Duration::from_secs(20);
    assert!(
        waiting
            .iter()
            .all(|answer| answer.recv_timeout(wait).unwrap().status == 200)
    );
}

/// ADMIN-1, RELOAD-2, RELOAD-3: a token that was removed from the file stops working once a reload
/// is applied; the reload reports an unusable token and then changes nothing.
#[test]
fn a_reload_changes_the_token_in_use() {
    let reloaded = |settings| weir_shared::reload::Reloaded {
        settings,
        listing: Arc::from([]),
        warnings: Arc::from([]),
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "admin-token").unwrap();
    let mut rig = Rig::new(settings_with(|settings| {
        settings.endpoints.admin_token = TokenSource::File(path.clone());
        settings.endpoints.metrics_token = TokenSource::File(path.clone());
    }));
    assert_eq!(rig.get("/_waf/bans").status, 200);
    std::fs::write(&path, "other-token").unwrap();
    let tokens = rig.handle.router.part();
    let new = reloaded(rig.control.settings.clone());
    let take = tokens(&new).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(rig.get("/_waf/bans").status, 200, "judged, and not taken");
    take().unwrap();
    std::fs::write(&path, "").unwrap();
    assert!(tokens(&new).is_err());
    assert_eq!(rig.get("/_waf/bans").status, 401);
    for path in ["/_waf/bans", "/_waf/metrics"] {
        let other = with(Some("Bearer other-token"), request("GET", path, ""));
        assert_eq!(rig.ask(other).status, 200, "{path}");
    }
}

/// A ban refuses from the moment of its answer on, for any length.
#[test]
fn a_ban_of_any_length_is_in_force() {
    for (duration, until) in [
        ("1ms", NOW + 1),
        ("permanent", u64::MAX),
        ("9999999d", 253_402_207_199_999),
    ] {
        let mut rig = Rig::new(settings());
        let text = format!(r#"{{"client":"203.0.113.7","duration":"{duration}","reason":"r"}}"#);
        assert_eq!(rig.post(&text).status, 201);
        assert_eq!(rig.banned_until("203.0.113.9"), Some(until), "{duration}");
    }
}
