//! What systemd, or a supervisor that speaks as it does, is told, and the sockets that it passes
//! (RESTART-2; sd_notify(3), sd_listen_fds(3)). Without one, nothing of this does anything.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use sd_notify::NotifyState;
use weir_dataplane::Passed;

/// Tells the supervisor how the service is.
pub struct Supervisor {
    watchdog: Option<Watchdog>,
}

/// The supervisor restarts a service that does not call in time.
struct Watchdog {
    every: Duration,
    next: Instant,
}

impl Supervisor {
    /// The supervisor that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`), if any.
    pub fn of_environment() -> Self {
        let watchdog = sd_notify::watchdog_enabled().map(|within| Watchdog {
            // Half of the time, as sd_watchdog_enabled(3) advises.
            every: within / 2,
            next: Instant::now(),
        });
        Self { watchdog }
    }

    /// Requests are served.
    pub fn ready(&self) {
        tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
    }

    /// Files are read again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// Another process is the service from now on. It is told by the one that was, since systemd
    /// listens to the main process alone.
    pub fn handed_over(&self, to: u32) {
        tell(&[NotifyState::MainPid(to)]);
    }

    /// The service is on its way to its end.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// When [`Self::call`] is due; none without a watchdog.
    pub fn next_call(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(|watchdog| watchdog.next)
    }

    /// Calls the watchdog where that is due. It watches the main thread; a loop that hangs ends the
    /// service in good order before (`hangs.rs`).
    pub fn call(&mut self) {
        let Some(watchdog) = &mut self.watchdog else {
            return;
        };
        if Instant::now() < watchdog.next {
            return;
        }
        watchdog.next = Instant::now() + watchdog.every;
        tell(&[NotifyState::Watchdog]);
    }
}

/// A supervisor that does not listen is no reason to stop.
fn tell(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the supervisor cannot be told (NOTIFY_SOCKET): {error}");
    }
}

/// The listening sockets that were passed in.
#[derive(Default)]
pub struct PassedIn {
    /// They take the place of `WAF_LISTEN`.
    pub service: Vec<Passed>,
    /// It takes the place of `WAF_ADMIN_LISTEN`.
    pub admin: Option<TcpListener>,
}

/// Whether a supervisor passes listeners that are not taken yet.
pub fn is_given() -> bool {
    std::env::var_os("LISTEN_FDS").is_some()
}

/// The listening sockets that were passed in (`LISTEN_FDS`, `LISTEN_PID`): by `LISTEN_FDNAMES`, one
/// named `https` speaks TLS, `admin` is the admin listener, others are plain. None if there are
/// none.
///
/// # Errors
/// One sentence: what was passed cannot be used.
pub fn passed_listeners() -> Result<PassedIn, String> {
    let mut passed = ListenFd::from_env();
    let count = passed.len();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut name = names.split(':');
    let mut taken = PassedIn::default();
    for index in 0..count {
        let name = name.next().unwrap_or_default();
        let failed = |error: io::Error| {
            format!(
                "LISTEN_FDS={count} ({names}): listening sockets are expected, of TCP where they are named admin: {error}"
            )
        };
        let tcp = passed.take_tcp_listener(index);
        let socket = match tcp {
            Ok(socket) if name == "admin" => {
                taken.admin = socket;
                continue;
            }
            Ok(socket) => socket.map(OwnedFd::from),
            Err(error) if name == "admin" => return Err(failed(error)),
            Err(_) => {
                let unix = passed.take_unix_listener(index).map_err(failed)?;
                unix.map(OwnedFd::from)
            }
        };
        let tls = name == "https";
        taken
            .service
            .extend(socket.map(|socket| Passed { socket, tls }));
    }
    Ok(taken)
}
