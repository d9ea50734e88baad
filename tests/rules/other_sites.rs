//! Requests that the pages of other sites have a visitor's browser make (RULE-8): they are counted
//! and refused as all others are, and ban nobody.

use serde_json::{Value, json};

use super::{ban_of, hits, start, statuses};
use crate::support::application::{After, Application};
use crate::support::raw_client::{Response, request};
use crate::support::wait_until;
use crate::support::weir::Weir;

const VISITOR: &str = "203.0.113.7";
const NEIGHBOUR: &str = "203.0.113.8";
/// What a browser says of a picture or a link on the page of another site.
const OTHER_SITES: [&str; 2] = ["cross-site", "same-site"];
/// What it says of the visitor's own requests; other clients say nothing.
const OWN: [Option<&str>; 3] = [None, Some("none"), Some("same-origin")];

#[track_caller]
fn ask(weir: &Weir, path: &str, client: &str, site: Option<&str>) -> Response {
    let mut fields = vec![("X-Forwarded-For", client)];
    fields.extend(site.map(|site| ("Sec-Fetch-Site", site)));
    weir.send(&request("GET", path, &fields, None))
}

/// RULE-8, RULE-3: a picture of a trap's path on a foreign page refuses itself and bans nobody; who
/// asks by himself is banned alone, or with his netblock where the rule says so.
#[test]
fn a_picture_on_a_foreign_page_springs_no_trap() {
    let rules = r#"{"version":1,"traps":[{"name":"scanner","paths":["/.env"]},
        {"name":"wide","paths":["/.git/"],"ban":"netblock"},
        {"name":"alone","paths":["/.svn/"],"ban":"client"}]}"#;
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let settings = [("WAF_MODE", mode), ("WAF_DENY_RESPONSE", "403")];
        let (weir, _state) = start(&application, rules, &settings);
        let enforced = mode == "enforce";
        let status = |refused: u16| if enforced { refused } else { 200 };
        for site in OTHER_SITES {
            for path in ["/.env", "/.git/config"] {
                let path = format!("{path}?{site}");
                let answer = ask(&weir, &path, VISITOR, Some(site)).expect(status(429));
                assert_eq!(answer.header("retry-after"), None, "waiting helps nobody");
            }
        }
        for line in weir.lines_of("/.env", 2) {
            assert_eq!(line["action"], "trapped");
            assert_eq!(line["enforced"], enforced);
            assert_eq!(line["other_site"], true);
            assert_eq!(line["rule"], json!({"name": "scanner", "kind": "trap"}));
        }
        assert_eq!(hits(&weir, "scanner", "trap"), Some(2.0));
        assert_eq!(weir.bans(), Vec::<Value>::new());
        ask(&weir, "/visitor", VISITOR, None).expect(200);
        ask(&weir, "/neighbour", NEIGHBOUR, None).expect(200);

        // Control: without the word of a browser, and with that of the visitor's own requests.
        for (number, site) in OWN.into_iter().enumerate() {
            let attacker = format!("198.51.100.{number}");
            ask(&weir, "/.env?own", &attacker, site).expect(status(403));
            wait_until("the ban", || weir.bans().len() == number + 1);
            let line = &weir.lines_of("/.env", 3 + number)[2];
            assert_eq!(line.get("other_site"), None);
        }
        let netblocks: Vec<_> = weir
            .bans()
            .iter()
            .map(|ban| ban["netblock"].clone())
            .collect();
        assert_eq!(
            netblocks,
            ["198.51.100.0/32", "198.51.100.1/32", "198.51.100.2/32"]
        );
        ask(&weir, "/beside", "198.51.100.9", None).expect(200);
        ask(&weir, "/.svn/x", "198.51.100.3", None).expect(status(403));
        ask(&weir, "/.env", "2001:db8:1:2::9", None).expect(status(403));
        ask(&weir, "/.git/x", "192.0.2.7", None).expect(status(403));
        wait_until("all bans", || weir.bans().len() == 6);
        let bans = weir.bans();
        let banned = |netblock: &str| bans.iter().any(|ban| ban["netblock"] == netblock);
        for netblock in ["198.51.100.3/32", "2001:db8:1:2::/64", "192.0.2.0/24"] {
            assert!(banned(netblock), "{netblock}: {bans:#?}");
        }
        assert!(bans.iter().all(|ban| ban["observed"] == !enforced));
    }
}

