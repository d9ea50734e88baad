//! The wiring: settings, channels, threads, shutdown. The only place where both planes are named.
//!
//! ```text
//!   clients ──► weir-worker-0 ─┐  breaks (bounded)           ┌─► weir-control ──► weir-state ──► the four state files
//!   clients ──► weir-worker-1 ─┼─ finished (bounded batches) ─┘    │        │
//!                  ▲           │                                   │ alert lines (bounded)
//!                  │           └─ records (bounded batches, emptied ones come back) ──► weir-log ──► stdout
//!                  └──────────────── snapshots (arc-swap) ──────────────────┘
//!   rules.json and its lists ──► weir-rules ──► weir-control
//!   workers ask about new clients ──► weir-lookup (bounded queue) or files in memory ──► client table
//! ```
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, bounded};
use weir_controlplane::control::{Listeners, Server};
use weir_controlplane::lookup::Lookups;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{
    About, CONTROL_THREAD, Control, ControlHandle, Events, Feeds, LiveRules, StartState,
    StateFiles, Wiring, refusal_page,
};
use weir_dataplane::clients::table::Table;
use weir_dataplane::ladder::Rules;
use weir_dataplane::{Bound, Counting, DataPlane, Parts, Records, Stop, explaining};
use weir_shared::clock::Clock;
use weir_shared::event::LimitExceeded;
use weir_shared::record::logged_headers;
use weir_shared::settings::{Listed, Loaded, LogRequests, Settings};
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;
use weir_shared::threads;

use crate::open_files;
use crate::process_log;
use crate::signals::{Event, Signals};
use crate::systemd::{self, Supervisor};

/// Breaks that may wait for the control plane. More at once are answered 429 and counted (LIMIT-6).
const MAX_BREAKS: usize = 4096;
/// Batches of log records that may wait for the writer; a worker sends at most 64 records in one.
const MAX_BATCHES: usize = 1024;
/// Emptied batches that are kept for each worker's next records: what a busy worker fills between
/// two looks of the writer.
const SPARE_BATCHES: usize = 32;
/// Batches of finished requests that may wait for the control plane; a worker sends at most 256
/// requests in one.
const MAX_FINISHED: usize = 256;
/// Alert lines that may wait for the writer: what all kinds may have in a few minutes.
const MAX_LINES: usize = 1024;
/// How often a stop looks whether the workers have ended.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// How long the rest may take once a thread has ended that was not to end.
const LAST_WAIT: Duration = Duration::from_secs(20);
/// A fault inside (`EX_SOFTWARE` of sysexits), which a supervisor answers with a new start
/// (ALIVE-2).
pub const EXIT_SOFTWARE: u8 = 70;

/// Why the service did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something an operator must mend: exit status 78.
    #[error("{0}")]
    Unfit(String),
    /// The system refused a thread.
    #[error("the system refused a thread: {0}")]
    System(#[from] io::Error),
    /// A thread ended that was not to end, or panicked in the stop: exit status 70.
    #[error("a thread has ended and the service with it: {0}")]
    ThreadEnded(String),
}

/// What to print once requests are served.
pub enum Announce {
    /// The line `listening` of the process log alone.
    Nothing,
    /// More, given the address.
    With(Box<dyn FnOnce(SocketAddr)>),
}

/// Serves until SIGTERM or SIGINT, then drains. SIGHUP reads the token file again and reopens the
/// log, SIGUSR1 reopens the log.
///
/// # Errors
/// [`StartError`]: nothing was served, or a thread has ended.
pub fn serve(loaded: Loaded, signals: &mut Signals, announce: Announce) -> Result<(), StartError> {
    let settings = Arc::new(within_open_files(loaded.settings)?);
    let service = Service::start(settings, loaded.listing, loaded.warnings)?;
    if let Announce::With(print) = announce {
        print(service.address);
    }
    let mut supervisor = Supervisor::of_environment();
    supervisor.ready();
    let ended = service.run(signals, &mut supervisor);
    supervisor.stopping();
    service.end(signals, ended)
}

/// Everything that runs.
struct Service {
    settings: Arc<Settings>,
    address: SocketAddr,
    plane: DataPlane,
    control: ControlHandle,
    control_thread: JoinHandle<()>,
    operators: Server,
    log: RequestLog,
}

/// What both planes hold.
struct Shared {
    settings: Arc<Settings>,
    clock: Clock,
    snapshots: Arc<ArcSwap<Snapshot>>,
    table: Arc<Table>,
    counting: Counting,
    spared: Arc<Spared>,
}

