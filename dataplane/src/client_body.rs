//! The body of a request as its client sends it, over HTTP/1.1 or in a stream of HTTP/2.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// The body of a request as its client sends it.
pub enum ClientBody {
    /// None.
    Empty,
    /// Over HTTP/1.1, as hyper reads it.
    Http1(Incoming),
    /// In a stream of HTTP/2.
    Http2(Box<StreamBody>),
}

/// A body that its client has broken off.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum BrokenOff {
    /// Over HTTP/1.1.
    Http1(#[from] hyper::Error),
    /// In a stream of HTTP/2.
    Http2(#[from] h2::Error),
}

/// A body in a stream of HTTP/2. The library checks that it is as long as it says.
pub struct StreamBody {
    received: RecvStream,
    /// What is to come of it, where its length was said.
    left: Option<u64>,
    /// All of its content came.
    has_ended: bool,
    /// Set once the client is to be asked for it, where it waits for that.
    asks: Option<Rc<Cell<bool>>>,
}

impl StreamBody {
    /// A body of this length, where it was said. Of a client that waits until it is asked for it
    /// (`Expect: 100-continue`), `asks` is set once somebody waits for it.
    pub const fn new(
        received: RecvStream,
        length: Option<u64>,
        asks: Option<Rc<Cell<bool>>>,
    ) -> Self {
        Self {
            received,
            left: length,
            has_ended: false,
            asks,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if !self.has_ended {
            let next = self.received.poll_data(cx);
            if let Some(asks) = self.asks.take() {
                asks.set(next.is_pending());
            }
            match ready!(next) {
                Some(Ok(data)) => {
                    // What is taken makes room for more. Of a stream that has ended, the next look
                    // tells.
                    let _ = self.received.flow_control().release_capacity(data.len());
                    let length = data.len() as u64;
                    self.left = self.left.map(|left| left.saturating_sub(length));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                // Whatever the reason for a reset is, what came is not all of the body.
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.has_ended = true,
            }
        }
        let trailers = ready!(self.received.poll_trailers(cx));
        let frame = trailers.map(|trailers| trailers.map(Frame::trailers));
        Poll::Ready(frame.map_err(BrokenOff::from).transpose())
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Http1(incoming) => {
                let next = ready!(Pin::new(incoming).poll_frame(cx));
                Poll::Ready(next.map(|frame| frame.map_err(BrokenOff::from)))
            }
            Self::Http2(stream) => stream.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(incoming) => incoming.is_end_stream(),
            Self::Http2(stream) => stream.received.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Http1(incoming) => incoming.size_hint(),
            Self::Http2(stream) => stream
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
