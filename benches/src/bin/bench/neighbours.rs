//! What slow connections cost the others: good traffic at a fixed rate is timed alone, then beside
//! thousands of slow connections of five kinds, each of a client of its own; rounds of both take
//! turns.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use weir_benches::config;
use weir_benches::paced::Paced;
use weir_benches::program::{LOAD_CORE, Owned, PROXY_CORE, Programs, Running, directory};
use weir_benches::statistics::{Delays, median};

use crate::run::raise_file_limit;
use crate::slow;

/// How long the slow connections may take until they stand.
const OPEN_WAIT: Duration = Duration::from_secs(60);

/// Times good traffic alone and beside slow connections.
#[derive(Args)]
pub(crate) struct Arguments {
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
}

/// The table.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    raise_file_limit(arguments.slow as u64 + 1000)?;
    if let Some(address) = arguments.crowd {
        return crowd(address, arguments.slow);
    }
    if arguments.rounds == 0 || arguments.connections == 0 || arguments.rate == 0 {
        bail!("--rounds, --connections and --rate are at least 1");
    }
    if arguments.slow > 60_000 {
        bail!("--slow is at most 60000: each has an address of its own");
    }
    let (place, files) = (directory()?, directory()?);
    let application = Running::application(programs, place.path())?;
    let mut settings = config::weir(files.path(), application.address);
    settings.extend([
        ("WAF_MAX_CONNECTIONS", (arguments.slow + 1000).to_string()),
        ("WAF_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
    ]);
    let weir = Running::weir(&[PROXY_CORE], programs, settings, files)?;
    let good = Paced {
        rate: f64::from(arguments.rate),
        connections: arguments.connections,
        time: Duration::from_secs(arguments.seconds),
    };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut stood = usize::MAX;
    for round in 1..=arguments.rounds {
        eprintln!("bench: neighbours, round {round} of {}", arguments.rounds);
        alone.push(good.run(weir.address)?);
        let mut command = programs.pinned(&[LOAD_CORE], &std::env::current_exe()?)?;
        let (address, slow) = (weir.address.to_string(), arguments.slow.to_string());
        command.args(["neighbours", "--crowd", &address, "--slow", &slow]);
        let crowd = Owned(command.spawn().context("the slow connections")?);
        wait_for_crowd(&weir, arguments.slow)?;
        std::thread::sleep(Duration::from_secs(arguments.settle));
        beside.push(good.run(weir.address)?);
        stood = stood.min(sockets(&weir)?);
        drop(crowd);
        std::thread::sleep(Duration::from_secs(2));
    }
    let mut text = format!(
        "{} requests a second on {} connections, medians of {} rounds of {} s\n\
         {} slow connections, at least {stood} open files in the service\n\
         ms           alone    beside   ratio\n",
        arguments.rate, arguments.connections, arguments.rounds, arguments.seconds, arguments.slow
    );
    let mut row = |name: &str, of: fn(&Delays) -> f64| {
        let [alone, beside] =
            [&alone, &beside].map(|all| median(all.iter().map(of).collect()) / 1e3);
        let _ = writeln!(
            text,
            "{name:8} {alone:9.3} {beside:9.3} {:7.2}",
            beside / alone
        );
    };
    row("p50", |delays| delays.p50);
    row("p99", |delays| delays.p99);
    row("longest", |delays| delays.longest);
    Ok(text)
}

/// Holds the slow connections until it is ended.
fn crowd(address: SocketAddr, slow: usize) -> Result<String> {
    // The good traffic shares its core with this: it comes first.
    rustix::process::nice(5)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    for number in 0..slow {
        local.spawn_local(slow::hold(address, number));
    }
    local.block_on(&runtime, std::future::pending())
}

/// Waits until nine in ten stand: some are always just closed by a time-out and opened anew.
fn wait_for_crowd(weir: &Running, slow: usize) -> Result<()> {
    let began = Instant::now();
    while sockets(weir)? < slow * 9 / 10 {
        if began.elapsed() > OPEN_WAIT {
            let there = sockets(weir)?;
            bail!(
                "{there} open files after {OPEN_WAIT:?}, and {slow} slow connections should stand"
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
