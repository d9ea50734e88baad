//! The listeners: every worker has one at each place of `WAF_LISTEN`. A second instance of the
//! service is noticed.

mod file;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use weir_shared::settings::{Listen, Place, Settings};

pub use self::file::SocketFile;
use self::file::{BACKLOG, claim, occupied};
use crate::counters::WorkerCounters;
use crate::keepalive::tcp_keepalive;

/// A listening socket: of TCP or of a Unix socket, which differ in how a connection is accepted.
pub struct Listening {
    /// The socket. The type is that of TCP; it is told apart by its place.
    pub socket: TcpListener,
    /// Where it listens.
    pub listen: Listen,
}

/// A listening socket that another process passed.
pub struct Passed {
    /// The socket, of TCP or a Unix socket.
    pub socket: OwnedFd,
    /// Whether TLS is spoken there.
    pub tls: bool,
}

/// The listeners, bound before anything else is started so that a failure is known at once.
pub struct Bound {
    /// What each worker serves, with its counters.
    workers: Vec<(Vec<Listening>, WorkerCounters)>,
    /// Every place, with the port that the system chose where none was given.
    places: Vec<Listen>,
    /// The sockets, each once: for the process that takes over.
    sockets: Vec<Listening>,
    files: Vec<SocketFile>,
}

/// Why a place could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("WAF_LISTEN={listen}: cannot be bound: {source}")]
pub struct BindError {
    listen: Listen,
    source: io::Error,
}

/// Whether a start could bind the place now. Nothing listens there meanwhile.
///
/// # Errors
/// [`BindError`], as a start would tell it.
pub fn can_be_bound(listen: &Listen) -> Result<(), BindError> {
    let bind = || match &listen.place {
        Place::Tcp(address) => {
            let socket = stream_socket(*address)?;
            socket.set_reuse_address(true)?;
            socket.bind(&(*address).into())
        }
        Place::Unix(path) => occupied(path),
    };
    let failed = |source| BindError {
        listen: listen.clone(),
        source,
    };
    bind().map_err(failed)
}

/// Why passed sockets cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// There is none.
    #[error("no listening socket was passed")]
    None,
    /// Connections that wait at a socket without a worker would never be answered.
    #[error("WAF_WORKERS={workers}: {sockets} sockets listen on {listen}, and each wants a worker")]
    Workers {
        /// How many were passed for one place.
        sockets: usize,
        /// The place.
        listen: Listen,
        /// `WAF_WORKERS`
        workers: usize,
    },
    /// It is no socket that listens for streams.
    #[error("a listening socket of TCP or a Unix socket is expected")]
    NotListening,
    /// The system refused it.
    #[error("a passed socket cannot be served: {0}")]
    System(#[from] io::Error),
}

impl Bound {
    /// Binds one listener a worker to each address, and every Unix socket once for all of them.
    ///
    /// # Errors
    /// [`BindError`] if a place is in use, also by another instance of this service:
    /// `SO_REUSEPORT` alone would let two share a port unnoticed, so the address is bound without
    /// it first.
    pub fn new(settings: &Settings) -> Result<Self, BindError> {
        let mut bound = Self::empty(settings.workers);
        for listen in &settings.listen {
            let only_v6 = has_v4_twin(listen, &settings.listen);
            let taken = match &listen.place {
                Place::Tcp(address) => bound.bind_address(*address, only_v6, listen.tls),
                Place::Unix(path) => {
                    claim(path, settings.socket_mode).and_then(|(socket, file)| {
                        bound.files.push(file);
                        bound.share(vec![socket.into()], listen.clone())
                    })
                }
            };
            taken.map_err(|source| BindError {
                listen: listen.clone(),
                source,
            })?;
        }
        Ok(bound)
    }

    /// Takes sockets that listen already, of a supervisor (RESTART-2) or of the process before
    /// (RESTART-1). Where there are fewer for a place than workers, they are shared. The files of
    /// Unix sockets are left to whoever passed them.
    ///
    /// # Errors
    /// One sentence: they cannot be used.
    pub fn passed(passed: Vec<Passed>, workers: usize) -> Result<Self, PassedError> {
        if passed.is_empty() {
            return Err(PassedError::None);
        }
        let mut places: Vec<(Listen, Vec<TcpListener>)> = Vec::new();
        for Passed { socket, tls } in passed {
            let socket = Socket::from(socket);
            let place = place_of(&socket)?;
            let listen = Listen { place, tls };
            set_options(&socket, &listen)?;
            match places.iter_mut().find(|(other, _)| *other == listen) {
                Some((_, sockets)) => sockets.push(socket.into()),
                None => places.push((listen, vec![socket.into()])),
            }
        }
        let mut bound = Self::empty(workers);
        for (listen, sockets) in places {
            if sockets.len() > workers {
                return Err(PassedError::Workers {
                    sockets: sockets.len(),
                    listen,
                    workers,
                });
            }
            bound.share(sockets, listen)?;
        }
        Ok(bound)
    }

    fn empty(workers: usize) -> Self {
        let worker = || (Vec::new(), WorkerCounters::default());
        Self {
            workers: (0..workers).map(|_| worker()).collect(),
            places: Vec::new(),
            sockets: Vec::new(),
            files: Vec::new(),
        }
    }

