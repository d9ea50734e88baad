//! A response on its way to a client of HTTP/1, head and body, in as few writes as can be (RFC 9112
//! §6, §7.1, §9.3).

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use crate::conn::Downstream;
use crate::http1::response::HeadText;
use crate::http1::{Encoder, end_of_fields, field};
use crate::message::fields::takes_trailers;
use crate::message::{Form, Head};
use crate::relay::delivery::{Frame, Piece, Reply, ResponseBody};
use crate::request::refuse::RefusalText;
use crate::worker::Worker;

/// Pieces of a body smaller than this are copied, and written with what stands before them.
const SMALL: usize = 4 * 1024;

/// Room for text that is kept from one response to the next.
const KEPT: usize = 1024;

/// The response cannot be ended: its connection is closed.
#[derive(Debug)]
pub struct Broken;

/// What a response has to know of its request.
#[derive(Clone, Copy, Debug)]
pub struct To {
    /// HTTP/1.1 or HTTP/1.0.
    pub version: Version,
    /// The response is a head alone (HEAD).
    pub is_head: bool,
    /// The client takes trailer fields (RFC 9110 §6.5.1).
    pub takes_trailers: bool,
    /// The connection is kept behind it, as far as the client and the service want.
    pub keeps: bool,
}

impl To {
    /// The response to the request with this head, behind which the client keeps the connection, or
    /// does not.
    pub fn of(head: &Head<impl Form>, keeps: bool) -> Self {
        Self {
            version: head.version,
            is_head: head.method == Method::HEAD,
            takes_trailers: head.known.te && takes_trailers(head),
            keeps,
        }
    }

    /// The response to what is no request: the connection ends with it.
    pub const fn no_request() -> Self {
        Self {
            version: Version::HTTP_11,
            is_head: false,
            takes_trailers: false,
            keeps: false,
        }
    }

    const fn version(self) -> &'static str {
        match self.version {
            Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        }
    }

    /// The field that says whether the connection is kept; none where the version says it.
    const fn connection(self) -> &'static str {
        match (self.keeps, self.version) {
            (false, _) => "connection: close\r\n",
            (true, Version::HTTP_10) => "connection: keep-alive\r\n",
            (true, _) => "",
        }
    }
}

/// What is on its way to a client: one response at a time, nothing between two. It stays where it
/// is and is filled in place: a response is too large to be moved for each request.
pub struct Answer {
    body: ResponseBody,
    encoder: Encoder,
    takes_trailers: bool,
    /// The head, framing and small pieces.
    text: Vec<u8>,
    /// So much of `text` was written.
    at: usize,
    /// A piece of the body, which stands behind `text`, or in it.
    piece: Option<Piece>,
    /// Where it ends in `text`, if it was copied there.
    copied: Option<usize>,
    /// The framing behind the piece.
    behind: &'static [u8],
    /// The body has ended, and all of it is in `text` and `piece`.
    ended: bool,
    /// The connection closes behind it.
    closes: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            body: ResponseBody::empty(),
            encoder: Encoder::Empty,
            takes_trailers: false,
            text: Vec::new(),
            at: 0,
            piece: None,
            copied: None,
            behind: b"",
            ended: true,
            closes: false,
        }
    }
}

impl Answer {
    /// Begins with a refusal of ours.
    pub fn refuse(
        &mut self,
        worker: &Worker,
        said: &RefusalText,
        to: To,
        request_id: &HeaderValue,
    ) {
        self.text.reserve(512 + said.body.len());
        let line = (to.version(), to.connection());
        worker.date.with(worker.clock.wall_ms(), |date, _| {
            said.write(request_id, date, line, &mut self.text);
        });
        if !to.is_head {
            self.text.extend_from_slice(&said.body);
        }
        self.closes = !to.keeps;
    }

