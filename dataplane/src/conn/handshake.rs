//! The TLS handshake of a connection (EDGE-2): bounded in time and in number, and one step of one
//! handshake a turn of the worker, so that a flood of them leaves every other connection its turn.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use bytes::Bytes;
use rustls::ServerConfig;
use tokio::io::ReadBuf;
use tokio::sync::{Semaphore, SemaphorePermit};
use weir_shared::totals::{ConnectionError, Handshake};

use crate::conn::proxy_protocol::{self, Foreign};
use crate::conn::tls::{Advanced, Session};
use crate::conn::{CERTAIN, Downstream, Ending};
use crate::worker::counters::Counters;

/// The answer to HTTP where TLS is spoken.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// The result of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshaken {
    /// TLS is spoken.
    Ready,
    /// The connection is over.
    Closed,
    /// The connection is over once the peer has read why.
    Rejected,
}

/// Makes the handshake of a connection on which something has come; `early` was read already.
pub async fn handshake(
    handshakes: &Handshakes,
    counters: &Counters,
    downstream: &Rc<Downstream>,
    early: Bytes,
) -> Handshaken {
    let Some(outcome) = Box::pin(attempt(handshakes, downstream, early)).await else {
        return Handshaken::Closed;
    };
    counters.handshake(outcome);
    match outcome {
        Handshake::Full | Handshake::Resumed => {
            downstream.note_handshake();
            Handshaken::Ready
        }
        Handshake::Failed => {
            counters.connection_error(ConnectionError::Tls);
            Handshaken::Rejected
        }
        Handshake::TimedOut => {
            counters.connection_error(ConnectionError::Tls);
            Handshaken::Closed
        }
        Handshake::Aborted => Handshaken::Closed,
    }
}

/// How the handshake went; none where nothing of one was sent.
async fn attempt(
    handshakes: &Handshakes,
    downstream: &Rc<Downstream>,
    early: Bytes,
) -> Option<Handshake> {
    let config = handshakes.config()?;
    let first = if early.is_empty() {
        downstream.peek_first().await
    } else {
        early.slice(..early.len().min(proxy_protocol::LONGEST))
    };
    if first.is_empty() {
        return None;
    }
    let foreign = Foreign::of(&first);
    if foreign != Some(Foreign::Tls) {
        if let Some(foreign) = foreign {
            proxy_protocol::tell(foreign, downstream.peer, "TLS", downstream.wall_ms());
        }
        if foreign == Some(Foreign::Http) {
            downstream.write_at_once(PLAIN);
        }
        return Some(Handshake::Failed);
    }
    let _under_way = handshakes.enter(downstream);
    downstream.begin_tls(Session::new(config, early).ok()?);
    loop {
        let outcome = step(handshakes, downstream).await;
        if outcome.is_some() {
            return outcome;
        }
    }
}

/// Waits for bytes, then for the turn, and goes on with the bytes; none where the handshake is not
/// over. All others have their turn before the next step of any handshake: it may cost a
/// millisecond.
async fn step(handshakes: &Handshakes, downstream: &Downstream) -> Option<Handshake> {
    let has_come = poll_fn(|cx| {
        downstream.note_waker(cx);
        if downstream.ending().is_cut() {
            return Poll::Ready(false);
        }
        downstream.poll_handshake_ready(cx).map(|()| true)
    });
    if !has_come.await {
        return Some(Handshake::TimedOut);
    }
    let turn = handshakes.turn().await;
    let advanced = poll_fn(|cx| Poll::Ready(downstream.advance_handshake(cx))).await;
    tokio::task::yield_now().await;
    drop(turn);
    match advanced {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::debug!(peer = %downstream.peer, %error, "a TLS handshake failed");
            Some(Handshake::Failed)
        }
        Ok(Advanced::Done { resumed: true }) => Some(Handshake::Resumed),
        Ok(Advanced::Done { resumed: false }) => Some(Handshake::Full),
        Err(_) | Ok(Advanced::Closed) => Some(Handshake::Aborted),
        Ok(Advanced::UnderWay) => None,
    }
}

/// Handshakes that a worker has under way at most; the oldest gives way to a further one.
const MAX_UNDER_WAY: usize = 1024;

