//! One client connection from accept to close: hyper in the middle, time-outs and the drain around
//! it, a tunnel or a lingering close at its end.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use weir_shared::totals::ConnectionError;

use crate::client_body::ClientBody;
use crate::downstream::inbound::Framing;
use crate::downstream::socket::Socket;
use crate::downstream::{Downstream, Ending};
use crate::foreign::{self, Foreign};
use crate::forward::tunnel::{self, TunnelSlot};
use crate::handshake::{Led, handshake};
use crate::http2::preface::{self, Begins};
use crate::linger::{linger, write_rest};
use crate::refused_peer::{self, Next};
use crate::worker::{Current, MAX_HEAD, Worker};
use crate::{http2, request, without_hyper};

/// What hyper holds of a request before it waits (CONN-1). Of an answer it gets a piece at a time.
const MAX_BUFFER: usize = 32 * 1024;

const REQUEST_TIMEOUT: &str =
    "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n";

const PANICKED: &str =
    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n";

/// Serves one connection to its end. Plain requests are answered without hyper, which has it for
/// all others; in between no more is held than the socket (CONN-1). `early` was read already.
pub async fn serve(current: Rc<Current>, downstream: Rc<Downstream>, mut early: Bytes) {
    if downstream.awaits_tls() {
        if early.is_empty() && !is_used_again(&downstream).await {
            return;
        }
        let before = std::mem::take(&mut early);
        match handshake(&current.worker(), &downstream, before).await {
            Led::Done if downstream.agreed_on_http2() => {
                if is_used_again(&downstream).await {
                    Box::pin(http2::serve(current, downstream, early)).await;
                }
                return;
            }
            Led::Done => {}
            Led::Over => return,
            Led::Refused => return Box::pin(linger(&downstream)).await,
        }
    } else if current.worker().in_force.settings.edge.h2c {
        if early.is_empty() && !is_used_again(&downstream).await {
            return;
        }
        match Box::pin(preface::told(&downstream, early)).await {
            Begins::Http2(read) => {
                return Box::pin(http2::serve(current, downstream, read)).await;
            }
            Begins::Other(read) => early = read,
        }
    }
    serve_http1(current, downstream, early).await;
}

/// The same once it is known to speak HTTP/1.1.
async fn serve_http1(current: Rc<Current>, downstream: Rc<Downstream>, mut early: Bytes) {
    // The last request had a large body, which hyper has to begin.
    let mut uploads = false;
    // Of a new connection it is tried to read at once: mostly its first request is there.
    let mut is_new = is_plain_and_stays(&current.worker(), &downstream);
    while std::mem::take(&mut is_new) || !early.is_empty() || is_used_again(&downstream).await {
        if !early.is_empty() {
            // A request is under way, or whoever gets these bytes could take the connection for an
            // idle one and give them back, without an end (CONN-15).
            downstream.note_read();
        }
        downstream.note_probed();
        let worker = current.worker();
        if downstream.ends_with_next() {
            downstream.finish(Ending::Drain);
        }
        if early.is_empty() && downstream.is_refused() {
            match refused_peer::serve(&current, &downstream).await {
                Next::Idle => continue,
                Next::Ordinary(read) => early = read,
                Next::Over => return,
                Next::Cut(ending) => return Box::pin(cut(&worker, &downstream, ending)).await,
            }
        }
        if !uploads && downstream.ending() == Ending::No {
            downstream.set_in_use(true);
            // Boxed: an idle connection is not to hold its size.
            let answering = without_hyper::serve(&current, &downstream, early);
            let next = Box::pin(answering).await;
            downstream.set_in_use(false);
            match next {
                without_hyper::Next::Rest(read) => {
                    early = read;
                    continue;
                }
                without_hyper::Next::Ordinary(read) => early = read,
                without_hyper::Next::Over => return,
                without_hyper::Next::Cut(ending) => {
                    return Box::pin(cut(&worker, &downstream, ending)).await;
                }
            }
        }
        downstream.set_in_use(true);
        let outcome = Box::pin(serve_requests(&current, &downstream, early)).await;
        // The next request is mostly like the last one.
        uploads = downstream.rests_at_once();
        downstream.set_in_use(false);
        let Some(read) = outcome else { return };
        early = read;
    }
}

