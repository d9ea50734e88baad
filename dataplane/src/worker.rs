//! One worker is one thread: a runtime, a listener, an upstream pool. Nothing is shared but the client table, the
//! counters and the snapshots.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use ahash::RandomState;
use arc_swap::{ArcSwap, Cache};
use crossbeam_channel::Sender;
use dashmap::DashMap;
use http::{HeaderName, HeaderValue};
use socket2::{Domain, Protocol, SockRef, Socket as Socket2, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::LocalOptions;
use tokio::sync::watch;
use weir_shared::client::{Client, fold};
use weir_shared::clock::Clock;
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::handover::Handover;
use weir_shared::lookup::Ask;
use weir_shared::netblock::NetSet;
use weir_shared::settings::{
    BanResponse, BytesCount, LogRequests, LookupSource, RateLimitHeaders, Settings,
};
use weir_shared::snapshot::Snapshot;
use weir_shared::totals::{ConnectionError, OriginCounts, Totals};

use crate::clients::table::Table;
use crate::connection;
use crate::counters::Counters;
use crate::events::{Events, Records};
use crate::forward::headers::ClientField;
use crate::forward::pool::Pool;
use crate::forgotten_proxy::ForgottenProxy;
use crate::ladder::Rules;
use crate::clock::{CoarseClock, nanos};
use crate::request_id::RequestIds;
use crate::socket::{Downstream, Ending, Timeouts};

/// How often a worker looks at its deadlines, sends its log records and reads the wall clock anew.
const TICK: Duration = Duration::from_millis(50);
/// How long accepting rests after `accept` failed, for want of descriptors above all.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections the system queues for a listener.
const BACKLOG: i32 = 4096;

/// What the data plane needs from outside.
pub struct Parts {
    /// The settings.
    pub settings: Arc<Settings>,
    /// Time.
    pub clock: Clock,
    /// The client table, shared with the control plane.
    pub table: Arc<Table>,
    /// What the control plane publishes.
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    /// Where exceeded limits are reported.
    pub breaks: Sender<LimitExceeded>,
    /// Where log records go; none while they are off.
    pub records: Option<Records>,
    /// Where finished requests go; none while no anomaly threshold is set.
    pub finished: Option<Sender<Vec<Finished>>>,
    /// Who answers under `/_waf/`.
    pub handover: Handover,
    /// Who knows countries and AS numbers; called only while lookups are on.
    pub ask: Ask,
    /// Where everything is counted.
    pub counting: Counting,
}

/// The counters of all workers and the client table: what the metrics read.
#[derive(Clone)]
pub struct Counting {
    workers: Vec<(Arc<Counters>, Arc<Mutex<OriginCounts>>)>,
    table: Arc<Table>,
}

impl Counting {
    /// One set of counters a worker.
    pub fn new(workers: usize, table: Arc<Table>) -> Self {
        Self {
            workers: (0..workers).map(|_| Default::default()).collect(),
            table,
        }
    }

    /// Everything counted so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            clients: self.table.len(),
            clients_evicted: self.table.evicted(),
            ..Totals::default()
        };
        for (counters, _) in &self.workers {
            counters.fold_into(&mut totals);
        }
        totals
    }

    /// Requests by country and AS number since this was last asked. A worker's lock is held for a swap only.
    pub fn take_origins(&self) -> OriginCounts {
        let mut all = OriginCounts::default();
        for (_, origins) in &self.workers {
            let mut taken =
                std::mem::take(&mut *origins.lock().unwrap_or_else(PoisonError::into_inner));
            all.take_in(&mut taken);
        }
        all
    }
}

/// The listeners, bound before anything else is started so that a failure is told at once.
pub struct Bound {
    listeners: Vec<std::net::TcpListener>,
    address: SocketAddr,
}

/// Why the address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("WAF_LISTEN={address}: cannot be bound: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

impl Bound {
    /// Binds one listener a worker to the same address.
    ///
    /// # Errors
    /// [`BindError`] if the address is in use, also by another instance of this service: `SO_REUSEPORT` alone would let
    /// two share a port unnoticed, so the address is bound without it first.
    pub fn new(address: SocketAddr, workers: usize) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        if address.port() != 0 {
            drop(listener(address, false).map_err(failed)?);
        }
        let first = listener(address, true).map_err(failed)?;
        let address = first.local_addr().map_err(failed)?;
        let mut listeners = vec![first];
        for _ in 1..workers {
            listeners.push(listener(address, true).map_err(failed)?);
        }
        Ok(Self { listeners, address })
    }

    /// The address, with the port that the system chose where none was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

