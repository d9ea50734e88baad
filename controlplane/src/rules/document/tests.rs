use super::*;

mod faults;

fn fault(text: &str) -> (usize, usize, String, String) {
    let reader = Reader::new();
    let fault = reader.read(text.as_bytes()).expect_err(text);
    (fault.line, fault.column, fault.pointer, fault.message)
}

fn message(text: &str) -> (String, String) {
    let (.., pointer, message) = fault(text);
    (pointer, message)
}

/// RULE-1, CONTROL-4: all faults are reported at once, up to a bound, with the names that may be
/// meant.
#[test]
fn all_faults_are_told() {
    let text = r#"{"version":1,"limits":[{"name":"l","pth":"/x","per_minut":5}],"traps":[{"name":"t","paths":[]}],"deny":[{"netblock":"nowhere"}]}"#;
    let fault = Reader::new().read(text.as_bytes()).expect_err(text);
    let told = fault.to_string();
    for word in [
        "at \"/limits/0/pth\": \"pth\" is no member here; did you mean \"path\"?",
        "at \"/limits/0/per_minut\": \"per_minut\" is no member here; did you mean \"per_minute\"?",
        "at \"/traps/0/paths\": ",
        "at \"/deny/0/netblock\": ",
    ] {
        assert!(told.contains(word), "{word}: {told}");
    }
    // Members of every part of the schema may have been meant.
    for (text, meant) in [
        (r#"{"version":1,"denial":[]}"#, "denials"),
        (
            r#"{"version":1,"denials":[{"name":"d","match":{},"anser":403}]}"#,
            "answer",
        ),
        (
            r#"{"version":1,"denials":[{"name":"d","match":{"countrys":["DE"]}}]}"#,
            "countries",
        ),
    ] {
        let told = Reader::new()
            .read(text.as_bytes())
            .expect_err(text)
            .to_string();
        assert!(
            told.contains(&format!("did you mean \"{meant}\"?")),
            "{told}"
        );
    }
    let many = r#"{"netblock":"nowhere"},"#.repeat(50);
    let text = format!(r#"{{"version":1,"deny":[{}]}}"#, many.trim_end_matches(','));
    let fault = Reader::new().read(text.as_bytes()).expect_err(&text);
    assert_eq!(fault.further.len(), MAX_TOLD);
    assert!(fault.to_string().ends_with("40 further faults"), "{fault}");
}

/// RULE-1: each missing member is reported once, in the same form as the other faults.
#[test]
fn what_is_missing_is_told_once() {
    let told = |text: &str| {
        let fault = Reader::new().read(text.as_bytes()).expect_err(text);
        fault.to_string()
    };
    assert_eq!(
        told("{\"version\":1,\n\"denials\":[{}]}"),
        "line 2, column 13, at \"/denials/0\": expected a member \"name\"; \
         line 2, column 13, at \"/denials/0\": expected a member \"match\""
    );
    assert_eq!(
        told("{\"allow\":[]}"),
        "line 1, column 12, at \"\": expected a member \"version\""
    );
    for (text, members) in [
        (r#"{"version":1,"limits":[{}]}"#, &["name"][..]),
        (
            r#"{"version":1,"crawlers":[{"name":"a"}]}"#,
            &["purpose", "user_agent", "verify"],
        ),
        (
            r#"{"version":1,"crawlers":[{"name":"a","purpose":"search","user_agent":["bot"],"verify":{}}]}"#,
            &[],
        ),
    ] {
        let told = told(text);
        assert!(!told.contains("missing field"), "{told}");
        for member in members {
            let words = format!("expected a member {member:?}");
            assert_eq!(told.matches(&words).count(), 1, "{told}");
        }
    }
}

/// MATCH-1, RULE-2: a member that belongs into `match` and stands beside it is a fault, with any
/// value.
#[test]
fn nothing_stands_beside_match() {
    for (list, more) in [("limits", ""), ("jails", r#""statuses":[404],"#)] {
        for member in ["exact", "exact_case"] {
            for value in [false, true] {
                let text = format!(
                    r#"{{"version":1,"{list}":[{{"name":"a",{more}"per_minute":1,"{member}":{value},"match":{{"paths":["/a"]}}}}]}}"#
                );
                assert_eq!(
                    message(&text),
                    (
                        format!("/{list}/0/{member}"),
                        format!("{member:?} stands beside \"match\": expected it inside")
                    )
                );
            }
        }
    }
}

/// MATCH-1, RULE-2: a host that no request has is a fault: such a rule would match nothing in
/// silence.
#[test]
fn a_host_is_one_that_a_client_sends() {
    let limit = |host: &str| {
        format!(r#"{{"version":1,"limits":[{{"name":"a","per_minute":1,"host":"{host}"}}]}}"#)
    };
    let denial = |host: &str| {
        format!(r#"{{"version":1,"denials":[{{"name":"a","match":{{"host":"{host}"}}}}]}}"#)
    };
    for host in [
        "*.x.example",
        "https://x.example",
        "x.example/",
        "a,b",
        "a b",
        "müller.example",
    ] {
        for (text, place) in [
            (limit(host), "/limits/0/host"),
            (denial(host), "/denials/0/match/host"),
        ] {
            let told = format!(
                "{host:?} is not a host: expected one name or address as a client sends it, such as www.example.com, without wildcards"
            );
            assert_eq!(message(&text), (place.to_owned(), told));
        }
    }
    for host in [
        "www.x.example",
        "X.example.",
        "x.example:8080",
        "192.0.2.1",
        "[2001:db8::1]:80",
        "a_b",
    ] {
        for text in [limit(host), denial(host)] {
            assert!(Reader::new().read(text.as_bytes()).is_ok(), "{host}");
        }
    }
}

/// ALIVE-5, RULE-1: an entry that covers every client is a fault unless it has `force`.
#[test]
fn every_client_wants_force() {
    for list in ["allow", "deny"] {
        for netblock in ["0.0.0.0/0", "::/0"] {
            let entry = |more: &str| {
                format!(r#"{{"version":1,"{list}":[{{"netblock":"{netblock}"{more}}}]}}"#)
            };
            let (pointer, told) = message(&entry(""));
            assert_eq!(pointer, format!("/{list}/0/netblock"));
            assert!(
                told.ends_with("is every client: \"force\": true if that is meant"),
                "{told}"
            );
            assert!(
                Reader::new()
                    .read(entry(r#","force":true"#).as_bytes())
                    .is_ok()
            );
        }
    }
}

/// The example of the rules' document.
const EXAMPLE: &str = r#"{"version":1,
 "allow":[{"netblock":"192.0.2.0/24","comment":"office"},{"netblock":"203.0.113.7","until":"2026-12-01T00:00:00Z"},{"file":"monitors.txt"}],
 "deny":[{"netblock":"198.51.100.0/24"},{"file":"drop.txt"}],
 "limits":[{"name":"login","methods":["POST"],"path":"/login","per_minute":5,"per_hour":30,"on_limit":"ban"}],
 "traps":[{"name":"scanner","paths":["/.env","/wp-login.php","/.git/"]}],
 "jails":[{"name":"not-found","statuses":[404],"per_minute":60},{"name":"auth","path":"/login","statuses":[401,403],"per_minute":10}]}
"#;

/// RULE-2: every member of the example is read.
#[test]
fn the_example_is_read() {
    let file = Reader::new().read(EXAMPLE.as_bytes()).unwrap();
    assert_eq!(
        (file.allow.len(), file.deny.len(), file.traps[0].paths.len()),
        (3, 2, 3)
    );
    assert_eq!(file.limits[0].which.methods, ["POST"]);
    let quotas = &file.limits[0].quotas;
    assert_eq!(
        (quotas.per_minute, quotas.per_hour, quotas.per_day),
        (Some(5), Some(30), None)
    );
    assert_eq!(file.jails[1].statuses, [401, 403]);
    assert_eq!(file.jails[1].which.path.as_deref(), Some("/login"));
}

/// RULE-1, RULE-2, RULE-3, RULE-4: an invalid member is reported with its place, and an unknown
/// member is a fault: a typing error must not switch a limit off in silence.
#[test]
fn faults_have_a_place() {
    assert_eq!(fault("{\"version\":1,\n \"limits\":[}").0, 2);
    let (line, column, pointer, _) =
        fault("{\"version\":1,\n \"deny\":[{\"netblock\":\"192.0.2.0/33\"}]}");
    assert_eq!((line, column, &*pointer), (2, 35, "/deny/0/netblock"));
    for (text, pointer) in [
        (r#"{"version":2}"#, "/version"),
        (r#"{"version":1,"version":1}"#, "/version"),
        (r#"{"version":1,"limit":[]}"#, "/limit"),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minit":5}]}"#,
            "/limits/0",
        ),
        (r#"{"version":1,"limits":[{"name":"a"}]}"#, "/limits/0"),
        (
            r#"{"version":1,"limits":[{"name":"A","per_minute":5}]}"#,
            "/limits/0/name",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":0}]}"#,
            "/limits/0/per_minute",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"until":"tomorrow"}]}"#,
            "/limits/0/until",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"path":"x"}]}"#,
            "/limits/0/path",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"path":"/x?y"}]}"#,
            "/limits/0/path",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"exact":true}]}"#,
            "/limits/0/exact",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"on_limit":"drop"}]}"#,
            "/limits/0/on_limit",
        ),
        (
            r#"{"version":1,"jails":[{"name":"a","per_minute":1,"statuses":[600]}]}"#,
            "/jails/0/statuses/0",
        ),
        (
            r#"{"version":1,"jails":[{"name":"a","per_minute":1,"statuses":[]}]}"#,
            "/jails/0/statuses",
        ),
        (
            r#"{"version":1,"traps":[{"name":"a","paths":["/ok","/_waf/x"]}]}"#,
            "/traps/0/paths/1",
        ),
        (
            r#"{"version":1,"traps":[{"name":"a","paths":["//./"]}]}"#,
            "/traps/0/paths/0",
        ),
        (
            r#"{"version":1,"traps":[{"name":"a","paths":["/x"]}],"jails":[{"name":"a","per_day":1,"statuses":[404]}]}"#,
            "/jails/0/name",
        ),
        (
            r#"{"version":1,"deny":[{"netblock":"192.0.2.1","file":"x"}]}"#,
            "/deny/0",
        ),
        (r#"{"version":1,"deny":[{"comment":"x"}]}"#, "/deny/0"),
        (
            r#"{"version":1,"allow":[{"netblock":"1::2::3"}]}"#,
            "/allow/0/netblock",
        ),
    ] {
        assert!(
            message(text).0.starts_with(pointer),
            "{text}: {:?}",
            message(text)
        );
    }
}

