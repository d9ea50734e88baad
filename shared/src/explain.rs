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

/// A request that is not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Who would make it.
    pub address: IpAddr,
    /// How.
    pub method: Method,
    /// The path, as a request has it.
    pub path: String,
    /// Its `Host`, its query and its fields, as far as they are known.
    pub sent: Remembered,
    /// Whether the page of another site would have the browser ask (RULE-8).
    pub other_site: bool,
}

/// What would become of it, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The client that it would be charged to.
    pub client: Client,
    /// What a ban of the client for a limit would cover; where limits do not ban it (ALIVE-5), its
    /// netblock.
    pub netblock: Netblock,
    /// What would become of it.
    pub outcome: Outcome,
    /// What would become of it without the ban that refuses it, or without the answer of the lookup
    /// that it would wait for, and the rule that would decide then.
    pub otherwise: Option<(Outcome, Option<Arc<Rule>>)>,
    /// Which list the client stands on.
    pub group: Group,
    /// The member of the list that decides, if one does.
    pub list: Option<ListHit>,
    /// When the version of the feed was taken that the list is, milliseconds since 1970; none where
    /// it is no feed.
    pub list_since_ms: Option<u64>,
    /// The rule that decides, if one does.
    pub rule: Option<Arc<Rule>>,
    /// When the version of the feed was taken whose decision that rule is (FEED-7), milliseconds
    /// since 1970; none where it is an entry of rules.json.
    pub rule_since_ms: Option<u64>,
    /// What takes it out of denials, traps and limits, if something does.
    pub exempt: Option<ExemptBy>,
    /// The crawler that it says it is (CRAWL-2).
    pub claim: Option<Claim>,
    /// Whether the limits would count it.
    pub counted: bool,
    /// Whether the client is remembered as known, or known by its history (SHARE-4), after the
    /// shortest time that a limit asks for.
    pub known: bool,
    /// Whether the application trusts the client now (APP-4).
    pub trusted: bool,
    /// What is known of the client; none where no lookup has answered.
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
    /// What lowers the request limits.
    pub limit_percent: Option<AppliedPercent>,
    /// What lowers the byte limits.
    pub bytes_percent: Option<AppliedPercent>,
    /// When a ban for a limit would end that is made now; none where none can be made.
    pub next_ban: Option<Expiry>,
}

/// What a request is exempt by (CHECK-5, MATCH-4).
#[derive(Clone, PartialEq, Debug)]
pub enum ExemptBy {
    /// This prefix of `WAF_EXEMPT_PATHS`, as it is kept: `/` is empty.
    Path(String),
    /// This entry of `exempt` of rules.json.
    Entry(Arc<Rule>),
}

/// What other instances of the fleet have counted of a client (FLEET-29).
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
    /// The client's limit, after its percentage; none where there is none.
    pub limit: Option<u64>,
    /// Milliseconds until one more fits; none where there is no limit, or never.
    pub fits_in_ms: Option<u64>,
}

/// What other instances of the fleet have counted for a rule (FLEET-29).
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
    /// What its ban would cover; none where it would make none.
    pub would_ban: Option<Netblock>,
}

/// What would become of a request. In observe mode a refusal is only noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The health check: answered before everything.
    Health,
    /// The application answers.
    Forward,
    /// Under `/_waf/`: the service answers.
    Own,
    /// It waits for the client's lookup first (LOOKUP-3).
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

/// Asks the data plane. Nothing is charged and nobody is marked as seen.
pub type Explain = Arc<dyn Fn(&Question) -> Explanation + Send + Sync>;
