//! What the requests of one thread share: the rules, the client table, the upstream connections,
//! the counters, the clock. It knows nothing of connections and nothing of a single request.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Cache};
use crossbeam_channel::Sender;
use http::{HeaderName, HeaderValue};
use tokio::sync::watch;
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::handover::Handover;
use weir_shared::lookup::{Ask, LookupStarted, OnLookup};
use weir_shared::netblock::NetSet;
use weir_shared::refusal_page::RefusalPage;
use weir_shared::settings::{BanResponse, LookupSource, RateLimitHeaders, Settings, Upstream};
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;

use crate::clients::table::Table;
use crate::clock::{CoarseClock, HttpDate};
use crate::counters::{Counters, WorkerCounters};
use crate::events::{Events, Records};
use crate::forgotten_proxy::ForgottenProxy;
use crate::headers::ClientField;
use crate::ladder::{self, Asked, Decision, Refusal, Rules, Verdict};
use crate::outcome::Accounting;
use crate::request_id::RequestIds;
use crate::upstream::pool::Pool;

/// The parts of the process that the data plane works with.
pub struct Parts {
    /// The settings.
    pub settings: Arc<Settings>,
    /// Time.
    pub clock: Clock,
    /// The client table, shared with the control plane.
    pub table: Arc<Table>,
    /// The snapshots that the control plane publishes.
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    /// The page of a refusal; the control plane reads its file.
    pub refusal_page: Arc<ArcSwap<RefusalPage>>,
    /// Channel for exceeded limits.
    pub breaks: Sender<LimitExceeded>,
    /// Channel for log records; none while they are off.
    pub records: Option<Records>,
    /// Channel for finished requests; none while no anomaly threshold is set.
    pub finished: Option<Sender<Vec<Finished>>>,
    /// Answers requests under `/_waf/`.
    pub handover: Handover,
    /// Looks clients up; called only while lookups are on.
    pub ask: Ask,
    /// Who is not banned by the service itself, shared with the control plane.
    pub spared: Arc<Spared>,
}

/// How the data plane is to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It runs.
    No,
    /// Everything is served; health says that the service is going (ALIVE-4).
    Announce,
    /// The listeners are another process's from now on: nothing more is accepted, each connection
    /// ends with its next response, and those that stay idle end after a while (RESTART-1).
    HandOver,
    /// Listeners close, running responses end.
    Drain,
    /// Everything ends now.
    Abort,
}

/// Head of a request at most; larger is 431.
pub const MAX_HEAD: usize = 32 * 1024;

/// Everything a request of this thread needs.
pub struct Worker {
    /// The ladder's rules.
    pub rules: Rules,
    /// The settings that decide how a request is counted and logged.
    pub accounting: Accounting,
    /// `WAF_TRUSTED_PROXIES`
    pub trusted_proxies: NetSet,
    /// `WAF_CLIENT_IP_HEADER`
    pub client_ip_header: HeaderName,
    /// The same, as fields are compared with it.
    pub client_field: ClientField,
    /// `WAF_BAN_RESPONSE`
    pub ban_response: BanResponse,
    /// `WAF_DENY_RESPONSE`
    pub deny_response: BanResponse,
    /// The page of a refusal, for people (TELL-1).
    pub refusal_page: Arc<ArcSwap<RefusalPage>>,
    /// `WAF_RATE_LIMIT_HEADERS`
    pub rate_limit_headers: RateLimitHeaders,
    /// Whether lookups are on, and requests counted by country and AS number.
    pub counts_origins: bool,
    /// `WAF_WEBSOCKET_IDLE_TIMEOUT`
    pub websocket_idle_timeout: Option<Duration>,
    /// `WAF_LOOKUP_TIMEOUT`
    pub lookup_timeout: Duration,
    /// `Host` for clients that sent none.
    pub upstream_host: HeaderValue,
    /// The client table, shared by all workers.
    pub table: Arc<Table>,
    /// This worker's counters.
    pub counters: Arc<Counters>,
    /// Reports to the control plane.
    pub events: Events,
    /// This worker's upstream connections.
    pub pool: Pool,
    /// Time.
    pub clock: Rc<CoarseClock>,
    /// Answers requests under `/_waf/`.
    pub handover: Handover,
    /// CLIENT-7, shared by all workers.
    pub forgotten_proxy: Arc<ForgottenProxy>,
    /// Request ids.
    pub request_ids: RequestIds,
    /// The date of responses that hyper does not write.
    pub date: HttpDate,
    /// What a connection reads into that holds no buffer of its own.
    read_buffer: RefCell<Vec<u8>>,
    ask: Ask,
    snapshots: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    stopped: watch::Receiver<Stop>,
    has_handed_over: Cell<bool>,
}

