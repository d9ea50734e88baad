//! The body of a response on its way to the client: the application's is counted and timed, never
//! held whole.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use weir_shared::verdict::Action;

use crate::downstream::Downstream;
use crate::exchange::Exchange;
use crate::trailers::TrailerFilter;
use crate::upstream::pool::UpstreamConnection;
use crate::upstream::request_body::BodyError;

/// The body of an answer to a client.
pub enum ResponseBody {
    /// Of our own.
    Own(Full<Bytes>),
    /// The application's.
    Upstream(Box<UpstreamBody>),
}

impl ResponseBody {
    /// No body.
    pub fn empty() -> Self {
        Self::Own(Full::new(Bytes::new()))
    }
}

/// The application's body on its way to the client. It drives the upstream connection, counts, and
/// finishes the request when it ends or is dropped.
pub struct UpstreamBody {
    incoming: Incoming,
    /// None once it went back to the pool.
    connection: Option<Box<UpstreamConnection>>,
    downstream: Rc<Downstream>,
    /// None once finished.
    exchange: Option<Box<Exchange>>,
    trailers: TrailerFilter,
}

impl UpstreamBody {
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
        downstream.self_wake.without(cx, |cx| {
            // What came with the head is here already; asking for more is what lets the connection
            // read it.
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
            exchange.worker.pool.keep(connection);
        }
        self.finish(Action::Passed);
    }
}

impl Body for UpstreamBody {
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
        let timeout = exchange.worker.pool.answer_timeout();
        let Poll::Ready(next) = this.poll_next(cx) else {
            if this.downstream.is_upstream_late() {
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
            Some(Ok(mut frame)) => {
                this.trailers.apply_to_frame(&mut frame);
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

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // Dropped before its end: the client went away, or its connection was cut.
        self.finish(Action::ClientAborted);
    }
}

impl Body for ResponseBody {
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
