//! How the control plane is put together: its inputs, its start errors, and the handle by which
//! other threads control it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded};
use weir_shared::clock::Clock;
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::explain::Explain;
use weir_shared::fleet::CountsOf;
use weir_shared::handover::Handover;
use weir_shared::reload::Reloaded;
use weir_shared::settings::{Listed, Settings};
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;
use weir_shared::totals::{OriginCounts, Totals};

use crate::admin::Router;
use crate::admin::answers::Answers;
use crate::admin::requests::Requests;
use crate::admin::status::Service;
use crate::admin::token::{TokenErrors, Tokens};
use crate::alert::detection::Detection;
use crate::bans::Bans;
use crate::bans::document::too_many;
use crate::bans::ledger::LedgerSettings;
use crate::certificates::{Certificates, Watched};
use crate::control_loop::{Control, Stop};
use crate::crawlers::falls::Falls;
use crate::events::Events;
use crate::faults::Faults;
use crate::feeds::handle::FeedsHandle;
use crate::files::{Files, StartState, StateFiles};
use crate::fleet::{AtStart, Fleet, Ready};
use crate::giving::{Giving, Saving};
use crate::history::History;
use crate::lookup::Lookups;
use crate::order::LoopCommand;
use crate::origins::Origins;
use crate::process::Asking;
use crate::recent::Recent;
use crate::rules::{LiveRules, RulesOrders};
use crate::shared_state::SharedState;

/// Admin requests that may wait for the loop; a further one is answered 503.
const ADMIN_QUEUE: usize = 64;

/// The inputs of the control plane.
pub struct Wiring {
    /// The settings.
    pub settings: Arc<Settings>,
    /// The clock.
    pub clock: Clock,
    /// The snapshot for the data plane, into which bans are published.
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    /// The data plane's clients.
    pub table: Arc<dyn ClientTable>,
    /// The clients that the service never bans by itself, shared with the data plane.
    pub spared: Arc<Spared>,
    /// The data plane's counts, for a fleet that shares them.
    pub counts: Option<CountsOf>,
    /// Exceeded limits.
    pub breaks: Receiver<LimitExceeded>,
    /// Runs the data plane's ladder without a charge.
    pub explain: Explain,
    /// Folds the data plane's counters.
    pub totals: Arc<dyn Fn() -> Totals + Send + Sync>,
    /// Faults that other threads report.
    pub faults: Faults,
    /// The state files.
    pub files: StateFiles,
    /// The content of the state files at the start.
    pub start: StartState,
    /// The lookups, which have the entries of lookups.json already.
    pub lookups: Lookups,
    /// The certificates of TLS.
    pub certificates: Option<Arc<Certificates>>,
    /// The rules; the first ones are in the snapshot already.
    pub rules: LiveRules,
    /// What comes and goes for anomalies, alerts and the metrics by place.
    pub feeds: Feeds,
    /// What an operator is told of the service.
    pub about: About,
}

/// Facts about the service for operators, besides its counts.
pub struct About {
    /// Its version.
    pub version: &'static str,
    /// Where it listens, as `WAF_LISTEN` is written.
    pub places: Vec<String>,
    /// Its settings as they are written.
    pub listing: Vec<Listed>,
    /// The warnings of the start.
    pub warnings: Vec<String>,
    /// The event stream.
    pub events: Arc<Events>,
    /// Takes requests for a reload and for an upgrade.
    pub process: Asking,
}

/// What comes and goes for anomalies, alerts and the metrics by place.
pub struct Feeds {
    /// Finished requests; none are sent while every threshold is off.
    pub finished: Receiver<Vec<Finished>>,
    /// Takes the requests by country and AS number since the last call.
    pub origins: Arc<dyn Fn() -> OriginCounts + Send + Sync>,
    /// Alert lines, to the request log.
    pub lines: Sender<Vec<u8>>,
}

/// Why the control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A token file cannot be used.
    #[error(transparent)]
    Token(#[from] TokenErrors),
    /// bans.json holds more undroppable bans than `WAF_MAX_BANS`.
    #[error("{}", too_many(*held, *max_bans))]
    TooManyBans {
        /// The number of undroppable bans.
        held: usize,
        /// The setting.
        max_bans: usize,
    },
    /// The system refused a thread.
    #[error("the thread of the answers cannot be started: {0}")]
    Thread(std::io::Error),
    /// The system refused a thread of the fleet.
    #[error("the fleet cannot be begun: {0}")]
    Fleet(std::io::Error),
}

/// Controls the loop from other threads.
#[derive(Clone)]
pub struct ControlHandle {
    pub(crate) router: Arc<Router>,
    pub(crate) lookups: Lookups,
    pub(crate) rules: RulesOrders,
    pub(crate) feeds: FeedsHandle,
    pub(crate) orders: Sender<LoopCommand>,
    stop: Sender<Stop>,
}

impl ControlHandle {
    /// The function that answers requests under `/_waf/`.
    pub fn handover(&self) -> Handover {
        Arc::clone(&self.router).handover()
    }

    /// From now on health answers that the service stops.
    pub fn announce_stop(&self) {
        self.router.announce_stop();
    }

