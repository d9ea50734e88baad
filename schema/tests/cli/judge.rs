//! `validate` and `canon`.

use std::{
    fs,
    io::{Read, Write},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use super::{chat_schema, keys, reports, run, stderr, stdout};
use crate::support::EXAMPLES;

/// SCHEMA-8: one report a line, in order, and the exit code of the worst.
#[test]
fn validate_reports_each_line() {
    let input = [
        r#"{"command":"QUIT"}"#,
        r#"{"command":"NICK","params":["9lives"]}"#,
        r#"{"command":"QUIT","command":"QUIT"}"#,
        "",
        r#"{"command":"RELAY"}"#,
        "\u{1b}[2J",
        r#"{"command":"PING","params":["last line, no line break"#,
    ]
    .join("\n");
    let output = run(&["validate", "--family", "c2s"], &input);
    assert_eq!(output.status.code(), Some(1));
    let reports = reports(&output);
    assert_eq!(reports.len(), 7);
    for (report, line) in reports.iter().zip(1..) {
        assert_eq!(report["line"], line);
        assert_eq!(report["valid"], line == 1);
    }
    let violation = &reports[1]["violations"][0];
    assert_eq!(violation["instance_path"], "/params/0");
    assert_eq!(violation["keyword"], "pattern");
    assert_eq!(
        violation["schema_location"],
        "https://weir.example/v1/schema/message.schema.json#/$defs/nick/pattern"
    );
    assert!(
        violation["sentence"]
            .as_str()
            .unwrap()
            .contains("A nickname of at most 32")
    );
    assert_eq!(reports[2]["error"], "the member \"command\" comes twice");
    assert_eq!(reports[2]["column"], 27);
    assert_eq!(reports[4]["violations"][0]["instance_path"], "/command");
    assert!(
        !stdout(&output).contains('\u{1b}'),
        "control characters do not reach the terminal"
    );

    let good = run(
        &["validate", "--family", "C2S", "-"],
        "{\"command\":\"QUIT\"}\r\n{\"command\":\"QUIT\"}\n",
    );
    assert_eq!(good.status.code(), Some(0));
    assert_eq!(self::reports(&good).len(), 2);
    assert_eq!(
        run(&["validate", "--family", "c2s"], "").status.code(),
        Some(0)
    );
}

/// SCHEMA-8: the examples, family by family, through a file.
#[test]
fn validate_judges_the_examples_as_they_say() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("messages");
    for family in ["c2s", "s2c", "s2s"] {
        let of_family = || {
            EXAMPLES
                .iter()
                .filter(|examples| examples.schema.starts_with(family))
        };
        let valid: Vec<_> = of_family()
            .flat_map(|examples| &examples.valid)
            .map(|example| &example.message)
            .collect();
        let invalid: Vec<_> = of_family()
            .flat_map(|examples| &examples.invalid)
            .filter(|example| example.path != "/command")
            .collect();
        let lines = valid
            .iter()
            .copied()
            .chain(invalid.iter().map(|example| &example.message));
        fs::write(
            &file,
            lines
                .map(|message| format!("{message}\n"))
                .collect::<String>(),
        )
        .unwrap();
        let output = run(
            &["validate", "--family", family, file.to_str().unwrap()],
            "",
        );
        let reports = reports(&output);
        assert_eq!(reports.len(), valid.len() + invalid.len());
        for (index, report) in reports.iter().enumerate() {
            assert_eq!(report["valid"], index < valid.len(), "{report}");
            if let Some(example) = index.checked_sub(valid.len()).map(|index| invalid[index]) {
                assert_eq!(
                    report["violations"][0]["instance_path"],
                    example.path.as_str()
                );
            }
        }
    }
}

/// SCHEMA-8: an endless line costs no memory and the next line is read.
#[test]
fn a_line_too_long_is_one_report() {
    let exact = format!("{{\"command\":\"QUIT\"}}{}", " ".repeat(65_536 - 18));
    assert_eq!(exact.len(), 65_536);
    let input = format!(
        "{}\n{exact}\n{exact} \n{exact}\r\n{{\"command\":\"QUIT\"}}",
        "x".repeat(3_000_000)
    );
    let output = run(&["validate", "--family", "c2s"], &input);
    let verdicts: Vec<Value> = reports(&output)
        .iter()
        .map(|report| report["valid"].clone())
        .collect();
    assert_eq!(verdicts, [false, true, false, true, true]);
    assert_eq!(reports(&output)[0]["error"], "longer than 65536 bytes");
    assert_eq!(reports(&output)[0]["column"], 65_537);
}

/// SCHEMA-8: a reader that has seen enough is no fault of ours.
#[test]
fn a_closed_pipe_ends_quietly() {
    for arguments in [&["validate", "--family", "c2s"][..], &["canon", "--lines"]] {
        let mut child = chat_schema(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            for _ in 0..200_000 {
                if stdin.write_all(b"{\"command\":\"QUIT\"}\n").is_err() {
                    break;
                }
            }
        });
        let mut first = [0; 1];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut first).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(stderr(&output), "");
    }
}

/// SCHEMA-8: each answer is there before the next question, so that a program can talk to it.
#[test]
fn an_answer_does_not_wait_for_the_end_of_the_input() {
    let mut child = chat_schema(&["validate", "--family", "c2s"])
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let (sender, answers) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in std::io::BufRead::lines(out) {
            sender.send(line.unwrap()).unwrap();
        }
    });
    for line in 1..=3 {
        stdin.write_all(b"{\"command\":\"QUIT\"}\n").unwrap();
        let answer = answers.recv_timeout(Duration::from_secs(60));
        assert_eq!(answer, Ok(format!("{{\"line\":{line},\"valid\":true}}")));
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    reader.join().unwrap();
}