impl Worker {
    /// A worker that has done nothing yet.
    pub fn new(
        parts: &Parts,
        own: WorkerCounters,
        forgotten_proxy: Arc<ForgottenProxy>,
        stopped: watch::Receiver<Stop>,
    ) -> Rc<Self> {
        let settings = &parts.settings;
        let clock = CoarseClock::new(parts.clock.clone());
        let events = Events::new(
            parts.breaks.clone(),
            parts.records.clone(),
            parts.finished.clone(),
            own.clone(),
        );
        Rc::new(Self {
            rules: Rules::of(settings, Arc::clone(&parts.spared)),
            accounting: Accounting::of(settings),
            trusted_proxies: settings.identity.trusted_proxies.clone(),
            client_ip_header: settings.identity.header.clone(),
            client_field: ClientField::new(&settings.identity.header),
            ban_response: settings.bans.response,
            deny_response: settings
                .bans
                .deny_response
                .unwrap_or(settings.bans.response),
            refusal_page: Arc::clone(&parts.refusal_page),
            rate_limit_headers: settings.limits.headers,
            counts_origins: settings.lookup.source != LookupSource::Off,
            websocket_idle_timeout: settings.timeouts.websocket_idle,
            lookup_timeout: settings.lookup.timeout,
            upstream_host: host(&settings.upstream),
            table: Arc::clone(&parts.table),
            counters: own.counters,
            events,
            pool: Pool::new(settings, Rc::clone(&clock)),
            clock,
            handover: Arc::clone(&parts.handover),
            forgotten_proxy,
            request_ids: RequestIds::new(),
            date: HttpDate::default(),
            read_buffer: RefCell::default(),
            ask: Arc::clone(&parts.ask),
            snapshots: RefCell::new(Cache::new(Arc::clone(&parts.snapshots))),
            stopped,
            has_handed_over: Cell::new(false),
        })
    }

    /// Reads the latest snapshot: one load, no count of references.
    pub fn with_snapshot<R>(&self, read: impl FnOnce(&Snapshot) -> R) -> R {
        read(self.snapshots.borrow_mut().load())
    }

    /// Lends a buffer to read a head into, one for all connections: for as long as `read` runs.
    pub fn with_read_buffer<R>(&self, read: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut buffer = self.read_buffer.borrow_mut();
        buffer.resize(MAX_HEAD, 0);
        read(&mut buffer)
    }

    /// Whether the service is stopping.
    pub fn is_draining(&self) -> bool {
        match *self.stopped.borrow() {
            Stop::No | Stop::HandOver => false,
            Stop::Announce | Stop::Drain | Stop::Abort => true,
        }
    }

    /// Whether the stop is a hand-over; each request that is begun from now on is then the last of
    /// its connection.
    pub fn hands_over(&self) -> bool {
        let hands_over = *self.stopped.borrow() == Stop::HandOver;
        self.has_handed_over.set(hands_over);
        hands_over
    }

    /// Whether another process accepts connections now.
    pub const fn has_handed_over(&self) -> bool {
        self.has_handed_over.get()
    }

    /// Asks the ladder; again where the snapshot was older than the client's last reset (LIMIT-6).
    /// Starts the lookup of a client that is to be asked about, unless the request is to wait for
    /// it.
    pub fn decide(&self, asked: &Asked<'_>, now: Now) -> Decision {
        loop {
            let decided = self.with_snapshot(|snapshot| {
                ladder::decide(&self.rules, snapshot, &self.table, asked, now)
            });
            let Ok(decision) = decided else { continue };
            if decision.ask && decision.verdict != Verdict::AwaitLookup {
                self.look_up(asked.client, None);
            }
            return decision;
        }
    }

    /// Whether a client is banned or denied, in enforce mode, as of the last tick.
    pub fn refuses(&self, client: Client, address: IpAddr) -> bool {
        let now_ms = self.clock.wall_ms();
        self.refusal(client, address, now_ms).is_some()
    }

    /// The decision on a client who is banned or denied, in enforce mode: on whatever is asked for.
    pub fn refusal(
        &self,
        client: Client,
        address: IpAddr,
        now_ms: u64,
    ) -> Option<(Decision, Refusal)> {
        if self.accounting.observe {
            return None;
        }
        let who = (client, address);
        let decision = self.with_snapshot(|snapshot| {
            ladder::refuses(&self.rules, snapshot, &self.table, who, now_ms)
        })?;
        match decision.verdict {
            Verdict::Refuse(refusal) => Some((decision, refusal)),
            _ => None,
        }
    }

    /// Asks about a client; an answer that is there at once is attached at once. True if one is
    /// still to come.
    pub fn look_up(&self, client: Client, on_lookup: Option<OnLookup>) -> bool {
        match (self.ask)(client, on_lookup) {
            LookupStarted::Known { lookup, until_ns } => {
                self.table.answer(client, lookup, until_ns);
            }
            LookupStarted::NotNow { again_ns } => self.table.ask_again(client, again_ns),
            LookupStarted::Later => return true,
        }
        false
    }
}

/// The application as a `Host` field names it.
fn host(upstream: &Upstream) -> HeaderValue {
    let Upstream { host, port } = upstream;
    let host = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    HeaderValue::try_from(host).unwrap_or_else(|_| HeaderValue::from_static("upstream"))
}
