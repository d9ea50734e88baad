//! The body of a request as its client sends it, over HTTP/1.1 or in a stream of HTTP/2.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use h2::RecvStream;

use crate::conn::Downstream;
use crate::conn::inbound::CutOff;

pub use crate::conn::inbound::Piece;

/// Of an unread body, this much is taken at once so that a refused request need not cost its
/// connection.
const MAX_DISCARDED: usize = 64 * 1024;

/// The body of a request as its client sends it.
pub enum ClientBody {
    /// None.
    Empty,
    /// Over HTTP/1.1: what follows on this connection.
    Http1(Rc<Downstream>),
    /// In a stream of HTTP/2.
    Http2(Box<StreamBody>),
}

/// A body that its client has broken off.
#[derive(Debug, thiserror::Error)]
pub enum BrokenOff {
    /// Over HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] CutOff),
    /// In a stream of HTTP/2.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl ClientBody {
    /// The next piece; none behind the end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BrokenOff>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(downstream) => {
                let next = ready!(downstream.poll_body(cx));
                Poll::Ready(next.map(|piece| piece.map_err(BrokenOff::from)))
            }
            Self::Http2(stream) => stream.poll_next(cx),
        }
    }

    /// Whether all of it was taken.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(downstream) => downstream.is_body_taken(),
            Self::Http2(stream) => stream.received.is_end_stream(),
        }
    }

    /// Takes what has already come of a body that nobody will read, so that a small one does not
    /// cost the connection; true if something is left of it. A client that waits for a 100 is not
    /// asked for its body.
    fn discard(&mut self, cx: &mut Context<'_>) -> bool {
        if let Self::Http1(downstream) = self
            && downstream.waits_for_continue()
        {
            return true;
        }
        let mut discarded = 0;
        while discarded < MAX_DISCARDED {
            match self.poll(cx) {
                Poll::Ready(Some(Ok(Piece::Data(data)))) => discarded += data.len(),
                Poll::Ready(Some(Ok(Piece::Trailers(_)))) => {}
                Poll::Ready(Some(Err(_)) | None) | Poll::Pending => break,
            }
        }
        !self.is_end()
    }
}

/// Takes what has come of a body that nobody will read; true if something is left of it.
pub async fn discard(mut body: ClientBody) -> bool {
    poll_fn(|cx| Poll::Ready(body.discard(cx))).await
}

/// A body in a stream of HTTP/2. The library checks that it is as long as it says.
pub struct StreamBody {
    received: RecvStream,
    /// All of its content came.
    has_ended: bool,
    /// The client waits until it is asked for it (`Expect: 100-continue`); the stream to ask in.
    waits: Option<Rc<Downstream>>,
}

impl StreamBody {
    /// A body whose client waits to be asked for it over this stream, or does not.
    pub const fn new(received: RecvStream, waits: Option<Rc<Downstream>>) -> Self {
        Self {
            received,
            has_ended: false,
            waits,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BrokenOff>>> {
        if !self.has_ended {
            let next = self.received.poll_data(cx);
            if let Some(stream) = self.waits.take()
                && next.is_pending()
            {
                stream.interim().ask_for_body();
            }
            match ready!(next) {
                Some(Ok(data)) => {
                    // What is taken makes room for more. Of a stream that has ended, the next look
                    // tells.
                    let _ = self.received.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Piece::Data(data))));
                }
                // Whatever the reason for a reset is, what came is not all of the body.
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.has_ended = true,
            }
        }
        let trailers = ready!(self.received.poll_trailers(cx));
        let piece = trailers.map(|trailers| trailers.map(Piece::Trailers));
        Poll::Ready(piece.map_err(BrokenOff::from).transpose())
    }
}
