//! One client connection from accept to close. Which protocol it speaks: `conn/handshake.rs` makes
//! that of TLS, and `http2` answers the requests of HTTP/2. Over HTTP/1 its requests are answered
//! here, one after the other: the next head, the response to it, kept or closed.
//!
//! A request's body is the only way to the next head, and every turn of the loop has taken a head
//! (CONN-15).

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{StatusCode, Version};
use tokio::io::ReadBuf;
use weir_shared::totals::ConnectionError;

use crate::conn::close::{cut, linger};
use crate::conn::handshake::{Handshaken, handshake};
use crate::conn::proxy_protocol::{self, Foreign};
use crate::conn::reading::Looked;
use crate::conn::{Downstream, Ending};
use crate::http1::MAX_FIELDS;
use crate::http1::answer::{Answer, To};
use crate::http1::request::{BadRequest, parse};
use crate::http2;
use crate::http2::flood::PREFACE;
use crate::relay::delivery::Reply;
use crate::relay::websocket::{self, Tunnel};
use crate::request::body::{ClientBody, discard};
use crate::request::exchange::Exchange;
use crate::request::refuse::Dropped;
use crate::request::{self, Judged, judge, problem};
use crate::worker::{Current, Worker};

/// Serves one connection to its end. `early` was read already.
pub async fn serve(current: Rc<Current>, downstream: Rc<Downstream>, early: Bytes) {
    let has_panicked = {
        let mut serving = pin!(serve_protocol(&current, &downstream, early));
        poll_fn(|cx| {
            // A bug of ours costs its connection, not the worker and all that it serves.
            match catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(cx))) {
                Ok(polled) => polled.map(|()| false),
                Err(_) => Poll::Ready(true),
            }
        })
        .await
    };
    if has_panicked {
        Box::pin(cut(
            &current.worker().counters,
            &downstream,
            Ending::Panicked,
        ))
        .await;
    }
}

async fn serve_protocol(current: &Rc<Current>, downstream: &Rc<Downstream>, mut early: Bytes) {
    if downstream.awaits_tls() {
        if early.is_empty() && !downstream.is_used_again().await {
            return;
        }
        let before = std::mem::take(&mut early);
        let worker = current.worker();
        let (handshakes, counters) = (&worker.handshakes, &worker.counters);
        match handshake(handshakes, counters, downstream, before).await {
            Handshaken::Ready if downstream.agreed_on_http2() => {
                if downstream.is_used_again().await {
                    return serve_http2(current, downstream, early).await;
                }
                return;
            }
            Handshaken::Ready => {}
            Handshaken::Closed => return,
            Handshaken::Rejected => return Box::pin(linger(downstream)).await,
        }
    } else if current.worker().in_force.settings.edge.h2c {
        if early.is_empty() && !downstream.is_used_again().await {
            return;
        }
        let (is_http2, read) = Box::pin(begins_with_http2(downstream, early)).await;
        if is_http2 {
            return serve_http2(current, downstream, read).await;
        }
        early = read;
    }
    serve_http1(current, downstream, early).await;
}

async fn serve_http2(current: &Rc<Current>, downstream: &Rc<Downstream>, early: Bytes) {
    let (current, downstream) = (Rc::clone(current), Rc::clone(downstream));
    Box::pin(http2::serve(current, downstream, early)).await;
}

/// Reads until it is clear whether a connection begins with HTTP/2; with what was read. `early` was
/// read already. A connection that ends first, or is to end, begins with something else.
async fn begins_with_http2(downstream: &Downstream, early: Bytes) -> (bool, Bytes) {
    let mut read = early.to_vec();
    loop {
        let length = read.len().min(PREFACE.len());
        if read.get(..length) != PREFACE.get(..length) {
            return (false, read.into());
        }
        if length == PREFACE.len() {
            return (true, read.into());
        }
        let mut more = [0; PREFACE.len()];
        let count = poll_fn(|cx| {
            downstream.note_waker(cx);
            if downstream.ending().is_cut() {
                return Poll::Ready(0);
            }
            let mut more = ReadBuf::new(more.get_mut(length..).unwrap_or_default());
            let outcome = ready!(downstream.poll_read(cx, &mut more));
            Poll::Ready(outcome.map_or(0, |()| more.filled().len()))
        })
        .await;
        if count == 0 {
            return (false, read.into());
        }
        read.extend_from_slice(more.get(length..length + count).unwrap_or_default());
    }
}

