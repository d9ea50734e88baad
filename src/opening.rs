//! The steps of a start that open something: listeners, certificates, files of another process, the
//! limit of open files.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use weir_controlplane::certificates::Certificates;
use weir_controlplane::check::check;
use weir_controlplane::control::PassedOn;
use weir_controlplane::{FileThread, KnownFiles};
use weir_dataplane::{Bound, Passed};
use weir_shared::clock::Clock;
use weir_shared::settings::Settings;

use crate::channel::Kind;
use crate::open_files::{self, Bounds};
use crate::predecessor::Predecessor;
use crate::systemd::{self, PassedIn};

/// The listening sockets, and the process that passed them, if one did.
pub struct Opened {
    /// The listeners of the service.
    pub bound: Bound,
    /// The passed listeners of operators.
    pub operators: PassedOn,
    /// The old process of a hand-over.
    pub predecessor: Option<Predecessor>,
}

/// The listeners: the sockets of the old process of a hand-over, or those that a supervisor passed,
/// else `WAF_LISTEN`.
///
/// # Errors
/// One sentence an operator can act on.
pub fn listeners(settings: &Settings) -> Result<Opened, String> {
    let workers = settings.workers;
    if let Some((predecessor, sockets)) = Predecessor::of_environment()? {
        let mut operators = PassedOn::default();
        let mut service = Vec::new();
        for (kind, socket) in sockets {
            match kind {
                Kind::Control => operators.socket = Some(socket),
                Kind::Admin | Kind::GivenAdmin => {
                    operators.admin = Some(TcpListener::from(socket));
                    operators.admin_is_given = kind == Kind::GivenAdmin;
                }
                Kind::Plain | Kind::Tls => service.push(Passed {
                    socket,
                    tls: kind == Kind::Tls,
                }),
            }
        }
        let bound = Bound::passed(service, workers).map_err(|error| error.to_string())?;
        return Ok(Opened {
            bound,
            operators,
            predecessor: Some(predecessor),
        });
    }
    let PassedIn { service, admin } = systemd::passed_listeners()?;
    let bound = if service.is_empty() {
        Bound::new(settings).map_err(|error| error.to_string())
    } else {
        Bound::passed(service, workers).map_err(|error| error.to_string())
    };
    Ok(Opened {
        bound: bound?,
        operators: PassedOn {
            admin_is_given: admin.is_some(),
            admin,
            socket: None,
        },
        predecessor: None,
    })
}

/// Reads the state files in the new process of a hand-over, while the old one still owns them, and
/// checks everything else that a start would find wrong.
///
/// # Errors
/// Every fault, in one line.
pub fn known_files(settings: &Settings, clock: &Clock) -> Result<KnownFiles, String> {
    let found = check(settings, clock);
    if !found.faults.is_empty() {
        return Err(found.faults.join("; "));
    }
    Ok(found.files)
}

/// The certificates.
///
/// # Errors
/// One sentence an operator can act on.
pub fn certificates(
    settings: &Settings,
    bound: &Bound,
    looks: &FileThread,
) -> Result<Arc<Certificates>, String> {
    let are_needed = bound.places().iter().any(|listen| listen.tls);
    Certificates::open(&settings.edge, are_needed, looks)
}

/// The settings, with the bounds that the open files allow (CONN-4, CONN-12). Logs these bounds
/// unless they equal `told`, which were logged before.
///
/// # Errors
/// The system refused to raise the limit.
pub fn within_open_files(mut settings: Settings, told: Option<Bounds>) -> io::Result<Settings> {
    let limit = open_files::raise_limit()?;
    let Some(bounds) = open_files::bounds_within(limit, &settings) else {
        return Ok(settings);
    };
    let connections = &mut settings.connections;
    if told != Some(bounds) {
        tracing::warn!("{}", bounds.sentence(limit, connections));
    }
    // One client has at most half of the places, as by default.
    if bounds.upstream < connections.max_upstream {
        let half = u32::try_from(bounds.upstream / 2)
            .unwrap_or(u32::MAX)
            .max(1);
        let of_client = &mut settings.limits.max_under_way;
        *of_client = of_client.map(|most| most.min(half));
    }
    connections.max = bounds.connections;
    connections.max_upstream = bounds.upstream;
    connections.idle_upstream = Some(bounds.idle_upstream);
    Ok(settings)
}
