//! The body of a response on its way into a stream. What the library has of it is counted, so that
//! a client that takes nothing does not fill the memory (CONN-1).
//!
//! Nothing is asked of the library's windows: it keeps what a client has no room for yet. How much
//! that may be is decided here, by what it has.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use hyper::body::{Body as _, Frame};

use super::output::Output;
use super::streams::Stream;
use crate::forward::delivery::Piece;
use crate::forward::response_body::ResponseBody;

/// The body of a response on its way into a stream.
pub struct Pump {
    body: ResponseBody,
    sink: SendStream<Queued>,
    stream: Rc<Stream>,
    output: Rc<Output>,
    /// It has broken off, which is said once the client was sent what came before: a stream that is
    /// reset loses it.
    is_broken: bool,
}

impl Pump {
    /// This body, into this stream.
    pub const fn new(
        body: ResponseBody,
        sink: SendStream<Queued>,
        stream: Rc<Stream>,
        output: Rc<Output>,
    ) -> Self {
        Self {
            body,
            sink,
            stream,
            output,
            is_broken: false,
        }
    }

    /// Gives the library what there is of the body. Ready once it has all of it, or the stream has
    /// ended.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.poll_pieces(cx);
        if polled.is_pending() {
            // The client may give it up meanwhile.
            return self.sink.poll_reset(cx).map(drop);
        }
        polled
    }

    fn poll_pieces(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_broken {
                if self.stream.has_queued(cx) {
                    return Poll::Pending;
                }
                self.sink.send_reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(());
            }
            if self.stream.must_wait(cx) {
                return Poll::Pending;
            }
            let little = self.stream.streams().is_stuck();
            self.stream.downstream.set_reads_little(little);
            let next = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let has_ended = match next {
                Some(Ok(frame)) => self.put(frame),
                None => {
                    self.stream.end();
                    // An error is that the stream has ended.
                    let _ = self.sink.send_data(Queued::nothing(), true);
                    true
                }
                Some(Err(_)) => {
                    self.is_broken = true;
                    false
                }
            };
            if has_ended {
                return Poll::Ready(());
            }
        }
    }

    /// Gives the library a piece; true if it was the last, or the stream has ended.
    fn put(&mut self, frame: Frame<Piece>) -> bool {
        let is_last = self.body.is_end_stream();
        if is_last {
            self.stream.end();
        }
        match frame.into_data() {
            // It would only cost the client.
            Ok(piece) if !piece.has_remaining() && !is_last => false,
            Ok(piece) => {
                let piece = Queued::new(piece, &self.stream, &self.output);
                self.sink.send_data(piece, is_last).is_err() || is_last
            }
            Err(frame) => {
                self.stream.end();
                let trailers = frame.into_trailers().unwrap_or_default();
                if self.sink.send_trailers(trailers).is_err() {
                    self.sink.send_reset(Reason::INTERNAL_ERROR);
                }
                true
            }
        }
    }
}

/// A piece in the library's hands.
pub struct Queued {
    piece: Piece,
    /// None for no piece at all.
    of: Option<(Rc<Stream>, Rc<Output>)>,
}

impl Queued {
    fn new(piece: Piece, stream: &Rc<Stream>, output: &Rc<Output>) -> Self {
        stream.queue(piece.remaining());
        Self {
            piece,
            of: Some((Rc::clone(stream), Rc::clone(output))),
        }
    }

    const fn nothing() -> Self {
        Self {
            piece: Piece::uncounted(Bytes::new()),
            of: None,
        }
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
        let Some((stream, output)) = &self.of else {
            return self.piece.advance(count);
        };
        stream.unqueue(count, true);
        output.took(&mut self.piece, count);
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some((stream, _)) = &self.of {
            stream.unqueue(self.piece.remaining(), false);
        }
    }
}
