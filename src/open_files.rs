//! The limit of open files, and how many connections it allows (CONN-4).

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};
use weir_shared::settings::Settings;

/// What is neither a connection nor a worker's: state files, logs, the control and what it answers,
/// databases, the lookups that are asked at once.
const RESERVE: u64 = 160;
/// The event queue, its waker and the heartbeat; and the pipes for large bodies, of two files each.
const FILES_PER_WORKER: u64 = 3 + 2 * weir_dataplane::PIPES_PER_WORKER as u64;
/// A worker's listening socket at one place, and the same for the process that takes over.
const FILES_PER_LISTENER: u64 = 2;
/// A client's connection, and the one to the application.
const FILES_PER_CONNECTION: u64 = 2;

/// Raises the soft limit of open files to the hard one, and says what it is now.
///
/// # Errors
/// The system refused it.
pub fn raise_limit() -> io::Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    // Without a number there is no limit.
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// How many connections `limit` open files allow, where that is fewer than the setting.
pub fn connections_within(limit: u64, settings: &Settings) -> Option<usize> {
    let workers = u64::try_from(settings.workers).unwrap_or(u64::MAX);
    let places = settings.listen.len() as u64;
    // A connection of a trusted proxy counts once its header is there (EDGE-4).
    let unnamed = if settings.edge.proxy_protocol {
        weir_dataplane::UNNAMED_PER_WORKER as u64
    } else {
        0
    };
    let of_a_worker = FILES_PER_WORKER + FILES_PER_LISTENER.saturating_mul(places) + unnamed;
    let others = RESERVE.saturating_add(workers.saturating_mul(of_a_worker));
    let allowed = limit.saturating_sub(others) / FILES_PER_CONNECTION;
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX).max(1);
    (allowed < settings.connections.max).then_some(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONN-4: two files a connection, with a reserve for everything else.
    #[test]
    fn open_files_bound_the_connections() {
        let mut settings = Settings {
            workers: 2,
            ..Settings::default()
        };
        assert_eq!(connections_within(1024, &settings), Some(363));
        assert_eq!(connections_within(u64::MAX, &settings), None);
        assert_eq!(connections_within(20_298, &settings), None);
        assert_eq!(connections_within(20_297, &settings), Some(9_999));
        assert_eq!(connections_within(3, &settings), Some(1));
        settings.connections.max = 363;
        assert_eq!(connections_within(1024, &settings), None);
    }

    /// CONN-4, EDGE-1, EDGE-4: each worker has a socket at every place, and holds connections whose
    /// header has not come.
    #[test]
    fn listeners_and_unnamed_connections_take_files() {
        let mut settings = Settings {
            workers: 2,
            ..Settings::default()
        };
        let place = settings.listen.first().cloned();
        settings
            .listen
            .extend([place.clone(), place].into_iter().flatten());
        assert_eq!(connections_within(1024, &settings), Some(363 - 4));
        settings.edge.proxy_protocol = true;
        assert_eq!(connections_within(1024, &settings), Some(363 - 4 - 128));
    }
}