/// SCHEMA-8, SCHEMA-6
#[test]
fn canon_prints_the_canonical_form() {
    let output = run(&["canon"], "{ \"b\": [1.0, 1E30],\n \"a\": \"\\u20ac\" }\n");
    assert_eq!(stdout(&output), "{\"a\":\"€\",\"b\":[1,1e+30]}");
    assert!(output.status.success());
    let lines = run(
        &["canon", "--lines"],
        "{\"b\":1,\"a\":2}\n{\n[ ]\n[9007199254740992]\n",
    );
    let answers: Vec<&str> = stdout(&lines).lines().collect();
    assert_eq!(
        (answers.len(), answers[0], answers[2]),
        (4, "{\"a\":2,\"b\":1}", "[]")
    );
    for (index, says) in [(1, "EOF while parsing"), (3, "an integer beyond")] {
        let report: Value = serde_json::from_str(answers[index]).unwrap();
        assert_eq!(report["line"], index + 1);
        assert_eq!(report["valid"], false);
        assert!(report["error"].as_str().unwrap().starts_with(says));
    }
    assert_eq!((lines.status.code(), stderr(&lines)), (Some(1), ""));
    let unsigned = run(
        &["canon", "--without-sig"],
        r#"{"meta":{"sig":"x","kid":"k"},"command":"QUIT"}"#,
    );
    assert_eq!(
        stdout(&unsigned),
        r#"{"command":"QUIT","meta":{"kid":"k"}}"#
    );
    let refused = run(&["canon"], "{\"a\":1,\"a\":2}");
    assert_eq!((refused.status.code(), stdout(&refused)), (Some(1), ""));
    assert!(stderr(&refused).contains("comes twice at line 1 column 10"));
    assert_eq!(
        run(&["canon"], &format!("[{}]", "1,".repeat(40_000)))
            .status
            .code(),
        Some(1)
    );
}

/// SCHEMA-8
#[test]
fn what_cannot_be_done_is_one_sentence_and_exit_code_2() {
    for (arguments, says) in [
        (
            &["validate", "--family", "c3s"][..],
            "a family is c2s, s2c or s2s",
        ),
        (
            &["validate", "--family", "c2s", "/nowhere/at/all"],
            "/nowhere/at/all: No such file",
        ),
        (
            &["sign", "--key", "/nowhere/at/all"],
            "/nowhere/at/all: No such file",
        ),
        (&["validate", "--family", "c2s", "/"], "Is a directory"),
        (&["verify"], "--key"),
    ] {
        let output = run(arguments, "");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

/// SCHEMA-8: one schema for all lines, whatever their command; and the envelope alone.
#[test]
fn validate_takes_one_schema() {
    let ping = r#"{"command":"PING","from":"a.example","to":"b.example","params":["x"]}"#;
    for (schema, valid) in [
        ("s2s/ping", true),
        ("c2s/ping", false),
        ("message", true),
        ("s2s/pong", false),
        ("proxy/bans", false),
    ] {
        let output = run(&["validate", "--schema", schema], ping);
        assert_eq!(reports(&output)[0]["valid"], valid, "{schema}");
        assert_eq!(output.status.code(), Some(i32::from(!valid)), "{schema}");
    }
    let bans = run(
        &["validate", "--schema", "proxy/bans"],
        r#"{"version":1,"bans":[]}"#,
    );
    assert!(bans.status.success(), "{}", stdout(&bans));
    for arguments in [
        &["validate"][..],
        &["validate", "--schema", "s2s/nothing"],
        &["validate", "--schema", "proxy/nothing"],
        &["validate", "--schema", "message", "--family", "c2s"],
    ] {
        let output = run(arguments, ping);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

/// SCHEMA-8: 0, 1 or 2, as `--help` and the README say, for every command that reads messages.
#[test]
fn exit_statuses_are_as_documented() {
    let (_folder, private, public) = keys();
    let good = super::signable("1").to_string();
    let signed = run(&["sign", "--key", &private], &good);
    let signed = stdout(&signed).trim_end();
    for (arguments, good) in [
        (&["validate", "--family", "c2s"][..], good.as_str()),
        (&["validate", "--schema", "message"], &good),
        (&["canon"], &good),
        (&["canon", "--lines"], &good),
        (&["sign", "--key", &private], &good),
        (&["verify", "--key", &public], signed),
    ] {
        let status = |input: &str, more: &[&str]| {
            let arguments = [arguments, more].concat();
            run(&arguments, input).status.code()
        };
        assert_eq!(status(good, &[]), Some(0), "{arguments:?}");
        assert_eq!(status(good, &["-"]), Some(0), "{arguments:?}");
        assert_eq!(status("{", &[]), Some(1), "{arguments:?}");
        assert_eq!(
            status(&format!("{good}\n{{"), &[]),
            Some(1),
            "{arguments:?}"
        );
        assert_eq!(status(good, &["/nowhere"]), Some(2), "{arguments:?}");
        assert_eq!(status(good, &["--no-such-flag"]), Some(2), "{arguments:?}");
    }
    for help in [&["--help"][..], &["verify", "--help"], &["--version"]] {
        assert_eq!(run(help, "").status.code(), Some(0), "{help:?}");
    }
    assert!(stdout(&run(&["--help"], "")).contains("Exit status: 0 if everything"));
}

/// SCHEMA-8: who asks about one command alone is told where it reads from.
#[test]
fn each_help_says_where_its_command_reads_from() {
    for command in ["validate", "canon", "key-id", "sign", "verify"] {
        let help = run(&[command, "--help"], "");
        let told = stdout(&help).contains("[FILE]  Standard input where it is absent or `-`");
        assert!(told, "{}", stdout(&help));
    }
}
