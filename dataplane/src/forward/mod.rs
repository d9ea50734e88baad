//! A request that the application answers: its fields there and back, 101, 502 and 504. Nothing is
//! buffered whole.

pub mod delivery;
mod frames;
pub mod response_body;
pub mod tunnel;

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, UPGRADE};
use http::{HeaderMap, Response, StatusCode, Version};
use hyper::ext::ReasonPhrase;
use weir_shared::settings::RateLimitHeaders;
use weir_shared::totals::ConnectionError;
use weir_shared::verdict::Action;

use self::response_body::{ResponseBody, UpstreamBody};
use self::tunnel::{Tunnel, TunnelSlot};
use crate::client_body::ClientBody;
use crate::exchange::Exchange;
use crate::head::{Fields as _, Head as _};
use crate::headers::{self, ProxyFields};
use crate::http1::request::{self, Encoder};
use crate::http1::response::{HeadText, ResponseHead};
use crate::problem;
use crate::request_head::RequestHead;
use crate::trailers::TrailerFilter;
use crate::upstream::request_body::RequestBody;
use crate::upstream::{self, Failure, Outgoing, Received};

/// Forwards a request. A 101 that was asked for leaves a tunnel in the slot.
pub async fn forward(
    mut exchange: Box<Exchange>,
    body: Option<ClientBody>,
    tunnel: &TunnelSlot,
) -> Response<ResponseBody> {
    exchange.forwarded = true;
    let limit = exchange.body_limit();
    let repeatable = upstream::is_repeatable(exchange.head.verb(), body.as_ref());
    // A plain request has no body, and neither is asked of it.
    let trailers = || {
        let none = HeaderMap::new();
        let headers = exchange.head.map().unwrap_or(&none);
        TrailerFilter::of_request(headers, &exchange.worker.stripped)
    };
    let is_plain = || is_plain(&exchange.head);
    let body = RequestBody::new(body, &exchange.downstream, limit, trailers, is_plain);
    let encoder = body.framing(exchange.head.map());
    let outgoing = Outgoing {
        method: exchange.head.verb(),
        head: |out: &mut Vec<u8>| write_head(&exchange, encoder, out),
        interim: |head| pass_interim(&exchange, head),
        encoder,
        body,
        repeatable,
        as_text: matches!(exchange.head, RequestHead::Plain(_)),
    };
    let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
    let result = upstream::send(pool, downstream, outgoing).await;
    match result {
        Ok(received) => pass_on(exchange, received, tunnel),
        Err(failure) => fail(exchange, failure),
    }
}

/// Whether nothing is asked of the connection: it is kept behind the request, and the client does
/// not wait to be asked for the body.
fn is_plain(head: &RequestHead) -> bool {
    let is_kept = |line: &[u8]| line.eq_ignore_ascii_case(b"keep-alive");
    head.version() == Version::HTTP_11
        && head.values_of(&CONNECTION).all(is_kept)
        && ![EXPECT, UPGRADE]
            .iter()
            .any(|name| head.values_of(name).next().is_some())
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
    request::request_line(out, head.verb(), &head.target());
    let mut put = |name: &str, value: &[u8]| request::field(out, name, value);
    match head {
        RequestHead::Parts(parts) => {
            let nominated = headers::nominated_by_client(&parts.headers);
            let websocket = exchange.websocket;
            headers::to_upstream(&parts.headers, &nominated, &ours, websocket, &mut put);
        }
        RequestHead::Plain(plain) => headers::to_upstream(plain, &[], &ours, false, &mut put),
    }
    if worker.rules.lookups.for_headers {
        worker.table.get(exchange.identity.client, |entry| {
            headers::add_lookup(entry.lookup.as_deref(), &mut put);
        });
    }
    encoder.announce(out);
    request::end_of_fields(out);
}

/// Passes an interim response on (FORWARD-6): not to HTTP/1.0, which knows none; and no 100: the
/// client gets its own when its body is asked for.
fn pass_interim(exchange: &Exchange, mut head: ResponseHead) {
    exchange.worker.counters.response(head.status);
    exchange.downstream.renew_upstream();
    let is_known = exchange.head.version() >= Version::HTTP_11;
    if !is_known || head.status == StatusCode::CONTINUE {
        return;
    }
    headers::to_downstream(&mut head.headers, false);
    head.headers.remove(CONTENT_LENGTH);
    let downstream = &exchange.downstream;
    if downstream.is_stream() {
        let mut interim = Response::new(());
        *interim.status_mut() = head.status;
        *interim.headers_mut() = head.headers;
        return downstream.interim.put_head(interim);
    }
    downstream.interim.put(|out| head.write(out));
}

/// The application's response as the client gets it.
fn pass_on(
    mut exchange: Box<Exchange>,
    received: Received,
    tunnel: &TunnelSlot,
) -> Response<ResponseBody> {
    let Received {
        head,
        mut body,
        connect_us,
        written_ns,
    } = received;
    exchange.note_first_byte(connect_us, written_ns, head.status);

    let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if switched && !(exchange.websocket && headers::accepts_websocket(&head.headers)) {
        tracing::warn!("the application switched protocols unasked");
        return fail(exchange, Failure::BadGateway);
    }
    // A body of known length has no trailers, and a plain request asks for none.
    let may_have_trailers = body.remaining().is_none() && head.text.is_none();
    let trailers = may_have_trailers.then(|| TrailerFilter::of_answer(&head.headers));
    let (mut head, text) = parts(head);
    if text.is_none() {
        headers::to_downstream(&mut head.headers, switched);
    }
    exchange.note_response(&head, text.as_ref(), Action::Passed);
    if let Some(text) = text {
        exchange.downstream.put_head(text);
    }
    let always = exchange.worker.rate_limit_headers == RateLimitHeaders::Always;
    if always && exchange.decision.counted {
        exchange.add_rate_limit_fields(&mut head.headers);
    }
    if switched {
        let idle_timeout = exchange.worker.websocket_idle_timeout;
        *tunnel.borrow_mut() = Some(Tunnel {
            upstream: body,
            exchange,
            idle_timeout,
        });
        return Response::from_parts(head, ResponseBody::empty());
    }
    let whole = body.take_whole();
    if body.is_end() {
        if let Some(stream) = body.into_reusable() {
            exchange.worker.pool.keep(stream);
        }
        let body = match whole {
            Some(content) => ResponseBody::whole(exchange, content),
            None => {
                exchange.finish(Action::Passed);
                ResponseBody::empty()
            }
        };
        return Response::from_parts(head, body);
    }
    let body = UpstreamBody::new(body, exchange, trailers);
    Response::from_parts(head, ResponseBody::Upstream(body))
}

/// The head as hyper writes it to the client; without it, its text is written as it is.
fn parts(received: ResponseHead) -> (http::response::Parts, Option<HeadText>) {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = received.status;
    head.headers = received.headers;
    // It stands in the text too.
    let reason = received.reason.filter(|_| received.text.is_none());
    if let Some(Ok(reason)) = reason.map(ReasonPhrase::try_from) {
        head.extensions.insert(reason);
    }
    (head, received.text)
}

/// The application gave no response: ours.
fn fail(exchange: Box<Exchange>, failure: Failure) -> Response<ResponseBody> {
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
    };
    let mut response = problem::problem(status, &exchange.request_id);
    let quota = exchange.worker.rate_limit_headers != RateLimitHeaders::Off;
    if action == Action::BodyTooLarge && quota {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    let left_unread = exchange.downstream.upload.is_unread();
    let response = exchange.respond(response, action, left_unread);
    response.map(ResponseBody::Own)
}
