//! The response to a request on its way to the client: its head, its body, and how much of it was
//! delivered.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use weir_shared::verdict::Action;

use crate::conn::buffers::{self, Carried, Pipe};
use crate::http1::Malformed;
use crate::http1::response::HeadText;
use crate::message;
use crate::message::fields::TrailerFilter;
use crate::relay::websocket::Tunnel;
use crate::request::exchange::Exchange;
use crate::request::problem;
use crate::upstream::Broken;
use crate::upstream::receiving::BodyReceiver;

/// A request whose response is on its way. Whoever may still add to it holds it: the body while
/// more is to come, and each piece until it is written. With the last of them it is finished.
pub struct Delivery {
    /// None once finished.
    exchange: Option<Box<Exchange>>,
    /// How the body ended.
    action: Cell<Action>,
    /// Bytes of content that were given out.
    given: Cell<u64>,
    /// Those of them that the socket took.
    written: Cell<u64>,
}

impl Delivery {
    /// Nothing was given yet. A body that is dropped before its end is a client that went away, or
    /// whose connection was cut.
    pub fn new(exchange: Box<Exchange>) -> Rc<Self> {
        Rc::new(Self {
            exchange: Some(exchange),
            action: Cell::new(Action::ClientAborted),
            given: Cell::new(0),
            written: Cell::new(0),
        })
    }

    /// The request, while it is under way.
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_deref()
    }

    /// Content for the client.
    pub fn piece(self: &Rc<Self>, content: Bytes) -> Piece {
        let length = content.len() as u64;
        self.given.set(self.given.get() + length);
        // A short answer is counted before the client can see it: whoever has read it finds it
        // counted.
        let is_certain = |exchange: &Exchange| exchange.downstream.takes(self.given.get());
        if self.exchange().is_some_and(is_certain) {
            self.wrote(length);
            return Piece::uncounted(content);
        }
        Piece {
            content: Content::Bytes(content),
            delivery: Some(Rc::clone(self)),
        }
    }

    /// Content for the client that was moved into this pipe.
    pub fn moved(self: &Rc<Self>, pipe: Pipe) -> Piece {
        self.given.set(self.given.get() + pipe.held() as u64);
        Piece {
            content: Content::Moved(pipe),
            delivery: Some(Rc::clone(self)),
        }
    }

    /// The body has ended so: the next request is awaited.
    pub fn end(&self, action: Action) {
        self.action.set(action);
        if let Some(exchange) = self.exchange() {
            exchange.release_connection();
        }
    }

    fn wrote(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(mut exchange) = self.exchange.take() else {
            return;
        };
        let written = self.written.get();
        exchange.response_bytes = written;
        exchange.finish(match self.action.get() {
            Action::Passed if written < self.given.get() => Action::ClientAborted,
            action => action,
        });
    }
}

/// A piece of a response on its way to the client, which counts what is taken of it.
pub struct Piece {
    content: Content,
    /// None where nothing is counted.
    delivery: Option<Rc<Delivery>>,
}

/// What a piece consists of.
enum Content {
    Bytes(Bytes),
    /// Bytes that were moved, and are moved on.
    Moved(Pipe),
}

impl Piece {
    /// A piece of a response that is counted elsewhere.
    pub const fn uncounted(content: Bytes) -> Self {
        Self {
            content: Content::Bytes(content),
            delivery: None,
        }
    }

    /// Bytes that are left of it.
    pub fn remaining(&self) -> usize {
        match &self.content {
            Content::Bytes(content) => content.len(),
            Content::Moved(pipe) => pipe.held(),
        }
    }

    /// The bytes that are left of it; none where they are in a pipe.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Bytes(content) => content,
            Content::Moved(_) => &[],
        }
    }

    /// The pipe that it is in, if it is.
    pub const fn pipe(&mut self) -> Option<&mut Pipe> {
        match &mut self.content {
            Content::Bytes(_) => None,
            Content::Moved(pipe) => Some(pipe),
        }
    }

    /// Copies content that is shorter than this: it is a part of a buffer that others are read into
    /// too, and would hold all of it for as long as it waits.
    pub fn detach(&mut self, shorter_than: usize) {
        if let Content::Bytes(content) = &mut self.content
            && content.len() < shorter_than
        {
            *content = Bytes::copy_from_slice(content);
        }
    }

    /// Whether what is taken of it is counted.
    pub const fn is_counted(&self) -> bool {
        self.delivery.is_some()
    }

    /// The client has `count` bytes more of it. Moved bytes are out of their pipe by then.
    pub fn advance(&mut self, count: usize) {
        if let Content::Bytes(content) = &mut self.content {
            content.advance(count);
        }
        if let Some(delivery) = &self.delivery {
            delivery.wrote(count as u64);
        }
    }

    /// Takes so much off it, to be counted by what is returned; by nothing, if it is not counted.
    pub fn advance_untold(&mut self, count: usize) -> Option<Untold> {
        if let Content::Bytes(content) = &mut self.content {
            content.advance(count);
        }
        let delivery = Rc::clone(self.delivery.as_ref()?);
        Some(Untold {
            delivery,
            bytes: count as u64,
        })
    }
}

