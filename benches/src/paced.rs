//! A load of a fixed rate, which a proxy that is slow for a moment does not slow down: each answer
//! is timed from when its request was due.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::set_current_timer_slack;

use crate::ask;
use crate::load::on_threads;
use crate::statistics::Delays;

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
            ask::on(&mut stream, request.as_bytes())?.expect(200)?;
            delays.push(due.elapsed().as_secs_f64() * 1e6);
            due += step;
        }
        Ok(delays)
    }
}
