//! The socket of a client connection as hyper sees it. What it reads and writes is noted.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;

use super::Downstream;
use super::inbound::Inbound;
use super::io::Io;
use crate::{pipe, together};

/// The beginning of the interim response that hyper writes itself.
const CONTINUE: &[u8] = b"HTTP/1.1 100 ";

/// What hyper's buffer for reading has room for at first. It grows where a read fills it, and does
/// not shrink.
const SMALL_BUFFER: usize = 8 * 1024;

/// hyper's half of a client connection.
pub struct Socket {
    downstream: Rc<Downstream>,
    inbound: Inbound,
}

impl Socket {
    /// The half of this connection, of which `early` was read already: the beginning of a request,
    /// if it is not empty.
    pub fn new(downstream: Rc<Downstream>, early: Bytes) -> Self {
        if !early.is_empty() {
            downstream.note_read();
        }
        Self {
            downstream,
            inbound: Inbound::new(early),
        }
    }

    /// What was read and is not answered, of which hyper has taken `taken`. A copy: also where
    /// nothing is left in it, the buffer would be held whole.
    pub fn unanswered(&self, taken: &[u8]) -> Bytes {
        let left = self.inbound.left();
        if left.is_empty() {
            return Bytes::copy_from_slice(taken);
        }
        [taken, left].concat().into()
    }

    /// Writes the end of the last response of a connection, which goes together with the FIN that
    /// is sent next.
    pub fn poll_write_last(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let waits = !self.downstream.interim.is_empty() || self.downstream.retries.get();
        if !waits && !self.downstream.is_tls() {
            return self.downstream.poll_write_last(cx, bytes);
        }
        Pin::new(self).poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    /// The connection becomes a tunnel.
    pub fn begin_tunnel(&mut self) {
        self.inbound.begin_tunnel();
    }

    /// Writes what the socket takes. Over TLS all that was encrypted is told as written, or, where
    /// it `counts`, what the socket took of it; whoever waits then comes again with the same bytes.
    fn poll_write_as(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        counts: bool,
    ) -> Poll<io::Result<usize>> {
        let mut io = self.downstream.io.borrow_mut();
        let (bufs, moved) = before_placeholder(bufs);
        let outcome = match self.downstream.interim.poll_end(&mut *io, cx) {
            Poll::Ready(Ok(())) if moved > 0 => self.downstream.poll_drain(&io, moved, cx),
            Poll::Ready(Ok(())) => match self.downstream.retry(&mut io, bufs, counts) {
                Some(written) => Poll::Ready(Ok(written)),
                None => match bufs {
                    [only] if !counts => Pin::new(&mut *io).poll_write(cx, only),
                    _ => Pin::new(&mut *io).poll_write_vectored(cx, bufs),
                },
            },
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        let first = bufs.first().map_or(&[][..], |buf| buf);
        let sent = take_sent(&mut io);
        self.downstream.note_write(&outcome, first, sent);
        outcome
    }
}

impl Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            downstream,
            inbound,
        } = self.get_mut();
        if buf.remaining() > SMALL_BUFFER {
            downstream.grown.set(true);
        }
        if let Some(framing) = downstream.framing.take() {
            inbound.begin_body(framing);
        }
        if !inbound.left().is_empty() {
            downstream.note_read();
        }
        inbound.poll_read(cx, buf, &downstream.upload, |cx, buf| {
            if downstream.keeps_from_hyper() {
                return Poll::Pending;
            }
            downstream.poll_read(cx, buf)
        })
    }
}

