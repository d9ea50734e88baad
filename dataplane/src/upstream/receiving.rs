//! The response of the application: its head, and the body on its way from it, piece by piece.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::net::TcpStream;

use crate::conn::buffers::{Buffers, Pipe};
use crate::http1::Malformed;
use crate::http1::body::Decoder;
use crate::http1::response::ResponseHead;
use crate::message::Piece;
use crate::upstream::bound::UpstreamSlot;
use crate::upstream::{Attempt, Broken, NotSent, Sending};

/// What is left of a body is moved inside the system if it is at least so much: what two system
/// calls of it cost is then less than a copy.
const WORTH_MOVING: u64 = 16 * 1024;

/// The application's response: its head, and the body still to come.
pub struct Received {
    /// Its head.
    pub head: ResponseHead,
    /// The body, and the connection that it comes over.
    pub body: BodyReceiver,
    /// Microseconds it took to connect; none on a pooled connection.
    pub connect_us: Option<u64>,
    /// When the request had been written, on the monotonic clock; none if the response came before.
    pub written_ns: Option<u64>,
}

/// Reads the body of a response, while what is left of the request is still being sent.
pub struct BodyReceiver {
    stream: TcpStream,
    /// Held for as long as the connection is (CONN-12).
    slot: UpstreamSlot,
    decoder: Decoder,
    /// The bytes that were read with the head.
    early: BytesMut,
    /// The content of that, where it was chunks; none once it was given out.
    decoded: Option<Bytes>,
    /// The rest of the request: the application may answer before it has read all of it.
    sending: Option<Box<Sending>>,
}

impl Received {
    /// The head came over this attempt, and these bytes behind it. They are looked at before
    /// anything of them goes on.
    ///
    /// # Errors
    /// The bytes are no body as the head announces it.
    pub fn new(
        attempt: Attempt,
        slot: UpstreamSlot,
        (head, mut early): (ResponseHead, BytesMut),
        connect_us: Option<u64>,
    ) -> Result<Self, Malformed> {
        let (mut decoder, mut decoded) = (Decoder::new(&head), None);
        if decoder.is_end() && head.status != 101 {
            // Bytes behind a head without a body mean that the connection is not used again.
            decoder.decode(&mut early)?;
        } else if decoder.remaining().is_none() && !early.is_empty() {
            decoded = Some(decode(&mut decoder, std::mem::take(&mut early))?);
        }
        let written_ns = attempt.written_ns;
        let body = BodyReceiver {
            stream: attempt.stream,
            slot,
            decoder,
            early,
            decoded,
            sending: written_ns.is_none().then(|| Box::new(attempt.sending)),
        };
        Ok(Self {
            head,
            body,
            connect_us,
            written_ns,
        })
    }
}

impl BodyReceiver {
    /// Content that is still to come, where that is known.
    pub fn remaining(&self) -> Option<u64> {
        let remaining = self.decoder.remaining();
        remaining.filter(|_| self.decoded.is_none())
    }

    /// Whether the whole body was given out.
    pub fn is_end(&self) -> bool {
        self.decoder.is_end() && !self.decoder.has_trailers() && self.decoded.is_none()
    }

    /// The whole body, if it is of known length and came with the head, and all of the request was
    /// sent.
    pub fn take_whole(&mut self) -> Option<Bytes> {
        let length = self.decoder.remaining().filter(|length| *length > 0)?;
        if self.sending.is_some() || length > self.early.len() as u64 {
            return None;
        }
        let content = self.decoder.decode(&mut self.early).ok()?.content;
        self.early.truncate(content.end);
        Some(std::mem::take(&mut self.early).freeze())
    }

    /// The connection, if it can take another request.
    pub fn into_reusable(self) -> Option<TcpStream> {
        let is_sent = self.sending.is_none();
        (is_sent && self.decoder.is_reusable()).then_some(self.stream)
    }

    /// The connection and what was read behind the head, after a 101. Its slot is given back: a
    /// WebSocket is no longer a request.
    pub fn into_parts(self) -> (TcpStream, Bytes) {
        drop(self.slot);
        (self.stream, self.early.freeze())
    }

    /// Whether the next piece can be moved as it is: its length is known, nothing of it was read,
    /// and nothing else is to be done on the connection.
    pub fn is_plain(&self) -> bool {
        let left = self.decoder.remaining().unwrap_or(0);
        left >= WORTH_MOVING && self.early.is_empty() && self.sending.is_none()
    }

    /// Moves the next piece into an empty pipe, and says how long it is.
    pub fn poll_move(&mut self, pipe: &mut Pipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let left = self.decoder.remaining().unwrap_or(0);
        let at_most = usize::try_from(left).unwrap_or(usize::MAX);
        let moved = ready!(pipe.poll_fill(&self.stream, at_most, cx))?;
        self.decoder.pass(moved as u64);
        Poll::Ready(Ok(moved))
    }

    /// The next piece; none at the end.
    pub fn poll(
        &mut self,
        buffers: &Buffers,
        little: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, Broken>>> {
        self.poll_piece(buffers, little, cx).map(Result::transpose)
    }

    fn poll_piece(
        &mut self,
        buffers: &Buffers,
        little: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Piece>, Broken>> {
        self.send(buffers, cx)?;
        if let Some(content) = self.decoded.take().filter(|it| !it.is_empty()) {
            return Poll::Ready(Ok(Some(Piece::Data(content))));
        }
        loop {
            if self.decoder.is_end() {
                let trailers = self.decoder.take_trailers();
                return Poll::Ready(Ok(trailers.map(Piece::Trailers)));
            }
            let mut bytes = std::mem::take(&mut self.early);
            if bytes.is_empty() {
                bytes = if little {
                    ready!(Buffers::poll_read_little(&mut self.stream, cx))?
                } else {
                    ready!(buffers.poll_read(&mut self.stream, cx))?
                };
                if bytes.is_empty() {
                    self.decoder.end_of_input()?;
                    continue;
                }
            }
            let content = decode(&mut self.decoder, bytes)?;
            if !content.is_empty() {
                return Poll::Ready(Ok(Some(Piece::Data(content))));
            }
        }
    }

    /// Sends on what is left of the request. What the application does not take any more is no
    /// fault: it has answered.
    fn send(&mut self, buffers: &Buffers, cx: &mut Context<'_>) -> Result<(), Broken> {
        if let Some(sending) = &mut self.sending {
            match sending.poll(&mut self.stream, buffers, cx) {
                Poll::Ready(Ok(())) => self.sending = None,
                Poll::Ready(Err(NotSent::Body)) => return Err(Broken::RequestBody),
                Poll::Ready(Err(NotSent::Closed)) | Poll::Pending => {}
            }
        }
        Ok(())
    }
}

/// The content of these bytes of a body.
fn decode(decoder: &mut Decoder, mut bytes: BytesMut) -> Result<Bytes, Malformed> {
    let content = decoder.decode(&mut bytes)?.content;
    bytes.truncate(content.end);
    bytes.advance(content.start);
    Ok(bytes.freeze())
}
