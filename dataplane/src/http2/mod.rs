//! A connection that speaks HTTP/2: its socket, its streams, its end. Each stream is a request.

pub mod body;
pub mod flood;
pub mod service;
pub mod streams;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{self, Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_shared::totals::ConnectionError;

use crate::conn::close::linger;
use crate::conn::{Downstream, Ending};
use crate::http1::MAX_HEAD;
use crate::http2::body::{Output, Queued};
use crate::http2::flood::Fault;
use crate::http2::streams::Streams;
use crate::worker::Current;
use crate::worker::clock::CoarseClock;
use crate::worker::counters::Counters;

/// Streams that a client may have open at once.
const MAX_STREAMS: u32 = 128;
/// Bytes of a body that may be on their way, of a stream and of all of them: what the application
/// does not take is held until then.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a frame that a client may send: the least that there can be.
const MAX_FRAME: u32 = 16 * 1024;
/// Streams that a client may have given up before they were looked at, and those that the library
/// may refuse; more is a flood.
const MAX_GIVEN_UP: usize = 64;
const MAX_REFUSED: usize = 256;
/// How long a client may take to see that the connection ends, once nothing is under way.
const LAST_WORD_NS: u64 = 1_000_000_000;

/// Serves a connection to its end; `early` was read already.
pub async fn serve(current: Rc<Current>, downstream: Rc<Downstream>, early: Bytes) {
    let (streams, counters) = {
        let worker = current.worker();
        let streams = Streams::new(downstream, worker.clock.mono_ns());
        worker.http2.add(&streams);
        (streams, Arc::clone(&worker.counters))
    };
    let output = Output::new(&streams);
    let ended = drive(&current, &streams, &output, early).await;
    streams.finish(match ended {
        Ended::Cut(ending) => ending,
        Ended::Over(_) | Ended::Quiet | Ended::Worthless => Ending::Abort,
    });
    match ended {
        Ended::Over(Ok(())) => output.write_rest().await,
        Ended::Over(Err(error)) => {
            if let Some(fault) = streams.fault() {
                let (kind, reason) = match fault {
                    Fault::Flood => (ConnectionError::H2Flood, Reason::ENHANCE_YOUR_CALM),
                    Fault::NoSettings => (ConnectionError::BadRequest, Reason::PROTOCOL_ERROR),
                };
                counters.connection_error(kind);
                return last_word(&streams, &output, Some(reason), true).await;
            }
            // It has said so itself.
            let kind = kind_of(&error);
            if let Some(kind) = kind {
                counters.connection_error(kind);
            }
            output.write_rest().await;
            last_word(&streams, &output, None, kind.is_some()).await;
        }
        Ended::Quiet => {}
        Ended::Worthless => {
            counters.connection_error(ConnectionError::H2Flood);
            let reason = Some(Reason::ENHANCE_YOUR_CALM);
            last_word(&streams, &output, reason, true).await;
        }
        Ended::Cut(ending) => {
            let (reason, lingers) = cut(&counters, ending);
            last_word(&streams, &output, reason, lingers).await;
        }
    }
}

/// Says why a connection ends, and waits until the client has read it.
async fn last_word(streams: &Streams, output: &Output, reason: Option<Reason>, lingers: bool) {
    // What it does not take now may be lost: the connection ends.
    let _ = poll_fn(|cx| Poll::Ready(output.poll_flush(cx))).await;
    // Else it would stand in the middle of a frame.
    if let Some(reason) = reason.filter(|_| streams.is_flushed.get()) {
        let frame = flood::goaway(streams.last_stream(), reason);
        streams.connection.write_at_once(&frame);
    }
    if lingers {
        linger(&streams.connection).await;
    }
}

/// Why a connection does not go on.
enum Ended {
    /// The library has ended it.
    Over(Result<(), h2::Error>),
    /// It is cut.
    Cut(Ending),
    /// It was to end, and nothing is under way.
    Quiet,
    /// Too much of what came over it was no request, or asked for nothing (CONN-16).
    Worthless,
}

async fn drive(
    current: &Rc<Current>,
    streams: &Rc<Streams>,
    output: &Rc<Output>,
    early: Bytes,
) -> Ended {
    let downstream = &streams.connection;
    let clock = Rc::clone(&current.worker().clock);
    let counters = Arc::clone(&current.worker().counters);
    let (ours, clock_of) = (Rc::clone(streams), Rc::clone(&clock));
    let socket = Socket::new(ours, Rc::clone(output), clock_of, early);
    let mut protocol = Protocol::Begins(builder().handshake(socket));
    let mut ends_since = None;
    poll_fn(|cx| {
        downstream.note_waker(cx);
        let ending = downstream.ending();
        if ending.is_cut() {
            return Poll::Ready(Ended::Cut(ending));
        }
        let ends = streams.closes() || downstream.is_last();
        if ends && ends_since.is_none() {
            ends_since = Some(clock.mono_ns());
            protocol.end();
        }
        let is_late = |since: u64| clock.mono_ns().saturating_sub(since) >= LAST_WORD_NS;
        if ends_since.is_some_and(is_late) && streams.is_idle() {
            return Poll::Ready(Ended::Quiet);
        }
        let begin = |request, sink| service::begin(current, streams, output, request, sink);
        match catch_unwind(AssertUnwindSafe(|| {
            protocol.poll(cx, ends_since.is_some(), begin)
        })) {
            Ok(Poll::Pending) => {
                if let Poll::Ready(Err(_)) = output.poll_flush(cx) {
                    return Poll::Ready(Ended::Cut(Ending::Abort));
                }
                streams.settle();
                // Behind the last word it takes no notice of what comes.
                if ends_since.is_none() {
                    streams.count_refused(&counters);
                }
                if streams.is_worthless() {
                    return Poll::Ready(Ended::Worthless);
                }
                Poll::Pending
            }
            Ok(polled) => polled.map(Ended::Over),
            Err(_) => Poll::Ready(Ended::Cut(Ending::Panicked)),
        }
    })
    .await
}

/// The library's side of a connection.
enum Protocol {
    /// The client's preface is awaited.
    Begins(Handshake<Socket, Queued>),
    /// Streams are.
    Open(Connection<Socket, Queued>),
}

impl Protocol {
    /// Tells the client that no further stream is taken, if it can be told yet.
    fn end(&mut self) {
        if let Self::Open(connection) = self {
            connection.graceful_shutdown();
        }
    }

