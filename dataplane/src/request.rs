//! One request, top to bottom: head, client, verdict, response.
//!
//! Every exit ends in [`Exchange`], which alone counts, charges bytes, keeps the client's history
//! and writes the log record. What a bug would do is caught one level up, in `connection.rs`.

use std::rc::Rc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Body as _;
use weir_shared::clock::Now;
use weir_shared::health::Health;
use weir_shared::path;
use weir_shared::totals::ConnectionError;

use crate::client_body::ClientBody;
use crate::downstream::{Downstream, Ending};
use crate::exchange::Exchange;
use crate::exchange::refused::Refused;
use crate::forward::forward;
use crate::forward::response_body::ResponseBody;
use crate::forward::tunnel::TunnelSlot;
use crate::head::{Fields, Head as _};
use crate::headers::BadHead;
use crate::identity::{Identity, Sender, X_FORWARDED_FOR, X_REQUEST_ID, identify, request_id};
use crate::ladder::{Asked, Decision, Refusal, Verdict, is_health_check};
use crate::plain::PlainHead;
use crate::refuse::{Dropped, method_not_allowed, refuse, refuse_client};
use crate::request_head::RequestHead;
use crate::seen::Seen;
use crate::worker::Worker;
use crate::{headers, own, problem, to_https};

/// Answers one request.
///
/// Everything up to the ladder's decision happens at once, before the future is made: it then holds
/// what the rest needs and no more, and hyper moves a small future into place for each request.
/// Rare arms that hold much across their awaits are boxed.
pub fn serve<'a>(
    worker: &Rc<Worker>,
    downstream: &'a Rc<Downstream>,
    tunnel: &'a TunnelSlot,
    request: Request<ClientBody>,
) -> impl Future<Output = Result<Response<ResponseBody>, Dropped>> + use<'a> {
    let received = receive(worker, downstream, request);
    answer(downstream, tunnel, received)
}

/// Answers one plain request.
pub fn serve_plain<'a>(
    worker: &Rc<Worker>,
    downstream: &'a Rc<Downstream>,
    tunnel: &'a TunnelSlot,
    head: PlainHead,
) -> impl Future<Output = Result<Response<ResponseBody>, Dropped>> + use<'a> {
    let received = receive_plain(worker, downstream, head);
    answer(downstream, tunnel, received)
}

/// What follows from the ladder's decision.
async fn answer(
    downstream: &Rc<Downstream>,
    tunnel: &TunnelSlot,
    received: Received,
) -> Result<Response<ResponseBody>, Dropped> {
    let (mut exchange, body) = match received {
        Received::Exchange(exchange, body) => (exchange, body),
        Received::Answered(answer) => {
            let response = answer?.map(ResponseBody::Own);
            return Ok(last_if_told(downstream, response));
        }
    };
    let own = loop {
        match next_step(&mut exchange) {
            Step::AwaitLookup => Box::pin(exchange.await_lookup()).await,
            Step::Refuse(refusal) => break refuse(exchange, body, refusal).await?,
            Step::AnswerOwn => break Box::pin(own::answer(exchange, body)).await,
            Step::MethodNotAllowed => break method_not_allowed(exchange, body).await,
            Step::Redirect(port) => break to_https::redirect(exchange, body, port).await,
            Step::Forward => {
                let response = forward(exchange, body, tunnel).await;
                return Ok(last_if_told(downstream, response));
            }
        }
    };
    Ok(last_if_told(downstream, own.map(ResponseBody::Own)))
}

/// The response to the last request of a connection says that it is.
fn last_if_told(
    downstream: &Downstream,
    mut response: Response<ResponseBody>,
) -> Response<ResponseBody> {
    let is_last = downstream.ending() == Ending::Drain || downstream.ends_with_next();
    if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        problem::close(&mut response);
    }
    response
}

/// A request whose head was read.
enum Received {
    /// The ladder has decided.
    Exchange(Box<Exchange>, Option<ClientBody>),
    /// It is answered already, or closed unanswered.
    Answered(Result<Response<Full<Bytes>>, Dropped>),
}

/// Checks the head, identifies the client and asks the ladder; or answers what is no exchange: a
/// bad request and the health check, which are neither charged nor logged.
fn receive(
    worker: &Rc<Worker>,
    downstream: &Rc<Downstream>,
    request: Request<ClientBody>,
) -> Received {
    downstream.begin_request();
    let now = worker.clock.now();
    let (mut head, body) = request.into_parts();
    let seen = Seen::of(&head.headers);

    let checked = check(&mut head, seen);
    if checked.is_err() {
        // Counted with the connections (METRIC).
        worker
            .counters
            .connection_error(ConnectionError::BadRequest);
        downstream.upload.set_unread(!body.is_end_stream());
        let mut response = problem::bad_request();
        problem::close(&mut response);
        return Received::Answered(Ok(response));
    }
    decide(
        worker,
        downstream,
        RequestHead::Parts(head),
        Some(body),
        seen,
        now,
    )
}

/// The same of a plain request, whose head is known to be a good one.
fn receive_plain(worker: &Rc<Worker>, downstream: &Rc<Downstream>, head: PlainHead) -> Received {
    downstream.begin_request();
    let now = worker.clock.now();
    let seen = Seen::of(&head);
    decide(
        worker,
        downstream,
        RequestHead::Plain(head),
        None,
        seen,
        now,
    )
}

