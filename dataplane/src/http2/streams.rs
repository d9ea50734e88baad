//! The streams of one HTTP/2 connection, as the worker's tick looks after them: their deadlines,
//! what waits for the client, and when the connection is idle.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use crate::conn::deadlines::Timeouts;
use crate::conn::{Downstream, Ending};
use crate::http2::flood::{Budget, Fault, Heads, Scanner};
use crate::worker::counters::Counters;

/// Bytes of answers that may wait for a client in the library's hands (CONN-1). Beyond it nothing
/// more is read for a stream while some of it can be written; and where the client has no room for
/// any of it, little at a time, for streams of which nothing waits.
const CROWDED: usize = 256 * 1024;
/// Bytes of one answer in the library's hands with which the next piece of it is read.
const LOW: usize = 32 * 1024;
/// Bytes of heads of requests that are under way, as their client counts them (CONN-1).
const MAX_HEADS: usize = 512 * 1024;
/// Of streams that wait for their client at once, each may be so many times slower than the least
/// rate: they share the client's line (CONN-7).
const SHARES: u64 = 16;
/// Bad heads after which a connection ends, and health checks of a peer that is refused (CONN-16).
/// Over HTTP/1.1 one bad head costs the connection; here it would cost the streams beside it.
const MAX_WORTHLESS: u64 = 10;

/// All connections of a worker that speak HTTP/2.
#[derive(Default)]
pub struct Http2Connections(RefCell<Vec<Weak<Streams>>>);

impl Http2Connections {
    /// Looks at the deadlines of every stream. Called on the worker's tick.
    pub fn sweep(&self, timeouts: Timeouts, now_ns: u64) {
        self.0.borrow_mut().retain(|streams| {
            let streams = streams.upgrade();
            if let Some(streams) = &streams {
                streams.sweep(timeouts, now_ns);
            }
            streams.is_some()
        });
    }

    /// The worker has stood still for so long: as for the connections themselves.
    pub fn put_off(&self, by_ns: u64) {
        let streams = self.0.borrow();
        for streams in streams.iter().filter_map(Weak::upgrade) {
            streams.put_off(by_ns);
        }
    }

    /// One more.
    pub fn add(&self, streams: &Rc<Streams>) {
        self.0.borrow_mut().push(Rc::downgrade(streams));
    }
}

/// The streams of one connection.
pub struct Streams {
    /// The connection.
    pub connection: Rc<Downstream>,
    /// Those that are open, and a few that have ended since the last tick.
    open: RefCell<Vec<Weak<Stream>>>,
    /// How many are open: until the last piece of the answer was written.
    count: Cell<usize>,
    /// How many of them wait for the beginning of a body (CONN-13).
    gathering: Cell<usize>,
    /// Bytes of answers in the library's hands.
    queued: Cell<usize>,
    /// Too much is, and nothing of it can be written: the client has no room for it.
    is_stuck: Cell<bool>,
    /// Bytes of heads of those that are open.
    heads: Cell<usize>,
    /// What the client may still spend.
    pub budget: Budget,
    /// What became of the heads that it has sent.
    pub refused: Heads,
    /// Heads that were answered as no request.
    bad_heads: Cell<u64>,
    /// Health checks of a peer that is refused.
    refused_checks: Cell<u64>,
    /// The frames that it sends.
    scanner: RefCell<Scanner>,
    fault: Cell<Option<Fault>>,
    /// No further stream is to be opened.
    closes: Cell<bool>,
    /// All that was written is whole frames, and the socket has them.
    pub is_flushed: Cell<bool>,
}

impl Streams {
    /// None is open.
    pub fn new(connection: Rc<Downstream>, now_ns: u64) -> Rc<Self> {
        Rc::new(Self {
            connection,
            open: RefCell::default(),
            count: Cell::new(0),
            gathering: Cell::new(0),
            queued: Cell::new(0),
            is_stuck: Cell::new(false),
            heads: Cell::new(0),
            budget: Budget::new(now_ns),
            refused: Heads::default(),
            bad_heads: Cell::new(0),
            refused_checks: Cell::new(0),
            scanner: RefCell::new(Scanner::new()),
            fault: Cell::new(None),
            closes: Cell::new(false),
            is_flushed: Cell::new(true),
        })
    }

    /// Opens a stream for a request with a head of this size; none where there is no room for it.
    pub fn open(self: &Rc<Self>, timeouts: Timeouts, head: usize) -> Option<Rc<Stream>> {
        let heads = self.heads.get() + head;
        if heads > MAX_HEADS {
            return None;
        }
        self.heads.set(heads);
        if self.count.replace(self.count.get() + 1) == 0 {
            self.connection.begin_request();
        }
        self.tell_gathering(0);
        let stream = Rc::new(Stream {
            downstream: self.connection.new_stream(timeouts),
            streams: Rc::clone(self),
            head,
            queued: Cell::new(0),
            taken: Cell::new(0),
            has_response: Cell::new(false),
            is_given: Cell::new(false),
            is_last_word: Cell::new(false),
            has_task: Cell::new(true),
            gathers: Cell::new(None),
            waits: RefCell::new(None),
        });
        self.open.borrow_mut().push(Rc::downgrade(&stream));
        Some(stream)
    }

