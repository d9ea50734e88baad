//! A request that the application answers: sent, sent again where that is safe, failed; its fields
//! there and back, 101, 502, 503 and 504; what the answer means for the client. Nothing is buffered
//! whole.

pub mod delivery;
pub mod websocket;

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode, Version};
use tokio::net::TcpStream;
use weir_shared::ban::{Cause, Scope};
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::rules::Rule;
use weir_shared::settings::RateLimitHeaders;
use weir_shared::totals::{ApplicationWord, ConnectionError};
use weir_shared::units::retry_after_seconds;
use weir_shared::verdict::{Action, Group};

use crate::clients::charging::{Answered, Jailed};
use crate::clients::entry::Entry;
use crate::conn::deadlines::Deadlines;
use crate::http1::response::ResponseHead;
use crate::http1::{self, Encoder};
use crate::message::fields::{self, ProxyFields, TrailerFilter};
use crate::relay::delivery::{Delivery, Piece, Reply, ResponseBody, UpstreamBody};
use crate::relay::websocket::Tunnel;
use crate::request::application::{Misunderstood, Said};
use crate::request::body::{ClientBody, RequestBody};
use crate::request::exchange::Exchange;
use crate::request::ladder::asking;
use crate::request::{outcome, problem};
use crate::upstream::bound::UpstreamSlot;
use crate::upstream::pool::Pool;
use crate::upstream::receiving::Received;
use crate::upstream::{Attempt, Failure, NoResponse, Sending, body_failure, not_http};

/// Forwards a request.
pub async fn forward(mut exchange: Box<Exchange>, body: ClientBody) -> Reply {
    exchange.forwarded = true;
    let (head, downstream) = (&exchange.head, &exchange.downstream);
    let trailers = || TrailerFilter::of(head, Some(&exchange.worker.stripped));
    let limit = exchange.body_limit();
    let body = RequestBody::new(body, head.length, downstream, limit, trailers);
    match send(&mut exchange, body).await {
        Ok(received) => pass_on(exchange, received),
        Err(failure) => fail(exchange, failure),
    }
}

/// Sends the request to the application and waits for the head of its response.
///
/// A connection is taken once the beginning of the body is there, or all of it (CONN-13).
///
/// It is sent a second time only if nothing of it was written, or if it is repeatable and the
/// connection was a pooled one that ended without a response: it has no body and its method is
/// idempotent (RFC 9110 §9.2.2).
async fn send(exchange: &mut Exchange, mut body: RequestBody) -> Result<Received, Failure> {
    let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
    let method = &exchange.head.method;
    let encoder = body.framing(exchange.head.length);
    let repeatable = body.is_end() && method.is_idempotent();
    if !body.is_end() {
        let gathered = poll_fn(|cx| body.poll_gather(cx)).await;
        if gathered.is_err() {
            let failure = body_failure(downstream);
            // Refused before a byte of it was passed on (LIMIT-5).
            exchange.forwarded = failure != Failure::BodyTooLarge;
            return Err(failure);
        }
    }
    let slot = match UpstreamSlot::take(&pool.bound) {
        Some(slot) => slot,
        // Rare, and large for what it holds while it waits.
        None => Box::pin(UpstreamSlot::wait(&pool.bound, pool.queue))
            .await
            .map_err(|_| Failure::Overloaded)?,
    };
    let with_head = |body| {
        let mut text = pool.buffers.take_text();
        write_head(exchange, encoder, &mut text);
        Sending::new(text, encoder, body)
    };
    let interim = |head| pass_interim(exchange, head);
    let mut sending = with_head(body);
    let mut fresh = false;
    loop {
        let pooled = if fresh { None } else { pool.take(repeatable) };
        let (stream, connect_us) = match pooled {
            Some(stream) => (stream, None),
            None => Box::pin(connect(pool)).await?,
        };
        downstream.timed(|deadlines, now_ns| deadlines.await_upstream(now_ns, pool.answer_ns));
        let mut attempt = Attempt::new(stream, sending, wants_text(exchange));
        let outcome = poll_fn(|cx| attempt.poll(pool, downstream, method, &interim, cx)).await;
        downstream.deadlines().got_upstream();
        let was_pooled = connect_us.is_none();
        match outcome {
            Ok(came) => {
                return Received::new(attempt, slot, came, connect_us).map_err(not_http);
            }
            Err(NoResponse::Failed(failure)) => return Err(failure),
            // A pooled connection that closed under us: any other will do, a new one at the latest.
            Err(NoResponse::Unsent) if was_pooled => sending = attempt.sending,
            Err(NoResponse::Lost) if was_pooled && repeatable => {
                fresh = true;
                sending = with_head(RequestBody::Empty);
            }
            Err(NoResponse::Unsent | NoResponse::Lost) => {
                tracing::warn!("the application closed a connection without a response");
                return Err(Failure::BadGateway);
            }
        }
    }
}

