//! One request to the application over one connection: written, in as few writes as can be, and the
//! head of its answer read.
//!
//! The connection is driven by the task that forwards over it, not by one of its own: no request
//! ever waits for another task to be scheduled, and while a connection is idle nothing polls it.

pub mod bound;
pub mod pool;
pub mod receiving;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Method};
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;

use crate::conn::Downstream;
use crate::conn::buffers::{Buffers, Carried, Pipe};
use crate::conn::inbound::BodyFault;
use crate::http1::response::{HeadReader, ResponseHead};
use crate::http1::{Encoder, Malformed};
use crate::message::Piece;
use crate::request::body::RequestBody;
use crate::upstream::pool::Pool;

/// Why the application gave no response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It could not be reached, broke off, or answered nonsense: 502.
    BadGateway,
    /// It took longer than `WAF_UPSTREAM_TIMEOUT`: 504.
    TooSlow,
    /// The client's body passed `WAF_MAX_BODY_SIZE`: 413.
    BodyTooLarge,
    /// The client broke its body off.
    ClientAborted,
    /// The chunks of the client's body are mostly framing: 400.
    Framing,
    /// No place at the application came free in time (CONN-12): 503.
    Overloaded,
}

/// Why an attempt brought no response.
pub enum NoResponse {
    /// The connection ended, and nothing of the request was written.
    Unsent,
    /// The connection ended before anything of a response came.
    Lost,
    /// No other connection would do better.
    Failed(Failure),
}

/// One attempt: a request on a connection.
pub struct Attempt {
    /// The connection.
    pub stream: TcpStream,
    /// The request.
    pub sending: Sending,
    receiver: HeadReceiver,
    /// The application does not take more of the request.
    closed: bool,
    /// When the request had been written, on the monotonic clock; none if it is not.
    pub written_ns: Option<u64>,
}

impl Attempt {
    /// Nothing was written yet. `as_text` where the head of the response is wanted as text.
    pub fn new(stream: TcpStream, sending: Sending, as_text: bool) -> Self {
        Self {
            stream,
            sending,
            receiver: HeadReceiver {
                reader: HeadReader::new(as_text),
                ..HeadReceiver::default()
            },
            closed: false,
            written_ns: None,
        }
    }

    /// Writes the request, and waits for the head of the final response; what was read behind it
    /// comes with it. Those of interim ones go to `interim` before.
    pub fn poll(
        &mut self,
        pool: &Pool,
        downstream: &Downstream,
        method: &Method,
        interim: &impl Fn(ResponseHead),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(ResponseHead, BytesMut), NoResponse>> {
        if self.written_ns.is_none() && !self.closed {
            match self.sending.poll(&mut self.stream, &pool.buffers, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.written_ns = Some(pool.clock.now().mono_ns),
                Poll::Ready(Err(NotSent::Body)) => {
                    return Poll::Ready(Err(NoResponse::Failed(body_failure(downstream))));
                }
                // An answer may have come before it closed.
                Poll::Ready(Err(NotSent::Closed)) => self.closed = true,
            }
        }
        let Self {
            stream, receiver, ..
        } = self;
        let little = downstream.reads_little();
        let failure = match receiver.poll(stream, &pool.buffers, little, method, interim, cx) {
            Poll::Ready(Ok(received)) => return Poll::Ready(Ok(received)),
            Poll::Pending if downstream.deadlines().is_upstream_late() => {
                tracing::warn!("the application was silent for WAF_UPSTREAM_TIMEOUT");
                NoResponse::Failed(Failure::TooSlow)
            }
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(Broken::Nothing)) if self.sending.begun => NoResponse::Lost,
            Poll::Ready(Err(Broken::Nothing)) => NoResponse::Unsent,
            Poll::Ready(Err(error)) => NoResponse::Failed(not_http(error)),
        };
        Poll::Ready(Err(failure))
    }
}

/// The answer is none, for this reason.
pub fn not_http(error: impl std::error::Error) -> Failure {
    tracing::warn!(%error, "the application's answer is not HTTP");
    Failure::BadGateway
}

