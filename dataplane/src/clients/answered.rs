//! What an answer of the application means for its client: the jails that count it, for its status
//! (RULE-4) or because the application says so (APP-2). A request that is served asks, and one of a
//! log.

use std::sync::Arc;

use http::StatusCode;
use weir_shared::ban::Scope;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::rules::{Asking, Claim, Jail, Rule, RuleSet};

use crate::clients::entry::Exceeded;
use crate::clients::table::Table;

/// An answer of the application.
pub struct Answered<'a, C> {
    /// Who gets it.
    pub client: Client,
    /// The request.
    pub asking: Asking<'a>,
    /// Its status, where jails count it by that.
    pub status: Option<StatusCode>,
    /// The names of the jails that are to count it whatever it is.
    pub named: Option<C>,
    /// The crawler that it says it is.
    pub claim: Option<&'a Claim>,
    /// The page of another site asked for it (RULE-8), or a verified crawler did (CRAWL-4): it is
    /// counted, and bans nobody.
    pub other_site: bool,
    /// When it came.
    pub now: Now,
}

/// A jail that is full, and bans.
pub struct Jailed {
    /// Which window of it.
    pub exceeded: Exceeded,
    /// The jail.
    pub rule: Arc<Rule>,
    /// What its bans cover.
    pub scope: Scope,
}

impl<'n, C: Iterator<Item = &'n str> + Clone> Answered<'_, C> {
    /// Charges the jails that count it, each once; gives the first that bans for it. `fallen` is
    /// told of each that is full.
    pub fn charge_jails(
        &self,
        table: &Table,
        rules: &RuleSet,
        mut fallen: impl FnMut(&Arc<Rule>),
    ) -> Option<Jailed> {
        let origin = || table.get(self.client, |entry| entry.origin());
        let is_named = |jail: &&Jail| {
            let mut names = self.named.clone().into_iter().flatten();
            names.any(|name| name == jail.rule.name)
        };
        let by_status = (self.status.into_iter())
            .flat_map(|status| rules.jails(status, &self.asking, origin, self.claim))
            .filter(|jail| !is_named(jail));
        let named = self.named.as_ref().map(|_| rules.every_jail());
        let named = named.into_iter().flatten().filter(is_named);
        let mut jailed = None;
        for jail in by_status.chain(named) {
            let exceeded = table.update(self.client, self.now, |entry| {
                table.changed(self.client, entry);
                let wall_ms = self.now.wall_ms;
                entry.charge_rule(&jail.rule, &jail.quotas, wall_ms, self.other_site)
            });
            if exceeded.is_some() {
                fallen(&jail.rule);
            }
            if let Some(exceeded) = exceeded.filter(|exceeded| exceeded.bans) {
                jailed.get_or_insert_with(|| Jailed {
                    exceeded,
                    rule: Arc::clone(&jail.rule),
                    scope: jail.scope,
                });
            }
        }
        jailed
    }
}
