//! How a connection ends: in stages, so that its last answer is not lost (CONN-14); before its
//! time, with last words; before its whole upload came, where nobody reads it; or for another
//! connection, where every place is taken (CONN-2, CONN-16).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::HeaderValue;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use weir_shared::totals::ConnectionError;

use crate::conn::{Downstream, Ending};
use crate::worker::counters::Counters;
use crate::worker::limits::Rank;

/// Bytes that a lingering close reads at most.
const LINGER_BYTES: usize = 1024 * 1024;
/// How long a lingering close waits for the client's next bytes, or its end.
const QUIET: Duration = Duration::from_secs(2);
/// For so long the client's bytes renew that, nanoseconds.
const LINGER_NS: u64 = 30_000_000_000;

/// Sends FIN, then reads and discards what the client still sends, until it has ended its side too
/// (CONN-14): closing with bytes unread would make the system send a reset, and the client would
/// lose the response that it has not read yet.
///
/// A connection that lingers is idle: it gives way to others, and ends where it is told to.
pub async fn linger(downstream: &Downstream) {
    downstream.shutdown_write();
    downstream.begin_linger();
    let began = downstream.ending();
    let mut quiet = pin!(tokio::time::sleep(QUIET));
    let since_ns = downstream.mono_ns();
    let mut left = LINGER_BYTES;
    let mut scratch = [0u8; 8192];
    poll_fn(|cx| {
        downstream.note_waker(cx);
        let ending = downstream.ending();
        let is_told = ending == Ending::Abort || ending != began && ending.is_cut();
        if is_told {
            return Poll::Ready(());
        }
        let before = left;
        while left > 0 {
            match downstream.discard(&mut scratch, false) {
                Some(0) => return Poll::Ready(()),
                Some(read) => left = left.saturating_sub(read),
                None if downstream.poll_arrival(cx).is_ready() => {}
                None if left == before => {
                    ready!(quiet.as_mut().poll(cx));
                    // Where the worker has stood still, something may have come that the runtime
                    // was not told of yet.
                    match downstream.discard(&mut scratch, true) {
                        Some(read @ 1..) => left = left.saturating_sub(read),
                        Some(0) | None => return Poll::Ready(()),
                    }
                }
                None => {
                    // It has sent something: its next bytes have their time from now on.
                    if downstream.mono_ns().saturating_sub(since_ns) < LINGER_NS {
                        quiet.set(tokio::time::sleep(QUIET));
                    }
                    return quiet.as_mut().poll(cx);
                }
            }
        }
        Poll::Ready(())
    })
    .await;
}

const REQUEST_TIMEOUT: &str =
    "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n";

const PANICKED: &str =
    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n";

