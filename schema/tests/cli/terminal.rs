//! Reports for people: on a terminal, or where they are asked for.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    process::Stdio,
};

use tempfile::TempDir;

use super::{chat_schema, keys, reports, run, signable, stdout};

/// A message that fits, one that does not, with an escape sequence in a name, and no message.
const LINES: &str = concat!(
    r#"{"command":"QUIT"}"#,
    "\n",
    r#"{"command":"QUIT","\u001b[2J":1}"#,
    "\n{\n"
);
const TEXT: &str = "line 1: valid\n\
                    line 2: refused\n    \
                    the whole: Additional properties are not allowed ('\\u{1b}[2J' was unexpected).\n\
                    line 3: refused: EOF while parsing an object at column 1\n";

/// SCHEMA-8: and no character of a message that steers a terminal or turns a line reaches it.
#[test]
fn reports_are_text_where_asked_for() {
    let text = ["validate", "--family", "c2s", "--reports", "text"];
    assert_eq!(stdout(&run(&text, LINES)), TEXT);

    let turning = r#"{"command":"QUIT","\u202e\u2066\u2028\u200fa":1}"#;
    assert_eq!(
        stdout(&run(&text, turning)),
        "line 1: refused\n    the whole: Additional properties are not allowed \
         ('\\u{202e}\\u{2066}\\u{2028}\\u{200f}a' was unexpected).\n"
    );

    let (_folder, private, public) = keys();
    let input = format!("{}\n{{\"command\":\"QUIT\"}}\n", signable("1"));
    let signed = run(&["sign", "--reports", "text", "--key", &private], &input);
    let answers: Vec<&str> = stdout(&signed).lines().collect();
    assert_eq!(
        answers[1..],
        ["line 2: refused: a signed message needs id, a string"]
    );
    let verified = run(
        &["verify", "--reports", "text", "--key", &public],
        &format!("{}\n{{}}\n", answers[0]),
    );
    let lines: Vec<&str> = stdout(&verified).lines().collect();
    assert!(
        lines[0].starts_with(
            "line 1: valid: from alice at 2026-03-01T12:00:00Z, id 0f8fad5b-d9cb-469f-a165-000000000001, key "
        ),
        "{}",
        lines[0]
    );
    assert_eq!(lines[1], "line 2: refused: the message is not signed");
}

/// SCHEMA-8: JSON reports may be read in a terminal, too. They stay the same documents.
#[test]
fn a_json_report_steers_no_terminal() {
    let name = "\u{9b}31m\u{7f}\u{85}\u{202e}\u{2066}\u{2028}\u{200f}é\u{1f30a}";
    let validated = run(
        &["validate", "--family", "c2s"],
        &format!(r#"{{"command":"QUIT","{name}":1}}"#),
    );
    assert_eq!(
        reports(&validated)[0]["violations"][0]["sentence"],
        format!("Additional properties are not allowed ('{name}' was unexpected).")
    );

    let (_folder, private, public) = keys();
    let mut message = signable("1");
    message["from"] = name.into();
    let signed = run(&["sign", "--key", &private], &message.to_string());
    let verified = run(&["verify", "--key", &public], stdout(&signed));
    assert_eq!(reports(&verified)[0]["from"], name);

    for output in [validated, verified] {
        let text = stdout(&output).trim_end_matches('\n');
        let steers = |letter: char| {
            letter.is_control() || "\u{202e}\u{2066}\u{2028}\u{200f}".contains(letter)
        };
        assert!(!text.contains(steers), "{text:?}");
        assert!(text.contains("é\u{1f30a}"), "{text:?}");
    }
}

/// SCHEMA-8: a terminal gets text, unless JSON is asked for.
#[test]
fn a_terminal_gets_text() {
    let folder = TempDir::new().unwrap();
    let messages = folder.path().join("messages");
    fs::write(&messages, LINES).unwrap();
    for (how, expected) in [
        (None, TEXT.replace('\n', "\r\n")),
        (Some("json"), "{\"line\":1,\"valid\":true}\r\n".to_owned()),
    ] {
        let mut arguments = vec!["validate", "--family", "c2s", messages.to_str().unwrap()];
        if let Some(how) = how {
            arguments.extend(["--reports", how]);
        }
        let (mut ours, theirs) = terminal();
        let mut command = chat_schema(&arguments);
        let mut child = command.stdout(Stdio::from(theirs)).spawn().unwrap();
        drop(command); // and with it our copy of the terminal's other end
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        // When the other end is closed, reading fails on Linux.
        while let Ok(count @ 1..) = ours.read(&mut buffer) {
            text.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with(&expected), "{text:?}");
    }
}

/// Both ends of a new pseudo-terminal.
fn terminal() -> (File, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(name);
    (File::from(ours), theirs.unwrap())
}