    /// Begins with the response `reply` to such a request.
    pub fn begin(&mut self, worker: &Worker, downstream: &Downstream, reply: Reply, to: To) {
        let rest = downstream.interim().take_rest();
        worker.date.with(worker.clock.wall_ms(), |date, _| {
            self.begin_at(date, reply, to, rest);
        });
    }

    /// Writes the head. `rest` is to be written before it.
    // long: the fields in one walk, and what follows from each
    fn begin_at(&mut self, date: &str, reply: Reply, mut to: To, rest: Vec<u8>) {
        let Reply {
            head,
            text,
            reason,
            body,
            ..
        } = reply;
        let switches = head.status == StatusCode::SWITCHING_PROTOCOLS;
        let is_bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
        let length = Length::of(&body);
        let (mut text, mut has_date) = begin(to, &head, text, reason.as_deref(), rest);
        let mut has_length = false;
        for (name, value) in &head.headers {
            let value = value.as_bytes();
            if *name == CONNECTION && !switches {
                to.keeps &= !value.eq_ignore_ascii_case(b"close");
                continue;
            }
            if *name == TRANSFER_ENCODING {
                continue;
            }
            if *name == CONTENT_LENGTH {
                // Of a body that is not sent the application's word is passed on; of another its
                // own length is.
                if length != Length::None || !to.is_head || has_length {
                    continue;
                }
                has_length = true;
            }
            has_date |= *name == DATE;
            field(&mut text, name.as_str(), value);
        }
        let has_body = !to.is_head && !is_bodiless && !switches && length != Length::None;
        // HTTP/1.0 knows no chunks: the end of the connection is the body's.
        let lasts = has_body && length == Length::Unknown && to.version == Version::HTTP_10;
        to.keeps &= !lasts;
        if !switches {
            text.extend_from_slice(to.connection().as_bytes());
        }
        let encoder = match length {
            _ if has_length || is_bodiless || switches => Encoder::Empty,
            Length::Unknown if to.is_head => Encoder::Empty,
            Length::Unknown if lasts => Encoder::UntilClose,
            Length::Unknown => Encoder::Chunked,
            Length::None if to.is_head => Encoder::Empty,
            Length::None => Encoder::Exact(0),
            Length::Known(length) => Encoder::Exact(length),
        };
        encoder.announce(&mut text);
        if !has_date {
            field(&mut text, "date", date.as_bytes());
        }
        end_of_fields(&mut text);
        self.encoder = encoder;
        self.takes_trailers = to.takes_trailers;
        self.ended = !has_body;
        self.body = body;
        self.text = text;
        // Behind a 101 the connection is the WebSocket's, whatever was to become of it.
        self.closes = !to.keeps && !switches;
    }

    /// Whether the connection closes behind it.
    pub const fn closes(&self) -> bool {
        self.closes
    }

