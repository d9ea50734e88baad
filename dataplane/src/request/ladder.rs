//! The ladder: every check of a request, in order (CHECK).
//!
//! Pure: no sockets, no files, no clock. It charges the client table, because a count and its check
//! are one step; it sends nothing. What to do with a decision is `mod.rs`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use weir_shared::ban::{Cause, Expiry, Scope};
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::escalation::{Policy, next_expiry};
use weir_shared::netblock::{NetSet, Netblock, PrefixLengths};
use weir_shared::path;
use weir_shared::rules::{Asking, Denial, ListHit, Matched, NetList, Rule, RuleKind, SharedKey};
use weir_shared::settings::Settings;
use weir_shared::snapshot::{ActiveBan, Snapshot};
use weir_shared::spared::Spared;
use weir_shared::verdict::{AppliedPercent, Counts, Group};

use crate::clients::charging::{Charging, Counted};
use crate::clients::entry::further::Claims;
use crate::clients::table::Table;
use crate::clients::terms::{Denied, LookupRules, Lookups};
use crate::message::{Form, Head};
use crate::request::identity::{Identity, Who};

pub use crate::request::outcome::Refusal;

/// The settings that the ladder needs. A request has the same ones from its head to its end
/// (RELOAD-2).
#[derive(Clone, Debug)]
pub struct Rules {
    /// `WAF_ALLOW_NETS`
    pub allow_nets: NetList,
    /// `WAF_DENY_NETS`
    pub deny_nets: NetList,
    /// `WAF_EXEMPT_PATHS`, normalised
    pub exempt_paths: Vec<String>,
    /// `WAF_MAX_BODY_SIZE`
    pub max_body_size: Option<u64>,
    /// `WAF_BAN_FIRST` …
    pub ban_policy: Policy,
    /// `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`
    pub ban_prefixes: PrefixLengths,
    /// Who is not banned by the service itself (ALIVE-5); the limits hold for them all the same.
    pub spared: Arc<Spared>,
    /// Whether the estimates are wanted for the log or for RateLimit fields. They cost six
    /// divisions.
    pub wants_counts: bool,
    /// The features that need lookups.
    pub lookups: Lookups,
    /// What a lookup's answer means, and the limits of a client.
    pub terms: LookupRules,
    /// What a limit of a client does, and its further limits.
    pub charging: Charging,
}

impl Rules {
    /// The rules among the settings.
    pub fn of(settings: &Settings, spared: Arc<Spared>) -> Self {
        use weir_shared::settings::{LogRequests, RateLimitHeaders};
        Self {
            allow_nets: setting(
                RuleKind::Allow,
                "WAF_ALLOW_NETS",
                &settings.lists.allow_nets,
            ),
            deny_nets: setting(RuleKind::Deny, "WAF_DENY_NETS", &settings.lists.deny_nets),
            exempt_paths: settings.lists.exempt_paths.clone(),
            max_body_size: settings.limits.max_body_size,
            ban_policy: settings.bans.policy,
            ban_prefixes: settings.bans.prefixes,
            spared,
            wants_counts: settings.log.requests != LogRequests::Off
                || settings.limits.headers == RateLimitHeaders::Always,
            lookups: Lookups::of(&settings.lookup),
            terms: LookupRules::of(settings),
            charging: Charging::of(&settings.limits),
        }
    }
}

/// A list of the settings.
fn setting(kind: RuleKind, name: &str, nets: &NetSet) -> NetList {
    NetList::of(kind, name, nets.blocks().iter().copied())
}

/// The facts of a request that the ladder decides on.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its path, its method and its fields, as written.
    pub asking: Asking<'a>,
    /// Who asks (`identity.rs`).
    pub who: Who,
    /// The browser says that the page of another site had it ask: no ban follows (RULE-8).
    pub other_site: bool,
    /// `Content-Length`, if there is one.
    pub content_length: Option<u64>,
    /// Whether it may still wait for its lookup; once it has waited, an answer that is not there is
    /// unknown.
    pub may_wait: bool,
}

impl<'a> Asked<'a> {
    /// The question of a request that came from this client.
    pub fn of(head: &'a Head<impl Form>, identity: &Identity, may_wait: bool) -> Self {
        Self {
            asking: asking(head, identity.address),
            who: identity.who(),
            other_site: identity.other_site,
            content_length: head.length.announced(),
            may_wait,
        }
    }
}

/// What the rules are asked about a request.
pub fn asking<'a>(head: &'a Head<impl Form>, address: IpAddr) -> Asking<'a> {
    Asking {
        path: head.path(),
        method: &head.method,
        address,
        sent: head,
    }
}

