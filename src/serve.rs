//! The wiring: settings, channels, threads, shutdown. The only place where both planes are named.
//! docs/architecture.md draws the threads and channels.
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

use crossbeam_channel::bounded;
use weir_controlplane::control::{Listeners, Server};
use weir_controlplane::lookup::{LookupFiles, Lookups};
use weir_controlplane::process::{Asking, Reply};
use weir_controlplane::refusal_page::PageFile;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{About, CONTROL_THREAD, Control, ControlHandle, Events, Feeds, LiveRules};
use weir_dataplane::{DataPlane, Parts, Stop};
use weir_shared::clock::Clock;
use weir_shared::settings::{Listen, Loaded};
use weir_shared::threads::{self, How};

use crate::hangs;
use crate::opening;
use crate::process_log;
use crate::reload::Reloader;
use crate::shared::Shared;
use crate::signals::{Event, Signals};
use crate::sockets::Sockets;
use crate::sources::Sources;
use crate::successor::Successor;
use crate::systemd::Supervisor;
use crate::upgrade::{Outcome, Upgrade};

/// Breaks that may wait for the control plane. More at once are answered 429 and counted (LIMIT-6).
const MAX_BREAKS: usize = 4096;
/// Batches of finished requests that may wait for the control plane; a worker sends at most 256
/// requests in one.
const MAX_FINISHED: usize = 256;
/// Alert lines that may wait for the writer: what all kinds may have in a few minutes.
const MAX_LINES: usize = 1024;
/// How often a stop looks whether the workers have ended.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// How long a worker may take to end what it holds once it was told to abort.
const LAST_TURNS: Duration = Duration::from_secs(5);
/// How long the rest of a stop may take once the workers have ended, or will not.
const LAST_WAIT: Duration = Duration::from_secs(30);
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
    With(Box<dyn FnOnce(&str)>),
}

