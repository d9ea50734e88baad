//! What both planes hold, and the parts that are made from it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, bounded};
use weir_controlplane::certificates::Certificates;
use weir_controlplane::lookup::Lookups;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{About, Events, Feeds, LiveRules, StartState, StateFiles, Wiring};
use weir_dataplane::clients::table::Table;
use weir_dataplane::{Bound, Counting, InForce, Records, explaining};
use weir_shared::clock::Clock;
use weir_shared::event::LimitExceeded;
use weir_shared::netblock::Netblock;
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;

use crate::process_log;

/// Batches of log records that may wait for the writer; a worker sends at most 64 records in one.
const MAX_BATCHES: usize = 1024;
/// Emptied batches that are kept for each worker's next records: what a busy worker fills between
/// two looks of the writer.
const SPARE_BATCHES: usize = 32;

/// What both planes hold.
pub struct Shared {
    pub settings: Arc<Settings>,
    pub clock: Clock,
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    pub table: Arc<Table>,
    /// The settings, as the data plane reads them.
    pub in_force: Arc<ArcSwap<InForce>>,
    pub counting: Counting,
    pub spared: Arc<Spared>,
}

/// Whom the service does not ban by itself: the trusted proxies, and who comes over a Unix socket
/// and names no other client (EDGE-1).
fn spared(settings: &Settings, bound: &Bound) -> Spared {
    let local = Netblock::masked(IpAddr::V4(Ipv4Addr::LOCALHOST), 32);
    let local = bound.has_unix_socket().then_some(local);
    Spared::new(settings.identity.trusted_proxies.clone()).and_always(local)
}

impl Shared {
    pub fn new(settings: &Arc<Settings>, clock: Clock, bound: &Bound, rules: &LiveRules) -> Self {
        let table = Arc::new(Table::default());
        let spared = Arc::new(spared(settings, bound));
        let in_force = InForce::new(Arc::clone(settings), Arc::clone(&spared));
        Self {
            settings: Arc::clone(settings),
            clock,
            snapshots: Arc::new(ArcSwap::from_pointee(Snapshot {
                rules: rules.current(),
                ..Snapshot::default()
            })),
            counting: Counting::of(bound, Arc::clone(&table)),
            in_force: Arc::new(ArcSwap::from_pointee(in_force)),
            spared,
            table,
        }
    }

    pub fn clients(&self) -> Arc<dyn ClientTable> {
        Arc::clone(&self.table) as _
    }

    /// What the control loop is made from.
    pub fn wiring(
        &self,
        breaks: Receiver<LimitExceeded>,
        files: StateFiles,
        start: StartState,
        (lookups, rules, certificates): (Lookups, LiveRules, Arc<Certificates>),
        feeds: Feeds,
        about: About,
    ) -> Wiring {
        let counting = self.counting.clone();
        Wiring {
            settings: Arc::clone(&self.settings),
            clock: self.clock.clone(),
            snapshots: Arc::clone(&self.snapshots),
            table: self.clients(),
            spared: Arc::clone(&self.spared),
            breaks,
            explain: explaining(
                Arc::clone(&self.in_force),
                Arc::clone(&self.table),
                Arc::clone(&self.snapshots),
                self.clock.clone(),
            ),
            totals: Arc::new(move || {
                let mut totals = counting.totals();
                totals.process_log_lines_dropped = process_log::lines_lost();
                totals
            }),
            files,
            start,
            lookups,
            certificates: Some(certificates),
            rules,
            feeds,
            about,
        }
    }

    /// Starts the request log, also where no request is logged: alerts are lines of it.
    pub fn start_log(
        &self,
        lines: Receiver<Vec<u8>>,
        events: Arc<Events>,
    ) -> Result<(RequestLog, Records), String> {
        let settings = &self.settings;
        let (records_up, records) = bounded(MAX_BATCHES);
        let (spare_back, spare) = bounded(SPARE_BATCHES * settings.workers);
        let counting = self.counting.clone();
        let lost = Arc::new(move || counting.totals().records_dropped);
        let log = RequestLog::start(settings, records, spare_back, lines, lost, events)?;
        let records = Records {
            batches: records_up,
            emptied: spare,
            refused: Arc::default(),
        };
        Ok((log, records))
    }
}
