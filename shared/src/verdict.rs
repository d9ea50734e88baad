//! What the ladder can decide, and everything that follows from it.
//!
//! [`Action`] alone decides the metric label, the log member and what a client's history counts. No
//! other list of these strings exists.

use serde::{Deserialize, Serialize};

use crate::window::{PerSpan, RuleSpan, Span};

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The application answered.
    Passed,
    /// The application could not be reached, was too slow, or answered nonsense: 502 or 504.
    UpstreamError,
    /// The client went away before its answer was complete.
    ClientAborted,
    /// The client sent its body, or took its answer, at less than `WAF_MIN_RATE`.
    TooSlow,
    /// Answered by the service itself, under `/_waf/`.
    Answered,
    /// A token was missing or wrong: 401.
    Unauthorized,
    /// Nothing of that name under `/_waf/`: 404.
    NotFound,
    /// `WAF_DENY_NETS` or `deny` of rules.json covers the client.
    DeniedNet,
    /// A country list refuses the client.
    DeniedCountry,
    /// `WAF_DENY_ASNS` refuses the client.
    DeniedAsn,
    /// An entry of `denials` refuses the request (MATCH-3).
    DeniedRule,
    /// An active ban covers the client.
    Banned,
    /// The request exceeded a limit.
    RateLimited,
    /// The body is larger than `WAF_MAX_BODY_SIZE`: 413.
    BodyTooLarge,
    /// The path is a trap (RULE-3).
    Trapped,
    /// `WAF_MAX_UPSTREAM` requests were at the application, and no place came free: 503.
    Overloaded,
}

/// What a request adds to its client's history (CHECK-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum History {
    /// Counts as passed.
    Passed,
    /// Counts as refused.
    Refused,
    /// Counts as neither.
    Neither,
}

impl Action {
    /// Every action, in the order of the metrics.
    pub const ALL: [Self; 16] = [
        Self::Passed,
        Self::UpstreamError,
        Self::ClientAborted,
        Self::TooSlow,
        Self::Answered,
        Self::Unauthorized,
        Self::NotFound,
        Self::DeniedNet,
        Self::DeniedCountry,
        Self::DeniedAsn,
        Self::DeniedRule,
        Self::Banned,
        Self::RateLimited,
        Self::BodyTooLarge,
        Self::Trapped,
        Self::Overloaded,
    ];

    /// The `action` of the log and of `waf_requests_total`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::UpstreamError => "upstream_error",
            Self::ClientAborted => "client_aborted",
            Self::TooSlow => "too_slow",
            Self::Answered => "answered",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::DeniedNet => "denied_net",
            Self::DeniedCountry => "denied_country",
            Self::DeniedAsn => "denied_asn",
            Self::DeniedRule => "denied_rule",
            Self::Banned => "banned",
            Self::RateLimited => "rate_limited",
            Self::BodyTooLarge => "body_too_large",
            Self::Trapped => "trapped",
            Self::Overloaded => "overloaded",
        }
    }

    /// Position in [`Action::ALL`]: the index of its counter.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether enforce mode ends the request here with a refusal of the filter; observe mode lets
    /// it through (CHECK-3).
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::DeniedNet
            | Self::DeniedCountry
            | Self::DeniedAsn
            | Self::DeniedRule
            | Self::Banned
            | Self::RateLimited
            | Self::BodyTooLarge
            | Self::Trapped => true,
            Self::Passed
            | Self::UpstreamError
            | Self::ClientAborted
            | Self::TooSlow
            | Self::Answered
            | Self::Unauthorized
            | Self::NotFound
            | Self::Overloaded => false,
        }
    }

    /// Whether the log bounds the lines of requests that end so (LOG-6): a client that is refused
    /// for who it is, or again for what it did before, can be refused without end, and each refusal
    /// costs it a few bytes.
    pub const fn is_bounded_in_log(self) -> bool {
        match self {
            Self::DeniedNet
            | Self::DeniedCountry
            | Self::DeniedAsn
            | Self::DeniedRule
            | Self::Banned
            | Self::RateLimited
            | Self::Trapped => true,
            // The body that is too large was announced or sent, and its connection is closed.
            Self::BodyTooLarge
            | Self::Passed
            | Self::UpstreamError
            | Self::ClientAborted
            | Self::TooSlow
            | Self::Answered
            | Self::Unauthorized
            | Self::NotFound
            | Self::Overloaded => false,
        }
    }

    /// What an enforced request adds to its client's history (CHECK-4). Answers of the metrics
    /// endpoint are [`History::Neither`] although their action is [`Action::Answered`]; who answers
    /// says so.
    pub const fn history(self) -> History {
        match self {
            Self::Passed
            | Self::UpstreamError
            | Self::ClientAborted
            | Self::TooSlow
            | Self::Answered => History::Passed,
            Self::Unauthorized
            | Self::DeniedNet
            | Self::DeniedCountry
            | Self::DeniedAsn
            | Self::DeniedRule
            | Self::Banned
            | Self::RateLimited
            | Self::BodyTooLarge
            | Self::Trapped => History::Refused,
            // Whoever meets a full house has done nothing.
            Self::NotFound | Self::Overloaded => History::Neither,
        }
    }
}

/// Which of the six windows: `limit` of a ban's notes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Requests a minute.
    Minute,
    /// Requests an hour.
    Hour,
    /// Requests a day.
    Day,
    /// Bytes a minute.
    MinuteBytes,
    /// Bytes an hour.
    HourBytes,
    /// Bytes a day.
    DayBytes,
}

impl LimitKind {
    /// Every kind, requests first, shortest first.
    pub const ALL: [Self; 6] = [
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::MinuteBytes,
        Self::HourBytes,
        Self::DayBytes,
    ];

