//! Figures that stand for themselves: how long a start takes, and how much memory there is.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use weir_benches::ask::{self, connect, metric, metrics};
use weir_benches::load::WARM_UP;
use weir_benches::meter;
use weir_benches::program::Running;
use weir_benches::state::FILES;
use weir_benches::statistics::{median, spread};

use crate::features::Bench;
use crate::proxies::TOKEN;
use crate::run::raise_file_limit;
use crate::scripts::CLIENTS;
use crate::table::Figure;

/// How often a start is timed.
const STARTS: usize = 7;
/// Connections that are held idle.
const IDLE: usize = 10_000;
/// Files that a process with that many connections needs besides.
const SPARE: u64 = 500;

/// From the start of the program to the first answer of the application, with full files.
pub(crate) fn start(bench: &Bench) -> Result<Vec<Figure>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let weir = bench.weir(Vec::new(), &FILES, None)?;
        ask_once(&mut connect(weir.address)?)?;
        times.push(weir.began.elapsed().as_secs_f64() * 1000.0);
    }
    let (_, longest) = spread(&times);
    Ok(vec![Figure {
        title: "start with full state to the first answer (median, longest)",
        value: format!("{:.0} ms, {longest:.0} ms", median(times)),
        at_most: "500 ms",
    }])
}

/// Resident memory of a busy service, and what an idle connection adds.
pub(crate) fn memory(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (title, files, at_most) in [
        (
            "memory with 20,000 clients, 10,000 bans, 64 connections",
            &["bans.json", "clients.json"][..],
            "48 MiB",
        ),
        (
            "the same with 20,000 lookups and 20,000 counters",
            &FILES[..],
            "–",
        ),
    ] {
        let weir = bench.weir(Vec::new(), files, None)?;
        bench.load.run(weir.address, CLIENTS, 2 * WARM_UP)?;
        let mut connections = hold(&weir, 64)?;
        connections.iter_mut().try_for_each(ask_once)?;
        figures.push(Figure {
            title,
            value: format!("{:.1} MiB", meter::memory_mebibytes(weir.process.0.id())?),
            at_most,
        });
    }
    match raise_file_limit(IDLE as u64 + SPARE) {
        Ok(()) => figures.extend(idle_connections(bench)?),
        Err(error) => eprintln!("overhead: idle connections are left out: {error:#}"),
    }
    Ok(figures)
}

fn idle_connections(bench: &Bench) -> Result<Vec<Figure>> {
    let settings = ["WAF_MAX_CONNECTIONS", "WAF_MAX_CONNECTIONS_PER_CLIENT"]
        .map(|name| (name, (IDLE + 1000).to_string()));
    // Nobody is to be sent away while the connections are opened.
    let timeouts =
        ["WAF_HEADER_TIMEOUT", "WAF_KEEPALIVE_TIMEOUT"].map(|name| (name, "10m".to_owned()));
    let weir = bench.weir(settings.into_iter().chain(timeouts).collect(), &[], None)?;
    // What the first requests need is no connection's.
    bench.load.run(weir.address, "", WARM_UP)?;
    let process = weir.process.0.id();
    let before = meter::memory_mebibytes(process)?;
    let each = |after: f64| format!("{:.1} KiB", (after - before) * 1024.0 / IDLE as f64);
    let mut connections = hold(&weir, IDLE)?;
    let fresh = each(meter::memory_mebibytes(process)?);
    connections.iter_mut().try_for_each(ask_once)?;
    let used = each(meter::memory_mebibytes(process)?);
    Ok([
        ("an idle connection of 10,000, fresh", fresh),
        ("an idle connection of 10,000, after one request", used),
    ]
    .map(|(title, value)| Figure {
        title,
        value,
        at_most: "12 KiB",
    })
    .into())
}

/// One request to the application; the connection stays open.
fn ask_once(stream: &mut TcpStream) -> Result<()> {
    let answer = ask::on(stream, b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")?;
    answer.expect(200).map(drop)
}

/// Opens connections and waits until weir has accepted them all.
fn hold(weir: &Running, count: usize) -> Result<Vec<TcpStream>> {
    let connections: Vec<TcpStream> = (0..count)
        .map(|_| connect(weir.address))
        .collect::<Result<_>>()?;
    let begin = Instant::now();
    while metric(&metrics(weir.address, TOKEN)?, "waf_connections")? < count as f64 {
        if begin.elapsed() > Duration::from_secs(10) {
            bail!("weir does not accept {count} connections");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(connections)
}
