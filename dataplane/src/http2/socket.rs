//! The socket of a connection as the library of HTTP/2 sees it. The frames that come are looked at
//! on their way.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::rt::Write as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::output::Output;
use super::streams::Streams;
use crate::clock::CoarseClock;
use crate::downstream::socket;

/// The library's half of a client connection.
pub struct Socket {
    inner: socket::Socket,
    streams: Rc<Streams>,
    output: Rc<Output>,
    clock: Rc<CoarseClock>,
    /// What was read before the library had the connection.
    early: Bytes,
}

impl Socket {
    /// The half of the connection of these streams, of which `early` was read already.
    pub fn new(
        streams: Rc<Streams>,
        output: Rc<Output>,
        clock: Rc<CoarseClock>,
        early: Bytes,
    ) -> Self {
        Self {
            inner: socket::Socket::new(Rc::clone(&streams.connection), Bytes::new()),
            streams,
            output,
            clock,
            early,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.early.is_empty() {
            ready!(this.streams.connection.poll_read_frames(cx, buf))?;
        } else {
            let fits = this.early.len().min(buf.remaining());
            buf.put_slice(&this.early.split_to(fits));
        }
        let read = buf.filled().get(before..).unwrap_or_default();
        let scanned = this.streams.scan(read, this.clock.mono_ns());
        Poll::Ready(scanned.map_err(|_| io::Error::other("frames that end the connection")))
    }
}

impl AsyncWrite for Socket {
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
        let Self {
            inner,
            streams,
            output,
            ..
        } = self.get_mut();
        output.begin();
        let written = if output.gathers {
            ready!(output.poll_gather(cx, bufs))?
        } else {
            ready!(Pin::new(inner).poll_write_vectored(cx, bufs))?
        };
        streams.budget.carried(written as u64);
        let mut left = written;
        for buf in bufs {
            let (sent, _) = buf.split_at_checked(left).unwrap_or((buf, &[]));
            streams.refused.sent(sent);
            left -= sent.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The library asks for it behind each large frame. What is gathered is written once it has
    /// nothing more to say: by who serves the connection.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self {
            inner,
            streams,
            output,
            ..
        } = self.get_mut();
        output.end_frame();
        if !output.gathers {
            ready!(Pin::new(inner).poll_flush(cx))?;
            streams.is_flushed.set(true);
        }
        Poll::Ready(Ok(()))
    }

    /// Left to who serves the connection.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
