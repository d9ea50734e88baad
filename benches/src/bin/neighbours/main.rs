//! What slow connections cost the others: `cargo run --release -p weir-benches --bin neighbours`.
//!
//! Good traffic at a fixed rate is timed alone, then beside thousands of slow connections of five
//! kinds, each of a client of its own; rounds of both take turns. weir has core 0, everything else
//! core 1. Loopback only; ends by itself.
#![expect(
    clippy::indexing_slicing,
    reason = "a program that measures; an index out of bounds ends it"
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Resource, getrlimit, setrlimit};
use weir_benches::config;
use weir_benches::program::{LOAD_CORE, Owned, Programs, Running};
use weir_benches::statistics::median;

mod good;
mod slow;

/// How long the slow connections may take until they stand.
const OPEN_WAIT: Duration = Duration::from_secs(60);

/// Times good traffic alone and beside slow connections.
#[derive(Parser)]
#[command(name = "neighbours")]
struct Arguments {
    /// Slow connections
    #[arg(long, default_value_t = 5000)]
    slow: usize,
    /// Good requests a second
    #[arg(long, default_value_t = 4000)]
    rate: u32,
    /// Connections of the good traffic
    #[arg(long, default_value_t = 32)]
    connections: u32,
    /// Seconds a measurement lasts
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds between the last slow connection and the measurement: opening them is work of its
    /// own, and so are the megabytes that their readers have the application send
    #[arg(long, default_value_t = 10)]
    settle: u64,
    /// Rounds of both
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Be the crowd that holds the slow connections to this address; the program starts itself so
    #[arg(long, hide = true)]
    crowd: Option<SocketAddr>,
    /// The binary of weir
    #[arg(default_value = "target/release/weir")]
    weir: PathBuf,
}

/// Times of one measurement, in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    p50: f64,
    p99: f64,
    longest: f64,
}

impl Times {
    fn of(sorted: &[Duration]) -> Self {
        let at = |share: f64| {
            let place = (sorted.len() as f64 * share) as usize;
            let time = sorted.get(place.min(sorted.len().saturating_sub(1)));
            time.copied().unwrap_or_default().as_secs_f64() * 1000.0
        };
        Self {
            p50: at(0.5),
            p99: at(0.99),
            longest: at(1.0),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = raise_open_files().and_then(|()| match arguments.crowd {
        Some(address) => crowd(address, arguments.slow),
        None => measure(&arguments),
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("neighbours: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn raise_open_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("the limit of open files")
}

/// Holds the slow connections until it is ended.
fn crowd(address: SocketAddr, slow: usize) -> Result<()> {
    // The good traffic shares its core with this: it comes first.
    rustix::process::nice(5)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    for number in 0..slow {
        local.spawn_local(slow::hold(address, number));
    }
    local.block_on(&runtime, std::future::pending())
}

// long: one list of steps, in the order in which they are taken
fn measure(arguments: &Arguments) -> Result<()> {
    if arguments.rounds == 0 || arguments.connections == 0 || arguments.rate == 0 {
        bail!("--rounds, --connections and --rate are at least 1");
    }
    if arguments.slow > 60_000 {
        bail!("--slow is at most 60000: each has an address of its own");
    }
    let programs = Programs::find(&arguments.weir);
    let directory = tempfile::Builder::new()
        .prefix("weir-neighbours-")
        .tempdir()?;
    let application = Running::application(&programs, directory.path())?;
    let files = tempfile::tempdir()?;
    let mut settings = config::weir(files.path(), application.address);
    settings.extend([
        ("WAF_MAX_CONNECTIONS", (arguments.slow + 1000).to_string()),
        ("WAF_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
    ]);
    let weir = Running::weir(&programs, settings, files)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let time = Duration::from_secs(arguments.seconds);
    let good = || {
        let asked = good::ask(weir.address, arguments.connections, arguments.rate, time);
        Ok::<_, anyhow::Error>(Times::of(&runtime.block_on(asked)?))
    };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut stood = usize::MAX;
    for round in 1..=arguments.rounds {
        eprintln!("neighbours: round {round} of {}", arguments.rounds);
        alone.push(good()?);
        let mut command = programs.pinned(LOAD_CORE, &std::env::current_exe()?)?;
        crowd_arguments(&mut command, weir.address, arguments.slow);
        let crowd = Owned(command.spawn().context("the slow connections")?);
        wait_for_crowd(&weir, arguments.slow)?;
        std::thread::sleep(Duration::from_secs(arguments.settle));
        beside.push(good()?);
        stood = stood.min(sockets(&weir)?);
        drop(crowd);
        std::thread::sleep(Duration::from_secs(2));
    }
    println!(
        "{} requests a second on {} connections, medians of {} rounds of {} s",
        arguments.rate, arguments.connections, arguments.rounds, arguments.seconds
    );
    println!(
        "{} slow connections, at least {stood} open files in the service",
        arguments.slow
    );
    println!("{:8} {:>9} {:>9} {:>7}", "ms", "alone", "beside", "ratio");
    row("p50", &alone, &beside, |times| times.p50);
    row("p99", &alone, &beside, |times| times.p99);
    row("longest", &alone, &beside, |times| times.longest);
    Ok(())
}

fn crowd_arguments(command: &mut Command, address: SocketAddr, slow: usize) {
    command
        .args(["--crowd", &address.to_string()])
        .args(["--slow", &slow.to_string()]);
}

/// Waits until nine in ten stand: some are always just closed by a time-out and opened anew.
fn wait_for_crowd(weir: &Running, slow: usize) -> Result<()> {
    let began = Instant::now();
    while sockets(weir)? < slow * 9 / 10 {
        if began.elapsed() > OPEN_WAIT {
            bail!(
                "{} open files after {OPEN_WAIT:?}, and {slow} slow connections should stand",
                sockets(weir)?
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The open files of the service, nearly all of them sockets.
fn sockets(weir: &Running) -> Result<usize> {
    let files = format!("/proc/{}/fd", weir.process.0.id());
    Ok(std::fs::read_dir(files)?.count())
}

fn row(name: &str, alone: &[Times], beside: &[Times], of: impl Fn(&Times) -> f64) {
    let alone = median(alone.iter().map(&of).collect());
    let beside = median(beside.iter().map(&of).collect());
    println!("{name:8} {alone:9.3} {beside:9.3} {:7.2}", beside / alone);
}
