//! What the ladder would do with a request that is not made (CONTROL-5).
//!
//! The ladder itself is asked, on a copy of the client: nothing is charged, nobody is marked as
//! seen, and no lookup begins.

use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_shared::ban::{Cause, Scope};
use weir_shared::client::{Client, fold};
use weir_shared::clock::{Clock, Now};
use weir_shared::explain::{
    ExemptBy, Explain, Explanation, Outcome, Question, RuleElsewhere, RuleUsage, Usage,
};
use weir_shared::netblock::Netblock;
use weir_shared::path;
use weir_shared::rules::{Asking, Claim, Jail, Limit, Quota, Rule, RuleKind};
use weir_shared::settings::OnLimit;
use weir_shared::snapshot::Snapshot;
use weir_shared::units::retry_after_seconds;
use weir_shared::verdict::Group;
use weir_shared::window::{PerSpan, RuleSpan, Window};

use crate::clients::entry::Entry;
use crate::clients::in_fleet::RuleWindow;
use crate::clients::shared_counts::Sharing;
use crate::clients::table::Table;
use crate::request::identity::Who;
use crate::request::ladder::{
    Asked, Decision, Refusal, Rules, Verdict, ban_target, decide, expiry_of_next_ban,
    is_health_check,
};
use crate::request::outcome::Responses;
use crate::worker::settings::InForce;

/// The function that the control plane calls.
pub fn explaining(
    in_force: Arc<ArcSwap<InForce>>,
    table: Arc<Table>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    clock: Clock,
) -> Explain {
    Arc::new(move |question| {
        loop {
            // One that is older than the client's last reset is loaded again.
            let snapshot = snapshots.load_full();
            let in_force = in_force.load();
            let responses = Responses::of(&in_force.settings.bans);
            let rules = (&*in_force.rules, responses);
            let explained = explain(rules, &snapshot, &table, question, clock.now());
            if let Some(explanation) = explained {
                return explanation;
            }
        }
    })
}

