//! The limit of open files, and how many connections and requests at the application it allows
//! (CONN-4, CONN-12).

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};
use weir_shared::settings::{ConnectionSettings, Settings};
use weir_shared::units::count;

/// Files that belong to no connection and no worker: state files, logs, the control socket and its
/// connections, databases, lookups under way.
const RESERVE: u64 = 160;
/// Three files for the event queue, its waker and the heartbeat; two for each pipe for large
/// bodies.
const FILES_PER_WORKER: u64 = 3 + 2 * weir_dataplane::PIPES_PER_WORKER as u64;
/// A worker's listening socket at one address, and the same for the new process of a hand-over.
const FILES_PER_LISTENER: u64 = 2;
/// What a start takes besides: of a worker, and of everything else with some to spare.
const FILES_AT_START: u64 = 40;
const FILES_PER_WORKER_AT_START: u64 = 5;
/// A client's connection, and the one to the application if it becomes a WebSocket.
const FILES_PER_CONNECTION: u64 = 2;

/// Raises the soft limit of open files to the hard one, and returns it.
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

/// Bounds small enough for the limit of open files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The most connections of clients.
    pub connections: usize,
    /// The most requests at the application.
    pub upstream: usize,
    /// The most idle connections to the application.
    pub idle_upstream: usize,
}

impl Bounds {
    /// The warning that the settings ask for more than the limit allows.
    pub fn sentence(self, limit: u64, wanted: &ConnectionSettings) -> String {
        format!(
            "WAF_MAX_CONNECTIONS={} and WAF_MAX_UPSTREAM={} need more open files than the {limit} \
             that are allowed (LimitNOFILE=, ulimit -n): {} and {} at the application are the \
             bounds",
            wanted.max,
            wanted.max_upstream,
            count(number(self.connections), "connection"),
            count(number(self.upstream), "request")
        )
    }

    /// The bounds in these settings that [`bounds_within`] has set; none if it has set none.
    pub fn told(settings: &Settings) -> Option<Self> {
        let connections = &settings.connections;
        Some(Self {
            connections: connections.max,
            upstream: connections.max_upstream,
            idle_upstream: connections.idle_upstream?,
        })
    }
}

/// Why a start has too few open files, if it has (CONN-4): it would end at the first file, socket
/// or thread that finds none.
pub fn shortage(settings: &Settings) -> Option<String> {
    // A limit that cannot be raised is told by the start.
    let limit = raise_limit().ok()?;
    let least = least(settings);
    (limit < least).then(|| {
        format!(
            "{limit} open files are allowed (LimitNOFILE=, ulimit -n): a start with these settings \
             needs {least}, and {FILES_PER_CONNECTION} more for each connection"
        )
    })
}

/// The open files of a start.
fn least(settings: &Settings) -> u64 {
    let places = settings.listen.len() as u64;
    let of_a_worker = FILES_PER_WORKER_AT_START + FILES_PER_LISTENER.saturating_mul(places);
    FILES_AT_START.saturating_add(number(settings.workers).saturating_mul(of_a_worker))
}

/// The bounds that `limit` open files allow; none if the settings fit (CONN-4, CONN-12).
///
/// Each request at the application has a connection of its own; one HTTP/2 connection of a client
/// may carry many requests. Requests at the application get at least two fifths of the files, and
/// more if the clients' connections leave some. A quarter as many connections are kept idle.
pub fn bounds_within(limit: u64, settings: &Settings) -> Option<Bounds> {
    let workers = number(settings.workers);
    let places = settings.listen.len() as u64;
    // A connection of a trusted proxy is not counted before its PROXY header has come (EDGE-4):
    // these come on top.
    let unnamed = if settings.edge.proxy_protocol {
        weir_dataplane::UNNAMED_PER_WORKER as u64
    } else {
        0
    };
    let of_a_worker = FILES_PER_WORKER + FILES_PER_LISTENER.saturating_mul(places) + unnamed;
    let others = RESERVE.saturating_add(workers.saturating_mul(of_a_worker));
    let free = limit.saturating_sub(others);
    let max = number(settings.connections.max);
    let max_upstream = number(settings.connections.max_upstream);
    let of_clients = max.saturating_mul(FILES_PER_CONNECTION);
    if of_clients.saturating_add(max_upstream.saturating_mul(2)) <= free {
        return None;
    }
    let left = free.saturating_sub(of_clients) / 5 * 4;
    let upstream = max_upstream.min(left.max(free / 5 * 2)).max(1);
    let idle = (upstream / 4).max(1);
    let connections = free.saturating_sub(upstream + idle) / FILES_PER_CONNECTION;
    let size = |number| usize::try_from(number).unwrap_or(usize::MAX);
    Some(Bounds {
        connections: size(connections.min(max).max(1)),
        upstream: size(upstream),
        idle_upstream: size(idle),
    })
}