/// The handshakes of one worker, and the certificates that they are made with.
pub struct Handshakes {
    config: Option<Arc<ArcSwap<ServerConfig>>>,
    /// One step at a time.
    turn: Semaphore,
    under_way: RefCell<BTreeMap<u64, Weak<Downstream>>>,
    next: Cell<u64>,
}

impl Handshakes {
    /// None is under way.
    pub fn new(config: Option<Arc<ArcSwap<ServerConfig>>>) -> Self {
        Self {
            config,
            turn: Semaphore::new(1),
            under_way: RefCell::default(),
            next: Cell::new(0),
        }
    }

    /// What the next one is made with.
    pub fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.as_ref().map(|config| config.load_full())
    }

    /// Waits for the turn, which lasts as long as what is returned.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.turn.acquire().await.ok()
    }

    /// Counts a handshake in, for as long as what is returned lives.
    pub fn enter(&self, downstream: &Rc<Downstream>) -> UnderWay<'_> {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= MAX_UNDER_WAY
            && let Some((_, oldest)) = under_way.pop_first()
            && let Some(oldest) = oldest.upgrade()
        {
            oldest.finish(Ending::Idle);
        }
        under_way.insert(number, Rc::downgrade(downstream));
        UnderWay {
            handshakes: self,
            number,
        }
    }
}

/// A handshake that is under way.
pub struct UnderWay<'a> {
    handshakes: &'a Handshakes,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.handshakes.under_way.borrow_mut().remove(&self.number);
    }
}

impl Downstream {
    /// Waits until anything comes, or the end, below whatever is spoken: before a close that does
    /// not want to know what it is.
    pub fn poll_arrival(&self, cx: &mut Context<'_>) -> Poll<()> {
        let io = self.io.borrow();
        let socket = io.socket();
        socket.map_or(Poll::Ready(()), |socket| {
            socket.poll_read_ready(cx).map(|_| ())
        })
    }

    /// Whether a handshake of TLS comes first.
    pub fn awaits_tls(&self) -> bool {
        self.scheme == "https" && !self.io.borrow().is_tls()
    }

    /// The first bytes of a connection, which stay to be read; none at its end.
    pub async fn peek_first(&self) -> Bytes {
        let mut first = [0; proxy_protocol::LONGEST];
        let peeked = poll_fn(|cx| {
            let io = self.io.borrow();
            let socket = io.socket();
            socket.map_or(Poll::Ready(Ok(0)), |socket| {
                socket.poll_peek(cx, &mut ReadBuf::new(&mut first))
            })
        });
        let count = peeked.await.unwrap_or(0);
        Bytes::copy_from_slice(first.get(..count).unwrap_or_default())
    }

    /// Whether HTTP/2 was agreed on (ALPN).
    pub fn agreed_on_http2(&self) -> bool {
        self.io.borrow().agreed() == Some(b"h2")
    }

    /// TLS is spoken from now on, and its handshake comes first.
    pub fn begin_tls(&self, session: Session) {
        self.io.borrow_mut().begin_tls(session);
    }

    /// Waits until the handshake can go on.
    pub fn poll_handshake_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut io = self.io.borrow_mut();
        match io.tls() {
            Some((session, stream)) => session.poll_handshake(stream, cx),
            None => Poll::Ready(()),
        }
    }

    /// Goes on with the handshake as far as the bytes that have come lead.
    ///
    /// # Errors
    /// The peer does not keep to TLS, or the socket failed.
    pub fn advance_handshake(&self, cx: &mut Context<'_>) -> io::Result<Advanced> {
        let mut io = self.io.borrow_mut();
        match io.tls() {
            Some((session, stream)) => session.advance(stream, cx),
            None => Ok(Advanced::Closed),
        }
    }

    /// The handshake is done: the first head has its whole time from now on. What is still on its
    /// way of the handshake, and what records add to a response, is far less than a quarter of what
    /// the system takes for certain.
    pub fn note_handshake(&self) {
        self.deadlines().begin_connection(self.clock.mono_ns());
        self.written.set(CERTAIN / 4);
    }
}
