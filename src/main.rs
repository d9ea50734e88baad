//! The command line: parses the arguments and calls one command. The commands are in `commands/`;
//! serving is in `serve.rs`.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::disallowed_methods
    )
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use commands::ask::Asking;
use commands::lists::List;
use commands::{
    alerts, bans, dashboard, demo, explain, feeds, fleet, lists, look, man, process, replay, top,
};

mod channel;
mod commands;
mod fault;
mod hangs;
mod open_files;
mod opening;
mod predecessor;
mod prepared;
mod process_log;
mod reload;
mod reloading;
mod serve;
mod service;
mod shared;
mod signals;
mod sockets;
mod sources;
mod successor;
mod systemd;
mod test_clock;
mod upgrade;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A reverse proxy that checks every request before it reaches the application.
///
/// Without a command it serves. The settings are WAF_* environment variables, or lines of a
/// settings file; `weir settings` has them all.
///
/// Exit status: 0; 1 where the answer is no; 2 for a wrong call; 69 where no service answers; 70
/// for a fault inside; 78 for settings; 130 where SIGINT ended it.
#[derive(Parser)]
#[command(name = "weir", version, about)]
struct Arguments {
    /// A file of settings, `NAME=value` a line; its lines win over the environment
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    settings: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve with the settings of the environment (the same as no command)
    Serve,
    /// Find every fault that would stop a start, without starting
    Check(Asking),
    /// Show requests, refusals, bans and the application of a running service
    Status(Asking),
    /// Ask whether a running service serves: exit status 1 while it stops
    Health(Asking),
    /// Show every setting, its value and where that comes from
    Settings(Asking),
    /// Show, make and lift bans
    #[command(args_conflicts_with_subcommands = true)]
    Bans {
        #[command(subcommand)]
        command: Option<bans::Command>,
        #[command(flatten)]
        list: bans::List,
    },
    /// Explain what the checks would do with a request now, and why: exit status 1 if it is refused
    Explain(explain::Explain),
    /// Let an address or a netblock pass every check (rules.json)
    Allow(lists::Member),
    /// Refuse an address or a netblock (rules.json)
    Deny(lists::Member),
    /// Print crawlers that can prove who they are, ready to be pasted into rules.json
    Crawlers,
    /// Show, fetch and accept the lists that weir fetches itself (feeds of rules.json)
    #[command(args_conflicts_with_subcommands = true)]
    Feeds {
        #[command(subcommand)]
        command: Option<feeds::Command>,
        #[command(flatten)]
        asking: Asking,
    },
    /// List clients
    Clients(look::Clients),
    /// Show one client and the bans that cover it
    Client(look::One),
    /// List the newest alerts
    Alerts(Asking),
    /// Show the instances of the fleet: exit status 1 if they do not all hold the same
    Fleet(Asking),
    /// Watch a running service on a terminal
    Top(top::Top),
    /// Watch a running service in a browser
    Dashboard(dashboard::Dashboard),
    /// Take changed settings, tokens, rules and databases in, all or none: exit status 78 for a
    /// fault
    Reload(Asking),
    /// Hand over to the program as it lies on disk now, without losing a connection: exit status 1
    /// if it does not take over
    Upgrade(Asking),
    /// Say what settings would have refused of the requests of a log
    Replay(replay::Replay),
    /// Serve a small application inside, with low limits and visitors of its own, on loopback
    Demo(demo::Demo),
    /// Say what this program is: version, target, what it was built with
    Version {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the completions of a shell to standard output
    Completions {
        /// Of which shell
        shell: clap_complete::Shell,
    },
    /// Write the man page of weir, or of a command, to standard output
    Man(man::Man),
}

fn main() -> ExitCode {
    let Arguments { settings, command } = Arguments::parse();
    sources::set_file(settings);
    commands::common::written(run(command))
}

fn run(command: Option<Command>) -> ExitCode {
    match command {
        None | Some(Command::Serve) => commands::serve(),
        Some(Command::Check(asking)) => commands::check::run(&asking),
        Some(Command::Status(asking)) => look::status(&asking),
        Some(Command::Health(asking)) => look::health(&asking),
        Some(Command::Settings(asking)) => look::settings(&asking),
        Some(Command::Bans { command, list }) => bans::run(command, list),
        Some(Command::Explain(given)) => explain::run(&given),
        Some(Command::Allow(given)) => lists::run(List::Allow, &given),
        Some(Command::Deny(given)) => lists::run(List::Deny, &given),
        Some(Command::Crawlers) => commands::crawlers::run(),
        Some(Command::Feeds { command, asking }) => feeds::run(command, &asking),
        Some(Command::Clients(given)) => look::clients(&given),
        Some(Command::Client(given)) => look::client(&given),
        Some(Command::Alerts(asking)) => alerts::alerts(&asking),
        Some(Command::Fleet(asking)) => fleet::run(&asking),
        Some(Command::Top(given)) => top::run(&given),
        Some(Command::Dashboard(given)) => dashboard::run(&given),
        Some(Command::Reload(asking)) => process::reload(&asking),
        Some(Command::Upgrade(asking)) => process::upgrade(&asking),
        Some(Command::Replay(given)) => replay::run(&given),
        Some(Command::Demo(given)) => demo::run(&given),
        Some(Command::Version { json }) => commands::version(json),
        Some(Command::Completions { shell }) => {
            commands::completions(shell, &mut Arguments::command())
        }
        Some(Command::Man(given)) => man::run(Arguments::command(), &given),
    }
}
