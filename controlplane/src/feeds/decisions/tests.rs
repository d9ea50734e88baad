use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Answer {
    parse(text.as_bytes()).unwrap()
}

fn listed(decisions: &Decisions) -> Vec<String> {
    let Listed {
        netblocks,
        asns,
        countries,
    } = decisions.listed();
    let netblocks = netblocks.iter().map(ToString::to_string);
    let asns = asns.iter().map(|asn| format!("AS{}", asn.number()));
    let countries = countries.iter().map(ToString::to_string);
    netblocks.chain(asns).chain(countries).collect()
}

/// FEED-7: a ban is deny and other types as `other` says; scopes are addresses, ranges, autonomous
/// systems and countries; simulated and ended decisions have no effect; unknown ones are skipped
/// and reported in short.
#[test]
fn types_and_scopes() {
    let one = |id: i64, kind: &str, scope: &str, value: &str, more: &str| {
        format!(
            r#"{{"id":{id},"origin":"cscli","type":"{kind}","scope":"{scope}","value":"{value}","scenario":"x"{more}}}"#
        )
    };
    let hour = r#","duration":"1h0m0s""#;
    let items = [
        one(1, "ban", "Ip", "198.51.100.1", hour),
        one(2, "ban", "Range", "192.0.2.0/24", hour),
        one(3, "ban", "As", "64500", hour),
        one(4, "ban", "AS", "AS64501", hour),
        one(5, "ban", "Country", "de", hour),
        one(6, "captcha", "Ip", "198.51.100.6", hour),
        one(
            7,
            "ban",
            "Ip",
            "198.51.100.7",
            r#","duration":"1h","simulated":true"#,
        ),
        one(8, "ban", "Ip", "198.51.100.8", r#","duration":"-3m""#),
        "null".to_owned(),
        one(9, "ban", "Ip", "2001:db8::9", hour),
        one(10, "ban", "username", &"x".repeat(500), hour),
        one(11, "ban", "Ip", "nobody", hour),
        one(12, "ban", "Ip", "198.51.100.12", r#","duration":"often""#),
        one(13, "ban", "Ip", "198.51.100.13", ""),
    ];
    let answer = read(&format!(
        r#"{{"new":[{}],"deleted":null}}"#,
        items.join(",")
    ));
    assert_eq!(answer.skipped, 4);
    let first = answer.first_skipped.clone().unwrap();
    assert!(first.starts_with("10: scope \"username\""), "{first}");
    assert!(first.len() < 150, "{first}");
    let bans = [
        "192.0.2.0/24",
        "198.51.100.1/32",
        "2001:db8::9/128",
        "AS64500",
        "AS64501",
        "DE",
    ];
    let mut decisions = Decisions::default();
    decisions.apply(&answer, Other::Ignore, 0);
    assert_eq!(listed(&decisions), bans);
    let mut all = Decisions::default();
    all.apply(&answer, Other::Deny, 0);
    assert_eq!(listed(&all).len(), bans.len() + 1);
    assert!(listed(&all).contains(&"198.51.100.6/32".to_owned()));
    let again = Decisions::of_lines(&decisions.lines());
    assert_eq!(again.as_ref(), Some(&decisions));
    assert_eq!(Decisions::of_lines("1 192.0.2.1\n"), None);
}

/// FEED-7: two decisions on one value do not undo each other, in any order of additions and
/// removals.
#[test]
fn two_on_one_value() {
    let value = r#""type":"ban","scope":"Ip","value":"198.51.100.1","duration":"#;
    for (first, last) in [(1, 2), (2, 1)] {
        let mut decisions = Decisions::default();
        let mut say = |text: String, now_ms| {
            decisions.apply(&read(&text), Other::Ignore, now_ms);
            decisions.end(now_ms);
            listed(&decisions).len()
        };
        let new = |id: i64, left: &str| format!(r#"{{"new":[{{"id":{id},{value}"{left}"}}]}}"#);
        let gone = |id: i64| format!(r#"{{"new":null,"deleted":[{{"id":{id}}}]}}"#);
        assert_eq!(say(new(1, "4h"), 0), 1);
        assert_eq!(say(new(2, "1h"), 0), 1);
        assert_eq!(say(gone(first), 0), 1);
        assert_eq!(say(gone(last), 0), 0);
        // Gone before it came, or never known.
        assert_eq!(say(gone(last), 0), 0);
        assert_eq!(say(new(1, "2h"), 0), 1);
        assert_eq!(say(new(2, "1h"), 0), 1);
        assert_eq!(say(r#"{"new":[]}"#.to_owned(), 3_600_000), 1);
        assert_eq!(say(r#"{"new":[]}"#.to_owned(), 7_199_999), 1);
        assert_eq!(say(r#"{"new":[]}"#.to_owned(), 7_200_000), 0);
    }
}

/// FEED-7: durations are read as Go writes them.
#[test]
fn durations() {
    for (text, left) in [
        ("4h", Some(14_400_000)),
        ("3h59m57.5s", Some(14_397_500)),
        ("1.000000001s", Some(1001)),
        ("250ms", Some(250)),
        ("7µs", Some(1)),
        ("-1h2m", Some(0)),
        ("0", Some(0)),
        ("0s", Some(0)),
        (
            "99999999999999999999999999999999999999999h",
            Some(MAX_LEFT_MS),
        ),
        ("", None),
        ("4", None),
        ("h", None),
        ("4x", None),
        (".s", None),
        ("1.2.3s", None),
        ("4h ", None),
        ("-", None),
    ] {
        assert_eq!(left_ms(text), left, "{text:?}");
    }
}

/// FEED-7: a text that is no stream, or was cut anywhere, is refused, and the error quotes nothing
/// of it.
#[test]
fn garbage_is_no_stream() {
    let whole = r#"{"new":[{"id":1,"type":"ban","scope":"Ip","value":"192.0.2.1","duration":"1h"},null],"deleted":[{"id":2}]}"#;
    assert!(parse(whole.as_bytes()).is_ok());
    for end in 0..whole.len() {
        let told = parse(&whole.as_bytes()[..end]).unwrap_err();
        assert!(told.contains("was cut"), "{end}: {told}");
    }
    for text in [
        "<html>secret</html>",
        "[]",
        "null",
        r#"{"message":"secret"}"#,
        r#"{"new":"secret"}"#,
        r#"{"new":[{"id":"secret"}]}"#,
        r#"{"new":[],"deleted":[{"value":"secret"}]}"#,
        r#"{"new":[],"new":[]}"#,
    ] {
        let told = parse(text.as_bytes()).unwrap_err();
        assert!(!told.contains("secret") && told.len() < 120, "{told}");
    }
    let many = "null,".repeat(1_000_000);
    assert!(parse(format!(r#"{{"new":[{many}null]}}"#).as_bytes()).is_ok());
    let item = r#"{"id":1,"type":"ban","scope":"Ip","value":"192.0.2.1","duration":"1h"},"#;
    let many = item.repeat(MAX_NETBLOCKS);
    let told = parse(format!(r#"{{"new":[{many}{}]}}"#, item.trim_end_matches(',')).as_bytes());
    assert!(told.unwrap_err().contains("more than 500000 decisions"));
}

/// What may happen to decisions.
#[derive(Clone, Debug)]
enum Step {
    Add(i64, u8, u64, bool),
    Delete(i64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0i64..12, 0u8..4, 0u64..40, any::<bool>())
            .prop_map(|(id, value, left, is_ban)| Step::Add(id, value, left, is_ban)),
        (0i64..12).prop_map(Step::Delete),
        (0u64..15).prop_map(Step::Wait),
    ]
}

proptest! {
    /// FEED-7: adds, deletes and ends in any order agree with a naive twin: a list of all messages,
    /// of which the last of each id counts.
    #[test]
    fn decisions_agree_with_a_naive_twin(steps in prop::collection::vec(step(), 0..60)) {
        let (mut decisions, mut now_ms) = (Decisions::default(), 0);
        let mut said: Vec<(i64, Option<(u8, u64)>)> = Vec::new();
        for step in steps {
            match step {
                Step::Add(id, value, left, is_ban) => {
                    let kind = if is_ban { "ban" } else { "captcha" };
                    let text = format!(
                        r#"{{"new":[{{"id":{id},"type":"{kind}","scope":"Ip","value":"192.0.2.{value}","duration":"{left}ms"}}],"deleted":[]}}"#
                    );
                    let (mut back, before) = (decisions.clone(), decisions.clone());
                    let undo = back.apply(&read(&text), Other::Ignore, now_ms);
                    prop_assert_eq!(undo.is_empty(), back == before);
                    back.undo(undo);
                    prop_assert_eq!(back, before);
                    decisions.apply(&read(&text), Other::Ignore, now_ms);
                    said.push((id, is_ban.then_some((value, now_ms + left))));
                }
                Step::Delete(id) => {
                    decisions.apply(&read(&format!(r#"{{"deleted":[{{"id":{id}}}]}}"#)), Other::Ignore, now_ms);
                    said.push((id, None));
                }
                Step::Wait(ms) => now_ms += ms,
            }
            decisions.end(now_ms);
            let twin = (0u8..4).filter(|value| (0i64..12).any(|id| {
                let last = said.iter().rev().find(|(of, _)| *of == id).and_then(|(_, what)| *what);
                last.is_some_and(|(of, ends)| of == *value && ends > now_ms)
            }));
            let twin: Vec<String> = twin.map(|value| format!("192.0.2.{value}/32")).collect();
            prop_assert_eq!(listed(&decisions), twin);
            prop_assert_eq!(Decisions::of_lines(&decisions.lines()), Some(decisions.clone()));
        }
    }
}
