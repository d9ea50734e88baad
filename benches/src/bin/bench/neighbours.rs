//! What slow connections cost the others: good traffic at a fixed rate is timed alone, then beside
//! thousands of slow connections of five kinds, each of a client of its own; rounds of both take
//! turns. One that the service ends is opened anew, so that as many stand all the time.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::sched_setaffinity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use weir_benches::beside::{Ended, beside};
use weir_benches::config;
use weir_benches::meter::held;
use weir_benches::program::{Programs, Running, directory, load_core, wait_until};

use crate::run::{Good, without_and_with};

/// How long the slow connections may take until they stand.
const OPEN_WAIT: Duration = Duration::from_secs(60);
/// Between two steps of a slow connection.
const STEP: Duration = Duration::from_secs(2);
/// What each kind sends at first, what with each step, and how many bytes it reads before one:
/// nothing at all, a byte of a head, a byte of a body, a few bytes of a megabyte, a whole request.
const KINDS: [(&str, &str, usize); 5] = [
    ("", "", 4096),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: ", "x", 0),
    (UPLOAD, "x", 0),
    ("GET /1m HTTP/1.1\r\nHost: a\r\n\r\n", "", 64),
    (REQUEST, REQUEST, 4096),
];
const UPLOAD: &str = "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// A small window, so that a reader that is slow is slow for the service too.
const WINDOW: u32 = 4096;

/// Times good traffic alone and beside slow connections.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Slow connections, at most 60000: each has an address of its own
    #[arg(long, default_value_t = 5000)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(..=60_000))]
    slow: usize,
    #[command(flatten)]
    good: Good,
    /// Seconds between the last slow connection and the measurement: opening them is work of its
    /// own, and so are the megabytes that their readers have the application send
    #[arg(long, default_value_t = 10)]
    settle: u64,
}

/// The table.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    let Arguments { slow, good, settle } = arguments;
    // Those of this program, and as many of weir, which inherits the limit.
    raise_file_limit(*slow as u64 + 1000)?;
    let (application, files) = (Running::application(programs)?, directory()?);
    let settings = config::weir(files.path(), application.address)
        .with("WAF_MAX_CONNECTIONS", slow + 1000)
        .with("WAF_TRUSTED_PROXIES", "127.0.0.1");
    let weir = Running::weir(1, programs, settings, files)?;
    // Nearly all of its files are sockets.
    let sockets = || held(weir.id()).map(|held| held.files as usize);
    let mut stood = usize::MAX;
    let mut beside_slow = || {
        // Some are always just closed by a time-out and opened anew.
        wait_until("nine in ten slow connections", OPEN_WAIT, || {
            Ok(sockets()? >= slow * 9 / 10)
        })?;
        std::thread::sleep(Duration::from_secs(*settle));
        let delays = good.load().run(weir.address)?;
        stood = stood.min(sockets()?);
        Ok(delays)
    };
    let both = without_and_with("neighbours", good.rounds.rounds, |is_beside| {
        if !is_beside {
            return good.load().run(weir.address);
        }
        let crowd = |ended: &Ended| crowd(weir.address, *slow, ended);
        let ((), delays) = beside(crowd, &mut beside_slow)?;
        std::thread::sleep(Duration::from_secs(2));
        Ok(delays)
    })?;
    let what = format!("{slow} slow connections, at least {stood} open files in the service");
    Ok(good.table(&what, &both))
}

fn raise_file_limit(wanted: u64) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let current = Some(wanted);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).with_context(|| {
        format!("{wanted} open files are needed, and cannot be had: see `ulimit -Hn`")
    })
}

/// Holds the slow connections until the work beside them has ended.
fn crowd(address: SocketAddr, slow: usize, ended: &Ended) -> Result<()> {
    sched_setaffinity(None, &load_core())?;
    // The good traffic shares its core with this thread: it comes first.
    rustix::process::nice(5)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    for number in 0..slow {
        local.spawn_local(hold(address, number));
    }
    local.block_on(&runtime, async {
        while !ended.is_now() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    Ok(())
}

/// Holds one slow connection for ever. Each number is a client of its own.
async fn hold(address: SocketAddr, number: usize) {
    // Not all in the same moment.
    tokio::time::sleep(STEP.mul_f64(fastrand::f64())).await;
    let Some(kind) = KINDS.get(number % KINDS.len()) else {
        return;
    };
    loop {
        if let Ok(stream) = open(address, number).await {
            // The service ends slow connections: that is its right.
            let _ = slow(stream, *kind).await;
        }
        tokio::time::sleep(STEP / 4).await;
    }
}

async fn open(address: SocketAddr, number: usize) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let [third, fourth] = [number / 250, number % 250 + 1].map(u8::try_from);
    socket.bind(SocketAddr::from(([127, 1, third?, fourth?], 0)))?;
    socket.set_recv_buffer_size(WINDOW)?;
    Ok(socket.connect(address).await?)
}

/// Until the service ends the connection.
async fn slow(mut stream: TcpStream, kind: (&str, &str, usize)) -> Result<()> {
    let (begin, more, reads) = kind;
    let mut bytes = vec![0; reads];
    stream.write_all(begin.as_bytes()).await?;
    loop {
        if reads > 0 && stream.read(&mut bytes).await? == 0 {
            return Ok(());
        }
        tokio::time::sleep(STEP).await;
        stream.write_all(more.as_bytes()).await?;
    }
}
