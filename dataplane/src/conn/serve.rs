//! One client connection from accept to close: which protocol it speaks, its time-outs, its end.
//! `handshake` makes that of TLS, `http1::server` and `http2` answer its requests.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, ready};

use bytes::Bytes;
use http::HeaderValue;
use tokio::io::ReadBuf;
use weir_shared::totals::ConnectionError;

use crate::conn::close::linger;
use crate::conn::handshake::{Handshaken, handshake};
use crate::conn::{Downstream, Ending};
use crate::http1::server::{self, Next};
use crate::http2;
use crate::http2::flood::PREFACE;
use crate::relay::websocket;
use crate::worker::{Current, Worker};

const REQUEST_TIMEOUT: &str =
    "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n";

const PANICKED: &str =
    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n";

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
        Box::pin(cut(&current.worker(), &downstream, Ending::Panicked)).await;
    }
}

async fn serve_protocol(current: &Rc<Current>, downstream: &Rc<Downstream>, mut early: Bytes) {
    if downstream.awaits_tls() {
        if early.is_empty() && !is_used_again(downstream).await {
            return;
        }
        let before = std::mem::take(&mut early);
        let worker = current.worker();
        let (handshakes, counters) = (&worker.handshakes, &worker.counters);
        match handshake(handshakes, counters, downstream, before).await {
            Handshaken::Ready if downstream.agreed_on_http2() => {
                if is_used_again(downstream).await {
                    return serve_http2(current, downstream, early).await;
                }
                return;
            }
            Handshaken::Ready => {}
            Handshaken::Closed => return,
            Handshaken::Rejected => return Box::pin(linger(downstream)).await,
        }
    } else if current.worker().in_force.settings.edge.h2c {
        if early.is_empty() && !is_used_again(downstream).await {
            return;
        }
        match Box::pin(told(downstream, early)).await {
            Begins::Http2(read) => return serve_http2(current, downstream, read).await,
            Begins::Other(read) => early = read,
        }
    }
    serve_http1(current, downstream, early).await;
}

async fn serve_http2(current: &Rc<Current>, downstream: &Rc<Downstream>, early: Bytes) {
    let (current, downstream) = (Rc::clone(current), Rc::clone(downstream));
    Box::pin(http2::serve(current, downstream, early)).await;
}

/// The same once it is known to speak HTTP/1. Between two requests no more is held than the socket
/// (CONN-1).
async fn serve_http1(current: &Current, downstream: &Rc<Downstream>, early: Bytes) {
    downstream.put_back(early);
    // Of a new connection it is tried to read at once: mostly its first request is there.
    let mut is_new = is_plain_and_stays(&current.worker(), downstream);
    while std::mem::take(&mut is_new) || downstream.has_unread() || is_used_again(downstream).await
    {
        #[cfg(any(test, fuzzing))]
        crate::world::turns::turn();
        downstream.note_probed();
        downstream.set_in_use(true);
        // Boxed: an idle connection is not to hold its size.
        let next = Box::pin(server::serve(current, downstream)).await;
        downstream.set_in_use(false);
        // What follows is rare, or short.
        match next {
            Next::Rest => {}
            Next::Over => return,
            Next::Closes => return Box::pin(linger(downstream)).await,
            Next::Cut(ending) => {
                return Box::pin(cut(&current.worker(), downstream, ending)).await;
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

/// Whether a new connection may be read from before anything is known of it.
fn is_plain_and_stays(worker: &Worker, downstream: &Downstream) -> bool {
    let is_plain = !downstream.is_tls() && !worker.in_force.settings.edge.h2c;
    is_plain && downstream.ending() == Ending::No
}

/// Waits until the client sends something; false if the connection ends before it does. One that
/// was just accepted is waited for in a drain too, for a short time (CONN-14).
async fn is_used_again(downstream: &Downstream) -> bool {
    poll_fn(|cx| {
        downstream.note_waker(cx);
        let is_readable = downstream.poll_used(cx).is_ready();
        match downstream.ending() {
            Ending::No if !is_readable => Poll::Pending,
            Ending::Drain if !is_readable && downstream.deadlines().is_unused() => Poll::Pending,
            ending => Poll::Ready(is_readable && !ending.is_cut()),
        }
    })
    .await
}

/// Ends a connection before its time, with a response where one can still be sent.
async fn cut(worker: &Worker, downstream: &Downstream, ending: Ending) {
    let (kind, response) = match ending {
        Ending::HeadTimeout => (ConnectionError::HeadTimeout, REQUEST_TIMEOUT),
        Ending::TooSlow | Ending::Displaced => (ConnectionError::TooSlow, REQUEST_TIMEOUT),
        Ending::Panicked => (ConnectionError::Panic, PANICKED),
        Ending::No
        | Ending::Drain
        | Ending::Idle
        | Ending::Stalled
        | Ending::Refused
        | Ending::Abort => return,
    };
    worker.counters.connection_error(kind);
    // The head of a request that is late is the next one: the response before it was written.
    let is_free = ending == Ending::HeadTimeout || !downstream.is_answering();
    if is_free && !downstream.interim().is_begun() {
        downstream.write_at_once(&last_words(response, downstream.cut_request()));
    }
    // Whoever takes the place has it already: a client that does not close is not to hold another.
    if ending == Ending::Displaced {
        return downstream.shutdown_write();
    }
    linger(downstream).await;
}

/// A response with the id of the request that it answers (TELL-1).
fn last_words(head: &str, request_id: Option<&HeaderValue>) -> Vec<u8> {
    let mut response = head.as_bytes().to_vec();
    if let Some(id) = request_id {
        response.extend_from_slice(b"x-request-id: ");
        response.extend_from_slice(id.as_bytes());
        response.extend_from_slice(b"\r\n");
    }
    response.extend_from_slice(b"\r\n");
    response
}

/// How a connection begins.
pub enum Begins {
    /// With HTTP/2; this was read of it.
    Http2(Bytes),
    /// With something else; this was read of it.
    Other(Bytes),
}

/// Reads until it is clear how a connection begins. `early` was read already. One that ends first,
/// or is to end, begins with something else.
pub async fn told(downstream: &Downstream, early: Bytes) -> Begins {
    let mut read = early.to_vec();
    loop {
        let length = read.len().min(PREFACE.len());
        if read.get(..length) != PREFACE.get(..length) {
            return Begins::Other(read.into());
        }
        if length == PREFACE.len() {
            return Begins::Http2(read.into());
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
            return Begins::Other(read.into());
        }
        read.extend_from_slice(more.get(length..length + count).unwrap_or_default());
    }
}