    /// The kind of a request window.
    pub const fn requests(span: Span) -> Self {
        match span {
            Span::Minute => Self::Minute,
            Span::Hour => Self::Hour,
            Span::Day => Self::Day,
        }
    }

    /// The kind of a byte window.
    pub const fn bytes(span: Span) -> Self {
        match span {
            Span::Minute => Self::MinuteBytes,
            Span::Hour => Self::HourBytes,
            Span::Day => Self::DayBytes,
        }
    }

    /// The window's length.
    pub const fn span(self) -> Span {
        match self {
            Self::Minute | Self::MinuteBytes => Span::Minute,
            Self::Hour | Self::HourBytes => Span::Hour,
            Self::Day | Self::DayBytes => Span::Day,
        }
    }

    /// Whether bytes are counted, not requests.
    pub const fn counts_bytes(self) -> bool {
        match self {
            Self::MinuteBytes | Self::HourBytes | Self::DayBytes => true,
            Self::Minute | Self::Hour | Self::Day => false,
        }
    }

    /// As written in bans, log and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::MinuteBytes => "minute_bytes",
            Self::HourBytes => "hour_bytes",
            Self::DayBytes => "day_bytes",
        }
    }

    /// Position in [`LimitKind::ALL`]: the index of its counter.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Which limit refused a request: `limit_hit` of the log, `kind` of `waf_limit_hits_total`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LimitHit {
    /// One of the six windows.
    Window(LimitKind),
    /// `WAF_RATE_LIMIT_PER_SECOND` (RULE-5).
    Second,
    /// `WAF_MAX_REQUESTS_PER_CLIENT` (RULE-5).
    Concurrent,
    /// A window of a rule (RULE-2), which is named by the rule and counted with it.
    Rule(RuleSpan),
}

impl LimitHit {
    /// Every one of `waf_limit_hits_total`, in its order.
    pub const ALL: [Self; 8] = [
        Self::Window(LimitKind::Minute),
        Self::Window(LimitKind::Hour),
        Self::Window(LimitKind::Day),
        Self::Window(LimitKind::MinuteBytes),
        Self::Window(LimitKind::HourBytes),
        Self::Window(LimitKind::DayBytes),
        Self::Second,
        Self::Concurrent,
    ];

    /// As written in log and metrics; of a rule its window.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window(kind) => kind.name(),
            Self::Second => "second",
            Self::Concurrent => "concurrent",
            Self::Rule(span) => span.name(),
        }
    }

    /// Position in [`LimitHit::ALL`]: the index of its counter. None for a rule, which counts its
    /// own hits.
    pub const fn index(self) -> Option<usize> {
        match self {
            Self::Window(kind) => Some(kind.index()),
            Self::Second => Some(LimitKind::ALL.len()),
            Self::Concurrent => Some(LimitKind::ALL.len() + 1),
            Self::Rule(_) => None,
        }
    }
}

/// One value for each limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerLimit<T> {
    /// Those of requests.
    pub requests: PerSpan<T>,
    /// Those of bytes.
    pub bytes: PerSpan<T>,
}

/// The limits of a client, after percentages; none is `off`.
pub type Limits = PerLimit<Option<u64>>;

/// What a client has used of each window: estimates, rounded down.
pub type Counts = PerLimit<u64>;

impl<T> PerLimit<T> {
    /// The value of one limit.
    pub const fn get(&self, kind: LimitKind) -> &T {
        if kind.counts_bytes() {
            self.bytes.get(kind.span())
        } else {
            self.requests.get(kind.span())
        }
    }
}

/// A percentage that was applied to the limits of a client (LIMIT-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppliedPercent {
    /// 0 to 100.
    pub percent: u8,
    /// The setting that it came from.
    pub setting: PercentSetting,
}

/// The settings that lower the limits of a client. A byte instead of a name: every decision carries
/// two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PercentSetting {
    /// `WAF_UNKNOWN_LIMIT_PERCENT`
    Unknown,
    /// `WAF_ASN_LIMIT_PERCENT`
    Asn,
    /// `WAF_ASN_BYTES_PERCENT`
    AsnBytes,
    /// `WAF_COUNTRY_LIMIT_PERCENT`
    Country,
    /// `WAF_COUNTRY_BYTES_PERCENT`
    CountryBytes,
}

impl PercentSetting {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "WAF_UNKNOWN_LIMIT_PERCENT",
            Self::Asn => "WAF_ASN_LIMIT_PERCENT",
            Self::AsnBytes => "WAF_ASN_BYTES_PERCENT",
            Self::Country => "WAF_COUNTRY_LIMIT_PERCENT",
            Self::CountryBytes => "WAF_COUNTRY_BYTES_PERCENT",
        }
    }
}

/// Which list a client stands on: `client_group` of the log. Watched netblocks are named by the log
/// writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// `WAF_ALLOW_NETS`, or `allow` of rules.json.
    Allow,
    /// `WAF_DENY_NETS`, or `deny` of rules.json.
    Deny,
    /// No list.
    Default,
}

impl Group {
    /// As written in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Default => "default",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_positions() {
        for (index, action) in Action::ALL.into_iter().enumerate() {
            assert_eq!(action.index(), index);
        }
        for (index, kind) in LimitKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for (index, hit) in LimitHit::ALL.into_iter().enumerate() {
            assert_eq!(hit.index(), Some(index));
        }
    }

    /// CHECK-4: 401 counts as refused, 404 and an overload as neither.
    #[test]
    fn history_counts_401_as_refused_and_404_as_neither() {
        assert_eq!(Action::Unauthorized.history(), History::Refused);
        assert_eq!(Action::NotFound.history(), History::Neither);
        assert_eq!(Action::Overloaded.history(), History::Neither);
    }
}
