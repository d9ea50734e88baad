//! One worker's loop: it accepts connections within their bounds, looks after them on its tick, and
//! drains them when the service stops.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use weir_shared::netblock::Netblock;
use weir_shared::pulse::Pulse;
use weir_shared::settings::LocalIs;
use weir_shared::threads::{self, Alive};
use weir_shared::totals::ConnectionError;

use crate::conn::close::Candidates;
use crate::conn::proxy_protocol::{Header, Named, NoHeader, Source, Unnamed};
use crate::conn::{Arrival, Downstream, Ending, PeerIs};
use crate::http1::server::serve;
use crate::request::identity::{Identity, Sender};
use crate::worker::clock::{TICK, Ticking, release_memory};
use crate::worker::limits::{ConnectionLimits, Peer, Rank};
use crate::worker::listeners::{Accepted, Listener, Listening};
use crate::worker::{Current, Stop, Worker};

/// The client that a peer on a Unix socket is where it names no other (EDGE-1).
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// How long an idle connection may be used once more after a hand-over.
const LAST_USE_NS: u64 = 3_000_000_000;
/// How long accepting rests after `accept` failed, above all because no descriptor was left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After so many ticks it is asked of every WebSocket whether its client was banned: twice a
/// second.
const TUNNEL_TICKS: u32 = 10;
/// After so many ticks freed memory is released: a little more than the second after which the
/// allocator gives it back.
const MEMORY_TICKS: u32 = 24;
/// A connection of another worker gives way only where it has been idle for so much longer than one
/// of this worker: what is known of it is as old as that worker's last tick.
const TOLD_LATE_NS: u64 = 2 * 50_000_000;
/// The size of a netblock as another worker knows it is as old: an eighth more or less is equal.
fn goes_behind(own: Rank, other: Rank) -> bool {
    let slack = own.size.max(other.size) / 8 + 1;
    if own.size.abs_diff(other.size) > slack {
        return own.size < other.size;
    }
    own.since_ns > other.since_ns.saturating_add(TOLD_LATE_NS)
}

/// Whether the system lacks descriptors or memory, which time may mend. Every other error of
/// `accept` is one connection's that was gone before it was accepted, or was refused by a filter
/// (CONN-4).
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// What an untrusted peer is bounded by.
fn bounded(worker: &Worker, sender: Sender) -> Peer {
    let who = Identity::of_peer(sender).who();
    Peer {
        client: who.client,
        netblock: Netblock::of(who.client, worker.rules.ban_prefixes),
        is_refused: worker.refuses(who),
    }
}

/// The connections of one worker.
pub struct Acceptor {
    /// Which worker this is.
    index: usize,
    current: Rc<Current>,
    limits: Arc<ConnectionLimits>,
    /// Those that are open, and a few that have ended since the last tick.
    open: RefCell<Vec<Weak<Downstream>>>,
    /// Those that could give way when room was last looked for.
    idle: RefCell<Candidates>,
    /// How often one had begun to be idle when they were looked for since the last tick. Nothing
    /// new is found before another does: while every connection is busy, refusing one costs little.
    looked: Cell<Option<usize>>,
    ticks: Cell<u32>,
    /// Connections whose proxy has not said yet who connected to it.
    unnamed: Unnamed,
}

impl Acceptor {
    /// An acceptor that has accepted nothing yet.
    pub fn new(index: usize, current: Rc<Current>, limits: Arc<ConnectionLimits>) -> Rc<Self> {
        Rc::new(Self {
            index,
            current,
            limits,
            open: RefCell::default(),
            idle: RefCell::default(),
            looked: Cell::new(None),
            ticks: Cell::new(0),
            unnamed: Unnamed::default(),
        })
    }

    /// Says when it is ready, waits until it is to begin, and accepts until told to stop; then
    /// waits for the connections to end.
    pub async fn run(
        self: Rc<Self>,
        listening: Vec<Listening>,
        mut stopped: watch::Receiver<Stop>,
        ready: impl FnOnce(io::Result<()>),
    ) {
        let listeners: io::Result<Vec<_>> = listening.into_iter().map(Listener::new).collect();
        let made = listeners.and_then(|listeners| Ok((listeners, Ticking::every(TICK)?)));
        let (listeners, ticking) = match made {
            Ok(made) => made,
            Err(error) => return ready(Err(error)),
        };
        ready(Ok(()));
        if (stopped.wait_for(|stop| *stop != Stop::NotBegun).await).is_err() {
            // The start has failed.
            return;
        }
        threads::at_work();
        tokio::task::spawn_local(Rc::clone(&self).tick(ticking));
        {
            // Dropping `accepting` closes the listeners.
            let accept = |listener| -> Pin<Box<dyn Future<Output = ()>>> {
                Box::pin(Rc::clone(&self).accept(listener))
            };
            let mut accepting: Vec<_> = listeners.into_iter().map(accept).collect();
            let mut stopping =
                pin!(stopped.wait_for(|stop| !matches!(stop, Stop::No | Stop::Announce)));
            poll_fn(|cx| {
                if stopping.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                // None of them ends by itself.
                for accepting in &mut accepting {
                    let _ = accepting.as_mut().poll(cx);
                }
                Poll::Pending
            })
            .await;
        }
        self.end(stopped).await;
    }

