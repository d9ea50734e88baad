//! How heads and bodies are read from a client's socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read as _};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::conn::buffers::Pipe;
use crate::conn::inbound::{Body, CutOff, HeadEnd, Inbound};
use crate::conn::{Downstream, Ending};
use crate::http1::MAX_HEAD;
use crate::http1::body::Decoder;
use crate::message::{Piece, RequestLength};

/// So much of a head is read at once.
const READ: usize = 8 * 1024;
/// Room for a head that is not whole grows by so much, since it may stay so for long (CONN-1).
const STEP: usize = 4 * 1024;

thread_local! {
    /// What a connection of this thread reads into: none has a buffer of its own while it waits.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends the buffer of this thread for as long as `read` runs, which reads from one connection.
fn with_read_buffer<R>(read: impl FnOnce(&mut [u8]) -> R) -> R {
    READ_BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(MAX_HEAD, 0);
        read(buffer)
    })
}

impl Downstream {
    /// Reads what is there into `buf`; nothing new in it is the end of the connection.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let outcome = self.io.borrow_mut().poll_read(cx, buf);
        if matches!(outcome, Poll::Ready(Ok(()))) {
            self.note_read();
        }
        outcome
    }

    /// Reads what is there, which need not be a request, nor a part of one.
    pub fn poll_read_frames(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.io.borrow_mut().poll_read(cx, buf)
    }

    /// Reads what is there and throws it away; `at_once`, whatever the runtime knows of the socket.
    /// None: nothing is there; zero: the end.
    pub fn discard(&self, scratch: &mut [u8], at_once: bool) -> Option<usize> {
        let io = self.io.borrow();
        let Some(socket) = io.socket() else {
            return Some(0);
        };
        let read = match at_once {
            true => (&*socket2::SockRef::from(socket)).read(scratch),
            false => socket.try_read(scratch),
        };
        match read {
            Ok(read) => Some(read),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) => Some(0),
        }
    }

    /// Waits until the client sends something, or ends the connection. The runtime takes a new
    /// connection for readable without asking.
    pub fn poll_used(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.probed.replace(true) {
            return self.poll_readable(cx);
        }
        let peeked = self.io.borrow_mut().poll_peek(cx);
        peeked.map(|_| ())
    }

    /// Waits until the client sends something; false if the connection ends before it does. One
    /// that was just accepted is waited for in a drain too, for a short time (CONN-14).
    pub async fn is_used_again(&self) -> bool {
        poll_fn(|cx| {
            self.note_waker(cx);
            let is_readable = self.poll_used(cx).is_ready();
            match self.ending() {
                Ending::No if !is_readable => Poll::Pending,
                Ending::Drain if !is_readable && self.deadlines().is_unused() => Poll::Pending,
                ending => Poll::Ready(is_readable && !ending.is_cut()),
            }
        })
        .await
    }

    /// It was tried to read from the connection: whether it is readable is known from now on.
    pub fn note_probed(&self) {
        self.probed.set(true);
    }

    /// Waits until something can be read, or the connection ended.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.borrow_mut().poll_readable(cx)
    }

    /// Notes that the client sent something.
    pub fn note_read(&self) {
        let now_ns = self.clock.mono_ns();
        let mut watch = self.watch.borrow_mut();
        watch.deadlines.client_sent(now_ns);
        self.slot.set_idle(watch.gives_way_since(now_ns).is_some());
    }
}

/// The beginning of the bytes at hand.
pub enum Looked<T> {
    /// The beginning of a head, and no more.
    Partial,
    /// This, in so many bytes.
    Found(T, usize),
}