/// RULE-8, RULE-4: a jail counts what another site asks for, refuses it beyond its number, and bans
/// nobody for it: who says so with each guess has as many guesses as the jail allows. Who does not
/// is banned, alone.
#[test]
fn a_jail_allows_no_more_guesses_to_who_names_another_site() {
    let rules = r#"{"version":1,"jails":[
        {"name":"auth","path":"/login","statuses":[401],"per_day":3},
        {"name":"wide","path":"/admin","statuses":[401],"per_day":1,"ban":"netblock"}]}"#;
    let application = statuses();
    let (weir, _state) = start(&application, rules, &[]);
    let guess = |client: &str, site| ask(&weir, "/login/401", client, site);
    for site in ["cross-site", "same-site", "cross-site"] {
        guess(VISITOR, Some(site)).expect(401);
    }
    // What an answer counts for is counted by the time of its line.
    weir.lines_of("/login/401", 3);
    for number in 0..20 {
        let answer = guess(VISITOR, Some(OTHER_SITES[number % 2])).expect(429);
        assert!(answer.header("retry-after").is_some());
    }
    // The field left away gains nothing either, and a visitor who is refused is not banned.
    guess(VISITOR, None).expect(429);
    let forwarded = application.requests();
    assert_eq!(forwarded.len(), 3, "three guesses");
    let line = weir.lines_of("/login/401", 24).pop().expect("a line");
    assert_eq!(line["action"], "rate_limited");
    assert_eq!(line["limit_hit"], "auth");
    assert_eq!(line["rule"], json!({"name": "auth", "kind": "jail"}));
    // Elsewhere he is served, as his neighbours are.
    ask(&weir, "/else", VISITOR, Some("cross-site")).expect(200);
    ask(&weir, "/login/200", VISITOR, None).expect(429);
    guess(NEIGHBOUR, None).expect(401);
    assert_eq!(weir.bans(), Vec::<Value>::new());

    // Control: the answer that is one too many bans, alone.
    for site in [None, Some("none"), Some("same-origin"), None] {
        guess("198.51.100.7", site).expect(401);
    }
    assert_eq!(ban_of(&weir, "jail")["netblock"], "198.51.100.7/32");
    ask(&weir, "/beside", "198.51.100.8", None).expect(200);
    for _ in 0..2 {
        ask(&weir, "/admin/401", "192.0.2.7", None).expect(401);
    }
    wait_until("the other ban", || weir.bans().len() == 2);
    assert_eq!(weir.bans()[1]["netblock"], "192.0.2.0/24");
}