impl Service {
    /// Opens what can refuse the start, then starts the threads: those that serve come last.
    // long: a flat list of the steps
    fn start(
        settings: Arc<Settings>,
        listing: Vec<Listed>,
        warnings: Vec<String>,
    ) -> Result<Self, StartError> {
        let unfit = |error: &dyn std::fmt::Display| StartError::Unfit(error.to_string());
        let clock = Clock::system();
        let bound = bind(&settings)?;
        let address = bound.address();
        let refusal_page = refusal_page::open(settings.bans.refusal_page.as_deref())
            .map_err(|error| unfit(&error))?;
        let (files, mut start) =
            StateFiles::open(&settings.state.dir, clock.clone()).map_err(|error| unfit(&error))?;
        let rules = LiveRules::start(&settings, clock.clone()).map_err(|error| unfit(&error))?;
        let listeners = Listeners::bind(&settings).map_err(|error| unfit(&error))?;
        let (control_socket, admin_address) = listeners.places();
        let shared = Shared::new(&settings, clock, &bound, &rules);
        let kept = std::mem::take(&mut start.lookups);
        let lookups = Lookups::start(&settings, &shared.clock, &shared.clients(), kept)
            .map_err(|error| unfit(&error))?;
        let ask = lookups.asking();

        let (breaks_up, breaks) = bounded(MAX_BREAKS);
        let (finished_up, finished) = bounded(MAX_FINISHED);
        let (lines_up, lines) = bounded(MAX_LINES);
        let feeds = Feeds {
            finished,
            origins: {
                let counting = shared.counting.clone();
                Arc::new(move || counting.take_origins())
            },
            lines: lines_up,
        };
        let events = Arc::<Events>::default();
        let about = About {
            version: env!("CARGO_PKG_VERSION"),
            address,
            listing,
            warnings,
            events: Arc::clone(&events),
        };
        let wiring = shared.wiring(breaks, files, start, (lookups, rules), feeds, about);
        let (control, handle) = Control::new(wiring).map_err(|error| unfit(&error))?;
        let (log, records) =
            (shared.start_log(lines, Arc::clone(&events))).map_err(StartError::Unfit)?;
        let control_thread = threads::spawn(CONTROL_THREAD, move || control.run())?;
        let operators = listeners.start(&handle, events)?;
        let plane = DataPlane::start(
            bound,
            Parts {
                settings: Arc::clone(&settings),
                clock: shared.clock,
                table: shared.table,
                snapshots: shared.snapshots,
                refusal_page,
                breaks: breaks_up,
                records,
                finished: settings.anomalies.is_on().then_some(finished_up),
                handover: handle.handover(),
                ask,
                spared: shared.spared,
            },
        )?;
        let service = Self {
            settings,
            address,
            plane,
            control: handle,
            control_thread,
            operators,
            log,
        };
        service.say_listening(control_socket, admin_address);
        Ok(service)
    }

    fn say_listening(&self, control_socket: Option<PathBuf>, admin: Option<SocketAddr>) {
        let settings = &self.settings;
        tracing::info!(
            address = %self.address,
            upstream = %format_args!("{}:{}", settings.upstream.host, settings.upstream.port),
            mode = if settings.observe { "observe" } else { "enforce" },
            workers = settings.workers,
            version = env!("CARGO_PKG_VERSION"),
            control_socket = control_socket.as_deref().map(|path| tracing::field::display(path.display())),
            admin = admin.map(tracing::field::display),
            "listening"
        );
    }

    /// Serves until a stop is asked for, or a thread ends.
    fn run(&self, signals: &mut Signals, supervisor: &mut Supervisor) -> Option<threads::Ended> {
        loop {
            let event = match supervisor.next_call() {
                None => Some(signals.next()),
                Some(due) => signals.next_until(due),
            };
            match event {
                None => supervisor.call(),
                Some(Event::Stop | Event::StopNow) => return None,
                Some(Event::ThreadEnded(ended)) => return Some(ended),
                Some(Event::Reload) => {
                    supervisor.reloading();
                    self.control.reload_tokens();
                    self.log.reopen();
                    supervisor.ready();
                }
                Some(Event::Reopen) => self.log.reopen(),
            }
        }
    }

    /// Ends everything, the data plane first: what it counted is final then, and the last write of
    /// the state files holds all of it.
    fn end(self, signals: &mut Signals, ended: Option<threads::Ended>) -> Result<(), StartError> {
        let ended = ended.map(|ended| {
            let how = if ended.panicked {
                "ended by a panic"
            } else {
                "returned"
            };
            tracing::error!(
                "the thread {} {how}: the state files are written and the service ends",
                ended.name
            );
            end_in_any_case();
            format!("{} {how}", ended.name)
        });
        if ended.is_some() {
            self.plane.stop(Stop::Abort);
        } else {
            self.drain(signals);
        }
        let workers_ended = self.plane.join();
        self.operators.stop();
        self.control.stop();
        let control_ended = self.control_thread.join().is_ok();
        self.log.stop();
        match ended {
            Some(ended) => Err(StartError::ThreadEnded(ended)),
            None if workers_ended && control_ended => Ok(()),
            None => Err(StartError::ThreadEnded(
                "it panicked in the stop".to_owned(),
            )),
        }
    }

