//! A ban, in the form of bans.json and of every answer (BAN-4).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::ban_origin::{BanOrigin, DecidedBy, OtherWord};
use crate::client::Client;
use crate::lookup::Lookup;
use crate::netblock::Netblock;
use crate::units::{Time, optional_count};
use crate::verdict::LimitKind;
use crate::window::RuleSpan;

/// When a ban ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Expiry {
    /// At this time, without any step of the control plane (BAN-7).
    At(Time),
    /// Never by time: the word `permanent`.
    Permanent,
}

impl Expiry {
    /// Whether the ban is over at `now_ms`.
    pub fn is_past(self, now_ms: u64) -> bool {
        match self {
            Self::At(Time(end)) => end <= now_ms,
            Self::Permanent => false,
        }
    }

    /// The expiry of an end in milliseconds, the reverse of [`Expiry::end_ms`].
    pub const fn from_end_ms(end_ms: u64) -> Self {
        if end_ms == u64::MAX {
            Self::Permanent
        } else {
            Self::At(Time(end_ms))
        }
    }

    /// The milliseconds left at `now_ms`; none for a permanent ban.
    pub const fn remaining_ms(self, now_ms: u64) -> Option<u64> {
        match self {
            Self::At(Time(end)) => Some(end.saturating_sub(now_ms)),
            Self::Permanent => None,
        }
    }

    /// The end in milliseconds since 1970; a permanent ban ends at `u64::MAX`.
    pub fn end_ms(self) -> u64 {
        match self {
            Self::At(Time(end)) => end,
            Self::Permanent => u64::MAX,
        }
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(time) => time.fmt(f),
            Self::Permanent => f.write_str("permanent"),
        }
    }
}

impl FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "permanent" {
            return Ok(Self::Permanent);
        }
        text.parse().map(Self::At).map_err(|_| {
            format!("{text:?} is not an end: expected RFC 3339 such as 2026-11-21T16:00:00Z, or \"permanent\"")
        })
    }
}

impl Serialize for Expiry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Expiry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Who or what made a ban; also the label of `waf_bans_total`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A request limit was exceeded.
    RateLimit,
    /// A byte limit was exceeded.
    ByteLimit,
    /// `POST /_waf/bans`.
    Admin,
    /// An edit of bans.json.
    Edit,
    /// A limit of rules.json was exceeded (RULE-2).
    RuleLimit,
    /// A path of a trap of rules.json was requested (RULE-3).
    Trap,
    /// A jail of rules.json counted too many answers (RULE-4).
    Jail,
    /// The application asked for the ban in its answer (APP-3).
    Application,
    /// A word that this version does not know: it is kept (STATE-11).
    Other(OtherWord),
}

impl Cause {
    /// Every cause that is known, in the order of the metrics.
    pub const ALL: [Self; 8] = [
        Self::RateLimit,
        Self::ByteLimit,
        Self::Admin,
        Self::Edit,
        Self::RuleLimit,
        Self::Trap,
        Self::Jail,
        Self::Application,
    ];

    /// The name in bans and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::ByteLimit => "byte_limit",
            Self::Admin => "admin",
            Self::Edit => "edit",
            Self::RuleLimit => "rule_limit",
            Self::Trap => "trap",
            Self::Jail => "jail",
            Self::Application => "application",
            Self::Other(other) => other.name(),
        }
    }

    /// Who decided a ban of this cause, if the ban does not tell.
    const fn decided_by(self) -> DecidedBy {
        match self {
            Self::RateLimit
            | Self::ByteLimit
            | Self::RuleLimit
            | Self::Trap
            | Self::Jail
            | Self::Application => DecidedBy::Service,
            // Unknown causes are automatic: those of people are all known.
            Self::Other(_) => DecidedBy::Service,
            Self::Admin => DecidedBy::Admin,
            Self::Edit => DecidedBy::File,
        }
    }

    /// Whether a limit was exceeded: of requests, of bytes, or of a rule (ALIVE-5). A ban that the
    /// application asks for counts as one: it may be about one of many clients behind a forwarding
    /// peer.
    pub const fn is_of_a_limit(self) -> bool {
        match self {
            Self::RateLimit | Self::ByteLimit | Self::RuleLimit | Self::Application => true,
            Self::Trap | Self::Jail | Self::Admin | Self::Edit | Self::Other(_) => false,
        }
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Cause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = Self::ALL.into_iter().find(|cause| cause.name() == text);
        let other = || OtherWord::named(&text).map(Self::Other);
        (known.or_else(other)).ok_or_else(|| {
            let expected = "a cause of a ban: small letters and _, and at most 64 unknown words";
            serde::de::Error::custom(format!("{text:?} is not valid: expected {expected}"))
        })
    }
}

/// What an automatic ban covers (RULE-8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The client alone: one IPv4 address, or one IPv6 /64.
    #[default]
    Client,
    /// The client's netblock: `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`.
    Netblock,
}

