//! One connection of the data plane in a box: driven in this thread, over socket pairs, by a clock
//! that stands until it is moved. Nothing waits, nothing else runs, and a history of bytes, times,
//! bans and answers runs the same way each time; after each event everything that the rules promise
//! of a connection is asked (`check`). For tests and fuzz targets alone.
//!
//! It enters where the worker does, with a connection that was accepted, and sees what others see:
//! sockets, records, counters. How a connection is served does not matter to it.

pub mod application;
pub mod check;
pub mod client;
pub mod ends;
pub mod history;
pub mod late;
pub mod seen;
#[cfg(test)]
pub mod sequences;
pub mod service;
pub mod strict;
pub mod turns;

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use weir_shared::settings::Settings;

use crate::worker::Stop;
use crate::world::application::Application;
use crate::world::check::Check;
use crate::world::client::Client;
use crate::world::late::{Late, STEP_MS};
use crate::world::service::{NAMED, NAMED_BANNED, Service};

pub use crate::world::history::{Event, History, Who};
pub use crate::world::seen::Answered;

/// So many turns of everything are made behind one event, at most.
const MOST_TURNS: usize = 100_000;
/// A client that is slow for a while.
const SLOW_STEPS: usize = 12;
const SLOW_STEP_MS: u64 = 3_000;
/// Once nothing more happens, time passes in steps of so long.
const LAST_STEP_MS: u64 = STEP_MS / 2;
/// The least that a send buffer of a narrow connection takes: what TCP's holds at least.
const NARROW: usize = 16 * 1024;

/// Where histories run, one after the other: what is made once for all of them.
pub struct Room {
    runtime: LocalRuntime,
    application: Application,
    settings: Vec<Arc<Settings>>,
}

impl Room {
    /// A room.
    ///
    /// # Errors
    /// What the system said.
    pub fn new() -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-world-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .start_paused(true)
            .build_local(LocalOptions::default())?;
        Ok(Self {
            runtime,
            application: Application::new(&path)?,
            settings: service::settings(&path),
        })
    }

    /// Runs a history, whose first request has this number.
    ///
    /// # Errors
    /// A sentence with what a rule does not allow.
    pub fn run(&mut self, history: &History, first: usize) -> Result<Vec<Answered>, String> {
        self.application.forget();
        let (application, settings) = (&mut self.application, self.settings.as_slice());
        let ran = self.runtime.block_on(async {
            let mut world = World::new(history, first, application, settings)?;
            let ran = world.run(history).await;
            drop(world.serving.take());
            ran.map(|()| world.check.seen.answered())
        });
        turns::watch(None);
        ran
    }
}

/// One history as it runs.
struct World<'a> {
    service: Service,
    application: &'a mut Application,
    settings: &'a [Arc<Settings>],
    client: Client,
    peer: IpAddr,
    /// None once it has ended.
    serving: Option<Pin<Box<dyn Future<Output = ()>>>>,
    woken: Arc<Woken>,
    waker: Waker,
    /// The socket of the client.
    socket: Weak<UnixStream>,
    next_number: usize,
    by_proxy: bool,
    /// Nobody does anything before the event behind the next.
    is_at_once: bool,
    /// For so long nothing has moved.
    quiet_ms: u64,
    check: Check,
    late: Late,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who is banned in a history besides its peer.
fn banned_named() -> Vec<IpAddr> {
    NAMED_BANNED.parse().into_iter().collect()
}