impl Inbound {
    /// Takes `count` bytes. An empty buffer is given back.
    fn take(&mut self, count: usize) {
        self.at += count;
        if self.at >= self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
        }
    }

    /// Looks at bytes that came behind nothing; what is not taken of them is held.
    fn look<T>(&mut self, bytes: &[u8], look: impl FnOnce(&[u8]) -> Looked<T>) -> Option<T> {
        match look(bytes) {
            Looked::Found(found, length) => {
                self.bytes = bytes.get(length..).unwrap_or_default().to_vec();
                self.at = 0;
                Some(found)
            }
            Looked::Partial => {
                self.begin(bytes.to_vec());
                None
            }
        }
    }

    /// These bytes are the beginning of a head.
    fn begin(&mut self, bytes: Vec<u8>) {
        let mut end = HeadEnd::default();
        // A head of which the parser says that it is not whole has no end.
        end.find(&bytes);
        (self.bytes, self.at, self.begun) = (bytes, 0, Some(end));
    }

    /// Looks at what is held, if that was not done yet.
    fn look_at_held<T>(&mut self, look: impl FnOnce(&[u8]) -> Looked<T>) -> Option<T> {
        if self.begun.is_some() || self.rest().is_empty() {
            return None;
        }
        match look(self.rest()) {
            Looked::Found(found, length) => {
                self.take(length);
                Some(found)
            }
            Looked::Partial => {
                let bytes = self.rest().to_vec();
                self.begin(bytes);
                None
            }
        }
    }

    /// Adds bytes to the beginning of a head, and looks at it once it may be whole or is too large.
    fn add<T>(&mut self, bytes: &[u8], look: impl FnOnce(&[u8]) -> Looked<T>) -> Option<T> {
        let Some(begun) = &mut self.begun else {
            return self.look(bytes, look);
        };
        let is_whole = begun.find(bytes).is_some();
        let length = self.bytes.len() + bytes.len();
        if self.bytes.capacity() < length {
            let room = length.next_multiple_of(STEP) - self.bytes.len();
            self.bytes.reserve_exact(room);
        }
        self.bytes.extend_from_slice(bytes);
        if is_whole || length >= MAX_HEAD {
            self.begun = None;
            let bytes = std::mem::take(&mut self.bytes);
            return self.look(&bytes, look);
        }
        None
    }
}

impl Downstream {
    /// These bytes were read already.
    pub fn put_back(&self, early: Bytes) {
        if !early.is_empty() {
            let mut held = self.inbound.borrow_mut();
            (held.bytes, held.at) = (early.into(), 0);
        }
    }

    /// Whether bytes wait that are not taken.
    pub fn has_unread(&self) -> bool {
        !self.inbound.borrow().rest().is_empty()
    }

    /// Takes what was read and not taken: it belongs to who speaks another protocol now.
    pub fn take_unread(&self) -> Bytes {
        let held = std::mem::take(&mut *self.inbound.borrow_mut());
        let Inbound { mut bytes, at, .. } = held;
        Bytes::from(bytes.split_off(at.min(bytes.len())))
    }

