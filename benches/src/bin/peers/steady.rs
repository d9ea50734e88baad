//! Delays at a fixed rate, 60 % of what nginx answers at most, while weir is asked for its metrics
//! and writes its state once a second.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Result, bail};
use weir_benches::load::{Load, WARM_UP};
use weir_benches::paced::{Delays, Paced};
use weir_benches::program::{Kind, Programs};
use weir_benches::statistics::median;

use crate::case::STEADY;
use crate::config::TOKEN;
use crate::proxy;

/// The part of nginx's rate.
const PART: f64 = 0.6;

/// The table, in Markdown.
pub(crate) fn compare(
    programs: &Programs,
    kinds: &[Kind],
    application: SocketAddr,
    load: &Load,
    time: Duration,
    rounds: usize,
) -> Result<String> {
    let start = |kind| proxy::start(kind, programs, &STEADY, application);
    let nginx = start(Kind::Nginx)?;
    let counted = load.run(nginx.address, "/", "", false, 2 * WARM_UP)?;
    drop(nginx);
    let paced = Paced {
        rate: PART * counted.requests as f64 * 1e6 / counted.microseconds as f64,
        connections: u32::try_from(load.connections)?,
        time,
    };
    let mut all: Vec<(Kind, Vec<Delays>)> = kinds.iter().map(|kind| (*kind, Vec::new())).collect();
    for round in 1..=rounds {
        // Who comes first meets another machine than who comes last.
        all.rotate_left(usize::from(round > 1));
        for (kind, delays) in &mut all {
            eprintln!("peers: steady through {}, round {round}", kind.name());
            let proxy = start(*kind)?;
            // 20,000 clients to keep and to write.
            load.run(proxy.address, "/", STEADY.script, false, WARM_UP)?;
            delays.push(match kind {
                Kind::Weir => beside(|| scrape(proxy.address), || paced.run(proxy.address))?,
                Kind::Nginx | Kind::Haproxy => paced.run(proxy.address)?,
            });
        }
    }
    let mut text = format!(
        "{:.0} requests a second, {} connections\n\n\
         | Proxy | p50 ms | p99 ms (of each round) | longest ms |\n|---|--:|--:|--:|\n",
        paced.rate, paced.connections
    );
    for (kind, delays) in &all {
        let of = |member: fn(&Delays) -> f64| delays.iter().map(member).collect::<Vec<_>>();
        let each: Vec<String> = of(|delays| delays.p99 / 1e3)
            .iter()
            .map(|p99| format!("{p99:.2}"))
            .collect();
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} ({}) | {:.2} |",
            kind.name(),
            median(of(|delays| delays.p50 / 1e3)),
            median(of(|delays| delays.p99 / 1e3)),
            each.join(", "),
            of(|delays| delays.longest / 1e3)
                .into_iter()
                .fold(0.0, f64::max),
        );
    }
    Ok(text)
}

/// Does something once a second while `work` lasts.
fn beside<T>(often: impl Fn() -> Result<()> + Send, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::thread::scope(|scope| {
        let (done, waits) = channel::<()>();
        let beside = scope.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = waits.recv_timeout(Duration::from_secs(1)) {
                often()?;
            }
            Ok(())
        });
        let result = work();
        drop(done);
        match beside.join() {
            Ok(outcome) => outcome.and(result),
            Err(_) => bail!("the scrapes ended in a panic"),
        }
    })
}

/// Asks weir for its metrics.
fn scrape(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET /_waf/metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200 ") {
        bail!(
            "the metrics are {:?}",
            answer.lines().next().unwrap_or_default()
        );
    }
    Ok(())
}