/// Whether a new connection may be read from before anything is known of it.
fn is_plain_and_stays(worker: &Worker, downstream: &Downstream) -> bool {
    let is_plain = !downstream.is_tls() && !worker.in_force.settings.edge.h2c;
    is_plain && downstream.ending() == Ending::No && !downstream.ends_with_next()
}

/// Waits until the client sends something; false if the connection ends before it does.
async fn is_used_again(downstream: &Downstream) -> bool {
    poll_fn(|cx| {
        downstream.note_waker(cx);
        let is_readable = downstream.poll_used(cx).is_ready();
        match downstream.ending() {
            Ending::No if !is_readable => Poll::Pending,
            ending => Poll::Ready(is_readable && !ending.is_cut()),
        }
    })
    .await
}

/// Why hyper does not go on with a connection.
enum Outcome {
    /// It ended, or has become a tunnel.
    Over(Result<(), hyper::Error>),
    /// It is cut.
    Cut(Ending),
    /// It is idle.
    Rest,
}

/// Why hyper is not to go on with a connection, if it is not. After a hand-over it lets go of each
/// that is idle: the next request is the last, which is decided before hyper has it.
fn interruption(downstream: &Downstream) -> Option<Outcome> {
    let has_ended = || downstream.ends_with_next() && downstream.can_rest();
    match downstream.ending() {
        Ending::No => {
            let lets_go = downstream.rests() || downstream.is_refused_and_answered() || has_ended();
            lets_go.then_some(Outcome::Rest)
        }
        Ending::Drain => None,
        cut => Some(Outcome::Cut(cut)),
    }
}

/// hyper, with the bounds of the service.
pub fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // Our own sweeper cuts slow heads; hyper's timer would cost a sleep a request.
        .header_read_timeout(None)
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_BUFFER);
    builder
}

/// Serves requests until the connection is idle, and gives what was read of the next one; none if
/// the connection ended. `early` was read already.
// long: hyper's connection, and a flat list of what its end leads to
async fn serve_requests(
    current: &Current,
    downstream: &Rc<Downstream>,
    early: Bytes,
) -> Option<Bytes> {
    let worker = &*current.worker();
    let tunnel = TunnelSlot::default();
    let service = service_fn(|request| {
        let worker = current.worker();
        downstream.take_settings(&worker.in_force);
        downstream.note_framing(framing(&request));
        request::serve(&worker, downstream, &tunnel, request.map(ClientBody::Http1))
    });
    let socket = Socket::new(Rc::clone(downstream), early);
    downstream.allow_moving();
    let mut connection = builder().serve_connection(socket, service);

    let mut draining = false;
    let outcome = poll_fn(|cx| {
        downstream.note_waker(cx);
        if let Some(outcome) = interruption(downstream) {
            return Poll::Ready(outcome);
        }
        if !draining && is_to_drain(downstream, cx) {
            draining = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        // A bug of ours costs its connection, not the worker and all that it serves.
        match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut connection).poll(cx))) {
            Ok(Poll::Pending) if downstream.rests_at_once() => Poll::Ready(Outcome::Rest),
            Ok(Poll::Pending) if downstream.has_left(cx) => {
                Poll::Ready(Outcome::Cut(Ending::Abort))
            }
            Ok(polled) => polled.map(Outcome::Over),
            Err(_) => Poll::Ready(Outcome::Cut(Ending::Panicked)),
        }
    })
    .await;

    // What follows is rare, and boxed: held in this future, it would cost every connection its
    // size.
    match outcome {
        Outcome::Rest => {
            let parts = connection.into_parts();
            return Some(parts.io.unanswered(&parts.read_buf));
        }
        Outcome::Cut(ending) => {
            // Dropping what hyper holds finishes the running request as aborted.
            drop(connection);
            Box::pin(cut(worker, downstream, ending)).await;
        }
        Outcome::Over(Err(error)) => {
            let refused_head = count_error(worker, &error);
            tell_foreign(worker, downstream, &connection.into_parts().read_buf);
            write_rest(downstream).await;
            if refused_head || downstream.upload.is_unread() {
                Box::pin(linger(downstream)).await;
            }
        }
        Outcome::Over(Ok(())) => {
            let parts = connection.into_parts();
            write_rest(downstream).await;
            if let Some(agreed) = tunnel.take() {
                Box::pin(tunnel::run(downstream, parts.io, parts.read_buf, agreed)).await;
            }
            if downstream.upload.is_unread() || downstream.ending() == Ending::Refused {
                Box::pin(linger(downstream)).await;
            }
        }
    }
    None
}

