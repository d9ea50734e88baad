//! The service of one history: a worker with its acceptor, and the ends of its channels, which the
//! control plane has otherwise.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use arc_swap::ArcSwap;
use bytes::Bytes;
use crossbeam_channel::Receiver;
use http::{HeaderMap, StatusCode};
use tokio::sync::watch;
use weir_shared::ban::Cause;
use weir_shared::client::Client;
use weir_shared::clock::{Clock, ManualClock};
use weir_shared::handover::{Handover, OwnResponse, Step};
use weir_shared::lookup::{Ask, LookupStarted};
use weir_shared::netblock::Netblock;
use weir_shared::record::Batch;
use weir_shared::settings::Settings;
use weir_shared::snapshot::{BanIndex, BanSpan, Snapshot};
use weir_shared::totals::Totals;
use weir_shared::verdict::{Action, History};

use crate::clients::entry::Entry;
use crate::clients::table::Table;
use crate::conn::proxy_protocol::Named;
use crate::request::identity::ForgottenProxy;
use crate::upstream::bound::UpstreamBound;
use crate::worker::accept::Acceptor;
use crate::worker::counters::WorkerCounters;
use crate::worker::events::Records;
use crate::worker::limits::ConnectionLimits;
use crate::worker::listeners::{Accepted, of_any_kind};
use crate::worker::{Current, InForce, Parts, Stop};

/// The worker's heartbeat, milliseconds.
pub const BEAT_MS: u64 = 50;
/// When every history begins, milliseconds since 1970.
const START_MS: u64 = 1_795_276_800_000;
/// Somebody who is let in, unless banned.
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Somebody whom the settings deny.
pub const DENIED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
/// A trusted proxy.
pub const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Whom a proxy names.
pub const NAMED: &str = "203.0.113.1";
/// Whom a proxy names who is banned.
pub const NAMED_BANNED: &str = "203.0.114.1";

/// The time-outs of all settings, each another, seconds.
pub struct Seconds {
    pub head: u64,
    pub body: u64,
    pub idle: u64,
    pub send: u64,
    pub upstream: u64,
    pub websocket: u64,
}

/// Them.
pub const SECONDS: Seconds = Seconds {
    head: 5,
    body: 6,
    idle: 9,
    send: 7,
    upstream: 8,
    websocket: 11,
};

/// What the settings of a room differ in.
pub const VARIANTS: [&[(&str, &str)]; 6] = [
    &[],
    &[("WAF_RATE_LIMIT_PER_MINUTE", "5")],
    &[("WAF_MIN_RATE", "off"), ("WAF_MAX_BODY_SIZE", "off")],
    &[("WAF_BAN_RESPONSE", "drop")],
    &[("WAF_MODE", "observe")],
    &[
        ("WAF_RATE_LIMIT_HEADERS", "always"),
        ("WAF_ON_LIMIT", "refuse"),
    ],
];
/// The one in which nobody is refused.
pub const OBSERVES: usize = 4;

/// The settings that a history may have, with the application at this path.
pub fn settings(upstream: &Path) -> Vec<Arc<Settings>> {
    let seconds = |seconds: u64| format!("{seconds}s");
    let base = [
        ("WAF_UPSTREAM", format!("unix:{}", upstream.display())),
        ("WAF_WORKERS", "1".to_owned()),
        ("WAF_LOOKUP_SOURCE", "off".to_owned()),
        ("WAF_LOG_REFUSED_RATE", "off".to_owned()),
        ("WAF_TRUSTED_PROXIES", "10.0.0.0/8".to_owned()),
        ("WAF_DENY_NETS", "198.51.100.0/24".to_owned()),
        ("WAF_BAN_IPV4_PREFIX", "32".to_owned()),
        ("WAF_MAX_BODY_SIZE", "150K".to_owned()),
        ("WAF_HEADER_TIMEOUT", seconds(SECONDS.head)),
        ("WAF_BODY_TIMEOUT", seconds(SECONDS.body)),
        ("WAF_KEEPALIVE_TIMEOUT", seconds(SECONDS.idle)),
        ("WAF_SEND_TIMEOUT", seconds(SECONDS.send)),
        ("WAF_UPSTREAM_TIMEOUT", seconds(SECONDS.upstream)),
        ("WAF_WEBSOCKET_IDLE_TIMEOUT", seconds(SECONDS.websocket)),
    ];
    let load = |variant: &&[(&str, &str)]| {
        let own = variant
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        let mut all: std::collections::BTreeMap<_, _> = base.iter().cloned().collect();
        all.extend(own);
        let all = all
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        weir_shared::settings::load(all)
            .ok()
            .map(|read| Arc::new(read.settings))
    };
    VARIANTS.iter().filter_map(load).collect()
}