    /// Goes on with what there is, and hands over each request that has come.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ends: bool,
        mut begin: impl FnMut(Request<RecvStream>, SendResponse<Queued>),
    ) -> Poll<Result<(), h2::Error>> {
        loop {
            match self {
                Self::Begins(handshake) => {
                    let connection = ready!(Pin::new(handshake).poll(cx))?;
                    *self = Self::Open(connection);
                    if ends {
                        self.end();
                    }
                }
                Self::Open(connection) => match ready!(connection.poll_accept(cx)).transpose()? {
                    Some((request, sink)) => begin(request, sink),
                    None => return Poll::Ready(Ok(())),
                },
            }
        }
    }
}

fn builder() -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEAD as u32)
        .max_pending_accept_reset_streams(MAX_GIVEN_UP)
        .max_local_error_reset_streams(Some(MAX_REFUSED));
    builder
}

/// What is counted where the library has ended a connection; nothing where the client has.
fn kind_of(error: &h2::Error) -> Option<ConnectionError> {
    error.is_library().then(|| {
        if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
            ConnectionError::H2Flood
        } else {
            ConnectionError::BadRequest
        }
    })
}

/// What a client is told whose connection is cut, and whether it is waited for.
fn cut(counters: &Counters, ending: Ending) -> (Option<Reason>, bool) {
    let (kind, reason) = match ending {
        Ending::HeadTimeout => (ConnectionError::HeadTimeout, Reason::ENHANCE_YOUR_CALM),
        Ending::TooSlow => (ConnectionError::TooSlow, Reason::ENHANCE_YOUR_CALM),
        Ending::Panicked => (ConnectionError::Panic, Reason::INTERNAL_ERROR),
        Ending::Idle => return (Some(Reason::NO_ERROR), false),
        Ending::Displaced => {
            // Whoever takes the place has it already.
            counters.connection_error(ConnectionError::TooSlow);
            return (Some(Reason::ENHANCE_YOUR_CALM), false);
        }
        Ending::No
        | Ending::Drain
        | Ending::Stalled
        | Ending::BodyTimeout
        | Ending::Refused
        | Ending::Abort => return (None, false),
    };
    counters.connection_error(kind);
    (Some(reason), true)
}

/// The library's half of a client connection.
pub struct Socket {
    streams: Rc<Streams>,
    output: Rc<Output>,
    clock: Rc<CoarseClock>,
    /// What was read before the library had the connection.
    early: Bytes,
}

impl Socket {
    /// The half of the connection of these streams, of which `early` was read already.
    pub fn new(
        streams: Rc<Streams>,
        output: Rc<Output>,
        clock: Rc<CoarseClock>,
        early: Bytes,
    ) -> Self {
        Self {
            streams,
            output,
            clock,
            early,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.early.is_empty() {
            ready!(this.streams.connection.poll_read_frames(cx, buf))?;
        } else {
            let fits = this.early.len().min(buf.remaining());
            buf.put_slice(&this.early.split_to(fits));
        }
        let read = buf.filled().get(before..).unwrap_or_default();
        let scanned = this.streams.scan(read, this.clock.mono_ns());
        Poll::Ready(scanned.map_err(|_| io::Error::other("frames that end the connection")))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self {
            streams, output, ..
        } = self.get_mut();
        output.begin();
        let written = if output.gathers {
            ready!(output.poll_gather(cx, bufs))?
        } else {
            ready!(streams.connection.poll_write(cx, bufs))?
        };
        streams.budget.carried(written as u64);
        let mut left = written;
        for buf in bufs {
            let (sent, _) = buf.split_at_checked(left).unwrap_or((buf, &[]));
            streams.refused.sent(sent);
            left -= sent.len();
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The library asks for it behind each large frame. What is gathered is written once it has
    /// nothing more to say: by who serves the connection.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self {
            streams, output, ..
        } = self.get_mut();
        output.end_frame();
        if !output.gathers {
            ready!(streams.connection.poll_flush(cx))?;
            streams.is_flushed.set(true);
        }
        Poll::Ready(Ok(()))
    }

    /// Left to who serves the connection.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
