//! The listeners: one a worker on the same address. A second instance of the service is noticed.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::counters::WorkerCounters;
use crate::keepalive::tcp_keepalive;

/// Connections the system queues for a listener.
const BACKLOG: i32 = 4096;

/// The listeners, bound before anything else is started so that a failure is known at once.
pub struct Bound {
    /// One a worker, with the counters of the worker that will serve it: there are never fewer of
    /// the one than of the other.
    listeners: Vec<(TcpListener, WorkerCounters)>,
    address: SocketAddr,
}

/// Why the address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("WAF_LISTEN={address}: cannot be bound: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Whether a start could bind the address now. Nothing listens there meanwhile.
///
/// # Errors
/// [`BindError`], as a start would tell it.
pub fn can_be_bound(address: SocketAddr) -> Result<(), BindError> {
    let bind = || {
        let socket = stream_socket(address)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())
    };
    bind().map_err(|source| BindError { address, source })
}

/// Why passed sockets cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// There is none.
    #[error("no listening socket was passed")]
    None,
    /// Connections that wait at a socket without a worker would never be answered.
    #[error("WAF_WORKERS={workers}: there are {sockets} listening sockets, each wants a worker")]
    Workers {
        /// How many were passed.
        sockets: usize,
        /// `WAF_WORKERS`
        workers: usize,
    },
    /// The system refused it.
    #[error("a passed socket cannot be served: {0}")]
    System(#[from] io::Error),
}

impl Bound {
    /// Binds one listener a worker to the same address.
    ///
    /// # Errors
    /// [`BindError`] if the address is in use, also by another instance of this service:
    /// `SO_REUSEPORT` alone would let two share a port unnoticed, so the address is bound without
    /// it first.
    pub fn new(address: SocketAddr, workers: usize) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        if address.port() != 0 {
            drop(listener(address, false).map_err(failed)?);
        }
        let first = listener(address, true).map_err(failed)?;
        let address = first.local_addr().map_err(failed)?;
        let mut listeners = vec![(first, WorkerCounters::default())];
        for _ in 1..workers {
            let listener = listener(address, true).map_err(failed)?;
            listeners.push((listener, WorkerCounters::default()));
        }
        Ok(Self { listeners, address })
    }

    /// Takes sockets that listen already, of a supervisor (RESTART-2) or of the process before
    /// (RESTART-1). Fewer than workers are shared among them.
    ///
    /// # Errors
    /// One sentence: they cannot be used.
    pub fn passed(passed: Vec<TcpListener>, workers: usize) -> Result<Self, PassedError> {
        let first = passed.first().ok_or(PassedError::None)?;
        let address = first.local_addr()?;
        if passed.len() > workers {
            return Err(PassedError::Workers {
                sockets: passed.len(),
                workers,
            });
        }
        let shared = passed.iter().cycle().take(workers).skip(passed.len());
        let shared: Vec<TcpListener> = shared
            .map(TcpListener::try_clone)
            .collect::<io::Result<_>>()?;
        let all = passed.into_iter().chain(shared).map(|listener| {
            let socket = Socket::from(listener);
            set_options(&socket)?;
            Ok((socket.into(), WorkerCounters::default()))
        });
        Ok(Self {
            listeners: all.collect::<io::Result<_>>()?,
            address,
        })
    }

    /// The listening sockets once more, for the process that takes over.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn sockets(&self) -> io::Result<Vec<TcpListener>> {
        self.listeners
            .iter()
            .map(|(listener, _)| listener.try_clone())
            .collect()
    }

    /// The address, with the port that the system chose where none was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counters of each worker.
    pub fn counters(&self) -> impl Iterator<Item = &WorkerCounters> {
        self.listeners.iter().map(|(_, counters)| counters)
    }

    /// The listeners, each with the counters of its worker.
    pub fn into_listeners(self) -> impl Iterator<Item = (TcpListener, WorkerCounters)> {
        self.listeners.into_iter()
    }
}

fn listener(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = stream_socket(address)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    set_options(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

fn set_options(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // A connection has these options from its listener, without a system call of its own.
    socket.set_tcp_keepalive(&tcp_keepalive())?;
    socket.set_tcp_nodelay(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SETTING-2: a second instance on the same address is noticed, although the workers share
    /// their port.
    #[test]
    fn a_port_in_use_is_noticed() {
        let bound = Bound::new(([127, 0, 0, 1], 0).into(), 2).unwrap();
        let error = Bound::new(bound.address(), 2)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!(
                "WAF_LISTEN={}: cannot be bound: ",
                bound.address()
            )),
            "{error}"
        );
    }
}
