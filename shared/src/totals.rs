//! What the data plane has counted so far, folded over its workers at the moment of asking.

use crate::verdict::{Action, LimitKind};

/// Upper bounds of the duration histograms, microseconds.
pub const DURATION_BOUNDS_US: [u64; 14] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// One histogram: exact counts, no samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// Observations at most the bound of the same index and above the one before; the last counts what is above all.
    pub buckets: [u64; DURATION_BOUNDS_US.len() + 1],
    /// Sum of the observations, microseconds.
    pub sum_us: u64,
}

/// Why a connection ended without a request, or was refused: `kind` of `waf_connection_errors_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionError {
    /// The head could not be parsed: 400.
    BadRequest,
    /// The head took longer than `WAF_HEADER_TIMEOUT`: 408.
    HeadTimeout,
    /// The target or the head is too large: 414, 431.
    HeadTooLarge,
    /// `WAF_MAX_CONNECTIONS` reached.
    TooMany,
    /// `WAF_MAX_CONNECTIONS_PER_CLIENT` reached.
    TooManyClient,
    /// A bug of ours ended the request.
    Panic,
    /// `accept` failed.
    Accept,
}

impl ConnectionError {
    /// Every kind, in the order of the metrics.
    pub const ALL: [Self; 7] = [
        Self::BadRequest,
        Self::HeadTimeout,
        Self::HeadTooLarge,
        Self::TooMany,
        Self::TooManyClient,
        Self::Panic,
        Self::Accept,
    ];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::HeadTimeout => "head_timeout",
            Self::HeadTooLarge => "head_too_large",
            Self::TooMany => "too_many",
            Self::TooManyClient => "too_many_client",
            Self::Panic => "panic",
            Self::Accept => "accept",
        }
    }

    /// Position in [`ConnectionError::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The data plane's counters, folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests by [`Action::index`].
    pub requests: [u64; Action::ALL.len()],
    /// From the head to the end of the answer.
    pub request_duration: Histogram,
    /// From the request sent upstream to the head of its answer.
    pub upstream_duration: Histogram,
    /// Body and WebSocket bytes from clients.
    pub request_bytes: u64,
    /// Body and WebSocket bytes to clients.
    pub response_bytes: u64,
    /// Broken limits by [`LimitKind::index`].
    pub limit_hits: [u64; LimitKind::ALL.len()],
    /// Connections open now.
    pub connections: u64,
    /// By [`ConnectionError::index`].
    pub connection_errors: [u64; ConnectionError::ALL.len()],
    /// Breaks that found their channel full.
    pub breaks_dropped: u64,
    /// Log records that found their channel full.
    pub records_dropped: u64,
    /// Clients in the table now.
    pub clients: u64,
    /// Clients dropped for the bound.
    pub clients_evicted: u64,
}
