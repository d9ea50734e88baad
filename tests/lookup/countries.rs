//! Country lists: refused by country, before and after the answer (CHECK-1, CHECK-2).

use crate::support::application::Application;
use crate::support::geo::Geo;

use super::{CLIENT, GERMANY, start};

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
