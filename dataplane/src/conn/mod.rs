//! One client connection: what the request being answered and the worker's sweeper need of it.

pub mod buffers;
pub mod close;
pub mod deadlines;
pub mod handshake;
pub mod inbound;
pub mod interim;
pub mod proxy_protocol;
pub mod reading;
pub mod serve;
pub mod tls;
pub mod transport;
pub mod writing;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::HeaderValue;
use tokio::net::TcpStream;

use crate::conn::deadlines::{Deadlines, Missed, Timeouts};
use crate::conn::inbound::{Inbound, Upload};
use crate::conn::interim::Interim;
use crate::conn::transport::Io;
use crate::request::identity::{Sender, Who, written};
use crate::worker::clock::{CoarseClock, nanos};
use crate::worker::limits::ConnectionSlot;
use crate::worker::settings::InForce;

pub use crate::request::identity::{Arrival, PeerIs};

/// Why a connection is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It goes on.
    No,
    /// The head took too long: 408.
    HeadTimeout,
    /// Nothing is under way, and it was idle for too long, or another takes its place.
    Idle,
    /// Nothing came of a body, or nothing was taken, for too long.
    Stalled,
    /// A body was sent, or a response taken, at less than `WAF_MIN_RATE`: 408 where nothing of a
    /// response was written.
    TooSlow,
    /// The client of a WebSocket was banned or denied.
    Refused,
    /// The service stops: end after the running answer.
    Drain,
    /// The service stops now.
    Abort,
    /// A bug of ours ended it.
    Panicked,
}

impl Ending {
    /// Whether the connection ends at once, whatever is under way.
    pub const fn is_cut(self) -> bool {
        match self {
            Self::No | Self::Drain => false,
            Self::HeadTimeout
            | Self::Idle
            | Self::Stalled
            | Self::TooSlow
            | Self::Refused
            | Self::Abort
            | Self::Panicked => true,
        }
    }
}

/// How long a connection is idle before what it holds for a request is given back: less would make
/// every request of a busy client begin anew.
const REST_NS: u64 = 100_000_000;

/// What the buffer of a new connection takes for certain: half of the 16 KiB that it holds at least
/// (tcp(7), `tcp_wmem`), the other half is for the head of the answer.
const CERTAIN: u64 = 8 * 1024;

/// One client connection, shared by the task that serves it, the request being answered and the
/// sweeper, all on one thread.
pub struct Downstream {
    io: RefCell<Io>,
    /// What was read of it and is not taken.
    inbound: Inbound,
    /// The address of the peer, folded to IPv4 where it stands for an IPv4 address.
    pub peer: IpAddr,
    /// What the peer is, as far as the connection itself tells.
    peer_is: PeerIs,
    /// Whether what the peer says of clients is believed.
    trusted: Cell<bool>,
    /// [`crate::worker::settings::InForce::id`] of the settings that its current request has.
    settings: Cell<u64>,
    /// `http` or `https`
    pub scheme: &'static str,
    /// The peer's address as a header value, made once.
    pub peer_value: HeaderValue,
    /// Coarse monotonic time of the worker.
    clock: Rc<CoarseClock>,
    deadlines: Deadlines,
    /// Its slot among the connections.
    pub slot: ConnectionSlot,
    /// The body of the current request.
    pub upload: Upload,
    /// Interim responses to the current request.
    pub interim: Interim,
    /// Bytes that the socket took since the connection was accepted.
    written: Cell<u64>,
    /// Whether bytes of a response to the current request were written.
    answering: Cell<bool>,
    ending: Cell<Ending>,
    /// Its next answer is the last.
    ends_with_next: Cell<bool>,
    /// It was found out whether the connection can be read from.
    probed: Cell<bool>,
    /// A task serves it, and holds more than an idle connection may.
    in_use: Cell<bool>,
    /// A write that waits is to be tried again until there is no room.
    retries: Cell<bool>,
    /// It was found idle meanwhile.
    rests: Cell<bool>,
    /// The client sent something behind the request that is being answered.
    sent_more: Cell<bool>,
    /// Little is to be read of the application's body at a time.
    reads_little: Cell<bool>,
    /// Whose WebSocket it is, once it is one.
    tunnel_of: Cell<Option<Who>>,
    /// The id of the request that was cut.
    cut_request: OnceCell<HeaderValue>,
    waker: RefCell<Option<Waker>>,
}

impl Downstream {
    /// A connection that was just accepted: its first head is awaited.
    pub fn new(
        stream: TcpStream,
        arrival: Arrival,
        slot: ConnectionSlot,
        clock: Rc<CoarseClock>,
        timeouts: Timeouts,
    ) -> Rc<Self> {
        // An address is visible ASCII: the fallback is never taken.
        let peer_value = HeaderValue::try_from(written(arrival.peer))
            .unwrap_or(HeaderValue::from_static("unknown"));
        slot.set_idle(true);
        let io = Io::plain(stream);
        Rc::new(Self::over(io, arrival, peer_value, slot, clock, timeouts))
    }

