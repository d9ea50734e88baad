//! One client connection: what the request being answered and the worker's sweeper need of it.

mod arrival;
pub mod deadlines;
pub mod discard;
pub mod giving_way;
mod gone;
mod handshaking;
pub mod inbound;
pub mod interim;
mod io;
mod moving;
mod pace;
pub mod past_hyper;
mod peer;
mod reader;
pub mod socket;
mod stream;
pub mod tls;
pub mod upload;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::HeaderValue;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use self::arrival::written;
pub use self::arrival::{Arrival, PeerIs};
use self::deadlines::{Deadlines, Missed, Timeouts};
use self::inbound::Framing;
use self::interim::Interim;
use self::io::Io;
use self::reader::Reader;
use self::upload::Upload;
use crate::clock::{CoarseClock, nanos};
use crate::connection_limits::ConnectionSlot;
use crate::http1::response::HeadText;
use crate::identity::Who;
use crate::pipe::Pipe;

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

/// How long a connection is idle before hyper lets it go: less would make every request of a busy
/// client begin anew.
const REST_NS: u64 = 100_000_000;

/// What the buffer of a new connection takes for certain: half of the 16 KiB that it holds at least
/// (tcp(7), `tcp_wmem`), the other half is for the head of the answer.
const CERTAIN: u64 = 8 * 1024;

/// So many refusals in a row of clients that a trusted peer names let the next be expected. The way
/// from hyper and back costs less than one refusal by hyper: after 16 of them it is 4 % at worst.
const REFUSED_IN_A_ROW: u8 = 16;

/// One client connection, shared by hyper's half, the request being answered and the sweeper, all
/// on one thread.
pub struct Downstream {
    io: RefCell<TokioIo<Io>>,
    /// The address of the peer, folded to IPv4 where it stands for an IPv4 address.
    pub peer: IpAddr,
    /// What the peer is, as far as the connection itself tells.
    peer_is: PeerIs,
    /// Whether what the peer says of clients is believed.
    trusted: Cell<bool>,
    /// [`crate::in_force::InForce::id`] of the settings that its current request has.
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
    /// Which body follows the head that hyper has read, until its socket knows.
    framing: Cell<Option<Framing>>,
    /// Who reads the body of the current request.
    reader: Reader,
    /// hyper has written all it had since the last response ended.
    flushed: Cell<bool>,
    /// hyper's buffer for reading has grown.
    grown: Cell<bool>,
    /// Bytes that the socket took since the connection was accepted.
    written: Cell<u64>,
    /// Whether bytes of a response to the current request were written.
    answering: Cell<bool>,
    ending: Cell<Ending>,
    /// Its next answer is the last.
    ends_with_next: Cell<bool>,
    /// It was found out whether the connection can be read from.
    probed: Cell<bool>,
    /// hyper holds the connection, with buffers of its own.
    in_use: Cell<bool>,
    /// A write that waits is to be tried again until there is no room.
    retries: Cell<bool>,
    /// It was found idle meanwhile.
    rests: Cell<bool>,
    /// The client sent something behind the request that is being answered.
    sent_more: Cell<bool>,
    /// Requests in a row whose clients were refused whatever they ask for.
    refused: Cell<u8>,
    /// Bytes of a response may be moved to the socket past hyper.
    moves: Cell<bool>,
    /// Bytes of a response that were moved, and are to be written where hyper writes their
    /// placeholder.
    pipe: RefCell<Option<Pipe>>,
    /// The head of the response to the current request, where it never was a map of fields.
    head: RefCell<Option<HeadText>>,
    /// Little is to be read of the application's body at a time.
    reads_little: Cell<bool>,
    /// The body waits for what there is of it to be written.
    wants_room: Cell<bool>,
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
            io: RefCell::new(TokioIo::new(io)),
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
            framing: Cell::new(None),
            reader: Reader::default(),
            flushed: Cell::new(true),
            grown: Cell::new(false),
            written: Cell::new(0),
            answering: Cell::new(false),
            ending: Cell::new(Ending::No),
            ends_with_next: Cell::new(false),
            probed: Cell::new(false),
            in_use: Cell::new(false),
            retries: Cell::new(false),
            rests: Cell::new(false),
            sent_more: Cell::new(false),
            refused: Cell::new(0),
            moves: Cell::new(false),
            pipe: RefCell::new(None),
            head: RefCell::new(None),
            reads_little: Cell::new(false),
            wants_room: Cell::new(false),
            tunnel_of: Cell::new(None),
            cut_request: OnceCell::new(),
            waker: RefCell::new(None),
        }
    }

    /// hyper has read a head: this body follows.
    pub fn note_framing(&self, framing: Framing) {
        self.framing.set(Some(framing));
    }

    /// A head was read: the request is ours to answer.
    pub fn begin_request(&self) {
        self.slot.set_idle(false);
        self.deadlines.begin_request();
        self.upload.reset();
        self.answering.set(false);
        self.sent_more.set(false);
        drop(self.take_head());
    }

    /// The response has ended: the next request is awaited.
    pub fn end_request(&self) {
        self.slot.set_idle(true);
        self.flushed.set(false);
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

    /// The client is refused whatever it asks for.
    pub fn note_refused(&self) {
        self.refused.set(self.refused.get().saturating_add(1));
    }

    /// The client is not refused for who it is.
    pub fn note_let_in(&self) {
        self.refused.set(0);
    }

    /// Whether the next request is expected to be refused for whom it comes from. A peer that
    /// speaks for itself was refused once; a trusted one speaks for others, and its next request is
    /// expected to be like those before.
    pub const fn is_refused(&self) -> bool {
        let in_a_row = if self.trusted() { REFUSED_IN_A_ROW } else { 1 };
        self.refused.get() >= in_a_row
    }

    /// Whether that is expected, and the response to the last request is written: hyper is not
    /// needed for the next one.
    pub fn is_refused_and_answered(&self) -> bool {
        self.is_refused() && self.answering.get() && self.can_rest()
    }

    /// Whether TLS is spoken on it.
    pub fn is_tls(&self) -> bool {
        self.io.borrow().inner().is_tls()
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

    /// hyper holds the connection now, or has let it go.
    pub fn set_in_use(&self, in_use: bool) {
        self.in_use.set(in_use);
        self.rests.set(false);
        self.grown.set(false);
        self.reader.reset();
    }

    /// Whether the sweeper found it idle for a while, and it still is: hyper is to let it go, and
    /// its buffers with it (CONN-1).
    pub fn rests(&self) -> bool {
        self.rests.take() && self.is_at_rest()
    }

    /// Whether it is idle after a large request: hyper is to let it go at once, and the buffer that
    /// has grown with it (CONN-1); so it is where hyper does not know that the body has ended.
    pub fn rests_at_once(&self) -> bool {
        (self.grown.get() || self.reader.is_past_hyper()) && self.can_rest()
    }

    /// Whether hyper has nothing of it that matters.
    pub fn can_rest(&self) -> bool {
        self.is_idle() && !self.upload.is_unread() && self.flushed.get()
    }

    fn is_at_rest(&self) -> bool {
        let now_ns = self.clock.mono_ns();
        let is_late = |since: u64| since.saturating_add(REST_NS) <= now_ns;
        self.deadlines.idle_since().is_some_and(is_late) && self.flushed.get()
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