fn listener(address: SocketAddr, reuse_port: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket2::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// How the data plane is to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It runs.
    No,
    /// Listeners close, running answers end.
    Drain,
    /// Everything ends now.
    Abort,
}

/// The running data plane.
pub struct DataPlane {
    threads: Vec<JoinHandle<()>>,
    stop: watch::Sender<Stop>,
}

impl DataPlane {
    /// Starts one thread for each bound listener.
    ///
    /// # Errors
    /// What the system said when a thread or its runtime could not be made.
    pub fn start(bound: Bound, parts: Parts) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(Stop::No);
        let connections = Arc::new(ConnectionLimits::new(&parts.settings));
        let forgotten_proxy = Arc::new(ForgottenProxy::default());
        let counting = parts.counting.workers.clone();
        let parts = Arc::new(parts);
        let mut threads = Vec::new();
        for (index, (listener, (counters, origins))) in
            bound.listeners.into_iter().zip(counting).enumerate()
        {
            let (parts, connections, forgotten_proxy, mut stopped) = (
                Arc::clone(&parts),
                Arc::clone(&connections),
                Arc::clone(&forgotten_proxy),
                stopped.clone(),
            );
            let thread = std::thread::Builder::new().name(format!("weir-worker-{index}"));
            threads.push(thread.spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                match runtime
                    .enable_io()
                    .enable_time()
                    .build_local(LocalOptions::default())
                {
                    Ok(runtime) => runtime.block_on(async {
                        let worker = Worker::new(
                            &parts,
                            counters,
                            origins,
                            connections,
                            forgotten_proxy,
                            stopped.clone(),
                        );
                        worker.run(listener, &mut stopped).await;
                    }),
                    Err(error) => tracing::error!(%error, "a worker has no runtime"),
                }
            })?);
        }
        Ok(Self { threads, stop })
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

    /// Waits for the workers; false if one of them panicked.
    pub fn join(self) -> bool {
        // Every thread is waited for, also behind one that panicked.
        let panicked = self
            .threads
            .into_iter()
            .map(JoinHandle::join)
            .filter(Result::is_err)
            .count();
        panicked == 0
    }
}

/// The bounds on connections, across workers. Touched at accept and close only.
pub struct ConnectionLimits {
    open: AtomicUsize,
    by_client: DashMap<Client, usize, RandomState>,
    max: usize,
    max_per_client: usize,
}

impl ConnectionLimits {
    fn new(settings: &Settings) -> Self {
        Self {
            open: AtomicUsize::new(0),
            by_client: DashMap::default(),
            max: settings.connections.max,
            max_per_client: settings.connections.max_per_client,
        }
    }

    /// Takes a slot; the second bound is not for trusted proxies.
    fn enter(
        self: &Arc<Self>,
        client: Client,
        trusted: bool,
    ) -> Result<ConnectionSlot, ConnectionError> {
        // Acquire and release are not needed: the number alone decides, no other memory hangs on it.
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(ConnectionError::TooMany);
        }
        let mut slot = ConnectionSlot {
            connections: Arc::clone(self),
            client: None,
        };
        if !trusted {
            let mut count = self.by_client.entry(client).or_insert(0);
            if *count >= self.max_per_client {
                return Err(ConnectionError::TooManyClient);
            }
            *count += 1;
            slot.client = Some(client);
        }
        Ok(slot)
    }
}

/// A slot among the connections, given back when dropped.
struct ConnectionSlot {
    connections: Arc<ConnectionLimits>,
    client: Option<Client>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(client) = self.client {
            if let Some(mut count) = self.connections.by_client.get_mut(&client) {
                *count = count.saturating_sub(1);
            }
            self.connections
                .by_client
                .remove_if(&client, |_, count| *count == 0);
        }
    }
}

