//! The life of one request: identify, ask the ladder, refuse or answer or forward.
//!
//! Every exit ends in [`Exchange::finish`], which alone counts, charges bytes, keeps the client's history and writes the
//! log record. What a bug would do is caught one level up, in `connection.rs`.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use weir_shared::ban::RequestNote;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::handover::{Body as OwnBody, OwnRequest, OwnResponse, Step};
use weir_shared::lookup::{self, Lookup, LookupStarted, Origin};
use weir_shared::record::{Batch, Record};
use weir_shared::settings::{BanResponse, BytesCount, LogRequests, RateLimitHeaders};
use weir_shared::table::ClientTable;
use weir_shared::totals::ConnectionError;
use weir_shared::verdict::{Action, History, LimitKind};
use weir_shared::window::Span;

use crate::clients::limits::{Entry, Exceeded};
use crate::forward::body::{AnswerBody, ReplyBody, RequestBody};
use crate::forward::headers::{self, ProxyFields};
use crate::forward::pool::Pool;
use crate::forward::trailers::TrailerFilter;
use crate::forward::upgrade::Tunnel;
use crate::forward::{self, Answer, Failure};
use crate::identity::{Identity, X_FORWARDED_FOR, identify};
use crate::ladder::{self, Asked, Decision, Refusal, Verdict};
use crate::reply;
use crate::socket::Downstream;
use crate::worker::Worker;

/// Text of a request that a ban's notes keep, characters.
const MAX_NOTE: usize = 1024;
/// Of an unread body, this much is taken at once so that a refused request need not cost its connection.
const MAX_DRAIN: usize = 64 * 1024;
/// A client whose age of answer is not known is asked about again after this: the answer is there then.
const ASK_SOON_NS: u64 = 1_000_000_000;

/// The connection closes unanswered (BAN-6).
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed unanswered")]
pub struct Dropped;

/// Answers one request: reads from top to bottom as the flow of a request does.
///
/// Everything up to the verdict happens at once, before the future is made: it then holds what the rest needs and no
/// more, and hyper moves a small future into place for each request.
pub fn answer(
    worker: &Rc<Worker>,
    downstream: &Rc<Downstream>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<ReplyBody>, Dropped>> + use<> {
    carry_out(begin(worker, downstream, request))
}

/// The rest of a request, from its verdict on.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn holds its argument twice"
)]
fn carry_out(next: Next) -> impl Future<Output = Result<Response<ReplyBody>, Dropped>> + use<> {
    async move {
        match next {
            Next::AwaitLookup(exchange, body) => after_lookup(exchange, body).await,
            Next::Done(response) => Ok(response),
            Next::Refuse(exchange, body, refusal) => {
                let left = drain(body, &exchange.head.headers).await;
                refuse(exchange, refusal, left)
            }
            // Rare, and large for what they hold across their awaits.
            Next::AnswerOwn(exchange, body) => Ok(Box::pin(answer_own(exchange, body)).await),
            Next::MethodNotAllowed(exchange, body) => {
                let left = drain(body, &exchange.head.headers).await;
                Ok(exchange.close_with(reply::method_not_allowed(), Action::Answered, left))
            }
            Next::Forward(exchange, body) => Ok(forward(exchange, body).await),
        }
    }
}

/// Step 7, where the request has to wait for it; then the rest. Boxed: it is rare, and leads back to where it came from.
fn after_lookup(
    mut exchange: Box<Exchange>,
    body: Incoming,
) -> Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Dropped>>>> {
    Box::pin(async move {
        exchange.await_lookup().await;
        carry_out(follow(exchange, body)).await
    })
}

/// What follows the verdict.
enum Next {
    /// Step 7: the client's lookup decides.
    AwaitLookup(Box<Exchange>, Incoming),
    Done(Response<ReplyBody>),
    Refuse(Box<Exchange>, Incoming, Refusal),
    AnswerOwn(Box<Exchange>, Incoming),
    /// CONNECT and TRACE.
    MethodNotAllowed(Box<Exchange>, Incoming),
    Forward(Box<Exchange>, Incoming),
}

