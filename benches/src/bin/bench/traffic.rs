//! The load: connections that ask one request after the other and are kept as long as they may be.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use weir_benches::ask;
use weir_benches::beside::Ended;

/// Failures that are told.
const MAX_TOLD: u64 = 3;

/// Connections that ask all the time, and what they have seen.
pub(crate) struct Traffic {
    address: SocketAddr,
    /// Clients that they ask for in turn, from those of the full state files.
    clients: usize,
    pub(crate) requests: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Microseconds of the longest wait since it was asked for.
    longest: AtomicU64,
}

impl Traffic {
    pub(crate) fn new(address: SocketAddr, clients: usize) -> Self {
        Self {
            address,
            clients,
            requests: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Asks on so many connections until the work beside it has ended.
    pub(crate) fn run(&self, connections: usize, ended: &Ended) {
        std::thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| self.ask(ended));
            }
        });
    }

    /// The longest wait since the last question.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }

    /// One connection after the other.
    fn ask(&self, ended: &Ended) {
        let mut kept = None;
        while !ended.is_now() {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            if let Err(error) = self.request(number as usize % self.clients, &mut kept) {
                if self.failed.fetch_add(1, Ordering::Relaxed) < MAX_TOLD {
                    eprintln!("bench: a request failed: {error:#}");
                }
                kept = None;
            }
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.longest.fetch_max(took, Ordering::Relaxed);
        }
    }

    /// One request, on the connection that is kept or on a new one.
    fn request(&self, client: usize, kept: &mut Option<TcpStream>) -> Result<()> {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => ask::connect(self.address)?,
        };
        let (third, fourth) = (client / 256, client % 256);
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.200.{third}.{fourth}\r\n\r\n"
        );
        let answer = ask::on(&mut stream, request.as_bytes())?.expect(200)?;
        if !answer.head.contains("connection: close") {
            *kept = Some(stream);
        }
        Ok(())
    }
}