/// Everything a request of this thread needs.
pub struct Worker {
    /// The ladder's rules.
    pub rules: Rules,
    /// `WAF_MODE=observe`
    pub observe: bool,
    /// `WAF_TRUSTED_PROXIES`
    pub trusted_proxies: NetSet,
    /// `WAF_CLIENT_IP_HEADER`
    pub client_ip_header: HeaderName,
    /// The same, as fields are compared with it.
    pub client_field: ClientField,
    /// `WAF_BAN_RESPONSE`
    pub ban_response: BanResponse,
    /// `WAF_RATE_LIMIT_HEADERS`
    pub rate_limit_headers: RateLimitHeaders,
    /// `WAF_BYTES_COUNT`
    pub bytes_count: BytesCount,
    /// `WAF_LOG_REQUESTS`
    pub log_requests: LogRequests,
    /// Whether lookups are on, and requests counted by country and AS number.
    pub counts_origins: bool,
    /// `WAF_WEBSOCKET_IDLE_TIMEOUT`
    pub websocket_idle_timeout: Option<Duration>,
    /// `Host` for clients that sent none.
    pub upstream_host: HeaderValue,
    /// The client table, shared by all workers.
    pub table: Arc<Table>,
    /// This worker's counters.
    pub counters: Arc<Counters>,
    /// The way up.
    pub events: Events,
    /// This worker's upstream connections.
    pub pool: Pool,
    /// Time.
    pub clock: Rc<CoarseClock>,
    /// Who answers under `/_waf/`.
    pub handover: Handover,
    /// Who knows countries and AS numbers.
    pub ask: Ask,
    /// `WAF_LOOKUP_TIMEOUT`
    pub lookup_timeout: Duration,
    /// CLIENT-7, shared by all workers.
    pub forgotten_proxy: Arc<ForgottenProxy>,
    /// Request ids.
    pub ids: RequestIds,
    snapshots: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    stopped: watch::Receiver<Stop>,
    timeouts: Timeouts,
    limits: Arc<ConnectionLimits>,
    connections: RefCell<Vec<Weak<Downstream>>>,
}

impl Worker {
    fn new(
        parts: &Parts,
        counters: Arc<Counters>,
        origins: Arc<Mutex<OriginCounts>>,
        limits: Arc<ConnectionLimits>,
        forgotten_proxy: Arc<ForgottenProxy>,
        stopped: watch::Receiver<Stop>,
    ) -> Rc<Self> {
        let settings = &parts.settings;
        let clock = CoarseClock::new(parts.clock.clone());
        let host = if settings.upstream.host.contains(':') {
            format!("[{}]:{}", settings.upstream.host, settings.upstream.port)
        } else {
            format!("{}:{}", settings.upstream.host, settings.upstream.port)
        };
        Rc::new(Self {
            rules: Rules::of(settings),
            observe: settings.observe,
            trusted_proxies: settings.identity.trusted_proxies.clone(),
            client_ip_header: settings.identity.header.clone(),
            client_field: ClientField::new(&settings.identity.header),
            ban_response: settings.bans.response,
            rate_limit_headers: settings.limits.headers,
            bytes_count: settings.limits.bytes_count,
            log_requests: settings.log.requests,
            counts_origins: settings.lookup.source != LookupSource::Off,
            websocket_idle_timeout: settings.timeouts.websocket_idle,
            upstream_host: HeaderValue::try_from(host)
                .unwrap_or_else(|_| HeaderValue::from_static("upstream")),
            table: Arc::clone(&parts.table),
            events: Events::new(
                parts.breaks.clone(),
                parts.records.clone(),
                parts.finished.clone(),
                Arc::clone(&counters),
                origins,
            ),
            counters,
            pool: Pool::new(settings, Rc::clone(&clock)),
            clock,
            handover: Arc::clone(&parts.handover),
            ask: Arc::clone(&parts.ask),
            lookup_timeout: settings.lookup.timeout,
            forgotten_proxy,
            ids: RequestIds::new(),
            snapshots: RefCell::new(Cache::new(Arc::clone(&parts.snapshots))),
            stopped,
            timeouts: Timeouts {
                head_ns: nanos(settings.timeouts.header),
                body_ns: nanos(settings.timeouts.body),
                idle_ns: nanos(settings.timeouts.keepalive),
            },
            limits,
            connections: RefCell::default(),
        })
    }

    /// Reads the latest snapshot: one load, no count of references.
    pub fn with_snapshot<R>(&self, read: impl FnOnce(&Snapshot) -> R) -> R {
        read(self.snapshots.borrow_mut().load())
    }

    /// Whether the service is stopping.
    pub fn is_draining(&self) -> bool {
        *self.stopped.borrow() != Stop::No
    }

