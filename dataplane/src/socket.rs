//! One client connection as hyper sees it: the socket, and what the worker's sweeper needs to cut it in time.
//!
//! hyper's own timers cost a boxed sleep a request. Here every connection notes when it must have moved on, and one
//! sweeper a worker looks at all of them on its tick.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use http::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::forward::upgrade::Tunnel;
use crate::clock::{CoarseClock, nanos};

/// What a connection is doing; decides which time-out cuts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Between two requests: `WAF_KEEPALIVE_TIMEOUT`.
    Idle,
    /// A head is being read: `WAF_HEADER_TIMEOUT`, then 408.
    Head,
    /// A request is being answered; the body's and the upstream's time-outs apply where they wait.
    Busy,
}

/// Why a connection is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It goes on.
    No,
    /// The head took too long: 408.
    HeadTimeout,
    /// Nothing came, or nothing was taken, for too long.
    Stalled,
    /// The service stops: end after the running answer.
    Drain,
    /// The service stops now.
    Abort,
    /// A bug of ours ended it.
    Panicked,
}

/// What ended a client's body before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFault {
    /// Nothing.
    None,
    /// It passed `WAF_MAX_BODY_SIZE`.
    TooLarge,
    /// The client broke it off, or its framing is wrong.
    Client,
}

/// Time-outs of a client connection, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// `WAF_HEADER_TIMEOUT`
    pub head_ns: u64,
    /// `WAF_BODY_TIMEOUT`
    pub body_ns: u64,
    /// `WAF_KEEPALIVE_TIMEOUT`
    pub idle_ns: u64,
}

/// A deadline that is never reached.
const NEVER: u64 = u64::MAX;

/// One client connection, shared by hyper's half, the request being answered and the sweeper, all on one thread.
pub struct Downstream {
    io: RefCell<TokioIo<TcpStream>>,
    /// Who is on the other end, IPv4-mapped addresses folded.
    pub peer: IpAddr,
    /// Whether the peer lies in `WAF_TRUSTED_PROXIES`.
    pub trusted: bool,
    /// The peer's address as a header value, made once.
    pub peer_value: HeaderValue,
    /// Coarse monotonic time of the worker.
    clock: Rc<CoarseClock>,
    timeouts: Timeouts,
    phase: Cell<Phase>,
    /// When the phase must have ended.
    phase_deadline: Cell<u64>,
    /// When a write that is waiting must have gone on.
    write_deadline: Cell<u64>,
    /// When the client must have sent more of the body.
    body_deadline: Cell<u64>,
    /// When the application must have sent something.
    upstream_deadline: Cell<u64>,
    /// How long it was given.
    upstream_wait_ns: Cell<u64>,
    /// The upstream deadline has passed; the waiting request looks here.
    pub upstream_late: Cell<bool>,
    /// What ended the body early; the waiting request looks here.
    pub body_fault: Cell<BodyFault>,
    /// Body bytes of the current request.
    pub request_bytes: Cell<u64>,
    /// Whether bytes of an answer to the current request were written.
    pub answering: Cell<bool>,
    /// Whether a part of the body is still to come. A close then lingers, so that the answer is seen and not a reset.
    pub unread_body: Cell<bool>,
    ending: Cell<Ending>,
    waker: RefCell<Option<Waker>>,
    quiet: OnceCell<(Arc<Quiet>, Waker)>,
    /// Set by a request whose answer was 101: what the connection becomes.
    pub tunnel: RefCell<Option<Tunnel>>,
}

impl Downstream {
    /// A connection that was just accepted: its first head is awaited.
    pub fn new(
        stream: TcpStream,
        peer: IpAddr,
        trusted: bool,
        clock: Rc<CoarseClock>,
        timeouts: Timeouts,
    ) -> Rc<Self> {
        let first_head = clock.mono_ns().saturating_add(timeouts.head_ns);
        Rc::new(Self {
            io: RefCell::new(TokioIo::new(stream)),
            peer,
            trusted,
            peer_value: address_value(peer),
            clock,
            timeouts,
            phase: Cell::new(Phase::Head),
            phase_deadline: Cell::new(first_head),
            write_deadline: Cell::new(NEVER),
            body_deadline: Cell::new(NEVER),
            upstream_deadline: Cell::new(NEVER),
            upstream_wait_ns: Cell::new(NEVER),
            upstream_late: Cell::new(false),
            body_fault: Cell::new(BodyFault::None),
            request_bytes: Cell::new(0),
            answering: Cell::new(false),
            unread_body: Cell::new(false),
            ending: Cell::new(Ending::No),
            waker: RefCell::new(None),
            quiet: OnceCell::new(),
            tunnel: RefCell::new(None),
        })
    }

