//! The TLS handshake of a connection (EDGE-2): bounded in time and in number, and one step of one
//! handshake a turn of the worker, so that a flood of them leaves every other connection its turn.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use weir_shared::totals::{ConnectionError, Handshake};

use crate::downstream::Downstream;
use crate::downstream::tls::{Advanced, Session};
use crate::foreign::{self, Foreign};
use crate::worker::Worker;

/// The answer to HTTP where TLS is spoken.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What a handshake led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Led {
    /// TLS is spoken.
    Done,
    /// The connection is over.
    Over,
    /// It is over once the peer has read why.
    Refused,
}

/// Makes the handshake of a connection on which something has come; `early` was read already.
pub async fn handshake(worker: &Worker, downstream: &Rc<Downstream>, early: Bytes) -> Led {
    let Some(outcome) = Box::pin(attempt(worker, downstream, early)).await else {
        return Led::Over;
    };
    worker.counters.handshake(outcome);
    match outcome {
        Handshake::Full | Handshake::Resumed => {
            downstream.note_handshake();
            return Led::Done;
        }
        Handshake::Failed | Handshake::TimedOut => {
            worker.counters.connection_error(ConnectionError::Tls);
        }
        Handshake::Aborted => {}
    }
    if outcome == Handshake::Failed {
        Led::Refused
    } else {
        Led::Over
    }
}

/// How the handshake went; none where nothing of one was sent.
async fn attempt(worker: &Worker, downstream: &Rc<Downstream>, early: Bytes) -> Option<Handshake> {
    let config = worker.handshakes.config()?;
    let first = if early.is_empty() {
        downstream.peek_first().await
    } else {
        early.slice(..early.len().min(foreign::LONGEST))
    };
    if first.is_empty() {
        return None;
    }
    let foreign = Foreign::of(&first);
    if foreign != Some(Foreign::Tls) {
        if let Some(foreign) = foreign {
            foreign::tell(foreign, downstream.peer, "TLS", worker.clock.wall_ms());
        }
        if foreign == Some(Foreign::Http) {
            downstream.write_at_once(PLAIN);
        }
        return Some(Handshake::Failed);
    }
    let _under_way = worker.handshakes.enter(downstream);
    downstream.begin_tls(Session::new(config, early).ok()?);
    loop {
        match step(worker, downstream).await {
            Step::Again => {}
            Step::Ended(outcome) => return Some(outcome),
        }
    }
}

/// How far one step of a handshake came.
enum Step {
    Again,
    Ended(Handshake),
}

/// Waits for bytes, then for the turn, and goes on with the bytes. All others have theirs before
/// the next step of any handshake: it may cost a millisecond.
async fn step(worker: &Worker, downstream: &Downstream) -> Step {
    let has_come = poll_fn(|cx| {
        downstream.note_waker(cx);
        if downstream.ending().is_cut() {
            return Poll::Ready(false);
        }
        downstream.poll_handshake_ready(cx).map(|()| true)
    });
    if !has_come.await {
        return Step::Ended(Handshake::TimedOut);
    }
    let turn = worker.handshakes.turn().await;
    let advanced = poll_fn(|cx| Poll::Ready(downstream.advance_handshake(cx))).await;
    tokio::task::yield_now().await;
    drop(turn);
    match advanced {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::debug!(peer = %downstream.peer, %error, "a TLS handshake failed");
            Step::Ended(Handshake::Failed)
        }
        Err(_) => Step::Ended(Handshake::Aborted),
        Ok(Advanced::Done { resumed: true }) => Step::Ended(Handshake::Resumed),
        Ok(Advanced::Done { resumed: false }) => Step::Ended(Handshake::Full),
        Ok(Advanced::Closed) => Step::Ended(Handshake::Aborted),
        Ok(Advanced::UnderWay) => Step::Again,
    }
}