/// How a burst of requests ended.
enum Next {
    /// Nothing is under way, for a while already: what was held for a request is given back.
    Rest,
    /// It ends at once.
    Over,
    /// It ends behind its last response, which the client is yet to read.
    Closes,
    /// It is cut.
    Cut(Ending),
    /// It is a WebSocket.
    WebSocket(Box<Tunnel>),
}

/// The beginning of the bytes that were read.
enum Read {
    /// A request that is answered.
    Request(Box<Exchange>, To),
    /// A request, or what is none, whose response has begun.
    Answered,
    /// Nothing that is answered.
    Stop(Next),
}

/// Serves a connection of HTTP/1 to its end. `early` was read already. Between two requests no more
/// is held than the socket (CONN-1).
async fn serve_http1(current: &Current, downstream: &Rc<Downstream>, early: Bytes) {
    downstream.put_back(early);
    // A new connection is read from at once: mostly its first request is there.
    let is_plain = !downstream.is_tls() && !current.worker().in_force.settings.edge.h2c;
    let mut is_new = is_plain && downstream.ending() == Ending::No;
    while std::mem::take(&mut is_new) || downstream.has_unread() || downstream.is_used_again().await
    {
        #[cfg(any(test, fuzzing))]
        crate::world::turns::turn();
        downstream.note_probed();
        downstream.set_in_use(true);
        // Boxed: an idle connection is not to hold its size.
        let next = Box::pin(serve_burst(current, downstream)).await;
        downstream.set_in_use(false);
        // All of these arms are rare, or short.
        match next {
            Next::Rest => {}
            Next::Over => return,
            Next::Closes => return Box::pin(linger(downstream)).await,
            Next::Cut(ending) => {
                return Box::pin(cut(&current.worker().counters, downstream, ending)).await;
            }
            Next::WebSocket(tunnel) => {
                let early = downstream.take_unread();
                Box::pin(websocket::run(downstream, early, *tunnel)).await;
                if downstream.ending() == Ending::Refused {
                    Box::pin(linger(downstream)).await;
                }
                return;
            }
        }
    }
}

/// Answers requests until the connection is idle for a while, or ends.
async fn serve_burst(current: &Current, downstream: &Rc<Downstream>) -> Next {
    let mut talking = pin!(talk(current, downstream));
    poll_fn(|cx| {
        downstream.note_waker(cx);
        let ending = downstream.ending();
        if ending.is_cut() {
            // What is left of a request is dropped with it, which finishes it as aborted.
            return Poll::Ready(Next::Cut(ending));
        }
        match talking.as_mut().poll(cx) {
            Poll::Pending if downstream.has_gone(cx) => Poll::Ready(Next::Cut(Ending::Abort)),
            polled => polled,
        }
    })
    .await
}

async fn talk(current: &Current, downstream: &Rc<Downstream>) -> Next {
    let mut answer = Answer::default();
    loop {
        #[cfg(any(test, fuzzing))]
        crate::world::turns::turn();
        let next = poll_fn(|cx| poll_next(current, downstream, &mut answer, cx)).await;
        let tunnel = match next {
            Read::Stop(next) => return next,
            Read::Answered => None,
            Read::Request(exchange, to) => {
                match respond(downstream, exchange, to, &mut answer).await {
                    Ok(tunnel) => tunnel,
                    Err(Dropped) => return Next::Over,
                }
            }
        };
        let sent = poll_fn(|cx| answer.poll(downstream, cx)).await;
        if sent.is_err() || answer.closes() {
            return Next::Closes;
        }
        if let Some(tunnel) = tunnel {
            return Next::WebSocket(tunnel);
        }
        if !downstream.is_body_taken() {
            if discard(ClientBody::Http1(Rc::clone(downstream))).await {
                return Next::Closes;
            }
            // The rest of the body began no head: the next request is awaited from now on.
            downstream.end_request();
        }
    }
}

