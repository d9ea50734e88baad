//! The answer of `GET /v1/explain` (CONTROL-5).

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::in_order::InOrder;
use crate::ban::{Ban, Expiry};
use crate::client::Client;
use crate::lookup::Lookup;
use crate::netblock::Netblock;
use crate::rules::Rule;
use crate::units::Time;
use crate::verdict::LimitHit;
use crate::window::{PerSpan, RuleSpan};
use crate::{explain, verdict};

/// What the checks would do with a request, and why.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explained {
    /// The remembered refusal, if the request was named by its id.
    pub request: Option<Refusal>,
    /// The address that would send it.
    pub address: IpAddr,
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Whether a page of another site would cause the request (RULE-8).
    #[serde(default)]
    pub other_site: bool,
    /// The client that it would be charged to (CLIENT-1).
    pub client: Client,
    /// The netblock that a ban of the client for a limit would cover.
    pub netblock: Netblock,
    /// Whether a refusal is only noted.
    #[serde(default)]
    pub observe: bool,
    /// The outcome.
    pub now: Outcome,
    /// The outcome without the ban that refuses it, or without the lookup that it waits for.
    pub otherwise: Option<Outcome>,
    /// The list member that decides.
    pub list: Option<ListMember>,
    /// The rule that decides.
    pub rule: Option<RuleName>,
    /// The exemption from denials, traps and limits.
    pub exempt: Option<ExemptBy>,
    /// The crawler that it claims to be (CRAWL-2).
    pub crawler: Option<Crawler>,
    /// Whether the limits would count it.
    #[serde(default)]
    pub counted: bool,
    /// Whether the client is known (SHARE-4).
    #[serde(default)]
    pub known: bool,
    /// Whether the application trusts the client now (APP-4).
    #[serde(default)]
    pub trusted: bool,
    /// The client's lookup; none if no lookup has answered.
    pub lookup: Option<Arc<Lookup>>,
    /// The request windows before it.
    pub requests: Windows,
    /// The byte windows.
    pub bytes: Windows,
    /// How much of these windows other instances have counted.
    pub elsewhere: Option<Elsewhere>,
    /// The limits of rules.json that it matches.
    #[serde(default)]
    pub rule_limits: Vec<RuleUse>,
    /// The jails of rules.json that may count the answer.
    #[serde(default)]
    pub jails: Vec<RuleUse>,
    /// The percentage that lowers the request limits.
    pub limit_percent: Option<Percent>,
    /// The percentage that lowers the byte limits.
    pub bytes_percent: Option<Percent>,
    /// When a ban for a limit, made now, would end; none if none can be made.
    pub next_ban_expires: Option<Expiry>,
    /// The bans that cover the client and have not ended.
    #[serde(default)]
    pub bans: Vec<Arc<Ban>>,
    /// What would let the client through: commands, or a change of settings or rules.
    #[serde(default)]
    pub undo: Vec<String>,
}

/// A remembered refusal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The id of the request.
    pub request_id: String,
    /// When.
    pub time: Time,
    /// Why.
    pub action: String,
    /// False if it passed in observe mode.
    pub enforced: bool,
}

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// `passed`, `refused`, `answered`, `awaits_lookup` or `health`; a newer service may have
    /// further words.
    pub result: String,
    /// Why it is refused.
    pub action: Option<String>,
    /// The limit that it exceeds.
    pub limit_hit: Option<String>,
    /// The end of the ban that refuses it, or that would follow.
    pub ban_expires: Option<Expiry>,
    /// The time until then; none for a permanent ban.
    pub ban_ends_in_seconds: Option<u64>,
    /// The response to a refused client: a status, or `drop`, in the form of `WAF_BAN_RESPONSE`.
    pub response: Option<String>,
    /// Its `Retry-After`.
    pub retry_after_seconds: Option<u64>,
}

/// A member of an allow or deny list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListMember {
    /// `allow` or `deny`.
    pub name: String,
    /// The member.
    pub netblock: Netblock,
    /// The file or the feed.
    pub source: String,
    /// When the version of the feed was taken; none where it is no feed.
    pub since: Option<Time>,
}

/// A rule of rules.json, or a decision of one of its feeds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleName {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// When the version of the feed was taken; none where it is no feed.
    pub since: Option<Time>,
}

/// Why a request is exempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExemptBy {
    /// The setting, or rules.json.
    pub source: String,
    /// The prefix of a path, or the name of the entry.
    pub name: String,
}

/// A crawler that the request claims to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Crawler {
    /// Its name.
    pub name: String,
    /// What it crawls for.
    pub purpose: String,
    /// Whether it is the crawler: `verified`, `fake`, …
    pub state: String,
}

/// How much of the windows of a minute, an hour and a day is used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Windows {
    /// Of a minute.
    pub minute: Usage,
    /// Of an hour.
    pub hour: Usage,
    /// Of a day.
    pub day: Usage,
}

/// How much of a window is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// The estimate.
    pub used: u64,
    /// The limit after its percentage; none where there is none.
    pub limit: Option<u64>,
    /// The time until one more fits; none without a limit, or if none ever fits.
    pub fits_in_seconds: Option<u64>,
}

/// How much of a limit or a jail of rules.json is used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleUse {
    /// Its name.
    pub name: String,
    /// Each of its windows, by its name.
    pub windows: InOrder<Usage>,
    /// How much of them other instances of the fleet have counted.
    pub elsewhere: Option<RuleElsewhere>,
    /// The netblock that its ban would cover; none if it would ban nobody.
    pub would_ban: Option<Netblock>,
}

