//! What is shipped beside the program and names it, its commands and its settings (RESTART-3).
//! `.ci/packages` and `.ci/container` make the packages and run what is in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use weir_shared::settings::all;

use crate::support::weir::state_dir;

/// Where the units, the package and the image have the program.
const PROGRAM: &str = "/usr/bin/weir";

fn shipped(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("controlplane/deploy")
        .join(file)
}

#[track_caller]
fn text(file: &str) -> String {
    fs::read_to_string(shipped(file)).expect("the file")
}

#[track_caller]
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .env_clear()
        .env("WAF_STATE_DIR", state_dir().path())
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// What a line says behind its beginning.
fn values<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(move |line| line.strip_prefix(begin))
}

/// RESTART-3: the image sets settings that there are, and its entry point and its health check are
/// commands of the program that it copies; so is what the unit starts and reloads with.
#[test]
fn what_is_shipped_calls_the_program_right() {
    let container = text("Containerfile");
    for set in values(&container, "ENV ") {
        let (name, _) = set.split_once('=').expect("NAME=value");
        assert!(all().any(|setting| setting.name == name), "{name}");
    }
    assert!(container.contains(&format!(" {PROGRAM}\n")));
    let words = |text: &str| -> Vec<String> { serde_json::from_str(text).expect("JSON") };
    let entry = values(&container, "ENTRYPOINT ").next().expect("one");
    assert_eq!(words(entry), [PROGRAM]);
    let health = values(&container, "HEALTHCHECK ").next().expect("one");
    let (_, health) = health.split_once("CMD ").expect("a command");
    assert_eq!(words(health), [PROGRAM, "health"]);
    // It asks, and nobody is there.
    assert_eq!(run(&["health"]).status.code(), Some(69));

    let unit = text("weir.service");
    let settings = shipped("weir.env");
    for (begin, command) in [("ExecStart=", "serve"), ("ExecReload=", "reload")] {
        let line = values(&unit, begin).next().expect("one");
        let expected = format!("{PROGRAM} --settings /etc/weir/weir.env {command}");
        assert_eq!(line, expected);
    }
    let listed = run(&[
        "--settings",
        settings.to_str().expect("a path"),
        "settings",
        "--json",
    ]);
    assert!(listed.status.success(), "{listed:?}");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let of_file = listed["settings"].as_array().expect("a list").iter();
    let of_file = of_file.filter(|one| one["origin"] == "file").count();
    // A command in a shell finds the state where the unit has it.
    let state = values(&unit, "StateDirectory=").next().expect("one");
    let lines = text("weir.env");
    assert_eq!(
        values(&lines, "WAF_STATE_DIR=").next(),
        Some(&*format!("/var/lib/{state}"))
    );
    assert_eq!(of_file, values(&lines, "WAF_").count());
}

/// RESTART-3: the man page and the completions of each shell have every command.
#[test]
fn the_man_page_and_the_completions_have_every_command() {
    let help = run(&["--help"]).stdout;
    let help = String::from_utf8(help).expect("UTF-8");
    let (_, commands) = help.split_once("Commands:\n").expect("a list");
    let commands: Vec<&str> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(commands.len() > 15, "{commands:?}");
    for arguments in [
        &["man"][..],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let made = run(arguments);
        assert!(made.status.success(), "{arguments:?}");
        let made = String::from_utf8(made.stdout).expect("UTF-8");
        for command in &commands {
            assert!(made.contains(command), "{arguments:?}: {command}");
        }
    }
}

/// The commands of docs/operating.md that install the service, with the binary of this build.
fn commands_of_the_document() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/operating.md")).expect("the document");
    let built = "target/release/weir";
    let block = document.split("```").find(|block| {
        let enables = block.contains("systemctl enable --now weir");
        block.starts_with("sh\n") && enables && block.contains(built)
    });
    let block = block.expect("a block of commands");
    let commands = block.strip_prefix("sh\n").expect("its lines");
    commands.replace(built, env!("CARGO_BIN_EXE_weir"))
}

/// METRIC-3, RESTART-3: installed by the commands of docs/operating.md, the service starts under
/// its unit, in the sandbox of a real systemd; a reload takes a changed weir.env, and each
/// `process_*` series is there.
#[test]
#[ignore = "boots systemd in a throw-away copy of the machine: wants root, systemd and curl"]
fn every_process_series_is_there_under_the_unit() {
    let commands = commands_of_the_document();
    // What is shipped serves as it is; nobody is there to type.
    let script = format!(
        "trap 'journalctl --no-pager --unit weir >&2' ERR
        editor() {{ test -w \"$1\"; }}
        {commands}
        echo WAF_METRICS_TOKEN=metrics-token-77b1 >>/etc/weir/weir.env
        systemctl reload weir
        curl -sS --fail -H 'Authorization: Bearer metrics-token-77b1' http://127.0.0.1/_waf/metrics
        systemctl stop weir
        systemctl show --property Result weir"
    );
    let ran = Command::new(".ci/under-systemd")
        .args(["bash", "-Eeuc", &script])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("it runs");
    let (out, err) = (ran.stdout, ran.stderr);
    let page = String::from_utf8_lossy(&out);
    let err = String::from_utf8_lossy(&err);
    assert!(ran.status.success(), "{page}{err}");
    assert!(page.contains("Result=success"), "{page}");
    let series = page.lines().filter(|line| line.starts_with("process_"));
    let names: Vec<&str> = series.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        names,
        [
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_threads",
            "process_virtual_memory_bytes",
        ]
    );
}
