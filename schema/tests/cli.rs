//! The real binary `chat-schema`, driven through pipes and files (SCHEMA-8).

use std::{
    fs,
    io::{Read, Write},
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_schema::Catalog;

use crate::support::{EXAMPLES, schema_names, schema_path};

fn chat_schema(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chat-schema"));
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs with `input` on standard input. Writes from a thread: the input may be larger than a pipe.
fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = chat_schema(arguments).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn reports(output: &Output) -> Vec<Value> {
    stdout(output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn signable(id: &str) -> Value {
    json!({
        "command": "PRIVMSG", "from": "alice", "to": "#weir", "body": ["Good morning."],
        "id": format!("0f8fad5b-d9cb-469f-a165-{id:0>12}"), "ts": "2026-03-01T12:00:00Z",
    })
}

/// A folder with a private key `key` and its public half `pub`.
fn keys() -> (TempDir, String, String) {
    let folder = TempDir::new().unwrap();
    let private = folder.path().join("key").to_str().unwrap().to_owned();
    let public = folder.path().join("pub").to_str().unwrap().to_owned();
    let output = run(&["keygen", "--out", &private], "");
    assert!(output.status.success(), "{}", stderr(&output));
    fs::write(&public, &output.stdout).unwrap();
    (folder, private, public)
}

/// SCHEMA-8
#[test]
fn list_names_every_schema_and_show_prints_it() {
    let listed = run(&["list"], "");
    assert!(listed.status.success());
    let names: Vec<&str> = stdout(&listed)
        .lines()
        .map(|line| line.split_once('\t').unwrap().0)
        .collect();
    assert_eq!(names, schema_names());
    assert!(stdout(&listed).contains("s2c/001\t001 RPL_WELCOME (S2C)\n"));
    let shown = run(&["show", "s2c/001"], "");
    assert_eq!(shown.stdout, fs::read(schema_path("s2c/001")).unwrap());
    let shown = run(&["show", "s2c/001", "--base", "https://chat.example"], "");
    assert!(
        stdout(&shown).contains("\"$id\": \"https://chat.example/schema/s2c/001.schema.json\"")
    );
    let unknown = run(&["show", "s2c/999"], "");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("there is no schema \"s2c/999\""));
}

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
    let lines = run(&["canon", "--lines"], "{\"b\":1,\"a\":2}\n{\n[ ]\n");
    assert_eq!(stdout(&lines), "{\"a\":2,\"b\":1}\n[]\n");
    assert_eq!(lines.status.code(), Some(1));
    assert!(stderr(&lines).contains("line 2: EOF"), "{}", stderr(&lines));
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

/// SCHEMA-8, SCHEMA-7
#[test]
fn what_sign_signs_verify_verifies() {
    let (_folder, private, public) = keys();
    let input = format!(
        "{}\n{}\n{{\"command\":\"QUIT\"}}\nno json\n",
        signable("1"),
        signable("2")
    );
    let signed = run(&["sign", "--key", &private], &input);
    assert_eq!(signed.status.code(), Some(1));
    assert!(
        stderr(&signed).contains("line 3: a signed message needs id, a string"),
        "{}",
        stderr(&signed)
    );
    assert!(stderr(&signed).contains("line 4: "));
    assert_eq!(stdout(&signed).lines().count(), 2);
    let valid = run(&["validate", "--family", "c2s"], stdout(&signed));
    assert!(valid.status.success(), "{}", stdout(&valid));

    let tampered = stdout(&signed).replacen("Good", "Bad", 1);
    for key in [&private, &public] {
        let output = run(&["verify", "--key", key], stdout(&signed));
        assert!(output.status.success(), "{}", stdout(&output));
        assert_eq!(reports(&output)[1]["from"], "alice");
        let output = run(&["verify", "--key", key], &tampered);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(reports(&output)[0]["error"], "the signature is wrong");
        assert_eq!(reports(&output)[1]["valid"], true);
    }
    let as_alice = run(
        &["verify", "--key", &public, "--from", "alice"],
        stdout(&signed),
    );
    assert!(as_alice.status.success());
    let as_bob = run(
        &["verify", "--key", &public, "--from", "bob"],
        stdout(&signed),
    );
    assert_eq!(
        reports(&as_bob)[0]["error"],
        "the key is not known for this sender"
    );
    let (_other_folder, _, other) = keys();
    let output = run(&["verify", "--key", &other], stdout(&signed));
    assert_eq!(reports(&output)[0]["valid"], false);
    let output = run(
        &["verify", "--key", &other, "--key", &public],
        stdout(&signed),
    );
    assert!(output.status.success());
}

/// SCHEMA-8, SCHEMA-7
#[test]
fn verify_fresh_refuses_the_old_and_the_repeated() {
    let (_folder, private, public) = keys();
    let old = signable("1");
    let mut fresh = signable("2");
    fresh["ts"] = jiff::Timestamp::now().to_string().into();
    let signed = run(
        &["sign", "--key", &private],
        &format!("{old}\n{fresh}\n{fresh}\n"),
    );
    let output = run(&["verify", "--fresh", "--key", &public], stdout(&signed));
    assert_eq!(output.status.code(), Some(1));
    let reports = reports(&output);
    assert_eq!(reports[0]["error"], "the message is more than 300 s old");
    assert_eq!(reports[1]["valid"], true);
    assert_eq!(reports[2]["error"], "the message came before");
}

/// SCHEMA-8, SCHEMA-7
#[test]
fn keygen_makes_a_new_key_each_time_and_overwrites_none() {
    let (_folder, private, public) = keys();
    let before = fs::read(&private).unwrap();
    let again = run(&["keygen", "--out", &private], "");
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(fs::read(&private).unwrap(), before);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(
            fs::metadata(&private).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    let secret: Value = serde_json::from_slice(&before).unwrap();
    let shown: Value = serde_json::from_slice(&fs::read(&public).unwrap()).unwrap();
    assert!(secret["d"].is_string());
    assert!(shown["d"].is_null());
    let public_of = run(&["keygen", "--public-of", &private], "");
    assert_eq!(public_of.stdout, fs::read(&public).unwrap());
    let one = run(&["keygen"], "");
    let two = run(&["keygen"], "");
    assert_ne!(one.stdout, two.stdout);
    assert_ne!(reports(&one)[0]["x"], reports(&two)[0]["x"]);
    assert_eq!(
        run(&["sign", "--key", &public], "").status.code(),
        Some(2),
        "a public key signs nothing"
    );
}

/// SCHEMA-8, SCHEMA-2
#[test]
fn export_writes_the_files_under_another_base() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = run(
        &["export", "--base", "https://chat.example/", "--out", out],
        "",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 41);
    let catalog = Catalog::with_base("https://chat.example").unwrap();
    for name in catalog.names() {
        let file = folder.path().join(format!("schema/{name}.schema.json"));
        assert_eq!(
            fs::read_to_string(file).unwrap(),
            catalog.text(name).unwrap()
        );
    }
    let bad = run(&["export", "--base", "chat.example", "--out", out], "");
    assert_eq!(bad.status.code(), Some(2));
    assert!(
        stderr(&bad).contains("not an absolute URL"),
        "{}",
        stderr(&bad)
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
