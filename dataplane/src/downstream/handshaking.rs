//! A client connection before its first request, where a handshake of TLS comes first.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::ReadBuf;

use super::tls::{Advanced, Session};
use super::{CERTAIN, Downstream};
use crate::foreign;

impl Downstream {
    /// Waits until anything comes, or the end, below whatever is spoken: before a close that does
    /// not want to know what it is.
    pub fn poll_arrival(&self, cx: &mut Context<'_>) -> Poll<()> {
        let io = self.io.borrow();
        let socket = io.inner().socket();
        socket.map_or(Poll::Ready(()), |socket| {
            socket.poll_read_ready(cx).map(|_| ())
        })
    }

    /// Whether a handshake of TLS comes first.
    pub fn awaits_tls(&self) -> bool {
        self.scheme == "https" && !self.io.borrow().inner().is_tls()
    }

    /// The first bytes of a connection, which stay to be read; none at its end.
    pub async fn peek_first(&self) -> Bytes {
        let mut first = [0; foreign::LONGEST];
        let peeked = poll_fn(|cx| {
            let io = self.io.borrow();
            let socket = io.inner().socket();
            socket.map_or(Poll::Ready(Ok(0)), |socket| {
                socket.poll_peek(cx, &mut ReadBuf::new(&mut first))
            })
        });
        let count = peeked.await.unwrap_or(0);
        Bytes::copy_from_slice(first.get(..count).unwrap_or_default())
    }

    /// Whether HTTP/2 was agreed on (ALPN).
    pub fn agreed_on_http2(&self) -> bool {
        self.io.borrow().inner().agreed() == Some(b"h2")
    }

    /// TLS is spoken from now on, and its handshake comes first.
    pub fn begin_tls(&self, session: Session) {
        self.io.borrow_mut().inner_mut().begin_tls(session);
    }

    /// Waits until the handshake can go on.
    pub fn poll_handshake_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut io = self.io.borrow_mut();
        match io.inner_mut().tls() {
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
        match io.inner_mut().tls() {
            Some((session, stream)) => session.advance(stream, cx),
            None => Ok(Advanced::Closed),
        }
    }

    /// The handshake is done: the first head has its whole time from now on. What is still on its
    /// way of the handshake, and what records add to a response, is far less than a quarter of what
    /// the system takes for certain.
    pub fn note_handshake(&self) {
        self.deadlines.begin_connection(self.clock.mono_ns());
        self.written.set(CERTAIN / 4);
    }
}
