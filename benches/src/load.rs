//! The load: generators on their core, and what they counted.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::sched_setaffinity;

use crate::program::{LOAD_CORE, Programs, load_core};
use crate::statistics::Delays;

/// Long enough for pools to fill and for weir's first timers.
pub const WARM_UP: Duration = Duration::from_secs(1);

/// Who makes the load.
pub struct Load<'a> {
    /// Where wrk is.
    pub programs: &'a Programs,
    /// How many connections it holds.
    pub connections: usize,
    /// Where its script is written to.
    pub directory: &'a Path,
}

/// What a generator counted: requests that were answered, and how long it and answers took;
/// answers with a status of 400 and above; connections, reads and writes that failed or timed out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counted {
    pub requests: u64,
    pub microseconds: u64,
    pub delays: Delays,
    pub refused: u64,
    pub broken: u64,
}

/// Prints what wrk knows as one line that is easily read.
const REPORT: &str = r#"
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('counted %d %d %.1f %.1f %.1f %.1f %d %d\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max,
    e.status, e.connect + e.read + e.write + e.timeout))
end
"#;

/// Requests that h2load has under way on one connection.
pub const STREAMS: usize = 10;

impl Load<'_> {
    /// Runs wrk for a time in whole seconds: `/` is asked for, and nothing is to be refused.
    pub fn run(&self, address: SocketAddr, script: &str, time: Duration) -> Result<Counted> {
        self.run_at(&format!("http://{address}/"), script, false, time)
    }

    /// The same at a URL, which may be one of https. `refused` tells whether every answer is to be
    /// a refusal, or none.
    pub fn run_at(
        &self,
        url: &str,
        script: &str,
        refused: bool,
        time: Duration,
    ) -> Result<Counted> {
        let file = self.directory.join("load.lua");
        std::fs::write(&file, format!("{script}{REPORT}"))?;
        let (time, file) = (time.as_secs().to_string(), file.display().to_string());
        let arguments = ["-d", &time, "-s", &file, url];
        self.counted("wrk", &arguments, counted)?.sound(refused)
    }

    /// Runs h2load, which speaks HTTP/2 over TLS, for a time in whole seconds.
    pub fn run_http2(&self, url: &str, time: Duration) -> Result<Counted> {
        let (streams, seconds) = (STREAMS.to_string(), time.as_secs().to_string());
        let arguments = ["-m", &streams, "-D", &seconds, url];
        self.counted("h2load", &arguments, |text| counted_http2(text, time))?
            .sound(false)
    }

    /// Runs a generator to its end.
    fn counted(
        &self,
        generator: &str,
        arguments: &[&str],
        read: impl Fn(&str) -> Option<Counted>,
    ) -> Result<Counted> {
        let program = self.programs.path(generator)?;
        let mut command = self.programs.pinned(&[LOAD_CORE], &program)?;
        let output = command
            .args(["-t", "1", "-c", &self.connections.to_string()])
            .args(arguments)
            .output()
            .with_context(|| format!("{generator} cannot be started"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).with_context(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("{generator} gave no figures: {said}{text}")
        })
    }
}

/// What so many threads of this program give together, each of them on the core of the load.
pub fn on_threads<T: Send>(
    count: u32,
    one: impl Fn(u32) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let one = |number| {
        sched_setaffinity(None, &load_core()).context("the load cannot be kept on its core")?;
        one(number)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let start = |number| scope.spawn(move || one(number));
        let threads: Vec<_> = (0..count).map(start).collect();
        let mut all = Vec::new();
        for thread in threads {
            let ended = thread.join();
            all.extend(ended.map_err(|_| anyhow!("a thread of the load panicked"))??);
        }
        Ok(all)
    })
}

/// The lines of h2load, which knows no quantiles. It counts for exactly the time that it is given.
fn counted_http2(text: &str, time: Duration) -> Option<Counted> {
    let number = |line: &str, what: &str| -> Option<u64> {
        let line = text.lines().find_map(|found| found.strip_prefix(line))?;
        let mut parts = line.split(", ").map(str::trim);
        parts.find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    if !text.contains("\nApplication protocol: h2\n") {
        return None;
    }
    Some(Counted {
        requests: number("requests:", "succeeded")?,
        microseconds: u64::try_from(time.as_micros()).ok()?,
        delays: Delays::of(vec![f64::NAN]),
        refused: number("status codes:", "4xx")? + number("status codes:", "5xx")?,
        broken: number("requests:", "errored")? + number("requests:", "timeout")?,
    })
}

/// The line of [`REPORT`].
fn counted(text: &str) -> Option<Counted> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("counted "))?;
    let numbers = line.split(' ').map_while(|word| word.parse().ok());
    let numbers: Vec<f64> = numbers.collect();
    let [
        requests,
        microseconds,
        p50,
        p99,
        p99_9,
        longest,
        refused,
        broken,
    ] = numbers[..]
    else {
        return None;
    };
    Some(Counted {
        requests: requests as u64,
        microseconds: microseconds as u64,
        delays: Delays {
            p50,
            p99,
            p99_9,
            longest,
        },
        refused: refused as u64,
        broken: broken as u64,
    })
}

impl Counted {
    /// Figures of wrong answers are no figures. One connection in a thousand requests may break:
    /// wrk counts those that the end of a run cut off.
    fn sound(self, refused: bool) -> Result<Self> {
        let expected = if refused { self.requests } else { 0 };
        let is_sound = self.refused == expected && self.broken <= self.requests / 1000;
        if self.requests == 0 || !is_sound {
            bail!("{expected} of the answers should be refusals, and these came: {self:?}");
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_wrk_is_read_and_wrong_answers_are_no_figures() {
        let text = "Running 3s test\ncounted 1000 3000123 100.0 512.5 600.0 9000.0 0 1\n";
        let found = counted(text).unwrap();
        assert_eq!((found.requests, found.microseconds), (1000, 3_000_123));
        assert_eq!((found.delays.p99, found.delays.longest), (512.5, 9000.0));
        assert_eq!((found.refused, found.broken), (0, 1));
        assert_eq!(counted("unable to connect"), None);
        assert_eq!(counted("counted 1000 x"), None);
        for (requests, refused, broken, all, is_sound) in [
            (1000, 0, 1, false, true),
            (1000, 1, 0, false, false),
            (1000, 0, 2, false, false),
            (0, 0, 0, false, false),
            (1000, 1000, 0, true, true),
            (1000, 999, 0, true, false),
        ] {
            let mut counted = found;
            (counted.requests, counted.refused, counted.broken) = (requests, refused, broken);
            assert_eq!(counted.sound(all).is_ok(), is_sound, "{counted:?}");
        }
    }

    #[test]
    fn the_lines_of_h2load_are_read() {
        let text = "begin\nApplication protocol: h2\n\nfinished in 2.00s, 500.00 req/s, 1MB/s\n\
            requests: 1000 total, 1010 started, 1000 done, 1000 succeeded, 0 failed, 1 errored, 2 timeout\n\
            status codes: 990 2xx, 0 3xx, 4 4xx, 5 5xx\n";
        let counted = counted_http2(text, Duration::from_secs(2)).unwrap();
        assert_eq!((counted.requests, counted.microseconds), (1000, 2_000_000));
        assert_eq!((counted.refused, counted.broken), (9, 3));
        let other = text.replace(": h2", ": http/1.1");
        assert_eq!(counted_http2(&other, Duration::from_secs(2)), None);
    }
}
