//! The body of a request: as its client sends it, over HTTP/1.1 or in a stream of HTTP/2; and on
//! its way to the application: gathered, counted, bounded, timed, never held whole if it is large.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use h2::RecvStream;
use http::HeaderMap;

use crate::conn::Downstream;
use crate::conn::buffers::{self, Carried, Pipe, Pipes};
use crate::conn::deadlines::Deadlines;
use crate::conn::inbound::CutOff;
use crate::http1::Encoder;
use crate::message::fields::TrailerFilter;
use crate::message::{Piece, RequestLength};

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

impl ClientBody {
    /// The next piece; none behind the end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, CutOff>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(downstream) => downstream.poll_body(cx),
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

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, CutOff>>> {
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
                Some(Err(_)) => return Poll::Ready(Some(Err(CutOff))),
                None => self.has_ended = true,
            }
        }
        let trailers = ready!(self.received.poll_trailers(cx));
        let piece = trailers.map(|trailers| trailers.map(Piece::Trailers));
        Poll::Ready(piece.map_err(|_| CutOff).transpose())
    }
}

/// What is left of a body is moved inside the system if it is at least so much: what the calls for
/// it cost is then less than a copy.
const WORTH_MOVING: u64 = 32 * 1024;
/// So much of a body is gathered before a connection to the application is taken (CONN-13): what
/// one direction of a connection may hold (CONN-1), but for the head.
const GATHERED: usize = 32 * 1024;

/// A client's body on its way to the application.
pub enum RequestBody {
    /// None.
    Empty,
    /// Read from the client as the application takes it. Boxed: most requests have none, and all
    /// are moved about.
    Streaming(Box<Streaming>),
}

/// A body that is read from the client as the application takes it.
pub struct Streaming {
    /// The body as the client sends it.
    incoming: ClientBody,
    /// The beginning that was gathered.
    gathered: Gathered,
    /// The connection it comes over: time-out, count, faults.
    downstream: Rc<Downstream>,
    /// `WAF_MAX_BODY_SIZE`, where passing it ends the request.
    limit: Option<u64>,
    /// Bytes that are still to be taken of it, where its length was said.
    left: Option<u64>,
    /// Which trailer fields go on; none where there can be none.
    trailers: Option<TrailerFilter>,
}

/// The beginning of a body. Its content is one piece: a byte that came by itself would cost a
/// hundred, and a piece of a larger buffer would hold that (CONN-1).
#[derive(Default)]
struct Gathered {
    content: BytesMut,
    trailers: Option<HeaderMap>,
}

impl Gathered {
    fn add(&mut self, piece: Piece) {
        match piece {
            // The first is not copied where nobody else holds it.
            Piece::Data(data) if self.content.is_empty() => self.content = data.into(),
            Piece::Data(data) => self.content.extend_from_slice(&data),
            Piece::Trailers(trailers) => self.trailers = Some(trailers),
        }
    }

    /// What comes next of it.
    fn take(&mut self) -> Option<Piece> {
        if !self.content.is_empty() {
            let content = std::mem::take(&mut self.content).freeze();
            return Some(Piece::Data(content));
        }
        self.trailers.take().map(Piece::Trailers)
    }

    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.trailers.is_none()
    }
}

impl RequestBody {
    /// A body of this length. `trailers` is asked where it can have some.
    pub fn new(
        incoming: ClientBody,
        length: RequestLength,
        downstream: &Rc<Downstream>,
        limit: Option<u64>,
        trailers: impl FnOnce() -> TrailerFilter,
    ) -> Self {
        if incoming.is_end() {
            return Self::Empty;
        }
        let left = length.announced();
        downstream.upload().set_unread(true);
        downstream.upload().announce(left.unwrap_or(0));
        // A stream of HTTP/2 is in frames, and may have trailers, whether its length is known or
        // not.
        let is_framed = left.is_none() || downstream.is_stream();
        Self::Streaming(Box::new(Streaming {
            incoming,
            gathered: Gathered::default(),
            downstream: Rc::clone(downstream),
            limit,
            left,
            trailers: is_framed.then(trailers),
        }))
    }

    /// Waits for the beginning of the body, or for all of it where it is short: a client that sends
    /// slowly holds no connection of the application meanwhile (CONN-13).
    ///
    /// # Errors
    /// The body does not go on.
    pub fn poll_gather(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutOff>> {
        let Self::Streaming(body) = self else {
            return Poll::Ready(Ok(()));
        };
        while body.gathered.content.len() < GATHERED && !body.incoming.is_end() {
            let Some(piece) = ready!(body.poll_beginning(cx)).transpose()? else {
                break;
            };
            body.gathered.add(piece);
        }
        body.downstream.end_beginning();
        Poll::Ready(Ok(()))
    }

    /// The application takes nothing: the client is not waited for meanwhile (CONN-7).
    pub fn pause(&self) {
        if let Self::Streaming(body) = self {
            body.downstream.timed(Deadlines::pause_body);
        }
    }

    /// How the body is framed, and announced among the fields: as the client did (FORWARD-4).
    pub const fn framing(&self, length: RequestLength) -> Encoder {
        match (self, length) {
            (_, RequestLength::Exact(length)) => Encoder::Exact(length),
            (Self::Empty, _) => Encoder::Empty,
            (Self::Streaming(_), _) => Encoder::Chunked,
        }
    }

    /// Whether all of it was given out.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streaming(body) => body.gathered.is_empty() && body.incoming.is_end(),
        }
    }

    /// The next piece; none behind the end.
    pub fn poll(
        &mut self,
        pipes: &Pipes,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Carried, CutOff>>> {
        let Self::Streaming(body) = self else {
            return Poll::Ready(None);
        };
        if let Some(piece) = body.gathered.take() {
            return Poll::Ready(Some(Ok(Carried::Read(piece))));
        }
        if body.is_worth_moving()
            && let Some(pipe) = pipes.take()
            && let Some(moved) = body.poll_move(pipe, pipes, cx)
        {
            return moved.map(Some);
        }
        let read = body.poll_read(cx);
        read.map(|next| next.map(|piece| piece.map(Carried::Read)))
    }
}

