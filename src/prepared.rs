//! A start, from top to bottom (RESTART-4):
//!
//! 1. [`Prepared::open`]: everything that needs no state. In a hand-over, this process then reports
//!    to the old one that it is ready.
//! 2. [`Prepared::take_over`]: reads the state and starts every thread. They wait.
//! 3. [`Parked::serve`], the point of no return: nothing in it can fail, and from there on this
//!    process is the service.
//!
//! A failure before that point is reported to the old process, which goes on serving.

use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use weir_controlplane::certificates::Certificates;
use weir_controlplane::control::{Listeners, PassedOn};
use weir_controlplane::crawlers::CrawlerNames;
use weir_controlplane::fleet;
use weir_controlplane::lookup::{LookupFiles, Lookups};
use weir_controlplane::process::Asking;
use weir_controlplane::refusal_page::PageFile;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{
    About, CONTROL_THREAD, Control, Events, Feeds, FileThread, KnownFiles, LiveRules, StateFiles,
    StateLock,
};
use weir_dataplane::{Bound, DataPlane, Parts, Records};
use weir_shared::settings::{Listen, Loaded, Settings};
use weir_shared::threads;

use crate::fault::{self, Step};
use crate::opening::{self, Opened};
use crate::predecessor::Predecessor;
use crate::process_log;
use crate::reload::Reloader;
use crate::reloading::Reloads;
use crate::service::{Service, StartError};
use crate::shared::Shared;
use crate::sockets::Sockets;
use crate::sources::Sources;
use crate::test_clock;

/// Breaks that may wait for the control plane. More at once are answered 429 and counted (LIMIT-6).
const MAX_BREAKS: usize = 4096;
/// Batches of finished requests that may wait for the control plane; a worker sends at most 256
/// requests in one.
const MAX_FINISHED: usize = 256;
/// Alert lines that may wait for the writer. The cooldowns of all kinds let no more through in a
/// few minutes.
const MAX_LINES: usize = 1024;

/// What a start has opened before it takes the state.
pub struct Prepared {
    sources: Sources,
    loaded: Loaded,
    settings: Arc<Settings>,
    predecessor: Option<Predecessor>,
    /// None while the old process of a hand-over holds the lock.
    lock: Option<StateLock>,
    known: KnownFiles,
    bound: Bound,
    operators: Operators,
    looks: FileThread,
    page: PageFile,
    certificates: Arc<Certificates>,
    rules: LiveRules,
    databases: LookupFiles,
    fleet: Option<fleet::Ready>,
    shared: Shared,
    lines: Sender<Vec<u8>>,
    events: Arc<Events>,
    log: RequestLog,
    records: Records,
}

/// The listeners of operators.
enum Operators {
    Bound(Listeners),
    /// An old process of the first version keeps these listeners until it has given up its state:
    /// they are bound then.
    Later(PassedOn),
}

/// Reports to the old process, if there is one, that this start goes on with its next step.
fn step(predecessor: Option<&Predecessor>, step: Step) -> Result<(), StartError> {
    if let Some(predecessor) = predecessor {
        fault::at(step).map_err(StartError::Unfit)?;
        predecessor.say_step();
    }
    Ok(())
}

fn unfit(error: &dyn std::fmt::Display) -> StartError {
    StartError::Unfit(error.to_string())
}

impl Prepared {
    /// Opens everything that needs no state. In a hand-over, files that the old process still owns
    /// are read and checked.
    ///
    /// # Errors
    /// [`StartError`]: what cannot be opened, in a sentence.
    // long: a flat list of the steps
    pub fn open(sources: Sources, loaded: Loaded) -> Result<Self, StartError> {
        let settings = Arc::new(opening::within_open_files(loaded.settings.clone(), None)?);
        let clock = test_clock::clock();
        let Opened {
            bound,
            operators: passed,
            predecessor,
        } = opening::listeners(&settings).map_err(StartError::Unfit)?;
        let before = predecessor.as_ref();
        step(before, Step::Listen)?;

        step(before, Step::Files)?;
        let looks = FileThread::start(clock.clone())?;
        let page = PageFile::open(settings.bans.refusal_page.as_deref(), &looks)
            .map_err(|error| unfit(&error))?;
        let certificates =
            opening::certificates(&settings, &bound, &looks).map_err(StartError::Unfit)?;
        // First the directory, then the files that lie in it.
        let dir = &settings.state.dir;
        let (lock, known) = match before {
            None => {
                let lock = StateLock::claim(dir).map_err(|error| unfit(&error))?;
                (Some(lock), KnownFiles::default())
            }
            Some(_) => {
                let known = opening::known_files(&settings, &clock).map_err(StartError::Unfit)?;
                (None, known)
            }
        };
        let rules = LiveRules::start(&settings, &clock, &looks).map_err(|error| unfit(&error))?;
        let databases =
            LookupFiles::open(&settings.lookup, &clock).map_err(|error| unfit(&error))?;
        let fleet = fleet::Ready::read(&settings.fleet).map_err(StartError::Unfit)?;

        step(before, Step::Operators)?;
        let operators = if before.is_some_and(Predecessor::is_older) {
            Operators::Later(passed)
        } else {
            Operators::Bound(Listeners::bind(&settings, passed).map_err(|error| unfit(&error))?)
        };
        let shared = Shared::new(&settings, clock, &bound, &rules);
        let (lines, alert_lines) = bounded(MAX_LINES);
        let events = Arc::<Events>::default();
        let (log, records) =
            (shared.start_log(alert_lines, Arc::clone(&events))).map_err(StartError::Unfit)?;
        Ok(Self {
            sources,
            loaded,
            settings,
            predecessor,
            lock,
            known,
            bound,
            operators,
            looks,
            page,
            certificates,
            rules,
            databases,
            fleet,
            shared,
            lines,
            events,
            log,
            records,
        })
    }

