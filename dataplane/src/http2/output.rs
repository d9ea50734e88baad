//! What the library writes, on its way to the socket. Over TLS it is gathered: encrypted at once,
//! and written where the library has nothing more to say, or where much has come together; it
//! asks for each large frame to be written alone.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::streams::Streams;
use crate::forward::delivery::{Piece, Untold};

/// What the library writes to one connection.
pub struct Output {
    streams: Rc<Streams>,
    /// Whether it is gathered.
    pub gathers: bool,
    /// All that was written is whole frames.
    is_whole: Cell<bool>,
    /// Content of answers that was gathered, and the socket has not.
    untold: RefCell<Vec<Untold>>,
}

impl Output {
    /// Nothing was written.
    pub fn new(streams: &Rc<Streams>) -> Rc<Self> {
        Rc::new(Self {
            gathers: streams.connection.begin_gathering(),
            streams: Rc::clone(streams),
            is_whole: Cell::new(true),
            untold: RefCell::default(),
        })
    }

    /// Something is written: frames end elsewhere.
    pub fn begin(&self) {
        self.is_whole.set(false);
        self.streams.is_flushed.set(false);
    }

    /// What was written ends with a frame.
    pub fn end_frame(&self) {
        self.is_whole.set(true);
    }

    /// The library has taken so much of a piece as written.
    pub fn took(&self, piece: &mut Piece, count: usize) {
        let untold = piece.advance_untold(count);
        if self.gathers {
            self.untold.borrow_mut().extend(untold);
        } else {
            untold.into_iter().for_each(Untold::tell);
        }
    }

    /// Gathers bytes; where there is no more room, what was gathered is written first.
    pub fn poll_gather(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let gathered = self.streams.connection.gather(bufs)?;
        if gathered > 0 {
            return Poll::Ready(Ok(gathered));
        }
        ready!(self.poll_flush(cx))?;
        Poll::Ready(self.streams.connection.gather(bufs))
    }

    /// Writes what was gathered.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.gathers || self.streams.is_flushed.get() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.streams.connection.poll_flush(cx))?;
        self.streams.is_flushed.set(self.is_whole.get());
        // Each may be the end of a request.
        let untold = self.untold.take();
        untold.into_iter().for_each(Untold::tell);
        Poll::Ready(Ok(()))
    }

    /// Writes what was gathered before the connection ends.
    pub async fn write_rest(&self) {
        poll_fn(|cx| {
            if self.streams.connection.ending().is_cut() {
                return Poll::Ready(());
            }
            self.poll_flush(cx).map(drop)
        })
        .await;
    }
}
