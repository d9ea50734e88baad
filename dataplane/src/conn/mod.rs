//! One client connection: what the request being answered and the worker's sweeper need of it.

pub mod buffers;
pub mod close;
pub mod deadlines;
pub mod handshake;
pub mod inbound;
pub mod pace;
pub mod proxy_protocol;
pub mod reading;
pub mod tls;
pub mod transport;
pub mod watch;
pub mod writing;

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response};
use tokio::net::TcpStream;
use weir_shared::settings::IdentitySettings;

use crate::conn::deadlines::{Deadlines, Timeouts};
use crate::conn::inbound::{Inbound, Upload};
use crate::conn::transport::Io;
use crate::conn::watch::{Served, Watch};
use crate::request::identity::{Sender, Who, written};
use crate::worker::clock::{CoarseClock, nanos};
use crate::worker::limits::ConnectionSlot;

pub use crate::conn::watch::Ending;
pub use crate::request::identity::{Arrival, PeerIs};

/// What the buffer of a new connection takes for certain: half of the 16 KiB that it holds at least
/// (tcp(7), `tcp_wmem`), the other half is for the head of the answer.
const CERTAIN: u64 = 8 * 1024;

/// One client connection, shared by the task that serves it, the request being answered and the
/// sweeper, all on one thread.
pub struct Downstream {
    io: RefCell<Io>,
    /// The bytes that were read of it and are not taken.
    inbound: RefCell<Inbound>,
    /// The address of the peer, folded to IPv4 where it stands for an IPv4 address.
    pub peer: IpAddr,
    /// What the peer is, as far as the connection itself tells.
    peer_is: PeerIs,
    /// Whether what the peer says of clients is believed.
    trusted: Cell<bool>,
    /// [`crate::worker::InForce::id`] of the settings that its current request has.
    settings: Cell<u64>,
    /// `http` or `https`
    pub scheme: &'static str,
    /// The peer's address as a header value, made once.
    pub peer_value: HeaderValue,
    /// Coarse monotonic time of the worker.
    clock: Rc<CoarseClock>,
    watch: RefCell<Watch>,
    /// Its slot among the connections.
    pub slot: ConnectionSlot,
    /// The body of the current request.
    upload: RefCell<Upload>,
    /// Interim responses to the current request.
    interim: RefCell<Interim>,
    /// Bytes that the socket took since the connection was accepted.
    written: Cell<u64>,
    /// Whether bytes of a response to the current request were written.
    answering: Cell<bool>,
    /// A read was tried: the runtime knows whether the socket is readable.
    probed: Cell<bool>,
    /// The client sent something behind the request that is being answered.
    sent_more: Cell<bool>,
    /// The application's body is read in small pieces.
    reads_little: Cell<bool>,
    /// The id of the request that was cut.
    cut_request: OnceCell<HeaderValue>,
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
            inbound: RefCell::default(),
            peer,
            peer_is,
            trusted: Cell::new(trusted),
            settings: Cell::new(0),
            scheme,
            peer_value,
            watch: RefCell::new(Watch::new(Deadlines::new(timeouts, clock.mono_ns()))),
            clock,
            slot,
            upload: RefCell::default(),
            interim: RefCell::default(),
            written: Cell::new(0),
            answering: Cell::new(false),
            probed: Cell::new(false),
            sent_more: Cell::new(false),
            reads_little: Cell::new(false),
            cut_request: OnceCell::new(),
        }
    }

    /// A head was read: the request is ours to answer.
    pub fn begin_request(&self) {
        self.slot.set_idle(false);
        self.deadlines().begin_request();
        *self.upload() = Upload::default();
        self.answering.set(false);
        self.sent_more.set(false);
    }

    /// The response has ended: the next request is awaited.
    pub fn end_request(&self) {
        self.slot.set_idle(true);
        self.deadlines().end_request(self.clock.mono_ns());
    }

    /// Notes that the response to the current request is a refusal, or that of a health check: an
    /// untrusted peer's connection is not kept for long behind it (CONN-3).
    pub fn shorten_idle(&self) {
        if !self.trusted() {
            self.deadlines().shorten_idle();
        }
    }

    /// Since when nothing has been under way, if nothing is.
    pub fn idle_since(&self) -> Option<u64> {
        let watch = self.watch.borrow();
        watch.deadlines.idle_since().filter(|_| watch.is_open())
    }

    /// Whether TLS is spoken on it.
    pub fn is_tls(&self) -> bool {
        self.io.borrow().is_tls()
    }

    /// Whether nothing is under way, whatever it was told.
    pub fn is_idle(&self) -> bool {
        self.watch.borrow().deadlines.idle_since().is_some()
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
        let mut watch = self.watch.borrow_mut();
        watch.tunnel_of = Some(who);
        watch.deadlines.begin_tunnel();
    }

    /// Whose WebSocket it is, if it is one.
    pub fn tunnel_of(&self) -> Option<Who> {
        self.watch.borrow().tunnel_of
    }

    /// A task begins to serve requests, or has let the connection go.
    pub fn set_in_use(&self, in_use: bool) {
        self.watch.borrow_mut().served = if in_use { Served::Yes } else { Served::No };
    }

    /// Whether its task gives back what it holds for a request: [`Watch::rests`].
    pub fn rests(&self) -> bool {
        self.watch.borrow_mut().rests(self.clock.mono_ns())
    }

    /// Whether the client has closed the connection while its request is being answered, whose body
    /// has come. What it sent behind the request hides a close behind that; a reset is found by the
    /// sweeper.
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
        self.deadlines()
            .tunnel_carried(self.clock.mono_ns(), idle_ns);
    }

    /// When it must have moved on.
    pub fn deadlines(&self) -> RefMut<'_, Deadlines> {
        RefMut::map(self.watch.borrow_mut(), |watch| &mut watch.deadlines)
    }

    /// Notes something of its deadlines, with the time.
    pub fn timed(&self, note: impl FnOnce(&mut Deadlines, u64)) {
        note(&mut self.deadlines(), self.clock.mono_ns());
    }

    /// The body of the current request.
    pub fn upload(&self) -> RefMut<'_, Upload> {
        self.upload.borrow_mut()
    }

    /// Interim responses to the current request.
    pub fn interim(&self) -> RefMut<'_, Interim> {
        self.interim.borrow_mut()
    }

    /// Called by the sweeper: wakes the connection's task where a deadline has passed.
    pub fn sweep(&self) {
        let now_ns = self.clock.mono_ns();
        (self.watch.borrow_mut()).sweep(now_ns, || self.has_broken_off());
    }

    /// Asks the connection to end, and wakes its task. A weaker ending changes nothing.
    pub fn finish(&self, ending: Ending) {
        self.watch.borrow_mut().finish(ending, self.clock.mono_ns());
    }

    /// Its next answer is the last, and says so (RESTART-1).
    pub fn end_with_next(&self) {
        let mut watch = self.watch.borrow_mut();
        watch.ends_with_next = true;
        watch.wake();
    }

    /// Whether the response to the current request is the last one.
    pub fn is_last(&self) -> bool {
        let watch = self.watch.borrow();
        watch.ending == Ending::Drain || watch.ends_with_next
    }

    /// How the connection is to end.
    pub fn ending(&self) -> Ending {
        self.watch.borrow().ending
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
        let waker = &mut self.watch.borrow_mut().waker;
        waker.get_or_insert_with(|| cx.waker().clone());
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

    /// The next request has the settings of this id.
    pub fn take_settings(&self, id: u64, identity: &IdentitySettings, timeouts: &Timeouts) {
        if self.settings.replace(id) != id {
            self.trusted.set(self.peer_is.trusted(self.peer, identity));
            self.deadlines().set_timeouts(*timeouts);
        }
    }
}

