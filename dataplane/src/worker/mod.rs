//! What the requests of one thread share: the rules, the client table, the upstream connections,
//! the counters, the clock. It knows nothing of connections and nothing of a single request.

pub mod accept;
pub mod clock;
pub mod counters;
pub mod events;
pub mod limits;
pub mod listeners;
pub mod request_id;
pub mod threads;

use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::{ArcSwap, Cache};
use crossbeam_channel::Sender;
use http::{HeaderName, HeaderValue};
use rustls::ServerConfig;
use tokio::sync::watch;
use weir_shared::ban::{Cause, Scope};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::handover::Handover;
use weir_shared::lookup::{Ask, LookupStarted, OnLookup};
use weir_shared::proof::AskNames;
use weir_shared::record::logged_headers;
use weir_shared::refusal_page::RefusalPage;
use weir_shared::settings::{LookupSource, RateLimitHeaders, Settings, Upstream};
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;

use crate::clients::known::Standing;
use crate::clients::table::Table;
use crate::conn::Downstream;
use crate::conn::deadlines::Timeouts;
use crate::conn::handshake::Handshakes;
use crate::http2::streams::Http2Connections;
use crate::message::fields::Stripped;
use crate::request::application::{ApplicationField, Voice};
use crate::request::identity::{ForgottenProxy, Who};
use crate::request::ladder::{self, Asked, Decision, Refusal, Rules, Verdict};
use crate::request::outcome::{Accounting, Responses};
use crate::request::problem::LastDocument;
use crate::upstream::bound::{LocalBound, UpstreamBound};
use crate::upstream::pool::{Name, Pool};
use crate::worker::clock::{CoarseClock, HttpDate};
use crate::worker::counters::{Counters, WorkerCounters};
use crate::worker::events::{Events, Records};
use crate::worker::request_id::RequestIds;

/// One set of settings, in the forms in which the data plane reads them: made once for all workers,
/// and replaced as a whole by a reload (RELOAD-2).
#[derive(Debug)]
pub struct InForce {
    /// Tells it from others, from 1.
    pub id: u64,
    /// The settings.
    pub settings: Arc<Settings>,
    /// What the ladder needs of them.
    pub rules: Arc<Rules>,
    /// Those of client connections.
    pub timeouts: Timeouts,
    /// The application, where it is named: its addresses are asked for.
    pub application: Option<Arc<Name>>,
    /// The header fields that are logged.
    pub logged_headers: Arc<[HeaderName]>,
    /// `WAF_APPLICATION_FIELD`
    pub application_field: Option<ApplicationField>,
    /// What became of its words lately, over all settings.
    pub voice: Arc<Voice>,
}

impl InForce {
    /// These settings, which take the place of those before.
    pub fn new(settings: Arc<Settings>, spared: Arc<Spared>, before: Option<&Self>) -> Self {
        // Relaxed: a number that nobody else has, and nothing hangs on it.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            rules: Arc::new(Rules::of(&settings, spared)),
            timeouts: Timeouts::of(&settings.timeouts),
            application: {
                let before = before.and_then(|before| before.application.as_ref());
                Name::of(&settings.upstream, before)
            },
            logged_headers: logged_headers(&settings.log.request_headers).into(),
            application_field: (settings.identity.application_field.as_ref())
                .map(ApplicationField::new),
            voice: before.map_or_else(Arc::default, |before| Arc::clone(&before.voice)),
            settings,
        }
    }

    /// The next request of this connection, or stream, has these settings.
    pub fn apply_to(&self, downstream: &Downstream) {
        downstream.take_settings(self.id, &self.settings.identity, &self.timeouts);
    }
}

/// The parts of the process that the data plane works with.
pub struct Parts {
    /// The settings.
    pub in_force: Arc<ArcSwap<InForce>>,
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
    /// Channel for log records; none where nobody takes them.
    pub records: Option<Records>,
    /// Channel for finished requests; none where nobody takes them.
    pub finished: Option<Sender<Vec<Finished>>>,
    /// The certificates; none where no TLS can be spoken.
    pub tls: Option<Arc<ArcSwap<ServerConfig>>>,
    /// The first port of https, where plain requests are sent to with `WAF_REDIRECT_HTTP`.
    pub https_port: Option<u16>,
    /// Answers requests under `/_waf/`.
    pub handover: Handover,
    /// Looks clients up; called only while lookups are on.
    pub ask: Ask,
    /// Asks for the names of addresses; called only where a crawler is verified by them.
    pub ask_names: AskNames,
    /// Who is not banned by the service itself, shared with the control plane.
    pub spared: Arc<Spared>,
    /// The bound on requests at the application.
    pub upstream: Arc<UpstreamBound>,
}

/// How the data plane is to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It has not begun: everything is ready, and nothing is accepted (RESTART-4).
    NotBegun,
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

