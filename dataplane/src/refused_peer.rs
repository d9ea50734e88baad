//! A connection whose requests are refused whatever they ask for: answered here, before hyper, with
//! a few hundred bytes of state. That of a peer which is banned or denied; or that of a trusted
//! proxy, once it has named such clients many times in a row.
//!
//! Only the plain request is answered here: HTTP/1.1, a target that begins with `/`, no body, and
//! nothing asked of the connection but to close it. Everything else, and the health check, goes to
//! hyper with the bytes that were read, and is answered as on every other connection; so does the
//! request of a client who is let in. What is answered here is charged, counted and logged as
//! there.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::downstream::{Downstream, Ending};
use crate::exchange::refused::Refused;
use crate::identity::{Identity, Sender, identify};
use crate::plain::{self, Parsed, Plain};
use crate::refuse::{Dropped, refuse_client};
use crate::seen::Seen;
use crate::worker::{Current, Worker};

/// What becomes of the connection.
pub enum Next {
    /// Nothing is under way: the next request is awaited.
    Idle,
    /// hyper goes on, with what was read already.
    Ordinary(Bytes),
    /// It is closed.
    Over,
    /// It is cut.
    Cut(Ending),
}

/// Answers what can be read, until the connection is idle or another has to go on with it.
pub async fn serve(current: &Current, downstream: &Downstream) -> Next {
    let mut held = Held::default();
    poll_fn(|cx| {
        downstream.note_waker(cx);
        held.turn(current, downstream, cx)
    })
    .await
}

/// What a connection holds while it waits in the middle of something; mostly nothing.
#[derive(Default)]
struct Held {
    /// What was read and is not answered: a head that is not complete, or what follows an answer
    /// that is not written yet.
    read: Vec<u8>,
    /// It was waited for a request here.
    has_waited: bool,
    /// A whole head may be among it.
    may_be_whole: bool,
    /// What is left to write of an answer.
    unsent: Vec<u8>,
    /// The connection closes behind the answer.
    closes: bool,
}

/// How far one look at the connection came.
enum Step {
    /// The next request is awaited elsewhere.
    Idle,
    /// More has to be read.
    More,
    /// Nothing more can be read now.
    Wait,
    /// An answer has to be written to its end.
    Unsent,
    /// hyper is to go on.
    Ordinary,
    /// The connection ended, or ends here.
    Over,
}

impl Held {
    /// Goes on as far as it can without waiting.
    fn turn(
        &mut self,
        current: &Current,
        downstream: &Downstream,
        cx: &mut Context<'_>,
    ) -> Poll<Next> {
        let ending = downstream.ending();
        if ending.is_cut() {
            return Poll::Ready(Next::Cut(ending));
        }
        let worker = current.worker();
        loop {
            if !ready!(self.poll_send(downstream, cx)) {
                downstream.shutdown_write();
                return Poll::Ready(Next::Over);
            }
            // In a drain hyper tells the client that the connection ends.
            let step = match ending {
                _ if self.leaves(downstream, ending) => Step::Idle,
                Ending::Drain => Step::Ordinary,
                _ => worker.with_read_buffer(|buffer| self.step(&worker, downstream, buffer, cx)),
            };
            return Poll::Ready(match step {
                Step::More | Step::Unsent => continue,
                Step::Wait => {
                    self.has_waited = true;
                    return Poll::Pending;
                }
                Step::Idle => Next::Idle,
                Step::Ordinary => Next::Ordinary(std::mem::take(&mut self.read).into()),
                Step::Over => Next::Over,
            });
        }
    }

    /// Whether the connection is not to wait any longer for its next request here.
    fn leaves(&self, downstream: &Downstream, ending: Ending) -> bool {
        let told = ending == Ending::Drain || downstream.ends_with_next();
        told && self.has_waited && self.read.is_empty()
    }

    /// Writes what is left of an answer; false if the connection is over then.
    fn poll_send(&mut self, downstream: &Downstream, cx: &mut Context<'_>) -> Poll<bool> {
        while !self.unsent.is_empty() {
            match ready!(self.poll_write(downstream, &self.unsent, cx)) {
                Err(_) | Ok(0) => return Poll::Ready(false),
                Ok(written) => drop(self.unsent.drain(..written.min(self.unsent.len()))),
            }
        }
        self.unsent = Vec::new();
        Poll::Ready(!self.closes)
    }

