//! One worker's loop: it accepts connections within their bounds, looks after them on its tick, and
//! drains them when the service stops.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use weir_shared::client::{Client, fold};
use weir_shared::netblock::Netblock;
use weir_shared::pulse::Pulse;
use weir_shared::threads::Alive;
use weir_shared::totals::ConnectionError;

use crate::connection;
use crate::connection_limits::{ConnectionLimits, Peer};
use crate::downstream::deadlines::Timeouts;
use crate::downstream::{Downstream, Ending};
use crate::worker::{Stop, Worker};

/// How often a worker looks at its deadlines, sends its log records and reads the wall clock anew.
const TICK: Duration = Duration::from_millis(50);
/// How long an idle connection may be used once more after a hand-over.
const LAST_USE: Duration = Duration::from_secs(3);
/// How long accepting rests after `accept` failed, above all because no descriptor was left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After so many ticks it is asked of every WebSocket whether its client was banned: twice a
/// second.
const TUNNEL_TICKS: u32 = 10;
/// A connection of another worker gives way only where it has been idle for so much longer than one
/// of this worker: what it told is as old as its last tick.
const TOLD_LATE_NS: u64 = 2 * 50_000_000;
/// Whether the system lacks descriptors or memory, which time may mend. Every other error of
/// `accept` is one connection's that was gone before it was accepted, or was refused by a filter
/// (CONN-4).
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// The connections of one worker.
pub struct Acceptor {
    /// Which worker this is.
    index: usize,
    worker: Rc<Worker>,
    limits: Arc<ConnectionLimits>,
    timeouts: Timeouts,
    /// Those that are open, and a few that have ended since the last tick.
    open: RefCell<Vec<Weak<Downstream>>>,
    /// Those that were idle when room was last looked for, each with the time since when; the one
    /// that is idle longest is last.
    idle: RefCell<Vec<(u64, Weak<Downstream>)>>,
    /// How often one had begun to be idle when they were looked for since the last tick. Nothing
    /// new is found before another does: while every connection is busy, refusing one costs little.
    looked: Cell<Option<usize>>,
    ticks: Cell<u32>,
}

impl Acceptor {
    /// An acceptor that has accepted nothing yet.
    pub fn new(
        index: usize,
        worker: Rc<Worker>,
        limits: Arc<ConnectionLimits>,
        timeouts: Timeouts,
    ) -> Rc<Self> {
        Rc::new(Self {
            index,
            worker,
            limits,
            timeouts,
            open: RefCell::default(),
            idle: RefCell::default(),
            looked: Cell::new(None),
            ticks: Cell::new(0),
        })
    }

