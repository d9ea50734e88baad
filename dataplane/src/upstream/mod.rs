//! One request to the application and the head of its response: sent, sent again where that is
//! safe, failed.
//!
//! The upstream connection is driven by the task that forwards over it, not by one of its own: no
//! request ever waits for another task to be scheduled, and while a connection is idle nothing
//! polls it.

pub mod bound;
pub mod pool;
pub mod receiving;
pub mod request_body;
pub mod sending;

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::Method;
use tokio::net::TcpStream;

use crate::conn::Downstream;
use crate::conn::inbound::BodyFault;
use crate::http1::request::Encoder;
use crate::http1::response::ResponseHead;
use crate::upstream::bound::UpstreamSlot;
use crate::upstream::pool::{ConnectError, Pool};
use crate::upstream::receiving::{BodyReceiver, Broken, HeadReceiver};
use crate::upstream::request_body::RequestBody;
use crate::upstream::sending::{NotSent, Sending};

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

/// The application's response: its head, and the body still to come.
pub struct Received {
    /// The head.
    pub head: ResponseHead,
    /// The body, and the connection that it comes over.
    pub body: BodyReceiver,
    /// Microseconds it took to connect; none on a pooled connection.
    pub connect_us: Option<u64>,
    /// When the request had been written, on the monotonic clock; none if the response came before.
    pub written_ns: Option<u64>,
}

/// A request as it is sent.
pub struct Outgoing<'a, H, I> {
    /// Its method.
    pub method: &'a Method,
    /// Writes the head.
    pub head: H,
    /// Takes the interim responses (FORWARD-6).
    pub interim: I,
    /// How the body is framed.
    pub encoder: Encoder,
    /// The body.
    pub body: RequestBody,
    /// Whether the head of the response is wanted as text, where it can be that.
    pub as_text: bool,
}

/// Sends a request to the application and waits for the head of its response.
///
/// A connection is taken once the beginning of the body is there, or all of it (CONN-13).
///
/// It is sent a second time only if nothing of it was written, or if it is repeatable and the
/// connection was a pooled one that ended without a response: it has no body and its method is
/// idempotent (RFC 9110 §9.2.2).
///
/// # Errors
/// [`Failure`] says what the client is told.
pub async fn send<H: Fn(&mut Vec<u8>), I: Fn(ResponseHead)>(
    pool: &Pool,
    downstream: &Downstream,
    outgoing: Outgoing<'_, H, I>,
) -> Result<Received, Failure> {
    let Outgoing {
        method,
        head,
        interim,
        encoder,
        mut body,
        as_text,
    } = outgoing;
    let repeatable = body.is_end() && method.is_idempotent();
    if !body.is_end() {
        Box::pin(gather(&mut body, downstream)).await?;
    }
    let with_head = |body| {
        let mut text = pool.buffers.take_text();
        head(&mut text);
        Sending::new(text, encoder, body)
    };
    let slot = match UpstreamSlot::take(&pool.bound) {
        Some(slot) => slot,
        // Rare, and large for what it holds while it waits.
        None => Box::pin(wait_for_slot(pool)).await?,
    };
    let mut sending = with_head(body);
    let mut fresh = false;
    loop {
        let pooled = if fresh { None } else { pool.take(repeatable) };
        let (stream, connect_us) = match pooled {
            Some(stream) => (stream, None),
            None => Box::pin(connect(pool)).await?,
        };
        downstream.timed(|deadlines, now_ns| deadlines.await_upstream(now_ns, pool.answer_ns));
        let mut attempt = Attempt {
            stream,
            sending,
            receiver: HeadReceiver::new(as_text),
            closed: false,
            written_ns: None,
        };
        let outcome = poll_fn(|cx| attempt.poll(pool, downstream, method, &interim, cx)).await;
        downstream.deadlines().got_upstream();
        let was_pooled = connect_us.is_none();
        match outcome {
            Ok((head, early)) => return attempt.received(slot, head, early, connect_us),
            Err(NoResponse::Failed(failure)) => return Err(failure),
            // A pooled connection that closed under us: any other will do, a new one at the latest.
            Err(NoResponse::Unsent) if was_pooled => sending = attempt.sending,
            Err(NoResponse::Lost) if was_pooled && repeatable => {
                fresh = true;
                sending = with_head(RequestBody::Empty);
            }
            Err(NoResponse::Unsent | NoResponse::Lost) => return Err(Failure::BadGateway),
        }
    }
}

/// Waits for the beginning of a body (CONN-13).
async fn gather(body: &mut RequestBody, downstream: &Downstream) -> Result<(), Failure> {
    let gathered = body.gather().await;
    gathered.map_err(|_| body_failure(downstream))
}

/// Waits for a slot.
async fn wait_for_slot(pool: &Pool) -> Result<UpstreamSlot, Failure> {
    let slot = UpstreamSlot::wait(&pool.bound, pool.queue).await;
    slot.map_err(|_| Failure::Overloaded)
}

/// Makes a connection.
async fn connect(pool: &Pool) -> Result<(TcpStream, Option<u64>), Failure> {
    let (stream, connect_us) = pool.connect().await.map_err(unreachable)?;
    Ok((stream, Some(connect_us)))
}

fn unreachable(error: ConnectError) -> Failure {
    tracing::warn!(%error, "the application cannot be reached");
    Failure::BadGateway
}

/// Why an attempt brought no response.
enum NoResponse {
    /// The connection ended, and nothing of the request was written.
    Unsent,
    /// The connection ended before anything of a response came.
    Lost,
    Failed(Failure),
}

/// One attempt: a request on a connection.
struct Attempt {
    stream: TcpStream,
    sending: Sending,
    receiver: HeadReceiver,
    /// The application does not take more of the request.
    closed: bool,
    written_ns: Option<u64>,
}

impl Attempt {
    fn poll(
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
                // It may have answered all the same.
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
                NoResponse::Failed(Failure::TooSlow)
            }
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(Broken::Nothing)) if self.sending.has_begun() => NoResponse::Lost,
            Poll::Ready(Err(Broken::Nothing)) => NoResponse::Unsent,
            Poll::Ready(Err(error)) => NoResponse::Failed(not_http(error)),
        };
        Poll::Ready(Err(failure))
    }

    fn received(
        self,
        slot: UpstreamSlot,
        head: ResponseHead,
        early: BytesMut,
        connect_us: Option<u64>,
    ) -> Result<Received, Failure> {
        let rest = self.written_ns.is_none().then(|| Box::new(self.sending));
        let body = BodyReceiver::new((self.stream, slot), &head, early, rest).map_err(not_http)?;
        Ok(Received {
            head,
            body,
            connect_us,
            written_ns: self.written_ns,
        })
    }
}

fn not_http(error: impl std::error::Error) -> Failure {
    tracing::warn!(%error, "the application's answer is not HTTP");
    Failure::BadGateway
}

/// Why the client's body did not come as a whole.
fn body_failure(downstream: &Downstream) -> Failure {
    match downstream.upload().fault() {
        BodyFault::TooLarge => Failure::BodyTooLarge,
        BodyFault::Framing => Failure::Framing,
        BodyFault::Client | BodyFault::None => Failure::ClientAborted,
    }
}
