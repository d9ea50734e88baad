//! What a start opens: listeners, state files, as many files as the connections need.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io;
use std::time::{Duration, Instant};

use weir_controlplane::{StartState, StateFiles};
use weir_dataplane::Bound;
use weir_shared::clock::Clock;
use weir_shared::settings::Settings;

use crate::open_files;
use crate::successor::Predecessor;
use crate::systemd;

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
    if let Some(predecessor) = predecessor {
        predecessor.take_over()?;
        patience = LOCK_WAIT;
    }
    let deadline = Instant::now() + patience;
    loop {
        match StateFiles::open(&settings.state.dir, clock.clone()) {
            Ok(opened) => return Ok(opened),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.to_string());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// The listeners: on the sockets of the process before, or those that a supervisor passed, else on
/// `WAF_LISTEN`.
///
/// # Errors
/// One sentence an operator can act on.
pub fn listeners(settings: &Settings) -> Result<(Bound, Option<Predecessor>), String> {
    if let Some((predecessor, sockets)) = Predecessor::of_environment()? {
        let bound = Bound::passed(sockets, settings.workers).map_err(|error| error.to_string())?;
        return Ok((bound, Some(predecessor)));
    }
    let passed = systemd::passed_listeners()?;
    let bound = if passed.is_empty() {
        Bound::new(settings.listen, settings.workers).map_err(|error| error.to_string())
    } else {
        Bound::passed(passed, settings.workers).map_err(|error| error.to_string())
    };
    Ok((bound?, None))
}

/// The settings, with the connections that the system allows (CONN-4).
///
/// # Errors
/// The system refused to raise the limit.
pub fn within_open_files(mut settings: Settings) -> io::Result<Settings> {
    let limit = open_files::raise_limit()?;
    if let Some(fewer) = open_files::connections_within(limit, &settings) {
        tracing::warn!(
            "WAF_MAX_CONNECTIONS={} needs more open files than the {limit} that are allowed \
             (LimitNOFILE=, ulimit -n): {fewer} connections are the bound",
            settings.connections.max
        );
        settings.connections.max = fewer;
    }
    Ok(settings)
}