/// Content that is on its way to the socket. Dropped, it did not get there.
pub struct Untold {
    delivery: Rc<Delivery>,
    bytes: u64,
}

impl Untold {
    /// The socket has it.
    pub fn tell(self) {
        self.delivery.wrote(self.bytes);
    }
}

/// The body of an answer to a client.
pub enum ResponseBody {
    /// Of our own; empty once it was given out.
    Own(Bytes),
    /// The application's, which came as a whole with its head; none once it was given out.
    Whole(Option<Piece>),
    /// The application's.
    Upstream(Box<UpstreamBody>),
}

impl ResponseBody {
    /// No body.
    pub const fn empty() -> Self {
        Self::Own(Bytes::new())
    }
}

/// What comes next of a body.
pub enum Frame {
    /// Content.
    Data(Piece),
    /// The fields behind the content; the last frame.
    Trailers(HeaderMap),
}

/// A body that cannot go on; the client's connection is closed, so that nobody takes it for whole.
#[derive(Debug)]
pub struct CutShort;

/// The application's body on its way to the client. It reads from the upstream connection, and says
/// how it ended.
pub struct UpstreamBody {
    /// None once the body was given out.
    receiver: Option<BodyReceiver>,
    /// None once it has ended.
    delivery: Option<Rc<Delivery>>,
    /// None where there can be no trailers.
    trailers: Option<TrailerFilter>,
}

impl UpstreamBody {
    /// A body with something still to come.
    pub fn new(
        receiver: BodyReceiver,
        exchange: Box<Exchange>,
        trailers: Option<TrailerFilter>,
    ) -> Box<Self> {
        Box::new(Self {
            receiver: Some(receiver),
            delivery: Some(Delivery::new(exchange)),
            trailers,
        })
    }

    fn end(&mut self, action: Action) {
        if let Some(delivery) = self.delivery.take() {
            delivery.end(action);
        }
    }

    /// The whole response came: the connection can be used again.
    fn complete(&mut self) {
        let stream = self.receiver.take().and_then(BodyReceiver::into_reusable);
        let exchange = self.delivery.as_ref().and_then(|held| held.exchange());
        if let (Some(stream), Some(exchange)) = (stream, exchange) {
            exchange.worker.pool.keep(stream);
        }
        self.end(Action::Passed);
    }
}

