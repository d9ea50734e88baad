//! The client's body on its way to the application: counted, bounded, timed, never held whole.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body, Frame, SizeHint};

use crate::client_body::{BrokenOff, ClientBody};
use crate::downstream::Downstream;
use crate::downstream::past_hyper::Direct;
use crate::http1::request::Encoder;
use crate::pipe::{self, Pipe};
use crate::trailers::TrailerFilter;

/// A body of this length is read past hyper: a new connection of hyper costs less than it saves.
const WORTH_IT: u64 = 32 * 1024;
/// Where there is no pipe, so much is read at once.
const READ: usize = 16 * 1024;

/// A body that cannot go on; the connection it was written to is closed, so that nobody takes it
/// for whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client's body passed `WAF_MAX_BODY_SIZE`.
    #[error("the body is larger than WAF_MAX_BODY_SIZE")]
    TooLarge,
    /// Its chunks are mostly framing.
    #[error("the chunks of the body are mostly framing")]
    Framing,
    /// The client broke off.
    #[error("the body broke off: {0}")]
    Client(#[from] BrokenOff),
    /// The client's connection ended.
    #[error("the body broke off")]
    Gone,
}

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
    /// The connection it comes over: time-out, count, faults.
    downstream: Rc<Downstream>,
    /// `WAF_MAX_BODY_SIZE`, where passing it ends the request.
    limit: Option<u64>,
    /// Which trailer fields go on; none where there can be none.
    trailers: Option<TrailerFilter>,
    /// A body of known length that may be read past hyper.
    direct: Option<Direct>,
}

impl RequestBody {
    /// The body of a request. `trailers` is asked where it can have some. `is_plain` says
    /// that the connection goes on behind it as it was, and nobody waits to be asked for it.
    pub fn new(
        incoming: Option<ClientBody>,
        downstream: &Rc<Downstream>,
        limit: Option<u64>,
        trailers: impl FnOnce() -> TrailerFilter,
        is_plain: impl FnOnce() -> bool,
    ) -> Self {
        let Some(incoming) = incoming.filter(|incoming| !incoming.is_end_stream()) else {
            return Self::Empty;
        };
        downstream.upload.set_unread(true);
        let length = incoming.size_hint().exact();
        downstream.upload.announce(length.unwrap_or(0));
        // A stream of HTTP/2 is in frames, and may have trailers, whether its length is known or
        // not.
        let is_framed = length.is_none() || downstream.is_stream();
        let direct = length
            .filter(|length| *length >= WORTH_IT && !downstream.is_stream() && is_plain())
            .map(|length| Direct::new(downstream, length));
        Self::Streaming(Box::new(Streaming {
            incoming,
            downstream: Rc::clone(downstream),
            limit,
            trailers: is_framed.then(trailers),
            direct,
        }))
    }

    /// The application takes nothing: the client is not waited for meanwhile (CONN-7).
    pub fn pause(&self) {
        if let Self::Streaming(body) = self {
            body.downstream.pause_body();
        }
    }

    /// How the body is framed, and announced among these fields: as the client did (FORWARD-4).
    pub fn framing(&self, headers: Option<&HeaderMap>) -> Encoder {
        let has_length = |headers: &HeaderMap| headers.contains_key(CONTENT_LENGTH);
        match self {
            Self::Empty if headers.is_some_and(has_length) => Encoder::Exact(0),
            Self::Empty => Encoder::Empty,
            Self::Streaming(body) => match body.incoming.size_hint().exact() {
                Some(length) => Encoder::Exact(length),
                None => Encoder::Chunked,
            },
        }
    }
}

/// What the client sent of a body that is read past hyper.
pub enum Moved {
    /// So much was moved into the pipe.
    Bytes(usize),
    /// This was read, as there is no pipe.
    Read(Bytes),
    /// Nothing: the system does not do it.
    Unable,
}

impl RequestBody {
    /// Whether what comes next is read past hyper.
    pub fn is_direct(&self) -> bool {
        let Self::Streaming(body) = self else {
            return false;
        };
        body.direct.as_ref().is_some_and(Direct::is_ready)
    }

