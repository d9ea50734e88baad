//! A response on its way to the client, head and body, in as few writes as can be. Its form is that
//! of hyper's server for the same request, which has no body and is HTTP/1.1 (RFC 9112 §6, §7.1).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf as _;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Response, StatusCode};
use hyper::body::{Body as _, Frame};
use hyper::ext::ReasonPhrase;
use hyper::rt::Write as _;

use crate::downstream::socket::Socket;
use crate::forward::delivery::Piece;
use crate::forward::response_body::ResponseBody;
use crate::http1::request::{Encoder, end_of_fields, field};
use crate::http1::response::HeadText;
use crate::pipe;

/// Pieces of a body smaller than this are copied, and written with what stands before them.
const SMALL: usize = 4 * 1024;

/// The response cannot be ended: its connection is closed.
#[derive(Debug)]
pub struct Broken;

/// A response on its way.
pub struct Answer {
    body: ResponseBody,
    encoder: Encoder,
    /// The head, framing and small pieces.
    text: Vec<u8>,
    /// So much of `text` was written.
    at: usize,
    /// A piece of the body, which stands behind `text`, or in it.
    piece: Option<Piece>,
    /// Where it ends in `text`, if it was copied there.
    copied: Option<usize>,
    /// What stands behind the piece.
    behind: &'static [u8],
    /// The body has ended, and all of it is in `text` and `piece`.
    ended: bool,
    /// The connection closes behind it.
    pub closes: bool,
}

impl Answer {
    /// To a request for a head alone, or not, whose client asks to close the connection, or not. Of
    /// the head `text` was written already, if there is one.
    // long: the fields in one walk, and what follows from each
    pub fn new(
        response: Response<ResponseBody>,
        text: Option<HeadText>,
        is_head: bool,
        asks_to_close: bool,
        date: &str,
    ) -> Self {
        let (head, body) = response.into_parts();
        let is_bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
        let length = Length::of(&body);
        let mut closes = asks_to_close;
        let (mut text, mut has_date) = match text {
            Some(HeadText { text, has_date, .. }) => (text, has_date),
            None => (status_line(&head), false),
        };
        let mut has_length = false;
        for (name, value) in &head.headers {
            let value = value.as_bytes();
            if *name == CONNECTION {
                closes |= value.eq_ignore_ascii_case(b"close");
                continue;
            }
            if *name == TRANSFER_ENCODING {
                continue;
            }
            if *name == CONTENT_LENGTH {
                // Of a body that is not sent the application's word is passed on; of another its
                // own length is.
                if length != Length::None || !is_head || has_length {
                    continue;
                }
                has_length = true;
            }
            has_date |= *name == DATE;
            field(&mut text, name.as_str(), value);
        }
        if closes {
            field(&mut text, "connection", b"close");
        }
        let encoder = match length {
            _ if has_length => Encoder::Empty,
            Length::Unknown if !is_head && !is_bodiless => Encoder::Chunked,
            Length::Unknown => Encoder::Empty,
            Length::Known(_) | Length::None if is_bodiless => Encoder::Empty,
            Length::None if is_head => Encoder::Empty,
            Length::None => Encoder::Exact(0),
            Length::Known(length) => Encoder::Exact(length),
        };
        encoder.announce(&mut text);
        if !has_date {
            field(&mut text, "date", date.as_bytes());
        }
        end_of_fields(&mut text);
        let has_body = !is_head && !is_bodiless && length != Length::None;
        Self {
            body,
            encoder,
            text,
            at: 0,
            piece: None,
            copied: None,
            behind: b"",
            ended: !has_body,
            closes,
        }
    }