/// RULE-8: what other sites asked for before does not make the visitor's own request a ban: only
/// requests of his own do, once they alone are too many.
#[test]
fn only_own_requests_ban() {
    let rules = r#"{"version":1,
        "limits":[{"name":"api","path":"/api","per_day":3}],
        "jails":[{"name":"auth","path":"/login","statuses":[401],"per_day":3}]}"#;
    let settings = [("WAF_RATE_LIMIT_PER_DAY", "20")];
    for mode in ["enforce", "observe"] {
        let application = statuses();
        let settings = [settings[0], ("WAF_MODE", mode)];
        let (weir, _state) = start(&application, rules, &settings);
        let refused = |passed: u16| if mode == "enforce" { 429 } else { passed };
        let other = |path: &str| ask(&weir, path, VISITOR, Some("cross-site"));
        let own = |path: &str| ask(&weir, path, VISITOR, Some("same-origin"));
        // A limit of a rule: two of another site's and one own fill it.
        other("/api").expect(200);
        other("/api").expect(200);
        own("/api").expect(200);
        other("/api").expect(refused(200));
        own("/api").expect(refused(200));
        // A jail: the same.
        other("/login/401").expect(401);
        other("/login/401").expect(401);
        own("/login/401").expect(401);
        weir.lines_of("/login/401", 3);
        other("/login/401").expect(refused(401));
        own("/login/401").expect(refused(401));
        // The six limits: ten so far.
        for number in 10..20 {
            other(&format!("/{number}/200")).expect(200);
        }
        other("/over").expect(refused(200));
        let answer = own("/own-over").expect(refused(200));
        if mode == "enforce" {
            assert!(answer.header("retry-after").is_some());
        }
        let line = weir.line_of("/own-over");
        assert_eq!(
            (&line["action"], &line["limit_hit"]),
            (&json!("rate_limited"), &json!("day"))
        );
        assert_eq!(line["counts"]["day"], 22, "everything is counted");
        assert_eq!(weir.bans(), Vec::<Value>::new());
        ask(&weir, "/neighbour", NEIGHBOUR, None).expect(200);
        // His own alone: the ban that they make is of the request limits, and of the netblock.
        for _ in 0..17 {
            own("/more");
        }
        let ban = ban_of(&weir, "rate_limit");
        assert_eq!(ban["netblock"], "203.0.113.0/24");
        assert_eq!(ban["observed"], mode == "observe");
        // Control: a limit of a rule without a word of another site.
        for expected in [200, 200, 200, refused(200)] {
            ask(&weir, "/api", "198.51.100.7", None).expect(expected);
        }
        assert_eq!(ban_of(&weir, "rule_limit")["netblock"], "198.51.100.0/24");
    }
}

/// RULE-8, LIMIT-5: bytes that another site's page made a browser fetch ban nobody; over the limit
/// the next requests are refused until they fit. His own bytes ban.
#[test]
fn bytes_of_another_site_ban_nobody() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], &[b'x'; 600]);
        After::KeepAlive
    });
    let settings = [("WAF_BYTES_LIMIT_PER_DAY", "1000")];
    let (weir, _state) = start(&application, r#"{"version":1}"#, &settings);
    for number in 0..2 {
        ask(&weir, &format!("/{number}"), VISITOR, Some("cross-site")).expect(200);
        weir.line_of(&format!("/{number}"));
    }
    for (path, site) in [("/third", Some("cross-site")), ("/own", None)] {
        let answer = ask(&weir, path, VISITOR, site).expect(429);
        assert!(answer.header("retry-after").is_some());
        let line = weir.line_of(path);
        assert_eq!(
            (&line["action"], &line["limit_hit"]),
            (&json!("rate_limited"), &json!("day_bytes"))
        );
    }
    ask(&weir, "/neighbour", NEIGHBOUR, None).expect(200);
    assert_eq!(weir.bans(), Vec::<Value>::new());
    assert_eq!(application.requests().len(), 3);

    for number in 0..2 {
        ask(&weir, &format!("/own-{number}"), "198.51.100.7", None).expect(200);
    }
    assert_eq!(ban_of(&weir, "byte_limit")["netblock"], "198.51.100.0/24");
}

/// RULE-8, STATE-1: what other sites asked for is known as such after a restart.
#[test]
fn what_other_sites_asked_for_outlives_a_restart() {
    let rules = r#"{"version":1,
        "limits":[{"name":"api","path":"/api","per_day":3}],
        "jails":[{"name":"auth","path":"/login","statuses":[401],"per_day":3}]}"#;
    let settings = [("WAF_RATE_LIMIT_PER_DAY", "9")];
    let application = statuses();
    let (mut weir, state) = start(&application, rules, &settings);
    for path in ["/api", "/login/401", "/x"] {
        for _ in 0..3 {
            ask(&weir, path, VISITOR, Some("cross-site"));
        }
    }
    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &settings);
    for path in ["/api", "/login/401", "/x"] {
        ask(&weir, path, VISITOR, None).expect(429);
    }
    assert_eq!(weir.bans(), Vec::<Value>::new());
}