fn decide(
    worker: &Rc<Worker>,
    downstream: &Rc<Downstream>,
    head: RequestHead,
    body: Option<ClientBody>,
    seen: Seen,
    now: Now,
) -> Received {
    if is_health_check(head.verb(), head.path()) {
        return Received::Answered(Ok(health(worker, downstream, &head)));
    }
    let identity = identity(worker, downstream, &head, seen);
    if seen.forwarded_for {
        warn_of_forgotten_proxy(worker, downstream, &head, now);
    }
    let decision = worker.decide(&Asked::of(&head, &identity, true), now);
    let asks_for_websocket = |map| headers::asks_for_websocket(head.verb(), head.version(), map);
    let websocket = seen.upgrade && head.map().is_some_and(asks_for_websocket);
    let of_client = refusal_of_client(worker, &decision);
    if of_client.is_none() {
        downstream.note_let_in();
    }
    if let Some(refusal) = of_client
        && body.as_ref().is_none_or(ClientBody::is_end_stream)
    {
        // The most frequent refusal: it is answered before anything is built for an answer.
        let refused = Refused {
            worker,
            downstream,
            request_id: worker
                .request_ids
                .given_or_next(identity.request_id.as_ref()),
            head: &head,
            identity: &identity,
            decision,
            started: now,
            websocket,
        };
        let said = refuse_client(&refused, &refusal);
        return Received::Answered(said.map(|said| said.into_response(&refused.request_id)));
    }
    let exchange = Exchange::new(worker, downstream, head, identity, decision, now, websocket);
    Received::Exchange(exchange, body)
}

/// The refusal of a client for who it is, in enforce mode.
fn refusal_of_client(worker: &Worker, decision: &Decision) -> Option<Refusal> {
    match decision.verdict {
        Verdict::Refuse(refusal) if refusal.is_of_the_client() => {
            (!worker.accounting.observe).then_some(refusal)
        }
        _ => None,
    }
}

/// Checks what would be answered 400.
fn check(head: &mut Parts, seen: Seen) -> Result<(), BadHead> {
    if seen.transfer_encoding {
        headers::check_framing(&head.headers)?;
    }
    headers::check_target(&head.method, &head.uri)?;
    headers::check_host(&head.uri, head.version, &mut head.headers)
}

fn identity(worker: &Worker, downstream: &Downstream, head: &impl Fields, seen: Seen) -> Identity {
    let settings = &worker.in_force.settings.identity;
    identify(downstream.sender(), settings, head, seen)
}

/// The health check: an untrusted peer is answered, but is not to hold connections by it (CONN-3).
fn health(worker: &Worker, downstream: &Downstream, head: &impl Fields) -> Response<Full<Bytes>> {
    let mut response = problem::health(Health::now(worker.is_draining()));
    let given = downstream.trusted().then(|| request_id(head)).flatten();
    let id = worker.request_ids.given_or_next(given.as_ref());
    response.headers_mut().insert(X_REQUEST_ID, id);
    downstream.shorten_idle();
    downstream.end_request();
    let who = Identity::of_peer(downstream.sender()).who();
    if worker.refuses(who) && downstream.slot.gives_way_to_ban() {
        problem::close(&mut response);
    }
    response
}

/// What a verdict leads to.
enum Step {
    /// The client's lookup decides (LOOKUP-3).
    AwaitLookup,
    /// In enforce mode.
    Refuse(Refusal),
    /// Under `/_waf/`.
    AnswerOwn,
    /// CONNECT and TRACE.
    MethodNotAllowed,
    /// It is to come again over https, at this port.
    Redirect(u16),
    /// The application answers.
    Forward,
}

/// The step that follows from the ladder's decision. A refusal is reported; observe mode goes on
/// all the same (CHECK-3).
fn next_step(exchange: &mut Exchange) -> Step {
    let own = match exchange.decision.verdict {
        Verdict::AwaitLookup => return Step::AwaitLookup,
        Verdict::Refuse(refusal) => {
            exchange.report(&refusal);
            if !exchange.worker.accounting.observe {
                return Step::Refuse(refusal);
            }
            exchange.shadow_action = Some(refusal.action());
            path::is_own(exchange.head.path())
        }
        Verdict::Own => true,
        Verdict::Forward => false,
    };
    let method = exchange.head.verb();
    if own {
        Step::AnswerOwn
    } else if *method == Method::CONNECT || *method == Method::TRACE {
        Step::MethodNotAllowed
    } else if let Some(port) = exchange.worker.redirect_to
        && exchange.identity.scheme == "http"
    {
        Step::Redirect(port)
    } else {
        Step::Forward
    }
}

/// CLIENT-7, where there is an `X-Forwarded-For`.
fn warn_of_forgotten_proxy(worker: &Worker, downstream: &Downstream, head: &impl Fields, now: Now) {
    let Sender { peer, is_proxy, .. } = downstream.sender();
    if !is_proxy && let Some(line) = head.values_of(&X_FORWARDED_FOR).next_back() {
        worker.forgotten_proxy.note(peer, line, now.wall_ms);
    }
}
