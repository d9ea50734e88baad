//! The load: connections that ask one request after the other and are kept as long as they may be.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use weir_benches::ask;

/// Failures of a connection that are told.
const MAX_TOLD: u64 = 3;

/// Connections that ask all the time.
pub(crate) struct Traffic {
    stopping: Arc<AtomicBool>,
    /// Microseconds of the longest wait since it was asked for.
    longest: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Ended>>,
}

/// What they have seen.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) requests: u64,
    pub(crate) failed: u64,
}

impl Traffic {
    /// So many connections, for so many clients.
    pub(crate) fn start(address: SocketAddr, connections: usize, clients: usize) -> Self {
        let stopping = Arc::<AtomicBool>::default();
        let longest = Arc::<AtomicU64>::default();
        let threads = (0..connections).map(|number| {
            let (stopping, longest) = (Arc::clone(&stopping), Arc::clone(&longest));
            std::thread::spawn(move || {
                let mut ended = Ended::default();
                let mut kept = None;
                while !stopping.load(Ordering::Relaxed) {
                    let client = (ended.requests as usize * connections + number) % clients;
                    let began = Instant::now();
                    if let Err(error) = request(address, client, &mut kept) {
                        if ended.failed < MAX_TOLD {
                            eprintln!("bench: a request failed: {error:#}");
                        }
                        ended.failed += 1;
                        kept = None;
                    }
                    let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                    longest.fetch_max(took, Ordering::Relaxed);
                    ended.requests += 1;
                }
                ended
            })
        });
        Self {
            threads: threads.collect(),
            stopping,
            longest,
        }
    }

    /// The longest wait since the last question.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }

    /// Ends them.
    pub(crate) fn finish(mut self) -> Result<Ended> {
        self.stopping.store(true, Ordering::Relaxed);
        let mut all = Ended::default();
        for thread in std::mem::take(&mut self.threads) {
            let Ok(ended) = thread.join() else {
                bail!("a generator ended in a panic");
            };
            all.requests += ended.requests;
            all.failed += ended.failed;
        }
        Ok(all)
    }
}

/// A run that ends early ends its load too.
impl Drop for Traffic {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// One request, on the connection that is kept or on a new one; a client of the full state files.
fn request(address: SocketAddr, client: usize, kept: &mut Option<TcpStream>) -> Result<()> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => ask::connect(address)?,
    };
    let (third, fourth) = (client / 256, client % 256);
    let request =
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.200.{third}.{fourth}\r\n\r\n");
    let answer = ask::on(&mut stream, request.as_bytes())?.expect(200)?;
    if !answer.head.contains("connection: close") {
        *kept = Some(stream);
    }
    Ok(())
}
