//! One measurement of a proxy in a case.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_benches::load::{Counted, Load, WARM_UP};
use weir_benches::meter;
use weir_benches::program::{LOAD_CORE, Owned, Running};
use weir_benches::tls;

use crate::case::{Case, Handshakes};
use crate::report::{Figures, Log};

/// Longer than nginx keeps lines back (`flush=1s`).
const LOG_FLUSH: Duration = Duration::from_millis(1500);

/// By then the proxy has noticed that the connections of a run are closed.
const SETTLE: Duration = Duration::from_millis(300);

/// The proxy's figures around a run of the load.
pub(crate) fn measure(
    load: &Load,
    proxy: &Running,
    case: &Case,
    time: Duration,
) -> Result<Figures> {
    check_answer(proxy, case)?;
    let warm = run(load, proxy, case, WARM_UP)?;
    let process = proxy.process.0.id();
    let before = meter::cpu_seconds(process)?;
    let counted = run(load, proxy, case, time)?;
    let cpu = meter::cpu_seconds(process)? - before;
    Ok(Figures {
        cpu_microseconds: cpu.total() * 1e6 / counted.requests as f64,
        user_microseconds: cpu.user * 1e6 / counted.requests as f64,
        utilisation: cpu.total() * 1e6 / counted.microseconds as f64,
        requests_per_second: counted.requests as f64 * 1e6 / counted.microseconds as f64,
        p99_milliseconds: counted.p99_microseconds / 1e3,
        memory_mebibytes: meter::memory_mebibytes(process)?,
        system_calls: None,
        log: if case.log {
            // What the end of a run cut off is logged, and not counted; one request was made by
            // hand.
            let requests = warm.requests + counted.requests;
            let streams = if case.is_http2() { 10 } else { 1 };
            let connections = case.connections.of(load.connections) as u64;
            let uncounted = 2 * connections * streams + 1;
            let lines = logged_lines(&proxy.log)?;
            Log {
                lost: requests.saturating_sub(lines),
                surplus: lines.saturating_sub(requests + uncounted),
            }
        } else {
            Log::default()
        },
    })
}

fn run(load: &Load, proxy: &Running, case: &Case, time: Duration) -> Result<Counted> {
    let load = Load {
        connections: case.connections.of(load.connections),
        ..*load
    };
    let (address, path) = (proxy.address, case.path);
    if case.is_http2() {
        return load.run_http2(&format!("https://{address}{path}"), time);
    }
    match case.tls.map(|tls| tls.handshakes) {
        None => load.run(address, path, case.script, case.refuse, time),
        Some(Handshakes::Once) => {
            let url = format!("https://{address}{path}");
            load.run_at(&url, case.script, case.refuse, time)
        }
        Some(kind) => tls::Handshakes::new(kind == Handshakes::Resumed)?.run(
            address,
            path,
            load.connections.min(16),
            time,
        ),
    }
}

/// System calls a request, in a short run of its own; none without strace or without the right to
/// trace.
pub(crate) fn system_calls(load: &Load, proxy: &Running, case: &Case) -> Result<Option<f64>> {
    let Some(strace) = &load.programs.strace else {
        return Ok(None);
    };
    // The connections of the run before end first: with them a banned peer would have too many.
    std::thread::sleep(SETTLE);
    let file = load.directory.join("strace.out");
    let mut command = load.programs.pinned(LOAD_CORE, strace)?;
    command
        .args(["-c", "-f", "-q", "-o"])
        .arg(&file)
        .args(["-p", &proxy.process.0.id().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut tracer = Owned(command.spawn()?);
    let begin = Instant::now();
    while !meter::is_traced(proxy.process.0.id()) {
        if tracer.0.try_wait()?.is_some() || begin.elapsed() > WARM_UP {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let counted = run(load, proxy, case, WARM_UP)?;
    // strace writes its table when it is interrupted; killed it would write nothing.
    let interrupted = Command::new("kill")
        .args(["-INT", &tracer.0.id().to_string()])
        .status()?;
    if !interrupted.success() {
        return Ok(None);
    }
    tracer.0.wait()?;
    let calls = meter::total_calls(&std::fs::read_to_string(&file)?);
    Ok(calls.map(|calls| calls as f64 / counted.requests as f64))
}

/// How many lines the log has once every buffer had the time to be written.
fn logged_lines(log: &Path) -> Result<u64> {
    std::thread::sleep(LOG_FLUSH);
    let mut file = File::open(log).with_context(|| format!("no log at {}", log.display()))?;
    let (mut lines, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        let length = file.read(&mut buffer)?;
        let Some(read) = buffer.get(..length).filter(|read| !read.is_empty()) else {
            return Ok(lines);
        };
        lines += read.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
}

/// Asks once, by hand: the status must be the case's.
fn check_answer(proxy: &Running, case: &Case) -> Result<()> {
    let client = if case.named {
        "203.0.113.7"
    } else {
        "10.200.0.1"
    };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n",
        case.path, proxy.address
    );
    let answer = if case.tls.is_some() {
        let (answer, _) = tls::Handshakes::new(false)?.ask(proxy.address, request.as_bytes())?;
        answer
    } else {
        let mut stream = TcpStream::connect(proxy.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream
            .take(64)
            .read_to_end(&mut answer)
            .context("no answer")?;
        answer
    };
    let answer = String::from_utf8_lossy(&answer);
    let wanted = format!("HTTP/1.1 {} ", case.status());
    if !answer.starts_with(&wanted) {
        let line = answer.lines().next().unwrap_or_default();
        bail!("the answer is {line:?}, and {wanted:?} was expected");
    }
    Ok(())
}
