//! Bodies on their way through: counted, bounded, timed, never held whole.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use weir_shared::verdict::Action;

use super::pool::UpstreamConnection;
use super::trailers::TrailerFilter;
use crate::request::Exchange;
use crate::socket::{BodyFault, Downstream};

/// A body that cannot go on; the connection it was written to is closed, so that nobody takes it for whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client's body passed `WAF_MAX_BODY_SIZE`.
    #[error("the body is larger than WAF_MAX_BODY_SIZE")]
    TooLarge,
    /// The other side broke off.
    #[error("the body broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// Nothing came for `WAF_UPSTREAM_TIMEOUT`.
    #[error("the body stalled")]
    Stalled,
}

/// A client's body on its way to the application.
pub enum RequestBody {
    /// None.
    Empty,
    /// Read from the client as the application takes it.
    Streaming {
        /// What hyper reads.
        incoming: Incoming,
        /// The connection it comes over: time-out, count, faults.
        downstream: Rc<Downstream>,
        /// `WAF_MAX_BODY_SIZE`, where passing it ends the request.
        limit: Option<u64>,
        /// Which trailer fields go on; none where there can be none.
        trailers: Option<Box<TrailerFilter>>,
    },
}

impl RequestBody {
    /// The body of a request. `trailers` is asked where its length is not known.
    pub fn new(
        incoming: Incoming,
        downstream: &Rc<Downstream>,
        limit: Option<u64>,
        trailers: impl FnOnce() -> TrailerFilter,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        downstream.unread_body.set(true);
        let is_chunked = incoming.size_hint().exact().is_none();
        Self::Streaming {
            incoming,
            downstream: Rc::clone(downstream),
            limit,
            trailers: is_chunked.then(|| Box::new(trailers())),
        }
    }

    /// Whether there is a body of unknown length.
    pub fn is_chunked(&self) -> bool {
        matches!(
            self,
            Self::Streaming {
                trailers: Some(_),
                ..
            }
        )
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self::Streaming {
            incoming,
            downstream,
            limit,
            trailers,
        } = self.get_mut()
        else {
            return Poll::Ready(None);
        };
        let Poll::Ready(next) = Pin::new(&mut *incoming).poll_frame(cx) else {
            downstream.await_body();
            return Poll::Pending;
        };
        downstream.got_body();
        // The application has its whole time again once the client has moved.
        downstream.renew_upstream();
        let frame = match next {
            None => {
                downstream.unread_body.set(false);
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                downstream.body_fault.set(BodyFault::Client);
                return Poll::Ready(Some(Err(error.into())));
            }
            Some(Ok(frame)) => frame,
        };
        let frame = filtered(frame, trailers.as_deref());
        if let Some(data) = frame.data_ref() {
            let carried = downstream.request_bytes.get() + data.len() as u64;
            if limit.is_some_and(|limit| carried > limit) {
                downstream.body_fault.set(BodyFault::TooLarge);
                return Poll::Ready(Some(Err(BodyError::TooLarge)));
            }
            downstream.request_bytes.set(carried);
        }
        // hyper does not ask again after the last byte of a sized body.
        if incoming.is_end_stream() {
            downstream.unread_body.set(false);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streaming { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streaming { incoming, .. } => incoming.size_hint(),
        }
    }
}

/// The frame without the trailer fields that do not go on.
fn filtered(mut frame: Frame<Bytes>, trailers: Option<&TrailerFilter>) -> Frame<Bytes> {
    if let (Some(fields), Some(filter)) = (frame.trailers_mut(), trailers) {
        filter.apply(fields);
    }
    frame
}

/// The body of an answer to a client.
pub enum ReplyBody {
    /// Of our own.
    Own(Full<Bytes>),
    /// The application's.
    Upstream(Box<AnswerBody>),
}

impl ReplyBody {
    /// No body.
    pub fn empty() -> Self {
        Self::Own(Full::new(Bytes::new()))
    }
}

/// The application's body on its way to the client. It drives the upstream connection, counts, and finishes the
/// request when it ends or is dropped.
pub struct AnswerBody {
    incoming: Incoming,
    /// None once it went back to the pool.
    connection: Option<Box<UpstreamConnection>>,
    downstream: Rc<Downstream>,
    /// None once finished.
    exchange: Option<Box<Exchange>>,
    trailers: TrailerFilter,
}

impl AnswerBody {
    /// A body with something still to come.
    pub fn new(
        incoming: Incoming,
        connection: Box<UpstreamConnection>,
        downstream: Rc<Downstream>,
        exchange: Box<Exchange>,
        trailers: TrailerFilter,
    ) -> Box<Self> {
        Box::new(Self {
            incoming,
            connection: Some(connection),
            downstream,
            exchange: Some(exchange),
            trailers,
        })
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self {
            incoming,
            connection,
            downstream,
            ..
        } = self;
        downstream.without_self_wake(cx, |cx| {
            // What came with the head is here already; asking for more is what lets the connection read it.
            let next = Pin::new(&mut *incoming).poll_frame(cx);
            if next.is_ready() {
                return next;
            }
            if let Some(connection) = connection {
                connection.driver.drive(cx);
            }
            Pin::new(incoming).poll_frame(cx)
        })
    }

    fn finish(&mut self, action: Action) {
        if let Some(exchange) = self.exchange.take() {
            exchange.finish(action);
        }
    }

    /// The whole answer came: the connection can be used again, the request is done.
    fn complete(&mut self) {
        if let (Some(connection), Some(exchange)) = (self.connection.take(), &self.exchange) {
            exchange.pool().keep(connection);
        }
        self.finish(Action::Passed);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(exchange) = &this.exchange else {
            return Poll::Ready(None);
        };
        let timeout = exchange.pool().answer_timeout();
        let Poll::Ready(next) = this.poll_next(cx) else {
            if this.downstream.upstream_late.get() {
                this.finish(Action::UpstreamError);
                return Poll::Ready(Some(Err(BodyError::Stalled)));
            }
            if !this.downstream.is_awaiting_upstream() {
                this.downstream.await_upstream(timeout);
            }
            return Poll::Pending;
        };
        this.downstream.got_upstream();
        match next {
            None => {
                this.complete();
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                this.finish(Action::UpstreamError);
                Poll::Ready(Some(Err(error.into())))
            }
            Some(Ok(frame)) => {
                let frame = filtered(frame, Some(&this.trailers));
                if let (Some(data), Some(exchange)) = (frame.data_ref(), &mut this.exchange) {
                    exchange.response_bytes += data.len() as u64;
                }
                // hyper does not ask again after the last byte of a sized body.
                if this.incoming.is_end_stream() {
                    this.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        // Dropped before its end: the client went away, or its connection was cut.
        self.finish(Action::ClientAborted);
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(full) => match ready!(Pin::new(full).poll_frame(cx)) {
                Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
                Some(Err(never)) => match never {},
                None => Poll::Ready(None),
            },
            Self::Upstream(answer) => Pin::new(&mut **answer).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(full) => full.is_end_stream(),
            Self::Upstream(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(full) => full.size_hint(),
            Self::Upstream(answer) => answer.size_hint(),
        }
    }
}
