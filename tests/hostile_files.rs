//! Hostile contents of the state files, at the start and as an edit (STATE-5, STATE-6): one clear
//! error, never a panic.
//!
//! The fragments are of the kinds that JSON parsers are known to disagree about: deep nesting, huge
//! numbers, bytes that are no UTF-8, lone surrogates, members that come twice, everything cut in
//! two. Each is tried as the whole file, as a member this version does not know, and as an entry.

use std::fs;

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::wait_until;
use crate::support::weir::{Weir, from_now, pretty, state_dir};

const FILES: [(&str, &str); 4] = [
    ("bans.json", "bans"),
    ("clients.json", "clients"),
    ("lookups.json", "lookups"),
    ("alerts.json", "alerts"),
];
/// How every document begins, and how one of alerts.json does, which has more lists than one.
const BEGINNING: &[u8] = b"{\"version\": 1, ";
const OF_ALERTS: &[u8] = b"{\"version\": 1, \"counters\": [], \"cooldowns\": [], ";

/// STATE-6: at the start every text that is no JSON is one clear error with file, line and column,
/// exit status 78, and the file stays as it was; JSON in a member that nobody knows is no reason to
/// refuse, unless a member in it comes twice.
#[test]
fn hostile_texts_at_the_start_are_one_clear_error() {
    // A part of them for each file, together all of them.
    starts(|file, number| number % FILES.len() == file);
}

/// STATE-6: the same with all of them for each file.
#[test]
#[ignore = "long; .ci/night runs it"]
fn every_hostile_text_at_the_start_is_one_clear_error() {
    starts(|_, _| true);
}

/// STATE-6: a file that was cut off is an error wherever it was cut, with the place where it ends.
#[test]
fn a_file_cut_anywhere_is_one_clear_error() {
    for (file, whole) in [
        ("bans.json", bans_file(6)),
        ("clients.json", clients_file(4)),
    ] {
        let text = pretty(&whole);
        for cut in (0..text.len()).step_by(97) {
            let (name, expected) = (format!("cut at {cut}"), Judged::Refused);
            start_with(
                file,
                &Text {
                    name,
                    bytes: text.as_bytes()[..cut].to_vec(),
                    expected,
                },
            );
        }
    }
}

/// STATE-5: as an edit each is reported once with line and column, nothing in memory changes, and
/// the next good edit is taken as if nothing had been.
#[test]
fn hostile_edits_change_nothing() {
    edits(|number| number % 37 == 0);
}

/// STATE-5: the same with many more of them.
#[test]
#[ignore = "long; .ci/night runs it"]
fn many_hostile_edits_change_nothing() {
    edits(|number| number % 7 == 0);
}

fn starts(chosen: impl Fn(usize, usize) -> bool) {
    let mut tried = 0;
    for (place, (file, list)) in FILES.into_iter().enumerate() {
        let mut texts = texts(list);
        let mut number = 0;
        texts.retain(|_| {
            number += 1;
            chosen(place, number)
        });
        tried += texts.len();
        // Two at a time are what a small machine has.
        std::thread::scope(|scope| {
            for part in texts.chunks(texts.len().div_ceil(2)) {
                scope.spawn(move || part.iter().for_each(|text| start_with(file, text)));
            }
        });
    }
    println!("STATE-6: {tried} hostile files at the start");
}

