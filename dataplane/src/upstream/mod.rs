//! One request to the application and the head of its response: sent, sent again where that is
//! safe, failed.
//!
//! The upstream connection is driven by the task that forwards over it, not by one of its own: no
//! request ever waits for another task to be scheduled, and while a connection is idle nothing
//! polls it.

pub mod pool;
pub mod request_body;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::TrySendError;

use self::pool::{ConnectError, Pool, UpstreamConnection};
use self::request_body::RequestBody;
use crate::downstream::Downstream;
use crate::downstream::upload::BodyFault;

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
}

/// The head of the application's response, and the connection that its body comes over.
pub struct Received {
    /// The head, with a body still to come.
    pub response: Response<Incoming>,
    /// The connection.
    pub connection: Box<UpstreamConnection>,
    /// Microseconds it took to connect; none on a pooled connection.
    pub connect_us: Option<u64>,
}

/// Outcome of one attempt.
enum Attempt {
    Responded(Response<Incoming>),
    /// Nothing of the request was written; here it is again.
    Unsent(Request<RequestBody>),
    /// The connection ended with no answer.
    Lost,
    Failed(Failure),
}

/// Sends a request to the application and waits for the head of its answer.
///
/// `build` makes the request around its body. A request is sent a second time only if nothing of it
/// was written, or if it is `repeatable` and the connection was a pooled one that ended without an
/// answer (RFC 9110 §9.2.2). The request is made when there is a connection for it, so that it
/// never waits in this future.
pub async fn send(
    pool: &Pool,
    downstream: &Downstream,
    body: RequestBody,
    build: impl Fn(RequestBody) -> Request<RequestBody>,
    repeatable: bool,
) -> Result<Received, Failure> {
    let mut body = Some(body);
    let mut fresh = false;
    loop {
        let pooled = if fresh { None } else { pool.take() };
        let (connection, connect_us) = match pooled {
            Some(connection) => (connection, None),
            // Rare, and large for what it holds while it waits.
            None => Box::pin(pool.connect())
                .await
                .map(|(connection, us)| (connection, Some(us)))
                .map_err(unreachable)?,
        };
        downstream.await_upstream(pool.answer_timeout());
        let request = build(body.take().unwrap_or(RequestBody::Empty));
        let (attempt, connection) = attempt(connection, downstream, request).await;
        downstream.got_upstream();
        let was_pooled = connect_us.is_none();
        match (attempt, connection) {
            (Attempt::Responded(response), Some(connection)) => {
                return Ok(Received {
                    response,
                    connection,
                    connect_us,
                });
            }
            (Attempt::Failed(failure), _) => return Err(failure),
            // A pooled connection that closed under us: any other will do, a new one at the latest.
            (Attempt::Unsent(request), _) if was_pooled => body = Some(request.into_body()),
            (Attempt::Lost, _) if was_pooled && repeatable => fresh = true,
            (Attempt::Responded(_) | Attempt::Unsent(_) | Attempt::Lost, _) => {
                return Err(Failure::BadGateway);
            }
        }
    }
}

fn unreachable(error: ConnectError) -> Failure {
    tracing::warn!(%error, "the application cannot be reached");
    Failure::BadGateway
}

/// Whether a request may be sent again after it was written: it has no body and is idempotent (RFC
/// 9110 §9.2.2).
pub fn is_repeatable(method: &Method, body: &Incoming) -> bool {
    body.is_end_stream() && method.is_idempotent()
}

/// Puts the request into the connection and drives it to the head of the answer. The connection
/// comes back if it stands.
fn attempt(
    mut connection: Box<UpstreamConnection>,
    downstream: &Downstream,
    request: Request<RequestBody>,
) -> impl Future<Output = (Attempt, Option<Box<UpstreamConnection>>)> {
    let answer = connection.sender.try_send_request(request);
    async move {
        let mut answer = pin!(answer);
        let attempt = poll_fn(|cx| {
            let outcome = match downstream.self_wake.without(cx, |cx| {
                let over = connection.driver.drive(cx);
                match answer.as_mut().poll(cx) {
                    Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                    Poll::Pending if over => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            }) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending if downstream.is_upstream_late() => {
                    return Poll::Ready(Some(Attempt::Failed(Failure::TooSlow)));
                }
                Poll::Pending => return Poll::Pending,
            };
            Poll::Ready(outcome.map(|outcome| match outcome {
                Ok(response) => accepted(response),
                Err(failed) => lost(downstream, failed),
            }))
        })
        .await;
        match attempt {
            Some(attempt) => (attempt, Some(connection)),
            None => {
                // It ended with no answer. A request that it did not take is given back only when
                // it is gone.
                drop(connection);
                let attempt = match answer.await {
                    Ok(_) => Attempt::Lost,
                    Err(failed) => lost(downstream, failed),
                };
                (attempt, None)
            }
        }
    }
}

/// Why there is no answer.
fn lost(downstream: &Downstream, mut failed: TrySendError<Request<RequestBody>>) -> Attempt {
    match (downstream.upload.fault(), failed.take_message()) {
        (BodyFault::TooLarge, _) => Attempt::Failed(Failure::BodyTooLarge),
        (BodyFault::Client, _) => Attempt::Failed(Failure::ClientAborted),
        (BodyFault::Framing, _) => Attempt::Failed(Failure::Framing),
        (BodyFault::None, Some(request)) => Attempt::Unsent(request),
        (BodyFault::None, None) if failed.error().is_parse() => {
            tracing::warn!(error = %failed.error(), "the application's answer is not HTTP");
            Attempt::Failed(Failure::BadGateway)
        }
        (BodyFault::None, None) => Attempt::Lost,
    }
}

/// Heads that hyper reads and we do not pass on.
fn accepted(response: Response<Incoming>) -> Attempt {
    // A 101 is judged by the caller, who knows whether it was asked for; hyper itself swallows the
    // other 1xx.
    if response.status().is_informational() && response.status() != StatusCode::SWITCHING_PROTOCOLS
    {
        return Attempt::Failed(Failure::BadGateway);
    }
    Attempt::Responded(response)
}