/// The decision of the ladder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Which list the client stands on.
    pub group: Group,
    /// The member of a list that decided, if one did.
    pub list: Option<ListHit>,
    /// The way in which the request is answered.
    pub verdict: Verdict,
    /// The rule that decided, if one did.
    pub rule: Option<Arc<Rule>>,
    /// Which count of the rule, where clients share it (SHARE-8).
    pub shared: Option<SharedKey>,
    /// Which crawler it says it is (CRAWL-2).
    pub claims: Claims,
    /// Whether the rate limits counted it; only then are its bytes charged (LIMIT-5).
    pub counted: bool,
    /// Whether it counts as under way until it ends (RULE-5).
    pub under_way: bool,
    /// Clients are remembered as known after this time; none where no rule asks for it (SHARE-4).
    pub remembers_after: Option<Duration>,
    /// The client's estimates, this request included, where something wants them.
    pub counts: Option<Counts>,
    /// The client is to be asked about: this request alone was told so (LOOKUP-2).
    pub ask: bool,
    /// What lowered the request limits that were applied.
    pub limit_percent: Option<AppliedPercent>,
    /// The same for the byte limits.
    pub bytes_percent: Option<AppliedPercent>,
}

/// A decision is copied some times on its way; above this size each copy is a loop.
const _: () = assert!(size_of::<Decision>() <= 256);

impl Decision {
    /// The ban that refused the request, or would have in enforce mode.
    pub const fn ban(&self) -> Option<ActiveBan> {
        match self.verdict {
            Verdict::Refuse(Refusal::Banned(ban)) => Some(ban),
            _ => None,
        }
    }

    /// Whether a client that is not kept is not admitted to the table by it (LIMIT-9).
    pub const fn admits_nobody(&self) -> bool {
        self.refuses_client() || matches!(self.verdict, Verdict::Refuse(Refusal::DeniedRule(_)))
    }

    /// Whether it refuses the client, whatever is asked for.
    pub const fn refuses_client(&self) -> bool {
        matches!(self.verdict, Verdict::Refuse(refusal) if refusal.is_of_the_client())
    }
}

/// The way in which a request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Refused; in observe mode it goes on all the same (CHECK-3).
    Refuse(Refusal),
    /// Under `/_waf/`: answered by the service, never forwarded (CHECK-1).
    Own,
    /// To the application.
    Forward,
    /// A setting needs the client's lookup: wait for it, and ask again. Nothing was counted
    /// (LOOKUP-3).
    AwaitLookup,
}

/// The snapshot is older than the client's last reset: load a new one and ask again. Nothing was
/// counted (LIMIT-6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleSnapshot;

/// Whether a request is the health check (CHECK-1): no check, no count, no log line.
pub fn is_health_check(method: &Method, path: &str) -> bool {
    path == "/_waf/health" && (method == Method::GET || method == Method::HEAD)
}

