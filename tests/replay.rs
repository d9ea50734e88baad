//! `weir replay` as a person runs it: on our own log, on others', on what is none (CONTROL-6).

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::feeds::save;
use crate::schemas::{schema, validator};
use crate::support::application::{After, Application};
use crate::support::command::{command, fed};
use crate::support::raw_client::request;
use crate::support::wait_for;
use crate::support::weir::{Weir, state_dir};

/// What the service and the replay are given.
const SETTINGS: [(&str, &str); 7] = [
    ("WAF_RATE_LIMIT_PER_MINUTE", "20"),
    ("WAF_RATE_LIMIT_PER_SECOND", "1000"),
    ("WAF_BYTES_LIMIT_PER_HOUR", "3000"),
    ("WAF_DENY_NETS", "198.51.100.0/28"),
    ("WAF_EXEMPT_PATHS", "/static"),
    ("WAF_MAX_BODY_SIZE", "100"),
    ("WAF_TRUSTED_PROXIES", "127.0.0.0/8"),
];
const RULES: &str = r#"{"version":1,
    "limits":[{"name":"login","path":"/login","per_minute":2,"on_limit":"refuse"}],
    "traps":[{"name":"secrets","paths":["/.env"]}],
    "jails":[{"name":"guess","statuses":[404],"per_minute":6}]}"#;

fn replay(state: &Path, arguments: &[&str]) -> Command {
    command(state, &[&["replay"], arguments].concat())
}

#[track_caller]
fn ends(output: Output, code: i32) -> (String, String) {
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    let err = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    (out, err)
}

#[track_caller]
fn document(out: &str) -> Value {
    let value: Value = serde_json::from_str(out).expect("JSON");
    let errors: Vec<String> = validator(&schema("replay"))
        .iter_errors(&value)
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:?} in {value:#}");
    value
}

/// A line of nginx.
fn combined(second: u64, client: &str, target: &str, status: u16) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{client} - - [21/Nov/2026:16:{minute:02}:{second:02} +0000] \"GET {target} HTTP/1.1\" {status} 100 \"-\" \"test\"\n"
    )
}

/// An application that answers as the path says: with a status, or with so many bytes.
fn application() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let last = exchange.request.target.rsplit('/').next().unwrap_or("");
        let number = last.parse::<usize>().unwrap_or(200);
        match u16::try_from(number) {
            Ok(status @ 200..=599) => exchange.answer(status, &[], b""),
            _ => exchange.answer(200, &[], &vec![b'x'; number]),
        };
        After::KeepAlive
    })
}

/// Drives a varied traffic through the service, and waits behind each request until what follows
/// from it is in force.
fn drive(weir: &Weir) {
    let mut state = 7_u32;
    for step in 0..500 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let random = state >> 8;
        let host = 1 + random % 5;
        let client = match random / 16 % 4 {
            0 => format!("203.0.{host}.7"),
            1 => format!("198.51.100.{}", host * 4),
            2 => format!("2001:db8:{host}::7"),
            _ => format!("192.0.2.{}", host * 16),
        };
        let target = match random / 64 % 120 {
            0 => ["/.env", "/.ENV;x"][step % 2].to_owned(),
            1..=25 => ["/login", "/LOGIN;a=b", "/x/..;/login", "/login%2F2fa"][step % 4].to_owned(),
            26..=35 => "/guess/404".to_owned(),
            36..=45 => "/static/a".to_owned(),
            46..=50 => "/bytes/900".to_owned(),
            _ => format!("/page/{}", step % 7),
        };
        let body = vec![b'b'; if random.is_multiple_of(3) { 101 } else { 5 }];
        let method = if random.is_multiple_of(5) {
            "POST"
        } else {
            "GET"
        };
        let body = (method == "POST").then_some(&*body);
        let site = ["cross-site", "same-origin", "none"][random as usize / 8192 % 3];
        let fields = [("X-Forwarded-For", &*client), ("Sec-Fetch-Site", site)];
        weir.send(&request(method, &target, &fields, body));
        wait_for("the line", || {
            (weir.request_log().len() > step).then_some(())
        });
        // Answered by the thread that makes bans, behind all that was reported.
        weir.control("GET", "/v1/bans", None).expect(200);
    }
}

