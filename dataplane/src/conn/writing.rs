//! How bytes are written to a client's socket; and what a stream of HTTP/2 asks of its connection.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::conn::buffers::Pipe;
use crate::conn::deadlines::Timeouts;
use crate::conn::tls::Session;
use crate::conn::transport::{self, Io};
use crate::conn::{CERTAIN, Downstream};

impl Downstream {
    /// Writes what the socket takes of a response (CONN-5). Over TLS only the bytes that the socket
    /// took are told as written; whoever waits comes again with the same bytes.
    pub fn poll_write(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, parts, true)
    }

    /// Writes bytes of a tunnel, in whose middle something else may be to be written: over TLS all
    /// that was encrypted is told as written.
    pub fn poll_write_tunnel(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, &[IoSlice::new(bytes)], false)
    }

    fn write(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        counts: bool,
    ) -> Poll<io::Result<usize>> {
        let mut io = self.io.borrow_mut();
        let outcome = match self.retry(&mut io, parts, counts) {
            Some(written) => Poll::Ready(Ok(written)),
            None => io.poll_write(cx, parts, counts),
        };
        let sent = take_sent(&mut io);
        self.note_write(&outcome, sent);
        outcome
    }

    /// Writes the end of the last response of a connection, together with the FIN that is sent
    /// next, where it is not encrypted.
    pub fn poll_write_last(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = {
            let io = self.io.borrow();
            match io.socket().filter(|_| !io.is_tls() && !self.retries()) {
                Some(socket) => transport::poll_write(socket, bytes, cx),
                None => {
                    drop(io);
                    return self.poll_write(cx, &[IoSlice::new(bytes)]);
                }
            }
        };
        self.note_write(&outcome, None);
        outcome
    }

    /// Writes interim responses that wait. An error is found again by who writes next.
    pub fn poll_interim(&self, cx: &mut Context<'_>) {
        while !self.interim().is_empty() {
            let answering = self.answering.get();
            let written =
                self.interim()
                    .write(|bytes| match self.poll_write(cx, &[IoSlice::new(bytes)]) {
                        Poll::Ready(Ok(written @ 1..)) => Ok(written),
                        Poll::Ready(_) | Poll::Pending => Err(()),
                    });
            self.answering.set(answering);
            if written.is_err() {
                return;
            }
        }
        // What TLS holds of them is pushed on.
        let _ = self.poll_flush(cx);
    }

    /// Writes what was encrypted and not taken yet; nothing of a plain connection.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut io = self.io.borrow_mut();
        let Some((session, stream)) = io.tls() else {
            return Poll::Ready(Ok(()));
        };
        if !session.has_unsent() {
            return Poll::Ready(Ok(()));
        }
        let outcome = if self.retries() && session.push(stream).is_ready() {
            Poll::Ready(Ok(()))
        } else {
            session.poll_flush(stream, cx)
        };
        let (sent, now_ns) = (session.take_sent() as u64, self.clock.mono_ns());
        if sent > 0 || outcome.is_ready() {
            self.deadlines().wrote(now_ns, sent);
        }
        if outcome.is_pending() {
            if self.retries() {
                self.tried(None);
            }
            self.deadlines().await_write(now_ns);
        }
        outcome
    }

    /// Writes what fits into the socket's buffer at once; for a response to a connection that is
    /// closing.
    pub fn write_at_once(&self, response: &[u8]) {
        self.io.borrow_mut().write_at_once(response);
    }

    /// Sends FIN; the client can still be read from.
    pub fn shutdown_write(&self) {
        self.io.borrow_mut().shutdown_write();
    }

    fn retries(&self) -> bool {
        self.watch.borrow().retries
    }

    /// Writes past the runtime's readiness, where the sweeper wants a try; none where there is no
    /// room. Over TLS what is not counted is encrypted behind it.
    fn retry(&self, io: &mut Io, bufs: &[IoSlice<'_>], counts: bool) -> Option<usize> {
        if !self.retries() {
            return None;
        }
        // An error is found again by the write that follows.
        let written = match io.tls() {
            Some((session, stream)) if !counts => {
                let _ = session.push(stream);
                self.watch.borrow_mut().retries = false;
                return None;
            }
            Some((session, stream)) => {
                let pushed = session.push_counted(stream, bufs);
                let sent = session.take_sent();
                if sent > 0 {
                    self.deadlines().wrote(self.clock.mono_ns(), sent as u64);
                }
                match pushed {
                    Poll::Ready(written) => written,
                    Poll::Pending => Ok(0),
                }
            }
            None => socket2::SockRef::from(io.socket()?).send_vectored(bufs),
        };
        self.tried(written.ok())
    }

    /// Whether bytes of a body may be moved from and to the socket inside the system: they are not
    /// encrypted, and in no frames.
    pub fn can_move(&self) -> bool {
        let io = self.io.borrow();
        io.socket().is_some() && !io.is_tls()
    }

    /// Writes what is in a pipe.
    pub fn poll_drain(&self, pipe: &mut Pipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let io = self.io.borrow();
        let Some(socket) = io.socket() else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let at_once = match self.retries() {
            true => self.tried(pipe.drain(socket).ok()),
            false => None,
        };
        let outcome = match at_once {
            Some(written) => Poll::Ready(Ok(written)),
            None => pipe.poll_drain(socket, cx),
        };
        self.note_write(&outcome, None);
        outcome
    }

    /// Notes how a try past the runtime's readiness went.
    fn tried(&self, written: Option<usize>) -> Option<usize> {
        let written = written.filter(|written| *written > 0);
        if written.is_none() {
            self.watch.borrow_mut().retries = false;
            self.deadlines().has_no_room(self.clock.mono_ns());
        }
        written
    }

    /// Notes how a write went, and how many bytes the socket took meanwhile, where they are others:
    /// those of TLS.
    fn note_write(&self, outcome: &Poll<io::Result<usize>>, sent: Option<usize>) {
        self.timed(|deadlines, now_ns| match outcome {
            Poll::Pending => {
                if let Some(sent @ 1..) = sent {
                    deadlines.wrote(now_ns, sent as u64);
                }
                deadlines.await_write(now_ns);
            }
            Poll::Ready(taken) => {
                let taken = taken.as_ref().map_or(0, |taken| *taken as u64);
                self.written.set(self.written.get().saturating_add(taken));
                self.answering.set(true);
                deadlines.wrote(now_ns, sent.map_or(taken, |sent| sent as u64));
            }
        });
    }
}