/// The ladder. The first answer wins; the steps are numbered as in the rules (CHECK). Step 1, the
/// health check, and step 2, who the client is, came before.
///
/// # Errors
/// [`StaleSnapshot`], where a newer snapshot is there.
// long: a flat list of the steps
pub fn decide(
    rules: &Rules,
    snapshot: &Snapshot,
    table: &Table,
    asked: &Asked<'_>,
    now: Now,
) -> Result<Decision, StaleSnapshot> {
    let own = path::is_own(asked.asking.path);
    let passed = if own { Verdict::Own } else { Verdict::Forward };

    // 3. Allow lists skip steps 4 to 11.
    let who = asked.who;
    if let Some(hit) = listed(&rules.allow_nets, &snapshot.rules.allow, who.address) {
        return Ok(by_list(Group::Allow, passed, hit));
    }
    // 4 to 6. Clients that are refused whatever they ask for.
    if let Some(decision) = refused_client(rules, snapshot, table, who, now.wall_ms) {
        return Ok(decision);
    }
    let exempt = path::is_exempt(asked.asking.path, &rules.exempt_paths);
    if exempt && !rules.lookups.on {
        return Ok(not_counted(Group::Default, passed));
    }
    let needed = asked.may_wait && rules.lookups.needed(own, exempt);
    let matched = if exempt {
        Matched::default()
    } else {
        snapshot.rules.matched(&asked.asking)
    };
    // Denials that refuse whoever asks admit nobody to the table (MATCH-3, LIMIT-9).
    if !needed && let Some(denial) = matched.denial_of_anybody() {
        return Ok(denied(denial));
    }
    // One visit to the client's entry for all that follows.
    table.touch(who.client, now, |entry| {
        if entry.is_reset_after(snapshot.generation) {
            return Err(StaleSnapshot);
        }
        // 7. The lookup: begun for every new client, waited for only where something needs it.
        let ask = rules.lookups.on && entry.begins_lookup(now.mono_ns);
        let decided = |decision, claims| {
            Ok(Decision {
                ask,
                claims,
                ..decision
            })
        };
        if needed && entry.lookup.is_none() && entry.in_flight {
            let waits = not_counted(Group::Default, Verdict::AwaitLookup);
            return decided(waits, Claims::NONE);
        }
        // 8. Country lists with the fresh answer.
        let terms = entry.terms(&rules.terms);
        if let Some(denied) = terms.and_then(|terms| terms.denied)
            && rules.lookups.for_lists
        {
            let refused = not_counted(Group::Default, refused_by(denied));
            return decided(refused, Claims::NONE);
        }
        // 9. Exempt paths and rules skip what is left but for steps 12 and 13.
        if exempt {
            return decided(not_counted(Group::Default, passed), Claims::NONE);
        }
        // Who says that it is a crawler.
        let claims = Claims::of(entry, &matched, who.address, now);
        let verified = claims.verified();
        let matched = matched.of_client(|| entry.origin(), claims.claim.as_ref());
        if let Some(rule) = matched.exempt() {
            let passes = by_rule(not_counted(Group::Default, passed), Some(rule));
            return decided(passes, claims);
        }
        // Denials (MATCH-3).
        if let Some(denial) = matched.denial() {
            return decided(denied(denial), claims);
        }
        // Traps, before the count (RULE-3).
        let next_ban = |cause, scope| {
            let target = ban_target(rules, snapshot, who, cause, scope)?;
            Some(expiry_of_next_ban(rules, snapshot, target, now))
        };
        if let Some(trap) = matched.trap {
            let bans = (!asked.other_site && verified.is_none()).then_some(trap.scope);
            let refused = Verdict::Refuse(Refusal::Trapped {
                bans,
                first: bans.is_some() && entry.is_first_offence(),
                ban: bans.and_then(|scope| next_ban(Cause::Trap, scope)),
            });
            let refused = not_counted(Group::Default, refused);
            return decided(by_rule(refused, Some(&trap.rule)), claims);
        }
        let terms = entry.terms(&rules.terms);
        let applied = Decision {
            counted: true,
            limit_percent: terms.and_then(|terms| terms.limit_percent),
            bytes_percent: terms.and_then(|terms| terms.bytes_percent),
            ..not_counted(Group::Default, passed)
        };
        let limits = terms.map_or(rules.terms.plain_limits, |terms| terms.limits);
        let charging = &rules.charging;
        // 10. The request is counted against its limits.
        let counted = Counted {
            limits: matched.limits,
            jails: Some((&snapshot.rules, &asked.asking)),
            other_site: asked.other_site,
            crawler: verified,
            sharing: (snapshot.rules.shares() || verified.is_some())
                .then(|| table.sharing(who.client, rules.ban_prefixes, asked.asking.sent)),
        };
        let refused = charging.charge(entry, &limits, counted, now);
        table.changed(who.client, entry);
        let counts = rules.wants_counts.then(|| entry.counts(now.wall_ms));
        let applied = Decision { counts, ..applied };
        if let Some(by) = refused {
            let exceeded = by.exceeded;
            let ban = exceeded
                .bans
                .then(|| next_ban(Cause::RateLimit, Scope::Netblock));
            let ban = ban.flatten();
            let refused = Decision {
                verdict: Verdict::Refuse(Refusal::RateLimited { exceeded, ban }),
                shared: by.shared,
                ..applied
            };
            return decided(by_rule(refused, by.rule), claims);
        }
        // 11. The announced body is too large.
        if is_too_large(rules, asked) {
            let verdict = Verdict::Refuse(Refusal::BodyTooLarge);
            return decided(Decision { verdict, ..applied }, claims);
        }
        // 12. Ours, 13. the application's.
        let under_way = !asked.who.is_proxy && charging.begin(entry);
        Ok(Decision {
            ask,
            claims,
            under_way,
            ..applied
        })
    })
}

/// The member of a list that covers the client: of the setting, or of rules.json.
fn listed(setting: &NetList, rules: &NetList, address: IpAddr) -> Option<ListHit> {
    let of_setting = setting.find(address);
    of_setting.or_else(|| rules.find(address))
}