/// CONTROL-6, RULE-8: a replay of the service's own log under the same settings refuses what the
/// service refused: the same requests for the same reasons, those that pages of other sites asked
/// for among them, and as many bans are made.
#[test]
fn a_replay_refuses_what_the_service_refused() {
    let application = application();
    let state = state_dir();
    fs::write(state.path().join("rules.json"), RULES).expect("writes rules.json");
    let weir = Weir::start_at(application.address(), &state, &SETTINGS);
    drive(&weir);
    let log = weir.request_log();
    let all = [
        "banned",
        "body_too_large",
        "denied_net",
        "rate_limited",
        "trapped",
    ];
    let is_refusal = |line: &&Value| all.iter().any(|action| line["action"] == *action);
    let refused_by_service: Vec<_> = log.iter().filter(is_refusal).map(refusal).collect();
    let bans = weir.control("GET", "/v1/bans", None).json()["bans"]
        .as_array()
        .expect("a list")
        .len();

    let elsewhere = state_dir();
    let path = |name: &str| elsewhere.path().join(name);
    let lines: String = log.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path("weir.log"), lines).expect("writes the log");
    fs::write(path("rules.json"), RULES).expect("writes rules.json");
    let (log, refusals) = (path("weir.log"), path("refusals"));
    let arguments = ["--json", "--refusals"].map(str::to_owned);
    let paths = [&refusals, &log].map(|path| path.display().to_string());
    let arguments: Vec<&str> = arguments.iter().chain(&paths).map(String::as_str).collect();
    let output = replay(elsewhere.path(), &arguments)
        .envs(SETTINGS)
        .output()
        .expect("the binary runs");
    let (out, _) = ends(output, 0);
    let document = document(&out);
    let replayed: Vec<_> = fs::read_to_string(&refusals)
        .expect("the refusals")
        .lines()
        .map(|line| refusal(&serde_json::from_str(line).expect("JSON")))
        .collect();
    assert_eq!(replayed, refused_by_service);
    for reason in all {
        let mut reasons = replayed.iter().map(|[_, action, _]| action.as_deref());
        assert!(reasons.any(|action| action == Some(reason)), "{reason}");
    }
    assert_eq!(document["trials"][0]["bans"], bans);
    assert_eq!(document["refused_in_log"], replayed.len());
    assert_eq!(document["trials"][0]["refused"], replayed.len());
    assert_eq!(document["lines"]["requests"], 500);
    assert!(bans > 2, "{bans}");
}

/// Which request was refused, why, and by which limit.
fn refusal(line: &Value) -> [Option<String>; 3] {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    ["request_id", "action", "limit_hit"].map(text)
}

