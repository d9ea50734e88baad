//! A request on its way to the application: head and body, in as few writes as can be.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use hyper::body::{Body as _, Frame};
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;

use super::buffers::Buffers;
use super::request_body::{Moved, RequestBody};
use crate::http1::request::Encoder;
use crate::pipe::{self, Pipe};

/// Pieces of a body smaller than this are copied and gathered; larger ones are written from where
/// they are.
const SMALL: usize = 4 * 1024;
/// So much is gathered while more is ready (CONN-9).
const GATHERED: usize = 16 * 1024;

/// So many polls that bring nothing are waited for behind one that brought a small piece. hyper
/// hands over one chunk each time it reads, and while a response is on its way it asks for more of
/// it a second time without reading.
const EMPTY_POLLS: u8 = 2;

/// Why a request was not sent as a whole.
#[derive(Debug)]
pub enum NotSent {
    /// The client's body broke off, or was too large: [`crate::downstream`] knows which.
    Body,
    /// The application does not take it.
    Closed,
}

/// A request on its way to the application.
pub struct Sending {
    body: RequestBody,
    encoder: Encoder,
    /// The head, framing and small pieces.
    text: Vec<u8>,
    /// So much of `text` was written.
    at: usize,
    /// A large piece, which stands behind `text`, or the placeholder of one that is in the pipe.
    piece: Bytes,
    /// The pipe with the piece, if it is in one.
    pipe: Option<Pipe>,
    /// What stands behind the piece.
    behind: &'static [u8],
    /// Small pieces that are not in the text yet.
    gathered: Vec<u8>,
    /// Polls that may yet bring nothing before they go on.
    empty_polls: u8,
    trailers: Option<Box<HeaderMap>>,
    /// Whether anything was written to this connection.
    begun: bool,
}

impl Sending {
    /// A request with this head, to be followed by this body.
    pub const fn new(head: Vec<u8>, encoder: Encoder, body: RequestBody) -> Self {
        Self {
            body,
            encoder,
            text: head,
            at: 0,
            piece: Bytes::new(),
            pipe: None,
            behind: b"",
            gathered: Vec::new(),
            empty_polls: 0,
            trailers: None,
            begun: false,
        }
    }

    /// Whether anything was written. What was not may go to another connection as it is.
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Writes what can be written. Ready once all of it was.
    pub fn poll(
        &mut self,
        stream: &mut TcpStream,
        buffers: &Buffers,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), NotSent>> {
        loop {
            let has_room = self.piece.is_empty() && self.behind.is_empty();
            if self.encoder != Encoder::End
                && has_room
                && self.text.len() < GATHERED
                && self.fill(buffers, cx)?
            {
                return Poll::Pending;
            }
            if self.is_written() {
                return match self.encoder {
                    Encoder::End => {
                        buffers.give_text(std::mem::take(&mut self.text));
                        Poll::Ready(Ok(()))
                    }
                    _ => Poll::Pending,
                };
            }
            match self.poll_write(stream, cx) {
                Poll::Ready(written) => written.map_err(|_| NotSent::Closed)?,
                Poll::Pending => {
                    self.body.pause();
                    return Poll::Pending;
                }
            }
        }
    }

    fn is_written(&self) -> bool {
        self.at == self.text.len() && self.piece.is_empty() && self.behind.is_empty()
    }

