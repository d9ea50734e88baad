//! The listeners: every worker has one at each place of `WAF_LISTEN`, of TCP or a Unix socket. A
//! second instance of the service is noticed. The file of a Unix socket is replaced where a kill
//! left it, has its mode before anybody can connect, and is removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpStream, UnixListener};
use weir_shared::client::fold;
use weir_shared::settings::{Listen, Place, Settings};

use crate::conn::transport::tcp_keepalive;
use crate::worker::counters::WorkerCounters;

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
#[error("WAF_LISTEN={listen}: cannot be bound: {source}{}", hint(.listen, .source))]
pub struct BindError {
    listen: Listen,
    source: io::Error,
}

/// What a refusal of the system is mostly about.
fn hint(listen: &Listen, error: &io::Error) -> &'static str {
    let is_low = matches!(listen.place, Place::Tcp(address) if address.port() < 1024);
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_low => {
            "; a port below 1024 needs root or CAP_NET_BIND_SERVICE"
        }
        _ => "",
    }
}

/// Whether a start could bind the place now. Nothing listens there meanwhile.
///
/// # Errors
/// [`BindError`], as a start would tell it.
pub fn can_be_bound(listen: &Listen) -> Result<(), BindError> {
    let free = || match &listen.place {
        Place::Tcp(address) => bind(*address, false, false).map(drop),
        Place::Unix(path) => occupied(path),
    };
    let failed = |source| BindError {
        listen: listen.clone(),
        source,
    };
    free().map_err(failed)
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
            // It does not listen: whoever connected meanwhile would be reset when it is closed.
            drop(bind(address, only_v6, false)?);
        }
        let first = listener(address, only_v6)?;
        let address = first.local_addr()?;
        let mut sockets = vec![first];
        for _ in 1..self.workers.len() {
            sockets.push(listener(address, only_v6)?);
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

fn listener(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = bind(address, only_v6, true)?;
    set_options(&socket, &Listen::plain(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A socket of this address, which does not listen yet. Without `reuse_port` it fails where another
/// listens there already.
fn bind(address: SocketAddr, only_v6: bool, reuse_port: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if only_v6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
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

/// Connections the system queues for a listener.
pub(super) const BACKLOG: i32 = 4096;

/// The file of a socket that listens. Dropping it removes the file.
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: what another made there meanwhile is not removed.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file at this path, which from now on belongs to this process.
    ///
    /// # Errors
    /// There is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            identity: identity(path)?,
            path: path.to_owned(),
        })
    }

    /// Leaves the file where it is: another process serves the socket.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at this path. A socket that nobody serves is replaced.
///
/// # Errors
/// Another service answers there, something else lies there, or the system refuses.
pub(super) fn claim(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    occupied(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::of(path)?;
    // Before it listens: until then nobody can connect.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    Ok((socket, file))
}

/// Whether the path is free; a socket that nobody serves does not stand in the way.
///
/// # Errors
/// What stands in the way.
pub(super) fn occupied(path: &Path) -> io::Result<()> {
    let in_the_way = |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            in_the_way("it is there and is no socket; move it away")
        }
        Ok(_) if UnixStream::connect(path).is_ok() => in_the_way("another service listens there"),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// A listening socket.
pub struct Listener {
    socket: Kind,
    /// Whether TLS is spoken there.
    pub tls: bool,
}

enum Kind {
    Tcp(tokio::net::TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted.
pub struct Accepted {
    /// The connection. One over a Unix socket is of the same type: all that is done with it is done
    /// with its descriptor, and what is TCP's alone (its addresses) is not asked for.
    pub stream: TcpStream,
    /// The address of the peer, folded to IPv4 where it stands for an IPv4 address; none of a Unix
    /// socket.
    pub peer: Option<IpAddr>,
}

impl Listener {
    /// The socket, in the runtime of this thread.
    ///
    /// # Errors
    /// The runtime cannot take it.
    pub fn new(listening: Listening) -> io::Result<Self> {
        let tls = listening.listen.tls;
        let socket = match listening.listen.place {
            Place::Tcp(_) => Kind::Tcp(tokio::net::TcpListener::from_std(listening.socket)?),
            Place::Unix(_) => {
                let socket =
                    std::os::unix::net::UnixListener::from(OwnedFd::from(listening.socket));
                Kind::Unix(UnixListener::from_std(socket)?)
            }
        };
        Ok(Self { socket, tls })
    }

    /// The next connection.
    ///
    /// # Errors
    /// That of the system.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Kind::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                let peer = Some(fold(peer.ip()));
                Ok(Accepted { stream, peer })
            }
            Kind::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                let stream = of_any_kind(stream.into_std()?.into())?;
                Ok(Accepted { stream, peer: None })
            }
        }
    }
}

/// A connection, whatever socket it is of.
///
/// # Errors
/// The runtime cannot take it.
pub fn of_any_kind(stream: OwnedFd) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(stream))
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
        // Somebody else may be given the port meanwhile.
        let bound = (0..10).find_map(|_| {
            let first = Bound::new(&settings("0.0.0.0:0")).unwrap();
            let port = first.places()[0].address().unwrap().port();
            drop(first);
            Bound::new(&settings(&format!("0.0.0.0:{port},[::]:{port}"))).ok()
        });
        let bound = bound.unwrap();
        assert_eq!(bound.places().len(), 2);
        assert!(
            bound
                .into_workers()
                .all(|(listening, _)| listening.len() == 2)
        );
    }
}

#[cfg(test)]
mod file_tests {
    use super::*;

    /// EDGE-1: the mode is that of the setting; a leftover is replaced, a socket in use and another
    /// file are not; the file goes with the socket, unless another serves it.
    #[test]
    fn a_leftover_is_replaced_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("weir-socket-file-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("weir.sock");
        let fault = |path: &Path| claim(path, 0o600).err().unwrap().to_string();

        let (socket, file) = claim(&path, 0o640).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fault(&path), "another service listens there");
        drop(socket);
        file.leave();
        assert!(path.exists());
        let (_socket, file) = claim(&path, 0o600).unwrap();
        drop(file);
        assert!(!path.exists());
        fs::write(&path, "a note").unwrap();
        assert_eq!(fault(&path), "it is there and is no socket; move it away");
        fs::remove_dir_all(&dir).unwrap();
    }
}
