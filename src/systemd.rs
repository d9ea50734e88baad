//! Notifies systemd, or a supervisor with the same protocol, and takes the sockets that it passes
//! (RESTART-2; sd_notify(3), sd_listen_fds(3)). Without such a supervisor all of this does nothing.
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

/// Notifies the supervisor of the service's state.
pub struct Supervisor {
    watchdog: Option<Watchdog>,
}

/// The watchdog: the supervisor restarts a service that does not call it in time.
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

    /// Reports that requests are served.
    pub fn ready(&self) {
        tell(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready]);
    }

    /// Reports that a reload begins; [`Self::ready`] follows at its end.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// Reports that process `to` is the service from now on. The old process reports it, because
    /// systemd listens to the main process only.
    pub fn handed_over(&self, to: u32) {
        tell(&[NotifyState::MainPid(to)]);
    }

    /// Reports that the service is stopping.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// When [`Self::call`] is due next; none without a watchdog.
    pub fn next_call(&self) -> Option<Instant> {
        self.watchdog.as_ref().map(|watchdog| watchdog.next)
    }

    /// Calls the watchdog if that is due. The watchdog watches the main thread only; `hangs.rs`
    /// watches the other loops, and stops the service in good order.
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

/// Sends the notification. A supervisor that does not listen is no reason to stop.
fn tell(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the supervisor cannot be told (NOTIFY_SOCKET): {error}");
    }
}

/// The listening sockets that were passed in.
#[derive(Default)]
pub struct PassedIn {
    /// Used instead of `WAF_LISTEN`.
    pub service: Vec<Passed>,
    /// Used instead of `WAF_ADMIN_LISTEN`.
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
