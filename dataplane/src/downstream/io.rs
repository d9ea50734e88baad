//! The byte stream of a client connection: a socket, or TLS over one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::tls::Session;

/// The byte stream of a client connection. What is plain pays one look at the option.
pub struct Io {
    stream: TcpStream,
    tls: Option<Box<Session>>,
}

impl Io {
    /// A plain connection.
    pub const fn plain(stream: TcpStream) -> Self {
        Self { stream, tls: None }
    }

    /// The socket.
    pub const fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// TLS is spoken from now on.
    pub fn begin_tls(&mut self, session: Session) {
        self.tls = Some(Box::new(session));
    }

    /// Whether TLS is spoken.
    pub const fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The session, and the socket under it; none of a plain connection.
    pub fn tls(&mut self) -> Option<(&mut Session, &mut TcpStream)> {
        let session = self.tls.as_deref_mut()?;
        Some((session, &mut self.stream))
    }

    /// Waits until something can be read, or the connection ended.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.tls {
            None => self.stream.poll_read_ready(cx).map(|_| ()),
            Some(session) => session.poll_readable(&mut self.stream, cx),
        }
    }

    /// Waits until something has come, without trust in what the runtime takes for readable.
    pub fn poll_used(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.tls {
            None => {
                let mut byte = [0];
                let peeked = self.stream.poll_peek(cx, &mut ReadBuf::new(&mut byte));
                peeked.map(|_| ())
            }
            Some(session) => session.poll_readable(&mut self.stream, cx),
        }
    }

    /// Writes what the socket takes at once; the rest is given up.
    pub fn write_at_once(&mut self, bytes: &[u8]) {
        // The connection closes either way: nothing is tried again.
        match &mut self.tls {
            None => drop(self.stream.try_write(bytes)),
            Some(session) => session.write_at_once(&self.stream, bytes),
        }
    }

    /// Sends FIN; over TLS, behind the word that nothing follows.
    pub fn shutdown_write(&mut self) {
        if let Some(session) = &mut self.tls {
            session.close(&self.stream);
        }
        // An error means that the connection is gone, which is what was wanted.
        let _ = socket2::SockRef::from(&self.stream).shutdown(std::net::Shutdown::Write);
    }
}

/// However a connection ends: what was sent is whole.
impl Drop for Io {
    fn drop(&mut self) {
        if let Some(session) = &mut self.tls {
            session.close(&self.stream);
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.tls {
            None => Pin::new(&mut this.stream).poll_read(cx, buf),
            Some(session) => session.poll_read(&mut this.stream, cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &mut this.tls {
            None => Pin::new(&mut this.stream).poll_write(cx, buf),
            Some(session) => session.poll_write(&mut this.stream, cx, &[IoSlice::new(buf)]),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &mut this.tls {
            None => Pin::new(&mut this.stream).poll_write_vectored(cx, bufs),
            Some(session) => session.poll_write(&mut this.stream, cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// TCP has nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.tls {
            None => Poll::Ready(Ok(())),
            Some(session) => session.poll_flush(&mut this.stream, cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().shutdown_write();
        Poll::Ready(Ok(()))
    }
}