    /// Tells the connection whether all wait for the beginning of a body: it gives way then
    /// (CONN-16).
    fn tell_gathering(&self, since_ns: u64) {
        let all = self.gathering.get() == self.count.get();
        let mut deadlines = self.connection.deadlines();
        deadlines.streams_gather(all, since_ns);
    }

    /// Whether none is open.
    pub const fn is_idle(&self) -> bool {
        self.count.get() == 0
    }

    /// Looks at what the client has sent.
    ///
    /// # Errors
    /// [`Fault`] where the connection is to end.
    pub fn scan(&self, bytes: &[u8], now_ns: u64) -> Result<(), Fault> {
        let scanned = self.scanner.borrow_mut().scan(bytes, &self.budget, now_ns);
        self.fault.set(scanned.err());
        scanned
    }

    /// Why the connection is to end for what the client has sent, if it is.
    pub const fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }

    /// The last stream that the client has opened.
    pub fn last_stream(&self) -> u32 {
        self.scanner.borrow().last_stream()
    }

    /// Counts the heads that the library has refused by itself. Called while it waits: it has
    /// looked at all that came, unless it is kept from saying something.
    pub fn count_refused(&self, counters: &Counters) {
        if self.is_flushed.get() {
            let came = self.scanner.borrow().heads();
            self.refused.count(came, counters);
        }
    }

    /// A head was answered as no request.
    pub fn note_bad_head(&self) {
        self.bad_heads.set(self.bad_heads.get() + 1);
    }

    /// A peer that is refused has asked for health.
    pub fn note_refused_check(&self) {
        self.refused_checks.set(self.refused_checks.get() + 1);
    }

    /// Whether the connection ends for what it was used for (CONN-16). A trusted peer speaks for
    /// others, whose streams go on.
    pub fn is_worthless(&self) -> bool {
        let bad_heads = self.bad_heads.get() + self.refused.refused();
        let is_over = bad_heads.max(self.refused_checks.get()) >= MAX_WORTHLESS;
        is_over && !self.connection.trusted()
    }

    /// No further stream is to be opened.
    pub fn close(&self) {
        self.closes.set(true);
    }

    /// Whether no further stream is to be opened.
    pub const fn closes(&self) -> bool {
        self.closes.get()
    }

    /// Ends those that are open, as their connection ends.
    pub fn finish(&self, ending: Ending) {
        let open: Vec<_> = self.open.borrow().clone();
        for stream in open.iter().filter_map(Weak::upgrade) {
            stream.downstream.finish(ending);
        }
    }

    /// Whether some of an answer waits for the client.
    pub const fn has_queued(&self) -> bool {
        self.queued.get() > 0
    }

    /// Whether much waits for the client already.
    pub const fn is_crowded(&self) -> bool {
        self.queued.get() >= CROWDED
    }

    /// Whether much waits for the client that it has no room for.
    pub const fn is_stuck(&self) -> bool {
        self.is_stuck.get()
    }

    /// The library has written all that it can: what it still has, the client has no room for.
    pub fn settle(&self) {
        if self.is_crowded() && self.is_flushed.get() && !self.is_stuck.replace(true) {
            self.wake_waiting();
        }
    }

    /// Looks at the deadlines of every stream.
    fn sweep(&self, timeouts: Timeouts, now_ns: u64) {
        let head_since = self.scanner.borrow().head_since();
        let head_ends = head_since.map(|since| since.saturating_add(timeouts.head_ns));
        if head_ends.is_some_and(|end| end <= now_ns) {
            self.connection.finish(Ending::HeadTimeout);
        }
        let mut open = self.open.borrow_mut();
        open.retain(|stream| stream.strong_count() > 0);
        let open: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
        let waiting = open.iter().filter(|stream| stream.queued.get() > 0).count() as u64;
        let is_full = self.connection.deadlines().is_write_waiting();
        for stream in &open {
            stream.sweep(waiting.clamp(1, SHARES), is_full);
        }
        // Those whose whole answer the library has can no longer be ended by themselves.
        let is_left =
            |stream: &Rc<Stream>| !stream.has_task.get() && stream.downstream.ending().is_cut();
        if !open.is_empty() && open.iter().all(is_left) {
            self.connection.finish(Ending::TooSlow);
        }
    }

    fn put_off(&self, by_ns: u64) {
        self.scanner.borrow_mut().put_off(by_ns);
        let open = self.open.borrow();
        for stream in open.iter().filter_map(Weak::upgrade) {
            stream.downstream.deadlines().put_off(by_ns);
        }
    }

    fn wake_waiting(&self) {
        let open: Vec<_> = self.open.borrow().clone();
        for stream in open.iter().filter_map(Weak::upgrade) {
            stream.wake();
        }
    }
}