/// The next piece: moved inside the system where that can be, else read.
fn poll_next(
    receiver: &mut BodyReceiver,
    exchange: &Exchange,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Carried, Broken>>> {
    let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
    if downstream.can_move()
        && receiver.is_plain()
        && let Some(mut pipe) = pool.buffers.pipes.take()
    {
        match ready!(receiver.poll_move(&mut pipe, cx)) {
            Ok(0) => return Poll::Ready(Some(Err(Malformed::Truncated.into()))),
            Ok(_) => return Poll::Ready(Some(Ok(Carried::Moved(pipe)))),
            Err(error) if buffers::is_unable(&error) => pool.buffers.pipes.give_up(),
            Err(error) => return Poll::Ready(Some(Err(error.into()))),
        }
    }
    let read = ready!(receiver.poll(&pool.buffers, downstream.reads_little(), cx));
    Poll::Ready(read.map(|read| read.map(Carried::Read)))
}

impl UpstreamBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, CutShort>>> {
        let (Some(receiver), Some(delivery)) = (&mut self.receiver, &self.delivery) else {
            return Poll::Ready(None);
        };
        let Some(exchange) = delivery.exchange() else {
            return Poll::Ready(None);
        };
        let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
        let Poll::Ready(next) = poll_next(receiver, exchange, cx) else {
            if downstream.deadlines().is_upstream_late() {
                tracing::warn!(
                    "the application was silent for WAF_UPSTREAM_TIMEOUT in the middle of a response"
                );
                self.end(Action::UpstreamError);
                return Poll::Ready(Some(Err(CutShort)));
            }
            if !downstream.deadlines().is_awaiting_upstream() {
                downstream
                    .timed(|deadlines, now_ns| deadlines.await_upstream(now_ns, pool.answer_ns));
            }
            return Poll::Pending;
        };
        downstream.deadlines().got_upstream();
        let frame = match next {
            None => {
                self.complete();
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                let is_client = matches!(error, Broken::RequestBody);
                self.end(match is_client {
                    true => Action::ClientAborted,
                    false => {
                        tracing::warn!(%error, "the application's response broke off");
                        Action::UpstreamError
                    }
                });
                return Poll::Ready(Some(Err(CutShort)));
            }
            Some(Ok(Carried::Moved(pipe))) => Frame::Data(delivery.moved(pipe)),
            Some(Ok(Carried::Read(message::Piece::Data(data)))) => {
                Frame::Data(delivery.piece(data))
            }
            Some(Ok(Carried::Read(message::Piece::Trailers(mut trailers)))) => {
                if let Some(filter) = &self.trailers {
                    filter.apply(&mut trailers);
                }
                Frame::Trailers(trailers)
            }
        };
        // Nobody asks again after the last byte of a sized body.
        if receiver.is_end() {
            self.complete();
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl ResponseBody {
    /// What comes next; none behind the end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, CutShort>>> {
        match self {
            Self::Own(content) if content.is_empty() => Poll::Ready(None),
            Self::Own(content) => {
                let piece = Piece::uncounted(std::mem::take(content));
                Poll::Ready(Some(Ok(Frame::Data(piece))))
            }
            Self::Whole(piece) => Poll::Ready(piece.take().map(|piece| Ok(Frame::Data(piece)))),
            Self::Upstream(body) => body.poll(cx),
        }
    }

    /// Whether all of it was given out.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Own(content) => content.is_empty(),
            Self::Whole(piece) => piece.is_none(),
            Self::Upstream(body) => body.delivery.is_none(),
        }
    }

    /// Bytes that are still to be given out, where that is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Own(content) => Some(content.len() as u64),
            Self::Whole(piece) => Some(piece.as_ref().map_or(0, |piece| piece.remaining() as u64)),
            Self::Upstream(body) => {
                let receiver = body.receiver.as_ref();
                receiver.map_or(Some(0), BodyReceiver::remaining)
            }
        }
    }
}

/// A response.
pub struct Reply {
    /// Status and fields.
    pub head: Parts,
    /// Status line and fields of the application as they go on over HTTP/1.1; those in `head` stand
    /// behind them.
    pub text: Option<HeadText>,
    /// The reason phrase, where it is not the usual one of the status.
    pub reason: Option<Box<[u8]>>,
    /// The body.
    pub body: ResponseBody,
    /// What the connection becomes behind a 101 that was asked for.
    pub tunnel: Option<Box<Tunnel>>,
}

impl Reply {
    /// A response that has all of its fields in a map.
    pub fn of(response: Response<ResponseBody>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            head,
            text: None,
            reason: None,
            body,
            tunnel: None,
        }
    }

    /// A response of our own.
    pub fn own(response: problem::Own) -> Self {
        Self::of(response.map(ResponseBody::Own))
    }

    /// Says that the connection ends with this response, unless it becomes another one.
    pub fn close(&mut self) {
        if self.head.status != StatusCode::SWITCHING_PROTOCOLS {
            self.head
                .headers
                .insert(http::header::CONNECTION, problem::CLOSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    /// EDGE-3, CONN-1: a short piece that waits holds no buffer but its own, a long one is not
    /// copied.
    #[test]
    fn a_short_piece_holds_no_shared_buffer() {
        for (length, is_free) in [(10, true), (99, true), (100, false)] {
            let mut buffer = BytesMut::with_capacity(1000);
            buffer.resize(length, b'x');
            let mut piece = Piece::uncounted(buffer.split().freeze());
            assert!(!buffer.try_reclaim(1000), "the piece holds it");
            piece.detach(100);
            assert_eq!(buffer.try_reclaim(1000), is_free, "{length}");
            assert_eq!(piece.bytes(), vec![b'x'; length]);
        }
    }
}
