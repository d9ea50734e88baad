//! One client connection from accept to close: which protocol it speaks. `handshake` makes that of
//! TLS, `http1::server` and `http2` answer its requests.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::conn::close::{cut, linger};
use crate::conn::handshake::{Handshaken, handshake};
use crate::conn::{Downstream, Ending};
use crate::http1::server;
use crate::http2;
use crate::http2::flood::PREFACE;
use crate::worker::Current;

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
        match Box::pin(beginning(downstream, early)).await {
            Begins::Http2(read) => return serve_http2(current, downstream, read).await,
            Begins::Other(read) => early = read,
        }
    }
    server::serve(current, downstream, early).await;
}

async fn serve_http2(current: &Rc<Current>, downstream: &Rc<Downstream>, early: Bytes) {
    let (current, downstream) = (Rc::clone(current), Rc::clone(downstream));
    Box::pin(http2::serve(current, downstream, early)).await;
}

/// How a connection begins.
enum Begins {
    /// With HTTP/2; this was read of it.
    Http2(Bytes),
    /// With something else; this was read of it.
    Other(Bytes),
}

/// Reads until it is clear how a connection begins. `early` was read already. One that ends first,
/// or is to end, begins with something else.
async fn beginning(downstream: &Downstream, early: Bytes) -> Begins {
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
