//! The entries of operators: the control socket and the admin listener (CONTROL-1).
//!
//! One small thread with a runtime of its own serves them. So they answer even if every connection
//! of the data plane is in use, and their requests meet no check and no limit. The routes are those
//! of `admin/`; `http.rs` serves one connection, `socket.rs` handles the file of the socket.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use weir_shared::settings::Settings;
use weir_shared::threads;

use crate::admin::door::Door;
use crate::events::Events;
use crate::wiring::ControlHandle;

mod http;
mod places;
mod socket;
mod write_timeout;

use http::Shared;
use places::Places;
pub use socket::SocketError;
pub(crate) use socket::occupied;
use socket::{Socket, may_speak};
use write_timeout::WriteTimeout;

/// The most connections of the socket, and of the admin listener, at the same time; further ones
/// wait in the system's queue. The reserve of descriptors covers all of them (CONN-4).
const MAX_CONNECTIONS: usize = 16;
/// The name of the thread.
const THREAD: &str = "weir-operator";
/// How long accepting pauses after an error.
const PAUSE: Duration = Duration::from_millis(100);
/// How often to look whether the file of the socket still exists, and to tell listeners how many
/// events they missed.
const SECOND: Duration = Duration::from_secs(1);
/// How long a process that has handed over waits until its thread has closed the listeners.
const CLOSING: Duration = Duration::from_secs(1);

/// Why operators' listeners could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The admin listener.
    #[error("WAF_ADMIN_LISTEN: {address} cannot be bound: {error}")]
    Admin {
        /// The address of the setting.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
}

/// Listening sockets of operators that pass from one process to another.
#[derive(Default)]
pub struct PassedOn {
    /// The control socket.
    pub socket: Option<OwnedFd>,
    /// The admin listener.
    pub admin: Option<TcpListener>,
    /// True if a supervisor passed it: it is used instead of the setting's address (RESTART-2).
    pub admin_is_given: bool,
}

/// Bound listeners that do not answer yet.
pub struct Listeners {
    socket: Option<Socket>,
    admin: Option<TcpListener>,
    admin_is_given: bool,
    /// A passed socket that the settings no longer name: its file is removed once this process
    /// serves.
    unused: Option<Socket>,
}

impl Listeners {
    /// Takes the `passed` listeners that fit the settings, and binds the others. The state
    /// directory must be locked, by this process or by the one that passed the listeners: an
    /// unserved socket in it is then a leftover.
    ///
    /// # Errors
    /// [`ListenError`], one sentence an operator can act on.
    pub fn bind(settings: &Settings, passed: PassedOn) -> Result<Self, ListenError> {
        let PassedOn {
            socket,
            admin,
            admin_is_given,
        } = passed;
        let passed = socket.and_then(Socket::passed);
        let (socket, unused) = match (settings.control_socket(), passed) {
            (Some(path), Some(passed)) if passed.is_at(&path) => (Some(passed), None),
            (path, passed) => (path.map(Socket::claim).transpose()?, passed),
        };
        let wanted = settings.endpoints.admin_listen;
        let admin = match admin.filter(|admin| admin_is_given || is_at(admin, wanted)) {
            Some(passed) => Some(passed),
            None => wanted.map(bind_admin).transpose()?,
        };
        if let Some(admin) = &admin {
            let set = admin.set_nonblocking(true);
            set.and_then(|()| keep_alive(admin).map_err(io::Error::from))
                .map_err(|error| ListenError::Admin {
                    address: admin.local_addr().unwrap_or(([0, 0, 0, 0], 0).into()),
                    error,
                })?;
        }
        Ok(Self {
            socket,
            admin,
            admin_is_given,
            unused,
        })
    }

    /// Their addresses, for the log.
    pub fn places(&self) -> (Option<PathBuf>, Option<SocketAddr>) {
        let admin = self.admin.as_ref();
        (
            self.socket.as_ref().map(|socket| socket.path.clone()),
            admin.and_then(|admin| admin.local_addr().ok()),
        )
    }

