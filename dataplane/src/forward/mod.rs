//! A request that the application answers: its fields there and back, 101, 502 and 504. Nothing is
//! buffered whole.

mod frames;
pub mod response_body;
pub mod tunnel;

use std::rc::Rc;

use http::{Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use weir_shared::settings::RateLimitHeaders;
use weir_shared::totals::ConnectionError;
use weir_shared::verdict::Action;

use self::response_body::{ResponseBody, UpstreamBody};
use self::tunnel::{Tunnel, TunnelSlot};
use crate::exchange::Exchange;
use crate::headers::{self, ProxyFields};
use crate::problem;
use crate::trailers::TrailerFilter;
use crate::upstream::request_body::RequestBody;
use crate::upstream::{self, Failure, Received};

/// Forwards a request. A 101 that was asked for leaves a tunnel in the slot.
pub async fn forward(
    mut exchange: Box<Exchange>,
    body: Incoming,
    tunnel: &TunnelSlot,
) -> Response<ResponseBody> {
    exchange.forwarded = true;
    let limit = exchange.body_limit();
    let repeatable = upstream::is_repeatable(&exchange.head.method, &body);
    let trailers =
        || TrailerFilter::of_request(&exchange.head.headers, &exchange.worker.client_field);
    let body = RequestBody::new(body, &exchange.downstream, limit, trailers);
    let build = |body| to_upstream(&exchange, body);
    let (pool, downstream) = (&exchange.worker.pool, &exchange.downstream);
    let result = upstream::send(pool, downstream, body, build, repeatable).await;
    match result {
        Ok(received) => pass_on(exchange, received, tunnel),
        Err(failure) => fail(exchange, failure),
    }
}

/// The request as the application gets it.
fn to_upstream(exchange: &Exchange, body: RequestBody) -> Request<RequestBody> {
    let worker = &exchange.worker;
    let ours = ProxyFields {
        peer: &exchange.downstream.peer_value,
        trusted: exchange.downstream.trusted,
        client_field: &worker.client_field,
        scheme: exchange.identity.scheme,
        request_id: &exchange.request_id,
        upstream_host: &worker.upstream_host,
    };
    let head = &exchange.head;
    let mut headers = headers::to_upstream(&head.headers, &ours, exchange.websocket);
    if worker.rules.lookups.for_headers {
        worker.table.get(exchange.identity.client, |entry| {
            headers::add_lookup(&mut headers, entry.lookup.as_deref());
        });
    }
    if body.is_chunked() {
        headers::announce_chunked(&mut headers);
    }
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = headers::origin_form(&head.method, &head.uri);
    *request.headers_mut() = headers;
    request
}

/// The application's response as the client gets it.
fn pass_on(
    mut exchange: Box<Exchange>,
    received: Received,
    tunnel: &TunnelSlot,
) -> Response<ResponseBody> {
    let Received {
        response,
        connection,
        connect_us,
    } = received;
    exchange.note_first_byte(connect_us, response.status());

    let (mut head, incoming) = response.into_parts();
    let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if switched && !(exchange.websocket && headers::accepts_websocket(&head.headers)) {
        tracing::warn!("the application switched protocols unasked");
        return fail(exchange, Failure::BadGateway);
    }
    let trailers = TrailerFilter::of_answer(&head.headers);
    headers::to_downstream(&mut head.headers, switched);
    head.version = Version::HTTP_11;
    exchange.note_response(&head, Action::Passed);
    let always = exchange.worker.rate_limit_headers == RateLimitHeaders::Always;
    if always && exchange.decision.counted {
        exchange.add_rate_limit_fields(&mut head.headers);
    }
    if switched {
        let idle_timeout = exchange.worker.websocket_idle_timeout;
        *tunnel.borrow_mut() = Some(Tunnel {
            connection,
            exchange,
            idle_timeout,
        });
        return Response::from_parts(head, ResponseBody::empty());
    }
    if incoming.is_end_stream() {
        exchange.worker.pool.keep(connection);
        exchange.finish(Action::Passed);
        return Response::from_parts(head, ResponseBody::empty());
    }
    let downstream = Rc::clone(&exchange.downstream);
    let body = UpstreamBody::new(incoming, connection, downstream, exchange, trailers);
    Response::from_parts(head, ResponseBody::Upstream(body))
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
    let mut response = problem::problem_of(status, &exchange.request_id);
    let quota = exchange.worker.rate_limit_headers != RateLimitHeaders::Off;
    if action == Action::BodyTooLarge && quota {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    let left_unread = exchange.downstream.upload.is_unread();
    let response = exchange.respond(response, action, left_unread);
    response.map(ResponseBody::Own)
}
