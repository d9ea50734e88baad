//! The byte stream of a client connection: a socket, or TLS over one. Its socket options, and the
//! write that goes out together with the next one (`MSG_MORE`, send(2)): one segment, and one
//! wake-up of who reads it, where there would be two.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};
use socket2::TcpKeepalive;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::conn::tls::Session;

/// The byte stream of a client connection. Without TLS it costs one look at the option.
pub struct Io {
    /// None for a stream of HTTP/2, whose bytes go over its connection: whatever is asked of it
    /// here ends at once.
    stream: Option<TcpStream>,
    tls: Option<Box<Session>>,
}

impl Io {
    /// A plain connection.
    pub const fn plain(stream: TcpStream) -> Self {
        Self {
            stream: Some(stream),
            tls: None,
        }
    }

    /// No connection of its own.
    pub const fn none() -> Self {
        Self {
            stream: None,
            tls: None,
        }
    }

    /// The socket, if there is one.
    pub const fn socket(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// The protocol that was agreed on over TLS (ALPN).
    pub fn agreed(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.agreed()
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
        Some((session, self.stream.as_mut()?))
    }

    /// Waits until something can be read, or the connection ended.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match (&mut self.stream, &mut self.tls) {
            (None, _) => Poll::Ready(()),
            (Some(stream), None) => stream.poll_read_ready(cx).map(|_| ()),
            (Some(stream), Some(session)) => session.poll_readable(stream, cx),
        }
    }

    /// Waits until something has come, without trust in what the runtime takes for readable: true
    /// if it is something to read, false if it is the end.
    pub fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        match (&mut self.stream, &mut self.tls) {
            (None, _) => Poll::Ready(false),
            (Some(stream), None) => {
                let mut byte = [0];
                let peeked = stream.poll_peek(cx, &mut ReadBuf::new(&mut byte));
                peeked.map(|peeked| matches!(peeked, Ok(1..)))
            }
            (Some(stream), Some(session)) => session
                .poll_readable(stream, cx)
                .map(|()| session.has_content()),
        }
    }

    /// Reads what is there into `buf`; nothing new in it is the end of the connection.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match (&mut self.stream, &mut self.tls) {
            (None, _) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            (Some(stream), None) => Pin::new(stream).poll_read(cx, buf),
            (Some(stream), Some(session)) => session.poll_read(stream, cx, buf),
        }
    }

    /// Writes what the socket takes. Over TLS what `counts` is told as written once the socket took
    /// it ([`Session::poll_write_counted`]), else once it is encrypted.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        counts: bool,
    ) -> Poll<io::Result<usize>> {
        match (&mut self.stream, &mut self.tls, bufs) {
            (None, ..) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            (Some(stream), None, [only]) => Pin::new(stream).poll_write(cx, only),
            (Some(stream), None, _) => Pin::new(stream).poll_write_vectored(cx, bufs),
            (Some(stream), Some(session), _) if counts => {
                session.poll_write_counted(stream, cx, bufs)
            }
            (Some(stream), Some(session), _) => session.poll_write(stream, cx, bufs),
        }
    }

    /// Writes what the socket takes at once; the rest is given up.
    pub fn write_at_once(&mut self, bytes: &[u8]) {
        // The connection closes either way: nothing is tried again.
        match (&self.stream, &mut self.tls) {
            (None, _) => {}
            (Some(stream), None) => drop(stream.try_write(bytes)),
            (Some(stream), Some(session)) => session.write_at_once(stream, bytes),
        }
    }

    /// Sends FIN; over TLS, behind the word that nothing follows.
    pub fn shutdown_write(&mut self) {
        if let Some((session, stream)) = self.tls() {
            session.close(stream);
        }
        if let Some(stream) = &self.stream {
            // An error means that the connection is gone, which is what was wanted.
            let _ = socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write);
        }
    }
}

/// However a connection ends: what was sent is whole.
impl Drop for Io {
    fn drop(&mut self) {
        if let Some((session, stream)) = self.tls() {
            session.close(stream);
        }
    }
}

/// Writes what the socket takes. What does not fill a segment waits for what is written next, or
/// for the end of the connection, 200 ms at most.
pub fn poll_write(
    stream: &TcpStream,
    bytes: &[u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
    let write = || Ok(retry_on_intr(|| send(stream, bytes, flags))?);
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(Interest::WRITABLE, write) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

/// The first question after a minute of silence, then every 15 seconds; after four without an
/// answer the system ends the connection.
pub const fn tcp_keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::mem::MaybeUninit;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// What is written so is not sent by itself, and comes as a whole with the end of the
    /// connection.
    #[test]
    fn the_end_of_an_answer_goes_with_the_fin() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().build().unwrap();
        runtime.block_on(ends_of_connections());
    }

    async fn ends_of_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut waited = false;
        // The system waits 200 ms at most, which a busy machine may need between two lines.
        for _ in 0..20 {
            let address = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let written = poll_fn(|cx| poll_write(&server, b"an answer", cx)).await;
            assert_eq!(written.unwrap(), 9);
            let peeked = socket2::SockRef::from(&client).peek(&mut [MaybeUninit::uninit()]);
            waited |= peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            drop(server);
            let mut came = Vec::new();
            client.read_to_end(&mut came).await.unwrap();
            assert_eq!(came, b"an answer");
        }
        assert!(waited, "it was sent by itself each time");
    }
}
