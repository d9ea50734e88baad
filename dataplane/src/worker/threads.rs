//! The data plane from outside: its threads are started, stopped and joined here.

use std::io;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::LocalOptions;
use tokio::sync::watch;
use weir_shared::reload::{Part, Take};
use weir_shared::settings::Settings;
use weir_shared::threads::{How, spawn_starting};
use weir_shared::totals::{OriginCounts, Totals};

use crate::clients::table::Table;
use crate::request::identity::ForgottenProxy;
use crate::upstream::bound::UpstreamBound;
use crate::worker::accept::Acceptor;
use crate::worker::counters::WorkerCounters;
use crate::worker::limits::ConnectionLimits;
use crate::worker::listeners::{Bound, Listening};
use crate::worker::{Current, InForce, Parts, Stop};

/// How often the end of the workers is looked for.
const JOIN_LOOK: Duration = Duration::from_millis(5);
/// How long a worker may take to make its runtime.
const START_WAIT: Duration = Duration::from_secs(10);

/// The counters of all workers, the client table, the requests at the application: what the metrics
/// read.
#[derive(Clone)]
pub struct Counting {
    workers: Vec<WorkerCounters>,
    table: Arc<Table>,
    upstream: Arc<UpstreamBound>,
}

impl Counting {
    /// The counters of the workers that will serve these listeners.
    pub fn of(bound: &Bound, table: Arc<Table>, upstream: Arc<UpstreamBound>) -> Self {
        Self {
            workers: bound.counters().cloned().collect(),
            table,
            upstream,
        }
    }

    /// Everything counted so far.
    pub fn totals(&self) -> Totals {
        let upstream = self.upstream.numbers();
        let mut totals = Totals {
            upstream: upstream.taken.into(),
            upstream_waiting: upstream.waiting.into(),
            clients: self.table.kept(),
            clients_evicted: self.table.evicted(),
            ..Totals::default()
        };
        for worker in &self.workers {
            worker.counters.fold_into(&mut totals);
        }
        totals
    }

    /// Requests by country and AS number since this was last asked. A worker's lock is held for a
    /// swap only.
    pub fn take_origins(&self) -> OriginCounts {
        let mut all = OriginCounts::default();
        for worker in &self.workers {
            // Counts stay counts, whoever panicked while holding them.
            let held = worker.origins.lock();
            let mut taken = std::mem::take(&mut *held.unwrap_or_else(PoisonError::into_inner));
            all.take_in(&mut taken);
        }
        all
    }
}

/// What all workers are made from.
struct Shared {
    parts: Parts,
    limits: Arc<ConnectionLimits>,
    forgotten_proxy: Arc<ForgottenProxy>,
}

impl Shared {
    /// One worker, on its thread.
    fn run(
        &self,
        index: usize,
        listening: Vec<Listening>,
        counters: WorkerCounters,
        stopped: watch::Receiver<Stop>,
        ready: impl FnOnce(io::Result<()>),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            // So many tasks run before the system is asked again what has come, if there are as
            // many: each has little to do.
            .event_interval(255)
            .enable_io()
            .enable_time()
            .build_local(LocalOptions::default());
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return ready(Err(error)),
        };
        runtime.block_on(async {
            let forgotten_proxy = Arc::clone(&self.forgotten_proxy);
            let current = Current::new(&self.parts, counters, forgotten_proxy, stopped.clone());
            let limits = Arc::clone(&self.limits);
            let acceptor = Acceptor::new(index, current, limits);
            acceptor.run(listening, stopped, ready).await;
        });
    }

    /// From now on these settings hold: each request that begins has them, each that was begun
    /// ends with those that it has (RELOAD-2). It cannot fail, and nobody waits.
    fn take(&self, settings: Arc<Settings>) {
        let parts = &self.parts;
        self.limits.set(&settings.connections);
        parts.upstream.set(&settings.connections);
        let trusted = settings.identity.trusted_proxies.clone();
        parts.spared.set_trusted(trusted);
        let before = parts.in_force.load();
        let in_force = InForce::new(settings, Arc::clone(&parts.spared), Some(&before));
        parts.table.set_bucket(in_force.rules.charging.bucket);
        parts.in_force.store(Arc::new(in_force));
    }
}