    /// Serves on while health says that the service is going, so that a load balancer sends nothing
    /// more before the listeners close (ALIVE-4). False if the stop is to be at once.
    fn announce_stop(&self, signals: &mut Signals) -> bool {
        let delay = self.settings.timeouts.shutdown_delay;
        if delay.is_zero() {
            return true;
        }
        tracing::info!(
            delay_seconds = delay.as_secs_f64(),
            "stopping: health answers 503, requests are served"
        );
        self.control.announce_stop();
        self.plane.stop(Stop::Announce);
        let deadline = Instant::now() + delay;
        while let Some(event) = signals.next_until(deadline) {
            match event {
                // What ended now is found by the stop that comes in any case.
                Event::StopNow | Event::ThreadEnded(_) => return false,
                Event::Stop | Event::Reload => {}
                Event::Reopen => self.log.reopen(),
            }
        }
        true
    }

    /// Closes the listeners, lets running answers end, and cuts what is left after the time-out or
    /// a second signal.
    fn drain(&self, signals: &mut Signals) {
        if !self.announce_stop(signals) {
            return self.plane.stop(Stop::Abort);
        }
        let timeout = self.settings.timeouts.shutdown;
        tracing::info!(timeout_seconds = timeout.as_secs_f64(), "draining");
        self.control.announce_stop();
        self.plane.stop(Stop::Drain);
        let deadline = Instant::now() + timeout;
        while !self.plane.is_finished() {
            let look = Instant::now() + STOP_LOOK;
            let stop_now = matches!(signals.next_until(look), Some(Event::StopNow));
            if stop_now || Instant::now() >= deadline {
                tracing::warn!("ending the connections that are left");
                self.plane.stop(Stop::Abort);
                return;
            }
        }
    }
}

impl Shared {
    fn new(settings: &Arc<Settings>, clock: Clock, bound: &Bound, rules: &LiveRules) -> Self {
        let table = Arc::new(Table::of(settings));
        Self {
            settings: Arc::clone(settings),
            clock,
            snapshots: Arc::new(ArcSwap::from_pointee(Snapshot {
                rules: rules.current(),
                ..Snapshot::default()
            })),
            counting: Counting::of(bound, Arc::clone(&table)),
            spared: Arc::new(Spared::new(settings.identity.trusted_proxies.clone())),
            table,
        }
    }

    fn clients(&self) -> Arc<dyn ClientTable> {
        Arc::clone(&self.table) as _
    }

    /// What the control loop is made from.
    fn wiring(
        &self,
        breaks: Receiver<LimitExceeded>,
        files: StateFiles,
        start: StartState,
        (lookups, rules): (Lookups, LiveRules),
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
                Rules::of(&self.settings, Arc::clone(&self.spared)),
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
            rules,
            feeds,
            about,
        }
    }

    /// Starts the request log, also where no request is logged: alerts are lines of it.
    fn start_log(
        &self,
        lines: Receiver<Vec<u8>>,
        events: Arc<Events>,
    ) -> Result<(RequestLog, Option<Records>), String> {
        let settings = &self.settings;
        let (records_up, records) = bounded(MAX_BATCHES);
        let (spare_back, spare) = bounded(SPARE_BATCHES * settings.workers);
        let counting = self.counting.clone();
        let lost = Arc::new(move || counting.totals().records_dropped);
        let log = RequestLog::start(settings, records, spare_back, lines, lost, events)?;
        let records = (settings.log.requests != LogRequests::Off).then(|| Records {
            batches: records_up,
            emptied: spare,
            headers: logged_headers(&settings.log.request_headers).into(),
        });
        Ok((log, records))
    }
}

/// The listeners: on the socket that a supervisor passed, else on `WAF_LISTEN`.
fn bind(settings: &Settings) -> Result<Bound, StartError> {
    match systemd::passed_listener().map_err(StartError::Unfit)? {
        Some(listener) => Bound::passed(listener, settings.workers).map_err(|error| {
            StartError::Unfit(format!("the socket of LISTEN_FDS cannot be used: {error}"))
        }),
        None => Bound::new(settings.listen, settings.workers)
            .map_err(|error| StartError::Unfit(error.to_string())),
    }
}

/// The settings, with the connections that the system allows (CONN-4).
fn within_open_files(mut settings: Settings) -> io::Result<Settings> {
    let limit = open_files::raise_limit()?;
    if let Some(fewer) = open_files::connections_within(limit, &settings) {
        tracing::warn!(
            "WAF_MAX_CONNECTIONS={} needs more open files than the {limit} that are allowed \
             (LimitNOFILE=, ulimit -n): {fewer} connections are the bound",
            settings.connections.max
        );
        settings.connections.max = fewer;
    }
    Ok(settings)
}

/// What waits for a thread that has ended must not keep the process half alive.
fn end_in_any_case() {
    let last = std::thread::Builder::new().name("weir-last-wait".to_owned());
    let _ = last.spawn(|| {
        std::thread::sleep(LAST_WAIT);
        std::process::exit(EXIT_SOFTWARE.into());
    });
}
