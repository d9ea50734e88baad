//! A request on its way to the application: head and body, in as few writes as can be.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;

use crate::conn::buffers::{Buffers, Pipe};
use crate::http1::request::Encoder;
use crate::upstream::request_body::{Piece, RequestBody};

/// Pieces of a body smaller than this are copied and gathered; larger ones are written from where
/// they are.
const SMALL: usize = 4 * 1024;
/// So much is gathered while more is ready (CONN-9).
const GATHERED: usize = 16 * 1024;

/// Why a request was not sent as a whole.
#[derive(Debug)]
pub enum NotSent {
    /// The client's body broke off, or was too large: [`crate::conn`] knows which.
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
    /// A large piece, which stands behind `text`.
    piece: Bytes,
    /// A large piece that is in a pipe, and stands there too.
    pipe: Option<Pipe>,
    /// What stands behind the piece.
    behind: &'static [u8],
    /// Small pieces that are not in the text yet.
    gathered: Vec<u8>,
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
            let has_room = self.piece.is_empty() && self.pipe.is_none() && self.behind.is_empty();
            if self.encoder != Encoder::End && has_room && self.text.len() < GATHERED {
                self.fill(buffers, cx)?;
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
        self.at == self.text.len()
            && self.piece.is_empty()
            && self.pipe.is_none()
            && self.behind.is_empty()
    }

    /// Takes what is ready of the body. Small pieces go on together (CONN-9).
    fn fill(&mut self, buffers: &Buffers, cx: &mut Context<'_>) -> Result<(), NotSent> {
        if matches!(self.body, RequestBody::Empty) {
            return self.end();
        }
        let (mut large, mut ended) = (None, false);
        while large.is_none() && !ended && self.gathered.len() < GATHERED {
            match self.body.poll(&buffers.pipes, cx) {
                Poll::Pending => break,
                Poll::Ready(None) => ended = true,
                Poll::Ready(Some(Err(_))) => return Err(NotSent::Body),
                Poll::Ready(Some(Ok(piece))) => {
                    large = self.take(piece, buffers);
                    ended = self.body.is_end();
                }
            }
        }
        self.put_gathered(buffers)?;
        let length = match &large {
            Some(Piece::Data(data)) => data.len(),
            Some(Piece::Moved(pipe)) => pipe.held(),
            Some(Piece::Trailers(_)) | None => 0,
        };
        let behind = self.encoder.begin_piece(&mut self.text, length);
        self.behind = behind.map_err(|_| NotSent::Body)?;
        match large {
            Some(Piece::Data(data)) => self.piece = data,
            Some(Piece::Moved(pipe)) => self.pipe = Some(pipe),
            // What ends a chunked body stands behind the piece, and is written with the next turn.
            Some(Piece::Trailers(_)) | None if ended => self.end()?,
            Some(Piece::Trailers(_)) | None => {}
        }
        // Of a body of known length nothing stands behind the last piece.
        if ended && self.encoder.is_end() {
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

    /// Takes a piece of the body: gives it back if it is a large one.
    fn take(&mut self, piece: Piece, buffers: &Buffers) -> Option<Piece> {
        match piece {
            Piece::Data(data) if data.len() < SMALL => {
                if self.gathered.is_empty() {
                    self.gathered = buffers.take_text();
                }
                self.gathered.extend_from_slice(&data);
            }
            Piece::Trailers(trailers) => self.trailers = Some(Box::new(trailers)),
            large => return Some(large),
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
                let drained = ready!(pipe.poll_drain(stream, cx))?;
                if pipe.is_empty() {
                    // It is kept for the next body.
                    self.pipe = None;
                }
                self.begun |= drained > 0;
                match drained {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    _ => continue,
                }
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
        self.behind = self.behind.get(left - of_piece..).unwrap_or_default();
    }
}
