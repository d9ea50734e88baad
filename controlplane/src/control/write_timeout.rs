//! Time-out of a write to an operator's connection (CONTROL-10): a client that reads nothing for
//! [`STALLED`] must not keep its place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a write may wait for the client to read.
const STALLED: Duration = match cfg!(test) {
    false => Duration::from_secs(60),
    true => Duration::from_millis(200),
};

/// A stream whose write fails once it has waited that long.
pub(super) struct WriteTimeout<S> {
    stream: S,
    /// Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self {
            stream,
            stalled: None,
        }
    }

    fn judge(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = (self.stalled).get_or_insert_with(|| Box::pin(sleep(STALLED)));
        let is_over = stalled.as_mut().poll(cx);
        is_over.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::testing::run;

    /// CONTROL-10: a client that reads nothing is given up; one that reads gets everything.
    #[test]
    fn who_reads_nothing_is_given_up() {
        run(async {
            let (ours, _theirs) = duplex(16);
            let written = WriteTimeout::new(ours).write_all(&[7; 100]).await;
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);

            let (ours, mut theirs) = duplex(16);
            let reading = tokio::spawn(async move {
                let mut read = [0; 10];
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                    theirs.read_exact(&mut read).await.unwrap();
                }
            });
            let written = WriteTimeout::new(ours).write_all(&[7; 100]).await;
            written.unwrap();
            reading.await.unwrap();
        });
    }
}