/// None where the snapshot is older than the client's last reset.
// long: a flat list of the explanation's members
pub fn explain(
    (rules, responses): (&Rules, Responses),
    snapshot: &Snapshot,
    table: &Table,
    question: &Question,
    now: Now,
) -> Option<Explanation> {
    let address = fold(question.address);
    let who = Who::client(address);
    let client = who.client;
    let ask = |snapshot: &Snapshot, may_wait| {
        let asked = Asked {
            asking: Asking {
                path: &question.path,
                method: &question.method,
                address,
                sent: &question.sent,
            },
            who,
            other_site: question.other_site,
            content_length: None,
            may_wait,
        };
        decide(rules, snapshot, &table.copy_of(client), &asked, now).ok()
    };
    let decision = ask(snapshot, true)?;
    let otherwise = match decision.verdict {
        Verdict::Refuse(Refusal::Banned(_)) => Some(ask(&without_bans(snapshot), true)?),
        Verdict::AwaitLookup => Some(ask(snapshot, false)?),
        Verdict::Refuse(_) | Verdict::Own | Verdict::Forward => None,
    };
    let by_path = path::exempt_by(&question.path, &rules.exempt_paths);
    let asking = Asking {
        path: &question.path,
        method: &question.method,
        address,
        sent: &question.sent,
    };
    let health = is_health_check(&question.method, &question.path);
    let mut held = table.get(client, |entry| entry.clone());
    let limits = held.as_mut().map_or_else(
        || rules.terms.unanswered().map(|terms| terms.limits),
        |entry| Some(entry.limits(&rules.terms)),
    );
    let limits = limits.unwrap_or(rules.terms.plain_limits);
    let windows = held.as_ref().map(|entry| (entry.requests, entry.bytes));
    let (requests, bytes) = windows.unwrap_or_default();
    // What lowers the limits is told by the decision that counts.
    let mut counting = [Some(&decision), otherwise.as_ref()].into_iter().flatten();
    let counting = counting.rfind(|decision| decision.counted);
    let claim = [Some(&decision), otherwise.as_ref()].into_iter().flatten();
    let claim = claim.rev().find_map(|one| one.claims.claim.as_ref());
    let is_crawler = claim.is_some_and(|claim| claim.verified().is_some());
    // No rule is asked of a client whom a list lets in.
    let is_allowed = decision.group == Group::Allow;
    let ban_target = |cause, scope| {
        let bans = !question.other_site && !is_crawler && !is_allowed;
        bans.then(|| ban_target(rules, snapshot, who, cause, scope))
            .flatten()
    };
    let by_limits = ban_target(Cause::RateLimit, Scope::Netblock);
    let rule = [Some(&decision), otherwise.as_ref()].into_iter().flatten();
    let by_entry = rule.filter_map(|one| one.rule.as_ref()).find(|rule| {
        // Where a list lets the client in, no rule is asked.
        rule.kind == RuleKind::Exempt
    });
    let exempt = by_path.map(|path| ExemptBy::Path(path.to_owned()));
    let exempt = exempt.or_else(|| by_entry.map(|rule| ExemptBy::Entry(Arc::clone(rule))));
    let (rule_limits, jails) = match by_path.is_some() || health {
        true => Default::default(),
        false => {
            let sharing = table.sharing(client, rules.ban_prefixes, asking.sent);
            let of_client = (held.as_ref(), claim, sharing);
            rules_of(snapshot, &asking, of_client, ban_target, now)
        }
    };
    let taken = |name: &str| snapshot.rules.feeds.get(name)?.taken_ms();
    let is_stream = |name: &str| {
        let feed = snapshot.rules.feeds.get(name);
        feed.is_some_and(|feed| !feed.asns.is_empty() || !feed.countries.codes.is_empty())
    };
    Some(Explanation {
        client,
        netblock: by_limits.unwrap_or_else(|| Netblock::of(client, rules.ban_prefixes)),
        outcome: match health {
            true => Outcome::Health,
            false => outcome(&decision, responses, now),
        },
        otherwise: (otherwise.as_ref().filter(|_| !health))
            .map(|decision| (outcome(decision, responses, now), decision.rule.clone())),
        group: decision.group,
        list: decision.list.clone(),
        list_since_ms: (decision.list.as_ref()).and_then(|hit| taken(&hit.source.name)),
        // No denial is named as a decision stream is.
        rule_since_ms: (decision.rule.as_ref())
            .filter(|rule| rule.kind == RuleKind::Denial && is_stream(&rule.name))
            .and_then(|rule| taken(&rule.name)),
        rule: decision.rule.clone(),
        exempt: exempt.filter(|_| !health),
        claim: claim.cloned(),
        counted: decision.counted && !health,
        known: known(snapshot, table, client, now),
        trusted: table.known().trusts(client, now),
        rule_limits,
        jails,
        elsewhere: held.as_ref().and_then(|entry| entry.counted_elsewhere(now)),
        lookup: held.and_then(|entry| entry.lookup),
        requests: usages(&requests, &limits.requests, now.wall_ms),
        bytes: usages(&bytes, &limits.bytes, now.wall_ms),
        limit_percent: counting.and_then(|decision| decision.limit_percent),
        bytes_percent: counting.and_then(|decision| decision.bytes_percent),
        next_ban: by_limits.map(|target| expiry_of_next_ban(rules, snapshot, target, now)),
    })
}

/// Whether a client is known to a limit (SHARE-4).
fn known(snapshot: &Snapshot, table: &Table, client: Client, now: Now) -> bool {
    snapshot.rules.remembers_after().is_some_and(|after| {
        let standing = table.get(client, |entry| entry.standing());
        standing.is_some_and(|standing| standing.is_known(after, now.wall_ms))
            || table.known().knows(client, after, now.wall_ms)
    })
}