impl Streaming {
    fn is_worth_moving(&self) -> bool {
        self.left.is_some_and(|left| left >= WORTH_MOVING) && self.downstream.can_move_body()
    }

    /// Moves the next piece into a pipe; none where the system does not do it.
    fn poll_move(
        &mut self,
        mut pipe: Pipe,
        pipes: &Pipes,
        cx: &mut Context<'_>,
    ) -> Option<Poll<Result<Carried, CutOff>>> {
        let Poll::Ready(moved) = self.downstream.poll_move_body(&mut pipe, cx) else {
            self.downstream.timed(Deadlines::await_body);
            return Some(Poll::Pending);
        };
        if moved.as_ref().is_err_and(buffers::is_unable) {
            pipes.give_up();
            return None;
        }
        let moved = moved.unwrap_or(0);
        let counted = self.count(moved, moved > 0);
        Some(Poll::Ready(counted.map(|()| Carried::Moved(pipe))))
    }

    /// The next piece of the beginning: a connection that waits for it may give way (CONN-16).
    fn poll_beginning(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, CutOff>>> {
        let read = self.poll_read(cx);
        if read.is_pending() {
            self.downstream.timed(Deadlines::await_beginning);
        }
        read
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, CutOff>>> {
        let Poll::Ready(next) = self.incoming.poll(cx) else {
            self.downstream.timed(Deadlines::await_body);
            return Poll::Pending;
        };
        let came = match &next {
            Some(Ok(Piece::Data(data))) => data.len(),
            _ => 0,
        };
        if came > 0 && self.downstream.is_stream() {
            self.downstream.upload().add_framing(as_chunk(came));
        }
        let counted = self.count(came, !matches!(next, Some(Err(_))));
        Poll::Ready(match (next, counted) {
            (Some(Err(CutOff)), _) | (_, Err(CutOff)) => Some(Err(CutOff)),
            (None, _) => None,
            (Some(Ok(mut piece)), _) => {
                if let (Piece::Trailers(trailers), Some(filter)) = (&mut piece, &self.trailers) {
                    filter.apply(trailers);
                }
                Some(Ok(piece))
            }
        })
    }

    /// So many bytes more came, or the end; or the client has broken off.
    fn count(&mut self, came: usize, goes_on: bool) -> Result<(), CutOff> {
        let downstream = &self.downstream;
        downstream.timed(|deadlines, now_ns| deadlines.got_body(now_ns, came as u64));
        // The application has its whole time again once the client has moved.
        downstream.timed(Deadlines::renew_upstream);
        if !goes_on {
            downstream.upload().broke_off();
            return Err(CutOff);
        }
        if !downstream.upload().take(came, self.limit) {
            return Err(CutOff);
        }
        if self.trailers.is_some() && !downstream.upload().framing_fits() {
            return Err(CutOff);
        }
        self.left = self.left.map(|left| left.saturating_sub(came as u64));
        if self.incoming.is_end() {
            downstream.upload().set_unread(false);
        }
        Ok(())
    }
}

/// What a chunk of this size is framed by. A DATA frame of HTTP/2 is taken for one.
fn as_chunk(size: usize) -> usize {
    size.checked_ilog(16)
        .map_or(1, |digits| digits as usize + 1)
        + 4
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// CONN-13, CONN-1: what is gathered byte by byte costs no more than what comes at once, and
    /// comes out as one piece, before its trailers.
    #[test]
    fn small_pieces_are_gathered_as_one() {
        let mut gathered = Gathered::default();
        let all = Bytes::from(vec![b'x'; GATHERED - 1]);
        for at in 0..all.len() {
            gathered.add(Piece::Data(all.slice(at..=at)));
        }
        gathered.add(Piece::Data(all.clone()));
        gathered.add(Piece::Trailers(HeaderMap::new()));
        assert!(gathered.content.capacity() <= 2 * GATHERED);
        let Some(Piece::Data(content)) = gathered.take() else {
            panic!("the content");
        };
        assert_eq!(content.len(), 2 * all.len());
        assert!(!gathered.is_empty());
        assert!(matches!(gathered.take(), Some(Piece::Trailers(_))));
        assert!(gathered.is_empty() && gathered.take().is_none());
    }

    /// What came at once is not copied.
    #[test]
    fn the_first_piece_is_not_copied() {
        let mut gathered = Gathered::default();
        let first = vec![b'x'; GATHERED];
        let place = first.as_ptr();
        gathered.add(Piece::Data(first.into()));
        assert_eq!(gathered.content.as_ptr(), place);
    }
}
