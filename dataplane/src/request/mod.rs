//! One request, top to bottom: head, client, verdict, response.
//!
//! Every exit ends in [`Exchange`], which alone counts, charges bytes, keeps the client's history
//! and writes the log record. What a bug would do is caught one level up, where a connection is
//! served.

pub mod application;
pub mod body;
pub mod exchange;
pub mod identity;
pub mod ladder;
pub mod outcome;
pub mod problem;
pub mod record;
pub mod refuse;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use weir_shared::handover::{self, Body, OwnRequest, OwnResponse};
use weir_shared::health::Health;
use weir_shared::path;
use weir_shared::verdict::{Action, History};

use crate::conn::Downstream;
use crate::message::{Fields, Form, Head, Piece, fields};
use crate::relay::delivery::Reply;
use crate::relay::forward;
use crate::request::body::{ClientBody, discard};
use crate::request::exchange::Exchange;
use crate::request::identity::{Identity, X_FORWARDED_FOR, X_REQUEST_ID, identify, request_id};
use crate::request::ladder::{Asked, Decision, Refusal, Verdict, is_health_check};
use crate::request::record::Refused;
use crate::request::refuse::{Dropped, RefusalText, method_not_allowed, refuse, refuse_client};
use crate::worker::Worker;

/// What the head of a request leads to.
pub enum Judged {
    /// It is answered, or is let in: the rest of the way is [`answer`].
    Goes(Box<Exchange>),
    /// It is refused for whom it comes from; the response, and the id of the request.
    Refused(RefusalText, HeaderValue),
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
    let (sender, settings) = (downstream.sender(), &worker.in_force.settings.identity);
    let identity = identify(sender, settings, &head, head.known);
    if head.known.forwarded_for
        && !sender.is_proxy
        && let Some(line) = head.values_of(&X_FORWARDED_FOR).next_back()
    {
        worker.forgotten_proxy.note(sender.peer, line, now.wall_ms);
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
            Step::AnswerOwn => break Box::pin(answer_own(exchange, body)).await?,
            Step::MethodNotAllowed => break method_not_allowed(exchange, body).await,
            Step::Redirect(port) => break redirect(exchange, body, port).await,
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

// Requests that the service answers itself: those under `/_waf/`, which are handed over to the
// control plane, and plain ones that are sent to https (EDGE-2, `WAF_REDIRECT_HTTP`).

/// Answers a request under `/_waf/`.
///
/// # Errors
/// As [`refuse()`], where the body passes `WAF_MAX_BODY_SIZE`.
async fn answer_own(
    mut exchange: Box<Exchange>,
    mut body: ClientBody,
) -> Result<Response<Bytes>, Dropped> {
    let Some(answer) = ask_control_plane(&exchange, &mut body).await else {
        return refuse(exchange, body, Refusal::BodyTooLarge).await;
    };
    let OwnResponse {
        status,
        headers,
        body: content,
        action,
        history,
    } = answer;
    exchange.history = Some(history);
    let left_unread = discard(body).await;
    Ok(exchange.respond(problem::own(status, headers, content), action, left_unread))
}

/// The answer of the control plane; none where the body passes `WAF_MAX_BODY_SIZE`.
async fn ask_control_plane(exchange: &Exchange, body: &mut ClientBody) -> Option<OwnResponse> {
    let request = |content| OwnRequest {
        method: exchange.head.method.clone(),
        path: exchange.head.path().to_owned(),
        query: exchange.head.query().map(str::to_owned),
        authorization: only_authorization(&exchange.head),
        client: Some(exchange.identity.client),
        request_id: exchange.request_id.to_str().unwrap_or_default().to_owned(),
        announced: exchange.head.length.announced(),
        body: content,
    };
    let mut content = None;
    loop {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let respond = Box::new(move |response| {
            // The client may have gone; nobody is left to tell.
            let _ = sender.send(response);
        });
        match (exchange.worker.handover)(request(content.clone()), respond) {
            handover::Step::Done(response) => return Some(response),
            handover::Step::Later => {
                return Some(receiver.await.unwrap_or_else(|_| unavailable()));
            }
            // Asked once at most: a second time would be a bug of the control plane, and ends here.
            handover::Step::ReadBody { .. } if content.is_some() => return Some(unavailable()),
            handover::Step::ReadBody { limit } if is_longer(exchange, limit) => {
                content = Some(Body::TooLarge);
            }
            handover::Step::ReadBody { limit } => {
                let of_settings = exchange.body_limit();
                let of_settings = of_settings.and_then(|most| usize::try_from(most).ok());
                let smaller = of_settings.filter(|most| *most < limit);
                let most = smaller.unwrap_or(limit);
                let read = read_body(body, most, &exchange.downstream).await;
                if smaller.is_some() && matches!(read, Body::TooLarge) {
                    return None;
                }
                content = Some(read);
            }
        }
    }
}

/// Whether a body announces more than `limit` bytes: a client that waits for a 100 is told before
/// it sends them.
fn is_longer(exchange: &Exchange, limit: usize) -> bool {
    let announced = exchange.head.length.announced();
    announced.is_some_and(|length| length > limit as u64)
}

/// The `Authorization` field, if there is exactly one.
fn only_authorization(head: &impl Fields) -> Option<HeaderValue> {
    let mut all = head.values_of(&AUTHORIZATION);
    let only = all.next().filter(|_| all.next().is_none())?;
    HeaderValue::from_bytes(only).ok()
}

fn unavailable() -> OwnResponse {
    OwnResponse {
        status: StatusCode::SERVICE_UNAVAILABLE,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        action: Action::Answered,
        history: History::Neither,
    }
}

/// Reads a body, bounded; a client that stalls is cut by its time-out.
async fn read_body(body: &mut ClientBody, limit: usize, downstream: &Downstream) -> Body {
    let mut content = Vec::new();
    loop {
        let next = poll_fn(|cx| {
            let next = body.poll(cx);
            downstream.timed(|deadlines, now_ns| match &next {
                Poll::Pending => deadlines.await_body(now_ns),
                Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                    deadlines.got_body(now_ns, data.len() as u64);
                }
                Poll::Ready(_) => deadlines.got_body(now_ns, 0),
            });
            next
        })
        .await;
        match next {
            None => return Body::Whole(Bytes::from(content)),
            // The connection of a broken body ends.
            Some(Err(_)) => return Body::CutOff,
            Some(Ok(Piece::Trailers(_))) => {}
            Some(Ok(Piece::Data(data))) => {
                if content.len() + data.len() > limit {
                    return Body::TooLarge;
                }
                downstream.upload().take(data.len(), None);
                content.extend_from_slice(&data);
            }
        }
    }
}

/// The port of https that is not written.
const USUAL: u16 = 443;

/// Answers 308 with the same target over https, at this port; 400 to a request without a host.
async fn redirect(exchange: Box<Exchange>, body: ClientBody, port: u16) -> Response<Bytes> {
    let left_unread = discard(body).await;
    let head = &exchange.head;
    let host = head.host();
    let host = host.and_then(|host| std::str::from_utf8(host).ok());
    let location = host.and_then(|host| location(host, port, head.target()));
    let response = match location {
        Some(location) => {
            let status = StatusCode::PERMANENT_REDIRECT;
            let mut response = problem::problem(status, &exchange.request_id);
            response.headers_mut().insert(LOCATION, location);
            response
        }
        None => problem::problem(StatusCode::BAD_REQUEST, &exchange.request_id),
    };
    exchange.respond(response, Action::Answered, left_unread)
}

/// Where a request goes; none where no host is named.
fn location(host: &str, port: u16, target: &str) -> Option<HeaderValue> {
    let name = without_port(host);
    if name.is_empty() {
        return None;
    }
    let target = if target == "*" { "/" } else { target };
    let location = if port == USUAL {
        format!("https://{name}{target}")
    } else {
        format!("https://{name}:{port}{target}")
    };
    HeaderValue::try_from(location).ok()
}

/// A host without its port; the colons of an IPv6 address stand in brackets.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-2: host and target stay, the port is that of https.
    #[test]
    fn the_same_target_over_https() {
        let to = |host: &str, port, target: &str| {
            let location = location(host, port, target)?;
            Some(location.to_str().unwrap().to_owned())
        };
        for (host, port, target, expected) in [
            ("a.test", 443, "/x?y=z", Some("https://a.test/x?y=z")),
            ("a.test:8080", 443, "/", Some("https://a.test/")),
            ("a.test:80", 8443, "/", Some("https://a.test:8443/")),
            ("[::1]:80", 443, "/", Some("https://[::1]/")),
            ("[::1]", 8443, "/", Some("https://[::1]:8443/")),
            ("", 443, "/", None),
            (":80", 443, "/", None),
        ] {
            assert_eq!(to(host, port, target).as_deref(), expected, "{host}");
        }
    }
}