impl Write for Socket {
    /// For bytes of a tunnel, in whose middle something else may be to be written.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_as(cx, &[IoSlice::new(buf)], false)
    }

    /// For bytes of a response (CONN-5).
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_as(cx, bufs, true)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// hyper asks for it where it has written all of its own. TCP has nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.downstream.poll_flush(cx))?;
        self.downstream.flushed.set(true);
        if self.downstream.interim.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut io = self.downstream.io.borrow_mut();
        let outcome = self.downstream.interim.poll_write(&mut *io, cx);
        match outcome {
            Poll::Pending => self
                .downstream
                .deadlines
                .await_write(self.downstream.clock.mono_ns()),
            Poll::Ready(_) => self
                .downstream
                .deadlines
                .wrote(self.downstream.clock.mono_ns(), 0),
        }
        drop(io);
        ready!(outcome)?;
        self.downstream.poll_flush(cx)
    }

    /// Left to `connection.rs`, which lingers where a body was left unread.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Downstream {
    /// Reads what is there into `buf`; nothing new in it is the end of the connection.
    pub fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut io = self.io.borrow_mut();
        let outcome = tokio::io::AsyncRead::poll_read(Pin::new(io.inner_mut()), cx, buf);
        if matches!(outcome, Poll::Ready(Ok(()))) {
            self.note_read();
        }
        outcome
    }

    /// Writes what the socket takes of a response.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut io = self.io.borrow_mut();
        let outcome = tokio::io::AsyncWrite::poll_write(Pin::new(io.inner_mut()), cx, bytes);
        let sent = take_sent(&mut io);
        self.note_write(&outcome, bytes, sent);
        outcome
    }

    /// The same of what the FIN follows at once: together with it, on a plain connection.
    pub fn poll_write_last(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = {
            let io = self.io.borrow();
            match io.inner().socket().filter(|_| !io.inner().is_tls()) {
                Some(socket) => together::poll_write(socket, bytes, cx),
                None => {
                    drop(io);
                    return self.poll_write(cx, bytes);
                }
            }
        };
        self.note_write(&outcome, bytes, None);
        outcome
    }

    /// Writes what was encrypted and not taken yet; nothing of a plain connection.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut io = self.io.borrow_mut();
        let Some((session, stream)) = io.inner_mut().tls() else {
            return Poll::Ready(Ok(()));
        };
        if !session.has_unsent() {
            return Poll::Ready(Ok(()));
        }
        let outcome = if self.retries.get() && session.push(stream).is_ready() {
            Poll::Ready(Ok(()))
        } else {
            session.poll_flush(stream, cx)
        };
        let (sent, now_ns) = (session.take_sent() as u64, self.clock.mono_ns());
        if sent > 0 || outcome.is_ready() {
            self.deadlines.wrote(now_ns, sent);
        }
        if outcome.is_pending() {
            if self.retries.get() {
                self.tried(None);
            }
            self.deadlines.await_write(now_ns);
        }
        outcome
    }

    /// Writes what fits into the socket's buffer at once; for a response to a connection that is
    /// closing, which hyper does not write.
    pub fn write_at_once(&self, response: &[u8]) {
        self.io.borrow_mut().inner_mut().write_at_once(response);
    }

    /// Sends FIN; the client can still be read from.
    pub fn shutdown_write(&self) {
        self.io.borrow_mut().inner_mut().shutdown_write();
    }

    /// Reads what is there and throws it away. None: nothing is there; zero: the end.
    pub fn discard(&self, scratch: &mut [u8]) -> Option<usize> {
        let io = self.io.borrow();
        let Some(socket) = io.inner().socket() else {
            return Some(0);
        };
        match socket.try_read(scratch) {
            Ok(read) => Some(read),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) => Some(0),
        }
    }

    /// Waits until the client sends something, or ends the connection. The runtime takes a new
    /// connection for readable without asking; hyper would hold buffers for one on which nothing
    /// came (CONN-1).
    pub fn poll_used(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.probed.replace(true) {
            return self.poll_readable(cx);
        }
        let peeked = self.io.borrow_mut().inner_mut().poll_peek(cx);
        peeked.map(|_| ())
    }

    /// It was tried to read from the connection: whether it is readable is known from now on.
    pub fn note_probed(&self) {
        self.probed.set(true);
    }

    /// Waits until something can be read, or the connection ended.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.borrow_mut().inner_mut().poll_readable(cx)
    }

    /// Notes that the client sent something.
    pub fn note_read(&self) {
        self.deadlines.client_sent(self.clock.mono_ns());
        self.tell_whether_it_gives_way();
    }

    /// Writes past the runtime's readiness, where the sweeper wants a try; none where there is no
    /// room. Over TLS what is not counted is encrypted behind it.
    fn retry(&self, io: &mut TokioIo<Io>, bufs: &[IoSlice<'_>], counts: bool) -> Option<usize> {
        if !self.retries.get() {
            return None;
        }
        // An error is found again by the write that follows.
        let written = match io.inner_mut().tls() {
            Some((session, stream)) if !counts => {
                let _ = session.push(stream);
                self.retries.set(false);
                return None;
            }
            Some((session, stream)) => {
                let pushed = session.push_counted(stream, bufs);
                let sent = session.take_sent();
                if sent > 0 {
                    self.deadlines.wrote(self.clock.mono_ns(), sent as u64);
                }
                match pushed {
                    Poll::Ready(written) => written,
                    Poll::Pending => Ok(0),
                }
            }
            None => socket2::SockRef::from(io.inner().socket()?).send_vectored(bufs),
        };
        self.tried(written.ok())
    }

    /// Writes what was moved in the place of a placeholder. The empty pipe is given back.
    fn poll_drain(
        &self,
        io: &TokioIo<Io>,
        length: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slot = self.pipe.borrow_mut();
        let Some(pipe) = &mut *slot else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let Some(socket) = io.inner().socket() else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let at_once = if self.retries.get() {
            let written = pipe.drain(socket, length).ok();
            self.tried(written)
        } else {
            None
        };
        let written = match at_once {
            Some(written) => written,
            None => ready!(pipe.poll_drain(socket, length, cx))?,
        };
        if pipe.is_empty() {
            *slot = None;
        }
        Poll::Ready(Ok(written))
    }

    /// Notes how a try past the runtime's readiness went.
    fn tried(&self, written: Option<usize>) -> Option<usize> {
        let written = written.filter(|written| *written > 0);
        if written.is_none() {
            self.retries.set(false);
            self.deadlines.has_no_room(self.clock.mono_ns());
        }
        written
    }

    /// Notes how a write went whose bytes begin with `first`, and how many bytes the socket took
    /// meanwhile, where they are others: those of TLS.
    fn note_write(&self, outcome: &Poll<io::Result<usize>>, first: &[u8], sent: Option<usize>) {
        let now_ns = self.clock.mono_ns();
        match outcome {
            Poll::Pending => {
                if let Some(sent @ 1..) = sent {
                    self.deadlines.wrote(now_ns, sent as u64);
                }
                self.deadlines.await_write(now_ns);
            }
            Poll::Ready(taken) => {
                let taken = taken.as_ref().map_or(0, |taken| *taken as u64);
                self.written.set(self.written.get().saturating_add(taken));
                if !self.answering.get() {
                    self.answering.set(!first.starts_with(CONTINUE));
                }
                let moved = sent.map_or(taken, |sent| sent as u64);
                self.deadlines.wrote(now_ns, moved);
                self.wake_for_more();
            }
        }
    }
}

/// Bytes that the socket took of what was encrypted; none of a plain connection.
fn take_sent(io: &mut TokioIo<Io>) -> Option<usize> {
    io.inner_mut().tls().map(|(session, _)| session.take_sent())
}

/// What is to be written before the next placeholder, or, if nothing is, the length of that.
fn before_placeholder<'a, 'b>(bufs: &'a [IoSlice<'b>]) -> (&'a [IoSlice<'b>], usize) {
    let at = bufs.iter().position(|buf| pipe::is_placeholder(buf));
    let (before, length) = match at.and_then(|at| bufs.split_at_checked(at)) {
        Some((before, [placeholder, ..])) => (before, placeholder.len()),
        _ => return (bufs, 0),
    };
    if before.iter().all(|buf| buf.is_empty()) {
        (before, length)
    } else {
        (before, 0)
    }
}