/// What a worker has whatever the settings are.
#[derive(Clone)]
pub struct Lasting {
    /// The client table, shared by all workers.
    pub table: Arc<Table>,
    /// This worker's counters.
    pub counters: Arc<Counters>,
    /// Reports to the control plane.
    pub events: Rc<Events>,
    /// Time.
    pub clock: Rc<CoarseClock>,
    /// The page of a refusal, for people (TELL-1).
    pub refusal_page: Arc<ArcSwap<RefusalPage>>,
    /// Answers requests under `/_waf/`.
    pub handover: Handover,
    /// CLIENT-7, shared by all workers.
    pub forgotten_proxy: Arc<ForgottenProxy>,
    /// TLS handshakes.
    pub handshakes: Rc<Handshakes>,
    /// The connections that speak HTTP/2.
    pub http2: Rc<Http2Connections>,
    ask: Ask,
    ask_names: AskNames,
    snapshots: Arc<ArcSwap<Snapshot>>,
    stopped: watch::Receiver<Stop>,
    https_port: Option<u16>,
    upstream: Rc<LocalBound>,
}

/// The worker of one thread under the settings of this moment. A request asks for it once, at its
/// head, and keeps what it got to its end (RELOAD-2).
pub struct Current {
    lasting: Lasting,
    in_force: RefCell<Cache<Arc<ArcSwap<InForce>>, Arc<InForce>>>,
    worker: RefCell<Rc<Worker>>,
}

impl Current {
    /// A worker that has done nothing yet.
    pub fn new(
        parts: &Parts,
        counters: WorkerCounters,
        forgotten_proxy: Arc<ForgottenProxy>,
        stopped: watch::Receiver<Stop>,
    ) -> Rc<Self> {
        let lasting = Lasting {
            table: Arc::clone(&parts.table),
            counters: Arc::clone(&counters.counters),
            events: Rc::new(Events::new(
                parts.breaks.clone(),
                parts.records.clone(),
                parts.finished.clone(),
                counters,
            )),
            clock: CoarseClock::new(parts.clock.clone()),
            refusal_page: Arc::clone(&parts.refusal_page),
            handover: Arc::clone(&parts.handover),
            forgotten_proxy,
            ask: Arc::clone(&parts.ask),
            ask_names: Arc::clone(&parts.ask_names),
            snapshots: Arc::clone(&parts.snapshots),
            stopped,
            https_port: parts.https_port,
            handshakes: Rc::new(Handshakes::new(parts.tls.clone())),
            http2: Rc::default(),
            upstream: LocalBound::new(&parts.upstream),
        };
        Rc::new(Self {
            worker: RefCell::new(Worker::new(&lasting, &parts.in_force.load())),
            in_force: RefCell::new(Cache::new(Arc::clone(&parts.in_force))),
            lasting,
        })
    }

    /// The worker under the latest settings: one load, and mostly no more.
    pub fn worker(&self) -> Rc<Worker> {
        #[cfg(any(test, fuzzing))]
        crate::world::turns::turn();
        let mut in_force = self.in_force.borrow_mut();
        let latest = in_force.load();
        let mut held = self.worker.borrow_mut();
        if latest.id != held.in_force.id {
            let worker = Worker::new(&self.lasting, latest);
            worker.pool.replace(&held.pool);
            *held = worker;
        }
        Rc::clone(&held)
    }
}

/// Everything that a request of this thread needs, under one set of settings.
pub struct Worker {
    /// The settings.
    pub in_force: Arc<InForce>,
    /// The ladder's rules.
    pub rules: Arc<Rules>,
    /// The settings that decide how a request is counted and logged.
    pub accounting: Accounting,
    /// The fields that are taken from untrusted peers, as fields are compared with them.
    pub stripped: Stripped,
    /// `WAF_BAN_RESPONSE`, `WAF_DENY_RESPONSE`
    pub responses: Responses,
    /// `WAF_RATE_LIMIT_HEADERS`
    pub rate_limit_headers: RateLimitHeaders,
    /// Whether lookups are on, and requests counted by country and AS number.
    pub counts_origins: bool,
    /// Whether an anomaly threshold is set, and finished requests are reported.
    pub reports_finished: bool,
    /// `Host` for clients that sent none.
    pub upstream_host: HeaderValue,
    /// This worker's upstream connections.
    pub pool: Pool,
    /// Request ids.
    pub request_ids: RequestIds,
    /// The document of the last refusal.
    pub last_refusal: LastDocument,
    /// The date of responses over HTTP/1.
    pub date: HttpDate,
    /// The port of https that plain requests are sent to, if they are.
    pub redirect_to: Option<u16>,
    snapshots: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    lasting: Lasting,
}

/// What lasts is a part of the worker under each set of settings.
impl Deref for Worker {
    type Target = Lasting;

    fn deref(&self) -> &Lasting {
        &self.lasting
    }
}

