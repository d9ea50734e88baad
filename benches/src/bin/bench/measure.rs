//! One measurement of a proxy under load, and what it comes to.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tempfile::NamedTempFile;
use weir_benches::load::{Counted, Load, STREAMS, WARM_UP};
use weir_benches::program::{LOAD_CORE, Owned, Running, signal, wait_until};
use weir_benches::statistics::Delays;
use weir_benches::{ask, meter, tls};

use crate::cases::{Case, Handshakes};

/// Longer than nginx keeps lines back (`flush=1s`).
const LOG_FLUSH: Duration = Duration::from_millis(1500);
/// By then the proxy has noticed that the connections of a run are closed.
const SETTLE: Duration = Duration::from_millis(300);
/// The threads of weir that requests are served on.
pub(crate) const WORKERS: &str = "weir-worker-";

/// What one round gives.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Figures {
    /// Of the whole process, a request; of it in the process itself; and of weir's workers.
    pub(crate) cpu_us: f64,
    pub(crate) user_us: f64,
    pub(crate) worker_us: f64,
    /// The part of its core that the proxy used.
    pub(crate) utilisation: f64,
    pub(crate) per_second: f64,
    pub(crate) delays: Delays,
    pub(crate) memory_mib: f64,
    pub(crate) calls: Option<f64>,
    /// Requests without a line in the log, where there is one: who loses lines is not cheaper; and
    /// lines without a request: something else was measured as well.
    pub(crate) lost: f64,
    pub(crate) surplus: f64,
}

/// The proxy's figures around a run of the load.
pub(crate) fn around(
    proxy: &Running,
    run: impl FnOnce() -> Result<Counted>,
) -> Result<(Figures, Counted)> {
    let process = proxy.id();
    // Peers have no such threads.
    let worker = || meter::thread_nanoseconds(process, WORKERS).unwrap_or(0);
    let (cpu, of_worker) = (meter::cpu_seconds(process)?, worker());
    let counted = run()?;
    let of_worker = worker().saturating_sub(of_worker);
    let [user_before, system_before] = cpu;
    let [user, system] = meter::cpu_seconds(process)?;
    let user = user - user_before;
    let cpu = user + system - system_before;
    let requests = counted.requests as f64;
    let figures = Figures {
        cpu_us: cpu * 1e6 / requests,
        user_us: user * 1e6 / requests,
        worker_us: of_worker as f64 / 1e3 / requests,
        utilisation: cpu / counted.seconds,
        per_second: counted.rate(),
        delays: counted.delays,
        memory_mib: meter::memory_mebibytes(process)?,
        ..Figures::default()
    };
    Ok((figures, counted))
}

/// A proxy in a case, for this time.
pub(crate) fn measure(
    load: &Load,
    proxy: &Running,
    case: &Case,
    time: Duration,
) -> Result<Figures> {
    check_answer(proxy, case)?;
    let warm = run(load, proxy, case, WARM_UP)?;
    let (mut figures, counted) = around(proxy, || run(load, proxy, case, time))?;
    if case.log {
        // What the end of a run cut off is logged, and not counted; one request was made by hand.
        let requests = (warm.requests + counted.requests) as f64;
        let streams = if case.is_http2() { STREAMS } else { 1 };
        let uncounted = 2 * case.connections(load.connections) * streams + 1;
        let lines = logged_lines(&proxy.log())? as f64;
        figures.lost = (requests - lines).max(0.0);
        figures.surplus = (lines - requests - f64::from(uncounted)).max(0.0);
    }
    Ok(figures)
}

fn run(load: &Load, proxy: &Running, case: &Case, time: Duration) -> Result<Counted> {
    let connections = case.connections(load.connections);
    let load = Load {
        connections,
        ..*load
    };
    let scheme = if case.tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}{}", proxy.address, case.path);
    match case.tls.map(|(_, handshakes)| handshakes) {
        Some(Handshakes::Http2) => load.run_http2(&url, time),
        None | Some(Handshakes::Once) => {
            load.run_at(&url, case.script, case.denied.is_some(), time)
        }
        Some(kind) => {
            let handshakes = tls::Handshakes::new(kind == Handshakes::Resumed)?;
            handshakes.run(proxy.address, case.path, connections.min(16), time)
        }
    }
}

/// System calls a request, in a short run of its own; none without strace or without the right to
/// trace.
pub(crate) fn system_calls(load: &Load, proxy: &Running, case: &Case) -> Result<Option<f64>> {
    let Ok(mut command) = load.programs.pinned(&[LOAD_CORE], "strace") else {
        return Ok(None);
    };
    // The connections of the run before end first: with them a banned peer would have too many.
    std::thread::sleep(SETTLE);
    let (table, process) = (NamedTempFile::new()?, proxy.id());
    command
        .args(["-c", "-f", "-q", "-p", &process.to_string(), "-o"])
        .arg(table.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut tracer = Owned(command.spawn()?);
    let is_traced = || Ok(meter::status(process)?.tracerpid > 0);
    if wait_until("strace", WARM_UP, is_traced).is_err() {
        return Ok(None);
    }
    let counted = run(load, proxy, case, WARM_UP)?;
    // strace writes its table when it is interrupted; killed it would write nothing.
    signal(&tracer.0, Signal::INT)?;
    tracer.0.wait()?;
    let calls = total_calls(&std::fs::read_to_string(table)?);
    Ok(calls.map(|calls| calls as f64 / counted.requests as f64))
}

/// How many lines the log has once every buffer had the time to be written.
fn logged_lines(log: &Path) -> Result<u64> {
    std::thread::sleep(LOG_FLUSH);
    let file = File::open(log).with_context(|| format!("no log at {}", log.display()))?;
    let mut lines = BufReader::with_capacity(1 << 16, file).split(b'\n');
    Ok(lines.try_fold(0, |count, line| line.map(|_| count + 1))?)
}

/// Asks once, by hand: a figure of wrong answers is worth nothing.
fn check_answer(proxy: &Running, case: &Case) -> Result<()> {
    let client = match case.denied {
        Some("203.0.113.0/24") => "203.0.113.7",
        _ => "10.200.0.1",
    };
    let fields = ask::forwarded(client) + "Connection: close\r\n";
    let request = ask::request(&format!("GET {}", case.path), &fields, "");
    let answer = match case.tls {
        None => ask::on(&mut ask::connect(proxy.address)?, &request)?,
        Some(_) => tls::Handshakes::new(false)?.ask(proxy.address, &request)?.0,
    };
    let status = if case.denied.is_some() { 429 } else { 200 };
    answer.expect(status).map(drop)
}

/// The calls in the line `total` of `strace -c`.
fn total_calls(table: &str) -> Option<u64> {
    let line = table.lines().find(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_strace_is_read_with_and_without_errors() {
        let total = "% time     seconds  usecs/call     calls    errors syscall\n\
                     60.00    0.000600           1       600        10 read\n\
                     100.00    0.001000           1      1000        10 total\n";
        assert_eq!(total_calls(total), Some(1000));
        let total = "100.00    0.001000    1      1000           total";
        assert_eq!(total_calls(total), Some(1000));
        assert_eq!(total_calls(""), None);
    }
}
