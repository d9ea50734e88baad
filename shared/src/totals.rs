//! The data plane's counts so far, summed over its workers at the time of a request.

use std::collections::HashMap;

use ahash::RandomState;

use crate::lookup::{AsNumber, Country, Origin};
use crate::verdict::{Action, LimitHit};

/// Upper bounds of the duration histograms, microseconds.
pub const DURATION_BOUNDS_US: [u64; 14] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// Classes of answers by the first digit of their status: `class` of `waf_responses_total`.
pub const RESPONSE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// One histogram: exact counts, no samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// Observations above the previous bound and up to the bound of the same index; the last bucket
    /// counts those above all bounds.
    pub buckets: [u64; DURATION_BOUNDS_US.len() + 1],
    /// Sum of the observations, microseconds.
    pub sum_us: u64,
}

/// Why a connection ended without a request, or was refused: `kind` of
/// `waf_connection_errors_total`.
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
    /// The peer's netblock is banned or denied, and has as many connections as it may (CONN-3).
    Banned,
    /// `WAF_MAX_CONNECTIONS_PER_NETBLOCK` reached.
    TooManyNetblock,
    /// The chunks of a body are mostly framing: 400 (CONN-9).
    Framing,
    /// A body or the reading of an answer was slower than `WAF_MIN_RATE` (CONN-7).
    TooSlow,
    /// A TLS handshake failed, or was not done within `WAF_HEADER_TIMEOUT` (EDGE-2).
    Tls,
    /// A header of the PROXY protocol is missing, malformed, or of a peer that is not trusted
    /// (EDGE-4).
    ProxyProtocol,
    /// A flood of empty HTTP/2 frames or cancelled streams (EDGE-3).
    H2Flood,
}

impl ConnectionError {
    /// Every kind, in the order of the metrics.
    pub const ALL: [Self; 14] = [
        Self::BadRequest,
        Self::HeadTimeout,
        Self::HeadTooLarge,
        Self::TooMany,
        Self::TooManyClient,
        Self::Panic,
        Self::Accept,
        Self::Banned,
        Self::TooManyNetblock,
        Self::Framing,
        Self::TooSlow,
        Self::Tls,
        Self::ProxyProtocol,
        Self::H2Flood,
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
            Self::Banned => "banned",
            Self::TooManyNetblock => "too_many_netblock",
            Self::Framing => "framing",
            Self::TooSlow => "too_slow",
            Self::Tls => "tls",
            Self::ProxyProtocol => "proxy_protocol",
            Self::H2Flood => "h2_flood",
        }
    }

    /// Position in [`ConnectionError::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// How a TLS handshake ended: `outcome` of `waf_tls_handshakes_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// A new session.
    Full,
    /// A resumed session.
    Resumed,
    /// The client violated TLS, or there is no common version or cipher.
    Failed,
    /// It took longer than `WAF_HEADER_TIMEOUT`, or was dropped to make room for others.
    TimedOut,
    /// The client went away.
    Aborted,
}

impl Handshake {
    /// Every outcome, in the order of the metrics.
    pub const ALL: [Self; 5] = [
        Self::Full,
        Self::Resumed,
        Self::Failed,
        Self::TimedOut,
        Self::Aborted,
    ];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Aborted => "aborted",
        }
    }

    /// Position in [`Handshake::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What the application reported about a client: `word` of `waf_application_total` (APP-5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApplicationWord {
    /// `count=NAME`
    Count,
    /// `ban`, `ban=DURATION`
    Ban,
    /// A ban that was not made, because there were too many in that second.
    BanLeftOut,
    /// `trust=DURATION`
    Trust,
    /// A field that was not understood.
    Ignored,
}

impl ApplicationWord {
    /// Every word, in the order of the metrics.
    pub const ALL: [Self; 5] = [
        Self::Count,
        Self::Ban,
        Self::BanLeftOut,
        Self::Trust,
        Self::Ignored,
    ];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Ban => "ban",
            Self::BanLeftOut => "ban_left_out",
            Self::Trust => "trust",
            Self::Ignored => "ignored",
        }
    }

    /// Position in [`ApplicationWord::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Requests by key, with a fast hash because every request is counted.
pub type Counts<K> = HashMap<K, u64, RandomState>;

/// Requests by country and by AS number since the last call, while lookups are on. Exact; both
/// planes bound it by [`MAX_ASNS`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OriginCounts {
    /// By ISO 3166-1 code; none is unknown.
    pub countries: Counts<Option<Country>>,
    /// By AS number; none is unknown.
    pub asns: Counts<Option<AsNumber>>,
    /// Requests of AS numbers beyond [`MAX_ASNS`].
    pub asns_beyond: u64,
}