impl<'a> World<'a> {
    fn new(
        history: &History,
        first: usize,
        application: &'a mut Application,
        settings: &'a [Arc<Settings>],
    ) -> Result<Self, String> {
        let told = |error: std::io::Error| error.to_string();
        let of = usize::from(history.settings) % settings.len().max(1);
        let own = settings.get(of).ok_or("no settings")?;
        let service = Service::new(own);
        let peer = match history.who {
            Who::LetIn | Who::Banned => service::PEER,
            Who::Denied => service::DENIED,
            Who::Proxy => service::PROXY,
        };
        let mut banned = banned_named();
        banned.extend((history.who == Who::Banned).then_some(peer));
        service.ban(&banned);
        let (ours, theirs) = UnixStream::pair().map_err(told)?;
        ours.set_nonblocking(true).map_err(told)?;
        theirs.set_nonblocking(true).map_err(told)?;
        if history.narrow {
            let taken = socket2::SockRef::from(&theirs).set_send_buffer_size(NARROW);
            taken.map_err(told)?;
        }
        let socket = Rc::new(ours);
        let weak = Rc::downgrade(&socket);
        let probed = Weak::clone(&weak);
        turns::watch(Some(Box::new(move || waiting(&probed))));
        let serving = service.accept(theirs, peer);
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Ok(Self {
            check: Check::new(history),
            late: Late::new(),
            service,
            application,
            settings,
            client: Client::new(socket),
            peer,
            serving,
            waker: Waker::from(Arc::clone(&woken)),
            woken,
            socket: weak,
            next_number: first,
            by_proxy: history.who == Who::Proxy,
            is_at_once: false,
            quiet_ms: 0,
        })
    }

    async fn run(&mut self, history: &History) -> Result<(), String> {
        self.settle().await?;
        for (at, event) in history.events.iter().enumerate() {
            let outcome = self.step(event).await;
            outcome.map_err(|fault| format!("{fault}\nbehind event {at}, {event:?}"))?;
        }
        self.run_out()
            .await
            .map_err(|fault| format!("{fault}\nat the end"))
    }