/// The limits and the jails of rules.json that a request matches, and what a client has used of
/// them, or all who share a limit.
fn rules_of(
    snapshot: &Snapshot,
    asking: &Asking<'_>,
    (held, claim, sharing): (Option<&Entry>, Option<&Claim>, Sharing<'_>),
    ban_target: impl Fn(Cause, Scope) -> Option<Netblock>,
    now: Now,
) -> (Vec<RuleUsage>, Vec<RuleUsage>) {
    let of_client = |rule: &Arc<Rule>, span| {
        let window = held.map(|entry| entry.rule_window_of_all(rule, span, now));
        window.unwrap_or_default()
    };
    let origin = held.map(Entry::origin).unwrap_or_default();
    let limit = |limit: &Limit| {
        let bans = limit.on_limit == OnLimit::Ban;
        let would_ban = bans.then(|| ban_target(Cause::RuleLimit, Scope::Netblock));
        let shared = sharing.windows(limit, origin, now);
        let counted = |span| match &shared {
            Some(window) => window(span),
            None => of_client(&limit.rule, span),
        };
        let of = (&limit.rule, limit.quotas.as_slice());
        usage(of, &counted, would_ban.flatten(), now)
    };
    let jail = |jail: &Jail| {
        let would_ban = ban_target(Cause::Jail, jail.scope);
        let counted = |span| of_client(&jail.rule, span);
        usage((&jail.rule, &jail.quotas), &counted, would_ban, now)
    };
    let matched = snapshot.rules.matched(asking).of_client(|| origin, claim);
    if matched.exempt().is_some() || matched.denial().is_some() {
        return Default::default();
    }
    let limits = matched.limits;
    let jails = (snapshot.rules).jails_where(asking, origin, claim, |_| true);
    (
        limits.iter().map(limit).collect(),
        jails.map(jail).collect(),
    )
}

/// How much of a rule is used, and what of that others have counted.
fn usage(
    (rule, quotas): (&Arc<Rule>, &[Quota]),
    counted: &dyn Fn(RuleSpan) -> RuleWindow,
    would_ban: Option<Netblock>,
    now: Now,
) -> RuleUsage {
    let windows = quotas.iter().map(|quota| {
        let window = counted(quota.span).all;
        let usage = Usage {
            used: window.estimate(quota.span, now.wall_ms),
            limit: Some(quota.limit),
            fits_in_ms: window.fits_in(quota.span, now.wall_ms, quota.limit, 1),
        };
        (quota.span, usage)
    });
    let elsewhere = quotas.iter().filter_map(|quota| {
        let (others, age_ms) = counted(quota.span).elsewhere?;
        Some((age_ms, (quota.span, others)))
    });
    let (ages, elsewhere): (Vec<u64>, Vec<_>) = elsewhere.unzip();
    RuleUsage {
        rule: Arc::clone(rule),
        windows: windows.collect(),
        elsewhere: ages.first().map(|age_ms| RuleElsewhere {
            windows: elsewhere,
            age_ms: *age_ms,
        }),
        would_ban,
    }
}

fn without_bans(snapshot: &Snapshot) -> Snapshot {
    Snapshot {
        bans: Arc::default(),
        ..snapshot.clone()
    }
}

fn outcome(decision: &Decision, responses: Responses, now: Now) -> Outcome {
    let refusal = match decision.verdict {
        Verdict::Own => return Outcome::Own,
        Verdict::Forward => return Outcome::Forward,
        Verdict::AwaitLookup => return Outcome::AwaitLookup,
        Verdict::Refuse(refusal) => refusal,
    };
    let (limit, ban) = match refusal {
        Refusal::Banned(ban) => (None, Some(ban.expires)),
        Refusal::RateLimited { exceeded, ban } => (Some(exceeded.limit), ban),
        Refusal::Trapped { ban, .. } => (None, ban),
        Refusal::DeniedNet
        | Refusal::DeniedCountry
        | Refusal::DeniedAsn
        | Refusal::DeniedRule(_)
        | Refusal::BodyTooLarge => (None, None),
    };
    let (answer, retry_ms) = responses.to(&refusal, now.wall_ms, true);
    Outcome::Refuse {
        action: refusal.action(),
        limit,
        ban,
        answer,
        retry_after: retry_ms.map(retry_after_seconds),
    }
}

fn usages(windows: &PerSpan<Window>, limits: &PerSpan<Option<u64>>, now_ms: u64) -> PerSpan<Usage> {
    windows.map(|span, window| {
        let limit = *limits.get(span);
        Usage {
            used: window.estimate(span, now_ms),
            limit,
            fits_in_ms: limit.and_then(|limit| window.fits_in(span, now_ms, limit, 1)),
        }
    })
}

#[cfg(test)]
mod tests;
