//! The command line: arguments to one command. What each does is in `commands/`; serving is
//! `serve.rs`.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use commands::ask::Asking;
use commands::lists::List;
use commands::{bans, explain, lists, look};

mod commands;
mod open_files;
mod opening;
mod process_log;
mod serve;
mod shared;
mod signals;
mod successor;
mod systemd;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A reverse proxy that checks every request before it reaches the application.
///
/// Without a command it serves; the settings are the WAF_* environment variables of the README.
///
/// Exit status: 0; 1 where the answer is no; 2 for a wrong call; 69 where no service answers; 70
/// for a fault inside; 78 for settings.
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
    /// Say everything that a start would find wrong, and start nothing
    Check(Asking),
    /// Say how a running service is
    Status(Asking),
    /// Say whether a running service serves: exit status 1 if it stops
    Health(Asking),
    /// Show every setting, its value and where that comes from
    Settings(Asking),
    /// Show, make and lift bans
    #[command(args_conflicts_with_subcommands = true)]
    Bans {
        #[command(subcommand)]
        command: Option<bans::Command>,
        #[command(flatten)]
        asking: Asking,
    },
    /// Say what the checks would do with a request now, and why: exit status 1 if it is refused
    Explain(explain::Explain),
    /// Let an address or a netblock pass every check (rules.json)
    Allow(lists::Member),
    /// Refuse an address or a netblock (rules.json)
    Deny(lists::Member),
    /// List clients
    Clients(look::Clients),
    /// Show one client and the bans that cover it
    Client(look::One),
    /// List the newest alerts
    Alerts(Asking),
    /// Serve a small application inside, with low limits, on loopback
    Demo,
    /// Write the completions of a shell to standard output
    Completions {
        /// Which
        shell: clap_complete::Shell,
    },
    /// Write the man page to standard output
    Man,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        None | Some(Command::Serve) => commands::serve(),
        Some(Command::Check(asking)) => commands::check::run(&asking),
        Some(Command::Status(asking)) => look::status(&asking),
        Some(Command::Health(asking)) => look::health(&asking),
        Some(Command::Settings(asking)) => look::settings(&asking),
        Some(Command::Bans { command, asking }) => bans::run(command, asking),
        Some(Command::Explain(given)) => explain::run(&given),
        Some(Command::Allow(given)) => lists::run(List::Allow, &given),
        Some(Command::Deny(given)) => lists::run(List::Deny, &given),
        Some(Command::Clients(given)) => look::clients(&given),
        Some(Command::Client(given)) => look::client(&given),
        Some(Command::Alerts(asking)) => look::alerts(&asking),
        Some(Command::Demo) => commands::demo::run(),
        Some(Command::Completions { shell }) => {
            commands::completions(shell, &mut Arguments::command())
        }
        Some(Command::Man) => commands::man(Arguments::command()),
    }
}
