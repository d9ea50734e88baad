//! The load: generators on their core, and what they counted.

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{sched_setaffinity, set_current_timer_slack};
use tempfile::NamedTempFile;

use crate::ask;
use crate::program::{LOAD_CORE, Programs, load_core};
use crate::statistics::{Delays, ms};

/// Long enough for pools to fill and for weir's first timers.
pub const WARM_UP: Duration = Duration::from_secs(1);

/// Who makes the load.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// Where wrk is.
    pub programs: &'a Programs,
    /// How many connections it holds.
    pub connections: u32,
}

/// What a generator counted: requests that were answered, and how long it and answers took;
/// answers with a status of 400 and above; connections, reads and writes that failed or timed out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counted {
    pub requests: u64,
    pub seconds: f64,
    pub delays: Delays,
    pub refused: u64,
    pub broken: u64,
}

/// What scripts may use, and what prints the figures of wrk, times in microseconds, as a line of
/// JSON.
const LUA: &str = r#"
-- A POST of so many bytes.
function post(size)
  wrk.method, wrk.body = 'POST', string.rep('x', size)
end

-- One of so many chunks of so many bytes, which wrk cannot make by itself.
function post_chunks(count, size)
  local chunk = string.format('%x\r\n', size) .. string.rep('x', size) .. '\r\n'
  local head = 'POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n'
  local text = head .. string.rep(chunk, count) .. '0\r\n\r\n'
  function request() return text end
end

-- So many clients in turn, whose addresses are made of their numbers. The requests are made beforehand, so that the
-- generator's own work stays small.
function clients(count, address)
  local requests, at = {}, 0
  function init()
    for number = 0, count - 1 do
      wrk.headers['X-Forwarded-For'] = address(number)
      requests[number] = wrk.format()
    end
  end
  function request()
    at = (at + 1) % count
    return requests[at]
  end
end

-- The addresses of 64.0.0.0/6 by number, in an order that leaps from network to network, as visitors come; the step is
-- odd, so that it meets them all. The lookup databases know them, and they are public: private ones are never looked
-- up. A run begins where none has been before.
math.randomseed(os.time())
local first = math.random(0, 2^26 - 1)
function fresh(number)
  local n = (first + number * 2654435) % 2^26
  return string.format('%d.%d.%d.%d', 64 + math.floor(n / 2^24), math.floor(n / 2^16) % 256, math.floor(n / 2^8) % 256, n % 256)
end

-- Each request is of a client of its own, for 67 million of them.
function fresh_each()
  local head, tail, at = '', '', 0
  function init()
    wrk.headers['X-Forwarded-For'] = 'CLIENT'
    head, tail = string.match(wrk.format(), '^(.*)CLIENT(.*)$')
  end
  function request()
    at = at + 1
    return head .. fresh(at) .. tail
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('counted [%d, %d, [%.1f, %.1f, %.1f, %.1f], %d, %d]\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max,
    e.status, e.connect + e.read + e.write + e.timeout))
end
"#;

/// Requests that h2load has under way on one connection.
pub const STREAMS: u32 = 10;

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
        let mut file = NamedTempFile::new()?;
        file.write_all(format!("{LUA}{script}").as_bytes())?;
        let (time, file) = (time.as_secs().to_string(), file.into_temp_path());
        let arguments = ["-d", &time, "-s", &file.to_string_lossy(), url];
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
        let mut command = self.programs.pinned(&[LOAD_CORE], generator)?;
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

/// A load of a fixed rate, which a proxy that is slow for a moment does not slow down: each answer
/// is timed from when its request was due.
#[derive(Clone, Copy, Debug)]
pub struct Paced {
    /// Requests a second, over all connections.
    pub rate: f64,
    /// Connections, on a thread each.
    pub connections: u32,
    /// How long.
    pub time: Duration,
}

impl Paced {
    /// Asks for `/`, on the core of the load: how long after requests were due answers ended.
    pub fn run(self, address: SocketAddr) -> Result<Delays> {
        let begin = Instant::now();
        let all = on_threads(self.connections, |number| self.ask(address, number, begin))?;
        Ok(Delays::of(all))
    }

    /// One connection: its requests are spread evenly between those of the others.
    fn ask(self, address: SocketAddr, number: u32, begin: Instant) -> Result<Vec<f64>> {
        // A sleep ends when it should, and not up to 50 µs later. Without it figures are larger.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut stream = ask::connect(address)?;
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let step = Duration::from_secs_f64(f64::from(self.connections) / self.rate);
        let mut due = begin + step.mul_f64(f64::from(number) / f64::from(self.connections));
        let mut delays = Vec::new();
        while due < begin + self.time {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            ask::on(&mut stream, &request)?.expect(200)?;
            delays.push(ms(due.elapsed()));
            due += step;
        }
        Ok(delays)
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
        seconds: time.as_secs_f64(),
        delays: [f64::NAN; 4].into(),
        refused: number("status codes:", "4xx")? + number("status codes:", "5xx")?,
        broken: number("requests:", "errored")? + number("requests:", "timeout")?,
    })
}

/// The line that [`LUA`] prints.
fn counted(text: &str) -> Option<Counted> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("counted "))?;
    let parts: (u64, f64, [f64; 4], u64, u64) = serde_json::from_str(line).ok()?;
    let (requests, microseconds, delays, refused, broken) = parts;
    Some(Counted {
        requests,
        seconds: microseconds / 1e6,
        delays: delays.map(|microseconds| microseconds / 1e3).into(),
        refused,
        broken,
    })
}

impl Counted {
    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

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
        let text =
            "Running 3s test\ncounted [1000, 3000123, [100.0, 512.5, 600.0, 9000.0], 0, 1]\n";
        let found = counted(text).unwrap();
        assert_eq!((found.requests, found.seconds), (1000, 3.000123));
        assert_eq!((found.delays.p99, found.delays.longest), (0.5125, 9.0));
        assert_eq!((found.refused, found.broken), (0, 1));
        assert_eq!(counted("unable to connect"), None);
        assert_eq!(counted("counted [1000, x"), None);
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
        assert_eq!((counted.requests, counted.seconds), (1000, 2.0));
        assert_eq!((counted.refused, counted.broken), (9, 3));
        let other = text.replace(": h2", ": http/1.1");
        assert_eq!(counted_http2(&other, Duration::from_secs(2)), None);
    }
}