    /// Accepts until told to stop, then waits for the connections to end.
    pub async fn run(
        self: Rc<Self>,
        listener: std::net::TcpListener,
        mut stopped: watch::Receiver<Stop>,
    ) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "a worker cannot listen"),
        };
        tokio::task::spawn_local(Rc::clone(&self).tick());
        {
            // Dropping `accepting` closes the listener.
            let mut accepting = pin!(Rc::clone(&self).accept(listener));
            let mut stopping =
                pin!(stopped.wait_for(|stop| !matches!(stop, Stop::No | Stop::Announce)));
            poll_fn(|cx| {
                if stopping.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                accepting.as_mut().poll(cx)
            })
            .await;
        }
        if self.worker.hands_over() {
            self.hand_over(&mut stopped).await;
        }
        self.drain(&mut stopped).await;
        self.worker.events.flush();
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) => {
                    self.worker
                        .counters
                        .connection_error(ConnectionError::Accept);
                    tracing::warn!(%error, "accept failed");
                    if is_shortage(&error) {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    } else {
                        // One connection's fault. The others wait no longer than its turn.
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    /// Starts serving a connection, or closes it at once where a bound is reached.
    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        let worker = &self.worker;
        let peer = fold(peer.ip());
        let trusted = worker.trusted_proxies.contains(peer);
        let bounded = (!trusted).then(|| self.bounded(peer));
        let make_room = || self.make_room();
        let slot =
            match self
                .limits
                .enter(self.index, bounded.as_ref(), &worker.counters, make_room)
            {
                Ok(slot) => slot,
                Err(kind) => return worker.counters.connection_error(kind),
            };
        let clock = Rc::clone(&worker.clock);
        let downstream = Downstream::new(stream, peer, trusted, slot, clock, self.timeouts);
        if bounded.is_some_and(|peer| peer.is_refused) {
            downstream.note_refused();
        }
        self.open.borrow_mut().push(Rc::downgrade(&downstream));
        let worker = Rc::clone(worker);
        tokio::task::spawn_local(connection::serve(worker, downstream));
    }

    /// What an untrusted peer is bounded by.
    fn bounded(&self, address: IpAddr) -> Peer {
        let client = Client::of(address);
        Peer {
            client,
            netblock: Netblock::of(client, self.worker.rules.ban_prefixes),
            is_refused: self.worker.refuses(client, address),
        }
    }

    /// Closes the connection that is idle longest, for another to take its place; false if none is
    /// idle (CONN-2).
    fn make_room(&self) -> bool {
        let own = self.idle_longest();
        let own_since = own.as_ref().map_or(u64::MAX, |(since, _)| *since);
        let elsewhere = self.limits.idle_elsewhere(self.index);
        let (other, other_since) = elsewhere.unwrap_or((self.index, u64::MAX));
        match own {
            Some((_, connection)) if own_since <= other_since.saturating_add(TOLD_LATE_NS) => {
                connection.finish(Ending::Idle);
            }
            _ if elsewhere.is_none() => return false,
            own => {
                self.limits.want_closed(other, 1);
                let own = own.map(|(since, connection)| (since, Rc::downgrade(&connection)));
                self.idle.borrow_mut().extend(own);
            }
        }
        true
    }

    /// Takes the connection that is idle longest from those that are idle.
    fn idle_longest(&self) -> Option<(u64, Rc<Downstream>)> {
        let mut idle = self.idle.borrow_mut();
        loop {
            while let Some((since, connection)) = idle.pop() {
                // It may have been used meanwhile, or be gone.
                let still = |connection: &Rc<Downstream>| connection.idle_since() == Some(since);
                if let Some(connection) = connection.upgrade().filter(still) {
                    return Some((since, connection));
                }
            }
            let begun = Some(self.limits.idle_begun(self.index));
            if self.looked.replace(begun) == begun {
                return None;
            }
            let open = self.open.borrow();
            let since = |connection: &Weak<Downstream>| connection.upgrade()?.idle_since();
            idle.extend(
                open.iter()
                    .filter_map(|open| Some((since(open)?, Weak::clone(open)))),
            );
            idle.sort_unstable_by_key(|(since, _)| Reverse(*since));
        }
    }

    /// The worker's heartbeat: wall clock, deadlines, idle upstream connections, log records.
    async fn tick(self: Rc<Self>) {
        // A panic in here would end this task alone, and every deadline of the worker with it.
        let _alive = Alive::new("the tick of a worker");
        let pulse = Pulse::new("a worker");
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            pulse.beat();
            self.worker.clock.tick();
            self.sweep();
            self.worker.pool.sweep();
            self.worker.events.flush();
        }
    }

    fn sweep(&self) {
        let ticks = self.ticks.get().wrapping_add(1);
        self.ticks.set(ticks);
        let ask_for_tunnels = ticks.is_multiple_of(TUNNEL_TICKS);
        let mut idle_since = u64::MAX;
        self.open.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else {
                return false;
            };
            connection.sweep();
            if let Some((client, address)) = connection.tunnel_of().filter(|_| ask_for_tunnels)
                && self.worker.refuses(client, address)
            {
                connection.finish(Ending::Refused);
            }
            if let Some(since) = connection.idle_since() {
                idle_since = idle_since.min(since);
            }
            true
        });
        self.looked.set(None);
        let wanted = self.limits.tell_idle(self.index, idle_since);
        for left in (0..wanted).rev() {
            let Some((_, connection)) = self.idle_longest() else {
                // Those that are idle next.
                return self.limits.want_closed(self.index, left + 1);
            };
            connection.finish(Ending::Idle);
        }
    }

    /// Leaves connections the time for one more request, which their client may have under way
    /// (RESTART-1).
    async fn hand_over(&self, stopped: &mut watch::Receiver<Stop>) {
        self.finish_all(Ending::Drain, |connection| {
            connection.idle_since().is_none()
        });
        let told = stopped.wait_for(|stop| *stop != Stop::HandOver);
        // Late, or told to be quicker: both lead on.
        let _ = tokio::time::timeout(LAST_USE, told).await;
    }

    /// Lets the connections end; ends them once the service is told to abort.
    async fn drain(&self, stopped: &mut watch::Receiver<Stop>) {
        self.finish_all(Ending::Drain, |_| true);
        while self.has_connections() {
            let aborted =
                tokio::time::timeout(TICK, stopped.wait_for(|stop| *stop == Stop::Abort)).await;
            if aborted.is_ok() {
                self.finish_all(Ending::Abort, |_| true);
                // One turn of the runtime lets every connection see it.
                tokio::time::sleep(TICK).await;
                return;
            }
            // A connection that was accepted meanwhile drains too.
            self.finish_all(Ending::Drain, |_| true);
        }
    }

    fn finish_all(&self, ending: Ending, which: impl Fn(&Downstream) -> bool) {
        for connection in self.open.borrow().iter().filter_map(Weak::upgrade) {
            if which(&connection) {
                connection.finish(ending);
            }
        }
    }

    fn has_connections(&self) -> bool {
        self.open
            .borrow()
            .iter()
            .any(|connection| connection.strong_count() > 0)
    }
}