    /// A head was read: the request is ours to answer.
    pub fn begin(&self) {
        self.phase.set(Phase::Busy);
        self.phase_deadline.set(NEVER);
        self.body_deadline.set(NEVER);
        self.upstream_deadline.set(NEVER);
        self.upstream_late.set(false);
        self.body_fault.set(BodyFault::None);
        self.answering.set(false);
        self.unread_body.set(false);
        self.request_bytes.set(0);
    }

    /// The answer has ended: the next request is awaited.
    pub fn end(&self) {
        self.phase.set(Phase::Idle);
        self.phase_deadline.set(self.after(self.timeouts.idle_ns));
        self.body_deadline.set(NEVER);
        self.upstream_deadline.set(NEVER);
    }

    /// The connection is a tunnel and carried something: only silence for `idle_timeout` ends it.
    pub fn tunnelled(&self, idle_timeout: Option<Duration>) {
        self.phase.set(Phase::Busy);
        self.phase_deadline
            .set(idle_timeout.map_or(NEVER, |idle| self.after(nanos(idle))));
    }

    /// The application closed its side of the tunnel: the client has this long to follow, whatever it still sends.
    pub fn tunnel_ends(&self, grace: Duration) {
        self.body_deadline
            .set(self.body_deadline.get().min(self.after(nanos(grace))));
    }

    /// The request waits for more of the body.
    pub fn await_body(&self) {
        if self.body_deadline.get() == NEVER {
            self.body_deadline.set(self.after(self.timeouts.body_ns));
        }
    }

    /// More of the body came, or its end.
    pub fn got_body(&self) {
        self.body_deadline.set(NEVER);
    }

    /// The request waits for the application, at most this long from now.
    pub fn await_upstream(&self, at_most: Duration) {
        self.upstream_wait_ns.set(nanos(at_most));
        self.upstream_deadline.set(self.after(nanos(at_most)));
    }

    /// The application was sent more of the body: its time to answer starts again.
    pub fn renew_upstream(&self) {
        if self.is_awaiting_upstream() {
            self.upstream_deadline
                .set(self.after(self.upstream_wait_ns.get()));
        }
    }

    /// Something came from the application.
    pub fn got_upstream(&self) {
        self.upstream_deadline.set(NEVER);
    }

    /// Whether the request waits for the application.
    pub fn is_awaiting_upstream(&self) -> bool {
        self.upstream_deadline.get() != NEVER
    }

    /// Coarse monotonic time after a span from now.
    fn after(&self, span_ns: u64) -> u64 {
        self.clock.mono_ns().saturating_add(span_ns)
    }

    /// The sweeper's look: wakes the connection's task where a deadline has passed.
    pub fn sweep(&self) {
        let now = self.clock.mono_ns();
        if self.phase_deadline.get() <= now {
            self.finish(match self.phase.get() {
                Phase::Head => Ending::HeadTimeout,
                Phase::Idle | Phase::Busy => Ending::Stalled,
            });
        } else if self.write_deadline.get() <= now || self.body_deadline.get() <= now {
            self.finish(Ending::Stalled);
        } else if self.upstream_deadline.get() <= now
            // While the client holds its body back, the application is not to blame.
            && self.body_deadline.get() == NEVER
            && !self.upstream_late.get()
        {
            self.upstream_late.set(true);
            self.wake();
        }
    }

    /// Asks the connection to end, and wakes its task. A stronger ending stands against a weaker one.
    pub fn finish(&self, ending: Ending) {
        let weaker = matches!(
            (self.ending.get(), ending),
            (Ending::No | Ending::Drain, _) | (_, Ending::Abort)
        );
        if weaker {
            self.ending.set(ending);
            self.wake();
        }
    }

    /// How the connection is to end.
    pub fn ending(&self) -> Ending {
        self.ending.get()
    }

