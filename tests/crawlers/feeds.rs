//! Crawlers that are verified by a feed (CRAWL-2, CRAWL-4).

use serde_json::{Value, json};

use super::rules::check;
use super::{CRAWLER, GOOGLEBOT, NEIGHBOUR, counted, dns, get, start_in, statuses};
use crate::support::application::Application;
use crate::support::wait_until;
use crate::support::weir::{StateDir, from_now, state_dir};

/// A URL where nothing answers.
const NOWHERE: &str = "http://127.0.0.1:9/list";

const DAY: i64 = 86_400;

/// A state directory with a feed that was confirmed then, seconds from now.
#[track_caller]
fn fed(netblocks: &[&str], confirmed: i64) -> StateDir {
    let state = state_dir();
    let head = json!({"url": NOWHERE, "taken": from_now(confirmed - DAY),
        "confirmed": from_now(confirmed), "entries": netblocks.len()});
    let lines = netblocks.iter().map(|netblock| format!("{netblock}\n"));
    let text = format!("# weir feed {head}\n{}", lines.collect::<String>());
    let folder = state.path().join("feeds");
    std::fs::create_dir_all(&folder).expect("the folder");
    std::fs::write(folder.join("google"), text).expect("the copy");
    state
}

fn rules(more: Value) -> Value {
    let mut rules = json!({
        "feeds": [{"name": "google", "url": NOWHERE, "every": "30d"}],
        "crawlers": [{"name": "googlebot", "purpose": "search", "user_agent": ["Googlebot"], "verify": "google"}]});
    let members = rules.as_object_mut().expect("an object");
    members.extend(more.as_object().expect("an object").clone());
    rules
}

/// CRAWL-2: whose address is in the feed is verified with its first request, and who claims to be
/// it from elsewhere is a fake; a feed that nobody confirmed for seven days, and one that is empty,
/// make nobody either.
#[test]
fn a_feed_says_who_is_verified() {
    let (application, dns) = (Application::ok(), dns());
    for (netblocks, confirmed, inside, outside) in [
        (
            &["66.249.66.0/27", "2001:4860::/32"][..],
            0,
            "verified",
            "fake",
        ),
        (
            &["66.249.66.0/27", "2001:4860::/32"],
            -6 * DAY,
            "verified",
            "fake",
        ),
        (
            &["66.249.66.0/27", "2001:4860::/32"],
            -7 * DAY,
            "unproven",
            "unproven",
        ),
        (&[], 0, "unproven", "unproven"),
    ] {
        let state = fed(netblocks, confirmed);
        let weir = start_in(&state, &application, &dns, rules(json!({})), &[]);
        for (client, expected) in [
            (CRAWLER, inside),
            ("2001:4860:4801::7", inside),
            (NEIGHBOUR, outside),
            ("192.0.2.7", outside),
        ] {
            get(&weir, "/a", client, GOOGLEBOT).expect(200);
            wait_until(&format!("{client} to be {expected}"), || {
                let lines = weir.request_log();
                let line = lines.iter().rfind(|line| line["address"] == client);
                line.is_some_and(|line| line["crawler"]["state"] == expected)
            });
        }
        let both = counted(&weir, "verified", "passed") + counted(&weir, "fake", "passed");
        let expected = if inside == "verified" { 4.0 } else { 0.0 };
        assert!((both - expected).abs() < 0.5, "{both}");
    }
    assert_eq!(dns.asked(), Vec::<String>::new());
}

/// CRAWL-4: a ban that the service makes covers no range of a feed: who breaks a limit inside or
/// beside it is banned alone, and who is the crawler is not banned.
#[test]
fn a_ban_covers_no_range_of_a_feed() {
    let (application, dns) = (statuses(), dns());
    let jail = json!({"jails": [
        {"name": "gone", "statuses": [404], "per_hour": 3, "ban": "netblock"}]});
    let state = fed(&["66.249.66.0/27"], 0);
    let weir = start_in(&state, &application, &dns, rules(jail), &[]);
    for number in 0..10 {
        get(&weir, &format!("/{number}/404"), CRAWLER, GOOGLEBOT).expect(404);
    }
    let clients = [
        ("66.249.66.9", "66.249.66.9/32"),
        (NEIGHBOUR, "66.249.66.200/32"),
        ("66.249.67.9", "66.249.67.0/24"),
    ];
    for (client, _) in clients {
        for number in 0..4 {
            get(&weir, &format!("/{number}/404"), client, "curl/8").expect(404);
        }
    }
    wait_until("the bans", || weir.bans().len() == clients.len());
    let bans = weir.bans();
    for (_, netblock) in clients {
        assert!(
            bans.iter().any(|ban| ban["netblock"] == netblock),
            "{bans:?}"
        );
    }
    get(&weir, "/home/200", CRAWLER, GOOGLEBOT).expect(200);
}

/// CRAWL-6: a permanent ban over the range of a search engine is warned of, one that ends is not.
#[test]
fn a_permanent_ban_of_a_search_engine_is_warned_of() {
    let is_warned_of = |ban: Value| {
        let state = fed(&["66.249.66.0/27"], 0);
        let mut rules = rules(json!({}));
        rules["version"] = json!(1);
        let bans = json!({"version": 1, "bans": [ban]});
        for (name, content) in [("rules.json", rules), ("bans.json", bans)] {
            std::fs::write(state.path().join(name), content.to_string()).expect("writes");
        }
        let checked = check(&state, &[]);
        assert_eq!(checked.code, 0, "{}", checked.err);
        let told = "a permanent ban refuses the verified crawler \"googlebot\" from 66.249.66.0/27";
        checked.err.contains(told)
    };
    let permanent = json!({"netblock": "66.249.0.0/16", "ban_expires": "permanent"});
    let mut lifted = permanent.clone();
    lifted["lifted"] = json!("2026-01-01T00:00:00Z");
    assert!(is_warned_of(permanent));
    assert!(!is_warned_of(lifted));
    assert!(!is_warned_of(
        json!({"netblock": "66.249.0.0/16", "ban_expires": "2099-01-01T00:00:00Z"})
    ));
    assert!(!is_warned_of(
        json!({"netblock": "192.0.2.0/24", "ban_expires": "permanent"})
    ));
}
