//! `crawlers` of rules.json, as people write it, and `weir crawlers` (CRAWL-1).

use serde_json::{Value, json};

use super::googlebot;
use crate::support::command::{Ran, command, ran, run};
use crate::support::weir::{StateDir, Weir, state_dir};

/// CRAWL-1, CRAWL-5: what cannot be meant is a fault at its place, with its line.
#[test]
fn what_cannot_be_meant_is_a_fault() {
    let with = |member: &str, value: Value| {
        let mut crawler = googlebot();
        crawler[member] = value;
        json!({"crawlers": [crawler]})
    };
    let faults = [
        (
            with("name", json!("fake")),
            "/crawlers/0/name",
            "is a word of",
        ),
        (
            with("name", json!("ai_user")),
            "/crawlers/0/name",
            "is a word of",
        ),
        (
            with("name", json!("Google")),
            "/crawlers/0/name",
            "does not fit",
        ),
        (with("purpose", json!("seo")), "/crawlers/0/purpose", ""),
        (with("user_agent", json!([])), "/crawlers/0/user_agent", ""),
        (
            with("user_agent", json!(["ai"])),
            "/crawlers/0/user_agent/0",
            "is too short",
        ),
        (
            with("verify", json!("nowhere")),
            "/crawlers/0/verify",
            "no feed is named \"nowhere\"",
        ),
        (with("verify", json!({"dns": []})), "/crawlers/0/verify", ""),
        (
            with("verify", json!({"dns": [".com"]})),
            "/crawlers/0/verify",
            "\".com\" is not the end of a crawler's names",
        ),
        (
            with("verify", json!({"dns": ["a b.example"]})),
            "/crawlers/0/verify",
            "expected one such as .crawl.example",
        ),
        (with("limits", json!({})), "/crawlers/0/limits", ""),
        (
            with("limits", json!({"per_minute": 0})),
            "/crawlers/0/limits/per_minute",
            "",
        ),
        (
            with("agent", json!("x")),
            "/crawlers/0/agent",
            "is no member here",
        ),
        (
            json!({"crawlers": [googlebot(), googlebot()]}),
            "/crawlers/1/name",
            "two crawlers are named \"googlebot\"",
        ),
        (
            json!({"denials": [{"name": "a", "match": {"crawler": "bing"}}]}),
            "/denials/0/match/crawler",
            "no crawler is named \"bing\"",
        ),
        (
            json!({"denials": [{"name": "a", "match": {"crawler": ["fake", "bing"]}}]}),
            "/denials/0/match/crawler/1",
            "no crawler is named \"bing\"",
        ),
        (
            json!({"exempt": [{"name": "a", "match": {"crawler": ["verified", "unproven"]}}]}),
            "/exempt/0/match",
            "could write itself free",
        ),
    ];
    for (mut rules, pointer, sentence) in faults {
        rules["version"] = json!(1);
        let text = serde_json::to_string_pretty(&rules).expect("JSON");
        let state = state_dir();
        std::fs::write(state.path().join("rules.json"), &text).expect("writes");
        let told = Weir::refuse(&state, &[]).stderr;
        let has = |part: &str| told.contains(part);
        assert!(
            has(pointer) && has(sentence) && has("line "),
            "{text}: {told}"
        );
    }
}

/// CRAWL-1: what is printed is a rules.json that a start takes, each entry with its source.
#[test]
fn the_table_can_be_pasted() {
    let state = state_dir();
    let printed = run(state.path(), &["crawlers"]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    let rules: Value = serde_json::from_str(&printed.out).expect("JSON");
    let crawlers = rules["crawlers"].as_array().expect("a list");
    assert!(crawlers.len() >= 16, "{crawlers:?}");
    let feeds = rules["feeds"].as_array().expect("a list");
    for feed in feeds {
        let is_asked = |crawler: &&Value| crawler["verify"] == feed["name"];
        assert!(crawlers.iter().any(|one| is_asked(&one)), "{feed}");
    }
    for crawler in crawlers.iter().chain(feeds) {
        let comment = crawler["comment"].as_str().expect("its source");
        assert!(comment.contains("https://"), "{comment}");
    }
    assert!(
        rules["comment"]
            .as_str()
            .expect("the date")
            .contains("2026")
    );
    std::fs::write(state.path().join("rules.json"), &printed.out).expect("writes");
    let checked = check(&state, &[]);
    assert_eq!(checked.code, 0, "{}", checked.err);
}

#[track_caller]
pub(super) fn check(state: &StateDir, settings: &[(&str, &str)]) -> Ran {
    let mut command = command(state.path(), &["check"]);
    command
        .env("WAF_UPSTREAM", "http://127.0.0.1:9")
        .env("WAF_LISTEN", "127.0.0.1:0")
        .env("WAF_LOOKUP_SOURCE", "off")
        .envs(settings.iter().copied());
    ran(command.output().expect("the binary runs"))
}

/// CRAWL-6: what would drop a page from an index is warned of, and a jail on 404 where no crawler
/// is named.
#[test]
fn what_costs_a_place_in_an_index_is_warned_of() {
    let warned = |rules: Value, settings: &[(&str, &str)]| {
        let state = state_dir();
        let mut rules = rules;
        rules["version"] = json!(1);
        std::fs::write(state.path().join("rules.json"), rules.to_string()).expect("writes");
        let checked = check(&state, settings);
        assert_eq!(checked.code, 0, "{}", checked.err);
        let lines = checked.err.lines().filter(|line| line.contains("crawler"));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    let denial = |matching: Value, answer: Value| {
        let mut denial = json!({"name": "one", "match": matching});
        if !answer.is_null() {
            denial["answer"] = answer;
        }
        json!({"crawlers": [googlebot()], "denials": [denial]})
    };
    for (matching, answer, settings, expected) in [
        (
            json!({"crawler": "search"}),
            json!(403),
            &[][..],
            Some("403"),
        ),
        (
            json!({"crawler": "googlebot"}),
            json!("drop"),
            &[],
            Some("no answer"),
        ),
        (json!({"user_agent": ["bot"]}), json!(404), &[], Some("404")),
        (
            json!({"fields": [{"name": "accept-language", "is": "absent"}], "paths": ["/a"]}),
            json!(401),
            &[],
            Some("401"),
        ),
        (
            json!({"crawler": "verified"}),
            Value::Null,
            &[("WAF_DENY_RESPONSE", "403")],
            Some("403"),
        ),
        (json!({"crawler": "verified"}), Value::Null, &[], None),
        (json!({"crawler": "verified"}), json!(503), &[], None),
        (json!({"crawler": "fake"}), json!(403), &[], None),
        (json!({"user_agent": ["curl"]}), json!(403), &[], None),
        (json!({"methods": ["POST"]}), json!(403), &[], None),
    ] {
        let warned = warned(denial(matching.clone(), answer), settings);
        match expected {
            None => assert!(warned.is_empty(), "{matching}: {warned:?}"),
            Some(what) => assert!(
                warned.len() == 1
                    && warned[0].contains("\"googlebot\"")
                    && warned[0].contains(what),
                "{matching}: {warned:?}"
            ),
        }
    }
    let jail = json!({"name": "gone", "statuses": [404], "per_minute": 30});
    let told = warned(json!({"jails": [jail]}), &[]);
    assert!(
        told.len() == 1 && told[0].contains("\"gone\" counts 404"),
        "{told:?}"
    );
    let told = warned(json!({"jails": [jail], "crawlers": [googlebot()]}), &[]);
    assert!(told.is_empty(), "{told:?}");
}