    /// Writes every state file while the service goes on, so that a hand-over that follows has
    /// little left to write (RESTART-1).
    pub fn save(&self) -> Saving {
        let (told, saving) = Saving::new();
        // If the queue is full the request is dropped, and the result says so.
        let _ = self.orders.try_send(LoopCommand::Save(told));
        saving
    }

    /// Writes every state file a last time and gives them away (RESTART-4).
    pub fn give(&self) -> Giving {
        let (give, giving) = Giving::new();
        let _ = self.orders.try_send(LoopCommand::Give(give));
        giving
    }

    /// Ends [`Control::run`] after a last write of every state file. Call it once the data plane
    /// has stopped; requests that still wait for an answer are dropped.
    pub fn stop(&self) {
        let _ = self.stop.try_send(Stop);
    }
}

impl Control {
    /// Takes the content of the state files and publishes the first snapshot: when this returns,
    /// every ban is in force.
    ///
    /// # Errors
    /// See [`ControlError`].
    // long: a flat list of the parts
    pub fn new(wiring: Wiring) -> Result<(Self, ControlHandle), ControlError> {
        let Wiring {
            settings,
            clock,
            snapshots,
            table,
            spared,
            counts,
            breaks,
            explain,
            totals,
            faults,
            files,
            start,
            lookups,
            certificates,
            rules: live_rules,
            feeds,
            about,
        } = wiring;
        let now = clock.now();
        let rules = LedgerSettings::from(&*settings);
        let clients = Arc::clone(&table);
        let reloaded = Reloaded {
            settings: Arc::clone(&settings),
            listing: about.listing.into(),
            warnings: about.warnings.into(),
        };
        let told = Arc::new(ArcSwap::from_pointee(reloaded.clone()));
        let service = Service {
            version: about.version,
            places: about.places,
            reloaded: Arc::clone(&told),
            snapshots: Arc::clone(&snapshots),
            table: Arc::clone(&table),
            events: about.events,
            started: now,
        };
        let events = Arc::clone(&service.events);
        events.bans().begin(now.wall_ms);
        spared.set_crawler_ranges(live_rules.current().crawler_ranges());
        let not_banned = Arc::clone(&spared);
        let at_start = AtStart {
            bans: &start.bans,
            before: start.before_edit.as_deref().unwrap_or(&start.bans),
            edited: &start.edited,
            removed: &start.removed,
            lists: live_rules.lists(),
            counts: counts.as_ref(),
            version: about.version,
            clock: &clock,
        };
        let dir = &settings.state.dir;
        let begin = |mut ready: Ready| {
            ready.read_kept(dir);
            Fleet::start(ready, &at_start, dir)
        };
        let fleet = start.fleet.map(begin).transpose();
        let (fleet, effects) = fleet.map_err(ControlError::Fleet)?.unzip();
        let mut bans = Bans::new(
            rules, start.bans, breaks, clients, snapshots, not_banned, now,
        )
        .map_err(|held| ControlError::TooManyBans {
            held,
            max_bans: rules.max_bans,
        })?;
        let fleet = fleet.map(|mut fleet| {
            fleet.take_settings(&reloaded.listing);
            for effect in effects.into_iter().flatten() {
                if !bans.take_in(effect.key, effect.ban, now) {
                    fleet.dropped(effect.key);
                }
            }
            bans.publish(now);
            fleet
        });
        let tokens = Tokens::read(&settings.endpoints)?;
        for row in start.clients {
            table.put(row);
        }
        let (finished, lines) = (feeds.finished, feeds.lines);
        let (queue, requests) = bounded(ADMIN_QUEUE);
        let (stopping, stop) = bounded(1);
        let (orders, ordered) = bounded(2);
        let not_banned = Arc::clone(&spared);
        let (asked, reading) = (lookups.clone(), live_rules.orders());
        let fetching = live_rules.feeds();
        let router = Router::new(
            &reloaded,
            tokens,
            not_banned,
            (reading.clone(), fetching.clone()),
            about.process,
            queue,
        );
        let answers = Answers::start(service).map_err(ControlError::Thread)?;
        let mut detection = Detection::new(&settings, finished, lines, start.alerts, now);
        detection.certificates = Watched::new(certificates);
        let rules_now = live_rules.current();
        let place = (&*settings.state.dir, fleet.is_some());
        let shared = SharedState::start(place, &*table, &spared, &rules_now, now);
        bans.spare_crawlers();
        bans.publish(now);
        let control = Self {
            clock,
            bans,
            spared,
            detection,
            lookups,
            rules: live_rules,
            falls: Falls::default(),
            faults,
            files: Files::new(files, start.journal, &settings, now),
            table,
            requests: Requests::new(requests, answers),
            explain,
            fleet,
            left: None,
            made_from: (counts, about.version),
            events,
            totals,
            origins: Origins::new(feeds.origins, settings.endpoints.metrics_top_n),
            recent: Recent::default(),
            history: History::start(&settings.state.dir, now),
            shared,
            settings,
            reloaded: told,
            orders: ordered,
            stop,
            giving: None,
        };
        fetching.begin();
        let handle = ControlHandle {
            router: Arc::new(router),
            lookups: asked,
            rules: reading,
            feeds: fetching,
            orders,
            stop: stopping,
        };
        Ok((control, handle))
    }
}
