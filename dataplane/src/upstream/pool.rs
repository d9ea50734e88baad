//! Upstream connections of one worker: made, and kept while idle.
//!
//! Nothing polls an idle connection. That the application closed it is noticed by the first poll
//! with a request in it, before anything is written, and without a system call: the runtime knows
//! from its event queue what can be read.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::TcpStream;
use weir_shared::settings::{Settings, Upstream};

use super::request_body::RequestBody;
use crate::clock::{CoarseClock, nanos};
use crate::keepalive::tcp_keepalive;

/// Idle connections a worker keeps at most.
const MAX_IDLE: usize = 256;
/// Head of an answer at most; larger is 502, and so are more than 100 fields: hyper parses up to
/// that number without an allocation, and with two for any other bound.
const MAX_HEAD: usize = 32 * 1024;

/// What hyper holds for one direction of a connection before it waits (CONN-1).
const MAX_BUFFER: usize = 32 * 1024;

/// One upstream connection: where requests are put in, and what moves them.
pub struct UpstreamConnection {
    /// Takes requests.
    pub sender: SendRequest<RequestBody>,
    /// The connection.
    pub driver: Driver,
    idle_since_ns: u64,
}

/// What moves a connection: whoever uses the connection polls it.
pub struct Driver {
    connection: Connection<TokioIo<TcpStream>, RequestBody>,
    over: bool,
}

impl Driver {
    /// Moves what can be moved; true once the connection is over.
    pub fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.over && Pin::new(&mut self.connection).poll(cx).is_ready() {
            // Its error, if any, was given to the request that waited. That an idle connection ends
            // is usual, and not logged.
            self.over = true;
        }
        self.over
    }

    /// The socket and what was read beyond the answer's head, after a 101.
    pub fn into_parts(self) -> (TcpStream, bytes::Bytes) {
        let parts = self.connection.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}

/// Why no connection was made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The application refused, or its name did not resolve.
    #[error("{upstream}: {source}")]
    Refused {
        /// `host:port`
        upstream: String,
        /// The system's error.
        source: io::Error,
    },
    /// No connection within `WAF_UPSTREAM_CONNECT_TIMEOUT`.
    #[error("{upstream}: no connection within {seconds} s")]
    TooSlow {
        /// `host:port`
        upstream: String,
        /// The time-out.
        seconds: f64,
    },
}

/// The pool of one worker.
pub struct Pool {
    #[expect(
        clippy::vec_box,
        reason = "a connection stays in its box while it goes from request to pool and back"
    )]
    idle: RefCell<Vec<Box<UpstreamConnection>>>,
    clock: Rc<CoarseClock>,
    upstream: Upstream,
    connect_timeout: Duration,
    answer_timeout: Duration,
    keep_ns: u64,
}

impl Pool {
    /// An empty pool.
    pub fn new(settings: &Settings, clock: Rc<CoarseClock>) -> Self {
        Self {
            idle: RefCell::default(),
            clock,
            upstream: settings.upstream.clone(),
            connect_timeout: settings.timeouts.upstream_connect,
            answer_timeout: settings.timeouts.upstream,
            keep_ns: nanos(settings.timeouts.upstream_keepalive),
        }
    }

    /// `WAF_UPSTREAM_TIMEOUT`
    pub const fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    /// The idle connection that was used last. Whether it still stands shows when it is driven with
    /// a request in it: hyper looks for the end of the stream before it writes, and gives back what
    /// it did not write.
    pub fn take(&self) -> Option<Box<UpstreamConnection>> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let connection = idle.pop()?;
            if !self.is_stale(&connection) && connection.sender.is_ready() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose answer has ended, if it can take another request.
    ///
    /// It is driven once more, to notice the end, and wakes nobody from then on: the task that used
    /// it last has no more to do with it.
    pub fn keep(&self, mut connection: Box<UpstreamConnection>) {
        let over = connection
            .driver
            .drive(&mut Context::from_waker(Waker::noop()));
        if over || !connection.sender.is_ready() || self.keep_ns == 0 {
            return;
        }
        connection.idle_since_ns = self.clock.mono_ns();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    /// Makes a connection; says how many microseconds it took.
    ///
    /// # Errors
    /// [`ConnectError`] once the application refused or `WAF_UPSTREAM_CONNECT_TIMEOUT` has passed.
    pub async fn connect(&self) -> Result<(Box<UpstreamConnection>, u64), ConnectError> {
        let Upstream { host, port } = &self.upstream;
        let name = || format!("{host}:{port}");
        let refused = |source| ConnectError::Refused {
            upstream: name(),
            source,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "a figure for the log, on which nothing depends"
        )]
        let started = std::time::Instant::now();
        let stream = tokio::time::timeout(
            self.connect_timeout,
            TcpStream::connect((host.as_str(), *port)),
        )
        .await
        .map_err(|_| ConnectError::TooSlow {
            upstream: name(),
            seconds: self.connect_timeout.as_secs_f64(),
        })?
        .map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        SockRef::from(&stream)
            .set_tcp_keepalive(&tcp_keepalive())
            .map_err(refused)?;
        let (sender, connection) = http1::Builder::new()
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| refused(io::Error::other(error)))?;
        let connection = UpstreamConnection {
            sender,
            driver: Driver {
                connection,
                over: false,
            },
            idle_since_ns: 0,
        };
        let microseconds = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok((Box::new(connection), microseconds))
    }

    /// Drops what has been idle for too long. Called on the worker's tick.
    pub fn sweep(&self) {
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.retain(|connection| !self.is_stale(connection));
        }
    }

    fn is_stale(&self, connection: &UpstreamConnection) -> bool {
        self.clock
            .mono_ns()
            .saturating_sub(connection.idle_since_ns)
            >= self.keep_ns
    }
}
