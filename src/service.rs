//! The running service: its main loop, a hand-over to another process, and a stop.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_controlplane::ControlHandle;
use weir_controlplane::control::Server;
use weir_controlplane::request_log::RequestLog;
use weir_dataplane::{DataPlane, Stop};
use weir_shared::threads::{Ended, How};

use crate::channel::Kind;
use crate::fault::{self, Step};
use crate::reloading::{Asked, Outcome as Reloaded, Reloads};
use crate::signals::{Event, Signals};
use crate::sockets::Sockets;
use crate::successor::Successor;
use crate::systemd::Supervisor;
use crate::upgrade::{Outcome, Taken, Upgrade};

/// How often a stop looks whether the workers have ended.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// Reloads and hand-overs that may wait for the reload under way.
const MAX_WAITING: usize = 8;
/// How long a worker may take to end its connections once it was told to abort.
const LAST_TURNS: Duration = Duration::from_secs(5);
/// How long the rest of a stop may take once the workers have ended, or were given up as hanging.
const LAST_WAIT: Duration = Duration::from_secs(30);
/// Exit status of an internal fault (`EX_SOFTWARE` of sysexits): a supervisor restarts the service
/// (ALIVE-2).
pub const EXIT_SOFTWARE: u8 = 70;

/// Why the service did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something an operator must mend: exit status 78.
    #[error("{0}")]
    Unfit(String),
    /// A signal stopped the new process of a hand-over before it served.
    #[error("it was told to stop before it served")]
    Stopped,
    /// The system refused a thread.
    #[error("the system refused a thread: {0}")]
    System(#[from] io::Error),
    /// A thread ended unexpectedly, or panicked in the stop: exit status 70.
    #[error("a thread has ended and the service with it: {0}")]
    ThreadEnded(String),
}

/// Why [`Service::run`] returned.
pub enum End {
    /// A signal, or a thread that ended unexpectedly.
    Stop(Option<Ended>),
    /// Another process has taken over.
    HandOver(Taken),
}

/// The running service.
pub struct Service {
    pub reloads: Reloads,
    /// The path that this program was started from: a hand-over starts the file that lies there by
    /// then. None without `/proc`.
    pub program: Option<PathBuf>,
    /// The addresses that the service listens on.
    pub places: Vec<String>,
    /// The listening sockets, for a successor.
    pub sockets: Sockets,
    pub plane: DataPlane,
    pub control: ControlHandle,
    pub control_thread: JoinHandle<()>,
    pub operators: Server,
    pub log: RequestLog,
}

impl Service {
    /// The first address that the service listens on.
    pub fn address(&self) -> String {
        self.places.first().cloned().unwrap_or_default()
    }