/// Which body follows the head of a request, as hyper has read it.
pub fn framing(request: &Request<Incoming>) -> Framing {
    let body = request.body();
    match body.size_hint().exact() {
        _ if body.is_end_stream() => Framing::Empty,
        Some(length) => Framing::Sized(length),
        None => Framing::Chunked,
    }
}

/// Whether hyper is to be told that no further request is served. While nothing is under way it
/// would close at once, and a request that has arrived already would meet a reset.
fn is_to_drain(downstream: &Downstream, cx: &mut Context<'_>) -> bool {
    downstream.ending() == Ending::Drain
        && !(downstream.is_idle() && downstream.poll_readable(cx).is_ready())
}

/// Ends a connection before its time, with a response where one can still be sent.
async fn cut(worker: &Worker, downstream: &Downstream, ending: Ending) {
    let response = match ending {
        Ending::HeadTimeout => {
            let kind = ConnectionError::HeadTimeout;
            worker.counters.connection_error(kind);
            Some(response(REQUEST_TIMEOUT, None))
        }
        Ending::TooSlow => {
            worker.counters.connection_error(ConnectionError::TooSlow);
            (!downstream.is_answering())
                .then(|| response(REQUEST_TIMEOUT, downstream.cut_request()))
        }
        Ending::Panicked => {
            worker.counters.connection_error(ConnectionError::Panic);
            (!downstream.is_answering()).then(|| response(PANICKED, downstream.cut_request()))
        }
        Ending::No
        | Ending::Drain
        | Ending::Idle
        | Ending::Stalled
        | Ending::Refused
        | Ending::Abort => return,
    };
    if let Some(response) = response {
        downstream.write_at_once(&response);
    }
    linger(downstream).await;
}

/// A response with the id of the request that it answers (TELL-1).
fn response(head: &str, request_id: Option<&HeaderValue>) -> Vec<u8> {
    let mut response = head.as_bytes().to_vec();
    if let Some(id) = request_id {
        response.extend_from_slice(b"x-request-id: ");
        response.extend_from_slice(id.as_bytes());
        response.extend_from_slice(b"\r\n");
    }
    response.extend_from_slice(b"\r\n");
    response
}

/// Counts what hyper could not take for a request; true where it answered with 400, 414 or 431.
fn count_error(worker: &Worker, error: &hyper::Error) -> bool {
    if !error.is_parse() {
        return false;
    }
    let kind = if error.is_parse_too_large() {
        ConnectionError::HeadTooLarge
    } else {
        ConnectionError::BadRequest
    };
    worker.counters.connection_error(kind);
    true
}

/// Says so where what could not be taken for a request is of another protocol (EDGE-5).
fn tell_foreign(worker: &Worker, downstream: &Downstream, read: &[u8]) {
    match Foreign::of(read) {
        Some(foreign @ (Foreign::Tls | Foreign::Proxy)) => {
            let now_ms = worker.clock.wall_ms();
            foreign::tell(foreign, downstream.peer, "plain HTTP", now_ms);
            if foreign == Foreign::Proxy {
                let kind = ConnectionError::ProxyProtocol;
                worker.counters.connection_error(kind);
            }
        }
        Some(Foreign::Http) | None => {}
    }
}