#[track_caller]
fn start_with(file: &str, text: &Text) {
    let Text {
        name,
        bytes,
        expected,
    } = text;
    let state = state_dir();
    let path = state.path().join(file);
    fs::write(&path, bytes).expect("writes");
    let started = Weir::try_start(
        &[],
        ([127, 0, 0, 1], 9).into(),
        &state,
        &[("WAF_LISTEN", "127.0.0.1:0")],
    );
    match (started, expected) {
        // A stop would write it.
        (Ok(mut weir), Judged::Taken | Judged::Either) => weir.kill(),
        (Ok(weir), Judged::Refused) => panic!("{file}, {name} was taken: {:?}", weir.process_log()),
        (Err(refused), Judged::Refused | Judged::Either) => {
            let stderr = &refused.stderr;
            assert_eq!(refused.code, Some(78), "{file}, {name}: {stderr}");
            assert!(!stderr.contains("panicked"), "{file}, {name}: {stderr}");
            let errors: Vec<_> = stderr.lines().filter(|line| line.contains(file)).collect();
            assert_eq!(errors.len(), 1, "{file}, {name}: {stderr}");
            for word in ["line ", "column ", "does not fit"] {
                assert!(errors[0].contains(word), "{file}, {name}: {stderr}");
            }
            assert!(errors[0].len() < 1000, "{file}, {name}: {stderr}");
        }
        (Err(refused), Judged::Taken) => panic!("{file}, {name} was refused: {refused:?}"),
    }
    assert_eq!(
        fs::read(&path).expect("it"),
        *bytes,
        "{file}, {name}: changed"
    );
}

#[track_caller]
fn edits(chosen: impl Fn(usize) -> bool) {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_EXEMPT_PATHS", "/exempt")]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    let errors = || {
        weir.process_log_text()
            .matches("the edit is not taken")
            .count()
    };
    let mut tried = 0;
    for (file, list) in FILES {
        for text in texts(list)
            .iter()
            .enumerate()
            .filter(|(number, _)| chosen(*number))
            .map(|(_, text)| text)
        {
            if !matches!(text.expected, Judged::Refused) {
                continue;
            }
            tried += 1;
            fs::write(weir.state_path(file), &text.bytes).expect("writes");
            wait_until(&format!("the error of {}", text.name), || errors() >= tried);
            assert_eq!(errors(), tried, "once: {}", text.name);
        }
        // Until a write sets it aside the bad file lies there, and a good one in its place is an
        // edit like any other.
        let mut good = json!({"version": 1, list: []});
        if file == "alerts.json" {
            good = json!({"version": 1, "counters": [], "cooldowns": [], "alerts": []});
        }
        if file != "bans.json" {
            fs::write(weir.state_path(file), pretty(&good)).expect("writes");
        }
    }
    assert_eq!(
        weir.get("/exempt", "203.0.113.7").status,
        429,
        "memory stays"
    );
    assert_eq!(weir.bans().len(), 1);
    let good = json!({"version": 1, "bans": [{"netblock": "198.51.100.0/24", "ban_expires": "permanent"}]});
    fs::write(weir.state_path("bans.json"), pretty(&good)).expect("writes");
    wait_until("the good edit", || {
        weir.get("/exempt", "198.51.100.7").status == 429
    });
    assert_eq!(weir.get("/exempt", "203.0.113.7").status, 200, "taken out");
    assert!(
        !weir.process_log_text().contains("panicked"),
        "{}",
        weir.process_log_text()
    );
    println!("STATE-5: {tried} hostile edits");
}

struct Text {
    name: String,
    bytes: Vec<u8>,
    expected: Judged,
}

#[derive(Clone, Copy)]
enum Judged {
    /// A good file.
    Taken,
    Refused,
    /// RFC 8259 leaves it to the parser.
    Either,
}