    /// Takes the state, and starts every thread of the service. Reloads and hand-overs that
    /// operators ask for go to `process`.
    ///
    /// # Errors
    /// [`StartError`]: the state, or a thread.
    // long: a flat list of the steps
    pub fn take_over(mut self, process: Asking) -> Result<Parked, StartError> {
        let before = self.predecessor.as_ref();
        step(before, Step::Ready)?;
        let dir = &self.settings.state.dir;
        let lock = match (self.lock, before) {
            (Some(lock), _) => lock,
            (None, Some(before)) => before.take_lock(dir).map_err(StartError::Unfit)?,
            (None, None) => StateLock::claim(dir).map_err(|error| unfit(&error))?,
        };
        let listeners = match self.operators {
            Operators::Bound(listeners) => listeners,
            Operators::Later(passed) => {
                Listeners::bind(&self.settings, passed).map_err(|error| unfit(&error))?
            }
        };
        let (control_socket, admin) = listeners.places();

        step(before, Step::State)?;
        let (files, mut start) =
            StateFiles::open(lock, self.shared.clock.clone(), self.known, &self.looks)
                .map_err(|error| unfit(&error))?;

        step(before, Step::Control)?;
        start.fleet = self.fleet;
        let kept = std::mem::take(&mut start.lookups);
        let clients = self.shared.clients();
        let (settings, clock) = (&self.settings, &self.shared.clock);
        let lookups = Lookups::start(
            settings,
            clock,
            &clients,
            (self.databases, &self.looks),
            kept,
        )
        .map_err(|error| unfit(&error))?;
        let ask = lookups.asking();
        let (names, spared) = (Arc::clone(&clients), Arc::clone(&self.shared.spared));
        let names = CrawlerNames::new(settings, clock.clone(), names, spared);
        let (breaks_up, breaks) = bounded(MAX_BREAKS);
        let (finished_up, finished) = bounded(MAX_FINISHED);
        let feeds = Feeds {
            finished,
            origins: {
                let counting = self.shared.counting.clone();
                Arc::new(move || counting.take_origins())
            },
            lines: self.lines,
        };
        let places: Vec<String> = self.bound.places().iter().map(Listen::to_string).collect();
        let about = About {
            version: env!("CARGO_PKG_VERSION"),
            places: places.clone(),
            listing: self.loaded.listing.clone(),
            warnings: self.loaded.warnings.clone(),
            events: Arc::clone(&self.events),
            process,
        };
        let certificates = self.certificates;
        let made_from = (lookups, self.rules, Arc::clone(&certificates));
        let files = (files, self.looks.faults().clone());
        let wiring =
            (self.shared).wiring((&breaks_up, breaks), files, start, made_from, feeds, about);
        let (control, handle) = Control::new(wiring).map_err(|error| unfit(&error))?;

        step(before, Step::Workers)?;
        let operators = listeners.start(&handle, self.events)?;
        let sockets = Sockets::of(&mut self.bound);
        let https_port = self.bound.https_port();
        let plane = DataPlane::start(
            self.bound,
            Parts {
                in_force: self.shared.in_force,
                clock: self.shared.clock,
                table: self.shared.table,
                snapshots: self.shared.snapshots,
                refusal_page: self.page.page(),
                breaks: breaks_up,
                records: Some(self.records),
                finished: Some(finished_up),
                https_port,
                tls: Some(certificates.config()),
                handover: handle.handover(),
                ask,
                ask_names: names.asking(),
                spared: self.shared.spared,
                upstream: self.shared.upstream,
            },
        )?;

        step(before, Step::Serve)?;
        let mut parts = handle.parts();
        parts.extend([self.log.part(), self.page.part(), process_log::part()]);
        parts.extend([plane.part(), certificates.part()]);
        // Last, so that no failure above leaves a thread that writes the state.
        let control_thread = threads::spawn(CONTROL_THREAD, move || control.run())?;
        let service = Service {
            reloads: Reloads::new(Reloader::new(
                self.sources,
                self.loaded,
                self.settings,
                parts,
            )),
            program: std::env::current_exe().ok(),
            places,
            sockets,
            plane,
            control: handle,
            control_thread,
            operators,
            log: self.log,
        };
        Ok(Parked {
            service,
            predecessor: self.predecessor,
            control_socket,
            admin,
        })
    }
}

/// A started service that accepts no connection yet.
pub struct Parked {
    service: Service,
    predecessor: Option<Predecessor>,
    /// The path of the control socket, for the line `listening`.
    control_socket: Option<PathBuf>,
    admin: Option<std::net::SocketAddr>,
}

impl Parked {
    /// True in a hand-over: the old process serves until this one does.
    pub const fn takes_over(&self) -> bool {
        self.predecessor.is_some()
    }

    /// The point of no return: reports to the old process that this one serves, and accepts
    /// connections. The old one then ends. Nothing here can fail.
    ///
    /// The report comes first. Before it the old process may kill this one and take its state back,
    /// so a ban that this process had acknowledged by then would be lost.
    pub fn serve(mut self) -> Service {
        if let Some(predecessor) = &self.predecessor {
            // Where a test has this step fail, there is nothing to undo.
            let _ = fault::at(Step::Serving);
            predecessor.say_serving();
        }
        self.service.plane.begin();
        self.service.operators.open();
        if let Some(predecessor) = self.predecessor {
            self.service.sockets.adopt();
            predecessor.wait_until_told();
            // A log rotation during the start has sent its SIGUSR1 to the old process only.
            self.service.log.reopen();
        }
        self.service.say_listening(self.control_socket, self.admin);
        self.service
    }
}
