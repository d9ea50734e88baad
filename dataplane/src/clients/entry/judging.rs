//! What decides which counts are due to other instances, and which limits are broken by what those
//! have counted (FLEET-8).

use std::sync::Arc;

use weir_shared::ban::{FleetNote, Scope};
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::fleet::InFleet;
use weir_shared::rules::{Quota, Rule, RuleSet};
use weir_shared::settings::OnLimit;
use weir_shared::verdict::{AppliedPercent, LimitKind, Limits};
use weir_shared::window::{PerSpan, RuleSpan, Span, Window};

use super::Entry;
use crate::clients::own_break;
use crate::clients::terms::LookupRules;

/// The settings and rules that decide which counts are due, and which limits are broken.
#[derive(Clone, Copy)]
pub struct Judging<'a> {
    /// The limits of the settings.
    pub terms: &'a LookupRules,
    /// `WAF_ON_LIMIT`
    pub on_limit: OnLimit,
    /// Those of rules.json.
    pub rules: &'a RuleSet,
}

/// What counts a rule: its windows, whether it bans, and what the ban covers.
pub struct Counting<'a> {
    /// Its windows.
    pub quotas: &'a [Quota],
    /// What its ban covers; none where it bans nobody.
    pub bans: Option<Scope>,
}

impl<'a> Judging<'a> {
    /// None where the rule is no more, or is shared by clients.
    pub fn counting(&self, rule: &Rule) -> Option<Counting<'a>> {
        let jail = self
            .rules
            .all_jails()
            .iter()
            .find(|jail| *jail.rule == *rule);
        let of_jail = jail.map(|jail| Counting {
            quotas: &jail.quotas,
            bans: Some(jail.scope),
        });
        let limit = (self.rules.all_limits().iter()).find(|limit| *limit.rule == *rule);
        of_jail.or_else(|| {
            limit.map(|limit| Counting {
                quotas: &limit.quotas,
                bans: (limit.on_limit == OnLimit::Ban).then_some(Scope::Netblock),
            })
        })
    }
}

/// A limit that is broken by what was learned.
#[derive(Clone, PartialEq, Debug)]
pub struct Learned {
    /// Which.
    pub offence: Offence,
    /// Who counted how much.
    pub note: FleetNote,
}

impl Entry {
    /// The shortest of the six windows that is over by what the client asked for itself.
    pub(super) fn broken(&mut self, judging: Judging<'_>, now: Now) -> Option<Learned> {
        if judging.on_limit == OnLimit::Refuse || self.is_verified(now) {
            return None;
        }
        let terms = self.terms(judging.terms);
        let percents = terms.map(|terms| (terms.limit_percent, terms.bytes_percent));
        let (limit_percent, bytes_percent) = percents.unwrap_or_default();
        let Limits { requests, bytes } = self.limits(judging.terms);
        let part = self.other_sites().copied().unwrap_or_default();
        let over = |windows: &PerSpan<Window>, part: &PerSpan<Window>, limits: &PerSpan<_>| {
            // Some limit, to be asked whether it is broken: all of them are looked at.
            own_break((Span::Minute, 0), windows, Some(part), limits, now.wall_ms)
        };
        let of_requests = over(&self.requests, &part.requests, &requests)
            .map(|(span, limit)| (LimitKind::requests(span), limit, limit_percent));
        let of_bytes = over(&self.bytes, &part.bytes, &bytes)
            .map(|(span, limit)| (LimitKind::bytes(span), limit, bytes_percent));
        let (kind, value, percent) = of_requests.or(of_bytes)?;
        if kind.counts_bytes() {
            self.set_over_bytes(true);
        }
        let note = self.note_of(kind, now);
        self.is_first_offence().then(|| Learned {
            offence: Offence::Limit {
                kind,
                value,
                percent: percent.map_or(100, |applied: AppliedPercent| applied.percent),
            },
            note,
        })
    }

    /// The shortest of the windows of a rule that is over, where the rule bans.
    pub(super) fn broken_rule(
        &mut self,
        rule: &Arc<Rule>,
        judging: Judging<'_>,
        now: Now,
    ) -> Option<Learned> {
        let counting = judging.counting(rule)?;
        let scope = counting.bans.filter(|_| !self.is_verified(now))?;
        let quota = (counting.quotas.iter()).find(|quota| {
            let Some(span) = quota.span.of_clients() else {
                return false;
            };
            self.rule_count_mut(rule, span).is_some_and(|count| {
                let own = count.window.without(count.other_sites, span, now.wall_ms);
                own.is_over(span, now.wall_ms, quota.limit)
            })
        })?;
        let note = self.note_of_rule(rule, quota.span, now)?;
        self.is_first_offence().then(|| Learned {
            offence: Offence::Rule {
                rule: Arc::clone(rule),
                quota: Some(*quota),
                scope,
            },
            note,
        })
    }

    /// Nothing that a verified crawler does bans it (CRAWL-4).
    fn is_verified(&self, now: Now) -> bool {
        let noted = self.further.as_ref().and_then(|of| of.noted.as_ref());
        noted.is_some_and(|noted| noted.is_fresh(now.mono_ns))
    }

    /// Who has counted how much of a window.
    fn note_of(&self, kind: LimitKind, now: Now) -> FleetNote {
        let span = kind.span();
        let windows = if kind.counts_bytes() {
            &self.bytes
        } else {
            &self.requests
        };
        let in_fleet = self.in_fleet().map(|in_fleet| {
            let of = if kind.counts_bytes() {
                &in_fleet.bytes
            } else {
                &in_fleet.requests
            };
            *of.get(span)
        });
        note(*windows.get(span), in_fleet.unwrap_or_default(), span, now)
    }

    fn note_of_rule(&self, rule: &Rule, span: RuleSpan, now: Now) -> Option<FleetNote> {
        let count = self.further.as_ref()?.find(rule, span)?;
        let in_fleet = count.in_fleet.as_deref().copied();
        let span = span.of_clients()?;
        Some(note(count.window, in_fleet.unwrap_or_default(), span, now))
    }

    /// Who has counted how much of the window that an offence broke; none where no other instance
    /// has.
    pub fn fleet_note(&self, offence: &Offence, now: Now) -> Option<FleetNote> {
        let note = match offence {
            Offence::Limit { kind, .. } => Some(self.note_of(*kind, now)),
            Offence::Rule {
                rule,
                quota: Some(quota),
                ..
            } => self.note_of_rule(rule, quota.span, now),
            Offence::Rule { quota: None, .. } | Offence::Application(_) => None,
        };
        note.filter(|note| note.others > 0)
    }
}

fn note(mut window: Window, mut in_fleet: InFleet, span: Span, now: Now) -> FleetNote {
    window.roll(span, now.wall_ms);
    in_fleet.roll(&window, span);
    let own = in_fleet.own(&window, span);
    FleetNote {
        here: own.estimate(span, now.wall_ms),
        others: in_fleet.others().estimate(span, now.wall_ms),
        instances: 0,
    }
}