/// RULE-2, RULE-3: the bounds of what a file may hold.
#[test]
fn what_a_file_holds_is_bounded() {
    let limits = |count: usize| {
        let limit = |number| format!(r#"{{"name":"l{number}","per_minute":1}}"#);
        let limits: Vec<_> = (0..count).map(limit).collect();
        format!(r#"{{"version":1,"limits":[{}]}}"#, limits.join(","))
    };
    assert!(Reader::new().read(limits(16).as_bytes()).is_ok());
    assert_eq!(message(&limits(17)).0, "/limits");
    let traps = |count: usize| {
        let path = |number| format!("\"/{number}\"");
        let paths: Vec<_> = (0..count).map(path).collect();
        format!(
            r#"{{"version":1,"traps":[{{"name":"t","paths":[{}]}}]}}"#,
            paths.join(",")
        )
    };
    assert!(Reader::new().read(traps(10_000).as_bytes()).is_ok());
    assert_eq!(message(&traps(10_001)).0, "/traps/0/paths/10000");
    let names = |count: usize| {
        let trap = |number| format!(r#"{{"name":"t{number}","paths":["/{number}"]}}"#);
        let traps: Vec<_> = (0..count).map(trap).collect();
        format!(
            r#"{{"version":1,"traps":[{}],"jails":[{{"name":"j","per_day":1,"statuses":[404]}}]}}"#,
            traps.join(",")
        )
    };
    assert!(Reader::new().read(names(63).as_bytes()).is_ok());
    assert_eq!(message(&names(64)).0, "/jails/0/name");
}

/// FEED-1: a fault of a feed, or of a rule that names one, is reported with its place.
#[test]
fn feeds_are_judged() {
    let drop = r#"{"name":"drop","url":"https://lists.example/drop","every":"12h","use":"deny"}"#;
    let file = |feeds: &str, more: &str| format!("{{\"version\":1,\n\"feeds\":[{feeds}]{more}}}");
    let read = Reader::new().read(file(drop, "").as_bytes()).unwrap();
    assert_eq!(read.feeds.len(), 1);
    let names = r#","denials":[{"name":"a","match":{"list":"drop"}}]"#;
    assert!(Reader::new().read(file(drop, names).as_bytes()).is_ok());
    let exempt = r#","exempt":[{"name":"a","match":{"list":"drop","user_agent":["bot"]}}]"#;
    assert!(Reader::new().read(file(drop, exempt).as_bytes()).is_ok());
    let feed = |members: &str| file(&format!("{{{members}}}"), "");
    for (text, place, told) in [
        (
            file("", names),
            "/denials/0/match/list",
            "no feed is named \"drop\"",
        ),
        (
            file(&format!("{drop},{drop}"), ""),
            "/feeds/1/name",
            "two lists are named",
        ),
        (
            file(drop, r#","deny":[{"file":"drop"}]"#),
            "/feeds/0/name",
            "two lists are named",
        ),
        (feed(r#""name":"a""#), "/feeds/0", "url"),
        (
            feed(r#""name":"a.b","url":"https://a.example/""#),
            "/feeds/0/name",
            "",
        ),
        (
            feed(r#""name":"a","url":"http://a.example/""#),
            "/feeds/0/url",
            "plain http to another machine: expected an https:// URL",
        ),
        (
            feed(r#""name":"a","url":"https://a.example/","every":"5m""#),
            "/feeds/0/every",
            "is not from 10m to 30d",
        ),
        (
            feed(r#""name":"a","url":"https://a.example/","use":"ban""#),
            "/feeds/0/use",
            "",
        ),
        (
            feed(r#""name":"a","url":"https://a.example/","evry":"1h""#),
            "/feeds/0/evry",
            "did you mean \"every\"?",
        ),
    ] {
        let (line, _, pointer, message) = fault(&text);
        assert_eq!((line, &*pointer), (2, place), "{text}: {message}");
        assert!(message.contains(told), "{text}: {message}");
    }
    let many = |count| {
        let feed = |n| format!(r#"{{"name":"f{n}","url":"https://lists.example/{n}"}}"#);
        (0..count).map(feed).collect::<Vec<_>>().join(",")
    };
    assert!(Reader::new().read(file(&many(32), "").as_bytes()).is_ok());
    assert_eq!(message(&file(&many(33), "")).0, "/feeds");
}
