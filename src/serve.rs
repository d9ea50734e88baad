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
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use weir_controlplane::control::{Listeners, Server};
use weir_controlplane::lookup::Lookups;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{
    About, CONTROL_THREAD, Control, ControlHandle, Events, Feeds, LiveRules, refusal_page,
};
use weir_dataplane::{DataPlane, Parts, Stop};
use weir_shared::clock::Clock;
use weir_shared::settings::{Listed, Loaded, Settings};
use weir_shared::threads;

use crate::opening;
use crate::shared::Shared;
use crate::signals::{Event, Signals};
use crate::successor::{Progress, Successor};
use crate::systemd::Supervisor;

/// Breaks that may wait for the control plane. More at once are answered 429 and counted (LIMIT-6).
const MAX_BREAKS: usize = 4096;
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
/// log, SIGUSR1 reopens the log, SIGUSR2 hands over to a new process (RESTART-1).
///
/// # Errors
/// [`StartError`]: nothing was served, or a thread has ended.
pub fn serve(loaded: Loaded, signals: &mut Signals, announce: Announce) -> Result<(), StartError> {
    let settings = Arc::new(opening::within_open_files(loaded.settings)?);
    let service = Service::start(settings, loaded.listing, loaded.warnings)?;
    if let Announce::With(print) = announce {
        print(service.address);
    }
    let mut supervisor = Supervisor::of_environment();
    supervisor.ready();
    match service.run(signals, &mut supervisor) {
        End::Stop(ended) => {
            supervisor.stopping();
            service.end(signals, ended)
        }
        End::HandOver(successor) => {
            supervisor.handed_over(successor.id());
            service.hand_over(signals, successor)
        }
    }
}

/// Why the service does not go on.
enum End {
    /// By a signal, or because a thread has ended that was not to end.
    Stop(Option<threads::Ended>),
    /// Another process is ready to take over.
    HandOver(Successor),
}

/// Everything that runs.
struct Service {
    settings: Arc<Settings>,
    /// This program, as it was started: what lies there now is the next.
    program: PathBuf,
    address: SocketAddr,
    /// The listening sockets, for a successor.
    sockets: Vec<TcpListener>,
    plane: DataPlane,
    control: ControlHandle,
    control_thread: JoinHandle<()>,
    operators: Server,
    log: RequestLog,
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
        let program = std::env::current_exe()?;
        let (bound, predecessor) = opening::listeners(&settings).map_err(StartError::Unfit)?;
        let address = bound.address();
        let refusal_page = refusal_page::open(settings.bans.refusal_page.as_deref())
            .map_err(|error| unfit(&error))?;
        let sockets = bound.sockets()?;
        let (files, mut start) =
            opening::state_files(&settings, &clock, predecessor).map_err(StartError::Unfit)?;
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
            program,
            address,
            sockets,
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

    /// Serves until a stop is asked for, a thread ends, or another process is ready to take over.
    fn run(&self, signals: &mut Signals, supervisor: &mut Supervisor) -> End {
        let mut successor: Option<Successor> = None;
        loop {
            let look = successor.is_some().then(|| Instant::now() + STOP_LOOK);
            let event = match look.into_iter().chain(supervisor.next_call()).min() {
                None => Some(signals.next()),
                Some(due) => signals.next_until(due),
            };
            match event {
                None => supervisor.call(),
                Some(Event::Stop | Event::StopNow) => break abandon(successor, End::Stop(None)),
                Some(Event::ThreadEnded(ended)) => {
                    break abandon(successor, End::Stop(Some(ended)));
                }
                Some(Event::Reload) => {
                    supervisor.reloading();
                    self.control.reload_tokens();
                    self.log.reopen();
                    supervisor.ready();
                }
                Some(Event::Reopen) => self.log.reopen(),
                Some(Event::HandOver) if successor.is_none() => successor = self.successor(),
                Some(Event::HandOver) => tracing::warn!("a hand-over has begun already"),
            }
            match successor.as_mut().map(Successor::progress) {
                Some(Progress::Failed(how)) => {
                    tracing::error!("the new process is not ready, this one goes on: {how}");
                    successor = None;
                }
                Some(Progress::Ready) => {
                    if let Some(successor) = successor {
                        break End::HandOver(successor);
                    }
                }
                Some(Progress::Starting) | None => {}
            }
        }
    }