/// The counts of other instances for a limit or a jail (FLEET-29); none for a window that it does
/// not have, or that is not shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleElsewhere {
    /// Of a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minute: Option<u64>,
    /// Of an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hour: Option<u64>,
    /// Of a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<u64>,
    /// How long ago the engine has said so.
    pub age_ms: u64,
}

/// The counts of other instances of the fleet for a client (FLEET-29).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Requests.
    pub requests: Counts,
    /// Bytes.
    pub bytes: Counts,
    /// How long ago the engine has said so.
    pub age_ms: u64,
}

/// A count for each window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Of a minute.
    pub minute: u64,
    /// Of an hour.
    pub hour: u64,
    /// Of a day.
    pub day: u64,
}

/// A percentage that lowers a limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Percent {
    /// Of the limit.
    pub percent: u32,
    /// The setting it comes from.
    pub setting: String,
}

impl From<&explain::Usage> for Usage {
    fn from(usage: &explain::Usage) -> Self {
        Self {
            used: usage.used,
            limit: usage.limit,
            fits_in_seconds: usage.fits_in_ms.map(|ms| ms.div_ceil(1000)),
        }
    }
}

impl From<&PerSpan<explain::Usage>> for Windows {
    fn from(windows: &PerSpan<explain::Usage>) -> Self {
        Self {
            minute: (&windows.minute).into(),
            hour: (&windows.hour).into(),
            day: (&windows.day).into(),
        }
    }
}

impl From<&PerSpan<u64>> for Counts {
    fn from(of: &PerSpan<u64>) -> Self {
        let PerSpan { minute, hour, day } = *of;
        Self { minute, hour, day }
    }
}

impl From<&explain::Elsewhere> for Elsewhere {
    fn from(counted: &explain::Elsewhere) -> Self {
        Self {
            requests: (&counted.requests).into(),
            bytes: (&counted.bytes).into(),
            age_ms: counted.age_ms,
        }
    }
}

impl From<&explain::RuleUsage> for RuleUse {
    fn from(of: &explain::RuleUsage) -> Self {
        let windows = of.windows.iter();
        Self {
            name: of.rule.name.clone(),
            windows: windows
                .map(|(span, used)| (span.name(), used.into()))
                .collect(),
            elsewhere: of.elsewhere.as_ref().map(Into::into),
            would_ban: of.would_ban,
        }
    }
}

impl From<&explain::RuleElsewhere> for RuleElsewhere {
    fn from(counted: &explain::RuleElsewhere) -> Self {
        let of = |wanted| {
            let mut windows = counted.windows.iter();
            windows.find_map(|(span, others)| (*span == wanted).then_some(*others))
        };
        Self {
            minute: of(RuleSpan::Minute),
            hour: of(RuleSpan::Hour),
            day: of(RuleSpan::Day),
            age_ms: counted.age_ms,
        }
    }
}

impl From<&explain::ExemptBy> for ExemptBy {
    fn from(by: &explain::ExemptBy) -> Self {
        let (source, name) = match by {
            // In its written form: a prefix is stored without its last slash.
            explain::ExemptBy::Path(path) if path.is_empty() => ("WAF_EXEMPT_PATHS", "/"),
            explain::ExemptBy::Path(path) => ("WAF_EXEMPT_PATHS", path.as_str()),
            explain::ExemptBy::Entry(rule) => ("rules.json", rule.name.as_str()),
        };
        let (source, name) = (source.to_owned(), name.to_owned());
        Self { source, name }
    }
}

impl From<verdict::AppliedPercent> for Percent {
    fn from(applied: verdict::AppliedPercent) -> Self {
        Self {
            percent: applied.percent.into(),
            setting: applied.setting.name().to_owned(),
        }
    }
}

impl Outcome {
    /// The outcome of a request at `now_ms`, by this rule if one decides.
    pub fn of(outcome: &explain::Outcome, rule: Option<&Rule>, now_ms: u64) -> Self {
        match *outcome {
            explain::Outcome::Health => Self::no_refusal("health"),
            explain::Outcome::Forward => Self::no_refusal("passed"),
            explain::Outcome::Own => Self::no_refusal("answered"),
            explain::Outcome::AwaitLookup => Self::no_refusal("awaits_lookup"),
            explain::Outcome::Refuse {
                action,
                limit,
                ban,
                answer,
                retry_after,
            } => Self {
                action: Some(action.name().to_owned()),
                limit_hit: limit.map(|limit| match (limit, rule) {
                    (LimitHit::Rule(_), Some(rule)) => rule.name.clone(),
                    (limit, _) => limit.name().to_owned(),
                }),
                ban_expires: ban,
                ban_ends_in_seconds: ban
                    .and_then(|end| end.remaining_ms(now_ms))
                    .map(|ms| ms.div_ceil(1000)),
                response: Some(answer.to_string()),
                retry_after_seconds: retry_after,
                ..Self::no_refusal("refused")
            },
        }
    }

    fn no_refusal(result: &str) -> Self {
        Self {
            result: result.to_owned(),
            action: None,
            limit_hit: None,
            ban_expires: None,
            ban_ends_in_seconds: None,
            response: None,
            retry_after_seconds: None,
        }
    }

    /// Whether it is refused.
    pub fn is_refused(&self) -> bool {
        self.result == "refused"
    }
}