/// Every fragment in each of its places.
fn texts(list: &str) -> Vec<Text> {
    let mut all = Vec::new();
    for (name, bytes, valid) in fragments() {
        let around =
            |before: &str, after: &str| [before.as_bytes(), &bytes, after.as_bytes()].concat();
        let mut put = |place: &str, bytes, expected| {
            all.push(Text {
                name: format!("{name} as {place}"),
                bytes,
                expected,
            })
        };
        put("the file", bytes.clone(), Judged::Refused);
        put(
            "a member",
            around(&format!("{{\"version\": 1, \"{list}\": [], \"x\": "), "}"),
            valid,
        );
        // Nothing between the brackets is an empty list.
        let blank = bytes.trim_ascii().is_empty();
        let entry = if blank {
            Judged::Taken
        } else {
            Judged::Refused
        };
        put(
            "an entry",
            around(&format!("{{\"version\": 1, \"{list}\": ["), "]}"),
            entry,
        );
    }
    for (name, text) in [
        ("version twice", format!("{{\"version\": 1, \"version\": 1, \"{list}\": []}}")),
        ("list twice", format!("{{\"version\": 1, \"{list}\": [], \"{list}\": []}}")),
        ("list twice by escape", format!("{{\"version\": 1, \"{list}\": [], \"\\u00{:02x}{}\": []}}", list.as_bytes()[0], &list[1..])),
        ("unknown member twice", format!("{{\"version\": 1, \"x\": 1, \"{list}\": [], \"x\": 2}}")),
        ("version as text", format!("{{\"version\": \"1\", \"{list}\": []}}")),
        ("version 1.5", format!("{{\"version\": 1.5, \"{list}\": []}}")),
        ("version -1", format!("{{\"version\": -1, \"{list}\": []}}")),
        ("version null", format!("{{\"version\": null, \"{list}\": []}}")),
        ("version huge", format!("{{\"version\": {}, \"{list}\": []}}", "9".repeat(400))),
        ("list null", format!("{{\"version\": 1, \"{list}\": null}}")),
        ("list as object", format!("{{\"version\": 1, \"{list}\": {{}}}}")),
        ("two documents", format!("{{\"version\": 1, \"{list}\": []}}{{\"version\": 1, \"{list}\": []}}")),
        ("a comment behind", format!("{{\"version\": 1, \"{list}\": []}} // end")),
        ("a NUL behind", format!("{{\"version\": 1, \"{list}\": []}}\0")),
        ("a byte order mark", format!("\u{feff}{{\"version\": 1, \"{list}\": []}}")),
        ("netblock twice", "{\"version\": 1, \"bans\": [{\"netblock\": \"10.0.0.0/8\", \"netblock\": \"::/0\", \"ban_expires\": \"permanent\"}], \"clients\": 0}".to_owned()),
        ("client twice", "{\"version\": 1, \"clients\": [{\"client\": \"10.0.0.1\", \"client\": \"10.0.0.2\", \"first_seen\": \"2026-11-21T16:00:00Z\", \"last_seen\": \"2026-11-21T16:00:00Z\"}]}".to_owned()),
    ] {
        all.push(Text { name: name.to_owned(), bytes: text.into_bytes(), expected: Judged::Refused });
    }
    if list == "alerts" {
        for text in &mut all {
            if let Some(rest) = text.bytes.strip_prefix(BEGINNING) {
                text.bytes = [OF_ALERTS, rest].concat();
            }
        }
    }
    all
}

