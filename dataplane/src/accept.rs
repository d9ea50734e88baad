//! One worker's loop: it accepts connections within their bounds, looks after them on its tick, and
//! drains them when the service stops.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use weir_shared::client::{Client, fold};
use weir_shared::totals::ConnectionError;

use crate::connection;
use crate::connection_limits::ConnectionLimits;
use crate::downstream::deadlines::Timeouts;
use crate::downstream::{Downstream, Ending};
use crate::worker::{Stop, Worker};

/// How often a worker looks at its deadlines, sends its log records and reads the wall clock anew.
const TICK: Duration = Duration::from_millis(50);
/// How long accepting rests after `accept` failed, above all because no descriptor was left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections of one worker.
pub struct Acceptor {
    worker: Rc<Worker>,
    limits: Arc<ConnectionLimits>,
    timeouts: Timeouts,
    /// Those that are open, and a few that have ended since the last tick.
    open: RefCell<Vec<Weak<Downstream>>>,
}

impl Acceptor {
    /// An acceptor that has accepted nothing yet.
    pub fn new(worker: Rc<Worker>, limits: Arc<ConnectionLimits>, timeouts: Timeouts) -> Rc<Self> {
        Rc::new(Self {
            worker,
            limits,
            timeouts,
            open: RefCell::default(),
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
            let mut stopping = pin!(stopped.wait_for(|stop| *stop != Stop::No));
            poll_fn(|cx| {
                if stopping.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                accepting.as_mut().poll(cx)
            })
            .await;
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
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Starts serving a connection, or closes it at once where a bound is reached.
    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        let worker = &self.worker;
        let peer = fold(peer.ip());
        let trusted = worker.trusted_proxies.contains(peer);
        let bounded = (!trusted).then(|| Client::of(peer));
        let slot = match self.limits.enter(bounded, &worker.counters) {
            Ok(slot) => slot,
            Err(kind) => return worker.counters.connection_error(kind),
        };
        // A socket that refuses the option still works, only later.
        let _ = SockRef::from(&stream).set_tcp_nodelay(true);
        let clock = Rc::clone(&worker.clock);
        let downstream = Downstream::new(stream, peer, trusted, clock, self.timeouts);
        self.open.borrow_mut().push(Rc::downgrade(&downstream));
        let worker = Rc::clone(worker);
        tokio::task::spawn_local(async move {
            connection::serve(worker, downstream).await;
            drop(slot);
        });
    }

    /// The worker's heartbeat: wall clock, deadlines, idle upstream connections, log records.
    async fn tick(self: Rc<Self>) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.worker.clock.tick();
            self.sweep();
            self.worker.pool.sweep();
            self.worker.events.flush();
        }
    }

    fn sweep(&self) {
        self.open.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else {
                return false;
            };
            connection.sweep();
            true
        });
    }

    /// Lets the connections end; ends them once the service is told to abort.
    async fn drain(&self, stopped: &mut watch::Receiver<Stop>) {
        self.finish_all(Ending::Drain);
        while self.has_connections() {
            let aborted =
                tokio::time::timeout(TICK, stopped.wait_for(|stop| *stop == Stop::Abort)).await;
            if aborted.is_ok() {
                self.finish_all(Ending::Abort);
                // One turn of the runtime lets every connection see it.
                tokio::time::sleep(TICK).await;
                return;
            }
            // A connection that was accepted meanwhile drains too.
            self.finish_all(Ending::Drain);
        }
    }

    fn finish_all(&self, ending: Ending) {
        for connection in self.open.borrow().iter().filter_map(Weak::upgrade) {
            connection.finish(ending);
        }
    }

    fn has_connections(&self) -> bool {
        self.open
            .borrow()
            .iter()
            .any(|connection| connection.strong_count() > 0)
    }
}
