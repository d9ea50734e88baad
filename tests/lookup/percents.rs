//! Percentages of a country or a network lower the limits of a client (LIMIT-4).

use std::time::Duration;

use crate::support::application::{After, Application};
use crate::support::geo::Geo;
use crate::support::{wait_for, wait_until};

use super::{CLIENT, GERMANY, start};

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
