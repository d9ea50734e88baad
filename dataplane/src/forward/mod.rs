//! Forwarding one request and its answer, with nothing buffered whole.
//!
//! The upstream connection is driven by the task that forwards over it, not by one of its own: no request ever waits
//! for another task to be scheduled, and while a connection is idle nothing polls it.

pub mod body;
pub mod headers;
pub mod pool;
pub mod upgrade;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use self::body::RequestBody;
use self::pool::{ConnectError, Lane, Pool};
use crate::socket::{BodyFault, Downstream};

/// Why the application gave no answer.
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
}

/// The head of the application's answer, and the connection that its body comes over.
pub struct Answer {
    /// The head, with a body still to come.
    pub response: Response<Incoming>,
    /// The connection.
    pub lane: Box<Lane>,
    /// Microseconds it took to connect; none on a pooled connection.
    pub connect_us: Option<u64>,
}

/// What one attempt came to.
enum Attempt {
    Answered(Response<Incoming>),
    /// Nothing of the request was written; here it is again.
    Unsent(Request<RequestBody>),
    /// The connection ended with no answer.
    Lost,
    Failed(Failure),
}

/// Sends a request to the application and waits for the head of its answer.
///
/// `again` makes the request once more; it is given where the request has no body and is idempotent. A request is sent
/// a second time only if nothing of it was written, or if the connection was a pooled one and ended without an answer
/// (RFC 9110 §9.2.2).
pub async fn exchange(
    pool: &Pool,
    downstream: &Downstream,
    request: Request<RequestBody>,
    again: Option<impl Fn() -> Request<RequestBody>>,
) -> Result<Answer, Failure> {
    let mut request = request;
    let mut fresh = false;
    loop {
        let pooled = if fresh { None } else { pool.take() };
        let (mut lane, connect_us) = match pooled {
            Some(lane) => (lane, None),
            None => pool
                .connect()
                .await
                .map(|(lane, us)| (lane, Some(us)))
                .map_err(|error| {
                    tracing::warn!(%error, "the application cannot be reached");
                    match error {
                        ConnectError::Refused { .. } | ConnectError::TooSlow { .. } => {
                            Failure::BadGateway
                        }
                    }
                })?,
        };
        downstream.await_upstream(pool.answer_timeout());
        let attempt = attempt(&mut lane, downstream, request).await;
        downstream.got_upstream();
        let was_pooled = connect_us.is_none();
        request = match attempt {
            Attempt::Answered(response) => {
                return Ok(Answer {
                    response,
                    lane,
                    connect_us,
                });
            }
            Attempt::Failed(failure) => return Err(failure),
            // A pooled connection that closed under us: any other will do, a new one at the latest.
            Attempt::Unsent(request) if was_pooled => request,
            Attempt::Lost if was_pooled => match &again {
                Some(again) => {
                    fresh = true;
                    again()
                }
                None => return Err(Failure::BadGateway),
            },
            Attempt::Unsent(_) | Attempt::Lost => return Err(Failure::BadGateway),
        };
    }
}

/// Whether a request may be sent again after it was written: it has no body and is idempotent (RFC 9110 §9.2.2).
pub fn is_repeatable(method: &Method, body: &Incoming) -> bool {
    body.is_end_stream()
        && [
            Method::GET,
            Method::HEAD,
            Method::OPTIONS,
            Method::PUT,
            Method::DELETE,
        ]
        .contains(method)
}

async fn attempt(
    lane: &mut Lane,
    downstream: &Downstream,
    request: Request<RequestBody>,
) -> Attempt {
    let mut answer = pin!(lane.sender.try_send_request(request));
    let link = &mut lane.link;
    poll_fn(move |cx| {
        let over = link.drive(cx);
        if let Poll::Ready(outcome) = answer.as_mut().poll(cx) {
            return Poll::Ready(match outcome {
                Ok(response) => accepted(response),
                Err(mut failed) => match (downstream.body_fault.get(), failed.take_message()) {
                    (BodyFault::TooLarge, _) => Attempt::Failed(Failure::BodyTooLarge),
                    (BodyFault::Client, _) => Attempt::Failed(Failure::ClientAborted),
                    (BodyFault::None, Some(request)) => Attempt::Unsent(request),
                    (BodyFault::None, None) if failed.error().is_parse() => {
                        tracing::warn!(error = %failed.error(), "the application's answer is not HTTP");
                        Attempt::Failed(Failure::BadGateway)
                    }
                    (BodyFault::None, None) => Attempt::Lost,
                },
            });
        }
        if downstream.upstream_late.get() {
            return Poll::Ready(Attempt::Failed(Failure::TooSlow));
        }
        if over {
            // hyper resolves the answer before the connection ends; without one there will be none.
            return Poll::Ready(Attempt::Lost);
        }
        Poll::Pending
    })
    .await
}

/// Heads that hyper reads and we do not pass on.
fn accepted(response: Response<Incoming>) -> Attempt {
    // A 101 is judged by the caller, who knows whether it was asked for; hyper itself swallows the other 1xx.
    if response.status().is_informational() && response.status() != StatusCode::SWITCHING_PROTOCOLS
    {
        return Attempt::Failed(Failure::BadGateway);
    }
    Attempt::Answered(response)
}
