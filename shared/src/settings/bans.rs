//! Bans.

use std::fmt;
use std::path::PathBuf;

use http::StatusCode;

use super::kind::{Kind, ban_time, file, parse_whole, whole};
use super::row::{Row, row};
use crate::escalation::Policy;
use crate::netblock::PrefixLengths;

/// Bans.
#[derive(Clone, Debug, Default)]
pub struct BanSettings {
    /// `WAF_BAN_FIRST`, `_FACTOR`, `_REPEAT_WINDOW`, `_PERMANENT_AFTER`
    pub policy: Policy,
    /// `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`
    pub prefixes: PrefixLengths,
    /// `WAF_BAN_RESPONSE`
    pub response: BanResponse,
    /// `WAF_DENY_RESPONSE`; none is that of bans
    pub deny_response: Option<BanResponse>,
    /// `WAF_REFUSAL_PAGE`; none is the page that is built in
    pub refusal_page: Option<PathBuf>,
    /// `WAF_MAX_BANS`
    pub max: usize,
}

/// `WAF_BAN_RESPONSE` (BAN-6)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BanResponse {
    /// A 4xx or 5xx status.
    Status(StatusCode),
    /// The connection closes unanswered.
    Drop,
}

/// As it is written.
impl fmt::Display for BanResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => f.write_str(status.as_str()),
            Self::Drop => f.write_str("drop"),
        }
    }
}

impl Default for BanResponse {
    fn default() -> Self {
        Self::Status(StatusCode::TOO_MANY_REQUESTS)
    }
}

// long: a flat list of settings
pub(super) fn rows() -> Vec<Row<BanSettings>> {
    vec![
        row(
            "WAF_BAN_FIRST",
            "1h",
            ban_time(),
            |bans: &mut BanSettings| &mut bans.policy.first,
            "Length of the first ban of a netblock.",
        ).live()
        .essential(),
        row(
            "WAF_BAN_FACTOR",
            "3",
            whole(1..=1000),
            |bans: &mut BanSettings| &mut bans.policy.factor,
            "A repeated ban lasts this many times the one before.",
        ).live(),
        row(
            "WAF_BAN_REPEAT_WINDOW",
            "1d",
            ban_time(),
            |bans: &mut BanSettings| &mut bans.policy.repeat_window,
            "How long after its end a ban counts for the next one's length.",
        ).live(),
        row(
            "WAF_BAN_PERMANENT_AFTER",
            "7d",
            ban_time(),
            |bans: &mut BanSettings| &mut bans.policy.permanent_after,
            "A ban that would last longer is permanent; not shorter than `WAF_BAN_FIRST`.",
        ).live(),
        row(
            "WAF_BAN_IPV4_PREFIX",
            "24",
            whole(8..=32),
            |bans: &mut BanSettings| &mut bans.prefixes.v4,
            "Prefix length of the netblock that is banned with an IPv4 client.",
        ).live()
        .essential(),
        row(
            "WAF_BAN_IPV6_PREFIX",
            "56",
            whole(16..=64),
            |bans: &mut BanSettings| &mut bans.prefixes.v6,
            "The same for an IPv6 client.",
        ).live(),
        row(
            "WAF_BAN_RESPONSE",
            "429",
            response(),
            |bans: &mut BanSettings| &mut bans.response,
            "The answer to a banned client; drop closes the connection unanswered.",
        ).live(),
        row(
            "WAF_DENY_RESPONSE",
            "",
            response().map(Some),
            |bans: &mut BanSettings| &mut bans.deny_response,
            "The same for deny nets and country lists.",
        ).live()
        .unset("as WAF_BAN_RESPONSE"),
        row(
            "WAF_REFUSAL_PAGE",
            "",
            file(),
            |bans: &mut BanSettings| &mut bans.refusal_page,
            "The page of a refusal where HTML is preferred; read again 2 seconds after its last change.",
        ).live()
        .unset("a small built-in page"),
        row(
            "WAF_MAX_BANS",
            "10000",
            whole(1..=200_000),
            |bans: &mut BanSettings| &mut bans.max,
            "Bans held, ended and lifted ones included; bans.json has room for as many.",
        ).live(),
    ]
}

fn response() -> Kind<BanResponse> {
    Kind::new("a status from 400 to 599, or drop", |text| {
        if text == "drop" {
            return Ok(BanResponse::Drop);
        }
        let status = parse_whole(text, &(400..=599))?;
        let status = StatusCode::from_u16(status).map_err(|_| "is not a status")?;
        Ok::<_, &str>(BanResponse::Status(status))
    })
}
