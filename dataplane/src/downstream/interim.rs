//! Interim responses (1xx) on their way to the client. hyper's server writes none itself, so they
//! are written where it has nothing of its own to write. Those to a stream of HTTP/2 are held for
//! the task of the stream, which sends them.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderName, HeaderValue, Response};
use hyper::rt::Write;

/// Interim responses that wait, bytes at most, and all of those to one stream; more are dropped:
/// they are hints.
const MAX_WAITING: usize = 16 * 1024;

/// Interim responses that wait to be written.
#[derive(Debug, Default)]
pub struct Interim(RefCell<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// So much of them was written.
    at: usize,
    /// Those to a stream.
    heads: Vec<Response<()>>,
    /// Bytes of all that there were to it.
    heads_size: usize,
}

impl Interim {
    /// Puts one behind those that wait, if it fits.
    pub fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut self.0.borrow_mut().bytes;
        let before = bytes.len();
        write(bytes);
        if bytes.len() > MAX_WAITING {
            bytes.truncate(before);
        }
    }

    /// Puts one behind those to a stream, if it fits.
    pub fn put_head(&self, head: Response<()>) {
        let mut waiting = self.0.borrow_mut();
        let size = waiting.heads_size + size(&head);
        if size <= MAX_WAITING {
            waiting.heads_size = size;
            waiting.heads.push(head);
        }
    }

    /// Takes those to a stream.
    pub fn take_heads(&self) -> Vec<Response<()>> {
        std::mem::take(&mut self.0.borrow_mut().heads)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().bytes.is_empty()
    }

    /// Writes those that wait. Called where hyper has written all of its own.
    pub fn poll_write(
        &self,
        io: &mut (impl Write + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut waiting = self.0.borrow_mut();
        let Waiting { bytes, at, .. } = &mut *waiting;
        while let Some(rest @ [_, ..]) = bytes.get(*at..) {
            let written = ready!(Pin::new(&mut *io).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *at += written;
        }
        if *at > 0 {
            *waiting = Waiting::default();
        }
        Poll::Ready(Ok(()))
    }

    /// Called before hyper writes something of its own: one that was begun is ended first; those
    /// that were not are too late.
    pub fn poll_end(
        &self,
        io: &mut (impl Write + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut waiting = self.0.borrow_mut();
        if waiting.at == 0 {
            if !waiting.bytes.is_empty() {
                *waiting = Waiting::default();
            }
            return Poll::Ready(Ok(()));
        }
        drop(waiting);
        self.poll_write(io, cx)
    }
}

/// What one takes, about.
fn size(head: &Response<()>) -> usize {
    let of = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    // A status is a frame of its own, and a field has some bytes besides.
    head.headers()
        .iter()
        .map(|field| of(field) + 4)
        .sum::<usize>()
        + 16
}
