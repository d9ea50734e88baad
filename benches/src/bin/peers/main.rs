//! The whole proxy beside nginx and HAProxy, measured in one run: `cargo run --release -p
//! weir-benches --bin peers`.
//!
//! Absolute figures move with the machine, so the peers take turns, in an order that changes from
//! round to round, and every figure that matters is a ratio. Core 0 belongs to the proxy under
//! test, the whole process; core 1 to the load generator (wrk) and the application (another nginx).
//! What counts is the proxy's own CPU time divided by the requests that wrk counted.
//!
//! It installs nothing, listens on loopback only, keeps its files in a temporary directory, and
//! ends only processes that it started.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use weir_benches::load::Load;
use weir_benches::program::{Kind, Programs, Running};

mod case;
mod config;
mod measure;
mod proxy;
mod report;
mod steady;

use case::{CASES, Case};
use report::{Figures, Row};

/// Measures weir beside nginx and HAProxy and prints a Markdown table.
#[derive(Parser)]
#[command(name = "peers")]
struct Arguments {
    /// Seconds a measurement lasts
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds of which the median is taken
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections that wrk holds
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Cases, separated by commas; all of them if not given
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Proxies, separated by commas: weir, nginx, haproxy
    #[arg(long, value_delimiter = ',')]
    proxies: Vec<String>,
    /// Instead of the cases, the delays at a fixed rate: 60 % of what nginx answers at most, while
    /// weir is asked for its metrics and writes its state once a second
    #[arg(long)]
    steady: bool,
    /// Skip the short run under strace that counts system calls
    #[arg(long)]
    no_strace: bool,
    /// The binary of weir
    #[arg(default_value = "target/release/weir")]
    weir: PathBuf,
}

fn main() -> ExitCode {
    match compare(&Arguments::parse()) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

// long: one list of steps, in the order in which they are taken
fn compare(arguments: &Arguments) -> Result<String> {
    if arguments.rounds == 0 || arguments.seconds == 0 || arguments.connections == 0 {
        bail!("--rounds, --seconds and --connections are at least 1");
    }
    let cases = chosen_cases(&arguments.cases)?;
    let programs = Programs::find(&arguments.weir);
    for missing in programs.missing(&["wrk", "h2load", "taskset", "nginx", "haproxy", "strace"]) {
        eprintln!("peers: {missing}");
    }
    let kinds = chosen_kinds(&arguments.proxies, &programs)?;
    // The user may have set a directory that is a real disk: the logs of a run can be some hundred
    // megabytes.
    let directory = tempfile::Builder::new()
        .prefix("weir-peers-")
        .tempdir()
        .context("no temporary directory can be made")?;
    let application = Running::application(&programs, directory.path())?;
    let load = Load {
        programs: &programs,
        connections: arguments.connections,
        directory: directory.path(),
    };

    if arguments.steady {
        let (time, rounds) = (Duration::from_secs(arguments.seconds), arguments.rounds);
        return steady::compare(&programs, &kinds, application.address, &load, time, rounds);
    }
    let mut rows = Vec::new();
    for case in cases {
        let mut rounds: Vec<(Kind, Vec<Figures>)> =
            kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        for round in 1..=arguments.rounds {
            // Who comes first meets another machine than who comes last.
            rounds.rotate_left(usize::from(round > 1));
            for (kind, figures) in &mut rounds {
                if case.two_workers && *kind != Kind::Weir {
                    continue;
                }
                eprintln!(
                    "peers: {} through {}, round {round} of {}",
                    case.name,
                    kind.name(),
                    arguments.rounds
                );
                let proxy = proxy::start(*kind, &programs, case, application.address)?;
                let seconds = Duration::from_secs(arguments.seconds);
                let mut measured = measure::measure(&load, &proxy, case, seconds)
                    .with_context(|| format!("{} through {}", case.name, kind.name()))?;
                // Counting system calls slows everything else: apart from the measurement, and
                // once.
                if round == 1 && !arguments.no_strace {
                    measured.system_calls = measure::system_calls(&load, &proxy, case)?;
                }
                figures.push(measured);
            }
        }
        rounds.sort_by_key(|(kind, _)| kinds.iter().position(|other| other == kind));
        rows.extend(
            rounds
                .into_iter()
                .filter(|(_, figures)| !figures.is_empty())
                .map(|(kind, figures)| Row::new(case, kind, &figures)),
        );
    }
    let versions = kinds.iter().map(|kind| programs.version(*kind));
    let versions: Vec<String> = versions.collect::<Result<_>>()?;
    Ok(format!(
        "{}\n{}",
        report::table(&rows),
        report::explained(&versions)
    ))
}

fn chosen_cases(names: &[String]) -> Result<Vec<&'static Case>> {
    if names.is_empty() {
        return Ok(CASES.iter().collect());
    }
    let known = || CASES.each_ref().map(|case| case.name).join(", ");
    names
        .iter()
        .map(|name| {
            CASES
                .iter()
                .find(|case| case.name == name)
                .with_context(|| format!("{name:?} is no case: {} are", known()))
        })
        .collect()
}

/// The proxies that were asked for, or those that are there.
fn chosen_kinds(names: &[String], programs: &Programs) -> Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for name in names {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind =
            kind.with_context(|| format!("{name:?} is no proxy: weir, nginx, haproxy are"))?;
        programs.of(kind)?;
        kinds.push(kind);
    }
    if names.is_empty() {
        kinds.extend(
            Kind::ALL
                .into_iter()
                .filter(|kind| programs.of(*kind).is_ok()),
        );
    }
    Ok(kinds)
}
