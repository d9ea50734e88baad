//! The body of a response on its way to the client: the application's is counted and timed, never
//! held whole.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use weir_shared::verdict::Action;

use super::delivery::{Delivery, Piece};
use crate::exchange::Exchange;
use crate::http1::malformed::Malformed;
use crate::pipe;
use crate::trailers::TrailerFilter;
use crate::upstream::receiving::{self, BodyReceiver, Broken};

/// The body of an answer to a client.
pub enum ResponseBody {
    /// Of our own.
    Own(Full<Bytes>),
    /// The application's, which came as a whole with its head; none once it was given out.
    Whole(Option<Piece>),
    /// The application's.
    Upstream(Box<UpstreamBody>),
}

impl ResponseBody {
    /// No body.
    pub fn empty() -> Self {
        Self::Own(Full::new(Bytes::new()))
    }

    /// The application's body, all of it: the next request is awaited.
    pub fn whole(exchange: Box<Exchange>, content: Bytes) -> Self {
        let delivery = Delivery::new(exchange);
        let piece = delivery.piece(content);
        delivery.end(Action::Passed);
        Self::Whole(Some(piece))
    }
}

/// A body that cannot go on; the client's connection is closed, so that nobody takes it for whole.
#[derive(Debug, thiserror::Error)]
pub enum CutShort {
    /// The application broke off.
    #[error("the body broke off: {0}")]
    Broken(#[from] Broken),
    /// Nothing came for `WAF_UPSTREAM_TIMEOUT`.
    #[error("the body stalled")]
    Stalled,
}

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

/// What comes next of a body.
enum Next {
    /// A piece that was read.
    Read(receiving::Piece),
    /// A piece of this length, which the client's connection has in a pipe.
    Moved(usize),
}

/// The next piece: moved inside the system where that can be, else read.
fn poll_next(
    receiver: &mut BodyReceiver,
    exchange: &Exchange,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Next, Broken>>> {
    let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
    if downstream.can_move()
        && receiver.is_plain()
        && let Some(mut pipe) = pool.buffers.pipes.take()
    {
        match ready!(receiver.poll_move(&mut pipe, cx)) {
            Ok(0) => return Poll::Ready(Some(Err(Malformed::Truncated.into()))),
            Ok(moved) => {
                downstream.put_pipe(pipe);
                return Poll::Ready(Some(Ok(Next::Moved(moved))));
            }
            Err(error) if pipe::is_unable(&error) => pool.buffers.pipes.give_up(),
            Err(error) => return Poll::Ready(Some(Err(error.into()))),
        }
    }
    let read = ready!(receiver.poll(&pool.buffers, downstream.reads_little(), cx));
    Poll::Ready(read.map(|read| read.map(Next::Read)))
}

impl Body for UpstreamBody {
    type Data = Piece;
    type Error = CutShort;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, CutShort>>> {
        let this = self.get_mut();
        let (Some(receiver), Some(delivery)) = (&mut this.receiver, &this.delivery) else {
            return Poll::Ready(None);
        };
        let Some(exchange) = delivery.exchange() else {
            return Poll::Ready(None);
        };
        let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
        if downstream.must_write_first(delivery.unwritten()) {
            return Poll::Pending;
        }
        let Poll::Ready(next) = poll_next(receiver, exchange, cx) else {
            if downstream.is_upstream_late() {
                this.end(Action::UpstreamError);
                return Poll::Ready(Some(Err(CutShort::Stalled)));
            }
            if !downstream.is_awaiting_upstream() {
                downstream.await_upstream(pool.answer_timeout());
            }
            return Poll::Pending;
        };
        downstream.got_upstream();
        let frame = match next {
            None => {
                this.complete();
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                this.end(Action::UpstreamError);
                return Poll::Ready(Some(Err(error.into())));
            }
            Some(Ok(Next::Moved(length))) => Frame::data(delivery.piece(pipe::placeholder(length))),
            Some(Ok(Next::Read(receiving::Piece::Data(data)))) => Frame::data(delivery.piece(data)),
            Some(Ok(Next::Read(receiving::Piece::Trailers(mut trailers)))) => {
                if let Some(filter) = &this.trailers {
                    filter.apply(&mut trailers);
                }
                Frame::trailers(trailers)
            }
        };
        // hyper does not ask again after the last byte of a sized body.
        if receiver.is_end() {
            this.complete();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.delivery.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let remaining = self
            .receiver
            .as_ref()
            .map_or(Some(0), BodyReceiver::remaining);
        remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Body for ResponseBody {
    type Data = Piece;
    type Error = CutShort;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, CutShort>>> {
        match self.get_mut() {
            Self::Own(full) => match ready!(Pin::new(full).poll_frame(cx)) {
                Some(Ok(frame)) => Poll::Ready(Some(Ok(frame.map_data(Piece::uncounted)))),
                Some(Err(never)) => match never {},
                None => Poll::Ready(None),
            },
            Self::Whole(piece) => Poll::Ready(piece.take().map(|piece| Ok(Frame::data(piece)))),
            Self::Upstream(answer) => Pin::new(&mut **answer).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(full) => full.is_end_stream(),
            Self::Whole(piece) => piece.is_none(),
            Self::Upstream(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(full) => full.size_hint(),
            Self::Whole(piece) => {
                SizeHint::with_exact(piece.as_ref().map_or(0, |piece| piece.remaining() as u64))
            }
            Self::Upstream(answer) => answer.size_hint(),
        }
    }
}
