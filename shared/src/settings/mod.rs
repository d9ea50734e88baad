//! The settings: what the program trusts. `table.rs` holds the one table of names, defaults and help; `load.rs` turns
//! what was written into this, or into every problem at once (SETTING-1).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use crate::escalation::Policy;
use crate::netblock::{NetSet, Netblock, PrefixLengths};

mod load;
mod lookup;
mod read;
mod table;

pub use lookup::{Countries, CountryList, LookupSettings, LookupSource, LookupUrl, Percents};

pub use load::{Loaded, Problem, load};
pub use table::{Setting, TABLE, readme_table};

/// Every setting, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `WAF_LISTEN`
    pub listen: SocketAddr,
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
}

/// Who a client is.
#[derive(Clone, Debug)]
pub struct IdentitySettings {
    /// `WAF_TRUSTED_PROXIES`
    pub trusted_proxies: NetSet,
    /// `WAF_CLIENT_IP_HEADER`
    pub header: HeaderName,
}

/// Netblocks and paths that are treated apart.
#[derive(Clone, Debug, Default)]
pub struct ListSettings {
    /// `WAF_ALLOW_NETS`
    pub allow_nets: NetSet,
    /// `WAF_DENY_NETS`
    pub deny_nets: NetSet,
    /// `WAF_EXEMPT_PATHS`: normalised prefixes, without a trailing slash
    pub exempt_paths: Vec<String>,
}

/// What a client may use.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// `WAF_RATE_LIMIT_PER_{MINUTE,HOUR,DAY}`; none is `off`
    pub requests: [Option<u64>; 3],
    /// `WAF_BYTES_LIMIT_PER_{MINUTE,HOUR,DAY}`; none is `off`
    pub bytes: [Option<u64>; 3],
    /// `WAF_BYTES_COUNT`
    pub bytes_count: BytesCount,
    /// `WAF_MAX_BODY_SIZE`; none is `off`
    pub max_body_size: Option<u64>,
    /// `WAF_RATE_LIMIT_HEADERS`
    pub headers: RateLimitHeaders,
}

/// How long is waited for what.
#[derive(Clone, Debug, Default)]
pub struct TimeoutSettings {
    /// `WAF_HEADER_TIMEOUT`
    pub header: Duration,
    /// `WAF_BODY_TIMEOUT`: without a byte of the body
    pub body: Duration,
    /// `WAF_KEEPALIVE_TIMEOUT`: between two requests
    pub keepalive: Duration,
    /// `WAF_UPSTREAM_CONNECT_TIMEOUT`
    pub upstream_connect: Duration,
    /// `WAF_UPSTREAM_TIMEOUT`: without a byte from the application
    pub upstream: Duration,
    /// `WAF_UPSTREAM_KEEPALIVE`: how long an idle upstream connection is kept
    pub upstream_keepalive: Duration,
    /// `WAF_WEBSOCKET_IDLE_TIMEOUT`; none is `off`
    pub websocket_idle: Option<Duration>,
    /// `WAF_SHUTDOWN_TIMEOUT`
    pub shutdown: Duration,
}

/// How many connections are held.
#[derive(Clone, Debug, Default)]
pub struct ConnectionSettings {
    /// `WAF_MAX_CONNECTIONS`
    pub max: usize,
    /// `WAF_MAX_CONNECTIONS_PER_CLIENT`
    pub max_per_client: usize,
}

/// Bans.
#[derive(Clone, Debug)]
pub struct BanSettings {
    /// `WAF_BAN_FIRST`, `_FACTOR`, `_REPEAT_WINDOW`, `_PERMANENT_AFTER`
    pub policy: Policy,
    /// `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`
    pub prefixes: PrefixLengths,
    /// `WAF_BAN_RESPONSE`
    pub response: BanResponse,
    /// `WAF_MAX_BANS`
    pub max: usize,
}

/// The state files.
#[derive(Clone, Debug, Default)]
pub struct StateSettings {
    /// `WAF_STATE_DIR`
    pub dir: PathBuf,
    /// `WAF_STATE_WRITE_DELAY`
    pub write_delay: Duration,
    /// `WAF_STATE_COUNTER_INTERVAL`
    pub counter_interval: Duration,
}

