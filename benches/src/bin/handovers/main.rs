//! Hand-overs under load with full state files (RESTART-1):
//! `cargo run --release -p weir-benches --bin handovers`.
//!
//! Four generators ask one request after the other. Before each hand-over a ban is made and
//! acknowledged, and a client asks three times; afterwards every ban of the run must refuse, and
//! the three requests must be counted. What is told: requests, those that failed, the longest wait
//! of each hand-over, which is a failure beyond a second. Loopback only; ends by itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use weir_benches::program::{Programs, Running};
use weir_benches::state;
use weir_benches::statistics::{median, spread};

mod service;
mod traffic;

use service::Service;
use traffic::Traffic;

/// How long a request may wait for a hand-over.
const LONGEST_MS: f64 = 1000.0;
/// Clients of a run that are no generators, and room for those that ask for the answers here.
const OTHERS: usize = 10;

/// Times hand-overs under load with full state files.
#[derive(Parser)]
#[command(name = "handovers")]
struct Arguments {
    /// Hand-overs
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Bans in bans.json
    #[arg(long, default_value_t = 100_000)]
    bans: usize,
    /// Netblocks in a list of rules.json
    #[arg(long, default_value_t = 100_000)]
    netblocks: usize,
    /// Connections that ask all the time
    #[arg(long, default_value_t = 4)]
    generators: usize,
    /// Clients that they ask for, one after the other
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// The binary of weir
    #[arg(default_value = "target/release/weir")]
    weir: PathBuf,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("handovers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    if arguments.rounds == 0 || arguments.generators == 0 || arguments.clients == 0 {
        bail!("--rounds, --generators and --clients are at least 1");
    }
    let programs = Programs::find(&arguments.weir);
    let directory = tempfile::Builder::new()
        .prefix("weir-handovers-")
        .tempdir()?;
    let application = Running::application(&programs, directory.path())?;
    let full = directory.path().join("state");
    state::write(&full, arguments.bans)?;
    write_rules(&full, arguments.netblocks)?;
    let most = arguments.bans + arguments.rounds + OTHERS;
    let program = programs.of(weir_benches::program::Kind::Weir)?;
    let service = Service::start(program, application.address, directory.path(), most)?;
    let traffic = Traffic::start(service.address, arguments.generators, arguments.clients);
    let (mut waits, mut takes) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        let took = one(&service, round).with_context(|| format!("hand-over {round}"))?;
        takes.push(took.as_secs_f64() * 1000.0);
        waits.push(traffic.longest().as_secs_f64() * 1000.0);
    }
    let ended = traffic.finish()?;
    let bans = service.bans()?;
    if bans < arguments.bans + arguments.rounds {
        bail!("bans are lost");
    }
    println!(
        "{} bans, 20,000 clients, lookups and counters, {} netblocks; {} hand-overs, {} generators",
        arguments.bans, arguments.netblocks, arguments.rounds, arguments.generators
    );
    println!(
        "{} requests, {} failed; {bans} bans at the end, none lost; no count lost",
        ended.requests, ended.failed
    );
    let (least, longest) = spread(&waits);
    println!(
        "longest wait of a hand-over: median {:.0} ms, least {least:.0} ms, longest {longest:.0} ms",
        median(waits)
    );
    println!(
        "from the signal until the new process serves: median {:.0} ms",
        median(takes)
    );
    if ended.failed > 0 {
        bail!("requests have failed");
    }
    if longest > LONGEST_MS {
        bail!("a request waited for more than a second");
    }
    Ok(())
}

/// One hand-over: how long it took from the signal on.
fn one(service: &Service, round: usize) -> Result<Duration> {
    let netblock = made(round);
    let order =
        json!({"netblock": format!("{netblock}/32"), "duration": "permanent", "reason": "r"});
    // Acknowledged, on disk or, on a slow disk, soon.
    service.admin("POST", "/_waf/bans", &order.to_string())?;
    let counted = format!("192.0.2.{}", round % 250 + 1);
    let before = service.passed(&counted)?;
    for _ in 0..3 {
        service.ask(&counted, 200)?;
    }
    let began = Instant::now();
    service.hand_over()?;
    let took = began.elapsed();
    for earlier in 0..=round {
        service.ask(&made(earlier), 429)?;
    }
    // Every thousandth of those that were there before.
    for number in (0..service.bans_at_start()).step_by(1000) {
        service.ask(&state::banned(number), 429)?;
    }
    let passed = service.passed(&counted)?;
    if passed != before + 3 {
        bail!("{counted} asked {before} and three times, and {passed} are counted");
    }
    Ok(took)
}

/// Whom a round bans.
fn made(round: usize) -> String {
    format!("198.18.{}.{}", round / 250, round % 250 + 1)
}

/// A list of so many netblocks that nobody here is in.
fn write_rules(state: &std::path::Path, netblocks: usize) -> Result<()> {
    let lines: String = (0..netblocks)
        .map(|number| {
            let address = std::net::Ipv4Addr::from((112 << 24) + (number as u32) * 256);
            format!("{address}/24\n")
        })
        .collect();
    std::fs::write(state.join("drop.txt"), lines)?;
    let rules = json!({"version": 1, "deny": [{"file": "drop.txt"}]});
    Ok(std::fs::write(state.join("rules.json"), rules.to_string())?)
}
