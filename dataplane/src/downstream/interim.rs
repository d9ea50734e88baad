//! Interim responses (1xx) on their way to the client. hyper's server writes none itself, so they
//! are written where it has nothing of its own to write.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::Write;

/// Interim responses that wait, bytes at most; more are dropped: they are hints.
const MAX_WAITING: usize = 16 * 1024;

/// Interim responses that wait to be written.
#[derive(Debug, Default)]
pub struct Interim(RefCell<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// So much of them was written.
    at: usize,
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
        let Waiting { bytes, at } = &mut *waiting;
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