    /// Accepts until told to stop, then waits for the connections to end.
    async fn run(
        self: Rc<Self>,
        listener: std::net::TcpListener,
        stopped: &mut watch::Receiver<Stop>,
    ) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "a worker cannot listen"),
        };
        tokio::task::spawn_local(Rc::clone(&self).tick());
        {
            // Dropping `accepting` closes the listener.
            let mut accepting = pin!(Rc::clone(&self).accept(listener));
            let mut told = pin!(stopped.wait_for(|stop| *stop != Stop::No));
            poll_fn(|cx| {
                if told.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                accepting.as_mut().poll(cx)
            })
            .await;
        }
        self.finish_all(Ending::Drain);
        while self.has_connections() {
            let aborted =
                tokio::time::timeout(TICK, stopped.wait_for(|stop| *stop == Stop::Abort)).await;
            if aborted.is_ok() {
                self.finish_all(Ending::Abort);
                // One turn of the runtime lets every connection see it.
                tokio::time::sleep(TICK).await;
                break;
            }
            // A connection that was accepted meanwhile drains too.
            self.finish_all(Ending::Drain);
        }
        self.events.flush();
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) => {
                    self.counters.connection_error(ConnectionError::Accept);
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Starts serving a connection, or closes it at once where a bound is reached.
    fn admit(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        let peer = fold(peer.ip());
        let trusted = self.trusted_proxies.contains(peer);
        let slot = match self.limits.enter(Client::of(peer), trusted) {
            Ok(slot) => slot,
            Err(kind) => return self.counters.connection_error(kind),
        };
        // A socket that refuses the option still works, only later.
        let _ = SockRef::from(&stream).set_tcp_nodelay(true);
        let downstream =
            Downstream::new(stream, peer, trusted, Rc::clone(&self.clock), self.timeouts);
        self.connections
            .borrow_mut()
            .push(Rc::downgrade(&downstream));
        self.counters.connection_opened();
        let worker = Rc::clone(self);
        tokio::task::spawn_local(async move {
            connection::serve(Rc::clone(&worker), downstream).await;
            worker.counters.connection_closed();
            drop(slot);
        });
    }

    /// The worker's heartbeat: wall clock, deadlines, idle upstream connections, log records.
    async fn tick(self: Rc<Self>) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.clock.tick();
            self.sweep();
            self.pool.sweep();
            self.events.flush();
        }
    }

    fn sweep(&self) {
        self.connections.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else {
                return false;
            };
            connection.sweep();
            true
        });
    }

    fn finish_all(&self, ending: Ending) {
        for connection in self.connections.borrow().iter().filter_map(Weak::upgrade) {
            connection.finish(ending);
        }
    }

    fn has_connections(&self) -> bool {
        self.connections
            .borrow()
            .iter()
            .any(|connection| connection.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use weir_shared::lookup::LookupStarted;

    use super::*;

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
        let bound = Bound::new(settings.listen, settings.workers).unwrap();
        let address = bound.address();
        let table = Arc::new(Table::default());
        let counting = Counting::new(1, Arc::clone(&table));
        let (breaks, _) = crossbeam_channel::bounded(1);
        let parts = Parts {
            settings,
            clock: Clock::system(),
            table,
            snapshots: Arc::default(),
            breaks,
            records: None,
            finished: None,
            handover,
            ask,
            counting: counting.clone(),
        };
        (DataPlane::start(bound, parts).unwrap(), address, counting)
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
        assert!(plane.join());
    }

    /// LOOKUP-3: a request waits for a lookup that never ends no longer than `WAF_LOOKUP_TIMEOUT`, and no further request
    /// of the client waits for it again, nor asks.
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
        assert!(plane.join());
    }

    /// An answer that never comes is a 503, not a request that hangs.
    #[test]
    fn a_dropped_answer_is_503() {
        let (plane, address, _) = plane(Arc::new(|_, _| weir_shared::handover::Step::Later));
        assert!(get(address, "/_waf/bans").starts_with("HTTP/1.1 503 "));
        plane.stop(Stop::Drain);
        assert!(plane.join());
    }

    /// SETTING-2: a second instance on the same address is told, although the workers share their port.
    #[test]
    fn a_port_in_use_is_noticed() {
        let bound = Bound::new(([127, 0, 0, 1], 0).into(), 2).unwrap();
        let error = Bound::new(bound.address(), 2)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!(
                "WAF_LISTEN={}: cannot be bound: ",
                bound.address()
            )),
            "{error}"
        );
    }
}