/// The most AS numbers that are counted individually. The internet has about 80,000, so each has an
/// exact count; the bound is for a lookup service that invents more.
pub const MAX_ASNS: usize = 131_072;

impl OriginCounts {
    /// Counts one request. It counts as unknown if its AS number stands for none, if it has no
    /// country (LOOKUP-4), or if its lookup had not answered when the request ended.
    pub fn count(&mut self, Origin { country, asn }: Origin) {
        *self.countries.entry(country).or_default() += 1;
        self.add_asn(asn, 1);
    }

    /// Adds the counts of another, and leaves that one empty.
    pub fn take_in(&mut self, other: &mut Self) {
        for (country, count) in other.countries.drain() {
            *self.countries.entry(country).or_default() += count;
        }
        for (asn, count) in other.asns.drain() {
            self.add_asn(asn, count);
        }
        self.asns_beyond += std::mem::take(&mut other.asns_beyond);
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.countries.is_empty()
    }

    fn add_asn(&mut self, asn: Option<AsNumber>, count: u64) {
        if self.asns.len() < MAX_ASNS {
            *self.asns.entry(asn).or_default() += count;
        } else {
            match self.asns.get_mut(&asn) {
                Some(held) => *held += count,
                None => self.asns_beyond += count,
            }
        }
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
    /// The application's answers, in the order of [`RESPONSE_CLASSES`].
    pub responses: [u64; RESPONSE_CLASSES.len()],
    /// Body and WebSocket bytes from clients.
    pub request_bytes: u64,
    /// Body and WebSocket bytes to clients.
    pub response_bytes: u64,
    /// Broken limits by [`LimitHit::index`].
    pub limit_hits: [u64; LimitHit::ALL.len()],
    /// Connections open now.
    pub connections: u64,
    /// By [`ConnectionError::index`].
    pub connection_errors: [u64; ConnectionError::ALL.len()],
    /// By outcome, as [`Handshake::ALL`].
    pub handshakes: [u64; Handshake::ALL.len()],
    /// By [`ApplicationWord::index`].
    pub application: [u64; ApplicationWord::ALL.len()],
    /// Exceeded limits that were dropped because their channel was full.
    pub breaks_dropped: u64,
    /// Log records that were dropped because their channel was full.
    pub records_dropped: u64,
    /// Refused requests that have no log record of their own (LOG-6).
    pub records_left_out: u64,
    /// Lines of the process log that were dropped because nobody read standard error.
    pub process_log_lines_dropped: u64,
    /// Finished requests that were dropped because the channel to the anomaly counters was full.
    pub finished_dropped: u64,
    /// Requests at the application now.
    pub upstream: u64,
    /// Requests that wait for their turn at the application now.
    pub upstream_waiting: u64,
    /// Clients in the table now.
    pub clients: u64,
    /// Clients dropped because the table was full.
    pub clients_evicted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::Lookup;

    fn lookup(country: Option<&str>, asn: Option<&str>) -> Lookup {
        Lookup {
            country: country.map(str::to_owned),
            asn: asn.map(str::to_owned),
            as_name: None,
        }
    }

    /// METRIC, LOOKUP-4: 64512 counts as unknown, and so does an answer without a country.
    #[test]
    fn places_are_counted_and_unknown_is_unknown() {
        let mut counts = OriginCounts::default();
        for (country, asn) in [
            (Some("DE"), Some("AS64496")),
            (Some("de"), Some("AS64512")),
            (None, Some("AS64496")),
            (Some("DEU"), None),
        ] {
            counts.count(Origin::of(&lookup(country, asn)));
        }
        counts.count(Origin::default());
        let germany = "DE".parse().ok();
        assert_eq!(
            counts.countries,
            Counts::from_iter([(germany, 2), (None, 3)])
        );
        let known = AsNumber::new(64_496);
        assert_eq!(counts.asns, Counts::from_iter([(known, 1), (None, 4)]));
    }

    /// METRIC: the number of AS numbers is bounded, and every request is still counted.
    #[test]
    fn as_numbers_are_bounded() {
        let (mut all, mut one) = (OriginCounts::default(), OriginCounts::default());
        for number in 0..150_000u32 {
            one.count(Origin::of(&lookup(
                Some("DE"),
                Some(&format!("AS{}", 100_000 + number)),
            )));
            if number % 1000 == 0 {
                all.take_in(&mut one);
                assert!(one.is_empty());
            }
        }
        all.take_in(&mut one);
        assert_eq!(all.asns.len(), MAX_ASNS);
        assert_eq!(all.asns.values().sum::<u64>() + all.asns_beyond, 150_000);
    }
}
