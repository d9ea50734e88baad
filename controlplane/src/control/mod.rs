//! The operator's way in: the control socket and the admin listener (CONTROL-1).
//!
//! One small thread with a runtime of its own, so that it answers while every connection of the
//! data plane is taken, and its requests pass no check and no limit. The routes are those of
//! `admin/`; `http.rs` carries one connection, `socket.rs` the file of the socket.

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

use http::Shared;
use places::Places;
pub use socket::SocketError;
pub(crate) use socket::occupied;
use socket::{Socket, may_speak};

/// Connections of the socket, and of the admin listener, that are served at the same time; further
/// ones wait in the system's queue. Descriptors for all of them are in the reserve (CONN-4).
const MAX_CONNECTIONS: usize = 16;
/// The name of the thread.
const THREAD: &str = "weir-operator";
/// How long accepting pauses after an error.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the file of the socket is looked for, and listeners are told what they missed.
const SECOND: Duration = Duration::from_secs(1);
/// How long a process that has handed over waits until it accepts no more.
const CLOSING: Duration = Duration::from_secs(1);

/// Why there is no way in.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The admin listener.
    #[error("WAF_ADMIN_LISTEN: {address} cannot be bound: {error}")]
    Admin {
        /// The setting.
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
    /// It stands for that of the setting, whatever the setting is: a supervisor passed it
    /// (RESTART-2).
    pub admin_is_given: bool,
}

/// What was bound; nothing is answered yet.
pub struct Listeners {
    socket: Option<Socket>,
    admin: Option<TcpListener>,
    admin_is_given: bool,
    /// A socket that was passed and is not asked for: its file goes once this process serves.
    unused: Option<Socket>,
}

impl Listeners {
    /// Takes what was `passed` and fits the settings, and binds the rest. The state directory is
    /// locked before, by this process or the one that passed: a socket in it that nobody serves is
    /// a leftover.
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
            admin
                .set_nonblocking(true)
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

    /// Where they are, for the log.
    pub fn places(&self) -> (Option<PathBuf>, Option<SocketAddr>) {
        let admin = self.admin.as_ref();
        (
            self.socket.as_ref().map(|socket| socket.path.clone()),
            admin.and_then(|admin| admin.local_addr().ok()),
        )
    }

    /// Starts the thread, where there is anything to listen on. It answers nothing before
    /// [`Server::open`].
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
                // An error is a start that failed.
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
                // An error is a handle that is gone, and the stop all the same.
                let _ = stopped.await;
                last.all_answered().await;
            });
            // What is still being judged may take seconds.
            runtime.shutdown_background();
        })?;
        server.thread = Some(thread);
        Ok(server)
    }
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|error| ListenError::Admin { address, error })
}

/// Whether a listener that was passed is the one of the setting. A port that the system chose is
/// kept.
fn is_at(admin: &TcpListener, wanted: Option<SocketAddr>) -> bool {
    let there = admin.local_addr();
    there.is_ok_and(|there| {
        wanted.is_some_and(|wanted| {
            wanted.ip() == there.ip() && [0, there.port()].contains(&wanted.port())
        })
    })
}

/// The sockets as they are at this moment, for a process that takes over.
struct Kept {
    socket: Option<OwnedFd>,
    /// Whether the file of the socket goes with it.
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

    /// The file was gone, and this is the socket now.
    fn renew(&mut self, socket: &Socket) {
        self.socket = socket.share().ok();
        self.is_own = Arc::clone(&socket.is_own);
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // Nothing panics while it is held.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread.
pub struct Server {
    stop: oneshot::Sender<()>,
    open: Option<oneshot::Sender<()>>,
    /// Dropped to accept no more.
    accepting: Option<watch::Sender<()>>,
    /// Disconnected once nothing is accepted any more.
    closed: mpsc::Receiver<()>,
    kept: Arc<Mutex<Kept>>,
    unused: Option<Socket>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// From now on the sockets are this process's, and operators are answered.
    pub fn open(&mut self) {
        lock(&self.kept).is_own.store(true, Ordering::Relaxed);
        if let Some(unused) = self.unused.take() {
            unused.is_own.store(true, Ordering::Relaxed);
        }
        if let Some(open) = self.open.take() {
            let _ = open.send(());
        }
    }

    /// The sockets, for a process that is to take over.
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

    /// Leaves the sockets to the process that has taken over: what comes from now on is accepted
    /// there. Connections that were accepted are answered until [`Self::stop`].
    pub fn leave(&mut self) {
        lock(&self.kept).is_own.store(false, Ordering::Relaxed);
        drop(self.accepting.take());
        // An error is that the thread has closed its listeners, or that it is late.
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

/// A panic of one of the tasks is as that of the thread (ALIVE-2). A task that has nothing to do
/// any more has dropped what it held, and is no fault.
async fn watched(task: impl Future<Output = ()>) {
    let _alive = threads::Alive::new(THREAD);
    task.await;
    std::future::pending().await
}

/// What both listeners have.
#[derive(Clone)]
struct Doors {
    shared: Arc<Shared>,
    /// Its other end is gone once nothing more is accepted.
    accepts: watch::Receiver<()>,
    /// Tells by its drop that the listener is closed.
    _has_closed: mpsc::Sender<()>,
}

impl Doors {
    /// The next connection; none where nothing more is accepted.
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
        // Until the file is gone: somebody removed it, or the whole directory.
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
            // Not even the directory is there, or another took the place: looked at again.
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

/// Waits for a place, then serves the connection on a task of its own: a panic in it costs no more
/// than it.
async fn serve<S>(stream: S, places: &Arc<Places>, shared: &Arc<Shared>, door: Door)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = places.take().await;
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
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
