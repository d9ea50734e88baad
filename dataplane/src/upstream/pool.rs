//! Upstream connections of one worker: made, and kept while idle.
//!
//! Nothing polls an idle connection, and it has no buffer. It is looked at before it is used: one
//! that the application has closed, or has said something on, is not.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use weir_shared::settings::{Settings, Upstream};

use super::buffers::Buffers;
use crate::clock::{CoarseClock, nanos};
use crate::keepalive::tcp_keepalive;
use crate::listener::of_any_kind;

/// Idle connections a worker keeps at most.
const MAX_IDLE: usize = 1024;

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

/// A connection between two requests.
struct Idle {
    stream: TcpStream,
    since_ns: u64,
}

/// The pool of one worker.
pub struct Pool {
    idle: RefCell<Vec<Idle>>,
    /// Another has taken its place.
    retired: Cell<bool>,
    /// The buffers of its connections.
    pub buffers: Buffers,
    /// The worker's clock.
    pub clock: Rc<CoarseClock>,
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
            retired: Cell::new(false),
            buffers: Buffers::new(),
            clock,
            upstream: settings.upstream.clone(),
            connect_timeout: settings.timeouts.upstream_connect,
            answer_timeout: settings.timeouts.upstream,
            keep_ns: nanos(settings.timeouts.upstream_keepalive),
        }
    }

    /// Takes the place of another, which keeps nothing from now on.
    pub fn replace(&self, other: &Self) {
        other.retired.set(true);
        let idle = other.idle.take();
        if other.upstream == self.upstream {
            self.idle.replace(idle);
        }
    }

    /// `WAF_UPSTREAM_TIMEOUT`
    pub const fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    /// The idle connection that was used last, if it still stands.
    ///
    /// A request that may be sent again is content with what the runtime's event queue has told,
    /// which costs no system call. For one that may not, the socket itself is asked (FORWARD-5).
    pub fn take(&self, repeatable: bool) -> Option<TcpStream> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let each = idle.pop()?;
            if !self.is_stale(&each)
                && is_quiet_so_far(&each.stream)
                && (repeatable || is_quiet(&each.stream))
            {
                return Some(each.stream);
            }
        }
    }

    /// Keeps a connection that can take another request.
    pub fn keep(&self, stream: TcpStream) {
        let mut idle = self.idle.borrow_mut();
        if self.keep_ns > 0 && !self.retired.get() && idle.len() < MAX_IDLE {
            let since_ns = self.clock.mono_ns();
            idle.push(Idle { stream, since_ns });
        }
    }

    /// Makes a connection; says how many microseconds it took.
    ///
    /// # Errors
    /// [`ConnectError`] once the application refused or `WAF_UPSTREAM_CONNECT_TIMEOUT` has passed.
    pub async fn connect(&self) -> Result<(TcpStream, u64), ConnectError> {
        let name = || self.upstream.to_string();
        let refused = |source| ConnectError::Refused {
            upstream: name(),
            source,
        };
        let started = self.clock.now();
        let stream = tokio::time::timeout(self.connect_timeout, connect(&self.upstream))
            .await
            .map_err(|_| ConnectError::TooSlow {
                upstream: name(),
                seconds: self.connect_timeout.as_secs_f64(),
            })?
            .map_err(refused)?;
        Ok((stream, self.clock.since_us(started)))
    }

    /// Drops what has been idle for too long. Called on the worker's tick.
    pub fn sweep(&self) {
        self.buffers.pipes.sweep();
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.retain(|each| !self.is_stale(each));
        }
    }

    fn is_stale(&self, idle: &Idle) -> bool {
        self.clock.mono_ns().saturating_sub(idle.since_ns) >= self.keep_ns
    }
}

/// Connects; one over a Unix socket is of the same type, as those of clients are.
async fn connect(upstream: &Upstream) -> io::Result<TcpStream> {
    match upstream {
        Upstream::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            SockRef::from(&stream).set_tcp_keepalive(&tcp_keepalive())?;
            Ok(stream)
        }
        Upstream::Unix(path) => of_any_kind(UnixStream::connect(path).await?.into_std()?.into()),
    }
}

/// Whether nothing is known to have come: no byte, no end, no reset.
fn is_quiet_so_far(stream: &TcpStream) -> bool {
    would_block(stream.try_read(&mut [0]))
}

/// Whether nothing has come.
fn is_quiet(stream: &TcpStream) -> bool {
    would_block(SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]))
}

fn would_block(read: io::Result<usize>) -> bool {
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}
