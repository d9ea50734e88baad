//! What slow connections cost the others: good traffic at a fixed rate is timed alone, then beside
//! thousands of slow connections of five kinds, each of a client of its own; rounds of both take
//! turns.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use weir_benches::program::{LOAD_CORE, Owned, Programs, Running, directory, wait_until};
use weir_benches::{config, meter};

use crate::run::{Good, raise_file_limit};
use crate::slow;

/// How long the slow connections may take until they stand.
const OPEN_WAIT: Duration = Duration::from_secs(60);

/// Times good traffic alone and beside slow connections.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Slow connections
    #[arg(long, default_value_t = 5000)]
    slow: usize,
    #[command(flatten)]
    good: Good,
    /// Seconds between the last slow connection and the measurement: opening them is work of its
    /// own, and so are the megabytes that their readers have the application send
    #[arg(long, default_value_t = 10)]
    settle: u64,
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
    let good = arguments.good.checked()?;
    if arguments.slow > 60_000 {
        bail!("--slow is at most 60000: each has an address of its own");
    }
    let (place, files) = (directory()?, directory()?);
    let application = Running::application(programs, place.path())?;
    let settings = config::weir(files.path(), application.address)
        .with("WAF_MAX_CONNECTIONS", arguments.slow + 1000)
        .with("WAF_TRUSTED_PROXIES", "127.0.0.1");
    let weir = Running::weir(1, programs, settings, files)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut stood = usize::MAX;
    let rounds = arguments.good.rounds;
    for round in 1..=rounds {
        eprintln!("bench: neighbours, round {round} of {rounds}");
        alone.push(good.run(weir.address)?);
        let mut command = programs.pinned(&[LOAD_CORE], &std::env::current_exe()?)?;
        let (address, slow) = (weir.address.to_string(), arguments.slow.to_string());
        command.args(["neighbours", "--crowd", &address, "--slow", &slow]);
        let crowd = Owned(command.spawn().context("the slow connections")?);
        // Some are always just closed by a time-out and opened anew.
        let most = arguments.slow * 9 / 10;
        wait_until("nine in ten slow connections", OPEN_WAIT, || {
            Ok(sockets(&weir)? >= most)
        })?;
        std::thread::sleep(Duration::from_secs(arguments.settle));
        beside.push(good.run(weir.address)?);
        stood = stood.min(sockets(&weir)?);
        drop(crowd);
        std::thread::sleep(Duration::from_secs(2));
    }
    let slow = arguments.slow;
    let what = format!("{slow} slow connections, at least {stood} open files in the service");
    Ok(arguments.good.table(&what, &alone, &beside))
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

/// The open files of the service, nearly all of them sockets.
fn sockets(weir: &Running) -> Result<usize> {
    meter::files(weir.process.0.id())
}