    /// Starts the thread, if there is any listener. It answers nothing before [`Server::open`].
    ///
    /// # Errors
    /// The system refused it.
    pub fn start(self, control: &ControlHandle, events: Arc<Events>) -> io::Result<Server> {
        let (stop, stopped) = oneshot::channel();
        let (open, opened) = oneshot::channel();
        let (accepting, accepts) = watch::channel(());
        let (has_closed, closed) = mpsc::channel();
        let kept = Arc::new(Mutex::new(Kept::of(&self)?));
        let mut server = Server {
            stop,
            open: Some(open),
            accepting: Some(accepting),
            closed,
            kept: Arc::clone(&kept),
            unused: self.unused,
            thread: None,
        };
        if self.socket.is_none() && self.admin.is_none() {
            return Ok(server);
        }
        let shared = Arc::new(Shared::new(Arc::clone(&control.router), events));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (socket, admin) = (self.socket, self.admin);
        let thread = threads::spawn(THREAD, move || {
            runtime.block_on(async {
                // An error means that the start has failed.
                if opened.await.is_err() {
                    return;
                }
                let last = Arc::clone(&shared);
                let doors = Doors {
                    shared: Arc::clone(&shared),
                    accepts,
                    _has_closed: has_closed,
                };
                tokio::spawn(watched(serve_socket(socket, kept, doors.clone())));
                tokio::spawn(watched(serve_admin(admin, doors)));
                tokio::spawn(watched(tell_what_was_missed(shared)));
                // An error means that the handle was dropped: that is a stop, too.
                let _ = stopped.await;
                last.all_answered().await;
            });
            // Does not wait for a long body that is still being checked: that may take seconds.
            runtime.shutdown_background();
        })?;
        server.thread = Some(thread);
        Ok(server)
    }
}

/// Has the system ask the clients of this listener whether they are still there, after a minute of
/// silence: a stream without news would keep the place of one that is gone for ever.
fn keep_alive(listener: &TcpListener) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(listener, true)?;
    sockopt::set_tcp_keepidle(listener, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(listener, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(listener, 4)
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|error| ListenError::Admin { address, error })
}

/// Whether a passed listener has the address of the setting. For port 0, the port that the system
/// chose is kept.
fn is_at(admin: &TcpListener, wanted: Option<SocketAddr>) -> bool {
    let there = admin.local_addr();
    there.is_ok_and(|there| {
        wanted.is_some_and(|wanted| {
            wanted.ip() == there.ip() && [0, there.port()].contains(&wanted.port())
        })
    })
}

/// Handles of the current sockets, to pass to a successor.
struct Kept {
    socket: Option<OwnedFd>,
    /// Whether this process removes the file of the socket.
    is_own: Arc<AtomicBool>,
    admin: Option<TcpListener>,
    admin_is_given: bool,
}

impl Kept {
    fn of(listeners: &Listeners) -> io::Result<Self> {
        let socket = listeners.socket.as_ref();
        let is_own = socket.map(|socket| Arc::clone(&socket.is_own));
        Ok(Self {
            socket: socket.map(Socket::share).transpose()?,
            is_own: is_own.unwrap_or_default(),
            admin: (listeners.admin.as_ref())
                .map(TcpListener::try_clone)
                .transpose()?,
            admin_is_given: listeners.admin_is_given,
        })
    }