impl Worker {
    fn new(lasting: &Lasting, in_force: &Arc<InForce>) -> Rc<Self> {
        let settings = &in_force.settings;
        let lasting = lasting.clone();
        Rc::new(Self {
            in_force: Arc::clone(in_force),
            rules: Arc::clone(&in_force.rules),
            accounting: Accounting::of(settings),
            stripped: Stripped::new(
                (settings.identity.strip.iter()).chain([&settings.identity.header]),
            ),
            responses: Responses::of(&settings.bans),
            rate_limit_headers: settings.limits.headers,
            counts_origins: settings.lookup.source != LookupSource::Off,
            reports_finished: settings.anomalies.is_on(),
            upstream_host: host(&settings.upstream),
            pool: Pool::new(
                settings,
                in_force.application.clone(),
                Rc::clone(&lasting.clock),
                Rc::clone(&lasting.upstream),
            ),
            request_ids: RequestIds::new(),
            last_refusal: LastDocument::default(),
            date: HttpDate::default(),
            redirect_to: lasting.https_port.filter(|_| settings.edge.redirect_http),
            snapshots: RefCell::new(Cache::new(Arc::clone(&lasting.snapshots))),
            lasting,
        })
    }

    /// Reads the latest snapshot: one load, no count of references.
    pub fn with_snapshot<R>(&self, read: impl FnOnce(&Snapshot) -> R) -> R {
        read(self.snapshots.borrow_mut().load())
    }

    /// Whether the service is stopping.
    pub fn is_draining(&self) -> bool {
        match *self.stopped.borrow() {
            Stop::NotBegun | Stop::No | Stop::HandOver => false,
            Stop::Announce | Stop::Drain | Stop::Abort => true,
        }
    }

    /// Whether another process accepts connections now.
    pub fn has_handed_over(&self) -> bool {
        *self.stopped.borrow() == Stop::HandOver
    }

    /// Asks the ladder; again where the snapshot was older than the client's last reset (LIMIT-6).
    /// Starts the lookup of a client that is to be asked about, unless the request is to wait for
    /// it.
    pub fn decide(&self, asked: &Asked<'_>, now: Now) -> Decision {
        loop {
            let decided = self.with_snapshot(|snapshot| {
                let mut decided = ladder::decide(&self.rules, snapshot, &self.table, asked, now);
                if let Ok(decision) = &mut decided {
                    decision.remembers_after = snapshot.rules.remembers_after();
                }
                decided
            });
            let Ok(decision) = decided else { continue };
            if decision.ask && decision.verdict != Verdict::AwaitLookup {
                self.look_up(asked.who.client, None);
            }
            if decision.claims.asks {
                self.ask_names(asked.who.address);
            }
            if decision.claims.notes {
                (self.rules.spared).spare_crawler(asked.who.client, now.wall_ms);
            }
            return decision;
        }
    }

    /// A request of a client has ended (SHARE-4, APP-5). `passed` is what enforce mode says of it,
    /// and its history what the client table holds.
    pub fn note_known(
        &self,
        client: Client,
        (passed, standing): (bool, Standing),
        after: Option<Duration>,
        now: Now,
    ) {
        if after.is_some() || self.in_force.application_field.is_some() {
            (self.table.known()).note(client, passed, standing, after, now);
        }
    }

    /// Whether a client is banned or denied, in enforce mode, as of the last tick.
    pub fn refuses(&self, who: Who) -> bool {
        let now_ms = self.clock.wall_ms();
        self.refusal(who, now_ms).is_some()
    }

    /// The decision on a client who is banned or denied, in enforce mode: on whatever is asked for.
    pub fn refusal(&self, who: Who, now_ms: u64) -> Option<(Decision, Refusal)> {
        if self.accounting.observe {
            return None;
        }
        let decision = self.with_snapshot(|snapshot| {
            ladder::refuses(&self.rules, snapshot, &self.table, who, now_ms)
        })?;
        match decision.verdict {
            Verdict::Refuse(refusal) => Some((decision, refusal)),
            _ => None,
        }
    }

    /// Whether a ban can follow now from what a client did, which may be long after the decision on
    /// its request.
    pub fn can_ban(&self, who: Who, cause: Cause, scope: Scope) -> bool {
        let target = |snapshot: &_| ladder::ban_target(&self.rules, snapshot, who, cause, scope);
        self.with_snapshot(target).is_some()
    }

    /// Asks for the names of an address; an answer that is there at once is attached at once.
    fn ask_names(&self, address: IpAddr) {
        let suffixes = self.with_snapshot(|snapshot| Arc::clone(snapshot.rules.suffixes()));
        if let Some(answer) = (self.ask_names)(address, &suffixes) {
            self.table.names(address, answer);
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
    let host = match upstream {
        Upstream::Tcp { .. } => upstream.to_string(),
        Upstream::Unix(_) => "localhost".to_owned(),
    };
    HeaderValue::try_from(host).unwrap_or_else(|_| HeaderValue::from_static("upstream"))
}