/// The endpoints below `/_waf/`.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// `WAF_METRICS_TOKEN`
    pub metrics_token: Option<Secret>,
    /// `WAF_METRICS_TOP_N`
    pub metrics_top_n: usize,
    /// `WAF_ADMIN_TOKEN` or `WAF_ADMIN_TOKEN_FILE`
    pub admin_token: AdminToken,
}

/// The request log and the process log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// `WAF_INSTANCE_NAME`
    pub instance_name: Option<String>,
    /// `WAF_LOG_REQUESTS`
    pub requests: LogRequests,
    /// `WAF_LOG_FILE`; none is standard output
    pub file: Option<PathBuf>,
    /// `WAF_LOG_REQUEST_HEADERS`
    pub request_headers: Vec<HeaderName>,
    /// `WAF_LOG_LEVEL`: `error`, `warn`, `info`, `debug` or `trace`
    pub level: &'static str,
}

/// When an alert is raised about traffic (ALERT-1..3).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Anomalies {
    /// `WAF_ANOMALY_CLIENT_*`
    pub client: Thresholds,
    /// `WAF_ANOMALY_NET_*`
    pub net: Thresholds,
    /// `WAF_ANOMALY_ASN_*`
    pub asn: Thresholds,
    /// `WAF_ANOMALY_TOTAL_*`
    pub total: Thresholds,
    /// `WAF_WATCH_*_PER_*`, for each of the watched netblocks
    pub watch: Thresholds,
    /// `WAF_ANOMALY_COOLDOWN`
    pub cooldown: Duration,
    /// `WAF_WATCH_NETS`
    pub watch_nets: Vec<WatchNet>,
}

impl Anomalies {
    /// Whether anything at all is counted. If not, the data plane reports no request.
    pub fn is_on(&self) -> bool {
        [&self.client, &self.net, &self.asn, &self.total]
            .into_iter()
            .any(Thresholds::is_on)
            || (self.watch.is_on() && !self.watch_nets.is_empty())
    }
}

/// The thresholds of one scope; none is `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    /// Requests in a minute, in an hour.
    pub requests: [Option<u64>; 2],
    /// Bytes in a minute, in an hour.
    pub bytes: [Option<u64>; 2],
}

impl Thresholds {
    /// Whether one of them is set.
    pub fn is_on(&self) -> bool {
        self.requests.iter().chain(&self.bytes).any(Option::is_some)
    }
}

/// One entry of `WAF_WATCH_NETS`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchNet {
    /// Its name; the netblock's own text where none was given.
    pub name: String,
    /// What is watched.
    pub netblock: Netblock,
}

/// The application: `http://host:port`. The name is resolved when a connection is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// Host name or address, an IPv6 address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// `WAF_BYTES_COUNT`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BytesCount {
    /// Both directions.
    Both,
    /// From the client only.
    Request,
    /// To the client only.
    Response,
}

/// `WAF_RATE_LIMIT_HEADERS`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RateLimitHeaders {
    /// Never.
    Off,
    /// With answers of limits.
    Refused,
    /// With every answer.
    Always,
}

/// `WAF_LOG_REQUESTS`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogRequests {
    /// Every request.
    All,
    /// Those that were, or would have been, refused.
    Refused,
    /// None.
    Off,
}

/// `WAF_BAN_RESPONSE` (BAN-6)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BanResponse {
    /// A 4xx or 5xx status.
    Status(StatusCode),
    /// The connection closes unanswered.
    Drop,
}

/// Where the admin token comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminToken {
    /// Neither setting: the endpoints answer 404 (ADMIN-1).
    Unset,
    /// `WAF_ADMIN_TOKEN`
    Value(Secret),
    /// `WAF_ADMIN_TOKEN_FILE`; read at start and again on SIGHUP.
    File(PathBuf),
}

/// A token. Its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Holds a token.
    pub fn new(token: String) -> Self {
        Self(token)
    }

    /// The token, for a comparison in constant time.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}
