//! How many connections are held, and how long is waited for what.

use std::time::Duration;

use super::kind::{timeout, timeout_or_zero, whole};
use super::row::{Row, row};

/// How many connections are held.
#[derive(Clone, Debug, Default)]
pub struct ConnectionSettings {
    /// `WAF_MAX_CONNECTIONS`
    pub max: usize,
    /// `WAF_MAX_CONNECTIONS_PER_CLIENT`
    pub max_per_client: usize,
    /// `WAF_MAX_CONNECTIONS_PER_NETBLOCK`
    pub max_per_netblock: usize,
    /// `WAF_MAX_UPSTREAM`: requests at the application
    pub max_upstream: usize,
    /// Idle connections to the application; none is as many as `WAF_MAX_UPSTREAM`.
    pub idle_upstream: Option<usize>,
    /// `WAF_UPSTREAM_QUEUE`: how long a request waits for its turn
    pub upstream_queue: Duration,
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
    /// `WAF_SEND_TIMEOUT`: without a byte of the answer taken
    pub send: Duration,
    /// `WAF_MIN_RATE`: bytes a second of a body or of the reading of an answer; none is `off`
    pub min_rate: Option<u64>,
    /// `WAF_UPSTREAM_CONNECT_TIMEOUT`
    pub upstream_connect: Duration,
    /// `WAF_UPSTREAM_TIMEOUT`: without a byte from the application
    pub upstream: Duration,
    /// `WAF_UPSTREAM_KEEPALIVE`: how long an idle upstream connection is kept
    pub upstream_keepalive: Duration,
    /// `WAF_WEBSOCKET_IDLE_TIMEOUT`; none is `off`
    pub websocket_idle: Option<Duration>,
    /// `WAF_SHUTDOWN_DELAY`: from SIGTERM to the close of the listeners
    pub shutdown_delay: Duration,
    /// `WAF_SHUTDOWN_TIMEOUT`
    pub shutdown: Duration,
}

pub(super) fn connection_rows() -> Vec<Row<ConnectionSettings>> {
    vec![
        row(
            "WAF_MAX_CONNECTIONS",
            "10000",
            whole(1..=1_000_000),
            |connections: &mut ConnectionSettings| &mut connections.max,
            "Connections in all; a further one takes the place of an idle one (the oldest of the netblock with the most connections), or is closed and counted.",
        ).live(),
        row(
            "WAF_MAX_CONNECTIONS_PER_CLIENT",
            "256",
            whole(1..=1_000_000),
            |connections: &mut ConnectionSettings| &mut connections.max_per_client,
            "Connections of one client; trusted proxies are not bound by it.",
        ).live(),
        row(
            "WAF_MAX_CONNECTIONS_PER_NETBLOCK",
            "1024",
            whole(1..=1_000_000),
            |connections: &mut ConnectionSettings| &mut connections.max_per_netblock,
            "The same for the netblock that a ban of the client would cover; 8 while it is banned or denied.",
        ).live(),
        row(
            "WAF_MAX_UPSTREAM",
            "512",
            whole(1..=1_000_000),
            |connections: &mut ConnectionSettings| &mut connections.max_upstream,
            "Requests at the application at the same time; more wait for their turn.",
        ).live(),
        row(
            "WAF_UPSTREAM_QUEUE",
            "1s",
            timeout_or_zero(),
            |connections: &mut ConnectionSettings| &mut connections.upstream_queue,
            "How long a request waits for its turn, and 1,000 requests at most; then 503.",
        ).live(),
    ]
}

// long: a flat list of rows
pub(super) fn timeout_rows() -> Vec<Row<TimeoutSettings>> {
    vec![
        row(
            "WAF_HEADER_TIMEOUT",
            "10s",
            timeout(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.header,
            "For the whole head of a request.",
        ).live(),
        row(
            "WAF_BODY_TIMEOUT",
            "60s",
            timeout(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.body,
            "Without a byte of the request's body.",
        ).live(),
        row(
            "WAF_KEEPALIVE_TIMEOUT",
            "75s",
            timeout(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.keepalive,
            "Between two requests of a connection.",
        ).live(),
        row(
            "WAF_SEND_TIMEOUT",
            "60s",
            timeout(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.send,
            "Without a byte of an answer taken by the client, where `WAF_MIN_RATE` is `off`; of a WebSocket in any case.",
        ).live(),
        row(
            "WAF_MIN_RATE",
            "500",
            whole(1..=1_000_000_000).or_off(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.min_rate,
            "Bytes a second of a request's body, or of the reading of an answer. A client that is slower over 30 s in which it is waited for is cut.",
        ).live(),
        row(
            "WAF_UPSTREAM_CONNECT_TIMEOUT",
            "5s",
            timeout(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.upstream_connect,
            "For a connection to the application; then 502.",
        ).live(),
        row(
            "WAF_UPSTREAM_TIMEOUT",
            "60s",
            timeout(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.upstream,
            "Without a byte from the application; then 504.",
        ).live(),
        row(
            "WAF_UPSTREAM_KEEPALIVE",
            "4s",
            timeout_or_zero(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.upstream_keepalive,
            "How long an idle connection to the application is kept; keep it below the application's own time-out.",
        ).live(),
        row(
            "WAF_WEBSOCKET_IDLE_TIMEOUT",
            "1h",
            timeout().or_off(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.websocket_idle,
            "Without a byte either way on a WebSocket.",
        ).live(),
        row(
            "WAF_SHUTDOWN_DELAY",
            "0s",
            timeout_or_zero(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.shutdown_delay,
            "How long after SIGTERM everything is still served while health answers 503; then the listeners close.",
        ).live(),
        row(
            "WAF_SHUTDOWN_TIMEOUT",
            "30s",
            timeout_or_zero(),
            |timeouts: &mut TimeoutSettings| &mut timeouts.shutdown,
            "How long running answers may take to end at a stop.",
        ).live(),
    ]
}
