//! The wiring: settings, channels, threads, shutdown. The only place where both planes are named.
//! docs/architecture.md draws the threads and channels, and a start, a hand-over and a stop.

use weir_shared::settings::Loaded;

use crate::hangs;
use crate::prepared::Prepared;
use crate::service::{EXIT_SOFTWARE, End, StartError};
use crate::signals::Signals;
use crate::sources::Sources;
use crate::systemd::Supervisor;

/// What to print once requests are served.
pub enum Announce {
    /// Print nothing: the process log has its line `listening`.
    Nothing,
    /// Call this with the address of the first listener.
    With(Box<dyn FnOnce(&str)>),
}

/// Serves until SIGTERM, SIGINT or SIGQUIT, then drains. SIGHUP reloads (RELOAD-2), SIGUSR1 reopens
/// the log, SIGUSR2 hands over to a new process (RESTART-1).
///
/// # Errors
/// [`StartError`]: nothing was served, or a thread has ended.
pub fn serve(
    sources: Sources,
    loaded: Loaded,
    signals: &mut Signals,
    announce: Announce,
) -> Result<(), StartError> {
    hangs::watch(EXIT_SOFTWARE)?;
    let prepared = Prepared::open(sources, loaded)?;
    let parked = prepared.take_over(signals.asking())?;
    // A stop signal to the new process of a hand-over cancels the hand-over: the old process goes
    // on serving.
    if parked.takes_over() && signals.says_stop() {
        return Err(StartError::Stopped);
    }
    // From here on nothing can fail: this process is the service.
    let mut service = parked.serve();
    if let Announce::With(print) = announce {
        print(&service.address());
    }
    let mut supervisor = Supervisor::of_environment();
    supervisor.ready();
    match service.run(signals, &mut supervisor) {
        End::Stop(ended) => {
            supervisor.stopping();
            service.end(signals, ended)
        }
        End::HandOver(taken) => service.hand_over(signals, &supervisor, taken),
    }
}