/// Makes a connection.
async fn connect(pool: &Pool) -> Result<(TcpStream, Option<u64>), Failure> {
    let (stream, connect_us) = pool.connect().await.map_err(|error| {
        tracing::warn!(%error, "the application cannot be reached");
        Failure::BadGateway
    })?;
    Ok((stream, Some(connect_us)))
}

/// Whether the head of the response goes on as text: it is written over HTTP/1.1, the body has no
/// trailers that the client takes, and no field of it is asked for.
fn wants_text(exchange: &Exchange) -> bool {
    !exchange.downstream.is_stream()
        && !exchange.websocket
        && !exchange.head.known.te
        && exchange.worker.in_force.application_field.is_none()
}

/// Writes the head of the request as the application gets it.
fn write_head(exchange: &Exchange, encoder: Encoder, out: &mut Vec<u8>) {
    let worker = &exchange.worker;
    let ours = ProxyFields {
        peer: &exchange.downstream.peer_value,
        trusted: exchange.downstream.trusted(),
        stripped: &worker.stripped,
        scheme: exchange.identity.scheme,
        request_id: &exchange.request_id,
        upstream_host: &worker.upstream_host,
    };
    let head = &exchange.head;
    http1::request_line(out, &head.method, head.target());
    let mut put = |name: &str, value: &[u8]| http1::field(out, name, value);
    let nominated = match head.known.names_fields {
        true => fields::nominated_by_client(head),
        false => Vec::new(),
    };
    fields::to_upstream(head, &nominated, &ours, exchange.websocket, &mut put);
    if worker.rules.lookups.for_headers {
        worker.table.get(exchange.identity.client, |entry| {
            fields::add_lookup(entry.lookup.as_deref(), &mut put);
        });
    }
    encoder.announce(out);
    http1::end_of_fields(out);
}

/// Passes an interim response on (FORWARD-6): not to HTTP/1.0, which knows none; and no 100: the
/// client gets its own when its body is asked for.
fn pass_interim(exchange: &Exchange, mut head: ResponseHead) {
    exchange.worker.counters.response(head.status);
    exchange.downstream.timed(Deadlines::renew_upstream);
    let is_known = exchange.head.version >= Version::HTTP_11;
    if !is_known || head.status == StatusCode::CONTINUE {
        return;
    }
    fields::to_downstream(&mut head.headers, false);
    head.headers.remove(CONTENT_LENGTH);
    // Only what the head of a final answer says counts, and nothing of it reaches the client.
    if let Some(field) = &exchange.worker.in_force.application_field {
        head.headers.remove(&field.name);
    }
    let downstream = &exchange.downstream;
    if downstream.is_stream() {
        let mut interim = Response::new(());
        *interim.status_mut() = head.status;
        *interim.headers_mut() = head.headers;
        return downstream.interim().put_head(interim);
    }
    downstream.interim().put(|out| head.write(out));
}

