//! What the checks would do with a request, and why: the control plane asks, the data plane runs
//! its ladder without a charge (CONTROL-5).

use std::net::IpAddr;
use std::sync::Arc;

use http::Method;

use crate::ban::Expiry;
use crate::client::Client;
use crate::lookup::Lookup;
use crate::netblock::Netblock;
use crate::rules::{Claim, ListHit, Remembered, Rule};
use crate::settings::BanResponse;
use crate::verdict::{Action, AppliedPercent, Group, LimitHit};
use crate::window::{PerSpan, RuleSpan};

/// A hypothetical request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// The address that would send it.
    pub address: IpAddr,
    /// Its method.
    pub method: Method,
    /// The path, as a request has it.
    pub path: String,
    /// Its `Host`, its query and its fields, as far as they are known.
    pub sent: Remembered,
    /// Whether a page of another site would cause the request (RULE-8).
    pub other_site: bool,
}

/// What would become of it, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The client that it would be charged to.
    pub client: Client,
    /// The netblock that a ban of the client for a limit would cover; if limits do not ban the
    /// client (ALIVE-5), its netblock.
    pub netblock: Netblock,
    /// What would become of it.
    pub outcome: Outcome,
    /// The outcome without the ban that refuses it, or without the answer of the lookup that it
    /// would wait for, and the rule that would decide then.
    pub otherwise: Option<(Outcome, Option<Arc<Rule>>)>,
    /// Which list the client stands on.
    pub group: Group,
    /// The member of the list that decides, if one does.
    pub list: Option<ListHit>,
    /// When the feed's version was taken, in milliseconds since 1970; none if the list is no feed.
    pub list_since_ms: Option<u64>,
    /// The rule that decides, if one does.
    pub rule: Option<Arc<Rule>>,
    /// For a rule from a feed's decisions (FEED-7), when the feed's version was taken, in
    /// milliseconds since 1970; none for an entry of rules.json.
    pub rule_since_ms: Option<u64>,
    /// The exemption from denials, traps and limits, if there is one.
    pub exempt: Option<ExemptBy>,
    /// The crawler that it claims to be (CRAWL-2).
    pub claim: Option<Claim>,
    /// Whether the limits would count it.
    pub counted: bool,
    /// Whether the client is remembered as known, or known by its history (SHARE-4), after the
    /// shortest time that a limit asks for.
    pub known: bool,
    /// Whether the application trusts the client now (APP-4).
    pub trusted: bool,
    /// The client's lookup; none if no lookup has answered.
    pub lookup: Option<Arc<Lookup>>,
    /// The request windows before it.
    pub requests: PerSpan<Usage>,
    /// The byte windows.
    pub bytes: PerSpan<Usage>,
    /// What of these windows other instances have counted; none where nothing was heard of them.
    pub elsewhere: Option<Elsewhere>,
    /// The limits of rules.json that it matches, before it.
    pub rule_limits: Vec<RuleUsage>,
    /// The jails of rules.json that may count the answer, before it.
    pub jails: Vec<RuleUsage>,
    /// The percentage that lowers the request limits.
    pub limit_percent: Option<AppliedPercent>,
    /// The percentage that lowers the byte limits.
    pub bytes_percent: Option<AppliedPercent>,
    /// When a ban for a limit, made now, would end; none if none can be made.
    pub next_ban: Option<Expiry>,
}

/// Why a request is exempt (CHECK-5, MATCH-4).
#[derive(Clone, PartialEq, Debug)]
pub enum ExemptBy {
    /// This prefix of `WAF_EXEMPT_PATHS`, in its stored form: `/` is empty.
    Path(String),
    /// This entry of `exempt` of rules.json.
    Entry(Arc<Rule>),
}

/// The counts of other instances of the fleet for a client (FLEET-29).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// Requests, as estimates of the windows.
    pub requests: PerSpan<u64>,
    /// Bytes.
    pub bytes: PerSpan<u64>,
    /// How long ago the engine has said so, milliseconds.
    pub age_ms: u64,
}

/// How much of a window is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The estimate.
    pub used: u64,
    /// The client's limit, after its percentage; none without a limit.
    pub limit: Option<u64>,
    /// Milliseconds until one more fits; none without a limit, or if none ever fits.
    pub fits_in_ms: Option<u64>,
}

/// The counts of other instances of the fleet for a rule (FLEET-29).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleElsewhere {
    /// Estimates of its windows.
    pub windows: Vec<(RuleSpan, u64)>,
    /// How long ago the engine has said so, milliseconds.
    pub age_ms: u64,
}

/// How much of a limit or a jail of rules.json is used (RULE-2, RULE-4).
#[derive(Clone, PartialEq, Debug)]
pub struct RuleUsage {
    /// The rule.
    pub rule: Arc<Rule>,
    /// Each of its windows.
    pub windows: Vec<(RuleSpan, Usage)>,
    /// What of these windows other instances have counted; none where nothing was heard of them.
    pub elsewhere: Option<RuleElsewhere>,
    /// The netblock that its ban would cover; none if it would ban nobody.
    pub would_ban: Option<Netblock>,
}

/// The outcome of a request. In observe mode a refusal is only noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The health check: answered before everything.
    Health,
    /// The application answers.
    Forward,
    /// Under `/_waf/`: the service answers.
    Own,
    /// The request waits for the client's lookup first (LOOKUP-3).
    AwaitLookup,
    /// It is refused.
    Refuse {
        /// Why.
        action: Action,
        /// Which limit it exceeds.
        limit: Option<LimitHit>,
        /// The end of the ban that refuses it, or that would follow.
        ban: Option<Expiry>,
        /// What the client gets.
        answer: BanResponse,
        /// Its `Retry-After`, seconds.
        retry_after: Option<u64>,
    },
}

/// Asks the data plane. Nothing is charged, and no client counts as seen.
pub type Explain = Arc<dyn Fn(&Question) -> Explanation + Send + Sync>;
