//! Settings on trial: the data plane's checks and the control plane's escalation, wired as the
//! service wires them, with the time of the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::bounded;
use weir_controlplane::FileThread;
use weir_controlplane::lookup::{LookupFiles, Lookups};
use weir_controlplane::replay::Escalation;
use weir_dataplane::clients::table::Table;
use weir_dataplane::replay::{Decided, Replay};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::lookup::{Ask, Lookup, LookupStarted, is_public};
use weir_shared::settings::{LookupSource, Settings};
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;
use weir_shared::verdict::Action;

use super::request::Request;
use crate::commands::common::{EXIT_CONFIG, Failure};

/// Offences that may wait; the ledger takes them after each request.
const MAX_BREAKS: usize = 64;
/// How often the ledger takes a turn without an offence: bans that end make room for others.
const TURN_MS: u64 = 1000;

/// One set of settings, with its results so far.
pub struct Trial {
    /// The changes to the settings as they are; empty for those themselves.
    pub set: Vec<(String, String)>,
    /// By position in [`Action::ALL`].
    pub refused: [u64; Action::ALL.len()],
    replay: Replay,
    escalation: Escalation,
    /// The lookups of database files; none for other sources.
    ask: Option<Ask>,
    turned_ms: u64,
}

/// The time of a log line, for both clocks: between two lines only the log tells how much time has
/// passed.
pub fn moment(at_ms: u64) -> Now {
    Now {
        wall_ms: at_ms,
        mono_ns: at_ms.saturating_mul(1_000_000),
    }
}

impl Trial {
    /// A trial with an empty client table and no bans.
    pub fn new(settings: &Settings, set: Vec<(String, String)>) -> Result<Self, Failure> {
        let unfit = |error: &dyn std::fmt::Display| Failure::new(EXIT_CONFIG, error.to_string());
        let settings = &Settings {
            // Off, so that refusals are counted: observe mode refuses nobody.
            observe: false,
            ..settings.clone()
        };
        let clock = Clock::system();
        let table = Arc::new(Table::default());
        let snapshots = Arc::<ArcSwap<_>>::default();
        let spared = Arc::new(Spared::new(settings.identity.trusted_proxies.clone()));
        let clients = Arc::clone(&table) as Arc<dyn ClientTable>;
        let ask = match settings.lookup.source {
            LookupSource::File => {
                let lookups = LookupFiles::open(&settings.lookup, &clock).and_then(|files| {
                    let unwatched = FileThread::default();
                    Lookups::start(settings, &clock, &clients, (files, &unwatched), Vec::new())
                });
                Some(lookups.map_err(|error| unfit(&error))?.asking())
            }
            // No lookup service is asked about visitors of the past.
            LookupSource::Off | LookupSource::Geojs | LookupSource::Url => None,
        };
        let (exceeded_up, exceeded) = bounded(MAX_BREAKS);
        let escalation = Escalation::new(
            settings,
            exceeded,
            clients,
            Arc::clone(&snapshots),
            Arc::clone(&spared),
            (clock.now(), moment(0)),
        )
        .map_err(|error| unfit(&error))?;
        for bad in &escalation.bad_lists {
            eprintln!("weir: warning: {bad}");
        }
        Ok(Self {
            set,
            refused: [0; Action::ALL.len()],
            replay: Replay::new(settings, spared, table, snapshots, exceeded_up),
            escalation,
            ask,
            turned_ms: 0,
        })
    }

    /// Bans made so far.
    pub fn bans(&self) -> u64 {
        self.escalation.made()
    }

    /// The fields that its rules ask for.
    pub fn fields_asked_for(&self) -> BTreeSet<String> {
        self.replay.fields_asked_for()
    }

    /// Whether a crawler of its rules proves itself by DNS.
    pub fn asks_names(&self) -> bool {
        self.replay.asks_names()
    }

    /// Judges a request; a ban that follows is in force for the next.
    pub fn decide(&mut self, request: &Request, now_ms: u64) -> Decided {
        let now = moment(now_ms);
        if now_ms.saturating_sub(self.turned_ms) >= TURN_MS {
            self.turned_ms = now_ms;
            self.escalation.turn(now);
        }
        let lookup = |client| self.look_up(client, request, now);
        let decided = self.replay.decide(&request.past(), lookup, now);
        if let Some(refused) = decided.refusal
            && let Some(count) = self.refused.get_mut(refused.index())
        {
            *count += 1;
        }
        self.turn(now);
        decided
    }

    /// The application answers a request.
    pub fn answer(&mut self, request: &Request, decided: &Decided, now_ms: u64) {
        let now = moment(now_ms);
        (self.replay).answer(decided, &request.past(), &request.end, now);
        self.turn(now);
    }

    /// Ends a request.
    pub fn end(&mut self, request: &Request, decided: &Decided, now_ms: u64) {
        let now = moment(now_ms);
        self.replay.end(decided, &request.end, now);
        self.turn(now);
    }

    fn turn(&mut self, now: Now) {
        if self.escalation.has_work() {
            self.escalation.turn(now);
        }
    }

    /// The lookup of a client: from the log, else from the database files.
    fn look_up(&self, client: Client, request: &Request, now: Now) -> LookupStarted {
        let known = |lookup| LookupStarted::Known {
            lookup,
            until_ns: u64::MAX,
        };
        match (&request.lookup, &self.ask) {
            (Some(lookup), _) => known(Arc::clone(lookup)),
            (None, Some(ask)) => ask(client, None),
            (None, None) if !is_public(client.first_address()) => known(Arc::default()),
            (None, None) => LookupStarted::NotNow {
                again_ns: now.mono_ns.saturating_add(1),
            },
        }
    }

    /// The lookup of a request's client.
    pub fn lookup_of(&self, request: &Request) -> Option<Arc<Lookup>> {
        let told = request.lookup.clone();
        told.or_else(|| self.replay.lookup_of(request.address))
    }
}