/// The application's response as the client gets it.
fn pass_on(mut exchange: Box<Exchange>, received: Received) -> Reply {
    let Received {
        mut head,
        mut body,
        connect_us,
        written_ns,
    } = received;
    let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if switched && !(exchange.websocket && fields::upgrades_to_websocket(&head.headers)) {
        // It is no answer: what it says of the client does not count (APP).
        tracing::warn!("the application switched protocols unasked");
        return fail(exchange, Failure::BadGateway);
    }
    let withheld = exchange.worker.in_force.application_field.as_ref();
    let said = withheld.map(|field| field.take_from(&mut head.headers));
    let may_have_trailers = body.remaining().is_none() && head.text.is_none();
    // A body of known length has no trailers, and who gets a text asks for none.
    let trailers = may_have_trailers
        .then(|| TrailerFilter::of(&head.headers, withheld.map(|field| &field.withheld)));
    exchange.note_first_byte(connect_us, written_ns, head.status, said);

    let mut reply = reply(head);
    if reply.text.is_none() {
        fields::to_downstream(&mut reply.head.headers, switched);
    }
    exchange.note_response(&reply.head, reply.text.as_ref(), Action::Passed);
    let always = exchange.worker.rate_limit_headers == RateLimitHeaders::Always;
    if always && exchange.decision.counted {
        exchange.add_rate_limit_fields(&mut reply.head.headers);
    }
    if switched {
        reply.tunnel = Some(Box::new(Tunnel {
            upstream: body,
            exchange,
        }));
        return reply;
    }
    let content = body.take_whole();
    if !body.is_end() {
        reply.body = ResponseBody::Upstream(UpstreamBody::new(body, exchange, trailers));
        return reply;
    }
    if let Some(stream) = body.into_reusable() {
        exchange.worker.pool.keep(stream);
    }
    match content {
        Some(content) => reply.body = whole(exchange, content),
        None => exchange.finish(Action::Passed),
    }
    reply
}

/// The application's body, all of it: the next request is awaited.
fn whole(mut exchange: Box<Exchange>, content: Bytes) -> ResponseBody {
    let length = content.len() as u64;
    if exchange.downstream.takes(length) {
        // As in `Delivery`, without one.
        exchange.response_bytes = length;
        exchange.finish(Action::Passed);
        return ResponseBody::Whole(Some(Piece::uncounted(content)));
    }
    let delivery = Delivery::new(exchange);
    let piece = delivery.piece(content);
    delivery.end(Action::Passed);
    ResponseBody::Whole(Some(piece))
}

/// The head as the client gets it, without a body.
fn reply(received: ResponseHead) -> Reply {
    let mut reply = Reply::of(Response::new(ResponseBody::empty()));
    reply.head.status = received.status;
    reply.head.headers = received.headers;
    // It stands in the text too.
    reply.reason = received.reason.filter(|_| received.text.is_none());
    reply.text = received.text;
    reply
}