/// Bytes that the socket took of what was encrypted; none of a plain connection.
fn take_sent(io: &mut Io) -> Option<usize> {
    io.tls().map(|(session, _)| session.take_sent())
}

impl Downstream {
    /// A stream of this connection.
    pub fn new_stream(&self, timeouts: Timeouts) -> Rc<Self> {
        let arrival = self.arrival();
        let (peer, slot) = (self.peer_value.clone(), self.slot.of_stream());
        let clock = Rc::clone(&self.clock);
        let stream = Self::over(Io::none(), arrival, peer, slot, clock, timeouts);
        // Other streams write too: nothing is certain of what the system takes.
        stream.written.set(CERTAIN);
        Rc::new(stream)
    }

    /// Whether it is a stream of HTTP/2.
    pub fn is_stream(&self) -> bool {
        self.io.borrow().socket().is_none()
    }

    /// Notes that the client took so much of a response.
    pub fn note_taken(&self, bytes: u64) {
        if bytes > 0 {
            self.answering.set(true);
        }
        self.deadlines().wrote(self.clock.mono_ns(), bytes);
    }

    /// Notes that the client does not take what there is.
    pub fn await_taking(&self) {
        self.timed(|deadlines, now_ns| {
            deadlines.await_write(now_ns);
            deadlines.has_no_room(now_ns);
        });
    }

    /// Whether little is to be read of the application's body at a time.
    pub const fn reads_little(&self) -> bool {
        self.reads_little.get()
    }

    /// Little is to be read at a time: much waits for the client already.
    pub fn set_reads_little(&self, little: bool) {
        self.reads_little.set(little);
    }

    /// What is written from now on is gathered, where it is to be encrypted: many frames go out in
    /// one system call. True if it is.
    pub fn begin_gathering(&self) -> bool {
        let mut io = self.io.borrow_mut();
        let session = io.tls().map(|(session, _)| session);
        session.map(Session::begin_gathering).is_some()
    }

    /// Encrypts what there is room for, which [`Self::poll_flush`] writes.
    ///
    /// # Errors
    /// The connection is not encrypted, or has ended.
    pub fn gather(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut io = self.io.borrow_mut();
        let (session, _) = io.tls().ok_or(io::ErrorKind::NotConnected)?;
        session.encrypt(bufs)
    }
}
