//! The last good copy of a feed, and what rules ask a feed for.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::application::Application;
use crate::support::command::{command, ran};
use crate::support::raw_client::request;
use crate::support::wait_until;
use crate::support::weir::{Weir, state_dir};

/// A URL where nothing answers.
const NOWHERE: &str = "http://127.0.0.1:9/list";

/// Puts a copy there, as the service keeps them.
#[track_caller]
fn keep(state: &Path, name: &str, url: &str, netblocks: &[&str]) {
    let head = json!({"url": url, "taken": "2026-11-20T12:00:00Z",
        "confirmed": "2026-11-21T12:00:00Z", "entries": netblocks.len()});
    let lines = netblocks.iter().map(|netblock| format!("{netblock}\n"));
    let text = format!("# weir feed {head}\n{}", lines.collect::<String>());
    fs::create_dir_all(state.join("feeds")).unwrap();
    fs::write(state.join("feeds").join(name), text).unwrap();
}

/// FEED-4, FEED-1, MATCH-1: a start uses the last good copies: as lists that deny and allow, and as
/// names for `match.list`. A copy of another URL, one that is cut, and none leave a feed empty,
/// which is said.
#[test]
fn a_start_uses_the_copies() {
    let application = Application::ok();
    let state = state_dir();
    let there = state.path();
    keep(
        there,
        "drop",
        NOWHERE,
        &["198.51.100.0/24", "2001:db8:5::/48"],
    );
    keep(there, "office", NOWHERE, &["198.51.100.7/32"]);
    keep(
        there,
        "hosters",
        NOWHERE,
        &["203.0.113.0/25", "2001:db8:7::/48"],
    );
    keep(
        there,
        "moved",
        "http://127.0.0.1:9/other",
        &["192.0.2.1/32"],
    );
    keep(there, "cut", NOWHERE, &["192.0.2.1/32", "192.0.2.2/32"]);
    let cut = fs::read_to_string(there.join("feeds/cut")).unwrap();
    fs::write(there.join("feeds/cut"), cut.trim_end()).unwrap();
    let feed = |name: &str, used: Option<&str>| {
        let mut feed = json!({"name": name, "url": NOWHERE, "every": "30d"});
        if let Some(used) = used {
            feed["use"] = json!(used);
        }
        feed
    };
    let rules = json!({"version": 1,
        "feeds": [feed("drop", Some("deny")), feed("office", Some("allow")), feed("hosters", None),
                  feed("moved", Some("deny")), feed("cut", Some("deny")), feed("none", Some("deny"))],
        "denials": [{"name": "search", "match": {"paths": ["/search"], "list": "hosters"}, "answer": 403}],
        "limits": [{"name": "few", "match": {"list": "hosters"}, "per_day": 2, "on_limit": "refuse"}]});
    fs::write(there.join("rules.json"), rules.to_string()).unwrap();
    let checked = command(there, &["check"])
        .env("WAF_LISTEN", "127.0.0.1:0")
        .env("WAF_UPSTREAM", "http://127.0.0.1:1")
        .output();
    let checked = ran(checked.expect("the binary runs"));
    assert_eq!(checked.code, 0, "{}", checked.err);
    let weir = Weir::start_at(application.address(), &state, &[]);
    for name in ["moved", "cut", "none"] {
        weir.wait_for_process_log(&[name, "has no copy and is empty"]);
    }
    for (client, path, status, source) in [
        (
            "198.51.100.9",
            "/denied",
            429,
            Some(("198.51.100.0/24", "drop")),
        ),
        (
            "2001:db8:5:6::1",
            "/denied6",
            429,
            Some(("2001:db8:5::/48", "drop")),
        ),
        (
            "198.51.100.7",
            "/allowed",
            200,
            Some(("198.51.100.7/32", "office")),
        ),
        ("192.0.2.1", "/nobody", 200, None),
        ("203.0.113.9", "/search", 403, None),
        ("2001:db8:7::9", "/search/6", 403, None),
        ("203.0.113.200", "/search/other", 200, None),
        ("203.0.113.9", "/1", 200, None),
        ("203.0.113.9", "/2", 200, None),
        ("203.0.113.9", "/3", 429, None),
        ("203.0.113.200", "/4", 200, None),
    ] {
        let fields = [("X-Forwarded-For", client)];
        weir.send(&request("GET", path, &fields, None))
            .expect(status);
        let line = weir.line_of(path);
        let list = source.map(|(netblock, source)| json!({"netblock": netblock, "source": source}));
        assert_eq!(line.get("list"), list.as_ref(), "{path}");
    }
    // Another feed, and another use of one that is there.
    let mut rules = rules;
    rules["feeds"][2]["use"] = json!("deny");
    rules["feeds"][0].as_object_mut().unwrap().remove("use");
    super::save(there, "rules.json", &rules.to_string());
    wait_until("the edit", || weir.edits("rules.json", "taken") >= 1.0);
    weir.get("/5", "198.51.100.9").expect(200);
    weir.get("/6", "203.0.113.9").expect(429);
    // One that nobody names any more, and a rule that names none.
    rules["denials"][0]["match"]["list"] = json!("hoster");
    super::save(there, "rules.json", &rules.to_string());
    weir.wait_for_process_log(&["no feed is named", "/denials/0/match/list"]);
    weir.get("/7", "203.0.113.9").expect(429);
}

/// RULE, FEED-1: a feed may have `until`, as every entry: behind it nothing of its copy is in
/// force.
#[test]
fn a_feed_may_end() {
    let application = Application::ok();
    let state = state_dir();
    let there = state.path();
    keep(there, "ended", NOWHERE, &["198.51.100.0/24"]);
    keep(there, "holds", NOWHERE, &["203.0.113.0/24"]);
    let feed = |name: &str, until: &str| json!({"name": name, "url": NOWHERE, "every": "30d", "use": "deny", "until": until});
    let rules = json!({"version": 1, "feeds": [
        feed("ended", "2020-01-01T00:00:00Z"), feed("holds", "2999-01-01T00:00:00Z")]});
    fs::write(there.join("rules.json"), rules.to_string()).unwrap();
    let weir = Weir::start_at(application.address(), &state, &[]);
    weir.get("/", "198.51.100.7").expect(200);
    weir.get("/", "203.0.113.7").expect(429);
}