    /// Starts the process that is to take over.
    fn successor(&self) -> Option<Successor> {
        let program = self.program.display();
        match Successor::start(&self.program, &self.sockets) {
            Ok(successor) => {
                tracing::info!(process = successor.id(), %program, "a new process is started");
                Some(successor)
            }
            Err(error) => {
                tracing::error!("{program} cannot be started, this process goes on: {error}");
                None
            }
        }
    }

    /// Gives the state and all connections to come to another process, then ends its own
    /// (RESTART-1).
    fn hand_over(self, signals: &mut Signals, mut successor: Successor) -> Result<(), StartError> {
        tracing::info!(process = successor.id(), "handing over");
        drop(self.sockets);
        self.plane.stop(Stop::HandOver);
        self.operators.stop();
        self.control.stop();
        let control_ended = self.control_thread.join().is_ok();
        let told = successor.go();
        if let Err(error) = &told {
            tracing::error!("the new process has ended, and nobody accepts any more: {error}");
        }
        end_connections(&self.plane, self.settings.timeouts.shutdown, signals);
        let workers_ended = self.plane.join();
        self.log.stop();
        told?;
        whole(workers_ended && control_ended)
    }

    /// Ends everything, the data plane first: what it counted is final then, and the last write of
    /// the state files holds all of it.
    fn end(
        mut self,
        signals: &mut Signals,
        ended: Option<threads::Ended>,
    ) -> Result<(), StartError> {
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
            None => whole(workers_ended && control_ended),
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
                Event::Stop | Event::Reload | Event::HandOver => {}
                Event::Reopen => self.log.reopen(),
            }
        }
        true
    }

    /// Closes the listeners, lets running answers end, and cuts what is left after the time-out or
    /// a second signal.
    fn drain(&mut self, signals: &mut Signals) {
        if !self.announce_stop(signals) {
            return self.plane.stop(Stop::Abort);
        }
        let timeout = self.settings.timeouts.shutdown;
        tracing::info!(timeout_seconds = timeout.as_secs_f64(), "draining");
        self.control.announce_stop();
        self.sockets.clear();
        self.plane.stop(Stop::Drain);
        end_connections(&self.plane, timeout, signals);
    }
}

/// Lets running answers end, and cuts what is left after the time-out or a second signal.
fn end_connections(plane: &DataPlane, timeout: Duration, signals: &mut Signals) {
    let deadline = Instant::now() + timeout;
    while !plane.is_finished() {
        let look = Instant::now() + STOP_LOOK;
        let stop_now = matches!(signals.next_until(look), Some(Event::StopNow));
        if stop_now || Instant::now() >= deadline {
            tracing::warn!("ending the connections that are left");
            plane.stop(Stop::Abort);
            return;
        }
    }
}

/// The end of a stop in which every thread ended as it should, or not.
fn whole(ended: bool) -> Result<(), StartError> {
    let panicked = || StartError::ThreadEnded("it panicked in the stop".to_owned());
    ended.then_some(()).ok_or_else(panicked)
}

/// A process that was to take over is not wanted any more.
fn abandon(successor: Option<Successor>, end: End) -> End {
    if let Some(mut successor) = successor {
        successor.abandon();
    }
    end
}

/// What waits for a thread that has ended must not keep the process half alive.
fn end_in_any_case() {
    let last = std::thread::Builder::new().name("weir-last-wait".to_owned());
    let _ = last.spawn(|| {
        std::thread::sleep(LAST_WAIT);
        std::process::exit(EXIT_SOFTWARE.into());
    });
}
