//! The operator's way in: the control socket and the admin listener (CONTROL-1).
//!
//! One small thread with a runtime of its own, so that it answers while every connection of the
//! data plane is taken, and its requests pass no check and no limit. The routes are those of
//! `admin/`; `http.rs` carries one connection, `socket.rs` the file of the socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use weir_shared::settings::Settings;
use weir_shared::threads;

use crate::admin::door::Door;
use crate::events::Events;
use crate::wiring::ControlHandle;

mod http;
mod socket;

use http::Shared;
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

/// What was bound; nothing is answered yet.
pub struct Listeners {
    socket: Option<Socket>,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds what the settings ask for; an admin listener that a supervisor `passed` stands for
    /// that of the setting (RESTART-2). The state directory is locked before: a socket in it that
    /// nobody serves is a leftover.
    ///
    /// # Errors
    /// [`ListenError`], one sentence an operator can act on.
    pub fn bind(settings: &Settings, passed: Option<TcpListener>) -> Result<Self, ListenError> {
        let socket = settings.control_socket().map(Socket::claim).transpose()?;
        let bind = |address| {
            let bound = TcpListener::bind(address);
            bound.map_err(|error| ListenError::Admin { address, error })
        };
        let bound = || settings.endpoints.admin_listen.map(bind).transpose();
        let admin = match passed {
            Some(passed) => Some(passed),
            None => bound()?,
        };
        if let Some(admin) = &admin {
            admin
                .set_nonblocking(true)
                .map_err(|error| ListenError::Admin {
                    address: admin.local_addr().unwrap_or(([0, 0, 0, 0], 0).into()),
                    error,
                })?;
        }
        Ok(Self { socket, admin })
    }

    /// Where they are, for the log.
    pub fn places(&self) -> (Option<PathBuf>, Option<SocketAddr>) {
        let admin = self.admin.as_ref();
        (
            self.socket.as_ref().map(|socket| socket.path.clone()),
            admin.and_then(|admin| admin.local_addr().ok()),
        )
    }

    /// Starts the thread, where there is anything to listen on.
    ///
    /// # Errors
    /// The system refused it.
    pub fn start(self, control: &ControlHandle, events: Arc<Events>) -> io::Result<Server> {
        let (stop, stopped) = oneshot::channel();
        if self.socket.is_none() && self.admin.is_none() {
            return Ok(Server { stop, thread: None });
        }
        let shared = Arc::new(Shared::new(Arc::clone(&control.router), events));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = threads::spawn(THREAD, move || {
            let (socket, admin) = (Arc::clone(&shared), Arc::clone(&shared));
            let last = Arc::clone(&shared);
            runtime.spawn(watched(serve_socket(self.socket, socket)));
            runtime.spawn(watched(serve_admin(self.admin, admin)));
            runtime.spawn(watched(tell_what_was_missed(shared)));
            runtime.block_on(async {
                // An error is a handle that is gone, and the stop all the same.
                let _ = stopped.await;
                last.all_answered().await;
            });
        })?;
        Ok(Server {
            stop,
            thread: Some(thread),
        })
    }
}

/// The thread.
pub struct Server {
    stop: oneshot::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Ends the connections and the thread, and removes the socket.
    pub fn stop(self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

/// The end of one of the tasks is as that of the thread (ALIVE-2).
async fn watched(task: impl Future<Output = ()>) {
    let _alive = threads::Alive::new(THREAD);
    task.await;
}

async fn serve_socket(socket: Option<Socket>, shared: Arc<Shared>) {
    let Some(mut socket) = socket else {
        return std::future::pending().await;
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let own_uid = rustix::process::geteuid();
    loop {
        let listener = match socket.listener() {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("the control socket cannot be served: {error}");
                return std::future::pending().await;
            }
        };
        // Until the file is gone: somebody removed it, or the whole directory.
        loop {
            match timeout(SECOND, listener.accept()).await {
                Err(_) if socket.is_there() => {}
                Err(_) => break,
                Ok(Ok((stream, _))) => {
                    let peer = stream.peer_cred().map(|peer| peer.uid());
                    if !peer.is_ok_and(|uid| may_speak(uid, own_uid.as_raw())) {
                        tracing::warn!("the control socket was asked by another user: refused");
                        continue;
                    }
                    serve(stream, &places, &shared, Door::Socket).await;
                }
                Ok(Err(error)) => pause(&error).await,
            }
        }
        drop(listener);
        match Socket::claim(socket.path.clone()) {
            Ok(again) => {
                tracing::warn!("the control socket was gone and is made anew");
                socket = again;
            }
            // Not even the directory is there, or another took the place: looked at again.
            Err(_) => tokio::time::sleep(SECOND).await,
        }
    }
}

async fn serve_admin(listener: Option<TcpListener>, shared: Arc<Shared>) {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("the admin listener cannot be served: {error}");
            return std::future::pending().await;
        }
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve(stream, &places, &shared, Door::Admin).await,
            Err(error) => pause(&error).await,
        }
    }
}

/// Waits for a place, then serves the connection on a task of its own: a panic in it costs no more
/// than it.
async fn serve<S>(stream: S, places: &Arc<Semaphore>, shared: &Arc<Shared>, door: Door)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Never closed.
    let Ok(place) = Arc::clone(places).acquire_owned().await else {
        return;
    };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        http::serve(stream, shared, door).await;
        drop(place);
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
