//! Bytes that go out together with what follows them at once (`MSG_MORE`, send(2)): one segment,
//! and one wake-up of who reads it, where there would be two.

use std::io;
use std::task::{Context, Poll, ready};

use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::net::TcpStream;

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
