//! A request that the application answers: its fields there and back, 101, 502, 503 and 504.
//! Nothing is buffered whole.

pub mod delivery;
pub mod websocket;

use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode, Version};
use weir_shared::settings::RateLimitHeaders;
use weir_shared::totals::ConnectionError;
use weir_shared::units::retry_after_seconds;
use weir_shared::verdict::Action;

use crate::conn::deadlines::Deadlines;
use crate::http1::request::{self, Encoder};
use crate::http1::response::ResponseHead;
use crate::message::fields::{self, ProxyFields};
use crate::message::trailers::TrailerFilter;
use crate::relay::delivery::{Reply, ResponseBody, UpstreamBody};
use crate::relay::websocket::Tunnel;
use crate::request::client_body::ClientBody;
use crate::request::exchange::Exchange;
use crate::request::problem;
use crate::upstream::request_body::RequestBody;
use crate::upstream::{self, Failure, Outgoing, Received};

/// Forwards a request.
pub async fn forward(mut exchange: Box<Exchange>, body: ClientBody) -> Reply {
    exchange.forwarded = true;
    let limit = exchange.body_limit();
    let length = exchange.head.length;
    let trailers = || TrailerFilter::of_request(&exchange.head, &exchange.worker.stripped);
    let body = RequestBody::new(body, length, &exchange.downstream, limit, trailers);
    let encoder = body.framing(length);
    let outgoing = Outgoing {
        method: &exchange.head.method,
        head: |out: &mut Vec<u8>| write_head(&exchange, encoder, out),
        interim: |head| pass_interim(&exchange, head),
        encoder,
        body,
        as_text: wants_text(&exchange),
    };
    let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
    let result = upstream::send(pool, downstream, outgoing).await;
    match result {
        Ok(received) => pass_on(exchange, received),
        Err(failure) => fail(exchange, failure),
    }
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
    request::request_line(out, &head.method, head.target());
    let mut put = |name: &str, value: &[u8]| request::field(out, name, value);
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
    request::end_of_fields(out);
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
    if switched && !(exchange.websocket && fields::accepts_websocket(&head.headers)) {
        // It is no answer: what it says of the client does not count (APP).
        tracing::warn!("the application switched protocols unasked");
        return fail(exchange, Failure::BadGateway);
    }
    let withheld = exchange.worker.in_force.application_field.as_ref();
    let said = withheld.map(|field| field.take_from(&mut head.headers));
    let may_have_trailers = body.remaining().is_none() && head.text.is_none();
    // A body of known length has no trailers, and who gets a text asks for none.
    let trailers = may_have_trailers
        .then(|| TrailerFilter::of_answer(&head.headers, withheld.map(|field| &field.withheld)));
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
        let idle_timeout = exchange.worker.websocket_idle_timeout;
        reply.tunnel = Some(Box::new(Tunnel {
            upstream: body,
            exchange,
            idle_timeout,
        }));
        return reply;
    }
    let whole = body.take_whole();
    if !body.is_end() {
        reply.body = ResponseBody::Upstream(UpstreamBody::new(body, exchange, trailers));
        return reply;
    }
    if let Some(stream) = body.into_reusable() {
        exchange.worker.pool.keep(stream);
    }
    match whole {
        Some(content) => reply.body = ResponseBody::whole(exchange, content),
        None => exchange.finish(Action::Passed),
    }
    reply
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
