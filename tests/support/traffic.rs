//! Steady traffic beside a test: clients on kept connections that expect 200 each time and note how
//! long it took.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::raw_client::{Connection, get};

/// Running clients; [`Traffic::finish`] ends them.
pub(crate) struct Traffic {
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
}

impl Traffic {
    /// Starts `connections` clients that ask for `path`; `client` names who asks, by the number of
    /// the request.
    #[track_caller]
    pub(crate) fn start(
        address: SocketAddr,
        connections: usize,
        path: &'static str,
        client: impl Fn(usize) -> String + Send + Clone + 'static,
    ) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let threads = (0..connections)
            .map(|thread| {
                let (stopping, client) = (Arc::clone(&stopping), client.clone());
                std::thread::spawn(move || {
                    let mut connection = Connection::open(address);
                    let mut times = Vec::new();
                    while !stopping.load(Ordering::SeqCst) {
                        let who = client(times.len() * connections + thread);
                        let bytes = get(path, &[("X-Forwarded-For", &who)]);
                        let sent = Instant::now();
                        connection.send(&bytes);
                        let answer = connection.response();
                        times.push(sent.elapsed());
                        assert_eq!(answer.status, 200, "request {} of {who}", times.len());
                    }
                    times
                })
            })
            .collect();
        Self { stopping, threads }
    }

    /// Ends the clients: how long each request took, shortest first. Panics if one was not answered
    /// with 200.
    #[track_caller]
    pub(crate) fn finish(self) -> Vec<Duration> {
        self.stopping.store(true, Ordering::SeqCst);
        let mut times: Vec<Duration> = self
            .threads
            .into_iter()
            .flat_map(|thread| {
                thread
                    .join()
                    .expect("every request of the traffic is answered")
            })
            .collect();
        times.sort();
        times
    }
}

/// The time that `share` of the requests stayed under.
#[track_caller]
pub(crate) fn quantile(times: &[Duration], share: f64) -> Duration {
    let place = (times.len() as f64 * share) as usize;
    times
        .get(place.min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}
