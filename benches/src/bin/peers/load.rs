//! The load: wrk on its core, and the proxy's figures around it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case::Case;
use crate::meter;
use crate::program::{LOAD_CORE, Owned, Programs, Running};
use crate::report::Figures;

/// Long enough for pools to fill and for weir's first timers.
const WARM_UP: Duration = Duration::from_secs(1);

/// Longer than nginx keeps lines back (`flush=1s`).
const LOG_FLUSH: Duration = Duration::from_millis(1500);

/// Who makes the load.
pub(crate) struct Load<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) connections: usize,
    pub(crate) directory: &'a Path,
}

/// What wrk counted.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    requests: u64,
    microseconds: u64,
    p99_microseconds: f64,
    /// Answers with a status of 400 and above.
    refused: u64,
    /// Connections that failed, reads and writes that failed, time-outs.
    broken: u64,
}

/// Prints what wrk knows as one line that is easily read.
const REPORT: &str = r#"
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('counted %d %d %.1f %d %d\n', summary.requests, summary.duration,
    latency:percentile(99.0), e.status, e.connect + e.read + e.write + e.timeout))
end
"#;

impl Load<'_> {
    /// One measurement of a case.
    pub(crate) fn measure(&self, proxy: &Running, case: &Case, time: Duration) -> Result<Figures> {
        check_answer(proxy, case)?;
        let warm = self.wrk(proxy, case, WARM_UP)?;
        let process = proxy.process.0.id();
        let before = meter::cpu_seconds(process)?;
        let counted = self.wrk(proxy, case, time)?;
        let cpu = meter::cpu_seconds(process)? - before;
        Ok(Figures {
            cpu_microseconds: cpu * 1e6 / counted.requests as f64,
            requests_per_second: counted.requests as f64 * 1e6 / counted.microseconds as f64,
            p99_milliseconds: counted.p99_microseconds / 1e3,
            memory_mebibytes: meter::memory_mebibytes(process)?,
            system_calls: None,
            lost_lines: if case.log {
                let requests = warm.requests + counted.requests;
                requests.saturating_sub(logged_lines(&proxy.log)?)
            } else {
                0
            },
        })
    }

    /// System calls a request, in a short run of its own; none without strace or without the right to trace.
    pub(crate) fn system_calls(&self, proxy: &Running, case: &Case) -> Result<Option<f64>> {
        let Some(strace) = &self.programs.strace else {
            return Ok(None);
        };
        let file = self.directory.join("strace.out");
        let mut command = self.programs.pinned(LOAD_CORE, strace)?;
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
        let counted = self.wrk(proxy, case, WARM_UP)?;
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

    fn wrk(&self, proxy: &Running, case: &Case, time: Duration) -> Result<Counted> {
        let script = self.directory.join("load.lua");
        std::fs::write(&script, format!("{}{REPORT}", case.script))?;
        let mut command = self.programs.pinned(LOAD_CORE, self.programs.wrk()?)?;
        let output = command
            .args(["-t", "1", "-c", &self.connections.to_string()])
            .args(["-d", &format!("{}s", time.as_secs())])
            .arg("-s")
            .arg(&script)
            .arg(format!("http://{}{}", proxy.address, case.path))
            .output()
            .context("wrk cannot be started")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let counted = counted(&text).with_context(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("wrk gave no figures: {}{}", said.trim(), text.trim())
        })?;
        sound(case, counted)
    }
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

/// The line of [`REPORT`].
fn counted(text: &str) -> Option<Counted> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("counted "))?;
    let mut words = line.split(' ');
    Some(Counted {
        requests: words.next()?.parse().ok()?,
        microseconds: words.next()?.parse().ok()?,
        p99_microseconds: words.next()?.parse().ok()?,
        refused: words.next()?.parse().ok()?,
        broken: words.next()?.parse().ok()?,
    })
}

/// Figures of wrong answers are no figures. One connection in a thousand requests may break: wrk counts those that
/// the end of a run cut off.
fn sound(case: &Case, counted: Counted) -> Result<Counted> {
    let Counted {
        requests,
        refused,
        broken,
        ..
    } = counted;
    let expected = if case.refuse { requests } else { 0 };
    if requests == 0 {
        bail!("no request was answered");
    }
    if refused != expected {
        bail!("{refused} of {requests} answers were refusals, and {expected} should be");
    }
    if broken > requests / 1000 {
        bail!("{broken} connections broke within {requests} requests");
    }
    Ok(counted)
}

/// Asks once, by hand: the status must be the case's.
fn check_answer(proxy: &Running, case: &Case) -> Result<()> {
    let mut stream = TcpStream::connect(proxy.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let Case { path, .. } = case;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {}\r\nX-Forwarded-For: 10.200.0.1\r\nConnection: close\r\n\r\n",
        proxy.address
    )?;
    let mut answer = Vec::new();
    stream
        .take(64)
        .read_to_end(&mut answer)
        .context("no answer")?;
    let answer = String::from_utf8_lossy(&answer);
    let wanted = format!("HTTP/1.1 {} ", case.status());
    if !answer.starts_with(&wanted) {
        let line = answer.lines().next().unwrap_or_default();
        bail!("the answer is {line:?}, and {wanted:?} was expected");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::CASES;

    fn case(name: &str) -> &'static Case {
        CASES.iter().find(|case| case.name == name).unwrap()
    }

    #[test]
    fn the_line_of_wrk_is_read() {
        let text = "Running 3s test\ncounted 1000 3000123 512.5 0 2\n";
        let expected = Counted {
            requests: 1000,
            microseconds: 3_000_123,
            p99_microseconds: 512.5,
            refused: 0,
            broken: 2,
        };
        assert_eq!(counted(text), Some(expected));
        assert_eq!(counted("unable to connect"), None);
        assert_eq!(counted("counted 1000 x"), None);
    }

    #[test]
    fn wrong_answers_are_no_figures() {
        let counted = |requests, refused, broken| Counted {
            requests,
            microseconds: 1,
            p99_microseconds: 1.0,
            refused,
            broken,
        };
        assert!(sound(case("pass"), counted(1000, 0, 1)).is_ok());
        assert!(sound(case("pass"), counted(1000, 1, 0)).is_err());
        assert!(sound(case("pass"), counted(1000, 0, 2)).is_err());
        assert!(sound(case("pass"), counted(0, 0, 0)).is_err());
        assert!(sound(case("refuse"), counted(1000, 1000, 0)).is_ok());
        assert!(sound(case("refuse"), counted(1000, 999, 0)).is_err());
    }
}
