//! The one table of settings. A new setting is one row beside its group, and one field in the
//! group; documents and messages are rendered from the rows (SETTING-1, SETTING-3).

use std::path::PathBuf;
use std::sync::LazyLock;

use super::address::{self, Upstream};
use super::anomalies::{self, Anomalies};
use super::bans::{self, BanSettings};
use super::clients::{self, IdentitySettings, ListSettings};
use super::connections::{self, ConnectionSettings, TimeoutSettings};
use super::edge::{self, EdgeSettings};
use super::endpoints::{self, ControlSocket, EndpointSettings};
use super::fleet::{self, FleetSettings};
use super::kind::{file, whole, word};
use super::limits::{self, LimitSettings};
use super::listen::{self, Listen};
use super::log::{self, LogSettings};
use super::lookup::{self, LookupSettings};
use super::row::{Row, Setting, row};
use super::state::{self, StateSettings};

/// Every setting, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `WAF_SETTINGS_FILE`
    pub file: Option<PathBuf>,
    /// `WAF_LISTEN`
    pub listen: Vec<Listen>,
    /// `WAF_SOCKET_MODE`
    pub socket_mode: u32,
    /// `WAF_UPSTREAM`
    pub upstream: Upstream,
    /// `WAF_MODE=observe` (CHECK-3)
    pub observe: bool,
    /// `WAF_WORKERS`
    pub workers: usize,
    /// Who a client is.
    pub identity: IdentitySettings,
    /// Netblocks and paths that are treated apart.
    pub lists: ListSettings,
    /// What is spoken where the service listens.
    pub edge: EdgeSettings,
    /// What a client may use.
    pub limits: LimitSettings,
    /// How long is waited for what.
    pub timeouts: TimeoutSettings,
    /// How many connections are held.
    pub connections: ConnectionSettings,
    /// Bans.
    pub bans: BanSettings,
    /// `WAF_LOOKUP_*`, the country lists and the percentages
    pub lookup: LookupSettings,
    /// The state files.
    pub state: StateSettings,
    /// The endpoints below `/_waf/`.
    pub endpoints: EndpointSettings,
    /// `WAF_ANOMALY_*`, `WAF_WATCH_*`
    pub anomalies: Anomalies,
    /// The request log and the process log.
    pub log: LogSettings,
    /// `WAF_FLEET*`
    pub fleet: FleetSettings,
}

impl Default for Settings {
    /// What holds where nothing is set; the address of the application is empty.
    fn default() -> Self {
        let mut settings = Self::unset(PathBuf::from("./state"));
        for setting in all().filter(|setting| !setting.default.is_empty()) {
            let read = setting.read(&mut settings, setting.default, &mut Vec::new());
            debug_assert!(read.is_ok(), "{}", setting.name);
        }
        settings
    }
}

impl Settings {
    /// Where the control socket lies; none where it is off (CONTROL-1).
    pub fn control_socket(&self) -> Option<PathBuf> {
        match &self.endpoints.control_socket {
            ControlSocket::InStateDir => Some(self.state.dir.join(ControlSocket::FILE)),
            ControlSocket::Path(path) => Some(path.clone()),
            ControlSocket::Off => None,
        }
    }

    /// What holds where a setting has neither a value nor a default; the rows write over it.
    pub(super) fn unset(state_dir: PathBuf) -> Self {
        Self {
            file: None,
            listen: Vec::new(),
            socket_mode: 0,
            upstream: Upstream::Tcp {
                host: String::new(),
                port: 0,
            },
            observe: false,
            workers: std::thread::available_parallelism()
                .map_or(1, |cores| cores.get().min(MAX_WORKERS)),
            identity: IdentitySettings::default(),
            lists: ListSettings::default(),
            edge: EdgeSettings::default(),
            limits: LimitSettings::default(),
            timeouts: TimeoutSettings::default(),
            connections: ConnectionSettings::default(),
            bans: BanSettings::default(),
            lookup: LookupSettings::default(),
            state: StateSettings {
                dir: state_dir,
                ..StateSettings::default()
            },
            endpoints: EndpointSettings::default(),
            anomalies: Anomalies::default(),
            log: LogSettings::default(),
            fleet: FleetSettings::default(),
        }
    }
}