/// Identifies, and asks the ladder.
fn begin(worker: &Rc<Worker>, downstream: &Rc<Downstream>, request: Request<Incoming>) -> Next {
    downstream.begin();
    let now = worker.clock.now();
    let (mut head, body) = request.into_parts();

    let checked = headers::check_framing(&head.headers)
        .and_then(|()| headers::check_target(&head.method, &head.uri))
        .and_then(|()| headers::check_host(&head.uri, head.version, &mut head.headers));
    if checked.is_err() {
        // No request by section 1: answered, counted with the connections, not logged.
        worker
            .counters
            .connection_error(ConnectionError::BadRequest);
        downstream.unread_body.set(!body.is_end_stream());
        let mut response = reply::problem(StatusCode::BAD_REQUEST);
        reply::close(&mut response);
        return Next::Done(response);
    }

    let identity = identify(
        downstream.peer,
        downstream.trusted,
        &worker.trusted_proxies,
        &worker.client_ip_header,
        &head.headers,
    );
    warn_of_forgotten_proxy(worker, downstream, &head.headers, now);

    let decision = decide(worker, &identity, &head, now, true);
    if decision.verdict == Verdict::Health {
        downstream.end();
        return Next::Done(reply::health(worker.is_draining()));
    }

    let websocket = headers::asks_for_websocket(&head.method, head.version, &head.headers);
    let exchange = Exchange::new(worker, downstream, head, identity, decision, now, websocket);
    follow(exchange, body)
}

/// What the verdict leads to.
fn follow(mut exchange: Box<Exchange>, body: Incoming) -> Next {
    let own = match exchange.decision.verdict {
        Verdict::AwaitLookup => return Next::AwaitLookup(exchange, body),
        Verdict::Refuse(refusal) => {
            exchange.report(&refusal);
            if !exchange.worker.observe {
                return Next::Refuse(exchange, body, refusal);
            }
            exchange.shadow_action = Some(refusal.action());
            weir_shared::path::is_own(exchange.head.uri.path())
        }
        Verdict::Own => true,
        Verdict::Forward | Verdict::Health | Verdict::StartOver => false,
    };
    if own {
        return Next::AnswerOwn(exchange, body);
    }
    if exchange.head.method == Method::CONNECT || exchange.head.method == Method::TRACE {
        return Next::MethodNotAllowed(exchange, body);
    }
    Next::Forward(exchange, body)
}

/// Asks the ladder; again where the snapshot was older than the client's last reset (LIMIT-6). Starts the lookup of a
/// client that is to be asked about, unless the request is to wait for it.
fn decide(
    worker: &Worker,
    identity: &Identity,
    head: &Parts,
    now: Now,
    may_wait: bool,
) -> Decision {
    let asked = Asked {
        method: &head.method,
        path: head.uri.path(),
        client: identity.client,
        address: identity.address,
        content_length: content_length(&head.headers),
        may_wait,
    };
    let mut ask = false;
    loop {
        let decision = worker.with_snapshot(|snapshot| {
            ladder::decide(&worker.rules, snapshot, &worker.table, &asked, now)
        });
        ask |= decision.ask;
        match decision.verdict {
            Verdict::StartOver => {}
            Verdict::AwaitLookup => return decision,
            _ => {
                if ask {
                    look_up(worker, identity.client, None);
                }
                return decision;
            }
        }
    }
}