    /// Replaces the control socket, whose file was removed, by the new one.
    fn renew(&mut self, socket: &Socket) {
        self.socket = socket.share().ok();
        self.is_own = Arc::clone(&socket.is_own);
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // Nothing panics while the lock is held.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of the thread.
pub struct Server {
    stop: oneshot::Sender<()>,
    open: Option<oneshot::Sender<()>>,
    /// Dropped to stop accepting.
    accepting: Option<watch::Sender<()>>,
    /// Disconnected once the listeners are closed.
    closed: mpsc::Receiver<()>,
    kept: Arc<Mutex<Kept>>,
    unused: Option<Socket>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to answer operators. From now on this process owns the sockets.
    pub fn open(&mut self) {
        lock(&self.kept).is_own.store(true, Ordering::Relaxed);
        if let Some(unused) = self.unused.take() {
            unused.is_own.store(true, Ordering::Relaxed);
        }
        if let Some(open) = self.open.take() {
            let _ = open.send(());
        }
    }

    /// Handles of the sockets, to pass to a successor.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn pass_on(&self) -> io::Result<PassedOn> {
        let kept = lock(&self.kept);
        let socket = kept.socket.as_ref().map(OwnedFd::try_clone).transpose()?;
        let admin = kept
            .admin
            .as_ref()
            .map(TcpListener::try_clone)
            .transpose()?;
        Ok(PassedOn {
            socket,
            admin,
            admin_is_given: kept.admin_is_given,
        })
    }

    /// Leaves the sockets to the process that has taken over: it accepts all new connections.
    /// Connections that were accepted here are answered until [`Self::stop`].
    pub fn leave(&mut self) {
        lock(&self.kept).is_own.store(false, Ordering::Relaxed);
        drop(self.accepting.take());
        // An error means that the thread has closed its listeners, or that it is late.
        let _ = self.closed.recv_timeout(CLOSING);
    }

    /// Ends the connections and the thread, and removes the socket unless another process has it.
    pub fn stop(self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

/// Reports a panic of a task like one of the thread (ALIVE-2). A task that returns normally is no
/// fault: it waits forever.
async fn watched(task: impl Future<Output = ()>) {
    let _alive = threads::Alive::new(THREAD);
    task.await;
    std::future::pending().await
}

/// The values that both listeners share.
#[derive(Clone)]
struct Doors {
    shared: Arc<Shared>,
    /// Its sender is dropped to stop accepting.
    accepts: watch::Receiver<()>,
    /// Its drop reports that the listener is closed.
    _has_closed: mpsc::Sender<()>,
}

impl Doors {
    /// The next connection; none once accepting has stopped.
    async fn accept<T>(&mut self, accepted: impl Future<Output = T>) -> Option<T> {
        let mut accepted = pin!(accepted);
        let mut closes = pin!(self.accepts.changed());
        poll_fn(|cx| {
            if closes.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            accepted.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

async fn serve_socket(socket: Option<Socket>, kept: Arc<Mutex<Kept>>, mut doors: Doors) {
    let Some(mut socket) = socket else {
        return;
    };
    let places = Arc::new(Places::new(MAX_CONNECTIONS));
    let own_uid = rustix::process::geteuid();
    loop {
        let listener = match socket.listener() {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("the control socket cannot be served: {error}");
                return;
            }
        };
        // Accepts until the file is gone: somebody removed it, or its directory.
        loop {
            let Some(accepted) = doors.accept(timeout(SECOND, listener.accept())).await else {
                return;
            };
            match accepted {
                Err(_) if socket.is_there() => {}
                Err(_) => break,
                Ok(Ok((stream, _))) => {
                    let peer = stream.peer_cred().map(|peer| peer.uid());
                    if !peer.is_ok_and(|uid| may_speak(uid, own_uid.as_raw())) {
                        tracing::warn!("the control socket was asked by another user: refused");
                        continue;
                    }
                    serve(stream, &places, &doors.shared, Door::Socket).await;
                }
                Ok(Err(error)) => pause(&error).await,
            }
        }
        drop(listener);
        match Socket::claim(socket.path.clone()) {
            Ok(again) => {
                tracing::warn!("the control socket was gone and is made anew");
                lock(&kept).renew(&again);
                socket = again;
            }
            // The directory is gone, or another socket has the path: tried again later.
            Err(_) => tokio::time::sleep(SECOND).await,
        }
    }
}

async fn serve_admin(listener: Option<TcpListener>, mut doors: Doors) {
    let Some(listener) = listener else {
        return;
    };
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("the admin listener cannot be served: {error}");
            return;
        }
    };
    let places = Arc::new(Places::new(MAX_CONNECTIONS));
    while let Some(accepted) = doors.accept(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => serve(stream, &places, &doors.shared, Door::Admin).await,
            Err(error) => pause(&error).await,
        }
    }
}

/// Waits for a place, then serves the connection on a task of its own, so that a panic costs only
/// this connection.
async fn serve<S>(stream: S, places: &Arc<Places>, shared: &Arc<Shared>, door: Door)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = places.take().await;
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let stream = WriteTimeout::new(stream);
        let mut served = pin!(http::serve(stream, shared, door, &place));
        let mut gives_way = pin!(place.gives_way());
        let ends = poll_fn(|cx| {
            let ends =
                served.as_mut().poll(cx).is_ready() || gives_way.as_mut().poll(cx).is_ready();
            if ends { Poll::Ready(()) } else { Poll::Pending }
        });
        ends.await;
    });
}

async fn pause(error: &io::Error) {
    tracing::warn!("a connection of an operator was not accepted: {error}");
    tokio::time::sleep(PAUSE).await;
}

async fn tell_what_was_missed(shared: Arc<Shared>) {
    let mut second = tokio::time::interval(SECOND);
    loop {
        second.tick().await;
        shared.events.turn();
    }
}