/// One ban. Members that this version does not know are kept in `unknown` and written back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ban {
    /// The netblock; masked, and never narrower than a client once it was read.
    pub netblock: Netblock,
    /// The client that exceeded the limit, or that an administrator named.
    #[serde(default)]
    pub client: Option<Client>,
    /// When the ban was made; an entry without it gets the time at which it was read.
    #[serde(default)]
    pub ban_started: Option<Time>,
    /// When it ends.
    pub ban_expires: Expiry,
    /// Its cause.
    #[serde(default = "Ban::edited")]
    pub cause: Cause,
    /// Its origin; an entry without one gets the origin of its cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<BanOrigin>,
    /// Why, in a sentence.
    #[serde(default)]
    pub reason: String,
    /// When it was lifted; a lifted ban refuses nobody and feeds no escalation (BAN-2).
    #[serde(default)]
    pub lifted: Option<Time>,
    /// Made in observe mode: refuses nobody in enforce mode (CHECK-3).
    #[serde(default)]
    pub observed: bool,
    /// The circumstances of an automatic ban.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Notes>,
    /// Members of a newer version or of the administrator.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Ban {
    fn edited() -> Cause {
        Cause::Edit
    }

    /// The origin of the ban.
    pub fn origin(&self) -> BanOrigin {
        (self.origin).unwrap_or(BanOrigin::here(self.cause.decided_by()))
    }

    /// Whether the ban refuses at `now_ms`, regardless of [`Ban::observed`].
    pub fn is_active(&self, now_ms: u64) -> bool {
        self.lifted.is_none() && !self.ban_expires.is_past(now_ms)
    }

    /// The length in milliseconds; `u64::MAX` for a permanent ban.
    pub fn length_ms(&self) -> u64 {
        match (self.ban_expires, self.ban_started) {
            (Expiry::Permanent, _) => u64::MAX,
            (Expiry::At(Time(end)), Some(Time(start))) => end.saturating_sub(start),
            (Expiry::At(_), None) => 0,
        }
    }
}

/// The circumstances of an automatic ban.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Notes {
    /// The request that exceeded the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<WithUnknown<RequestNote>>,
    /// Requests of the whole netblock in the exceeded window.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_count"
    )]
    pub netblock_requests: Option<u64>,
    /// Which limit was exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitKind>,
    /// Its value, requests or bytes, after the percentage.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_count"
    )]
    pub limit_value: Option<u64>,
    /// The percentage that was applied.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_count"
    )]
    pub limit_percent: Option<u8>,
    /// The rule of rules.json that was exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<WithUnknown<RuleNote>>,
    /// The counts of this and of other instances, if others have counted too (FLEET-8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<WithUnknown<FleetNote>>,
    /// The client's lookup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookup: Option<WithUnknown<Arc<Lookup>>>,
    /// Members of a newer version or of the administrator.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A part of a ban's notes, with its members of a newer version or of the administrator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WithUnknown<T> {
    /// The known members.
    #[serde(flatten)]
    pub known: T,
    /// The unknown members.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl<T> From<T> for WithUnknown<T> {
    fn from(known: T) -> Self {
        Self {
            known,
            unknown: Unknown::default(),
        }
    }
}

/// Members that this version does not know, in their order. Boxed, because nearly no ban has any,
/// and four empty maps in each of 10,000 bans would take memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unknown(Option<Box<Map<String, Value>>>);

impl Unknown {
    /// The member of this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.as_ref()?.get(name)
    }

    /// The members of a ban that was requested with force.
    pub fn forced(force: bool) -> Self {
        match force {
            true => Self::default().with("force", Value::Bool(true)),
            false => Self::default(),
        }
    }

    /// Adds this member.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        let members = self.0.get_or_insert_default();
        members.insert(name.to_owned(), value);
        self
    }
}

impl Serialize for Unknown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().flat_map(|members| members.iter()))
    }
}

impl<'de> Deserialize<'de> for Unknown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members = Map::deserialize(deserializer)?;
        Ok(Self((!members.is_empty()).then(|| Box::new(members))))
    }
}

/// How much of the exceeded window this and other instances have counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FleetNote {
    /// The estimate of requests or bytes that this instance has counted.
    pub here: u64,
    /// The estimate of all other instances.
    pub others: u64,
    /// The number of live instances, this one included.
    pub instances: u64,
}

/// The rule that was exceeded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleNote {
    /// Its name.
    pub name: String,
    /// `limit`, `trap` or `jail`.
    pub kind: String,
    /// The window that was exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<RuleSpan>,
}

/// The request that exceeded a limit. Texts are cut at 256 bytes; bytes that are not UTF-8 are
/// replaced.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RequestNote {
    /// `GET`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The `Host` field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path without the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The `User-Agent` field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// The request's id, as in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BAN-4: a hand-written entry needs `netblock` and `ban_expires`; the rest gets defaults,
    /// unknown members are kept.
    #[test]
    fn a_hand_written_entry_gets_defaults_and_keeps_what_is_unknown() {
        let ban: Ban = serde_json::from_str(
            r#"{"netblock":"203.0.113.7/24","ban_expires":"permanent","ticket":"OPS-1"}"#,
        )
        .unwrap();
        assert_eq!(ban.netblock.to_string(), "203.0.113.0/24");
        assert_eq!(
            (ban.cause, ban.lifted, ban.observed),
            (Cause::Edit, None, false)
        );
        assert_eq!(serde_json::to_value(&ban).unwrap()["ticket"], "OPS-1");
        assert!(serde_json::from_str::<Ban>(r#"{"netblock":"203.0.113.7"}"#).is_err());
    }

    /// BAN-7: a ban ends at the moment it expires.
    #[test]
    fn a_ban_ends_at_its_end() {
        let end = Expiry::At(Time(1000));
        assert!(!end.is_past(999));
        assert!(end.is_past(1000));
        assert!(!Expiry::Permanent.is_past(u64::MAX));
        for expiry in [Expiry::Permanent, Expiry::At(Time(7)), Expiry::At(Time(0))] {
            assert_eq!(Expiry::from_end_ms(expiry.end_ms()), expiry);
        }
        let remaining = |expiry: Expiry| [5, 9].map(|now_ms| expiry.remaining_ms(now_ms));
        assert_eq!(remaining(Expiry::At(Time(7))), [Some(2), Some(0)]);
        assert_eq!(remaining(Expiry::Permanent), [None, None]);
    }
}
