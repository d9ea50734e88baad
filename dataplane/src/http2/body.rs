//! The body of a response on its way into a stream: what the library has of it is counted, so that
//! a client that takes nothing does not fill the memory (CONN-1).

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};

use super::streams::Stream;
use crate::forward::delivery::Piece;
use crate::forward::response_body::{CutShort, ResponseBody};

/// The body of a response on its way into a stream.
pub struct StreamBody {
    body: ResponseBody,
    stream: Rc<Stream>,
    /// It has broken off, which is said once the client was sent what came before: a stream that is
    /// reset loses it.
    broken: Option<CutShort>,
}

impl StreamBody {
    /// This body, in this stream.
    pub fn new(body: ResponseBody, stream: Rc<Stream>) -> Self {
        if body.is_end_stream() {
            stream.end();
        }
        let broken = None;
        Self {
            body,
            stream,
            broken,
        }
    }
}

impl Body for StreamBody {
    type Data = Queued;
    type Error = CutShort;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Queued>, CutShort>>> {
        let Self {
            body,
            stream,
            broken,
        } = self.get_mut();
        if broken.is_none() {
            if stream.must_wait(cx) {
                return Poll::Pending;
            }
            match ready!(Self::poll_piece(body, stream, cx)) {
                Some(Err(cut)) => *broken = Some(cut),
                frame => return Poll::Ready(frame),
            }
        }
        if stream.has_queued(cx) {
            return Poll::Pending;
        }
        Poll::Ready(broken.take().map(Err))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl StreamBody {
    fn poll_piece(
        body: &mut ResponseBody,
        stream: &Rc<Stream>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Queued>, CutShort>>> {
        let is_crowded = stream.streams().is_crowded();
        stream.downstream.set_reads_little(is_crowded);
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let frame = frame.map(|frame| {
            frame.map(|frame| frame.map_data(|piece| Queued::new(piece, Rc::clone(stream))))
        });
        if body.is_end_stream() || frame.is_none() {
            stream.end();
        }
        Poll::Ready(frame)
    }
}

/// A piece in the library's hands.
pub struct Queued {
    piece: Piece,
    stream: Rc<Stream>,
}

impl Queued {
    fn new(piece: Piece, stream: Rc<Stream>) -> Self {
        stream.queue(piece.remaining());
        Self { piece, stream }
    }
}

impl Buf for Queued {
    fn remaining(&self) -> usize {
        self.piece.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.piece.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.piece.advance(count);
        self.stream.unqueue(count, true);
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.stream.unqueue(self.piece.remaining(), false);
    }
}