const MAX_WORKERS: usize = 1024;

/// Rows about one subject.
pub struct Theme {
    /// Its heading.
    pub title: &'static str,
    /// Its rows, in the order of the documents.
    pub rows: Vec<Row<Settings>>,
}

/// The whole table.
pub fn table() -> &'static [Theme] {
    static TABLE: LazyLock<Vec<Theme>> = LazyLock::new(|| {
        vec![
            theme("Service", |all| all, service_rows()),
            theme("TLS", |all| &mut all.edge, edge::rows()),
            theme("Clients", |all| &mut all.identity, clients::identity_rows()),
            theme("Lists", |all| &mut all.lists, clients::list_rows()),
            theme("Limits", |all| &mut all.limits, limits::rows()),
            theme("Bans", |all| &mut all.bans, bans::rows()),
            theme(
                "Countries and AS numbers",
                |all: &mut Settings| &mut all.lookup,
                lookup::rows(),
            ),
            theme(
                "Connections",
                |all: &mut Settings| &mut all.connections,
                connections::connection_rows(),
            ),
            theme(
                "Time-outs",
                |all: &mut Settings| &mut all.timeouts,
                connections::timeout_rows(),
            ),
            theme("State", |all| &mut all.state, state::rows()),
            theme(
                "Metrics and administration",
                |all: &mut Settings| &mut all.endpoints,
                endpoints::rows(),
            ),
            theme("Alerts", |all| &mut all.anomalies, anomalies::rows()),
            theme("Logs", |all| &mut all.log, log::rows()),
            theme("Fleet", |all| &mut all.fleet, fleet::rows()),
        ]
    });
    &TABLE
}

/// Every setting of the table.
pub fn all() -> impl Iterator<Item = &'static Setting<Settings>> {
    let rows = table().iter().flat_map(|theme| &theme.rows);
    rows.flat_map(|row| &row.settings)
}

fn theme<G: 'static>(
    title: &'static str,
    group: fn(&mut Settings) -> &mut G,
    rows: Vec<Row<G>>,
) -> Theme {
    let rows = rows.into_iter().map(|row| row.within(group)).collect();
    Theme { title, rows }
}

fn service_rows() -> Vec<Row<Settings>> {
    vec![
        row(
            "WAF_SETTINGS_FILE",
            "",
            file(),
            |all: &mut Settings| &mut all.file,
            "A file of `NAME=value` lines, as systemd's EnvironmentFile has them; a name in the environment wins over it. A file that `--settings FILE` names wins over the environment.",
        ).restart(),
        row(
            "WAF_LISTEN",
            "127.0.0.1:8080",
            listen::places(),
            |all: &mut Settings| &mut all.listen,
            "Where the service listens, a list; without a host, on every address. `https://0.0.0.0:443` speaks TLS, `unix:/run/weir.sock` is a Unix socket.",
        ).restart()
        .essential(),
        row(
            "WAF_SOCKET_MODE",
            "0660",
            listen::mode(),
            |all: &mut Settings| &mut all.socket_mode,
            "Mode of the Unix sockets in `WAF_LISTEN`: whoever may write to one is a trusted proxy.",
        ).restart(),
        row(
            "WAF_UPSTREAM",
            "",
            address::upstream(),
            |all: &mut Settings| &mut all.upstream,
            "The application; without a port, 80. `unix:/run/app.sock` is a Unix socket.",
        ).live()
        .unset("(required)")
        .essential(),
        row(
            "WAF_MODE",
            "enforce",
            word([("enforce", false), ("observe", true)]),
            |all: &mut Settings| &mut all.observe,
            "In observe mode everything is decided, counted and logged, and nothing is refused.",
        ).live()
        .essential(),
        row(
            "WAF_WORKERS",
            "",
            whole(1..=MAX_WORKERS as u64),
            |all: &mut Settings| &mut all.workers,
            "Data-plane threads.",
        ).restart()
        .unset("number of cores"),
    ]
}