/// CONTROL-6: a log of nginx, two trials side by side; who and what would be refused is told in
/// words and in JSON; lines that cannot be read are counted and told by number.
#[test]
fn two_trials_stand_side_by_side() {
    let state = state_dir();
    let mut log = String::new();
    for second in 0..60 {
        for _ in 0..10 {
            log += &combined(second, "203.0.113.7", "/search?q=1", 200);
        }
        log += &combined(second, "198.51.100.1", "/", 200);
    }
    for number in 0..7 {
        let _ = writeln!(log, "no line {number}");
    }
    let path = state.path().join("access.log");
    fs::write(&path, &log).expect("writes the log");
    let path = path.display().to_string();
    let run = |more: &[&str]| {
        let arguments: Vec<&str> = [path.as_str()].iter().chain(more).copied().collect();
        let output = replay(state.path(), &arguments).output();
        ends(output.expect("the binary runs"), 0)
    };
    let set = [
        "--set",
        "WAF_RATE_LIMIT_PER_MINUTE=300",
        "--set",
        "WAF_BAN_FIRST=10s",
    ];
    let (out, err) = run(&[&set[..], &["--json"]].concat());
    let found = document(&out);
    assert_eq!(found["files"][0]["format"], "combined");
    assert_eq!(found["lines"]["requests"], 660);
    assert_eq!(found["lines"]["unreadable"], 7);
    assert_eq!(found["lines"]["first_unreadable"][4]["line"], 665);
    assert_eq!(err.matches("line 66").count(), 5, "{err}");
    // As they are: 1000 a minute. On trial the 301st breaks the limit and is banned for 10 s, and
    // from then on 300 more would be needed.
    assert_eq!(found["trials"][0]["refused"], 0);
    assert_eq!(found["trials"][1]["refused"], 100);
    assert_eq!(found["trials"][1]["by_reason"]["rate_limited"], 1);
    assert_eq!(found["trials"][1]["by_reason"]["banned"], 99);
    assert_eq!(found["clients"][0]["of"], "203.0.113.7");
    assert_eq!(found["clients"][0]["refused"], serde_json::json!([0, 100]));
    assert_eq!(found["netblocks"][0]["of"], "203.0.113.0/24");
    assert_eq!(found["paths"][0]["of"], "/search");
    assert_eq!(found["refused_in_log"], Value::Null);

    let (words, _) = run(&set);
    let line = |begin: &str| {
        let line = words
            .lines()
            .find(|line| line.trim_start().starts_with(begin));
        let line = line.unwrap_or_else(|| panic!("no line {begin:?}: {words}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("refused"), "refused 0 (0.0 %) 100 (15.2 %)");
    assert_eq!(line("bans made"), "bans made 0 1");
    assert_eq!(line("203.0.113.7"), "203.0.113.7 600 0 100");
    assert_eq!(line("/search"), "/search 600 0 100");
    assert!(!words.contains('\u{1b}'), "{words}");

    let second = ["--or-set", "WAF_DENY_NETS=198.51.100.0/24"];
    let (out, _) = run(&[&set[..], &second, &["--json"]].concat());
    let found = document(&out);
    assert_eq!(found["trials"][0]["refused"], 100);
    assert_eq!(found["trials"][1]["by_reason"]["denied_net"], 60);
}

/// CONTROL-6: HAProxy's log from standard input; a request is judged when it came and its bytes are
/// charged when it ended, also where the log is in the order of the ends.
#[test]
fn haproxys_log_is_read_from_standard_input() {
    let state = state_dir();
    let line = |second: u32, took: u32, bytes: u32, path: &str| {
        format!(
            "203.0.113.7:4711 [21/Nov/2026:16:00:{second:02}.000] web app/one 0/0/1/2/{took} 200 {bytes} - - ---- 1/1/0/0/0 0/0 \"GET {path} HTTP/1.1\"\n"
        )
    };
    // The download began before the pages and ended behind them: it refuses none of the first two.
    let log = [
        line(2, 5, 10, "/a"),
        line(3, 5, 10, "/b"),
        line(1, 4000, 5000, "/download"),
        line(6, 5, 10, "/c"),
    ];
    let refusals = state.path().join("refusals");
    let refusals = refusals.display().to_string();
    let set = "WAF_BYTES_LIMIT_PER_MINUTE=1000";
    let arguments = ["-", "--json", "--set", set, "--refusals", &refusals];
    let output = fed(
        &mut replay(state.path(), &arguments),
        log.concat().as_bytes(),
    );
    let (out, _) = ends(output, 0);
    let found = document(&out);
    assert_eq!(found["files"][0]["format"], "haproxy");
    assert_eq!(found["trials"][1]["refused"], 1);
    let refused = fs::read_to_string(&refusals).expect("the refusals");
    let refused: Value = serde_json::from_str(&refused).expect("one line");
    assert_eq!(
        (&refused["path"], &refused["action"]),
        (&"/c".into(), &"banned".into())
    );
}

/// CONTROL-6, MATCH-1: what rules ask for and a log does not hold is said once, the host among it.
#[test]
fn what_a_log_does_not_hold_is_said() {
    let state = state_dir();
    let rules = r#"{"version":1,
        "denials":[{"name":"shop","match":{"host":"shop.example"}}],
        "limits":[{"name":"few","host":"shop.example","per_minute":1,"on_limit":"refuse"}]}"#;
    fs::write(state.path().join("rules.json"), rules).expect("writes rules.json");
    let log = state.path().join("nginx.log");
    let lines = [0, 1].map(|second| combined(second, "192.0.2.1", "/", 200));
    fs::write(&log, lines.concat()).expect("writes the log");
    let output = replay(state.path(), &[&log.display().to_string()]).output();
    let (_, err) = ends(output.expect("the binary runs"), 0);
    let told = "rules ask for host, which a log of the format combined does not hold";
    assert_eq!(err.matches(told).count(), 1, "{err}");
}

/// CONTROL-6, CRAWL-7: that no log holds what DNS says of crawlers is said once.
#[test]
fn names_of_crawlers_are_missed() {
    let state = state_dir();
    let log = state.path().join("nginx.log");
    fs::write(&log, combined(0, "66.249.66.1", "/", 200)).expect("writes the log");
    let said = |rules: &str| {
        fs::write(state.path().join("rules.json"), rules).expect("writes rules.json");
        let output = replay(state.path(), &[&log.display().to_string()]).output();
        let (_, err) = ends(output.expect("the binary runs"), 0);
        err.matches("a log does not hold").count()
    };
    let rules = r#"{"version":1,"crawlers":[{"name":"googlebot","purpose":"search",
        "user_agent":["Googlebot"],"verify":{"dns":[".googlebot.com"]}}],
        "denials":[{"name":"fakes","match":{"crawler":"fake"}}]}"#;
    assert_eq!(said(rules), 1);
    assert_eq!(said(r#"{"version":1}"#), 0);
}

/// CONTROL-5, CONTROL-6, MATCH-1: fields that our own log holds (`WAF_LOG_REQUEST_HEADERS`) are
/// asked for by `replay` and `explain` as by the service.
#[test]
fn logged_fields_are_judged() {
    let application = application();
    let state = state_dir();
    let log = state.path().join("requests.log");
    let named = log.display().to_string();
    let settings = [
        ("WAF_LOG_REQUEST_HEADERS", "x-a"),
        ("WAF_LOG_FILE", named.as_str()),
    ];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let ask = |path: &str| {
        let fields = [("X-Forwarded-For", "192.0.2.7"), ("X-A", "a needle")];
        weir.send(&request("GET", path, &fields, None))
    };
    let line = |path: &str| {
        wait_for("the line", || {
            let text = fs::read_to_string(&log).ok()?;
            let line = text.lines().find(|line| line.contains(path))?;
            serde_json::from_str::<Value>(line).ok()
        })
    };
    ask("/before").expect(200);
    let before = line("/before");
    assert_eq!(before["headers"]["x-a"], "a needle");
    let rules = r#"{"version":1,"denials":[{"name":"needles","answer":403,
        "match":{"fields":[{"name":"x-a","has":"needle"}]}}]}"#;
    save(state.path(), "rules.json", rules);
    wait_for("the denial", || {
        (ask("/polled").status == 403).then_some(())
    });
    ask("/after").expect(403);
    let after = line("/after");
    assert_eq!(after["action"], "denied_rule");
    let explained = [&before, &after].map(|line| {
        let id = line["request_id"].as_str().expect("an id");
        let output = command(state.path(), &["explain", "--request", id]).output();
        let told = output.expect("the binary runs").stdout;
        String::from_utf8_lossy(&told).contains("denial needles of rules.json")
    });
    let elsewhere = state_dir();
    fs::write(elsewhere.path().join("rules.json"), rules).expect("writes rules.json");
    let output = replay(elsewhere.path(), &["--json", &named]).output();
    let (out, err) = ends(output.expect("the binary runs"), 0);
    let document = document(&out);
    let replayed = document["trials"][0]["refused"] == document["lines"]["requests"];
    // The first is in the log alone, the second among the last refusals too.
    assert_eq!((explained, replayed), ([true, true], true), "{document}");
    assert!(!err.contains("rules ask for"), "{err}");
}