/// A request as it was logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// The answer's status.
    pub status: Option<u16>,
    /// How it ended.
    pub action: Action,
    /// Bytes of its body.
    pub request_bytes: u64,
    /// Bytes of the answer's.
    pub response_bytes: u64,
}

/// The worker of one history.
pub struct Service {
    clock: Arc<ManualClock>,
    current: Rc<Current>,
    acceptor: Rc<Acceptor>,
    table: Arc<Table>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    in_force: Arc<ArcSwap<InForce>>,
    stop: watch::Sender<Stop>,
    /// The way to its end, once it is told to stop.
    ending: Option<Pin<Box<dyn Future<Output = ()>>>>,
    batches: Receiver<Batch>,
    counters: WorkerCounters,
    /// Requests that a bug ended.
    pub panics: Arc<AtomicU64>,
}

impl Service {
    /// One that runs under these settings, and has done nothing.
    pub fn new(settings: &Arc<Settings>) -> Self {
        let (clock, manual) = Clock::manual(START_MS);
        let table = Arc::new(Table::default());
        let snapshots: Arc<ArcSwap<Snapshot>> = Arc::default();
        let in_force = InForce::new(Arc::clone(settings), Arc::default(), None);
        let in_force = Arc::new(ArcSwap::from_pointee(in_force));
        let (full, batches) = crossbeam_channel::bounded(64);
        let (_, emptied) = crossbeam_channel::bounded(1);
        let (breaks, _) = crossbeam_channel::bounded(1);
        let panics = Arc::new(AtomicU64::new(0));
        let ask: Ask = Arc::new(|_, _| LookupStarted::NotNow { again_ns: u64::MAX });
        let parts = Parts {
            in_force: Arc::clone(&in_force),
            clock,
            table: Arc::clone(&table),
            snapshots: Arc::clone(&snapshots),
            refusal_page: Arc::default(),
            breaks,
            records: Some(Records {
                batches: full,
                emptied,
                refused: Arc::default(),
            }),
            finished: None,
            tls: None,
            https_port: None,
            handover: handover(Arc::clone(&panics)),
            ask,
            ask_names: Arc::new(|_, _| None),
            spared: Arc::default(),
            upstream: Arc::new(UpstreamBound::new(&settings.connections)),
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let counters = WorkerCounters {
            counters: Arc::default(),
            origins: Arc::default(),
        };
        let forgotten = Arc::new(ForgottenProxy::new(Arc::default()));
        let current = Current::new(&parts, counters.clone(), forgotten, stopped);
        let limits = Arc::new(ConnectionLimits::new(&settings.connections, 1));
        let acceptor = Acceptor::new(0, Rc::clone(&current), limits);
        Self {
            clock: manual,
            current,
            acceptor,
            table,
            snapshots,
            in_force,
            stop,
            ending: None,
            batches,
            counters,
            panics,
        }
    }

    /// Accepts a connection; none where it is closed at once.
    pub fn accept(
        &self,
        socket: UnixStream,
        peer: IpAddr,
    ) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        let stream = of_any_kind(OwnedFd::from(socket)).ok()?;
        let peer = Some(peer);
        let accepted = Accepted { stream, peer };
        let serving = self
            .acceptor
            .admitted(accepted, false, Named::peer(Bytes::new()))?;
        Some(Box::pin(serving))
    }

    /// Who is banned from now on, and nobody else.
    pub fn ban(&self, banned: &[IpAddr]) {
        let mut index = BanIndex::default();
        for address in banned {
            let span = BanSpan {
                end_ms: u64::MAX,
                length_ms: 1000,
                cause: Cause::Admin,
                is_automatic: false,
            };
            index.set(Netblock::masked(*address, 32), Some(span));
        }
        let generation = self.snapshots.load().generation + 1;
        self.snapshots.store(Arc::new(Snapshot {
            generation,
            bans: Arc::new(index),
            can_ban: true,
            rules: Arc::default(),
        }));
    }