    /// One event, and everything that follows from it.
    // long: a flat list of what may happen
    async fn step(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Ask { ask, count } => {
                let named = if ask.of_banned { NAMED_BANNED } else { NAMED };
                for _ in 0..*count {
                    let named = self.by_proxy.then_some(named);
                    self.client.send(&ask.bytes(self.next_number, named));
                    self.next_number += 1;
                }
            }
            Event::Raw(bytes) => self.client.send(bytes),
            Event::Hold => self.client.hold(),
            Event::Part(bytes) => self.client.part(usize::from(*bytes)),
            Event::Release => self.client.release(),
            Event::Pause => self.client.may_read(0),
            Event::Take(bytes) => self.client.may_read(usize::from(*bytes)),
            Event::Read => self.client.may_read(usize::MAX),
            Event::CloseWrite => self.client.close_write(),
            Event::Reset => self.client.reset(),
            Event::Advance(milliseconds) => {
                return self.advance(u64::from(*milliseconds)).await;
            }
            Event::Drip(bytes) => {
                for _ in 0..SLOW_STEPS {
                    self.client.part(usize::from(*bytes));
                    self.settle().await?;
                    self.advance(SLOW_STEP_MS).await?;
                }
                return Ok(());
            }
            Event::Sip(bytes) => {
                for _ in 0..SLOW_STEPS {
                    self.client.may_read(usize::from(*bytes));
                    self.settle().await?;
                    self.advance(SLOW_STEP_MS).await?;
                }
                return Ok(());
            }
            Event::Ban => {
                let banned = [banned_named(), vec![self.peer]].concat();
                self.service.ban(&banned);
            }
            Event::Lift => self.service.ban(&banned_named()),
            Event::Reload(number) => {
                let of = usize::from(*number) % self.settings.len().max(1);
                if let Some(settings) = self.settings.get(of) {
                    self.service.reload(settings);
                }
            }
            Event::Go => self.application.go(),
            Event::Drain => self.service.stop(Stop::Drain),
            Event::HandOver => self.service.stop(Stop::HandOver),
            Event::Abort => self.service.stop(Stop::Abort),
            Event::AtOnce => {
                self.is_at_once = true;
                return Ok(());
            }
        }
        self.check.seen.note(event, self.has_read_all());
        if std::mem::take(&mut self.is_at_once) {
            return Ok(());
        }
        self.settle().await
    }

    /// Time passes, in steps.
    async fn advance(&mut self, milliseconds: u64) -> Result<(), String> {
        let step = (milliseconds / 16).clamp(50, STEP_MS);
        let mut left = milliseconds;
        while left > 0 {
            let next = step.min(left);
            left -= next;
            self.pass(next).await?;
        }
        Ok(())
    }

    /// Time passes, in one step.
    async fn pass(&mut self, milliseconds: u64) -> Result<(), String> {
        tokio::time::advance(Duration::from_millis(milliseconds)).await;
        self.service.advance(milliseconds);
        self.check.seen.passed(milliseconds);
        self.quiet_ms += milliseconds;
        self.settle().await?;
        if self.serving.is_some() {
            let seen = &self.check.seen;
            let late = self.late.check(seen, &self.client, self.quiet_ms);
            late.map_err(|fault| self.check.with_time(fault))?;
        }
        Ok(())
    }

    /// Everything goes as far as it does without a further event; then all is checked.
    async fn settle(&mut self) -> Result<(), String> {
        let (mut idle, mut is_new) = (0, false);
        for _ in 0..MOST_TURNS {
            // Nobody connects to the application before something has moved.
            let moved = self.client.turn() | self.application.turn(is_new);
            self.service.turn();
            // The runtime asks the system what has come.
            tokio::task::yield_now().await;
            let polled = self.woken.0.swap(false, Ordering::Relaxed) && self.serving.is_some();
            if !polled && !moved {
                return if is_new { self.checked() } else { Ok(()) };
            }
            is_new = true;
            let before = self.waiting();
            if polled {
                self.poll()?;
            }
            if moved || self.waiting() != before {
                (idle, self.quiet_ms) = (0, 0);
            } else {
                idle += 1;
            }
            if idle > turns::MOST {
                return Err(format!("{idle} polls without a byte moved or a wait"));
            }
        }
        Err("it comes to no rest".to_owned())
    }

    fn poll(&mut self) -> Result<(), String> {
        let Some(serving) = &mut self.serving else {
            return Ok(());
        };
        turns::set_polled(true);
        let mut cx = Context::from_waker(&self.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(&mut cx)));
        turns::set_polled(false);
        if turns::was_stuck() {
            return Err(format!("{} turns without a byte moved", turns::MOST));
        }
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => self.serving = None,
            Err(_) => return Err("a panic ended the connection's task".to_owned()),
        }
        Ok(())
    }

    /// Whether the client has read all that was written to it so far.
    fn has_read_all(&self) -> bool {
        self.client.reads() && waiting(&self.socket) == 0
    }

    /// How many bytes the client and the application have not read yet.
    fn waiting(&self) -> u64 {
        waiting(&self.socket) + self.application.waiting()
    }

    fn checked(&mut self) -> Result<(), String> {
        let logged = self.service.logged();
        self.check.seen.take(&self.client, logged);
        self.check.seen.was_unread |= waiting(&self.socket) > 0;
        let is_open = self.serving.is_some();
        let checked = self
            .check
            .all(&self.client, self.application, &self.service, is_open);
        checked.map_err(|fault| self.check.with_time(fault))
    }

    /// No further event: what was begun comes to its end, or is ended.
    async fn run_out(&mut self) -> Result<(), String> {
        self.client.release();
        self.application.go();
        self.settle().await?;
        while self.serving.is_some() {
            self.pass(LAST_STEP_MS).await?;
        }
        self.client.may_read(usize::MAX);
        self.settle().await?;
        self.service.advance(50);
        if self.service.has_connections() || self.service.totals().connections != 0 {
            return Err("a connection is counted that has ended".to_owned());
        }
        if self.service.pipes() != 0 {
            return Err(format!("{} pipes are in use", self.service.pipes()));
        }
        let clients = [
            Some(self.peer),
            NAMED.parse().ok(),
            NAMED_BANNED.parse().ok(),
        ];
        let (mut passed, mut bytes) = (0, 0);
        for client in clients.into_iter().flatten() {
            let charged = self.service.charged(client);
            passed += charged.0;
            bytes += charged.1;
            let under_way = self.service.under_way(client);
            if under_way != 0 {
                return Err(format!("{under_way} requests of {client} are under way"));
            }
        }
        self.check.charged(passed, bytes)?;
        self.check.end(&self.client)
    }
}

/// How many bytes can be read from a socket.
fn waiting(socket: &Weak<UnixStream>) -> u64 {
    let socket = socket.upgrade();
    socket.map_or(0, |socket| {
        rustix::io::ioctl_fionread(&*socket).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests;
