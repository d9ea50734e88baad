//! TLS over the socket of a client: rustls between bytes that are read and bytes that are written.
//! The protocol is rustls's; here is only when it reads and writes.

use std::io::{self, BufRead as _, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What rustls holds encrypted at most before a write waits (CONN-1).
const MAX_UNSENT: usize = 32 * 1024;

/// How far a handshake is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advanced {
    /// More has to come.
    UnderWay,
    /// TLS is spoken; whether it goes on from an earlier session.
    Done {
        /// It does.
        resumed: bool,
    },
    /// The peer has closed.
    Closed,
}

/// A TLS session of the service.
pub struct Session {
    connection: ServerConnection,
    /// What was read before the session began.
    early: Bytes,
    /// Nothing more comes from the socket.
    has_ended: bool,
}

impl Session {
    /// A session whose handshake is to come; `early` was read already.
    ///
    /// # Errors
    /// rustls refuses the settings, which it would have done at the start.
    pub fn new(config: Arc<ServerConfig>, early: Bytes) -> Result<Self, rustls::Error> {
        let mut connection = ServerConnection::new(config)?;
        connection.set_buffer_limit(Some(MAX_UNSENT));
        Ok(Self {
            connection,
            early,
            has_ended: false,
        })
    }

    /// Goes on with the handshake as far as the bytes that have come lead.
    ///
    /// # Errors
    /// The peer does not keep to TLS, or the socket failed.
    pub fn advance(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> io::Result<Advanced> {
        if let Poll::Ready(outcome) = self.poll_fill(stream, cx) {
            outcome?;
        }
        Ok(if !self.connection.is_handshaking() {
            let resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
            Advanced::Done { resumed }
        } else if self.has_ended {
            Advanced::Closed
        } else {
            Advanced::UnderWay
        })
    }

    /// The protocol that was agreed on (ALPN).
    pub fn agreed(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// Waits until the socket has something for the handshake.
    pub fn poll_handshake(&self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<()> {
        if self.early.is_empty() {
            return stream.poll_read_ready(cx).map(|_| ());
        }
        Poll::Ready(())
    }

    /// Whether something of rustls's waits to be written.
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Reads once from the socket, and goes on with what came.
    ///
    /// # Errors
    /// The peer does not keep to TLS, or the socket failed.
    pub fn poll_fill(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut source = Source {
            stream,
            early: &mut self.early,
            cx,
        };
        match self.connection.read_tls(&mut source) {
            Ok(0) => self.has_ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        let processed = self.connection.process_new_packets();
        // Alerts, tickets, answers to new keys: what is not taken now is written with what follows.
        let _ = self.poll_flush(stream, cx);
        match processed {
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => {
                self.has_ended = true;
                Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)))
            }
        }
    }

    /// Waits until content can be read, or the end.
    pub fn poll_readable(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let held = self.connection.reader().fill_buf().map(drop);
            let waits = held.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if !waits || self.has_ended {
                return Poll::Ready(());
            }
            if ready!(self.poll_fill(stream, cx)).is_err() {
                return Poll::Ready(());
            }
        }
    }

    /// Reads content. An end without the word that nothing follows is an end: what HTTP carries
    /// says itself how long it is.
    pub fn poll_read(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                Ok(content) => {
                    let count = content.len().min(buf.remaining());
                    buf.put_slice(content.get(..count).unwrap_or_default());
                    reader.consume(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.has_ended {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_fill(stream, cx))?;
        }
    }

    /// Encrypts what fits, once what was encrypted before is written.
    pub fn poll_write(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(stream, cx))?;
        let taken = self.connection.writer().write_vectored(bufs)?;
        match self.poll_flush(stream, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }

    /// Writes all that was encrypted.
    pub fn poll_flush(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Sink { stream, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes past the runtime's readiness.
    pub fn push(&mut self, stream: &TcpStream) {
        while self.connection.wants_write() {
            let pushed = self.connection.write_tls(&mut Pushing(stream));
            if !pushed.is_ok_and(|count| count > 0) {
                return;
            }
        }
    }

    /// Writes what the socket takes at once; the rest is given up.
    pub fn write_at_once(&mut self, stream: &TcpStream, bytes: &[u8]) {
        let _ = self.connection.writer().write(bytes);
        self.push(stream);
    }

    /// Says that nothing follows. A handshake that was not done ends in silence.
    pub fn close(&mut self, stream: &TcpStream) {
        if self.connection.is_handshaking() {
            return;
        }
        self.connection.send_close_notify();
        self.push(stream);
    }
}

/// The socket as rustls reads it, behind what was read already.
struct Source<'a, 'b> {
    stream: &'a mut TcpStream,
    early: &'a mut Bytes,
    cx: &'a mut Context<'b>,
}

impl Read for Source<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.early.is_empty() {
            let count = self.early.len().min(buf.len());
            self.early
                .copy_to_slice(buf.get_mut(..count).unwrap_or_default());
            return Ok(count);
        }
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut *self.stream).poll_read(self.cx, &mut buf) {
            Poll::Ready(read) => read.map(|()| buf.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// The socket as rustls writes to it.
struct Sink<'a, 'b> {
    stream: &'a mut TcpStream,
    cx: &'a mut Context<'b>,
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match Pin::new(&mut *self.stream).poll_write(self.cx, buf) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.stream).poll_write_vectored(self.cx, bufs) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket, asked itself.
struct Pushing<'a>(&'a TcpStream);

impl Write for Pushing<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        socket2::SockRef::from(self.0).send(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        socket2::SockRef::from(self.0).send_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