    /// Writes the line `listening` of the process log.
    pub fn say_listening(&self, control_socket: Option<PathBuf>, admin: Option<SocketAddr>) {
        let settings = self.reloads.settings();
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

    /// Serves until a stop is asked for, a thread ends, or another process serves.
    pub fn run(&mut self, signals: &mut Signals, supervisor: &mut Supervisor) -> End {
        let mut upgrade: Option<Upgrade> = None;
        // Reloads and hand-overs that were asked for during a reload; they are done in order.
        let mut waiting = VecDeque::new();
        loop {
            let look = upgrade.is_some().then(|| Instant::now() + STOP_LOOK);
            let looks = [look, self.reloads.next_look(), supervisor.next_call()];
            let event = match looks.into_iter().flatten().min() {
                _ if !waiting.is_empty() && !self.reloads.is_under_way() => waiting.pop_front(),
                None => Some(signals.next()),
                Some(due) => signals.next_until(due),
            };
            if let Some((asked, outcome)) = self.reloads.outcome() {
                self.reloaded(asked, outcome, supervisor);
            }
            // Also between events: many signals do not keep the watchdog waiting.
            supervisor.call();
            match event {
                None => {}
                Some(event @ (Event::Reload(_) | Event::HandOver(_)))
                    if self.reloads.is_under_way() && waiting.len() < MAX_WAITING =>
                {
                    waiting.push_back(event);
                }
                Some(Event::Stop | Event::StopNow) => break abandon(upgrade, End::Stop(None)),
                Some(Event::ThreadEnded(ended)) => {
                    break abandon(upgrade, End::Stop(Some(ended)));
                }
                Some(Event::Reload(asked)) => {
                    self.reload(asked, upgrade.as_ref(), supervisor);
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
            if !self.reloads.is_under_way()
                && let Some(begun) = upgrade.take()
            {
                match begun.step(&self.control, || self.successor()) {
                    Outcome::Going(begun) => upgrade = Some(begun),
                    Outcome::Failed => {}
                    Outcome::Taken(taken) => break End::HandOver(taken),
                }
            }
        }
    }

    /// Begins a reload, on a thread of its own (RELOAD-4).
    fn reload(&mut self, asked: Asked, upgrade: Option<&Upgrade>, supervisor: &Supervisor) {
        supervisor.reloading();
        let begun = if upgrade.is_some_and(Upgrade::is_started) {
            let why = "a hand-over to another process is under way: try again";
            tracing::warn!("the reload is refused, nothing is changed: {why}");
            Err((asked, Err(vec![why.to_owned()])))
        } else {
            self.reloads.begin(asked)
        };
        if let Err((asked, refused)) = begun {
            self.reloaded(asked, refused, supervisor);
        }
    }

    /// Ends a reload, taken or refused: tells the supervisor and whoever asked.
    fn reloaded(&self, asked: Asked, outcome: Reloaded, supervisor: &Supervisor) {
        supervisor.ready();
        // A SIGHUP may come from log rotation: the log is reopened even where the settings have a
        // fault.
        if outcome.is_err() {
            self.log.reopen();
        }
        if let Some(reply) = asked {
            reply(outcome);
        }
    }

    /// Starts the new process of a hand-over.
    fn successor(&self) -> Result<Successor, String> {
        let program =
            (self.program.as_ref()).ok_or("where this program lies is not known without /proc")?;
        let failed = |error| format!("{} cannot be started: {error}", program.display());
        let operators = self.operators.pass_on().map_err(failed)?;
        let mut sockets = self.sockets.each();
        sockets.extend(
            operators
                .socket
                .iter()
                .map(|it| (Kind::Control, it.as_fd())),
        );
        let admin = match operators.admin_is_given {
            true => Kind::GivenAdmin,
            false => Kind::Admin,
        };
        sockets.extend(operators.admin.iter().map(|it| (admin, it.as_fd())));
        let successor = Successor::start(program, &sockets).map_err(failed)?;
        let (process, program) = (successor.id(), program.display());
        tracing::info!(process, %program, "a new process is started");
        Ok(successor)
    }

    /// Ends this process after another one has taken over: it finishes the requests it holds, and
    /// touches nothing else. The state and all new connections belong to the new process
    /// (RESTART-1).
    pub fn hand_over(
        mut self,
        signals: &mut Signals,
        supervisor: &Supervisor,
        taken: Taken,
    ) -> Result<(), StartError> {
        let Taken {
            mut successor,
            giving,
        } = taken;
        tracing::info!(process = successor.id(), "handing over");
        let shutdown = self.reloads.settings().timeouts.shutdown;
        self.plane.stop(Stop::HandOver);
        supervisor.handed_over(successor.id());
        successor.say_told();
        // Before the reply: whoever asks next must reach the new process.
        self.operators.leave();
        successor.answer(Ok(successor.id()));
        // For tests that end this process here. An error of this step has no consequence.
        let _ = fault::at(Step::Taken);
        self.operators.stop();
        self.sockets.give_away();
        giving.leave();
        let control_ended = self.control_thread.join().is_ok();
        let ended = end_connections(&self.plane, shutdown, signals);
        let workers_ended = join(self.plane);
        end_in_any_case();
        self.log.stop();
        no_thread_ended(ended, signals)?;
        workers_ended.and(whole(control_ended))
    }

    /// Stops the service, the data plane first: its counts are final then, and the last write of
    /// the state files holds all of them.
    pub fn end(mut self, signals: &mut Signals, ended: Option<Ended>) -> Result<(), StartError> {
        let ended = ended.or_else(|| self.drain(signals));
        if let Some(ended) = &ended {
            tracing::error!("the thread {ended}: the state files are written and the service ends");
            end_in_any_case();
            self.plane.stop(Stop::Abort);
        }
        let workers_ended = join(self.plane);
        end_in_any_case();
        self.operators.stop();
        self.control.stop();
        let control_ended = self.control_thread.join().is_ok();
        self.log.stop();
        no_thread_ended(ended, signals)?;
        workers_ended.and(whole(control_ended))
    }

    /// Goes on serving for `shutdown_delay` while the health check answers 503, so that a load
    /// balancer takes this instance out before the listeners close (ALIVE-4). Breaks where the stop
    /// must be immediate, with the thread that has ended, if one has.
    fn announce_stop(&self, signals: &mut Signals) -> ControlFlow<Option<Ended>> {
        let delay = self.reloads.settings().timeouts.shutdown_delay;
        if delay.is_zero() {
            return ControlFlow::Continue(());
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
                Event::StopNow => return ControlFlow::Break(None),
                Event::ThreadEnded(ended) => return ControlFlow::Break(Some(ended)),
                Event::Stop | Event::Reload(_) | Event::HandOver(_) => {}
                Event::Reopen => self.log.reopen(),
            }
        }
        ControlFlow::Continue(())
    }

    /// Closes the listeners, lets running responses end, and aborts the remaining connections after
    /// the time-out, at a second signal, or where a thread ends unexpectedly, which it returns.
    fn drain(&mut self, signals: &mut Signals) -> Option<Ended> {
        if let ControlFlow::Break(ended) = self.announce_stop(signals) {
            self.plane.stop(Stop::Abort);
            return ended;
        }
        let timeout = self.reloads.settings().timeouts.shutdown;
        tracing::info!(timeout_seconds = timeout.as_secs_f64(), "draining");
        self.control.announce_stop();
        self.sockets = Sockets::default();
        self.plane.stop(Stop::Drain);
        end_connections(&self.plane, timeout, signals)
    }
}

/// Lets running responses end, and aborts the remaining connections after the time-out, at a second
/// signal, or where a thread ends unexpectedly, which it returns.
fn end_connections(plane: &DataPlane, timeout: Duration, signals: &mut Signals) -> Option<Ended> {
    let deadline = Instant::now() + timeout;
    while !plane.is_finished() {
        let look = Instant::now() + STOP_LOOK;
        let event = signals.next_until(look);
        let stop_now = matches!(event, Some(Event::StopNow));
        let ended = event.and_then(unexpected_end);
        if ended.is_some() || stop_now || Instant::now() >= deadline {
            tracing::warn!("ending the connections that are left");
            plane.stop(Stop::Abort);
            return ended;
        }
    }
    None
}

/// The thread that has ended by this event and should not have: in a stop all threads return in
/// turn, but none panics or hangs.
fn unexpected_end(event: Event) -> Option<Ended> {
    match event {
        Event::ThreadEnded(ended) if ended.how != How::Returned => Some(ended),
        _ => None,
    }
}

/// The result of a stop: an error where a thread ended unexpectedly, in the stop or before.
fn no_thread_ended(ended: Option<Ended>, signals: &mut Signals) -> Result<(), StartError> {
    let mut waiting = std::iter::from_fn(|| signals.next_until(Instant::now()));
    let ended = ended.or_else(|| waiting.find_map(unexpected_end));
    ended.map_or(Ok(()), |ended| {
        Err(StartError::ThreadEnded(ended.to_string()))
    })
}

/// Waits for the workers, which have been told to stop. A worker that hangs does not prevent the
/// last write of the state files (ALIVE-7).
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

/// The result of a stop: an error where the control thread panicked.
fn whole(ended: bool) -> Result<(), StartError> {
    ended.then_some(()).ok_or_else(panicked)
}

/// Ends a hand-over that is under way, because this process stops.
fn abandon(upgrade: Option<Upgrade>, end: End) -> End {
    if let Some(upgrade) = upgrade {
        upgrade.abandon();
    }
    end
}

/// Exits [`LAST_WAIT`] from now whatever happens: a join of a thread that hangs must not keep the
/// process half alive.
fn end_in_any_case() {
    let last = std::thread::Builder::new().name("weir-last-wait".to_owned());
    let _ = last.spawn(|| {
        std::thread::sleep(LAST_WAIT);
        std::process::exit(EXIT_SOFTWARE.into());
    });
}