    /// Whether what is read past hyper can be moved into a pipe: it is not encrypted.
    pub fn can_move(&self) -> bool {
        matches!(self, Self::Streaming(body) if body.downstream.can_move())
    }

    /// The next piece of a body that is read past hyper, moved into this pipe, if there is one.
    pub fn poll_direct(
        &mut self,
        pipe: Option<&mut Pipe>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Moved, BodyError>> {
        let Self::Streaming(body) = self else {
            return Poll::Ready(Err(BodyError::Gone));
        };
        let Streaming {
            downstream,
            limit,
            direct: Some(direct),
            ..
        } = &mut **body
        else {
            return Poll::Ready(Err(BodyError::Gone));
        };
        let polled = match pipe {
            Some(pipe) => direct.poll_move(pipe, cx).map_ok(Moved::Bytes),
            None => {
                let mut buffer = BytesMut::zeroed(READ);
                let read = direct.poll_read(&mut buffer, cx);
                read.map_ok(|read| Moved::Read(buffer.split_to(read).freeze()))
            }
        };
        let Poll::Ready(moved) = polled else {
            downstream.await_body();
            return Poll::Pending;
        };
        if moved.as_ref().is_err_and(pipe::is_unable) {
            return Poll::Ready(Ok(Moved::Unable));
        }
        let length = match &moved {
            Ok(Moved::Bytes(length)) => *length,
            Ok(Moved::Read(read)) => read.len(),
            Ok(Moved::Unable) | Err(_) => 0,
        };
        downstream.got_body(length);
        downstream.renew_upstream();
        let (Ok(moved), 1..) = (moved, length) else {
            downstream.upload.broke_off();
            return Poll::Ready(Err(BodyError::Gone));
        };
        if !downstream.upload.take(length, *limit) {
            return Poll::Ready(Err(BodyError::TooLarge));
        }
        direct.took(length);
        if direct.is_end() {
            downstream.upload.set_unread(false);
            self.end_direct();
        }
        Poll::Ready(Ok(moved))
    }

    /// The whole body came.
    fn end_direct(&mut self) {
        if let Self::Streaming(body) = std::mem::replace(self, Self::Empty)
            && let Some(direct) = &body.direct
        {
            direct.park(body.incoming);
        }
    }
}

/// What a chunk of this size is framed by. A DATA frame of HTTP/2 is taken for one.
fn as_chunk(size: usize) -> usize {
    size.checked_ilog(16)
        .map_or(1, |digits| digits as usize + 1)
        + 4
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self::Streaming(body) = self.get_mut() else {
            return Poll::Ready(None);
        };
        let Streaming {
            incoming,
            downstream,
            limit,
            trailers,
            direct,
        } = &mut **body;
        let Poll::Ready(next) = Pin::new(&mut *incoming).poll_frame(cx) else {
            downstream.await_body();
            return Poll::Pending;
        };
        let came = next
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        downstream.got_body(came.map_or(0, Bytes::len));
        // The application has its whole time again once the client has moved.
        downstream.renew_upstream();
        let mut frame = match next {
            None => {
                downstream.upload.set_unread(false);
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                downstream.upload.broke_off();
                return Poll::Ready(Some(Err(error.into())));
            }
            Some(Ok(frame)) => frame,
        };
        if let Some(filter) = trailers {
            filter.apply_to_frame(&mut frame);
        }
        if let Some(data) = frame.data_ref()
            && !downstream.upload.take(data.len(), *limit)
        {
            return Poll::Ready(Some(Err(BodyError::TooLarge)));
        }
        if let Some(data) = frame.data_ref().filter(|_| downstream.is_stream()) {
            downstream.upload.add_framing(as_chunk(data.len()));
        }
        if trailers.is_some() && !downstream.upload.framing_fits() {
            return Poll::Ready(Some(Err(BodyError::Framing)));
        }
        if let Some(data) = frame.data_ref() {
            *direct = direct.take().and_then(|direct| direct.after(data.len()));
        }
        // hyper does not ask again after the last byte of a sized body.
        if incoming.is_end_stream() {
            downstream.upload.set_unread(false);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streaming(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streaming(body) => body.incoming.size_hint(),
        }
    }
}