    fn over(
        io: Io,
        arrival: Arrival,
        peer_value: HeaderValue,
        slot: ConnectionSlot,
        clock: Rc<CoarseClock>,
        timeouts: Timeouts,
    ) -> Self {
        let Arrival {
            peer,
            peer_is,
            trusted,
            scheme,
        } = arrival;
        Self {
            io: RefCell::new(io),
            inbound: Inbound::default(),
            peer,
            peer_is,
            trusted: Cell::new(trusted),
            settings: Cell::new(0),
            scheme,
            peer_value,
            deadlines: Deadlines::new(timeouts, clock.mono_ns()),
            clock,
            slot,
            upload: Upload::default(),
            interim: Interim::default(),
            written: Cell::new(0),
            answering: Cell::new(false),
            ending: Cell::new(Ending::No),
            ends_with_next: Cell::new(false),
            probed: Cell::new(false),
            in_use: Cell::new(false),
            retries: Cell::new(false),
            rests: Cell::new(false),
            sent_more: Cell::new(false),
            reads_little: Cell::new(false),
            tunnel_of: Cell::new(None),
            cut_request: OnceCell::new(),
            waker: RefCell::new(None),
        }
    }

    /// A head was read: the request is ours to answer.
    pub fn begin_request(&self) {
        self.slot.set_idle(false);
        self.deadlines.begin_request();
        self.upload.reset();
        self.answering.set(false);
        self.sent_more.set(false);
    }

    /// The response has ended: the next request is awaited.
    pub fn end_request(&self) {
        self.slot.set_idle(true);
        self.deadlines.end_request(self.clock.mono_ns());
    }

    /// Notes that the response to the current request is a refusal, or that of a health check: an
    /// untrusted peer's connection is not kept for long behind it (CONN-3).
    pub fn shorten_idle(&self) {
        if !self.trusted() {
            self.deadlines.shorten_idle();
        }
    }

    /// Since when nothing has been under way, if nothing is.
    pub fn idle_since(&self) -> Option<u64> {
        self.deadlines.idle_since().filter(|_| self.is_open())
    }

    /// Whether TLS is spoken on it.
    pub fn is_tls(&self) -> bool {
        self.io.borrow().is_tls()
    }

    /// Whether nothing is under way, whatever it was told.
    pub fn is_idle(&self) -> bool {
        self.deadlines.idle_since().is_some()
    }

    /// Whether bytes of a response to the current request were written.
    pub const fn is_answering(&self) -> bool {
        self.answering.get()
    }

    /// Whether the system takes so many bytes more of a response for certain.
    pub const fn takes(&self, bytes: u64) -> bool {
        self.written.get().saturating_add(bytes) <= CERTAIN
    }

    /// The request of this id was cut, and the connection ends with it.
    pub fn note_cut(&self, request_id: HeaderValue) {
        // Requests of one connection follow each other: there is no other.
        let _ = self.cut_request.set(request_id);
    }

    /// The id of the request that was cut.
    pub fn cut_request(&self) -> Option<&HeaderValue> {
        self.cut_request.get()
    }

    /// The connection is a tunnel from now on, and whose.
    pub fn begin_tunnel(&self, who: Who) {
        self.tunnel_of.set(Some(who));
        self.deadlines.begin_tunnel();
    }

    /// Whose WebSocket it is, if it is one.
    pub fn tunnel_of(&self) -> Option<Who> {
        self.tunnel_of.get()
    }

    /// A task begins to serve requests, or has let the connection go.
    pub fn set_in_use(&self, in_use: bool) {
        self.in_use.set(in_use);
        self.rests.set(false);
    }

    /// Whether the sweeper found it idle for a while, and it still is: what it holds for a request
    /// is to be given back (CONN-1).
    pub fn rests(&self) -> bool {
        self.rests.take() && self.is_at_rest()
    }

    fn is_at_rest(&self) -> bool {
        let now_ns = self.clock.mono_ns();
        let is_late = |since: u64| since.saturating_add(REST_NS) <= now_ns;
        self.deadlines.idle_since().is_some_and(is_late)
    }

    /// Whether nothing was ever sent on it.
    pub fn is_unused(&self) -> bool {
        self.deadlines.is_unused()
    }

    /// Whether the client has closed the connection while its request is being answered, whose body
    /// has come. What it sent behind the request hides a close behind that.
    pub fn has_gone(&self, cx: &mut Context<'_>) -> bool {
        if self.is_idle() || self.sent_more.get() || self.has_unread() || !self.is_body_taken() {
            return false;
        }
        match self.io.borrow_mut().poll_peek(cx) {
            Poll::Pending => false,
            Poll::Ready(false) => true,
            Poll::Ready(true) => {
                self.sent_more.set(true);
                false
            }
        }
    }

