//! One request, top to bottom: head, client, verdict, response.
//!
//! Every exit ends in [`Exchange`], which alone counts, charges bytes, keeps the client's history
//! and writes the log record. What a bug would do is caught one level up, where a connection is
//! served.

pub mod answered;
pub mod application;
pub mod body;
pub mod claims;
pub mod endpoints;
pub mod exchange;
pub mod identity;
pub mod ladder;
pub mod outcome;
pub mod problem;
pub mod record;
pub mod refuse;

use std::rc::Rc;

use http::{HeaderValue, Method};
use weir_shared::clock::Now;
use weir_shared::health::Health;
use weir_shared::path;

use crate::conn::Downstream;
use crate::message::{Fields, Form, Head, fields};
use crate::relay::delivery::Reply;
use crate::relay::forward;
use crate::request::body::ClientBody;
use crate::request::exchange::Exchange;
use crate::request::identity::{
    Identity, Sender, X_FORWARDED_FOR, X_REQUEST_ID, identify, request_id,
};
use crate::request::ladder::{Asked, Decision, Refusal, Verdict, is_health_check};
use crate::request::record::Refused;
use crate::request::refuse::{Dropped, Said, method_not_allowed, refuse, refuse_client};
use crate::worker::Worker;

/// What the head of a request leads to.
pub enum Judged {
    /// It is answered, or is let in: the rest of the way is [`answer`].
    Goes(Box<Exchange>),
    /// It is refused for whom it comes from; the response, and the id of the request.
    Refused(Said, HeaderValue),
    /// The health check.
    Health(problem::Own),
    /// The connection closes unanswered.
    Dropped,
}

/// Identifies the client of a request and asks the ladder, while its head still stands where it was
/// read. Answers what needs no more than that: the health check, which is neither charged nor
/// logged, and the most frequent refusal. What goes on is given a head of its own.
pub fn judge(worker: &Rc<Worker>, downstream: &Rc<Downstream>, head: Head<impl Form>) -> Judged {
    downstream.begin_request();
    let now = worker.clock.now();
    if is_health_check(&head.method, head.path()) {
        return Judged::Health(health(worker, downstream, &head));
    }
    let settings = &worker.in_force.settings.identity;
    let identity = identify(downstream.sender(), settings, &head, head.known);
    if head.known.forwarded_for {
        warn_of_forgotten_proxy(worker, downstream, &head, now);
    }
    let decision = worker.decide(&Asked::of(&head, &identity, true), now);
    let websocket = fields::asks_for_websocket(&head);
    match refusal_of_client(worker, &decision) {
        // A body may cost the connection: who has one is refused with it.
        Some(refusal) if head.length.is_empty() => {
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
            match refuse_client(&refused, &refusal) {
                Ok(said) => Judged::Refused(said, refused.request_id),
                Err(Dropped) => Judged::Dropped,
            }
        }
        _ => match head.into_own() {
            Some(head) => Judged::Goes(Exchange::new(
                worker, downstream, head, identity, decision, now, websocket,
            )),
            // A head within its bounds is never too large for its text.
            None => Judged::Dropped,
        },
    }
}

/// Answers a request that was judged: what follows from the ladder's decision. Rare arms that hold
/// much across their awaits are boxed.
///
/// # Errors
/// [`Dropped`] where the connection closes unanswered.
pub async fn answer(mut exchange: Box<Exchange>, body: ClientBody) -> Result<Reply, Dropped> {
    let response = loop {
        match next_step(&mut exchange) {
            Step::AwaitLookup => Box::pin(exchange.await_lookup()).await,
            Step::Refuse(refusal) => break refuse(exchange, body, refusal).await?,
            Step::AnswerOwn => break Box::pin(endpoints::answer(exchange, body)).await,
            Step::MethodNotAllowed => break method_not_allowed(exchange, body).await,
            Step::Redirect(port) => break endpoints::redirect(exchange, body, port).await,
            Step::Forward => return Ok(forward(exchange, body).await),
        }
    };
    Ok(Reply::own(response))
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

/// The health check: an untrusted peer is answered, but is not to hold connections by it (CONN-3).
fn health(worker: &Worker, downstream: &Downstream, head: &impl Fields) -> problem::Own {
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
    let method = &exchange.head.method;
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