    /// Takes what is ready of the body; true while more of it is likely to be ready soon.
    ///
    /// Small pieces are kept for as long as polls bring more, and go on together (CONN-9).
    fn fill(&mut self, buffers: &Buffers, cx: &mut Context<'_>) -> Result<bool, NotSent> {
        if matches!(self.body, RequestBody::Empty) {
            return self.end().map(|()| false);
        }
        if self.body.is_direct() {
            return self.fill_directly(buffers, cx).map(|()| false);
        }
        let (mut large, mut ended) = (None, false);
        while large.is_none() && !ended && self.gathered.len() < GATHERED {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending if self.empty_polls > 0 && !self.gathered.is_empty() => {
                    self.empty_polls -= 1;
                    cx.waker().wake_by_ref();
                    return Ok(true);
                }
                Poll::Pending => break,
                Poll::Ready(None) => ended = true,
                Poll::Ready(Some(Err(_))) => return Err(NotSent::Body),
                Poll::Ready(Some(Ok(frame))) => {
                    self.empty_polls = EMPTY_POLLS;
                    large = self.take(frame, buffers);
                    ended = self.body.is_end_stream();
                }
            }
        }
        self.put_gathered(buffers)?;
        if let Some(piece) = large {
            self.behind = self
                .encoder
                .begin_piece(&mut self.text, piece.len())
                .map_err(|_| NotSent::Body)?;
            self.piece = piece;
        } else if ended {
            self.end()?;
        }
        Ok(false)
    }

    /// Takes what is there of a body that is read past hyper.
    fn fill_directly(&mut self, buffers: &Buffers, cx: &mut Context<'_>) -> Result<(), NotSent> {
        self.put_gathered(buffers)?;
        let can_move = self.body.can_move();
        let mut pipe = can_move.then(|| buffers.pipes.take()).flatten();
        let polled = self.body.poll_direct(pipe.as_mut(), cx);
        let piece = match polled {
            Poll::Pending => return Ok(()),
            Poll::Ready(Err(_)) => return Err(NotSent::Body),
            Poll::Ready(Ok(Moved::Unable)) => {
                buffers.pipes.give_up();
                return self.fill_directly(buffers, cx);
            }
            Poll::Ready(Ok(Moved::Read(read))) => read,
            Poll::Ready(Ok(Moved::Bytes(length))) => {
                self.pipe = pipe;
                pipe::placeholder(length)
            }
        };
        let behind = self.encoder.begin_piece(&mut self.text, piece.len());
        self.behind = behind.map_err(|_| NotSent::Body)?;
        self.piece = piece;
        if self.body.is_end_stream() {
            self.end()?;
        }
        Ok(())
    }

    /// Puts what was gathered into the text, as one piece.
    fn put_gathered(&mut self, buffers: &Buffers) -> Result<(), NotSent> {
        if !self.gathered.is_empty() {
            let gathered = std::mem::take(&mut self.gathered);
            let behind = self
                .encoder
                .begin_piece(&mut self.text, gathered.len())
                .map_err(|_| NotSent::Body)?;
            self.text.extend_from_slice(&gathered);
            self.text.extend_from_slice(behind);
            buffers.give_text(gathered);
        }
        Ok(())
    }

    /// Takes a frame of the body: gives it back if it is a large piece.
    fn take(&mut self, frame: Frame<Bytes>, buffers: &Buffers) -> Option<Bytes> {
        match frame.into_data() {
            Ok(piece) if piece.len() >= SMALL => return Some(piece),
            Ok(piece) => {
                if self.gathered.is_empty() {
                    self.gathered = buffers.take_text();
                }
                self.gathered.extend_from_slice(&piece);
            }
            Err(frame) => self.trailers = frame.into_trailers().ok().map(Box::new),
        }
        None
    }

    fn end(&mut self) -> Result<(), NotSent> {
        let trailers = self.trailers.take();
        self.encoder
            .end(&mut self.text, trailers.as_deref(), |_| true)
            .map_err(|_| NotSent::Body)
    }

    /// Writes all that there is.
    fn poll_write(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_written() {
            let text = self.text.get(self.at..).unwrap_or_default();
            let moved = self.pipe.as_mut().filter(|_| text.is_empty());
            let written = if let Some(pipe) = moved {
                ready!(pipe.poll_drain(stream, self.piece.len(), cx))?
            } else if self.pipe.is_some() || (self.piece.is_empty() && self.behind.is_empty()) {
                ready!(Pin::new(&mut *stream).poll_write(cx, text))?
            } else {
                let parts = [text, &self.piece, self.behind].map(IoSlice::new);
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.begun = true;
            self.advance(written);
        }
        self.text.clear();
        self.at = 0;
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        let of_text = written.min(self.text.len() - self.at);
        self.at += of_text;
        let left = written - of_text;
        let of_piece = left.min(self.piece.len());
        self.piece.advance(of_piece);
        if self.piece.is_empty() {
            // An empty pipe is kept for the next body.
            self.pipe = None;
        }
        self.behind = self.behind.get(left - of_piece..).unwrap_or_default();
    }
}
