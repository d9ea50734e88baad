//! What a client may use.

use super::kind::{Kind, count, size, whole, word};
use super::row::{Row, cell, family, row};
use crate::window::PerSpan;

/// What a client may use.
#[derive(Clone, Debug, Default)]
pub struct LimitSettings {
    /// `WAF_RATE_LIMIT_PER_{MINUTE,HOUR,DAY}`; none is `off`
    pub requests: PerSpan<Option<u64>>,
    /// `WAF_BYTES_LIMIT_PER_{MINUTE,HOUR,DAY}`; none is `off`
    pub bytes: PerSpan<Option<u64>>,
    /// `WAF_ON_LIMIT`
    pub on_limit: OnLimit,
    /// `WAF_RATE_LIMIT_PER_SECOND`; none is `off`
    pub per_second: Option<u32>,
    /// `WAF_RATE_LIMIT_BURST`; none is what comes in a second
    pub burst: Option<u32>,
    /// `WAF_MAX_REQUESTS_PER_CLIENT`; none is `off`
    pub max_under_way: Option<u32>,
    /// `WAF_BYTES_COUNT`
    pub bytes_count: BytesCount,
    /// `WAF_MAX_BODY_SIZE`; none is `off`
    pub max_body_size: Option<u64>,
    /// `WAF_RATE_LIMIT_HEADERS`
    pub headers: RateLimitHeaders,
}

/// `WAF_ON_LIMIT`: the consequence of exceeding one of the six limits (RULE-5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnLimit {
    /// A ban.
    #[default]
    Ban,
    /// 429, until the request fits.
    Refuse,
}

/// `WAF_BYTES_COUNT`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BytesCount {
    /// Both directions.
    #[default]
    Both,
    /// From the client only.
    Request,
    /// To the client only.
    Response,
}

/// `WAF_RATE_LIMIT_HEADERS`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RateLimitHeaders {
    /// Never.
    Off,
    /// With answers of limits.
    #[default]
    Refused,
    /// With every answer.
    Always,
}

// long: a flat list of settings
pub(super) fn rows() -> Vec<Row<LimitSettings>> {
    type Limits = LimitSettings;
    vec![
        family(
            "WAF_RATE_LIMIT_PER_{MINUTE,HOUR,DAY}",
            [
                (
                    "1000",
                    cell(count(), |limits: &mut Limits| &mut limits.requests.minute),
                ),
                (
                    "10000",
                    cell(count(), |limits: &mut Limits| &mut limits.requests.hour),
                ),
                (
                    "50000",
                    cell(count(), |limits: &mut Limits| &mut limits.requests.day),
                ),
            ],
            "Requests of a client in a minute, an hour and a day.",
        ).live()
        .essential(),
        family(
            "WAF_BYTES_LIMIT_PER_{MINUTE,HOUR,DAY}",
            [
                (
                    "10G",
                    cell(size(), |limits: &mut Limits| &mut limits.bytes.minute),
                ),
                (
                    "20G",
                    cell(size(), |limits: &mut Limits| &mut limits.bytes.hour),
                ),
                (
                    "50G",
                    cell(size(), |limits: &mut Limits| &mut limits.bytes.day),
                ),
            ],
            "Bytes of a client in a minute, an hour and a day.",
        ).live()
        .essential(),
        row(
            "WAF_ON_LIMIT",
            "ban",
            word([("ban", OnLimit::Ban), ("refuse", OnLimit::Refuse)]),
            |limits: &mut LimitSettings| &mut limits.on_limit,
            "What follows a broken limit: a ban, or 429 until the request fits.",
        ).live(),
        family(
            "WAF_RATE_LIMIT_{PER_SECOND,BURST}",
            [
                (
                    "off",
                    cell(a_second().or_off(), |limits: &mut Limits| {
                        &mut limits.per_second
                    }),
                ),
                (
                    "off",
                    cell(a_second().or_off(), |limits: &mut Limits| &mut limits.burst),
                ),
            ],
            "Requests of a client in a second, and at once (off: as in a second); more are answered 429 without a ban.",
        ).live(),
        row(
            "WAF_MAX_REQUESTS_PER_CLIENT",
            "256",
            a_second().or_off(),
            |limits: &mut LimitSettings| &mut limits.max_under_way,
            "Requests of a client under way at the same time, streams of HTTP/2 and WebSockets included; more are answered 429 without a ban. Trusted proxies that name no client are not bound by it.",
        ).live(),
        row(
            "WAF_BYTES_COUNT",
            "both",
            word([
                ("both", BytesCount::Both),
                ("request", BytesCount::Request),
                ("response", BytesCount::Response),
            ]),
            |limits: &mut LimitSettings| &mut limits.bytes_count,
            "Which bodies the byte limits count.",
        ).live(),
        row(
            "WAF_MAX_BODY_SIZE",
            "100M",
            size(),
            |limits: &mut LimitSettings| &mut limits.max_body_size,
            "A larger request body is answered 413.",
        ).live(),
        row(
            "WAF_RATE_LIMIT_HEADERS",
            "refused",
            word([
                ("off", RateLimitHeaders::Off),
                ("refused", RateLimitHeaders::Refused),
                ("always", RateLimitHeaders::Always),
            ]),
            |limits: &mut LimitSettings| &mut limits.headers,
            "Which answers carry RateLimit and RateLimit-Policy.",
        ).live(),
    ]
}

/// Small enough that no product of two overflows.
fn a_second() -> Kind<u32> {
    whole(1..=1_000_000)
}