/// Name, bytes, and how JSON judges them as a value.
fn fragments() -> Vec<(String, Vec<u8>, Judged)> {
    use Judged::{Either, Refused, Taken};
    let mut all: Vec<(String, Vec<u8>, Judged)> = Vec::new();
    let mut put =
        |name: &str, bytes: &[u8], judged| all.push((name.to_owned(), bytes.to_vec(), judged));
    for good in [
        "0",
        "-0",
        "1e3",
        "1E+2",
        "0.5",
        "123456789012345678901234567890",
        "true",
        "null",
        "\"\"",
        "\"\\u0000\"",
        "\"\\ud83e\\udd80\"",
        "\"\\/\\\\\\b\\f\\n\\r\\t\"",
        "\"\u{2028}\u{7f}\u{fdd0}\"",
        "[]",
        "{}",
        "[[],{}]",
        "{\"\": 0}",
        " \t\r\n1 ",
    ] {
        put(good, good.as_bytes(), Taken);
    }
    for bad in [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[1",
        "[1,",
        "[,]",
        "[1,,2]",
        "[1 2]",
        "[1,]",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,}",
        "{\"a\" 1}",
        "{a: 1}",
        "{1: 1}",
        "{'a': 1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\"::1}",
        "{[]: 1}",
        "[\"a\":1]",
        "{\"a\",1}",
        "+1",
        "01",
        "-",
        "-01",
        ".5",
        "1.",
        "1.e1",
        "1e",
        "1e+",
        "1ee1",
        "0x10",
        "1_000",
        "- 1",
        "--1",
        "1+2",
        "NaN",
        "Infinity",
        "-Infinity",
        "1\u{ff11}",
        "tru",
        "True",
        "nul",
        "undefined",
        "yes",
        "'a'",
        "\"",
        "\"a",
        "\"\\\"",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\'\"",
        "\"\\a\"",
        "\"tab\there\"",
        "\"line\nbreak\"",
        "\"\u{0}\"",
        "\"\u{1b}\"",
        "`a`",
        "a",
        "/*c*/1",
        "1//c",
        "#1",
        "[1]]",
        "1 1",
        "{}{}",
        "\u{a0}1",
        "\u{feff}1",
        "\u{2060}",
        "\u{b}1",
        "\\u0031",
        "<a/>",
        "%7B%7D",
        "*",
        "&a",
        "\"\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\"\\ud800\\u0041\"",
        "1e999",
        "-1e999",
        // JSON, but one of the two would be lost when it is written back.
        "{\"a\": 1, \"a\": 2}",
        "[{\"b\": {\"a\": 1, \"\\u0061\": 1}}]",
    ] {
        put(bad, bad.as_bytes(), Refused);
    }
    // Numbers that do not fit a double exactly are rounded by some and refused by others.
    for open in [
        "1e-999",
        "0.00000000000000000000000000000001e-400",
        "1.7976931348623159e308",
    ] {
        put(open, open.as_bytes(), Either);
    }
    for (name, bytes) in [
        ("a lone ff", &b"\"\xff\""[..]),
        ("a cut sequence", b"\"\xe2\x82\""),
        ("an overlong slash", b"\"\xc0\xaf\""),
        ("a surrogate in UTF-8", b"\"\xed\xa0\x80\""),
        ("beyond Unicode", b"\"\xf4\x90\x80\x80\""),
        ("ff outside of a string", b"\xff"),
        ("a bad member name", b"{\"\xfe\": 1}"),
        ("UTF-16", b"\xff\xfe{\0}\0"),
        ("UTF-16 without a mark", b"\0{\0}"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0"),
        ("zeros", &[0; 64]),
    ] {
        put(name, bytes, Refused);
    }
    put("100,000 brackets", "[".repeat(100_000).as_bytes(), Refused);
    put(
        "100,000 braces",
        "{\"a\":".repeat(100_000).as_bytes(),
        Refused,
    );
    put(
        "10,000 levels, closed",
        format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)).as_bytes(),
        Refused,
    );
    put(
        "100 levels, closed",
        format!("{}{}", "[".repeat(100), "]".repeat(100)).as_bytes(),
        Taken,
    );
    put(
        "a number of 100,000 digits",
        "7".repeat(100_000).as_bytes(),
        Either,
    );
    put(
        "an exponent of 100 digits",
        format!("1e{}", "9".repeat(100)).as_bytes(),
        Refused,
    );
    put(
        "a text of 1 MiB",
        format!("\"{}\"", "x".repeat(1 << 20)).as_bytes(),
        Taken,
    );
    all
}

fn bans_file(count: usize) -> Value {
    let bans: Vec<_> = (0..count)
        .map(|number| {
            json!({"netblock": format!("203.0.{number}.0/24"), "client": format!("203.0.{number}.7"), "ban_started": from_now(-60),
                "ban_expires": from_now(3600), "cause": "rate_limit", "reason": "more than 5 requests per hour", "lifted": null, "observed": false,
                "notes": {"request": {"method": "GET", "host": "example.org", "path": "/a"}, "netblock_requests": 6, "limit": "hour",
                    "limit_value": 5, "limit_percent": 100}})
        })
        .collect();
    json!({"version": 1, "bans": bans})
}

fn clients_file(count: usize) -> Value {
    let buckets = json!({"start": "2026-11-21T00:00:00Z", "current": 3, "previous": 9});
    let windows = json!({"minute": buckets, "hour": buckets, "day": buckets});
    let clients: Vec<_> = (0..count)
        .map(|number| {
            json!({"client": format!("203.0.113.{number}"), "first_seen": from_now(-60), "last_seen": from_now(-1), "passed": 10, "refused": 2,
                "requests": windows, "bytes": windows})
        })
        .collect();
    json!({"version": 1, "clients": clients})
}
