//! What decides which counts are due to other instances, and which limits are broken by theirs.

use weir_shared::ban::{FleetNote, Scope};
use weir_shared::event::Offence;
use weir_shared::rules::{Quota, Rule, RuleSet};
use weir_shared::settings::OnLimit;

use crate::clients::terms::LookupRules;

/// What of the settings and rules decides what is due, and what is broken.
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
