//! The real binary `chat-schema`, driven through pipes and files (SCHEMA-8).

mod files;
mod judge;
mod keys;
mod terminal;

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

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
