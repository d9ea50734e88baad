//! Bodies to streams of HTTP/2, and the bytes of them that wait for the client.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};

use crate::http2::streams::{Stream, Streams};
use crate::relay::delivery::{Frame, Piece, ResponseBody, Untold};

/// A piece that is shorter is copied, where others wait for the client already: it was read into a
/// buffer of 28 KiB, and a client that takes nothing would hold one for each few bytes.
const SHORT: usize = 8 * 1024;
/// Bytes that the library holds for each piece besides its content. They count too: an answer that
/// comes in pieces of ten bytes would hold far more than its bytes.
const OF_A_PIECE: usize = 512;

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
            let next = ready!(self.body.poll(cx));
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
    fn put(&mut self, frame: Frame) -> bool {
        let is_last = self.body.is_end();
        if is_last {
            self.stream.end();
        }
        match frame {
            // It would only cost the client.
            Frame::Data(piece) if piece.remaining() == 0 && !is_last => false,
            Frame::Data(mut piece) => {
                if self.stream.streams().has_queued() {
                    piece.detach(SHORT);
                }
                let piece = Queued::new(piece, &self.stream, &self.output);
                self.sink.send_data(piece, is_last).is_err() || is_last
            }
            Frame::Trailers(trailers) => {
                self.stream.end();
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
        stream.queue(piece.remaining() + OF_A_PIECE);
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
        self.piece.bytes()
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
            stream.unqueue(self.piece.remaining() + OF_A_PIECE, false);
        }
    }
}

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