    /// Waits for the connections to end, where nothing more is accepted.
    pub async fn end(&self, mut stopped: watch::Receiver<Stop>) {
        if self.current.worker().has_handed_over() {
            self.hand_over(&mut stopped).await;
        }
        self.drain(&mut stopped).await;
        let worker = self.current.worker();
        worker.events.flush_last(worker.clock.now());
    }

    async fn accept(self: Rc<Self>, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok(accepted) => self.begin(accepted, listener.tls),
                Err(error) => {
                    let counters = Arc::clone(&self.current.worker().counters);
                    counters.connection_error(ConnectionError::Accept);
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

    /// Admits a connection; that of a trusted proxy that speaks the PROXY protocol once it has said
    /// who connected to it (EDGE-4).
    fn begin(self: &Rc<Self>, accepted: Accepted, tls: bool) {
        let worker = self.current.worker();
        let settings = &worker.in_force.settings;
        let is_trusted = |peer| settings.identity.trusts(peer);
        if !settings.edge.proxy_protocol || !accepted.peer.is_none_or(is_trusted) {
            let peer = Named::peer(Bytes::new());
            return self.admit(accepted, tls, peer);
        }
        // A header is mostly there by now: whoever sent one does not count as waiting.
        let mut header = Header::default();
        if let Some(read) = header.read_at_once(&accepted.stream) {
            return self.admit_named(accepted, tls, read);
        }
        tokio::task::spawn_local(Rc::clone(self).ask(accepted, tls, header));
    }

    async fn ask(self: Rc<Self>, accepted: Accepted, tls: bool, header: Header) {
        let worker = self.current.worker();
        let clock = Rc::clone(&worker.clock);
        let patience = worker.in_force.settings.timeouts.header;
        drop(worker);
        let read = clock.within(patience, header.read(&accepted.stream));
        match self.unnamed.wait(read).await {
            Some(read) => {
                self.admit_named(accepted, tls, read.unwrap_or(Err(NoHeader::Malformed)));
            }
            None => {
                let kind = ConnectionError::TooMany;
                self.current.worker().counters.connection_error(kind);
            }
        }
    }

    /// Admits a connection by its header.
    fn admit_named(&self, accepted: Accepted, tls: bool, read: Result<Named, NoHeader>) {
        match read {
            Ok(named) => self.admit(accepted, tls, named),
            Err(NoHeader::Silent) => {}
            Err(NoHeader::Malformed) => {
                let kind = ConnectionError::ProxyProtocol;
                self.current.worker().counters.connection_error(kind);
            }
        }
    }

    /// Starts serving a connection, or closes it at once where a bound is reached.
    fn admit(&self, accepted: Accepted, tls: bool, named: Named) {
        if let Some(serving) = self.admitted(accepted, tls, named) {
            tokio::task::spawn_local(serving);
        }
    }

    /// The service of a connection from its first byte to its end; none where a bound is reached,
    /// and the connection is closed.
    pub fn admitted(
        &self,
        accepted: Accepted,
        tls: bool,
        named: Named,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let Accepted { stream, peer } = accepted;
        let worker = self.current.worker();
        let believed = worker.in_force.settings.edge.proxy_protocol_local == LocalIs::Trusted;
        let (peer, peer_is) = match (named.who, peer) {
            (Source::Client(client), _) => (client, PeerIs::Anybody),
            (Source::ProxyItself, peer) if !believed => {
                (peer.unwrap_or(LOCAL), PeerIs::ProxyItself)
            }
            (Source::Peer | Source::ProxyItself, Some(peer)) => (peer, PeerIs::Anybody),
            (Source::Peer | Source::ProxyItself, None) => (LOCAL, PeerIs::Local),
        };
        let arrival = Arrival {
            peer,
            peer_is,
            trusted: peer_is.trusted(peer, &worker.in_force.settings.identity),
            scheme: if tls { "https" } else { "http" },
        };
        let bounded = (!arrival.trusted).then(|| bounded(&worker, arrival.sender()));
        if let Some(peer) = &bounded
            && !self.limits.is_within_rate(peer, worker.clock.mono_ns())
        {
            worker.counters.connection_error(ConnectionError::Banned);
            return None;
        }
        let make_room = || self.make_room();
        let slot =
            match self
                .limits
                .enter(self.index, bounded.as_ref(), &worker.counters, make_room)
            {
                Ok(slot) => slot,
                Err(kind) => {
                    worker.counters.connection_error(kind);
                    return None;
                }
            };
        let clock = Rc::clone(&worker.clock);
        let timeouts = worker.in_force.timeouts;
        let downstream = Downstream::new(stream, arrival, slot, clock, timeouts);
        if worker.has_handed_over() {
            downstream.end_with_next();
        }
        self.open.borrow_mut().push(Rc::downgrade(&downstream));
        let current = Rc::clone(&self.current);
        Some(serve(current, downstream, named.early))
    }

    /// Closes the connection that goes first, for another to take its place; false if none may be
    /// closed (CONN-2).
    fn make_room(&self) -> bool {
        let own = self.first_idle();
        let elsewhere = self.limits.idle_elsewhere(self.index);
        match (own, elsewhere) {
            (None, None) => return false,
            (Some((rank, connection)), Some((_, other))) if goes_behind(rank, other) => {
                self.idle.borrow_mut().put_back(rank, &connection);
            }
            (Some((_, connection)), _) => {
                connection.give_way();
                return true;
            }
            (None, Some(_)) => {}
        }
        if let Some((other, _)) = elsewhere {
            self.limits.want_closed(other, 1);
        }
        true
    }

    /// Takes the connection that goes first from those that may give way.
    fn first_idle(&self) -> Option<(Rank, Rc<Downstream>)> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let first = idle.next();
            if first.is_some() {
                return first;
            }
            let begun = Some(self.limits.idle_begun(self.index));
            if self.looked.replace(begun) == begun {
                return None;
            }
            idle.look(&self.open.borrow());
        }
    }

