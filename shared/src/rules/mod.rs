//! The rules of rules.json as the data plane reads them: compiled once, immutable, part of a
//! [`crate::snapshot::Snapshot`] (RULE).
//!
//! Whoever reads the file and the lists makes a [`RuleSet`]; the ladder asks it which rules a
//! request matches. What is counted for a client lies with the client.

mod list;
mod matcher;
mod rule;
mod traps;

use std::sync::Arc;

use http::StatusCode;

pub use list::{ListHit, NetList};
pub use matcher::{Asking, Host, Matcher};
pub use rule::{Rule, RuleKind};
pub use traps::Traps;

use crate::path;
use crate::settings::OnLimit;
use crate::window::RuleSpan;

/// The most `limits`, and the most `jails` (RULE-2, RULE-4).
pub const MAX_LIMITS: usize = 16;
/// The most names.
pub const MAX_NAMES: usize = 64;
/// The most trap paths in all (RULE-3).
pub const MAX_TRAP_PATHS: usize = 10_000;
/// The most netblocks in all lists (RULE-1).
pub const MAX_NETBLOCKS: usize = 100_000;

/// A number of requests or answers in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// The window's length.
    pub span: RuleSpan,
    /// The most that fit.
    pub limit: u64,
}

/// An entry of `limits` (RULE-2).
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name.
    pub rule: Arc<Rule>,
    /// Which requests it counts.
    pub matcher: Matcher,
    /// At least one, shortest first.
    pub quotas: Vec<Quota>,
    /// What follows when it is broken.
    pub on_limit: OnLimit,
}

/// An entry of `jails` (RULE-4).
#[derive(Clone, Debug)]
pub struct Jail {
    /// Its name.
    pub rule: Arc<Rule>,
    /// Which requests it counts.
    pub matcher: Matcher,
    /// Which answers of the application.
    pub statuses: Vec<StatusCode>,
    /// At least one, shortest first.
    pub quotas: Vec<Quota>,
}

/// Everything that rules.json and its lists say.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Clients that skip steps 4 to 11 (RULE-1).
    pub allow: NetList,
    /// Clients that are refused at step 4 (RULE-1).
    pub deny: NetList,
    /// Paths that ban who asks for them (RULE-3).
    pub traps: Traps,
    /// Further limits, at most [`MAX_LIMITS`].
    limits: Vec<Limit>,
    /// The limits that the first letter behind the slash of a path leaves, a bit each: most
    /// requests match none, and are told so by one look.
    limits_by_letter: Option<Box<[u16; 256]>>,
    /// At most [`MAX_LIMITS`].
    jails: Vec<Jail>,
}

/// The rules that a request matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Matched<'a> {
    /// The trap that it fell into.
    pub trap: Option<&'a Arc<Rule>>,
    /// The limits that count it.
    pub limits: Limits<'a>,
}

/// Some of the limits, in the order of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits<'a> {
    all: &'a [Limit],
    /// A bit for each of `all`.
    chosen: u16,
}

impl<'a> Limits<'a> {
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.chosen == 0
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = &'a Limit> {
        let chosen = move |index: &usize| self.chosen >> index & 1 == 1;
        let limits = self.all.iter().enumerate();
        limits
            .filter(move |(index, _)| chosen(index))
            .map(|(_, limit)| limit)
    }
}

impl RuleSet {
    /// The rules with these limits and jails; of each the first [`MAX_LIMITS`] count.
    pub fn new(
        allow: NetList,
        deny: NetList,
        traps: Traps,
        mut limits: Vec<Limit>,
        mut jails: Vec<Jail>,
    ) -> Self {
        limits.truncate(MAX_LIMITS);
        jails.truncate(MAX_LIMITS);
        let mut by_letter = Box::new([0u16; 256]);
        for (index, limit) in limits.iter().enumerate() {
            match limit.matcher.letter() {
                Some(letter) => {
                    if let Some(chosen) = by_letter.get_mut(usize::from(letter)) {
                        *chosen |= 1 << index;
                    }
                }
                None => by_letter
                    .iter_mut()
                    .for_each(|chosen| *chosen |= 1 << index),
            }
        }
        Self {
            allow,
            deny,
            traps,
            limits_by_letter: (!limits.is_empty()).then_some(by_letter),
            limits,
            jails,
        }
    }

    /// The trap and the limits that a request matches. Nothing is worked out where there is none of
    /// either.
    pub fn matched<'a>(&'a self, asking: &Asking<'_>) -> Matched<'a> {
        if self.traps.is_empty() && self.limits.is_empty() {
            return Matched::default();
        }
        let path = path::rule_form(asking.path);
        Matched {
            trap: self.traps.find(&path),
            limits: self.limits_of(&path, asking),
        }
    }

    fn limits_of<'a>(&'a self, path: &str, asking: &Asking<'_>) -> Limits<'a> {
        let Some(by_letter) = &self.limits_by_letter else {
            return Limits::default();
        };
        let letter = matcher::letter(path);
        let left = by_letter.get(usize::from(letter)).copied().unwrap_or(0);
        let all = Limits {
            all: &self.limits,
            chosen: left,
        };
        let mut chosen = 0;
        if left != 0 {
            for (index, limit) in self.limits.iter().enumerate() {
                let matches = left >> index & 1 == 1 && limit.matcher.matches(path, asking);
                chosen |= u16::from(matches) << index;
            }
        }
        Limits { chosen, ..all }
    }

    /// The jails that count an answer of the application.
    pub fn jails<'a>(
        &'a self,
        status: StatusCode,
        asking: &'a Asking<'_>,
    ) -> impl Iterator<Item = &'a Jail> {
        let of_status = move |jail: &&Jail| jail.statuses.contains(&status);
        // Worked out once, and only where a jail counts such answers.
        let path = std::cell::OnceCell::new();
        self.jails.iter().filter(of_status).filter(move |jail| {
            let path = path.get_or_init(|| path::rule_form(asking.path));
            jail.matcher.matches(path, asking)
        })
    }

    /// Every rule and every list, for the metrics.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let limits = self.limits.iter().map(|limit| &limit.rule);
        let jails = self.jails.iter().map(|jail| &jail.rule);
        let lists = self.allow.sources().chain(self.deny.sources());
        lists.chain(limits).chain(self.traps.rules()).chain(jails)
    }
}

#[cfg(test)]
mod tests;