    /// Notes whom the sweeper wakes. The task of a connection never changes.
    pub fn note_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if waker.is_none() {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Polls something that wakes itself while it is polled, as hyper's two halves of a connection do when one task
    /// drives both: `work` goes on until it cannot, so such a wake would only have the whole task polled once more for
    /// nothing. Where `work` is pending in the end and was woken meanwhile, the task is woken after all.
    pub fn without_self_wake<R>(
        &self,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let (quiet, waker) = self.quiet.get_or_init(|| {
            let quiet = Arc::new(Quiet {
                task: cx.waker().clone(),
                polling: AtomicBool::new(false),
                missed: AtomicBool::new(false),
            });
            let waker = Waker::from(Arc::clone(&quiet));
            (quiet, waker)
        });
        quiet.missed.store(false, Relaxed);
        quiet.polling.store(true, Relaxed);
        let outcome = work(&mut Context::from_waker(waker));
        quiet.polling.store(false, Relaxed);
        if outcome.is_pending() && quiet.missed.load(Relaxed) {
            cx.waker().wake_by_ref();
        }
        outcome
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Writes what fits into the socket's buffer at once; for the last words to a connection that is closing.
    pub fn write_last_words(&self, words: &[u8]) {
        // A client that cannot take a hundred bytes has lost its claim to them.
        let _ = self.io.borrow().inner().try_write(words);
    }

    /// Sends FIN; the client can still be read from.
    pub fn shutdown_write(&self) {
        // An error means that the connection is gone, which is what was wanted.
        let _ = socket2::SockRef::from(self.io.borrow().inner()).shutdown(Shutdown::Write);
    }

    /// Reads what is there and throws it away. None: nothing is there; zero: the end.
    pub fn discard(&self, scratch: &mut [u8]) -> Option<usize> {
        match self.io.borrow().inner().try_read(scratch) {
            Ok(read) => Some(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(0),
        }
    }

    /// Waits until something can be read, or the connection ended.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.borrow().inner().poll_read_ready(cx).map(|_| ())
    }

    fn noted_read(&self) {
        if self.phase.get() == Phase::Idle {
            self.phase.set(Phase::Head);
            self.phase_deadline.set(self.after(self.timeouts.head_ns));
        }
    }

    fn noted_write(&self, outcome: &Poll<io::Result<usize>>) {
        match outcome {
            Poll::Pending if self.write_deadline.get() == NEVER => {
                self.write_deadline.set(self.after(self.timeouts.body_ns));
            }
            Poll::Pending => {}
            Poll::Ready(_) => {
                self.answering.set(true);
                self.write_deadline.set(NEVER);
            }
        }
    }
}

/// The waker of [`Downstream::without_self_wake`]. All of it happens on one thread; the atomics only make it a waker.
struct Quiet {
    task: Waker,
    polling: AtomicBool,
    missed: AtomicBool,
}

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.polling.load(Relaxed) {
            self.missed.store(true, Relaxed);
        } else {
            self.task.wake_by_ref();
        }
    }
}

/// An address as a header value. IPv4 without the formatting machinery, which would cost a new connection more than the
/// ladder.
fn address_value(address: IpAddr) -> HeaderValue {
    let text = match address {
        IpAddr::V4(address) => {
            let mut text = String::with_capacity("255.255.255.255".len());
            let mut digits = itoa::Buffer::new();
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    text.push('.');
                }
                text.push_str(digits.format(octet));
            }
            text
        }
        IpAddr::V6(address) => address.to_string(),
    };
    // An address is visible ASCII: the fallback is never taken.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// hyper's half of a client connection.
pub struct Socket(pub Rc<Downstream>);

impl Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut *self.0.io.borrow_mut()).poll_read(cx, buf);
        if matches!(outcome, Poll::Ready(Ok(()))) {
            self.0.noted_read();
        }
        outcome
    }
}

impl Write for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut *self.0.io.borrow_mut()).poll_write(cx, buf);
        self.0.noted_write(&outcome);
        outcome
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut *self.0.io.borrow_mut()).poll_write_vectored(cx, bufs);
        self.0.noted_write(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TCP has nothing to flush.
        Poll::Ready(Ok(()))
    }

    /// Left to `connection.rs`, which lingers where a body was left unread.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_is_written_as_the_standard_library_does(address: IpAddr) {
            prop_assert_eq!(address_value(address), address.to_string());
        }
    }
}
