//! The socket of a connection as the library of HTTP/2 sees it. The frames that come are looked at
//! on their way.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::ReadBuf;

use super::streams::Streams;
use crate::clock::CoarseClock;
use crate::downstream::socket;

/// What is read at once.
const READ: usize = 16 * 1024;

thread_local! {
    /// Bytes on their way from a socket to the library; empty between two reads.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into());
}

/// The library's half of a client connection.
pub struct Socket {
    inner: socket::Socket,
    streams: Rc<Streams>,
    clock: Rc<CoarseClock>,
    /// What was read before the library had the connection.
    early: Bytes,
}

impl Socket {
    /// The half of the connection of these streams, of which `early` was read already.
    pub fn new(streams: Rc<Streams>, clock: Rc<CoarseClock>, early: Bytes) -> Self {
        Self {
            inner: socket::Socket::new(Rc::clone(&streams.connection), Bytes::new()),
            streams,
            clock,
            early,
        }
    }

    fn take(&self, bytes: &[u8], buf: &mut ReadBufCursor<'_>) -> io::Result<()> {
        let scanned = self.streams.scan(bytes, self.clock.mono_ns());
        scanned.map_err(|_| io::Error::other("frames that end the connection"))?;
        buf.put_slice(bytes);
        Ok(())
    }
}

impl Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.early.is_empty() {
            let fits = this.early.len().min(buf.remaining());
            let early = this.early.split_to(fits);
            return Poll::Ready(this.take(&early, &mut buf));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let at_most = scratch.len().min(buf.remaining());
            let mut read = ReadBuf::new(scratch.get_mut(..at_most).unwrap_or_default());
            ready!(this.streams.connection.poll_read_frames(cx, &mut read))?;
            Poll::Ready(this.take(read.filled(), &mut buf))
        })
    }
}

impl Write for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.streams.is_flushed.set(false);
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        this.streams.budget.carried(written as u64);
        let mut left = written;
        for buf in bufs {
            let (sent, _) = buf.split_at_checked(left).unwrap_or((buf, &[]));
            this.streams.refused.sent(sent);
            left -= sent.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.streams.is_flushed.set(true);
        Poll::Ready(Ok(()))
    }

    /// Left to who serves the connection.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