    /// Writes what can be written. Ready once all of it was.
    pub fn poll(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            // What was taken of the body before waits to be written first.
            let takes = self.piece.is_none() && !self.ended && self.text.len() < SMALL;
            let waits = takes && self.take(cx)?.is_pending();
            ready!(self.poll_write(socket, cx)).map_err(|_| Broken)?;
            if self.ended {
                return Pin::new(socket).poll_flush(cx).map_err(|_| Broken);
            }
            if waits {
                return Poll::Pending;
            }
        }
    }

    /// Takes the next piece of the body.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Broken> {
        let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) else {
            return Ok(Poll::Pending);
        };
        match next {
            None => self.end()?,
            Some(frame) => self.put(frame.map_err(|_| Broken)?)?,
        }
        Ok(Poll::Ready(()))
    }

    fn put(&mut self, frame: Frame<Piece>) -> Result<(), Broken> {
        let Ok(piece) = frame.into_data() else {
            // The client did not say that it takes trailers (RFC 9110 §6.5.1).
            return self.end();
        };
        let length = piece.remaining();
        let behind = self
            .encoder
            .begin_piece(&mut self.text, length)
            .map_err(|_| Broken)?;
        if length < SMALL && !pipe::is_placeholder(piece.chunk()) {
            self.text.extend_from_slice(piece.chunk());
            if piece.is_counted() && length > 0 {
                (self.piece, self.copied) = (Some(piece), Some(self.text.len()));
            }
            self.text.extend_from_slice(behind);
        } else if length > 0 {
            (self.piece, self.behind) = (Some(piece), behind);
        }
        // The end of a chunked body stands behind the piece.
        if self.encoder.is_end() && self.body.is_end_stream() {
            self.ended = true;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Broken> {
        self.ended = true;
        let ended = self.encoder.end(&mut self.text, None, |_| false);
        ended.map_err(|_| Broken)
    }

    fn poll_write(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let text = self.text.get(self.at..).unwrap_or_default();
            let written = match self.piece.as_ref().filter(|_| self.copied.is_none()) {
                None if text.is_empty() => break,
                // The connection's FIN is right behind it.
                None if self.ended && self.closes => ready!(socket.poll_write_last(cx, text))?,
                None => {
                    let parts = [IoSlice::new(text)];
                    ready!(Pin::new(&mut *socket).poll_write_vectored(cx, &parts))?
                }
                Some(piece) => {
                    let parts = [text, piece.chunk(), self.behind].map(IoSlice::new);
                    ready!(Pin::new(&mut *socket).poll_write_vectored(cx, &parts))?
                }
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        self.text.clear();
        self.at = 0;
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        let of_text = written.min(self.text.len() - self.at);
        self.at += of_text;
        let mut left = written - of_text;
        let Some(piece) = &mut self.piece else { return };
        if let Some(end) = self.copied {
            // What is not written yet of the piece is what its end lies behind.
            let unwritten = end.saturating_sub(self.at);
            piece.advance(piece.remaining().saturating_sub(unwritten));
            if !piece.has_remaining() {
                (self.piece, self.copied) = (None, None);
            }
            return;
        }
        let of_piece = left.min(piece.remaining());
        piece.advance(of_piece);
        left -= of_piece;
        self.behind = self.behind.get(left..).unwrap_or_default();
        if !piece.has_remaining() && self.behind.is_empty() {
            self.piece = None;
        }
    }
}

/// How long a body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Length {
    /// There is none.
    None,
    Known(u64),
    Unknown,
}

impl Length {
    fn of(body: &ResponseBody) -> Self {
        if body.is_end_stream() {
            return Self::None;
        }
        let known = body.size_hint().exact();
        known.map_or(Self::Unknown, Self::Known)
    }
}

fn status_line(head: &Parts) -> Vec<u8> {
    let mut text = Vec::with_capacity(512);
    let given = head.extensions.get::<ReasonPhrase>();
    let usual = || {
        head.status
            .canonical_reason()
            .unwrap_or("<none>")
            .as_bytes()
    };
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(head.status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(given.map_or_else(usual, ReasonPhrase::as_bytes));
    text.extend_from_slice(b"\r\n");
    text
}