/// Why the client's body did not come as a whole.
pub fn body_failure(downstream: &Downstream) -> Failure {
    match downstream.upload().fault() {
        BodyFault::TooLarge => Failure::BodyTooLarge,
        BodyFault::Framing => Failure::Framing,
        BodyFault::Client | BodyFault::None => Failure::ClientAborted,
    }
}

/// Why there is no response, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection ended before anything came.
    #[error("the connection ended without a response")]
    Nothing,
    /// The bytes are no response, or not a whole one.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The connection broke in the middle.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client's body broke off, or was too large, before all of it was sent.
    #[error("the request's body broke off")]
    RequestBody,
}

/// Reads the head of a response.
#[derive(Default)]
struct HeadReceiver {
    reader: HeadReader,
    /// The beginning of a head, or what came behind an interim one.
    held: BytesMut,
    /// Whether what is held has not been looked at.
    is_new: bool,
    begun: bool,
}

impl HeadReceiver {
    /// The head of the final response, and what was read behind it. Those of interim ones go to
    /// `interim` before.
    fn poll(
        &mut self,
        stream: &mut TcpStream,
        buffers: &Buffers,
        little: bool,
        method: &Method,
        interim: &impl Fn(ResponseHead),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(ResponseHead, BytesMut), Broken>> {
        loop {
            // Held bytes are a copy, which grows with each read.
            let is_own = !self.held.is_empty();
            let mut bytes = if std::mem::take(&mut self.is_new) {
                std::mem::take(&mut self.held)
            } else {
                let read = if little {
                    ready!(Buffers::poll_read_little(stream, cx))
                } else {
                    ready!(buffers.poll_read(stream, cx))
                };
                self.with_what_is_held(read)?
            };
            let Some((head, length)) = self.reader.read(&bytes, method)? else {
                // A copy: the beginning of a head that is not going on must not hold the worker's
                // buffer.
                self.held = if is_own {
                    bytes
                } else {
                    BytesMut::from(&*bytes)
                };
                continue;
            };
            bytes.advance(length);
            if !head.status.is_informational() || head.status == 101 {
                return Poll::Ready(Ok((head, bytes)));
            }
            interim(head);
            // It is written to the client before anything else is looked at.
            self.is_new = !bytes.is_empty();
            self.held = BytesMut::from(&*bytes);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }

    fn with_what_is_held(&mut self, read: io::Result<BytesMut>) -> Result<BytesMut, Broken> {
        let ended = Broken::Malformed(Malformed::Truncated);
        let read = match read {
            Ok(read) if !read.is_empty() => read,
            _ if !self.begun => return Err(Broken::Nothing),
            Ok(_) => return Err(ended),
            Err(error) => return Err(Broken::Io(error)),
        };
        self.begun = true;
        if self.held.is_empty() {
            return Ok(read);
        }
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(&read);
        Ok(bytes)
    }
}

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
    /// The framing behind the piece.
    behind: &'static [u8],
    /// Small pieces that are not in the text yet.
    gathered: Vec<u8>,
    trailers: Option<Box<HeaderMap>>,
    /// Whether anything was written. A request of which nothing was may go to another connection
    /// as it is.
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
            Some(Carried::Read(Piece::Data(data))) => data.len(),
            Some(Carried::Moved(pipe)) => pipe.held(),
            Some(Carried::Read(Piece::Trailers(_))) | None => 0,
        };
        let behind = self.encoder.begin_piece(&mut self.text, length);
        self.behind = behind.map_err(|_| NotSent::Body)?;
        match large {
            Some(Carried::Read(Piece::Data(data))) => self.piece = data,
            Some(Carried::Moved(pipe)) => self.pipe = Some(pipe),
            // What ends a chunked body stands behind the piece, and is written with the next turn.
            Some(Carried::Read(Piece::Trailers(_))) | None if ended => self.end()?,
            Some(Carried::Read(Piece::Trailers(_))) | None => {}
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
    fn take(&mut self, carried: Carried, buffers: &Buffers) -> Option<Carried> {
        match carried {
            Carried::Read(Piece::Data(data)) if data.len() < SMALL => {
                if self.gathered.is_empty() {
                    self.gathered = buffers.take_text();
                }
                self.gathered.extend_from_slice(&data);
            }
            Carried::Read(Piece::Trailers(trailers)) => self.trailers = Some(Box::new(trailers)),
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