    /// The connection is a tunnel and carried something: only silence for `idle_timeout` ends it.
    pub fn tunnel_carried(&self, idle_timeout: Option<Duration>) {
        let idle_ns = idle_timeout.map(nanos);
        self.deadlines.tunnel_carried(self.clock.mono_ns(), idle_ns);
    }

    /// The application closed its side of the tunnel: the client has this long to follow, whatever
    /// it still sends.
    pub fn tunnel_ends(&self, grace: Duration) {
        self.deadlines
            .tunnel_ends(self.clock.mono_ns(), nanos(grace));
    }

    /// The request waits for more of the body.
    pub fn await_body(&self) {
        self.deadlines.await_body(self.clock.mono_ns());
    }

    /// So many bytes more of the body came, or its end.
    pub fn got_body(&self, bytes: usize) {
        self.deadlines.got_body(self.clock.mono_ns(), bytes as u64);
    }

    /// The body is not waited for meanwhile: the application takes none.
    pub fn pause_body(&self) {
        self.deadlines.pause_body(self.clock.mono_ns());
    }

    /// The request waits for the application, at most this long from now.
    pub fn await_upstream(&self, at_most: Duration) {
        let now_ns = self.clock.mono_ns();
        self.deadlines.await_upstream(now_ns, nanos(at_most));
    }

    /// The application was sent more of the body: its time to answer starts again.
    pub fn renew_upstream(&self) {
        self.deadlines.renew_upstream(self.clock.mono_ns());
    }

    /// Something came from the application.
    pub fn got_upstream(&self) {
        self.deadlines.got_upstream();
    }

    /// Whether the request waits for the application.
    pub fn is_awaiting_upstream(&self) -> bool {
        self.deadlines.is_awaiting_upstream()
    }

    /// Whether the application's deadline has passed; the waiting request looks here.
    pub fn is_upstream_late(&self) -> bool {
        self.deadlines.is_upstream_late()
    }

    /// Called by the sweeper: wakes the connection's task where a deadline has passed.
    pub fn sweep(&self) {
        let now_ns = self.clock.mono_ns();
        match self.deadlines.sweep(now_ns) {
            None if self.has_broken_off() => self.finish(Ending::Abort),
            None if self.deadlines.is_retry_due(now_ns) => {
                if self.retries.replace(true) {
                    // Who writes does not try: the system has told that there is no room.
                    self.deadlines.has_no_room(now_ns);
                }
                self.wake();
            }
            None if self.in_use.get() && self.is_at_rest() => {
                self.rests.set(true);
                self.wake();
            }
            None => {}
            Some(Missed::Head) => self.finish(Ending::HeadTimeout),
            Some(Missed::Next) => self.finish(Ending::Idle),
            Some(Missed::Client) => self.finish(Ending::Stalled),
            Some(Missed::TooSlow) => self.finish(Ending::TooSlow),
            Some(Missed::Upstream) => self.wake(),
        }
    }

    /// Asks the connection to end, and wakes its task. A weaker ending changes nothing.
    pub fn finish(&self, ending: Ending) {
        if ending == Ending::Drain && self.ending.get() == Ending::No {
            self.deadlines.begin_drain(self.clock.mono_ns());
        }
        if !self.ending.get().is_cut() || ending == Ending::Abort {
            self.ending.set(ending);
            self.wake();
        }
    }

    /// Its next answer is the last, and says so (RESTART-1).
    pub fn end_with_next(&self) {
        self.ends_with_next.set(true);
        self.wake();
    }

    /// Whether the next answer is its last.
    pub const fn ends_with_next(&self) -> bool {
        self.ends_with_next.get()
    }

    /// How the connection is to end.
    pub fn ending(&self) -> Ending {
        self.ending.get()
    }

    /// Coarse monotonic time, nanoseconds.
    pub fn mono_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    /// Coarse wall clock, milliseconds since 1970.
    pub fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Notes whom the sweeper wakes. The task of a connection never changes.
    pub fn note_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        waker.get_or_insert_with(|| cx.waker().clone());
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Downstream {
    /// Whether what the peer says of clients is believed: it lies in `WAF_TRUSTED_PROXIES`, or came
    /// over a Unix socket.
    pub const fn trusted(&self) -> bool {
        self.trusted.get()
    }

    /// The peer, as the sender of a request.
    pub fn sender(&self) -> Sender {
        self.arrival().sender()
    }

    /// Where it came from, as it stands now.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival {
            peer: self.peer,
            peer_is: self.peer_is,
            trusted: self.trusted(),
            scheme: self.scheme,
        }
    }

    /// The next request has these settings.
    pub fn take_settings(&self, settings: &InForce) {
        if self.settings.replace(settings.id) != settings.id {
            let identity = &settings.settings.identity;
            self.trusted.set(self.peer_is.trusted(self.peer, identity));
            self.deadlines.set_timeouts(settings.timeouts);
        }
    }
}