    fn bind_address(&mut self, address: SocketAddr, only_v6: bool, tls: bool) -> io::Result<()> {
        if address.port() != 0 {
            drop(listener(address, only_v6, false)?);
        }
        let first = listener(address, only_v6, true)?;
        let address = first.local_addr()?;
        let mut sockets = vec![first];
        for _ in 1..self.workers.len() {
            sockets.push(listener(address, only_v6, true)?);
        }
        let place = Place::Tcp(address);
        self.share(sockets, Listen { place, tls })
    }

    /// Gives each worker one of the sockets of a place; there are at most as many as workers.
    fn share(&mut self, sockets: Vec<TcpListener>, listen: Listen) -> io::Result<()> {
        let all = sockets.iter().cycle();
        for ((listening, _), socket) in self.workers.iter_mut().zip(all) {
            listening.push(Listening {
                socket: socket.try_clone()?,
                listen: listen.clone(),
            });
        }
        let once = sockets.into_iter().map(|socket| Listening {
            socket,
            listen: listen.clone(),
        });
        self.sockets.extend(once);
        self.places.push(listen);
        Ok(())
    }

    /// The listening sockets, for the process that takes over, and the files of those that were
    /// bound here, which are removed when they are dropped.
    pub fn take_sockets(&mut self) -> (Vec<Listening>, Vec<SocketFile>) {
        let sockets = std::mem::take(&mut self.sockets);
        (sockets, std::mem::take(&mut self.files))
    }

    /// Every place, with the port that the system chose where none was given.
    pub fn places(&self) -> &[Listen] {
        &self.places
    }

    /// The port of the first place of TLS.
    pub fn https_port(&self) -> Option<u16> {
        let first = self.places.iter().find(|listen| listen.tls)?;
        first.address().map(|address| address.port())
    }

    /// Whether one of the places is a Unix socket.
    pub fn has_unix_socket(&self) -> bool {
        let mut places = self.places.iter();
        places.any(|listen| matches!(listen.place, Place::Unix(_)))
    }

    /// The counters of each worker.
    pub fn counters(&self) -> impl Iterator<Item = &WorkerCounters> {
        self.workers.iter().map(|(_, counters)| counters)
    }

    /// What each worker serves, with its counters.
    pub fn into_workers(self) -> impl Iterator<Item = (Vec<Listening>, WorkerCounters)> {
        self.workers.into_iter()
    }
}

/// Whether an IPv4 address is listened on at the same port as all of IPv6: this one then takes no
/// IPv4 connections.
fn has_v4_twin(listen: &Listen, all: &[Listen]) -> bool {
    let Some(address) = listen.address().filter(SocketAddr::is_ipv6) else {
        return false;
    };
    let others = all.iter().filter_map(Listen::address);
    let mut v4 = others.filter(SocketAddr::is_ipv4);
    address.port() != 0 && v4.any(|other| other.port() == address.port())
}

fn listener(address: SocketAddr, only_v6: bool, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = stream_socket(address)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if only_v6 {
        socket.set_only_v6(true)?;
    }
    set_options(&socket, &Listen::plain(address))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

fn set_options(socket: &Socket, listen: &Listen) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    if let Place::Unix(_) = listen.place {
        return Ok(());
    }
    // A connection has these options from its listener, without a system call of its own.
    socket.set_tcp_keepalive(&tcp_keepalive())?;
    socket.set_tcp_nodelay(true)
}

/// Where a socket that was passed listens.
fn place_of(socket: &Socket) -> Result<Place, PassedError> {
    let socket = SockRef::from(socket);
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Err(PassedError::NotListening);
    }
    let address: SockAddr = socket.local_addr()?;
    let tcp = address.as_socket().map(Place::Tcp);
    let unix = || Some(Place::Unix(address.as_pathname()?.to_owned()));
    tcp.or_else(unix).ok_or(PassedError::NotListening)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(listen: &str) -> Settings {
        let variables = [
            ("WAF_UPSTREAM", "http://127.0.0.1:9"),
            ("WAF_LISTEN", listen),
            ("WAF_WORKERS", "2"),
        ];
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        weir_shared::settings::load(owned).unwrap().settings
    }

    /// SETTING-2: a second instance on the same address is noticed, although the workers share
    /// their port.
    #[test]
    fn a_port_in_use_is_noticed() {
        let bound = Bound::new(&settings("127.0.0.1:0")).unwrap();
        let taken = bound.places()[0].to_string();
        let error = Bound::new(&settings(&taken)).map(|_| ()).unwrap_err();
        let error = error.to_string();
        let expected = format!("WAF_LISTEN={taken}: cannot be bound: ");
        assert!(error.starts_with(&expected), "{error}");
    }

    /// EDGE-1: all of IPv4 and all of IPv6 on one port, as two places.
    #[test]
    fn both_families_share_a_port() {
        let first = Bound::new(&settings("0.0.0.0:0")).unwrap();
        let port = first.places()[0].address().unwrap().port();
        drop(first);
        let both = format!("0.0.0.0:{port},[::]:{port}");
        let bound = Bound::new(&settings(&both)).unwrap();
        assert_eq!(bound.places().len(), 2);
        assert!(
            bound
                .into_workers()
                .all(|(listening, _)| listening.len() == 2)
        );
    }
}