/// Asks about a client; an answer that is there at once is attached at once. Says whether one is still to come.
fn look_up(worker: &Worker, client: Client, answered: Option<lookup::OnLookup>) -> bool {
    match (worker.ask)(client, answered) {
        LookupStarted::Known { lookup, until_ns } => worker.table.answer(client, lookup, until_ns),
        LookupStarted::NotNow { again_ns } => worker.table.ask_again(client, again_ns),
        LookupStarted::Later => return true,
    }
    false
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    number(headers.get(CONTENT_LENGTH)?)
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// CLIENT-7.
fn warn_of_forgotten_proxy(
    worker: &Worker,
    downstream: &Downstream,
    headers: &HeaderMap,
    now: Now,
) {
    if !downstream.trusted
        && headers.contains_key(X_FORWARDED_FOR)
        && worker
            .forgotten_proxy
            .note(downstream.peer, headers, now.wall_ms)
    {
        tracing::warn!(
            peer = %downstream.peer,
            "this peer forwards for many clients but is not in WAF_TRUSTED_PROXIES: limits and bans are charged to the \
             peer itself; if it is a load balancer of yours, add it to WAF_TRUSTED_PROXIES"
        );
    }
}

/// Steps 4, 5, 6, 8, 10 and 11 of the ladder: the refusal, in enforce mode. `left` says that a part of the body was not
/// read.
fn refuse(
    exchange: Box<Exchange>,
    refusal: Refusal,
    left: bool,
) -> Result<Response<ReplyBody>, Dropped> {
    let worker = Rc::clone(&exchange.worker);
    let now_ms = exchange.decided.wall_ms;
    let (status, retry_ms) = match refusal {
        Refusal::DeniedNet | Refusal::DeniedCountry => (worker.ban_response, None),
        Refusal::Banned { until_ms } => (worker.ban_response, until_end(until_ms, now_ms)),
        Refusal::RateLimited {
            ban: Some(expiry), ..
        } if !exchange.ban_not_possible => {
            (worker.ban_response, until_end(expiry.end_ms(), now_ms))
        }
        Refusal::RateLimited { exceeded, .. } => (
            BanResponse::Status(StatusCode::TOO_MANY_REQUESTS),
            exchange.until_fits(&exceeded),
        ),
        Refusal::BodyTooLarge => (BanResponse::Status(StatusCode::PAYLOAD_TOO_LARGE), None),
    };
    let BanResponse::Status(status) = status else {
        exchange.finish_unanswered(refusal.action());
        return Err(Dropped);
    };
    let mut response = reply::problem(status);
    if let Some(milliseconds) = retry_ms {
        reply::retry_after(&mut response, milliseconds);
    }
    let of_limits = matches!(refusal, Refusal::RateLimited { .. } | Refusal::BodyTooLarge);
    if of_limits && worker.rate_limit_headers != RateLimitHeaders::Off {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    Ok(exchange.close_with(response, refusal.action(), left))
}

/// Milliseconds until a ban ends; none if it never does.
fn until_end(end_ms: u64, now_ms: u64) -> Option<u64> {
    (end_ms != u64::MAX).then(|| end_ms.saturating_sub(now_ms))
}

/// Takes what has already come of a body that nobody will read, so that a small one does not cost the connection; true
/// if something is left of it. A client that waits for a 100 is not asked for its body.
async fn drain(mut body: Incoming, headers: &HeaderMap) -> bool {
    if body.is_end_stream() {
        return false;
    }
    if headers.contains_key(EXPECT) {
        return true;
    }
    let mut drained = 0;
    poll_fn(|cx| {
        while drained < MAX_DRAIN {
            match Pin::new(&mut body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => drained += frame.data_ref().map_or(0, Bytes::len),
                Poll::Ready(Some(Err(_)) | None) | Poll::Pending => break,
            }
        }
        Poll::Ready(!body.is_end_stream())
    })
    .await
}

/// Step 12: the service answers.
async fn answer_own(mut exchange: Box<Exchange>, mut body: Incoming) -> Response<ReplyBody> {
    let OwnResponse {
        status,
        headers,
        body: content,
        action,
        history,
    } = ask_control_plane(&exchange, &mut body).await;
    exchange.history = Some(history);
    let left = drain(body, &exchange.head.headers).await;
    exchange.close_with(reply::own(status, headers, content), action, left)
}

async fn ask_control_plane(exchange: &Exchange, body: &mut Incoming) -> OwnResponse {
    let request = |content| OwnRequest {
        method: exchange.head.method.clone(),
        path: exchange.head.uri.path().to_owned(),
        query: exchange.head.uri.query().map(str::to_owned),
        authorization: only(&exchange.head.headers),
        request_id: exchange.request_id.to_str().unwrap_or_default().to_owned(),
        body: content,
    };
    let mut content = None;
    loop {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let respond = Box::new(move |answer| {
            // The client may have gone; nobody is left to tell.
            let _ = sender.send(answer);
        });
        match (exchange.worker.handover)(request(content.clone()), respond) {
            Step::Done(answer) => return answer,
            Step::Later => return receiver.await.unwrap_or_else(|_| unavailable()),
            // Asked once at most: a second time would be a bug of the answering side, and ends here.
            Step::ReadBody { .. } if content.is_some() => return unavailable(),
            Step::ReadBody { limit } if is_longer(&exchange.head.headers, limit) => {
                content = Some(OwnBody::TooLarge);
            }
            Step::ReadBody { limit } => {
                content = Some(read_body(body, limit, &exchange.downstream).await);
            }
        }
    }
}

/// Whether a body announces more than `limit` bytes: a client that waits for a 100 is told before it sends them.
fn is_longer(headers: &HeaderMap, limit: usize) -> bool {
    content_length(headers).is_some_and(|length| length > limit as u64)
}

/// The `Authorization` field, if there is exactly one.
fn only(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    all.next().filter(|_| all.next().is_none()).cloned()
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

/// Reads a body of ours, bounded; a client that stalls is cut by its time-out.
async fn read_body(body: &mut Incoming, limit: usize, downstream: &Downstream) -> OwnBody {
    let mut content = Vec::new();
    loop {
        let frame = poll_fn(|cx| {
            let next = Pin::new(&mut *body).poll_frame(cx);
            if next.is_pending() {
                downstream.await_body();
            } else {
                downstream.got_body();
            }
            next
        })
        .await;
        match frame {
            None => return OwnBody::Whole(Bytes::from(content)),
            // hyper ends the connection of a broken body; an empty one is refused in the meantime.
            Some(Err(_)) => return OwnBody::Whole(Bytes::new()),
            Some(Ok(frame)) => {
                let Some(data) = frame.data_ref() else {
                    continue;
                };
                if content.len() + data.len() > limit {
                    return OwnBody::TooLarge;
                }
                downstream
                    .request_bytes
                    .set(downstream.request_bytes.get() + data.len() as u64);
                content.extend_from_slice(data);
            }
        }
    }
}

/// Step 13: the application answers.
async fn forward(mut exchange: Box<Exchange>, body: Incoming) -> Response<ReplyBody> {
    exchange.forwarded = true;
    let limit = exchange.body_limit();
    let repeatable = forward::is_repeatable(&exchange.head.method, &body);
    let trailers = || {
        let client_field = &exchange.worker.client_field;
        TrailerFilter::of_request(&exchange.head.headers, client_field)
    };
    let body = RequestBody::new(body, &exchange.downstream, limit, trailers);
    let build = |body| exchange.to_upstream(body);
    let result = forward::send(
        &exchange.worker.pool,
        &exchange.downstream,
        body,
        build,
        repeatable,
    )
    .await;
    match result {
        Ok(answer) => pass_on(exchange, answer),
        Err(failure) => fail(exchange, failure),
    }
}

/// The application's answer as the client gets it.
fn pass_on(mut exchange: Box<Exchange>, answer: Answer) -> Response<ReplyBody> {
    let Answer {
        response,
        connection,
        connect_us,
    } = answer;
    let worker = Rc::clone(&exchange.worker);
    let downstream = Rc::clone(&exchange.downstream);
    let first_byte_us = worker.clock.since_us(exchange.started);
    exchange.connect_us = connect_us;
    exchange.first_byte_us = Some(first_byte_us);
    worker.counters.upstream(first_byte_us);
    worker.counters.response(response.status());

    let (mut head, incoming) = response.into_parts();
    let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if switched && !(exchange.websocket && headers::is_websocket_answer(&head.headers)) {
        tracing::warn!("the application switched protocols unasked");
        return fail(exchange, Failure::BadGateway);
    }
    let trailers = TrailerFilter::of_answer(&head.headers);
    headers::to_downstream(&mut head.headers, switched);
    head.version = Version::HTTP_11;
    exchange.note_answer(&head, Action::Passed);
    if worker.rate_limit_headers == RateLimitHeaders::Always && !exchange.is_unchecked() {
        exchange.add_rate_limit_fields(&mut head.headers);
    }
    if switched {
        let idle_timeout = worker.websocket_idle_timeout;
        *downstream.tunnel.borrow_mut() = Some(Tunnel {
            connection,
            exchange,
            idle_timeout,
        });
        return Response::from_parts(head, ReplyBody::empty());
    }
    if incoming.is_end_stream() {
        worker.pool.keep(connection);
        exchange.finish(Action::Passed);
        return Response::from_parts(head, ReplyBody::empty());
    }
    let body = AnswerBody::new(incoming, connection, downstream, exchange, trailers);
    Response::from_parts(head, ReplyBody::Upstream(body))
}

/// The application gave no answer: ours.
fn fail(exchange: Box<Exchange>, failure: Failure) -> Response<ReplyBody> {
    let (status, action) = match failure {
        Failure::BadGateway => (StatusCode::BAD_GATEWAY, Action::UpstreamError),
        Failure::TooSlow => (StatusCode::GATEWAY_TIMEOUT, Action::UpstreamError),
        Failure::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, Action::BodyTooLarge),
        Failure::ClientAborted => (StatusCode::BAD_REQUEST, Action::ClientAborted),
    };
    let mut response = reply::problem_of(status, &exchange.request_id);
    if action == Action::BodyTooLarge && exchange.worker.rate_limit_headers != RateLimitHeaders::Off
    {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    if exchange.downstream.unread_body.get() {
        reply::close(&mut response);
    }
    exchange.finish_with(response, action)
}

/// One request from its head to its end, however it ends.
///
/// Who holds the exchange holds the duty to finish it; an exchange that is dropped unfinished is a client that went away.
pub struct Exchange {
    worker: Rc<Worker>,
    downstream: Rc<Downstream>,
    /// As the client sent it.
    head: Parts,
    identity: Identity,
    request_id: HeaderValue,
    decision: Decision,
    started: Now,
    /// When the ladder was asked last: later than the start where a lookup was waited for. Windows are charged at it.
    decided: Now,
    websocket: bool,
    /// What was known of the client when the request ended, where the log or the counts by place want it.
    lookup: Option<Arc<Lookup>>,
    lookup_wait_us: Option<u64>,
    /// Passed on to the application: its bytes are charged (LIMIT-5).
    forwarded: bool,
    /// What enforce mode would have done, in observe mode (CHECK-3).
    shadow_action: Option<Action>,
    /// The break could not be reported: no ban follows it (LIMIT-6).
    ban_not_possible: bool,
    /// What the history counts, where the action does not say it.
    history: Option<History>,
    limit_hit: Option<LimitKind>,
    answer: Answered,
    connect_us: Option<u64>,
    first_byte_us: Option<u64>,
    /// Body or WebSocket bytes that went to the client.
    pub response_bytes: u64,
    finished: bool,
}

/// What the log wants to know of an answer.
#[derive(Default)]
struct Answered {
    status: Option<StatusCode>,
    content_type: Option<HeaderValue>,
    cache_control: Option<HeaderValue>,
    location: Option<HeaderValue>,
}

impl Exchange {
    fn new(
        worker: &Rc<Worker>,
        downstream: &Rc<Downstream>,
        head: Parts,
        identity: Identity,
        decision: Decision,
        started: Now,
        websocket: bool,
    ) -> Box<Self> {
        let request_id = identity
            .request_id
            .clone()
            .unwrap_or_else(|| worker.ids.next());
        Box::new(Self {
            worker: Rc::clone(worker),
            downstream: Rc::clone(downstream),
            head,
            identity,
            request_id,
            decision,
            started,
            decided: started,
            websocket,
            lookup: None,
            lookup_wait_us: None,
            forwarded: false,
            shadow_action: None,
            ban_not_possible: false,
            history: None,
            limit_hit: None,
            answer: Answered::default(),
            connect_us: None,
            first_byte_us: None,
            response_bytes: 0,
            finished: false,
        })
    }

    /// The worker's upstream pool.
    pub fn pool(&self) -> &Pool {
        &self.worker.pool
    }

    /// Steps 7 and 8: waits for the client's lookup, at most `WAF_LOOKUP_TIMEOUT`, and asks the ladder again. Without an
    /// answer the client is unknown, and no further request waits for this lookup.
    async fn await_lookup(&mut self) {
        let worker = Rc::clone(&self.worker);
        let client = self.identity.client;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let answered = Box::new(move |lookup| {
            // The client may have gone; nobody is left to tell.
            let _ = sender.send(lookup);
        });
        let under_way = look_up(&worker, client, Some(answered));
        let answer = if under_way {
            tokio::time::timeout(worker.lookup_timeout, receiver).await
        } else {
            Ok(Ok(None))
        };
        self.decided = worker.clock.now();
        let waited_ns = self.decided.mono_ns.saturating_sub(self.started.mono_ns);
        self.lookup_wait_us = under_way.then_some(waited_ns / 1000);
        match answer {
            // A client that was dropped while it waited has its answer all the same.
            Ok(Ok(Some(lookup))) => worker.table.settle(client, self.decided, |entry| {
                if entry.lookup.is_none() {
                    let soon_ns = self.decided.mono_ns.saturating_add(ASK_SOON_NS);
                    worker.table.attach(entry, lookup, soon_ns);
                }
            }),
            Ok(Ok(None) | Err(_)) => {}
            Err(_) => {
                worker.table.kept(client, |entry| entry.in_flight = false);
            }
        }
        self.decision = decide(&worker, &self.identity, &self.head, self.decided, false);
    }

    /// What ends the request where its body passes it: nothing in observe mode, and nothing for those past the limits.
    fn body_limit(&self) -> Option<u64> {
        let applies = !self.worker.observe && !self.is_unchecked();
        self.worker.rules.max_body_size.filter(|_| applies)
    }

    /// Whether the ladder let the request past its limits.
    const fn is_unchecked(&self) -> bool {
        !self.decision.counted
    }

    /// The request that the application gets.
    fn to_upstream(&self, body: RequestBody) -> Request<RequestBody> {
        let ours = ProxyFields {
            peer: &self.downstream.peer_value,
            trusted: self.downstream.trusted,
            client_field: &self.worker.client_field,
            scheme: self.identity.scheme,
            request_id: &self.request_id,
            upstream_host: &self.worker.upstream_host,
        };
        let mut headers = headers::to_upstream(&self.head.headers, &ours, self.websocket);
        if self.worker.rules.lookups.for_headers {
            self.worker.table.kept(self.identity.client, |entry| {
                headers::add_lookup(&mut headers, entry.lookup.as_deref());
            });
        }
        if body.is_chunked() {
            headers::announce_chunked(&mut headers);
        }
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = headers::origin_form(&self.head.method, &self.head.uri);
        *request.headers_mut() = headers;
        request
    }

    /// Tells the control plane of an exceeded limit, once (LIMIT-6).
    fn report(&mut self, refusal: &Refusal) {
        if let Refusal::RateLimited { exceeded, ban } = refusal {
            self.limit_exceeded(exceeded, ban.is_some());
        }
    }

    fn limit_exceeded(&mut self, exceeded: &Exceeded, can_ban: bool) {
        self.limit_hit = Some(exceeded.kind);
        self.worker.counters.limit_hit(exceeded.kind);
        if exceeded.first && !(can_ban && self.worker.events.report(self.limit_report(exceeded))) {
            self.ban_not_possible = true;
            self.worker
                .table
                .settle(self.identity.client, self.decided, |entry| {
                    entry.reported = false
                });
        }
    }

    fn limit_report(&self, exceeded: &Exceeded) -> LimitExceeded {
        let text = |value: &HeaderValue| note(&String::from_utf8_lossy(value.as_bytes()));
        LimitExceeded {
            client: self.identity.client,
            limit: exceeded.kind,
            limit_value: exceeded.limit,
            limit_percent: self.percent(exceeded.kind),
            at_ms: self.decided.wall_ms,
            request: RequestNote {
                method: Some(note(self.head.method.as_str())),
                host: self.head.headers.get(HOST).map(text),
                path: Some(note(self.head.uri.path())),
                user_agent: self.head.headers.get(USER_AGENT).map(text),
                request_id: Some(text(&self.request_id)),
            },
        }
    }

    /// The percentage of a limit that was applied.
    fn percent(&self, kind: LimitKind) -> u8 {
        let applied = if kind.counts_bytes() {
            self.decision.bytes_percent
        } else {
            self.decision.limit_percent
        };
        applied.map_or(100, |(percent, _)| percent)
    }

    /// Milliseconds until one more request would fit.
    fn until_fits(&self, exceeded: &Exceeded) -> Option<u64> {
        let span = exceeded.kind.span();
        let now_ms = self.decided.wall_ms;
        self.worker
            .table
            .settle(self.identity.client, self.decided, |entry| {
                Span::ALL
                    .into_iter()
                    .zip(&entry.requests)
                    .find(|(each, _)| *each == span)
                    .and_then(|(_, window)| window.fits_in(span, now_ms, exceeded.limit, 1))
            })
    }

    /// LIMIT-8.
    fn add_rate_limit_fields(&self, headers: &mut HeaderMap) {
        let now_ms = self.decided.wall_ms;
        let of_entry = |entry: &mut Entry| {
            let limits = self.worker.table.rules.applied(entry);
            let limits = limits.map_or(self.worker.rules.limits, |terms| terms.limits);
            let counts = self.decision.counts;
            (limits, counts.unwrap_or_else(|| entry.counts(now_ms)))
        };
        let (limits, counts) =
            self.worker
                .table
                .settle(self.identity.client, self.decided, of_entry);
        reply::rate_limit_fields(headers, &limits, &counts, now_ms);
    }

    fn note_answer(&mut self, head: &http::response::Parts, action: Action) {
        self.answer.status = Some(head.status);
        // In observe mode a body that is still on its way may yet prove too large, and be logged for that.
        let undecided = self.worker.observe && self.worker.log_requests != LogRequests::Off;
        if undecided || self.is_logged(action) {
            for (name, value) in &head.headers {
                let wanted = match name.as_str() {
                    "content-type" => &mut self.answer.content_type,
                    "cache-control" => &mut self.answer.cache_control,
                    "location" => &mut self.answer.location,
                    _ => continue,
                };
                wanted.get_or_insert_with(|| value.clone());
            }
        }
    }

    /// Finishes with an answer of ours; the connection closes behind it where a part of the body is left.
    fn close_with(
        self: Box<Self>,
        mut response: Response<ReplyBody>,
        action: Action,
        left: bool,
    ) -> Response<ReplyBody> {
        if left {
            self.downstream.unread_body.set(true);
            reply::close(&mut response);
        }
        self.finish_with(response, action)
    }

    fn finish_with(
        mut self: Box<Self>,
        response: Response<ReplyBody>,
        action: Action,
    ) -> Response<ReplyBody> {
        let (head, body) = response.into_parts();
        self.note_answer(&head, action);
        self.response_bytes = body.size_hint().exact().unwrap_or(0);
        self.finish(action);
        Response::from_parts(head, body)
    }

    fn finish_unanswered(mut self: Box<Self>, action: Action) {
        self.answer.status = None;
        self.finish(action);
    }

    /// The one place where a request ends: history, bytes, counters, log record.
    pub fn finish(mut self: Box<Self>, action: Action) {
        self.settle(action);
    }

    fn settle(&mut self, action: Action) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let worker = Rc::clone(&self.worker);
        let ended = worker.clock.now();
        let total_us = ended.mono_ns.saturating_sub(self.started.mono_ns) / 1000;
        let (request_bytes, response_bytes) =
            (self.downstream.request_bytes.get(), self.response_bytes);
        if worker.observe && self.is_over_body_size(request_bytes) {
            self.shadow_action = self.shadow_action.or(Some(Action::BodyTooLarge));
        }
        let reported = self.shadow_action.unwrap_or(action);
        let logged = self.is_logged(reported);
        let history = self.history.unwrap_or_else(|| action.history());
        let charged = self.charged_bytes(request_bytes, response_bytes);
        let counts_origins = worker.counts_origins;
        let wants_lookup = logged || (counts_origins && worker.events.wants_finished());
        let (counts, lookup) = (&mut self.decision.counts, &mut self.lookup);
        let mut origin = Origin::default();

        let work = |entry: &mut Entry| {
            origin = entry.origin;
            if wants_lookup {
                lookup.clone_from(&entry.lookup);
            }
            match history {
                History::Passed => entry.passed += 1,
                History::Refused => entry.refused += 1,
                History::Neither => {}
            }
            let exceeded = charged.and_then(|bytes| {
                let terms = worker.table.rules.applied(entry);
                let limits = terms.map_or(worker.rules.limits, |terms| terms.limits);
                entry.charge_bytes(&limits, ended.wall_ms, bytes)
            });
            if let Some(counts) = counts {
                // The requests as the ladder saw them, the bytes with those of this request (section 13.4).
                let [requests @ .., _, _, _] = *counts;
                *counts = entry.counts_with(requests, ended.wall_ms);
            }
            exceeded
        };
        let exceeded = if self.decision.counted {
            worker.table.settle(self.identity.client, ended, work)
        } else {
            worker.table.seen(self.identity.client, self.decided, work)
        };
        if let Some(exceeded) = exceeded {
            let can_ban = worker.with_snapshot(|snapshot| snapshot.can_ban);
            self.limit_exceeded(&exceeded, can_ban);
        }

        worker
            .counters
            .request(reported, total_us, request_bytes, response_bytes);
        if counts_origins {
            worker.events.origin(origin);
        }
        if worker.events.wants_finished() {
            worker.events.finished(Finished {
                address: self.identity.address,
                lookup: self.lookup.clone(),
                bytes: request_bytes.saturating_add(response_bytes),
            });
        }
        if logged {
            worker
                .events
                .record(|headers, batch| self.record(headers, batch, reported, total_us));
        }
        self.downstream.end();
    }

    /// LIMIT-5: what is charged, for a request that was passed on and counted; in observe mode not what enforce mode
    /// would have refused (CHECK-3).
    fn charged_bytes(&self, request: u64, response: u64) -> Option<u64> {
        let counts = self.forwarded && self.decision.counted && self.shadow_action.is_none();
        counts.then_some(match self.worker.bytes_count {
            BytesCount::Both => request.saturating_add(response),
            BytesCount::Request => request,
            BytesCount::Response => response,
        })
    }

    fn is_over_body_size(&self, request_bytes: u64) -> bool {
        self.forwarded
            && self.decision.counted
            && self
                .worker
                .rules
                .max_body_size
                .is_some_and(|limit| request_bytes > limit)
            && !self.websocket
    }

    fn is_logged(&self, reported: Action) -> bool {
        match self.worker.log_requests {
            LogRequests::All => true,
            LogRequests::Refused => reported.is_refusal() || reported == Action::Unauthorized,
            LogRequests::Off => false,
        }
    }

    /// What the log says of the request, copied: nothing of the request itself outlives it.
    fn record(
        &self,
        logged_headers: &[HeaderName],
        batch: &mut Batch,
        action: Action,
        total_us: u64,
    ) -> Record {
        let Parts {
            method,
            uri,
            version,
            headers,
            ..
        } = &self.head;
        let fields = Fields::of(headers);
        let logged_headers = logged_headers.iter().enumerate();
        let lookup = self.lookup.as_deref();
        Record {
            at_ms: self.started.wall_ms,
            request_id: batch.keep(Some(&self.request_id)),
            client: self.identity.client,
            address: self.identity.address,
            group: self.decision.group,
            forwarded_for: batch.keep(fields.forwarded_for),
            scheme: self.identity.scheme,
            method: batch.keep(Some(method.as_str())),
            // Also where the target names it (`check_host`).
            host: batch.keep(fields.host),
            path: batch.keep(Some(uri.path())),
            query: batch.keep(uri.query()),
            version: *version,
            user_agent: batch.keep(fields.user_agent),
            referer: batch.keep(fields.referer),
            content_type: batch.keep(fields.content_type),
            content_length: fields.content_length.and_then(number),
            headers: batch.keep_headers(logged_headers.flat_map(|(name, field)| {
                let values = headers.get_all(field).into_iter();
                values.map(move |value| (name, value))
            })),
            has_authorization: fields.authorization.is_some(),
            has_cookie: fields.cookie.is_some(),
            websocket: self.websocket,
            status: self.answer.status,
            response_content_type: batch.keep(self.answer.content_type.as_ref()),
            cache_control: batch.keep(self.answer.cache_control.as_ref()),
            location: batch.keep(self.answer.location.as_ref()),
            action,
            enforced: self.shadow_action.is_none(),
            limit_hit: self.limit_hit,
            limit_percent: self.decision.limit_percent,
            bytes_percent: self.decision.bytes_percent,
            country: batch.keep(lookup.and_then(|known| known.country.as_ref())),
            asn: batch.keep(lookup.and_then(|known| known.asn.as_ref())),
            as_name: batch.keep(lookup.and_then(|known| known.as_name.as_ref())),
            counts: self.decision.counts,
            request_bytes: self.downstream.request_bytes.get(),
            response_bytes: self.response_bytes,
            total_us,
            lookup_wait_us: self.lookup_wait_us,
            connect_us: self.connect_us,
            first_byte_us: self.first_byte_us,
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // A request that is dropped while it is worked on: its client went away, or a bug unwinds (then 500 was sent).
        if std::thread::panicking() {
            self.answer.status = Some(StatusCode::INTERNAL_SERVER_ERROR);
            self.settle(Action::UpstreamError);
        } else {
            self.settle(Action::ClientAborted);
        }
    }
}

/// The fields of a head that the log looks at, each the first of its name. One pass: nine looks into the map would cost
/// as much as the rest of the record.
#[derive(Default)]
struct Fields<'a> {
    forwarded_for: Option<&'a HeaderValue>,
    host: Option<&'a HeaderValue>,
    user_agent: Option<&'a HeaderValue>,
    referer: Option<&'a HeaderValue>,
    content_type: Option<&'a HeaderValue>,
    content_length: Option<&'a HeaderValue>,
    authorization: Option<&'a HeaderValue>,
    cookie: Option<&'a HeaderValue>,
}

impl<'a> Fields<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let mut fields = Self::default();
        for (name, value) in headers {
            let field = match name.as_str() {
                "x-forwarded-for" => &mut fields.forwarded_for,
                "host" => &mut fields.host,
                "user-agent" => &mut fields.user_agent,
                "referer" => &mut fields.referer,
                "content-type" => &mut fields.content_type,
                "content-length" => &mut fields.content_length,
                "authorization" => &mut fields.authorization,
                "cookie" => &mut fields.cookie,
                _ => continue,
            };
            field.get_or_insert(value);
        }
        fields
    }
}

fn note(text: &str) -> String {
    text.chars().take(MAX_NOTE).collect()
}