    /// Writes a part of an answer; the last one goes together with the FIN that is right behind it.
    fn poll_write(
        &self,
        downstream: &Downstream,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.closes {
            return downstream.poll_write_last(cx, bytes);
        }
        downstream.poll_write(cx, bytes)
    }

    /// Reads what there is, behind what is held, and answers the requests in it.
    fn step(
        &mut self,
        worker: &Worker,
        downstream: &Downstream,
        buffer: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Step {
        let mut buffer = ReadBuf::new(buffer);
        // What is held came out of this buffer: it fits.
        buffer.put_slice(&self.read);
        if !std::mem::take(&mut self.may_be_whole) {
            if buffer.remaining() == 0 {
                return Step::Ordinary;
            }
            let held = self.read.len();
            match downstream.poll_read(cx, &mut buffer) {
                Poll::Pending => return Step::Wait,
                Poll::Ready(Ok(())) if buffer.filled().len() > held => {}
                Poll::Ready(_) => return Step::Over,
            }
        }
        let mut rest = buffer.filled();
        let step = loop {
            if rest.is_empty() {
                break Step::More;
            }
            let mut fields = [const { MaybeUninit::uninit() }; plain::MAX_FIELDS];
            let (head, length) = match Plain::parse(rest, &mut fields) {
                Parsed::Whole(head, length) => (head, length),
                Parsed::Partial => break Step::More,
                Parsed::Unusual => break Step::Ordinary,
            };
            let answer = match answer(worker, downstream, &head) {
                Some(Ok(answer)) => answer,
                Some(Err(Dropped)) => break Step::Over,
                None => break Step::Ordinary,
            };
            rest = rest.get(length..).unwrap_or_default();
            self.closes |= answer.closes;
            let written = match self.poll_write(downstream, &answer.bytes, cx) {
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(_)) => break Step::Over,
                Poll::Pending => 0,
            };
            if let Some(unsent @ [_, ..]) = answer.bytes.get(written..) {
                self.unsent = unsent.to_vec();
            }
            if self.closes || !self.unsent.is_empty() {
                self.may_be_whole = true;
                break Step::Unsent;
            }
        };
        // What is not needed is given back: the connection may be idle from now on (CONN-1).
        self.read = rest.to_vec();
        step
    }
}

/// An answer as it is written.
struct Answer {
    bytes: Vec<u8>,
    closes: bool,
}

/// Answers one request; none if it is not refused, or is the health check.
fn answer(
    worker: &Worker,
    downstream: &Downstream,
    head: &Plain<'_>,
) -> Option<Result<Answer, Dropped>> {
    if head.is_health_check() {
        return None;
    }
    downstream.take_settings(&worker.in_force);
    let now = worker.clock.now();
    let identity = identity(worker, downstream, head);
    let Some((decision, refusal)) = worker.refusal(identity.who(), now.wall_ms) else {
        downstream.note_let_in();
        return None;
    };
    downstream.begin_request();
    let Sender { peer, is_proxy, .. } = downstream.sender();
    if !is_proxy && let Some(line) = head.last_forwarded_for() {
        worker.forgotten_proxy.note(peer, line, now.wall_ms);
    }
    let refused = Refused {
        worker,
        downstream,
        head,
        identity: &identity,
        request_id: worker
            .request_ids
            .given_or_next(identity.request_id.as_ref()),
        decision,
        started: now,
        websocket: false,
    };
    let said = match refuse_client(&refused, &refusal) {
        Ok(said) => said,
        Err(dropped) => return Some(Err(dropped)),
    };
    let closes = said.closes || head.closes;
    let mut bytes = Vec::with_capacity(512 + said.body.len());
    worker.date.with(now.wall_ms, |date| {
        said.write(&refused.request_id, date, closes, &mut bytes);
    });
    if !head.is_head() {
        bytes.extend_from_slice(&said.body);
    }
    Some(Ok(Answer { bytes, closes }))
}

/// Whom the request comes from.
fn identity(worker: &Worker, downstream: &Downstream, head: &Plain<'_>) -> Identity {
    let sender = downstream.sender();
    if !sender.trusted {
        return Identity::of_peer(sender);
    }
    let settings = &worker.in_force.settings.identity;
    identify(sender, settings, head, Seen::of(head))
}