/// Serves until SIGTERM or SIGINT, then drains. SIGHUP reloads (RELOAD-2), SIGUSR1 reopens the log,
/// SIGUSR2 hands over to a new process (RESTART-1).
///
/// # Errors
/// [`StartError`]: nothing was served, or a thread has ended.
pub fn serve(
    sources: Sources,
    loaded: Loaded,
    signals: &mut Signals,
    announce: Announce,
) -> Result<(), StartError> {
    hangs::watch(EXIT_SOFTWARE)?;
    let mut service = Service::start(sources, loaded, signals.asking())?;
    if let Announce::With(print) = announce {
        print(&service.address());
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
    reloader: Reloader,
    /// This program, as it was started: what lies there now is the next. None without `/proc`.
    program: Option<PathBuf>,
    /// Where it listens.
    places: Vec<String>,
    /// The listening sockets, for a successor.
    sockets: Sockets,
    plane: DataPlane,
    control: ControlHandle,
    control_thread: JoinHandle<()>,
    operators: Server,
    log: RequestLog,
}

impl Service {
    /// Opens what can refuse the start, then starts the threads: those that serve come last.
    // long: a flat list of the steps
    fn start(sources: Sources, loaded: Loaded, process: Asking) -> Result<Self, StartError> {
        let unfit = |error: &dyn std::fmt::Display| StartError::Unfit(error.to_string());
        let settings = Arc::new(opening::within_open_files(loaded.settings.clone(), None)?);
        let clock = Clock::system();
        let program = std::env::current_exe().ok();
        let opening::Opened {
            mut bound,
            admin,
            predecessor,
        } = opening::listeners(&settings).map_err(StartError::Unfit)?;
        let https_port = bound.https_port();
        let places: Vec<String> = bound.places().iter().map(Listen::to_string).collect();
        let page =
            PageFile::open(settings.bans.refusal_page.as_deref()).map_err(|error| unfit(&error))?;
        let certificates = opening::certificates(&settings, &bound).map_err(StartError::Unfit)?;
        let rules = LiveRules::start(&settings, clock.clone()).map_err(|error| unfit(&error))?;
        let databases =
            LookupFiles::open(&settings.lookup, &clock).map_err(|error| unfit(&error))?;
        let shared = Shared::new(&settings, clock, &bound, &rules);
        // From here until the workers run nobody accepts, where there is a process before
        // (RESTART-1): what can be opened without the state is open.
        let (files, mut start) = opening::state_files(&settings, &shared.clock, predecessor)
            .map_err(StartError::Unfit)?;
        let sockets = Sockets::of(&mut bound, admin.as_ref())?;
        let listeners = Listeners::bind(&settings, admin).map_err(|error| unfit(&error))?;
        let (control_socket, admin_address) = listeners.places();
        let kept = std::mem::take(&mut start.lookups);
        let clients = shared.clients();
        let lookups = Lookups::start(&settings, &shared.clock, &clients, databases, kept)
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
            places: places.clone(),
            listing: loaded.listing.clone(),
            warnings: loaded.warnings.clone(),
            events: Arc::clone(&events),
            process,
        };
        let certificates_part = certificates.part();
        let wiring = shared.wiring(
            breaks,
            files,
            start,
            (lookups, rules, Arc::clone(&certificates)),
            feeds,
            about,
        );
        let (control, handle) = Control::new(wiring).map_err(|error| unfit(&error))?;
        let (log, records) =
            (shared.start_log(lines, Arc::clone(&events))).map_err(StartError::Unfit)?;
        let control_thread = threads::spawn(CONTROL_THREAD, move || control.run())?;
        let operators = listeners.start(&handle, events)?;
        let plane = DataPlane::start(
            bound,
            Parts {
                in_force: shared.in_force,
                clock: shared.clock,
                table: shared.table,
                snapshots: shared.snapshots,
                refusal_page: page.page(),
                breaks: breaks_up,
                records: Some(records),
                finished: Some(finished_up),
                https_port,
                tls: Some(certificates.config()),
                handover: handle.handover(),
                ask,
                spared: shared.spared,
            },
        )?;
        let mut parts = handle.parts();
        parts.extend([log.part(), page.part(), process_log::part(), plane.part()]);
        parts.push(certificates_part);
        let service = Self {
            reloader: Reloader::new(sources, loaded, settings, parts),
            program,
            places,
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

    /// The first place.
    fn address(&self) -> String {
        self.places.first().cloned().unwrap_or_default()
    }

    fn say_listening(&self, control_socket: Option<PathBuf>, admin: Option<SocketAddr>) {
        let settings = self.reloader.settings();
        tracing::info!(
            address = %self.address(),
            listen = %self.places.join(","),
            upstream = %settings.upstream,
            mode = if settings.observe { "observe" } else { "enforce" },
            workers = settings.workers,
            version = env!("CARGO_PKG_VERSION"),
            control_socket = control_socket.as_deref().map(|path| tracing::field::display(path.display())),
            admin = admin.map(tracing::field::display),
            "listening"
        );
    }

    /// Serves until a stop is asked for, a thread ends, or another process is ready to take over.
    fn run(&mut self, signals: &mut Signals, supervisor: &mut Supervisor) -> End {
        let mut upgrade: Option<Upgrade> = None;
        loop {
            let look = upgrade.is_some().then(|| Instant::now() + STOP_LOOK);
            let event = match look.into_iter().chain(supervisor.next_call()).min() {
                None => Some(signals.next()),
                Some(due) => signals.next_until(due),
            };
            match event {
                None => supervisor.call(),
                Some(Event::Stop | Event::StopNow) => break abandon(upgrade, End::Stop(None)),
                Some(Event::ThreadEnded(ended)) => {
                    break abandon(upgrade, End::Stop(Some(ended)));
                }
                Some(Event::Reload(asked)) => {
                    supervisor.reloading();
                    let ended = self.reloader.reload();
                    supervisor.ready();
                    // Whoever moved the log away must not have to wait until a fault is mended.
                    if ended.is_err() {
                        self.log.reopen();
                    }
                    if let Some(reply) = asked {
                        reply(ended);
                    }
                }
                Some(Event::Reopen) => self.log.reopen(),
                Some(Event::HandOver(asked)) if upgrade.is_none() => {
                    upgrade = Some(Upgrade::begin(&self.control, asked));
                }
                Some(Event::HandOver(asked)) => {
                    let why = "a hand-over has begun already";
                    tracing::warn!("{why}");
                    if let Some(reply) = asked {
                        reply(Err(why.to_owned()));
                    }
                }
            }
            if let Some(begun) = upgrade.take() {
                match begun.step(&self.control, |asked| self.successor(asked)) {
                    Outcome::Going(begun) => upgrade = Some(begun),
                    Outcome::Failed => {}
                    Outcome::Ready(successor) => break End::HandOver(successor),
                }
            }
        }
    }

    /// Starts the process that is to take over.
    fn successor(&self, asked: Option<Reply<Result<u32, String>>>) -> Option<Successor> {
        let started = match &self.program {
            None => Err("where this program lies is not known without /proc".to_owned()),
            Some(program) => Successor::start(program, &self.sockets.each())
                .map(|successor| (successor, program.display()))
                .map_err(|error| format!("{} cannot be started: {error}", program.display())),
        };
        match started {
            Ok((successor, program)) => {
                tracing::info!(process = successor.id(), %program, "a new process is started");
                Some(successor.asked_by(asked))
            }
            Err(why) => {
                tracing::error!("{why}, this process goes on");
                if let Some(reply) = asked {
                    reply(Err(why));
                }
                None
            }
        }
    }

    /// Gives the state and all connections to come to another process, then ends its own
    /// (RESTART-1).
    fn hand_over(self, signals: &mut Signals, mut successor: Successor) -> Result<(), StartError> {
        tracing::info!(process = successor.id(), "handing over");
        let shutdown = self.reloader.settings().timeouts.shutdown;
        // First: whoever asked for it is answered while requests are still accepted.
        self.operators.stop();
        self.sockets.give_away();
        self.plane.stop(Stop::HandOver);
        self.control.stop();
        let control_ended = self.control_thread.join().is_ok();
        let told = successor.go();
        if let Err(error) = &told {
            tracing::error!("the new process has ended, and nobody accepts any more: {error}");
        }
        end_connections(&self.plane, shutdown, signals);
        let workers_ended = join(self.plane);
        end_in_any_case();
        self.log.stop();
        told?;
        workers_ended.and(whole(control_ended))
    }

    /// Ends everything, the data plane first: what it counted is final then, and the last write of
    /// the state files holds all of it.
    fn end(
        mut self,
        signals: &mut Signals,
        ended: Option<threads::Ended>,
    ) -> Result<(), StartError> {
        let ended = ended.map(|ended| {
            tracing::error!("the thread {ended}: the state files are written and the service ends");
            end_in_any_case();
            ended.to_string()
        });
        if ended.is_some() {
            self.plane.stop(Stop::Abort);
        } else {
            self.drain(signals);
        }
        let workers_ended = join(self.plane);
        end_in_any_case();
        self.operators.stop();
        self.control.stop();
        let control_ended = self.control_thread.join().is_ok();
        self.log.stop();
        match ended {
            Some(ended) => Err(StartError::ThreadEnded(ended)),
            None => workers_ended.and(whole(control_ended)),
        }
    }

    /// Serves on while health says that the service is going, so that a load balancer sends nothing
    /// more before the listeners close (ALIVE-4). False if the stop is to be at once.
    fn announce_stop(&self, signals: &mut Signals) -> bool {
        let delay = self.reloader.settings().timeouts.shutdown_delay;
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
                Event::Stop | Event::Reload(_) | Event::HandOver(_) => {}
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
        let timeout = self.reloader.settings().timeouts.shutdown;
        tracing::info!(timeout_seconds = timeout.as_secs_f64(), "draining");
        self.control.announce_stop();
        self.sockets = Sockets::default();
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

/// Waits for the workers of a stop, which have been told to abort by now. One that hangs does not
/// keep the others' state from its files (ALIVE-7).
fn join(plane: DataPlane) -> Result<(), StartError> {
    plane.join(LAST_TURNS).map_err(|how| match how {
        How::Hangs => {
            tracing::error!("a worker hangs: the service ends without it");
            StartError::ThreadEnded("a worker hangs".to_owned())
        }
        How::Panicked | How::Returned => panicked(),
    })
}

fn panicked() -> StartError {
    StartError::ThreadEnded("it panicked in the stop".to_owned())
}

/// The end of a stop in which every thread ended as it should, or not.
fn whole(ended: bool) -> Result<(), StartError> {
    ended.then_some(()).ok_or_else(panicked)
}

/// A process that was to take over is not wanted any more.
fn abandon(upgrade: Option<Upgrade>, end: End) -> End {
    if let Some(upgrade) = upgrade {
        upgrade.abandon();
    }
    end
}

/// What waits for a thread that has ended, or hangs, must not keep the process half alive.
fn end_in_any_case() {
    let last = std::thread::Builder::new().name("weir-last-wait".to_owned());
    let _ = last.spawn(|| {
        std::thread::sleep(LAST_WAIT);
        std::process::exit(EXIT_SOFTWARE.into());
    });
}