/// Interim responses that wait, bytes at most, and all of those to one stream; more are dropped:
/// they are hints.
const MAX_WAITING: usize = 16 * 1024;

/// The interim response that asks for a body (RFC 9110 §10.1.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Interim responses (1xx) that wait to be written, while the response is waited for. Those to a
/// stream of HTTP/2 wait for the task of the stream, which sends them.
#[derive(Debug, Default)]
pub struct Interim {
    bytes: Vec<u8>,
    /// So much of them was written.
    at: usize,
    /// It was tried to write them: over TLS they are encrypted by then.
    begun: bool,
    /// The client of a stream is to be asked for its body.
    asks: bool,
    /// Those to a stream.
    heads: Vec<Response<()>>,
    /// Bytes of all that there were to it.
    heads_size: usize,
}

impl Interim {
    /// Puts one behind those that wait, if it fits.
    pub fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut self.bytes;
        let before = bytes.len();
        write(bytes);
        if bytes.len() > MAX_WAITING {
            bytes.truncate(before);
        }
    }

    /// Puts one behind those to a stream, if it fits.
    pub fn put_head(&mut self, head: Response<()>) {
        let size = self.heads_size + interim_size(&head);
        if size <= MAX_WAITING {
            self.heads_size = size;
            self.heads.push(head);
        }
    }

    /// Takes those to a stream.
    pub fn take_heads(&mut self) -> Vec<Response<()>> {
        std::mem::take(&mut self.heads)
    }

    /// Has the client asked for the body that it announced, if nothing waits before that.
    pub fn put_continue(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(CONTINUE);
        }
    }

    /// Has the client of a stream asked for its body.
    pub fn ask_for_body(&mut self) {
        self.asks = true;
    }

    /// Whether the client of a stream is to be asked for its body; said once.
    pub fn take_asking(&mut self) -> bool {
        std::mem::take(&mut self.asks)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether one was begun and not ended: nothing else can be written before that.
    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// The bytes that wait go to `write`, which says how many it wrote.
    pub fn write<E>(&mut self, write: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<(), E> {
        self.begun = true;
        let written = write(self.bytes.get(self.at..).unwrap_or_default())?;
        self.at += written;
        if self.at >= self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
            self.begun = false;
        }
        Ok(())
    }

    /// What must be written before a response: the rest of one that was begun. Those that were not
    /// begun are too late.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let at = std::mem::take(&mut self.at);
        let mut bytes = std::mem::take(&mut self.bytes);
        if !std::mem::take(&mut self.begun) {
            return Vec::new();
        }
        bytes.drain(..at.min(bytes.len()));
        bytes
    }
}

/// What an interim response takes, about.
fn interim_size(head: &Response<()>) -> usize {
    let of = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    // A status is a frame of its own, and a field has some bytes besides.
    head.headers()
        .iter()
        .map(|field| of(field) + 4)
        .sum::<usize>()
        + 16
}
