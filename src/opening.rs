//! What a start opens: listeners, state files, as many files as the connections need.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_controlplane::certificates::Certificates;
use weir_controlplane::check::check;
use weir_controlplane::{KnownFiles, StartState, StateFiles};
use weir_dataplane::{Bound, Passed};
use weir_shared::clock::Clock;
use weir_shared::settings::Settings;

use crate::open_files;
use crate::successor::{Kind, Predecessor};
use crate::systemd::{self, PassedIn};

/// How long the state files may stay locked after the process before has said that they are free.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Opens the state files: once the process before has given up their lock, where there is one.
///
/// # Errors
/// One sentence an operator can act on.
pub fn state_files(
    settings: &Settings,
    clock: &Clock,
    predecessor: Option<Predecessor>,
) -> Result<(StateFiles, StartState), String> {
    let mut patience = Duration::ZERO;
    let mut known = KnownFiles::default();
    if let Some(predecessor) = predecessor {
        // All that can be known before the other process gives anything away.
        let found = check(settings, clock);
        if !found.faults.is_empty() {
            return Err(found.faults.join("; "));
        }
        known = found.files;
        predecessor.take_over()?;
        patience = LOCK_WAIT;
    }
    let deadline = Instant::now() + patience;
    loop {
        match StateFiles::open(&settings.state.dir, clock.clone(), &mut known) {
            Ok(opened) => return Ok(opened),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.to_string());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// What is listened on, and whom it was taken over from.
pub struct Opened {
    /// The listeners of the service.
    pub bound: Bound,
    /// The admin listener, where a supervisor passed it.
    pub admin: Option<TcpListener>,
    /// The process before.
    pub predecessor: Option<Predecessor>,
}

/// The listeners: on the sockets of the process before, or those that a supervisor passed, else on
/// `WAF_LISTEN`.
///
/// # Errors
/// One sentence an operator can act on.
pub fn listeners(settings: &Settings) -> Result<Opened, String> {
    let workers = settings.workers;
    if let Some((predecessor, sockets)) = Predecessor::of_environment()? {
        let mut admin = None;
        let mut service = Vec::new();
        for (kind, socket) in sockets {
            match kind {
                Kind::Admin => admin = Some(TcpListener::from(socket)),
                Kind::Plain | Kind::Tls => service.push(Passed {
                    socket,
                    tls: kind == Kind::Tls,
                }),
            }
        }
        let bound = Bound::passed(service, workers, true).map_err(|error| error.to_string())?;
        return Ok(Opened {
            bound,
            admin,
            predecessor: Some(predecessor),
        });
    }
    let PassedIn { service, admin } = systemd::passed_listeners()?;
    let bound = if service.is_empty() {
        Bound::new(settings).map_err(|error| error.to_string())
    } else {
        Bound::passed(service, workers, false).map_err(|error| error.to_string())
    };
    Ok(Opened {
        bound: bound?,
        admin,
        predecessor: None,
    })
}

/// The certificates.
///
/// # Errors
/// One sentence an operator can act on.
pub fn certificates(settings: &Settings, bound: &Bound) -> Result<Arc<Certificates>, String> {
    let are_needed = bound.places().iter().any(|listen| listen.tls);
    Certificates::open(&settings.edge, are_needed)
}

/// The settings, with the connections that the system allows (CONN-4), which is told where they are
/// fewer than `told` already.
///
/// # Errors
/// The system refused to raise the limit.
pub fn within_open_files(mut settings: Settings, told: Option<usize>) -> io::Result<Settings> {
    let limit = open_files::raise_limit()?;
    if let Some(fewer) = open_files::connections_within(limit, &settings) {
        if told != Some(fewer) {
            tracing::warn!(
                "WAF_MAX_CONNECTIONS={} needs more open files than the {limit} that are allowed \
             (LimitNOFILE=, ulimit -n): {fewer} connections are the bound",
                settings.connections.max
            );
        }
        settings.connections.max = fewer;
    }
    Ok(settings)
}
