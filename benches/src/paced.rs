//! A load of a fixed rate, which a proxy that is slow for a moment does not slow down: each answer
//! is timed from when its request was due.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use crate::ask;
use crate::program::LOAD_CORE;

/// Requests at a fixed rate.
#[derive(Clone, Copy, Debug)]
pub struct Paced {
    /// Requests a second, over all connections.
    pub rate: f64,
    /// Connections, on a thread each.
    pub connections: u32,
    /// How long.
    pub time: Duration,
}

/// Microseconds from when requests were due to the end of their answers.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Requests that were answered.
    pub requests: usize,
    /// Half of the answers took no longer.
    pub p50: f64,
    /// 99 of 100 answers took no longer.
    pub p99: f64,
    /// No answer took longer.
    pub longest: f64,
}

impl Paced {
    /// Asks for `/`, on the core of the load.
    ///
    /// # Errors
    /// A connection that breaks, an answer that is not 200.
    pub fn run(self, address: SocketAddr) -> Result<Delays> {
        let begin = Instant::now();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|number| scope.spawn(move || self.ask(address, number, begin)))
                .collect();
            let mut all = Vec::new();
            for thread in threads {
                match thread.join() {
                    Ok(delays) => all.extend(delays?),
                    Err(_) => bail!("a thread of the load ended in a panic"),
                }
            }
            Ok(all)
        })?;
        Ok(Delays::of(all))
    }

    /// One connection: its requests are spread evenly between those of the others.
    fn ask(self, address: SocketAddr, number: u32, begin: Instant) -> Result<Vec<u32>> {
        let mut core = CpuSet::new();
        core.set(LOAD_CORE);
        sched_setaffinity(None, &core).context("the load cannot be kept on its core")?;
        // A sleep ends when it should, and not up to 50 µs later. Without it figures are larger.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut stream = ask::connect(address)?;
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let step = Duration::from_secs_f64(f64::from(self.connections) / self.rate);
        let mut due = begin + step.mul_f64(f64::from(number) / f64::from(self.connections));
        let mut delays = Vec::new();
        while due < begin + self.time {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            ask::on(&mut stream, request.as_bytes())?.expect(200)?;
            let delay = due.elapsed().as_micros();
            delays.push(u32::try_from(delay).unwrap_or(u32::MAX));
            due += step;
        }
        Ok(delays)
    }
}

impl Delays {
    fn of(mut all: Vec<u32>) -> Self {
        all.sort_unstable();
        let at = |part: usize| {
            let place = (all.len() * part / 100).min(all.len().saturating_sub(1));
            all.get(place).copied().map_or(0.0, f64::from)
        };
        Self {
            requests: all.len(),
            p50: at(50),
            p99: at(99),
            longest: at(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_ranked() {
        let delays = Delays::of((0..200).rev().collect());
        assert_eq!((delays.requests, delays.p50), (200, 100.0));
        assert_eq!((delays.p99, delays.longest), (198.0, 199.0));
        assert_eq!(Delays::of(Vec::new()).requests, 0);
    }
}