    /// Writes what can be written. Ready once all of it was.
    pub fn poll(
        &mut self,
        downstream: &Downstream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            // A piece that was taken before is written first.
            let takes = self.piece.is_none() && !self.ended && self.text.len() < SMALL;
            let waits = takes && self.take(cx)?.is_pending();
            ready!(self.poll_write(downstream, cx)).map_err(|_| Broken)?;
            if self.ended {
                ready!(downstream.poll_flush(cx)).map_err(|_| Broken)?;
                self.rest();
                return Poll::Ready(Ok(()));
            }
            if waits {
                return Poll::Pending;
            }
        }
    }

    /// Nothing is on its way: no more is held than the room for a refusal.
    fn rest(&mut self) {
        // The request of a body that is not sent ends here.
        self.body = ResponseBody::empty();
        if self.text.capacity() > KEPT {
            self.text = Vec::new();
        }
    }

    /// Takes the next piece of the body.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Broken> {
        let Poll::Ready(next) = self.body.poll(cx) else {
            return Ok(Poll::Pending);
        };
        match next.transpose().map_err(|_| Broken)? {
            None => self.end(None)?,
            Some(Frame::Data(piece)) => self.put(piece)?,
            Some(Frame::Trailers(trailers)) => self.end(Some(&trailers))?,
        }
        Ok(Poll::Ready(()))
    }

    fn put(&mut self, mut piece: Piece) -> Result<(), Broken> {
        let length = piece.remaining();
        let behind = self
            .encoder
            .begin_piece(&mut self.text, length)
            .map_err(|_| Broken)?;
        if length < SMALL && piece.pipe().is_none() {
            self.text.extend_from_slice(piece.bytes());
            if piece.is_counted() && length > 0 {
                (self.piece, self.copied) = (Some(piece), Some(self.text.len()));
            }
            self.text.extend_from_slice(behind);
        } else if length > 0 {
            (self.piece, self.behind) = (Some(piece), behind);
        }
        // The end of a chunked body stands behind the piece.
        if self.encoder.is_end() && self.body.is_end() {
            self.ended = true;
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), Broken> {
        self.ended = true;
        let passes = self.takes_trailers;
        let ended = self.encoder.end(&mut self.text, trailers, |_| passes);
        ended.map_err(|_| Broken)
    }

    fn poll_write(
        &mut self,
        downstream: &Downstream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let text = self.text.get(self.at..).unwrap_or_default();
            let is_apart = self.piece.is_some() && self.copied.is_none();
            let written = match self.piece.as_mut().filter(|_| is_apart) {
                None if text.is_empty() => break,
                // The connection's FIN is right behind it.
                None if self.ended && self.closes => ready!(downstream.poll_write_last(cx, text))?,
                None => ready!(downstream.poll_write(cx, &[IoSlice::new(text)]))?,
                Some(piece) => match piece.pipe() {
                    Some(_) if !text.is_empty() => {
                        ready!(downstream.poll_write(cx, &[IoSlice::new(text)]))?
                    }
                    // It is one of a body whose length is known: nothing stands behind it.
                    Some(pipe) => ready!(downstream.poll_drain(pipe, cx))?,
                    None => {
                        let parts = [text, piece.bytes(), self.behind].map(IoSlice::new);
                        ready!(downstream.poll_write(cx, &parts))?
                    }
                },
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
            // The unwritten bytes of the piece are those from `at` to `end`.
            let unwritten = end.saturating_sub(self.at);
            piece.advance(piece.remaining().saturating_sub(unwritten));
            if piece.remaining() == 0 {
                (self.piece, self.copied) = (None, None);
            }
            return;
        }
        let of_piece = match piece.pipe() {
            // The written bytes are out of the pipe.
            Some(_) => left,
            None => left.min(piece.remaining()),
        };
        piece.advance(of_piece);
        left -= of_piece;
        self.behind = self.behind.get(left..).unwrap_or_default();
        if piece.remaining() == 0 && self.behind.is_empty() {
            self.piece = None;
        }
    }
}

/// The status line, and the fields that are text; whether `Date` is among them.
fn begin(
    to: To,
    head: &Parts,
    text: Option<HeadText>,
    reason: Option<&[u8]>,
    rest: Vec<u8>,
) -> (Vec<u8>, bool) {
    let (mut begun, has_date) = match text {
        Some(HeadText { text, has_date, .. }) => (text, has_date),
        None => (status_line(head, reason), false),
    };
    if to.version == Version::HTTP_10
        && let Some(minor) = begun.get_mut("HTTP/1.".len())
    {
        *minor = b'0';
    }
    if rest.is_empty() {
        return (begun, has_date);
    }
    ([rest, begun].concat(), has_date)
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
        if body.is_end() {
            return Self::None;
        }
        body.length().map_or(Self::Unknown, Self::Known)
    }
}

fn status_line(head: &Parts, reason: Option<&[u8]>) -> Vec<u8> {
    let mut text = Vec::with_capacity(512);
    let usual = || {
        head.status
            .canonical_reason()
            .unwrap_or("<none>")
            .as_bytes()
    };
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(head.status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(reason.unwrap_or_else(usual));
    text.extend_from_slice(b"\r\n");
    text
}
