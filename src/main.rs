//! The command line: arguments to one command. What each does is in `commands/`; serving is
//! `serve.rs`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod commands;
mod open_files;
mod process_log;
mod serve;
mod signals;
mod systemd;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A reverse proxy that checks every request before it reaches the application.
///
/// Without a command it serves; the settings are the WAF_* environment variables of the README.
#[derive(Parser)]
#[command(name = "weir", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve with the settings of the environment (the same as no command)
    Serve,
    /// Read the settings, say what is wrong with them, start nothing
    Check,
    /// Serve a small application inside, with low limits, on loopback
    Demo,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        None | Some(Command::Serve) => commands::serve(),
        Some(Command::Check) => commands::check(),
        Some(Command::Demo) => commands::demo::run(),
    }
}