/// One stream: a request, until the last piece of its answer was written or thrown away.
pub struct Stream {
    /// The request's side of it.
    pub downstream: Rc<Downstream>,
    streams: Rc<Streams>,
    /// Bytes of its head.
    head: usize,
    /// Bytes of its answer in the library's hands.
    queued: Cell<usize>,
    /// Those that the client took since the last tick.
    taken: Cell<u64>,
    /// The library has the head of its response.
    pub has_response: Cell<bool>,
    /// All of the response was given out, or gives its client nothing to spend.
    is_given: Cell<bool>,
    /// The response says why the request was cut.
    pub is_last_word: Cell<bool>,
    /// The library works on it.
    pub has_task: Cell<bool>,
    /// Since when it waits for the beginning of its body, if it does.
    gathers: Cell<Option<u64>>,
    /// Its body waits until less is in the library's hands.
    waits: RefCell<Option<Waker>>,
}

impl Stream {
    /// Those of its connection.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Notes whether it waits for the beginning of its body.
    pub fn note_gathering(&self) {
        let since = self.downstream.deadlines().gathers_since();
        let was = self.gathers.replace(since);
        if was != since {
            let streams = &self.streams;
            let others = streams.gathering.get() - usize::from(was.is_some());
            streams.gathering.set(others + usize::from(since.is_some()));
            streams.tell_gathering(since.unwrap_or(0));
        }
    }

    /// Whether a body has to wait; its task is woken once it has not.
    pub fn must_wait(&self, cx: &Context<'_>) -> bool {
        let queued = self.queued.get();
        let is_kept = || queued > 0 || !self.streams.is_stuck();
        let must = queued > LOW || self.streams.is_crowded() && is_kept();
        if must {
            *self.waits.borrow_mut() = Some(cx.waker().clone());
        }
        must
    }

    /// Whether some of its answer is in the library's hands; its task is woken once none is.
    pub fn has_queued(&self, cx: &Context<'_>) -> bool {
        let has = self.queued.get() > 0;
        if has {
            *self.waits.borrow_mut() = Some(cx.waker().clone());
        }
        has
    }

    /// Whether its response is to be broken off.
    pub fn is_cut(&self) -> bool {
        self.has_response.get() && !self.is_last_word.get() && self.downstream.ending().is_cut()
    }

    /// Its answer gives its client nothing to spend: it carries nothing (CONN-16).
    pub fn earns_nothing(&self) {
        self.is_given.set(true);
    }

    /// All of the response was given out.
    pub fn end(&self) {
        if !self.is_given.replace(true) {
            self.streams.budget.answered();
        }
    }

    /// The library has so much more of the answer.
    pub fn queue(&self, bytes: usize) {
        self.queued.set(self.queued.get() + bytes);
        self.streams.queued.set(self.streams.queued.get() + bytes);
    }

    /// So much of it was written, or thrown away.
    pub fn unqueue(&self, bytes: usize, is_written: bool) {
        if is_written {
            self.taken.set(self.taken.get() + bytes as u64);
        }
        let streams = &self.streams;
        let was_crowded = streams.is_crowded();
        self.queued.set(self.queued.get().saturating_sub(bytes));
        let queued = streams.queued.get().saturating_sub(bytes);
        streams.queued.set(queued);
        if was_crowded && !streams.is_crowded() {
            streams.is_stuck.set(false);
            streams.wake_waiting();
        } else if self.queued.get() == 0 || !was_crowded && self.queued.get() <= LOW {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waits.take() {
            waker.wake();
        }
    }

    /// Looks at its deadlines. `shares` streams wait for the client at once. A full socket is the
    /// connection's matter, which has a pace of its own.
    fn sweep(&self, shares: u64, is_full: bool) {
        let taken = self.taken.take();
        if taken > 0 || is_full {
            self.downstream.note_taken(taken.saturating_mul(shares));
        }
        if self.queued.get() > 0 && !is_full {
            self.downstream.await_taking();
        }
        self.downstream.sweep();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Self { streams, head, .. } = self;
        streams.heads.set(streams.heads.get().saturating_sub(*head));
        if self.downstream.deadlines().is_short() {
            streams.connection.shorten_idle();
        }
        let count = streams.count.get().saturating_sub(1);
        streams.count.set(count);
        let gathers = usize::from(self.gathers.take().is_some());
        streams.gathering.set(streams.gathering.get() - gathers);
        match count {
            0 => streams.connection.end_request(),
            _ => streams.tell_gathering(0),
        }
    }
}