fn number(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(connections: usize, upstream: usize, idle_upstream: usize) -> Option<Bounds> {
        Some(Bounds {
            connections,
            upstream,
            idle_upstream,
        })
    }

    /// CONN-4, CONN-12: two files a connection, one for each request at the application and for
    /// each idle connection to it, with a reserve for everything else.
    #[test]
    fn open_files_bound_the_connections() {
        let mut settings = Settings {
            workers: 2,
            ..Settings::default()
        };
        assert_eq!(bounds_within(1024, &settings), bounds(182, 290, 72));
        assert_eq!(bounds_within(u64::MAX, &settings), None);
        assert_eq!(bounds_within(21_322, &settings), None);
        assert_eq!(bounds_within(21_321, &settings), bounds(10_000, 512, 128));
        assert_eq!(bounds_within(20_298, &settings), bounds(9_680, 512, 128));
        assert_eq!(bounds_within(3, &settings), bounds(1, 1, 1));
        // Few connections leave their files to the requests.
        settings.connections.max = 100;
        assert_eq!(bounds_within(1024, &settings), bounds(100, 420, 105));
        settings.connections.max_upstream = 10;
        assert_eq!(bounds_within(1024, &settings), None);
    }

    /// CONN-4: a bound of one has the singular in the message.
    #[test]
    fn the_bounds_are_told_as_people_say_them() {
        let wanted = Settings::default().connections;
        let told = |found: Option<Bounds>| found.map(|found| found.sentence(1024, &wanted));
        let told = |connections, upstream| told(bounds(connections, upstream, 1));
        let ends = |told: Option<String>, end: &str| told.is_some_and(|told| told.ends_with(end));
        let one = "): 1 connection and 1 request at the application are the bounds";
        assert!(ends(told(1, 1), one));
        let more = "): 182 connections and 290 requests at the application are the bounds";
        assert!(ends(told(182, 290), more));
    }

    /// CONN-12: the bounds never need more files than there are.
    #[test]
    fn the_bounds_fit_into_the_open_files() {
        let mut settings = Settings {
            workers: 2,
            ..Settings::default()
        };
        for limit in (320..22_000).step_by(37) {
            for max in [1, 100, 363, 10_000] {
                for max_upstream in [1, 100, 512, 5_000] {
                    settings.connections.max = max;
                    settings.connections.max_upstream = max_upstream;
                    let Some(found) = bounds_within(limit, &settings) else {
                        continue;
                    };
                    let files = 2 * found.connections + found.upstream + found.idle_upstream;
                    assert!(files as u64 + 298 <= limit, "{limit}: {found:?}");
                    assert!(found.upstream <= max_upstream && found.connections <= max);
                }
            }
        }
    }

    /// CONN-4, EDGE-1, EDGE-4: each worker has a socket at every listen address, and holds
    /// connections whose PROXY header has not arrived.
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
        // Eight files less, of 726; and 256 less.
        assert_eq!(bounds_within(1024, &settings), bounds(180, 286, 71));
        settings.edge.proxy_protocol = true;
        assert_eq!(bounds_within(1024, &settings), bounds(116, 184, 46));
    }
}
