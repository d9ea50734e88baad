//! Commands as a person's shell runs them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What a command did.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Reads what a command did.
#[track_caller]
pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().expect("an exit status"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// A command of weir: of the settings, it has the state directory alone.
pub(crate) fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(arguments)
        .env_clear()
        .env("WAF_STATE_DIR", state)
        .stdin(Stdio::null());
    command
}

/// Runs a command of weir to its end.
#[track_caller]
pub(crate) fn run(state: &Path, arguments: &[&str]) -> Ran {
    ran(command(state, arguments).output().expect("the binary runs"))
}

/// Runs a program that reads this from standard input; it may end before it has read all.
#[track_caller]
pub(crate) fn fed(program: &mut Command, input: &[u8]) -> Output {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut stdin = child.stdin.take().expect("its input");
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("its end")
}
