//! Figures that stand for themselves: how long a start takes, and how much memory there is.

use std::net::TcpStream;

use anyhow::Result;
use weir_benches::ask::{self, connect};
use weir_benches::config::Settings;
use weir_benches::load::WARM_UP;
use weir_benches::meter;
use weir_benches::program::Running;
use weir_benches::state::FILES;
use weir_benches::statistics::{median, spread};

use crate::features::Bench;
use crate::scripts::CLIENTS;
use crate::table::Figure;

/// How often a start is timed.
const STARTS: usize = 7;
/// From the start of the program to the first answer of the application, with full files.
pub(crate) fn start(bench: &Bench) -> Result<Vec<Figure>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let weir = bench.weir(Settings::default(), &FILES, None)?;
        ask_once(&weir)?;
        times.push(weir.began.elapsed().as_secs_f64() * 1000.0);
    }
    let (_, longest) = spread(&times);
    let title = "start with full state to the first answer (median, longest)";
    let value = format!("{:.0} ms, {longest:.0} ms", median(times));
    Ok(vec![(title, value, "500 ms")])
}

/// Resident memory of a busy service. That of a connection is what `held_connections.py` measures.
pub(crate) fn memory(bench: &Bench) -> Result<Vec<Figure>> {
    let some = "memory with 20,000 clients, 10,000 bans, 64 connections";
    let all = "the same with 20,000 lookups and 20,000 counters";
    let rows = [
        (some, &["bans.json", "clients.json"][..], "48 MiB"),
        (all, &FILES[..], "–"),
    ];
    let measure = |(title, files, at_most)| {
        let weir = bench.weir(Settings::default(), files, None)?;
        bench.load.run(weir.address, CLIENTS, 2 * WARM_UP)?;
        let held = (0..64).map(|_| ask_once(&weir));
        let _held = held.collect::<Result<Vec<_>>>()?;
        let memory = meter::memory_mebibytes(weir.process.0.id())?;
        Ok((title, format!("{memory:.1} MiB"), at_most))
    };
    rows.into_iter().map(measure).collect()
}

/// One request to the application, on a connection that stays open.
fn ask_once(weir: &Running) -> Result<TcpStream> {
    let mut stream = connect(weir.address)?;
    let answer = ask::on(&mut stream, b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")?;
    answer.expect(200)?;
    Ok(stream)
}