/// Waits for the response to a request, and begins with it: what the connection becomes behind it,
/// if it becomes something else.
///
/// # Errors
/// [`Dropped`] where the connection closes unanswered.
async fn respond(
    downstream: &Rc<Downstream>,
    exchange: Box<Exchange>,
    to: To,
    answer: &mut Answer,
) -> Result<Option<Box<Tunnel>>, Dropped> {
    let worker = Rc::clone(&exchange.worker);
    let head = &exchange.head;
    let length = head.length;
    let waits = head.known.expects_continue && head.version == Version::HTTP_11;
    downstream.begin_body(length, waits);
    let body = match length.is_empty() {
        true => ClientBody::Empty,
        false => ClientBody::Http1(Rc::clone(downstream)),
    };
    let mut answering = pin!(request::answer(exchange, body));
    poll_fn(|cx| {
        let Poll::Ready(reply) = answering.as_mut().poll(cx) else {
            downstream.poll_interim(cx);
            return Poll::Pending;
        };
        let mut reply = reply?;
        if downstream.is_last() {
            reply.close();
        }
        let tunnel = reply.tunnel.take();
        answer.begin(&worker, downstream, reply, to);
        Poll::Ready(Ok(tunnel))
    })
    .await
}

/// Waits for the next request.
fn poll_next(
    current: &Current,
    downstream: &Rc<Downstream>,
    answer: &mut Answer,
    cx: &mut Context<'_>,
) -> Poll<Read> {
    let found = downstream.poll_head(cx, |bytes| look(current, downstream, bytes, answer));
    if let Poll::Ready(read) = found {
        return Poll::Ready(read.unwrap_or(Read::Stop(Next::Over)));
    }
    match downstream.ending() {
        Ending::Drain if downstream.is_idle() && !downstream.deadlines().is_unused() => {
            Poll::Ready(Read::Stop(Next::Over))
        }
        Ending::No if downstream.rests() => Poll::Ready(Read::Stop(Next::Rest)),
        _ => Poll::Pending,
    }
}

/// What these bytes begin with, and what follows from it.
fn look(
    current: &Current,
    downstream: &Rc<Downstream>,
    bytes: &[u8],
    answer: &mut Answer,
) -> Looked<Read> {
    let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let worker = current.worker();
    let (head, length) = match parse(bytes, &mut space) {
        Ok(Some(whole)) => whole,
        Ok(None) => return Looked::Partial,
        Err(bad) => {
            let reply = refuse_bytes(&worker, downstream, bytes, bad);
            answer.begin(&worker, downstream, reply, To::no_request());
            return Looked::Found(Read::Answered, bytes.len());
        }
    };
    worker.in_force.apply_to(downstream);
    let to = To::of(&head, head.keeps && !downstream.is_last());
    // A request that is answered by its head alone may have a body, which nobody reads: no request
    // follows then.
    let keeps_unread = to.keeps && head.length.is_empty();
    let read = match judge(&worker, downstream, head) {
        Judged::Goes(exchange) => Read::Request(exchange, to),
        Judged::Refused(said, id) => {
            let keeps = keeps_unread && !said.closes;
            answer.refuse(&worker, &said, To { keeps, ..to }, &id);
            Read::Answered
        }
        Judged::Health(response) => {
            let keeps = keeps_unread;
            let reply = Reply::own(response);
            answer.begin(&worker, downstream, reply, To { keeps, ..to });
            Read::Answered
        }
        Judged::Dropped => Read::Stop(Next::Over),
    };
    Looked::Found(read, length)
}

/// The response to what is no request: counted with the connections (METRIC), and the last one.
fn refuse_bytes(worker: &Worker, downstream: &Downstream, bytes: &[u8], bad: BadRequest) -> Reply {
    let (kind, status) = match bad {
        BadRequest::TooLarge => (
            ConnectionError::HeadTooLarge,
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
        BadRequest::TargetTooLong => (ConnectionError::HeadTooLarge, StatusCode::URI_TOO_LONG),
        BadRequest::Syntax | BadRequest::Target | BadRequest::Host | BadRequest::Framing => {
            (ConnectionError::BadRequest, StatusCode::BAD_REQUEST)
        }
    };
    downstream.begin_request();
    worker.counters.connection_error(kind);
    warn_of_wrong_protocol(worker, downstream, bytes);
    Reply::own(problem::no_request(status))
}

/// Says so where what could not be taken for a request is of another protocol (EDGE-5).
fn warn_of_wrong_protocol(worker: &Worker, downstream: &Downstream, bytes: &[u8]) {
    if let Some(foreign @ (Foreign::Tls | Foreign::Proxy)) = Foreign::of(bytes) {
        let now_ms = worker.clock.wall_ms();
        proxy_protocol::tell(foreign, downstream.peer, "plain HTTP", now_ms);
        if foreign == Foreign::Proxy {
            let kind = ConnectionError::ProxyProtocol;
            worker.counters.connection_error(kind);
        }
    }
}