    /// These settings hold from now on.
    pub fn reload(&self, settings: &Arc<Settings>) {
        let in_force = InForce::new(Arc::clone(settings), Arc::default(), None);
        self.in_force.store(Arc::new(in_force));
    }

    /// It is told to stop.
    pub fn stop(&mut self, how: Stop) {
        let how = harder(*self.stop.borrow(), how);
        let _ = self.stop.send(how);
        if self.ending.is_none() {
            let (acceptor, stopped) = (Rc::clone(&self.acceptor), self.stop.subscribe());
            self.ending = Some(Box::pin(async move { acceptor.end(stopped).await }));
        }
    }

    /// Goes on to its end.
    pub fn turn(&mut self) {
        if let Some(ending) = &mut self.ending {
            let mut cx = Context::from_waker(Waker::noop());
            // It is asked again at every turn; once it has ended, nothing is left to do.
            if ending.as_mut().poll(&mut cx).is_ready() {
                self.ending = Some(Box::pin(std::future::pending()));
            }
        }
    }

    /// So many milliseconds have passed; the worker has beaten as often as it does in them.
    pub fn advance(&self, milliseconds: u64) {
        let mut left = milliseconds;
        while left > 0 {
            let next = left.min(BEAT_MS);
            left -= next;
            self.clock.advance_ms(next);
            self.acceptor.beat();
        }
    }

    /// The requests that were logged since this was last asked.
    pub fn logged(&self) -> Vec<Logged> {
        let worker = self.current.worker();
        worker.events.flush(worker.clock.now());
        let mut all = Vec::new();
        while let Ok(batch) = self.batches.try_recv() {
            let text = |text| {
                let bytes = batch.text(text).unwrap_or_default();
                String::from_utf8_lossy(bytes).into_owned()
            };
            all.extend(batch.records().map(|(record, ..)| Logged {
                method: text(record.method),
                path: text(record.path),
                status: record.status.map(|status| status.as_u16()),
                action: record.action,
                request_bytes: record.request_bytes,
                response_bytes: record.response_bytes,
            }));
        }
        all
    }

    /// Everything that was counted.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters.counters.fold_into(&mut totals);
        totals
    }

    /// Requests of this client that are under way.
    pub fn under_way(&self, client: IpAddr) -> u32 {
        let of_entry = self
            .table
            .get(Client::of(client), |entry| entry.under_way());
        of_entry.unwrap_or(0)
    }

    /// What this client was charged: requests that passed, and bytes.
    pub fn charged(&self, client: IpAddr) -> (u64, u64) {
        let now_ms = self.current.worker().clock.wall_ms();
        let of_entry = |entry: &mut Entry| (entry.passed, entry.byte_counts(now_ms).day);
        let charged = self.table.get(Client::of(client), of_entry);
        charged.unwrap_or_default()
    }

    /// Whether a connection is held.
    pub fn has_connections(&self) -> bool {
        self.acceptor.has_connections()
    }

    /// Pipes in use.
    pub fn pipes(&self) -> usize {
        self.current.worker().pool.buffers.pipes.in_use()
    }
}

/// How it stops that was told this way before: nobody tells it to stop in a gentler one.
pub const fn harder(before: Stop, how: Stop) -> Stop {
    match (before, how) {
        (Stop::Abort, _) | (Stop::Drain, Stop::HandOver) => before,
        _ => how,
    }
}

/// Answers for the control plane; one path is a bug.
fn handover(panics: Arc<AtomicU64>) -> Handover {
    Arc::new(move |request, _| {
        let answer = |status| {
            Step::Done(OwnResponse {
                status,
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"own"),
                action: Action::Answered,
                history: History::Passed,
            })
        };
        match (request.path.as_str(), request.body) {
            ("/_waf/panics", _) => {
                panics.fetch_add(1, Ordering::Relaxed);
                // Without the hook, which would tell of it.
                std::panic::resume_unwind(Box::new("a bug"))
            }
            ("/_waf/body", None) => Step::ReadBody { limit: 100_000 },
            ("/_waf/body" | "/_waf/own", _) => answer(StatusCode::OK),
            _ => answer(StatusCode::NOT_FOUND),
        }
    })
}