/// CONTROL-6: SIGINT ends it with what was found so far, and with status 130.
#[test]
fn an_interruption_tells_what_was_found() {
    let state = state_dir();
    let mut child = replay(state.path(), &["-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut input = child.stdin.take().expect("piped");
    // More than the pipe holds: most of it has been taken when this is written.
    let lines = combined(1, "203.0.113.7", "/a", 200).repeat(20_000);
    input.write_all(lines.as_bytes()).expect("reads");
    let id = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a pid");
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
    let (out, _) = ends(child.wait_with_output().expect("ends"), 130);
    assert!(
        out.starts_with("Interrupted: this is what was found so far.\n"),
        "{out}"
    );
    let requests = out.lines().nth(1).and_then(|line| line.split(' ').next());
    let requests: u64 = requests
        .and_then(|count| count.parse().ok())
        .expect("a count");
    assert!(requests > 0, "{out}");
    drop(input);
}

/// CONTROL-6: a wrong call is one sentence and its status.
#[test]
fn wrong_calls_are_one_sentence() {
    let state = state_dir();
    let write = |name: &str, bytes: &[u8]| {
        let path = state.path().join(name);
        fs::write(&path, bytes).expect("writes");
        path.display().to_string()
    };
    let none = write("none", b"this\nis no log\n");
    let packed = write("packed", b"\x1f\x8b\x08\x00");
    let log = write("log", combined(1, "203.0.113.7", "/", 200).as_bytes());
    let gone = state.path().join("gone").display().to_string();
    let dir = state.path().display().to_string();
    for (arguments, code, sentence) in [
        (vec![gone.as_str()], 2, "gone cannot be read: No such file"),
        (vec![&*dir], 2, "cannot be read: it is a directory"),
        (vec![&*packed], 2, "is compressed: zcat"),
        (
            vec![&*none],
            2,
            "no request can be read: expected our own log",
        ),
        (vec![&*log, "--set", "WAF_MODE"], 2, "expected NAME=value"),
        (
            vec![&*log, "--set", "WAF_MODUS=x"],
            2,
            "--set WAF_MODUS: there is no such setting",
        ),
        (vec![&*log, "--set", "WAF_MODE=x"], 78, "WAF_MODE=\"x\""),
        (
            vec![&*log, "--refusals", &*dir],
            2,
            "cannot be written: Is a directory",
        ),
        (vec![], 2, "required arguments were not provided"),
        (vec![&*log, "--top", "0"], 2, "invalid value '0'"),
    ] {
        let output = replay(state.path(), &arguments).output();
        let (out, err) = ends(output.expect("the binary runs"), code);
        assert!(err.contains(sentence), "{arguments:?}: {err}");
        assert_eq!(out, "", "{arguments:?}");
    }
}

/// CONTROL-6: memory does not grow with the log: every line names another client and another path,
/// and once the tables are full, 20 MB more need no more memory.
#[test]
fn memory_does_not_grow_with_the_log() {
    let state = state_dir();
    let mut child = replay(state.path(), &["-", "--format", "combined", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let mut input = child.stdin.take().expect("piped");
    let mut written = 0;
    let mut write = |megabytes: usize| {
        let mut bytes = 0;
        while bytes < megabytes * 1_000_000 {
            let [_, b, c, d] = u32::to_be_bytes(written);
            let path = format!("/{written:0>250}");
            let line = combined(
                u64::from(written / 200 % 3000),
                &format!("11.{b}.{c}.{d}"),
                &path,
                200,
            );
            input.write_all(line.as_bytes()).expect("reads");
            bytes += line.len();
            written += 1;
        }
    };
    let peak = || {
        let status = fs::File::open(format!("/proc/{}/status", child.id())).expect("it runs");
        let lines = BufReader::new(status).lines().map_while(Result::ok);
        let line = lines.into_iter().find(|line| line.starts_with("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        kilobytes.unwrap_or(0_u64)
    };
    write(40);
    let before = peak();
    write(20);
    let after = peak();
    drop(input);
    let mut out = String::new();
    let mut output = child.stdout.take().expect("piped");
    output.read_to_string(&mut out).expect("UTF-8");
    assert!(child.wait().expect("ends").success());
    assert_eq!(document(&out)["lines"]["requests"], written);
    assert_eq!(document(&out)["trimmed"][0], "clients");
    // Kept, the paths alone of the last 20 MB would be 15 MB.
    assert!(
        before > 10_000 && after < before + 6_000,
        "{before} kB, then {after} kB"
    );
}
