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

    /// Takes a socket that listens already, for all workers: a supervisor passed it (RESTART-2).
    ///
    /// # Errors
    /// The system refused to share or to set it.
    pub fn passed(listener: TcpListener, workers: usize) -> io::Result<Self> {
        let socket = Socket::from(listener);
        set_options(&socket)?;
        let first = TcpListener::from(socket);
        let address = first.local_addr()?;
        let others = (1..workers).map(|_| first.try_clone());
        let others: Vec<TcpListener> = others.collect::<io::Result<_>>()?;
        let listeners = std::iter::once(first).chain(others);
        let listeners = listeners.map(|listener| (listener, WorkerCounters::default()));
        Ok(Self {
            listeners: listeners.collect(),
            address,
        })
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
