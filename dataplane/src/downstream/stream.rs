//! A stream of HTTP/2: one request, as the client's connection is to a request of HTTP/1.1. It has
//! deadlines, an upload and an ending of its own, and no socket.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::deadlines::Timeouts;
use super::io::Io;
use super::tls::Session;
use super::{CERTAIN, Downstream};

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
        self.io.borrow().inner().socket().is_none()
    }

    /// Whether this response was one of those behind which a connection is not kept for long.
    pub fn is_short(&self) -> bool {
        self.deadlines.is_short()
    }

    /// Whether bytes wait for the socket to have room.
    pub fn is_write_waiting(&self) -> bool {
        self.deadlines.is_write_waiting()
    }

    /// Notes that the client took so much of a response.
    pub fn note_taken(&self, bytes: u64) {
        if bytes > 0 {
            self.answering.set(true);
        }
        self.deadlines.wrote(self.clock.mono_ns(), bytes);
    }

    /// Notes that the client does not take what there is.
    pub fn await_taking(&self) {
        let now_ns = self.clock.mono_ns();
        self.deadlines.await_write(now_ns);
        self.deadlines.has_no_room(now_ns);
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
        let session = io.inner_mut().tls().map(|(session, _)| session);
        session.map(Session::begin_gathering).is_some()
    }

    /// Encrypts what there is room for, which [`Self::poll_flush`] writes.
    ///
    /// # Errors
    /// The connection is not encrypted, or has ended.
    pub fn gather(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut io = self.io.borrow_mut();
        let (session, _) = io.inner_mut().tls().ok_or(io::ErrorKind::NotConnected)?;
        session.gather(bufs)
    }

    /// Reads what is there, which need not be a request, nor a part of one.
    pub fn poll_read_frames(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut io = self.io.borrow_mut();
        tokio::io::AsyncRead::poll_read(Pin::new(io.inner_mut()), cx, buf)
    }
}