/// The application gave no response: ours.
fn fail(mut exchange: Box<Exchange>, failure: Failure) -> Reply {
    let (status, action) = match failure {
        Failure::BadGateway => (StatusCode::BAD_GATEWAY, Action::UpstreamError),
        Failure::TooSlow => (StatusCode::GATEWAY_TIMEOUT, Action::UpstreamError),
        Failure::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, Action::BodyTooLarge),
        Failure::ClientAborted => (StatusCode::BAD_REQUEST, Action::ClientAborted),
        Failure::Framing => {
            let counters = &exchange.worker.counters;
            counters.connection_error(ConnectionError::Framing);
            (StatusCode::BAD_REQUEST, Action::ClientAborted)
        }
        Failure::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, Action::Overloaded),
    };
    let mut response = problem::problem(status, &exchange.request_id);
    let quota = exchange.worker.rate_limit_headers != RateLimitHeaders::Off;
    if action == Action::BodyTooLarge && quota {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    if failure == Failure::Overloaded {
        // Nothing of it has reached the application.
        exchange.forwarded = false;
        let wait_ms = exchange.worker.pool.queue.as_millis();
        let wait_ms = u64::try_from(wait_ms).unwrap_or(u64::MAX);
        let seconds = HeaderValue::from(retry_after_seconds(wait_ms));
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
    let left_unread = exchange.downstream.upload().is_unread();
    Reply::own(exchange.respond(response, action, left_unread))
}

// The application has answered: what its answer means for the client (RULE-4, RULE-9), and what it
// says of it in a field (APP).
impl Exchange {
    /// Notes that the application's response has begun, and charges the jails that count it.
    /// `written_ns` is when the request had been written, on the monotonic clock: nothing but the
    /// application is waited for from then on (FORWARD-7).
    fn note_first_byte(
        &mut self,
        connect_us: Option<u64>,
        written_ns: Option<u64>,
        status: StatusCode,
        said: Option<Result<Option<Said>, Misunderstood>>,
    ) {
        let now = self.worker.clock.now();
        let waited_ns = written_ns.map_or(0, |written| now.mono_ns.saturating_sub(written));
        let first_byte_us = now.mono_ns.saturating_sub(self.started.mono_ns) / 1000;
        self.durations.connect = connect_us;
        self.durations.first_byte = Some(first_byte_us);
        self.worker.counters.upstream(waited_ns / 1000);
        self.worker.counters.response(status);
        // In observe mode what enforce mode would have refused has no answer (CHECK-3).
        let said = said.filter(|_| self.shadow_action.is_none());
        self.said = said.and_then(|said| self.heard(said, now));
        self.charge_jails(status, now);
        self.obey(now);
    }

    /// What the application said of the client, if that was understood; counted and told (APP-5).
    fn heard(&self, said: Result<Option<Said>, Misunderstood>, now: Now) -> Option<Box<Said>> {
        let (worker, in_force) = (&self.worker, &self.worker.in_force);
        let said = said.and_then(|said| {
            let jails = |name: &str| {
                worker.with_snapshot(|snapshot| {
                    (snapshot.rules.every_jail()).any(|jail| jail.rule.name == name)
                })
            };
            let names = said.as_ref().into_iter().flat_map(Said::counts);
            let unknown = names.map(str::to_owned).find(|name| !jails(name));
            match unknown {
                Some(name) => Err(Misunderstood::NoJail(name)),
                None => Ok(said),
            }
        });
        match said {
            Ok(said) => {
                let said = said?;
                said.each_word(|word| worker.counters.application(word, 1));
                Some(Box::new(said))
            }
            Err(why) => {
                worker.counters.application(ApplicationWord::Ignored, 1);
                if let Some(field) = &in_force.application_field {
                    (in_force.voice).misunderstood(&field.name, &why, now.wall_ms);
                }
                None
            }
        }
    }

    /// What the application said, where it has consequences: not for a client on an allow list.
    fn said_in_force(&self) -> Option<&Said> {
        let is_allowed = self.decision.group == Group::Allow;
        self.said.as_deref().filter(|_| !is_allowed)
    }

    /// Charges the jails that count the application's answer (RULE-4): nothing is cut short. The
    /// status is enough (RULE-9): whoever reads it has what it guessed for, and may hold the rest
    /// of the answer for as long as it likes.
    fn charge_jails(&mut self, status: StatusCode, now: Now) {
        // In observe mode what enforce mode would have refused is not charged (CHECK-3).
        let by_status = self.decision.counted && self.shadow_action.is_none();
        let said = self.said_in_force();
        if !by_status && said.is_none() {
            return;
        }
        let claims = &self.decision.claims;
        let answered = Answered {
            client: self.identity.client,
            asking: asking(&self.head, self.identity.address),
            status: by_status.then_some(status),
            named: said.map(Said::counts),
            claim: claims.claim.as_ref(),
            other_site: self.identity.other_site || claims.verified().is_some(),
            now,
        };
        let worker = &self.worker;
        let jailed = worker.with_snapshot(|snapshot| {
            let fallen = |rule: &Arc<Rule>| self.fall(Some(rule));
            answered.charge_jails(&worker.table, &snapshot.rules, fallen)
        });
        drop(answered);
        if let Some(Jailed {
            exceeded,
            rule,
            scope,
        }) = jailed
        {
            let offence = outcome::jailed(&exceeded, &rule, scope);
            self.decision.rule = Some(rule);
            if exceeded.first {
                let can_ban = self.worker.can_ban(self.identity.who(), Cause::Jail, scope);
                self.offend(offence, can_ban);
            }
        }
    }

    /// Trusts or bans the client as the application says (APP-3, APP-4).
    fn obey(&mut self, now: Now) {
        let Some(Said { ban, trust, .. }) = self.said_in_force() else {
            return;
        };
        let (ban, worker) = (*ban, &self.worker);
        if let Some(duration) = *trust {
            worker
                .table
                .known()
                .trust(self.identity.client, duration, now);
        }
        let Some(asked) = ban else { return };
        let is_first = (worker.table).update(self.identity.client, now, Entry::is_first_offence);
        if !is_first {
            return;
        }
        let who = self.identity.who();
        let can_ban = worker.can_ban(who, Cause::Application, Scope::Netblock);
        let is_within = can_ban && worker.in_force.voice.may_ban(now.wall_ms);
        if can_ban && !is_within {
            let word = ApplicationWord::BanLeftOut;
            worker.counters.application(word, 1);
        }
        self.offend(Some(Offence::Application(asked)), is_within);
    }
}
