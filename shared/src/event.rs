//! What the data plane reports upward, by value.

use std::net::IpAddr;
use std::sync::Arc;

use crate::ban::{Cause, FleetNote, RequestNote, Scope};
use crate::client::Client;
use crate::escalation::AskedBan;
use crate::lookup::Lookup;
use crate::rules::{Quota, Rule, RuleKind};
use crate::verdict::LimitKind;

/// A request that ended, for the anomaly counters; reported only while one of their thresholds is
/// set (ALERT-1). They travel in batches, and are counted at the time they are taken: at most a
/// tick of both planes later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The full address of its client: a watched netblock may be narrower than an IPv6 client.
    pub address: IpAddr,
    /// What the lookup knew when the request ended.
    pub lookup: Option<Arc<Lookup>>,
    /// Body or WebSocket bytes, both ways.
    pub bytes: u64,
}

/// What a client did that bans it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offence {
    /// It exceeded one of the six limits.
    Limit {
        /// Which.
        kind: LimitKind,
        /// Its value after the percentage, requests or bytes.
        value: u64,
        /// The percentage applied, 0 to 100.
        percent: u8,
    },
    /// It broke a rule of rules.json.
    Rule {
        /// Which.
        rule: Arc<Rule>,
        /// The window that it exceeded; a trap has none.
        quota: Option<Quota>,
        /// What the ban covers: of a limit the netblock, of a trap or a jail what the rule says.
        scope: Scope,
    },
    /// The application said that it is to be banned (APP-3).
    Application(AskedBan),
}

impl Offence {
    /// The cause of the ban that follows.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Limit { kind, .. } if kind.counts_bytes() => Cause::ByteLimit,
            Self::Limit { .. } => Cause::RateLimit,
            Self::Application(_) => Cause::Application,
            Self::Rule { rule, .. } => match rule.kind {
                RuleKind::Trap => Cause::Trap,
                RuleKind::Jail => Cause::Jail,
                // Lists ban nobody.
                RuleKind::Limit
                | RuleKind::Denial
                | RuleKind::Exempt
                | RuleKind::Crawler
                | RuleKind::Allow
                | RuleKind::Deny => Cause::RuleLimit,
            },
        }
    }

    /// What the ban that follows covers, unless that is spared (ALIVE-5).
    pub const fn scope(&self) -> Scope {
        match self {
            Self::Limit { .. } | Self::Application(_) => Scope::Netblock,
            Self::Rule { scope, .. } => *scope,
        }
    }

    /// The same in a sentence, for the ban's reason.
    pub fn reason(&self) -> String {
        match self {
            Self::Limit { kind, value, .. } => {
                let what = if kind.counts_bytes() {
                    "bytes"
                } else {
                    "requests"
                };
                format!("more than {value} {what} per {}", kind.span().name())
            }
            Self::Application(_) => "the application said so".to_owned(),
            Self::Rule { rule, quota, .. } => match quota {
                None => format!("a path of the trap {}", rule.name),
                Some(Quota { span, limit }) => {
                    let what = match rule.kind {
                        RuleKind::Jail => "answers that the jail",
                        _ => "requests that the limit",
                    };
                    let (name, span) = (&rule.name, span.name());
                    format!("more than {limit} {what} {name} counts per {span}")
                }
            },
        }
    }
}

/// A limit that a client exceeded, or another offence; its own bounded channel, so that log traffic
/// never pushes a ban out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitExceeded {
    /// Who did it.
    pub client: Client,
    /// What.
    pub offence: Offence,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// The request; none where it was learned from other instances (FLEET-8).
    pub request: Option<RequestNote>,
    /// Who has counted how much, where other instances have.
    pub fleet: Option<FleetNote>,
}
