//! Requests that are plain, as most are, from the first byte to the last without hyper: its map of
//! fields and its two halves cost more than all checks.
//!
//! Which request is plain stands in `plain.rs`: HTTP/1.1, no body, nothing asked of the connection
//! but to keep or to close it. Every other one goes to hyper with the bytes that were read.

mod answer;
mod reading;

use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Method;
use hyper::rt::Write as _;

use self::answer::Answer;
use self::reading::{Read, Received};
use crate::downstream::socket::Socket;
use crate::downstream::{Downstream, Ending};
use crate::forward::tunnel::TunnelSlot;
use crate::request;
use crate::worker::Current;

/// What becomes of the connection.
pub enum Next {
    /// Nothing is under way: the next request is awaited, of which this was read.
    Rest(Bytes),
    /// hyper goes on, with what was read already.
    Ordinary(Bytes),
    /// It ended, or ends here.
    Over,
    /// It is cut.
    Cut(Ending),
}

/// Why it goes no further here.
enum Stop {
    Rest,
    Ordinary,
    Over,
    Cut(Ending),
}

/// Answers plain requests, until the connection is idle for a while, or another has to go on with
/// it. `early` was read already.
pub async fn serve(current: &Current, downstream: &Rc<Downstream>, early: Bytes) -> Next {
    downstream.allow_moving();
    let received = RefCell::new(Received::new(early));
    let stop = {
        let mut talking = pin!(talk(current, downstream, &received));
        poll_fn(|cx| {
            downstream.note_waker(cx);
            if let Some(stop) = interruption(downstream) {
                return Poll::Ready(stop);
            }
            // A bug of ours costs its connection, not the worker and all that it serves.
            match catch_unwind(AssertUnwindSafe(|| talking.as_mut().poll(cx))) {
                Ok(Poll::Pending) if downstream.has_gone(cx) => {
                    Poll::Ready(Stop::Cut(Ending::Abort))
                }
                Ok(polled) => polled,
                Err(_) => Poll::Ready(Stop::Cut(Ending::Panicked)),
            }
        })
        .await
        // What is left of a request is dropped here, which finishes it as aborted.
    };
    match stop {
        Stop::Rest => Next::Rest(received.into_inner().into_bytes()),
        Stop::Ordinary => Next::Ordinary(received.into_inner().into_bytes()),
        Stop::Over => Next::Over,
        Stop::Cut(ending) => Next::Cut(ending),
    }
}

/// Why the connection is to be left, if it is. In a drain hyper tells the client that it ends; what
/// is under way is answered here, and says so too.
fn interruption(downstream: &Downstream) -> Option<Stop> {
    let leaves = match downstream.ending() {
        Ending::No => {
            let has_ended = || downstream.can_rest() && downstream.ends_with_next();
            downstream.rests() || downstream.is_refused_and_answered() || has_ended()
        }
        Ending::Drain => downstream.is_idle(),
        cut => return Some(Stop::Cut(cut)),
    };
    leaves.then_some(Stop::Rest)
}

/// Answers one request after the other.
async fn talk(
    current: &Current,
    downstream: &Rc<Downstream>,
    received: &RefCell<Received>,
) -> Stop {
    let mut socket = Socket::new(Rc::clone(downstream), Bytes::new());
    let tunnel = TunnelSlot::default();
    loop {
        let read = |cx: &mut Context<'_>| received.borrow_mut().poll(current, downstream, cx);
        let (head, asks_to_close) = match poll_fn(read).await {
            Read::Plain(head, asks_to_close) => (head, asks_to_close),
            Read::Other => return Stop::Ordinary,
            Read::End => return Stop::Over,
        };
        let worker = current.worker();
        downstream.take_settings(&worker.in_force);
        let is_head = *head.verb() == Method::HEAD;
        let mut serving = pin!(request::serve_plain(&worker, downstream, &tunnel, head));
        let served = poll_fn(|cx| {
            let polled = serving.as_mut().poll(cx);
            if polled.is_pending() && !downstream.interim.is_empty() {
                // An error is found again by the answer.
                let _ = Pin::new(&mut socket).poll_flush(cx);
            }
            polled
        });
        let Ok(response) = served.await else {
            return Stop::Over;
        };
        let (text, now_ms) = (downstream.take_head(), worker.clock.wall_ms());
        let mut answer = worker.date.with(now_ms, |date| {
            Answer::new(response, text, is_head, asks_to_close, date)
        });
        let written = poll_fn(|cx| answer.poll(&mut socket, cx)).await;
        if written.is_ok() && answer.closes {
            downstream.shutdown_write();
        }
        if written.is_err() || answer.closes {
            return Stop::Over;
        }
    }
}