/// What a ban covers that can follow: there is room for one (BAN-5), and the client is not spared
/// (ALIVE-5). The control plane will come to the same: both ask the same function.
pub fn ban_target(
    rules: &Rules,
    snapshot: &Snapshot,
    who: Who,
    cause: Cause,
    scope: Scope,
) -> Option<Netblock> {
    let can_ban = snapshot.can_ban && !who.is_proxy;
    let target = || {
        rules
            .spared
            .target(who.client, cause, scope, rules.ban_prefixes)
    };
    can_ban.then(target).flatten()
}

/// Steps 4 to 6: the decision on a client who is not on an allow list, where it does not depend on
/// what is asked for.
fn refused_client(
    rules: &Rules,
    snapshot: &Snapshot,
    table: &Table,
    who: Who,
    now_ms: u64,
) -> Option<Decision> {
    // 4. Deny lists.
    if let Some(hit) = listed(&rules.deny_nets, &snapshot.rules.deny, who.address) {
        let refused = Verdict::Refuse(Refusal::DeniedNet);
        return Some(by_list(Group::Deny, refused, hit));
    }
    // 5. Country lists and AS lists, where the lookup is already known.
    if rules.lookups.for_lists
        && let Some(denied) = known_and_denied(rules, table, who.client)
    {
        return Some(not_counted(Group::Default, refused_by(denied)));
    }
    // 6. The ban ledger: every active ban that covers the client.
    let ban = match who.is_proxy {
        false => snapshot.bans.active(who.client, now_ms)?,
        // Whoever can have himself named by its address would stop the proxy (ALIVE-5).
        true => snapshot.bans.active_by_hand(who.client, now_ms)?,
    };
    let refused = Verdict::Refuse(Refusal::Banned(ban));
    Some(not_counted(Group::Default, refused))
}

/// The decision on every request of a client who is refused whatever is asked for: by a list or a
/// ban (steps 3 to 6).
pub fn refuses(
    rules: &Rules,
    snapshot: &Snapshot,
    table: &Table,
    who: Who,
    now_ms: u64,
) -> Option<Decision> {
    if rules.allow_nets.contains(who.address) || snapshot.rules.allow.contains(who.address) {
        return None;
    }
    refused_client(rules, snapshot, table, who, now_ms)
}

const fn refused_by(denied: Denied) -> Verdict {
    Verdict::Refuse(match denied {
        Denied::Country => Refusal::DeniedCountry,
        Denied::Asn => Refusal::DeniedAsn,
    })
}

fn known_and_denied(rules: &Rules, table: &Table, client: Client) -> Option<Denied> {
    let denied = table.get(client, |entry| {
        let is_known = entry.lookup.is_some();
        let terms = is_known.then(|| entry.terms(&rules.terms)).flatten();
        terms.and_then(|terms| terms.denied)
    });
    denied.flatten()
}

/// An outcome that the rate limits do not count. That the client was seen is noted with its
/// history, at the end.
const fn not_counted(group: Group, verdict: Verdict) -> Decision {
    Decision {
        group,
        list: None,
        verdict,
        rule: None,
        shared: None,
        claims: Claims::NONE,
        counted: false,
        under_way: false,
        remembers_after: None,
        counts: None,
        ask: false,
        limit_percent: None,
        bytes_percent: None,
    }
}

/// A list decided.
fn by_list(group: Group, verdict: Verdict, hit: ListHit) -> Decision {
    Decision {
        list: Some(hit),
        ..not_counted(group, verdict)
    }
}

/// A denial decided (MATCH-3).
fn denied(denial: &Denial) -> Decision {
    let refused = Verdict::Refuse(Refusal::DeniedRule(denial.answer));
    by_rule(not_counted(Group::Default, refused), Some(&denial.rule))
}

/// A rule decided, if there is one.
fn by_rule(decision: Decision, rule: Option<&Arc<Rule>>) -> Decision {
    Decision {
        rule: rule.map(Arc::clone),
        ..decision
    }
}

fn is_too_large(rules: &Rules, asked: &Asked<'_>) -> bool {
    matches!((rules.max_body_size, asked.content_length), (Some(limit), Some(length)) if length > limit)
}

/// The control plane will come to the same end: both ask the same function the same question
/// (BAN-1).
pub fn expiry_of_next_ban(
    rules: &Rules,
    snapshot: &Snapshot,
    netblock: Netblock,
    now: Now,
) -> Expiry {
    next_expiry(
        &rules.ban_policy,
        snapshot.bans.last_ended(netblock, now.wall_ms),
        now.wall_ms,
    )
}

#[cfg(test)]
mod tests;
