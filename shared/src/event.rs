//! Events that the data plane sends to the control plane, by value.

use std::net::IpAddr;
use std::sync::Arc;

use crate::ban::{Cause, FleetNote, RequestNote, Scope};
use crate::client::Client;
use crate::escalation::AskedBan;
use crate::lookup::Lookup;
use crate::rules::{Quota, Rule, RuleKind};
use crate::verdict::LimitKind;

/// A finished request, for the anomaly counters; sent only while one of their thresholds is set
/// (ALERT-1). They travel in batches, and are counted at the time they are taken: at most a tick of
/// both planes later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The full address of its client: a watched netblock may be narrower than an IPv6 client.
    pub address: IpAddr,
    /// The client's lookup when the request ended.
    pub lookup: Option<Arc<Lookup>>,
    /// Body or WebSocket bytes, both ways.
    pub bytes: u64,
}

/// The offence for which a client is banned.
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
    /// It exceeded a limit or jail of rules.json, or requested a trap's path.
    Rule {
        /// Which.
        rule: Arc<Rule>,
        /// The window that it exceeded; a trap has none.
        quota: Option<Quota>,
        /// What the ban covers: for a limit the netblock, for a trap or a jail as the rule says.
        scope: Scope,
    },
    /// The application asked for a ban (APP-3).
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

    /// What the following ban covers, unless that is spared (ALIVE-5).
    pub const fn scope(&self) -> Scope {
        match self {
            Self::Limit { .. } | Self::Application(_) => Scope::Netblock,
            Self::Rule { scope, .. } => *scope,
        }
    }

    /// A sentence about the offence, for the ban's reason.
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

/// An exceeded limit or another offence. It has a bounded channel of its own, so that log traffic
/// never displaces a ban.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitExceeded {
    /// The client.
    pub client: Client,
    /// The offence.
    pub offence: Offence,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The request; none if the offence was learned from other instances (FLEET-8).
    pub request: Option<RequestNote>,
    /// The counts of this and of other instances, if others have counted too.
    pub fleet: Option<FleetNote>,
}