    /// The worker's heartbeat: wall clock, deadlines, idle upstream connections, log records.
    async fn tick(self: Rc<Self>, mut ticking: Ticking) {
        // An error or a panic in here would end this task alone, and every deadline of the worker
        // with it.
        let _alive = Alive::new("the tick of a worker");
        let pulse = Pulse::of_this_thread();
        while ticking.tick().await.is_ok() {
            pulse.beat();
            self.beat();
        }
    }

    /// What is done on each beat.
    pub fn beat(&self) {
        let worker = self.current.worker();
        if let Some(stood_ns) = worker.clock.tick() {
            self.put_off(&worker, stood_ns);
        }
        self.sweep(&worker);
        worker.pool.sweep();
        worker.events.flush(worker.clock.now());
    }

    /// Has each connection wait for so much longer (CONN-10).
    fn put_off(&self, worker: &Worker, by_ns: u64) {
        for connection in self.open.borrow().iter().filter_map(Weak::upgrade) {
            connection.deadlines().put_off(by_ns);
        }
        worker.http2.put_off(by_ns);
    }

    fn sweep(&self, worker: &Worker) {
        let ticks = self.ticks.get().wrapping_add(1);
        self.ticks.set(ticks);
        let ask_for_tunnels = ticks.is_multiple_of(TUNNEL_TICKS);
        // Nobody asks for more than that there is one, while there are places.
        let is_full = self.limits.is_full();
        let mut first = Rank::NOBODY;
        self.open.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else {
                return false;
            };
            connection.sweep();
            if let Some(who) = connection.tunnel_of().filter(|_| ask_for_tunnels)
                && worker.refuses(who)
            {
                connection.finish(Ending::Refused);
            }
            connection.tell_whether_it_gives_way();
            if let Some(rank) = connection.rank(is_full) {
                first = first.max(rank);
            }
            true
        });
        if ticks.is_multiple_of(MEMORY_TICKS) {
            release_memory();
        }
        let timeouts = worker.in_force.timeouts;
        worker.http2.sweep(timeouts, worker.clock.mono_ns());
        self.looked.set(None);
        let wanted = self.limits.tell_idle(self.index, first);
        for left in (0..wanted).rev() {
            let Some((_, connection)) = self.first_idle() else {
                // Those that are idle next.
                return self.limits.want_closed(self.index, left + 1);
            };
            connection.give_way();
        }
    }

    /// Lets each connection end with the answer that says so. Until it has come, one that is idle
    /// is left the time for one more request, which its client may have under way (RESTART-1).
    async fn hand_over(&self, stopped: &mut watch::Receiver<Stop>) {
        for connection in self.open.borrow().iter().filter_map(Weak::upgrade) {
            connection.end_with_next();
        }
        let clock = Rc::clone(&self.current.worker().clock);
        let began = clock.mono_ns();
        let is_late = |since: u64| clock.mono_ns().saturating_sub(since) >= LAST_USE_NS;
        while !is_late(began) || self.has_connections() {
            let told = stopped.wait_for(|stop| *stop != Stop::HandOver);
            if tokio::time::timeout(TICK, told).await.is_ok() {
                return;
            }
            self.finish_all(Ending::Drain, |connection| {
                connection
                    .idle_since()
                    .is_some_and(|since| is_late(since.max(began)))
            });
        }
    }

    /// Lets the connections end; ends them once the service is told to abort.
    async fn drain(&self, stopped: &mut watch::Receiver<Stop>) {
        self.finish_all(Ending::Drain, |_| true);
        while self.has_connections() {
            let told = stopped.wait_for(|stop| *stop == Stop::Abort);
            // What it gives is a lock, which whoever tells waits for: it is not kept.
            if tokio::time::timeout(TICK, told).await.is_ok() {
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

    /// Whether a connection is open.
    pub fn has_connections(&self) -> bool {
        self.open
            .borrow()
            .iter()
            .any(|connection| connection.strong_count() > 0)
    }
}