/// The running data plane.
pub struct DataPlane {
    threads: Vec<JoinHandle<()>>,
    stop: watch::Sender<Stop>,
    shared: Arc<Shared>,
}

impl DataPlane {
    /// Starts one thread for each worker. When it returns, each has everything that it needs and
    /// waits for [`DataPlane::begin`].
    ///
    /// # Errors
    /// What the system said when a thread or its runtime could not be made.
    pub fn start(bound: Bound, parts: Parts) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(Stop::NotBegun);
        let settings = Arc::clone(&parts.in_force.load().settings);
        let shared = Arc::new(Shared {
            limits: Arc::new(ConnectionLimits::new(
                &settings.connections,
                settings.workers,
            )),
            forgotten_proxy: Arc::new(ForgottenProxy::new(Arc::clone(&parts.spared))),
            parts,
        });
        let (told, ready) = mpsc::channel();
        let mut threads = Vec::new();
        for (index, (listening, counters)) in bound.into_workers().enumerate() {
            let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
            let told = told.clone();
            let ready = move |is_ready| drop(told.send(is_ready));
            let name = format!("weir-worker-{index}");
            threads.push(spawn_starting(name, move || {
                shared.run(index, listening, counters, stopped, ready);
            })?);
        }
        for _ in &threads {
            let is_ready = ready.recv_timeout(START_WAIT);
            is_ready.map_err(|_| io::Error::other("a worker does not begin"))??;
        }
        shared.take(settings);
        Ok(Self {
            threads,
            stop,
            shared,
        })
    }

    /// From now on connections are accepted.
    pub fn begin(&self) {
        self.stop(Stop::No);
    }

    /// The part of a reload.
    pub fn part(&self) -> Part {
        let shared = Arc::clone(&self.shared);
        Box::new(move |new| {
            let (shared, settings) = (Arc::clone(&shared), Arc::clone(&new.settings));
            Ok(Box::new(move || {
                shared.take(settings);
                Ok(())
            }) as Take)
        })
    }

    /// Asks the workers to stop.
    pub fn stop(&self, how: Stop) {
        // With no worker left there is nothing to stop.
        let _ = self.stop.send(how);
    }

    /// Whether every worker has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the workers, for `at_most` in all.
    ///
    /// # Errors
    /// One of them panicked, or hangs.
    pub fn join(self, at_most: Duration) -> Result<(), How> {
        let mut waited = Duration::ZERO;
        while !self.is_finished() {
            if waited >= at_most {
                // What it holds is given back by the end of the process.
                return Err(How::Hangs);
            }
            std::thread::sleep(JOIN_LOOK);
            waited += JOIN_LOOK;
        }
        // Every thread is waited for, also behind one that panicked.
        let panicked = self
            .threads
            .into_iter()
            .map(JoinHandle::join)
            .filter(Result::is_err)
            .count();
        if panicked > 0 {
            return Err(How::Panicked);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::SocketAddr;

    use weir_shared::clock::Clock;
    use weir_shared::handover::Handover;
    use weir_shared::lookup::{Ask, LookupStarted};
    use weir_shared::totals::ConnectionError;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn plane(handover: Handover) -> (DataPlane, SocketAddr, Counting) {
        let ask: Ask = Arc::new(|_, _| LookupStarted::NotNow { again_ns: u64::MAX });
        plane_with(&[("WAF_LOOKUP_SOURCE", "off")], handover, ask)
    }

    fn plane_with(
        settings: &[(&str, &str)],
        handover: Handover,
        ask: Ask,
    ) -> (DataPlane, SocketAddr, Counting) {
        let variables = [
            ("WAF_UPSTREAM", "http://127.0.0.1:9"),
            ("WAF_LISTEN", "127.0.0.1:0"),
            ("WAF_WORKERS", "1"),
        ];
        let variables = variables
            .iter()
            .chain(settings)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = Arc::new(weir_shared::settings::load(variables).unwrap().settings);
        let bound = Bound::new(&settings).unwrap();
        let address = bound.places()[0].address().unwrap();
        let table = Arc::new(Table::default());
        let upstream = Arc::new(UpstreamBound::new(&settings.connections));
        let counting = Counting::of(&bound, Arc::clone(&table), Arc::clone(&upstream));
        let (breaks, _) = crossbeam_channel::bounded(1);
        let parts = Parts {
            in_force: Arc::new(arc_swap::ArcSwap::from_pointee(InForce::new(
                settings,
                Arc::default(),
                None,
            ))),
            clock: Clock::system(),
            table,
            snapshots: Arc::default(),
            refusal_page: Arc::default(),
            breaks,
            records: None,
            finished: None,
            tls: None,
            https_port: None,
            handover,
            ask,
            ask_names: Arc::new(|_, _| None),
            spared: Arc::default(),
            upstream,
        };
        let plane = DataPlane::start(bound, parts).unwrap();
        plane.begin();
        (plane, address, counting)
    }

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A bug in one request is one 500 and a count; the worker and everybody else go on.
    #[test]
    fn a_panic_costs_its_request_alone() {
        let (plane, address, counting) = plane(Arc::new(|_, _| panic!("a bug")));
        assert!(get(address, "/_waf/bans").starts_with("HTTP/1.1 500 "));
        assert!(get(address, "/_waf/health").starts_with("HTTP/1.1 200 "));
        let totals = counting.totals();
        assert_eq!(totals.connection_errors[ConnectionError::Panic.index()], 1);
        plane.stop(Stop::Drain);
        assert_eq!(plane.join(PATIENCE), Ok(()));
    }

    /// EDGE-3: a bug in one stream is one 500 and a count; the other streams of its connection go
    /// on.
    #[test]
    fn a_panic_costs_its_stream_alone() {
        let never = |_, _| panic!("not ours");
        let h2c = [("WAF_LOOKUP_SOURCE", "off"), ("WAF_H2C", "on")];
        let handover = Arc::new(|_, _| panic!("a bug"));
        let (plane, address, counting) = plane_with(&h2c, handover, Arc::new(never));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let statuses = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
            let driver = tokio::spawn(connection);
            let mut statuses = Vec::new();
            for path in ["/_waf/bans", "/_waf/health"] {
                let uri = format!("http://a{path}");
                let request = http::Request::get(uri).body(()).unwrap();
                requests = requests.ready().await.unwrap();
                let (response, _) = requests.send_request(request, true).unwrap();
                statuses.push(response.await.unwrap().status().as_u16());
            }
            driver.abort();
            statuses
        });
        assert_eq!(statuses, [500, 200]);
        let totals = counting.totals();
        assert_eq!(totals.connection_errors[ConnectionError::Panic.index()], 1);
        plane.stop(Stop::Drain);
        assert_eq!(plane.join(PATIENCE), Ok(()));
    }

    /// LOOKUP-3: a request waits for a lookup that never ends no longer than `WAF_LOOKUP_TIMEOUT`,
    /// and no further request of the client waits for it again, nor asks.
    #[test]
    fn a_client_waits_once_for_a_lookup_that_never_ends() {
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let held = Arc::clone(&asked);
        let ask: Ask = Arc::new(move |_, answered| {
            held.lock().unwrap().push(answered);
            LookupStarted::Later
        });
        let settings = [
            ("WAF_LOOKUP_SOURCE", "url"),
            ("WAF_LOOKUP_URL", "http://127.0.0.1:9/{ip}"),
            ("WAF_LOOKUP_TIMEOUT", "200ms"),
            ("WAF_DENY_COUNTRIES", "DE"),
        ];
        let (plane, address, _) = plane_with(&settings, Arc::new(|_, _| panic!("not ours")), ask);
        let start = std::time::Instant::now();
        assert!(get(address, "/").starts_with("HTTP/1.1 502 "));
        assert!(start.elapsed() >= Duration::from_millis(200));
        for _ in 0..3 {
            assert!(get(address, "/").starts_with("HTTP/1.1 502 "));
        }
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 1);
        assert!(asked[0].is_some(), "the first one waited");
        plane.stop(Stop::Drain);
        assert_eq!(plane.join(PATIENCE), Ok(()));
    }

    /// An answer that never comes is a 503, not a request that hangs.
    #[test]
    fn a_dropped_answer_is_503() {
        let (plane, address, _) = plane(Arc::new(|_, _| weir_shared::handover::Step::Later));
        assert!(get(address, "/_waf/bans").starts_with("HTTP/1.1 503 "));
        plane.stop(Stop::Drain);
        assert_eq!(plane.join(PATIENCE), Ok(()));
    }
}