    /// Reads until `look` finds something in the bytes at hand; none at the end of the connection.
    /// To be called where no body is under way.
    pub fn poll_head<T>(
        &self,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&[u8]) -> Looked<T>,
    ) -> Poll<Option<T>> {
        let mut held = self.inbound.borrow_mut();
        if held.begun.is_none() && !held.rest().is_empty() {
            self.note_read();
            if let Some(found) = held.look_at_held(&mut look) {
                return Poll::Ready(Some(found));
            }
        }
        loop {
            let found = with_read_buffer(|buffer| {
                let room = READ.min(MAX_HEAD.saturating_sub(held.bytes.len()).max(1));
                let mut buffer = ReadBuf::new(buffer.get_mut(..room).unwrap_or_default());
                let outcome = ready!(self.poll_read(cx, &mut buffer));
                if outcome.is_err() || buffer.filled().is_empty() {
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(held.add(buffer.filled(), &mut look)))
            });
            match ready!(found) {
                None => return Poll::Ready(None),
                Some(None) => {}
                Some(found) => return Poll::Ready(found),
            }
        }
    }

    /// A head was read behind which this body follows. The client `waits` until it is asked for it.
    pub fn begin_body(&self, length: RequestLength, waits: bool) {
        let mut held = self.inbound.borrow_mut();
        held.body = match length {
            RequestLength::Empty | RequestLength::Exact(0) => Body::Ended,
            RequestLength::Exact(length) => Body::Exact(length),
            RequestLength::Chunked => {
                Body::Chunked(Box::new(Decoder::of_request(RequestLength::Chunked)))
            }
        };
        held.waits = waits && !length.is_empty();
    }

    /// Whether the whole body of the current request was taken.
    pub fn is_body_taken(&self) -> bool {
        matches!(self.inbound.borrow().body, Body::Ended)
    }

    /// Whether the client still waits to be asked for its body.
    pub fn waits_for_continue(&self) -> bool {
        self.inbound.borrow().waits
    }

    /// The next piece of the body; none behind its end.
    pub fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, CutOff>>> {
        self.poll_piece(cx).map(Result::transpose)
    }

    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, CutOff>> {
        let mut held = self.inbound.borrow_mut();
        loop {
            let mut framing = 0;
            let piece = held.next_piece(&mut framing).map_err(|_| CutOff)?;
            self.upload().add_framing(framing);
            if piece.is_some() {
                return Poll::Ready(Ok(piece));
            }
            if let Some(trailers) = held.take_trailers() {
                return Poll::Ready(Ok(Some(Piece::Trailers(trailers))));
            }
            let at_most = match held.body {
                Body::Ended => return Poll::Ready(Ok(None)),
                Body::Exact(left) => usize::try_from(left).unwrap_or(usize::MAX),
                Body::Chunked(_) => usize::MAX,
                Body::Broken(_) => return Poll::Ready(Err(CutOff)),
            };
            self.ask_for_body(&mut held);
            held.bytes = ready!(self.poll_gathered(at_most, cx)).map_err(|_| CutOff)?;
            if held.bytes.is_empty() {
                return Poll::Ready(Err(CutOff));
            }
        }
    }

    /// Asks for the body where the client waits for that (RFC 9110 §10.1.1): once.
    fn ask_for_body(&self, held: &mut Inbound) {
        if std::mem::take(&mut held.waits) {
            self.interim().put_continue();
        }
    }

    /// Reads what there is, at most so much, as long as more is ready: over TLS each record is read
    /// by itself, and may hold one byte (CONN-9). Nothing is the end of the connection.
    fn poll_gathered(&self, at_most: usize, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        with_read_buffer(|buffer| {
            let room = at_most.min(buffer.len());
            let mut buffer = ReadBuf::new(buffer.get_mut(..room).unwrap_or_default());
            let read = ready!(gather(&mut buffer, |buffer| self.poll_read(cx, buffer)))?;
            Poll::Ready(Ok(buffer.filled().get(..read).unwrap_or_default().to_vec()))
        })
    }

    /// Whether the next bytes of the body can be moved inside the system: nothing of them was read,
    /// their number is known, and they are not encrypted.
    pub fn can_move_body(&self) -> bool {
        let held = self.inbound.borrow();
        matches!(held.body, Body::Exact(_)) && held.rest().is_empty() && self.can_move()
    }

    /// Moves what there is of the body into an empty pipe; zero is the end of the connection.
    pub fn poll_move_body(&self, pipe: &mut Pipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut held = self.inbound.borrow_mut();
        let Body::Exact(left) = held.body else {
            return Poll::Ready(Ok(0));
        };
        self.ask_for_body(&mut held);
        let moved = {
            let io = self.io.borrow();
            let Some(socket) = io.socket() else {
                return Poll::Ready(Ok(0));
            };
            let at_most = usize::try_from(left).unwrap_or(usize::MAX);
            ready!(pipe.poll_fill(socket, at_most, cx))?
        };
        if moved > 0 {
            self.note_read();
        }
        held.body = match left.saturating_sub(moved as u64) {
            0 => Body::Ended,
            left => Body::Exact(left),
        };
        Poll::Ready(Ok(moved))
    }
}

/// Reads as long as there is room and more is ready: how much came. An error or the end behind
/// something is found again by the next read.
fn gather(
    read: &mut ReadBuf<'_>,
    mut more: impl FnMut(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
) -> Poll<io::Result<usize>> {
    loop {
        let before = read.filled().len();
        match more(read) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) if before == 0 => return Poll::Ready(Err(error)),
            Poll::Pending if before == 0 => return Poll::Pending,
            Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(Ok(before)),
        }
        let length = read.filled().len();
        if length == before || read.remaining() == 0 {
            return Poll::Ready(Ok(length));
        }
    }
}

#[cfg(test)]
mod tests;