/// Ends a connection before its time, with a response where one can still be sent.
pub async fn cut(counters: &Counters, downstream: &Downstream, ending: Ending) {
    let (kind, response) = match ending {
        Ending::HeadTimeout => (Some(ConnectionError::HeadTimeout), REQUEST_TIMEOUT),
        Ending::TooSlow | Ending::Displaced => (Some(ConnectionError::TooSlow), REQUEST_TIMEOUT),
        Ending::BodyTimeout => (None, REQUEST_TIMEOUT),
        Ending::Panicked => (Some(ConnectionError::Panic), PANICKED),
        Ending::No
        | Ending::Drain
        | Ending::Idle
        | Ending::Stalled
        | Ending::Refused
        | Ending::Abort => return,
    };
    if let Some(kind) = kind {
        counters.connection_error(kind);
    }
    // The head of a request that is late is the next one: the response before it was written.
    let is_free = ending == Ending::HeadTimeout || !downstream.is_answering();
    if is_free && !downstream.interim().is_begun() {
        downstream.write_at_once(&last_words(response, downstream.cut_request()));
    }
    // Another connection has its place already. Waiting for the client to close would hold two.
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

impl Downstream {
    fn begin_linger(&self) {
        {
            let mut watch = self.watch.borrow_mut();
            watch.lingers = true;
            watch.deadlines.begin_linger(self.clock.mono_ns());
        }
        self.tell_whether_it_gives_way();
    }

    /// Since when the connection may be closed for another, if it may.
    pub fn gives_way_since(&self) -> Option<u64> {
        self.watch.borrow().gives_way_since(self.clock.mono_ns())
    }

    /// Its place among those that may, if it is one of them; the size of its netblock is looked up
    /// where it is `sized`.
    pub fn rank(&self, sized: bool) -> Option<Rank> {
        let since_ns = self.gives_way_since()?;
        let size = if sized { self.slot.netblock_size() } else { 0 };
        Some(Rank { size, since_ns })
    }

    /// Ends it for another, which takes its place.
    pub fn give_way(&self) {
        self.watch.borrow_mut().give_way(self.clock.mono_ns());
    }

    /// The beginning of a body has come: the connection gives way no more.
    pub fn end_beginning(&self) {
        if self.deadlines().end_beginning() {
            self.slot.set_idle(false);
        }
    }

    /// Tells others whether it may.
    pub fn tell_whether_it_gives_way(&self) {
        self.slot.set_idle(self.gives_way_since().is_some());
    }
}

/// A connection with the rank that it had when it was looked at.
struct Candidate {
    rank: Rank,
    connection: Weak<Downstream>,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Candidate {}

/// Connections of one worker that may give way.
#[derive(Default)]
pub struct Candidates(BinaryHeap<Candidate>);

impl Candidates {
    /// Those of these connections that may, in place of all that were known.
    pub fn look(&mut self, open: &[Weak<Downstream>]) {
        let candidate = |connection: &Weak<Downstream>| {
            let rank = connection.upgrade()?.rank(true)?;
            let connection = Weak::clone(connection);
            Some(Candidate { rank, connection })
        };
        self.0 = open.iter().filter_map(candidate).collect();
    }

    /// Takes the one that goes first.
    pub fn next(&mut self) -> Option<(Rank, Rc<Downstream>)> {
        while let Some(Candidate { rank, connection }) = self.0.pop() {
            let Some(held) = connection.upgrade() else {
                continue;
            };
            // It may have been used meanwhile; or others of its netblock are gone, and another
            // netblock has more now.
            match held.rank(true) {
                Some(now) if now.since_ns != rank.since_ns => {}
                Some(now) if now.size < rank.size => {
                    let rank = now;
                    self.0.push(Candidate { rank, connection });
                }
                Some(now) => return Some((now, held)),
                None => {}
            }
        }
        None
    }

    /// Puts one back that was taken.
    pub fn put_back(&mut self, rank: Rank, connection: &Rc<Downstream>) {
        let connection = Rc::downgrade(connection);
        self.0.push(Candidate { rank, connection });
    }
}

impl Downstream {
    /// Whether the client has certainly gone, where the next read does not tell: something that it
    /// sent comes first, which is not read for now. It has reset the connection, or has ended its
    /// side with less of a body sent than it had announced. The end of its side alone says nothing:
    /// it may have sent all and wait for the response.
    pub(super) fn has_broken_off(&self) -> bool {
        let is_upload = self.upload().is_unread();
        if !is_upload && !self.sent_more.get() && !self.has_unread() {
            return false;
        }
        let io = self.io.borrow();
        let Some(socket) = io.socket() else {
            return false;
        };
        let ready = readiness(socket);
        if ready.is_write_closed() {
            return true;
        }
        // Over TLS the bytes are those of records.
        let can_count = is_upload && ready.is_read_closed() && !io.is_tls();
        can_count && rustix::io::ioctl_fionread(socket).is_ok_and(|left| self.upload().lacks(left))
    }
}

/// What the runtime was told of a socket, without asking the system.
fn readiness(socket: &TcpStream) -> Ready {
    let told = pin!(socket.ready(Interest::READABLE | Interest::WRITABLE));
    match told.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready,
        Poll::Ready(Err(_)) | Poll::Pending => Ready::EMPTY,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use tokio::net::TcpListener;
    use weir_shared::clock::Clock;
    use weir_shared::settings::ConnectionSettings;

    use super::*;
    use crate::conn::deadlines::{Deadlines, Timeouts};
    use crate::conn::{Arrival, PeerIs};
    use crate::worker::clock::CoarseClock;
    use crate::worker::limits::ConnectionLimits;

    /// CONN-16, CONN-2: a connection whose body came late is idle anew behind its answer. Whoever
    /// found none to close before looks again.
    #[test]
    fn a_connection_whose_body_came_is_idle_anew() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
            let settings = ConnectionSettings {
                max: 1,
                ..ConnectionSettings::default()
            };
            let limits = Arc::new(ConnectionLimits::new(&settings, 1));
            let slot = limits.enter(0, None, &Arc::default(), || false).ok();
            let (clock, manual) = Clock::manual(0);
            let clock = CoarseClock::new(clock);
            let arrival = Arrival {
                peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
                peer_is: PeerIs::Anybody,
                trusted: false,
                scheme: "http",
            };
            let timeouts = Timeouts {
                head_ns: u64::MAX,
                body_ns: u64::MAX,
                idle_ns: u64::MAX,
                send_ns: u64::MAX,
                min_rate: None,
            };
            let now = Rc::clone(&clock);
            let downstream =
                Downstream::new(stream.unwrap(), arrival, slot.unwrap(), now, timeouts);
            downstream.begin_request();
            downstream.timed(Deadlines::await_beginning);
            manual.advance_ms(1_000);
            clock.tick();
            downstream.tell_whether_it_gives_way();
            assert!(downstream.gives_way_since().is_some());
            let begun = limits.idle_begun(0);
            downstream.end_beginning();
            downstream.end_request();
            assert_eq!(limits.idle_begun(0), begun + 1);
        });
    }
}
