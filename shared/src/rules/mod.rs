//! The rules of rules.json as the data plane reads them: compiled once, immutable, part of a
//! [`crate::snapshot::Snapshot`] (RULE).
//!
//! Whoever reads the file and the lists makes a [`RuleSet`]; the ladder asks it which rules a
//! request matches. What is counted for a client lies with the client.

mod list;
mod matcher;
mod paths;
mod rule;
mod spelling;

use std::sync::Arc;

use http::StatusCode;

pub use list::{ListHit, NetList};
pub use matcher::{Asking, Host, Matcher};
use paths::{Marks, Paths, Reach};
pub use rule::{Rule, RuleKind};
pub use spelling::Case;

use crate::ban::Scope;
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
    /// What its bans cover (RULE-8).
    pub scope: Scope,
}

/// The traps, in the order of the file (RULE-3).
#[derive(Clone, Debug, Default)]
pub struct Traps {
    traps: Vec<Trap>,
    paths: Paths,
}

/// One trap.
#[derive(Clone, Debug)]
pub struct Trap {
    /// Its name.
    pub rule: Arc<Rule>,
    /// What its bans cover (RULE-8).
    pub scope: Scope,
}

impl Traps {
    /// Adds a trap: its paths, and everything below each of them. A path that was there before
    /// stays with the trap that had it first.
    pub fn add(&mut self, trap: Trap, paths: impl IntoIterator<Item = impl AsRef<str>>) {
        self.add_with_case(trap, Case::Folded, paths);
    }

    /// The same, where the case of letters counts or not.
    pub fn add_with_case(
        &mut self,
        trap: Trap,
        case: Case,
        paths: impl IntoIterator<Item = impl AsRef<str>>,
    ) {
        let marks = Marks {
            trap: u32::try_from(self.traps.len()).ok(),
            ..Marks::default()
        };
        self.traps.push(trap);
        for path in paths {
            self.paths.add(path.as_ref(), case, Reach::Below, marks);
        }
    }
}

/// Whether a rule's path is `/`, however it is written.
pub fn is_root(path: &str) -> bool {
    spelling::of_rule(path, Case::Folded).is_empty()
}

/// Everything that rules.json and its lists say.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Clients that skip steps 4 to 11 (RULE-1).
    pub allow: NetList,
    /// Clients that are refused at step 4 (RULE-1).
    pub deny: NetList,
    /// Rules whose paths ban who asks for them (RULE-3).
    traps: Vec<Trap>,
    /// Further limits, at most [`MAX_LIMITS`].
    limits: Vec<Limit>,
    /// At most [`MAX_LIMITS`].
    jails: Vec<Jail>,
    /// The paths of all three.
    paths: Paths,
    /// The limits and the jails without a path.
    anywhere: Marks,
}

/// The rules that a request matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Matched<'a> {
    /// The trap that it fell into.
    pub trap: Option<&'a Trap>,
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
        let Traps { traps, mut paths } = traps;
        let mut anywhere = Marks::default();
        let of_limits = limits.iter().enumerate().map(|(index, limit)| {
            let limits = 1 << index;
            let marks = Marks {
                limits,
                ..Marks::default()
            };
            (&limit.matcher, marks)
        });
        let of_jails = jails.iter().enumerate().map(|(index, jail)| {
            let jails = 1 << index;
            let marks = Marks {
                jails,
                ..Marks::default()
            };
            (&jail.matcher, marks)
        });
        for (matcher, marks) in of_limits.chain(of_jails) {
            match matcher.path() {
                Some(of) => paths.add(&of.path, of.case, of.reach, marks),
                None => anywhere.add(marks),
            }
        }
        Self {
            allow,
            deny,
            traps,
            limits,
            jails,
            paths,
            anywhere,
        }
    }

    /// The trap and the limits that a request matches. Nothing is worked out where there is none of
    /// either.
    pub fn matched<'a>(&'a self, asking: &Asking<'_>) -> Matched<'a> {
        if self.traps.is_empty() && self.limits.is_empty() {
            return Matched::default();
        }
        let found = self.paths.find(asking.path);
        let left = found.limits | self.anywhere.limits;
        let mut chosen = 0;
        if left != 0 {
            for (index, limit) in self.limits.iter().enumerate() {
                let matches = left >> index & 1 == 1 && limit.matcher.matches(asking);
                chosen |= u16::from(matches) << index;
            }
        }
        let trap = found.trap.and_then(|trap| usize::try_from(trap).ok());
        Matched {
            trap: trap.and_then(|trap| self.traps.get(trap)),
            limits: Limits {
                all: &self.limits,
                chosen,
            },
        }
    }

    /// The jails that count an answer of the application.
    pub fn jails<'a>(
        &'a self,
        status: StatusCode,
        asking: &Asking<'_>,
    ) -> impl Iterator<Item = &'a Jail> {
        self.jails_where(asking, move |jail| jail.statuses.contains(&status))
    }

    /// The jails of a choice that may count the answer to a request. The choice is asked first.
    pub fn jails_where<'a>(
        &'a self,
        asking: &Asking<'_>,
        choice: impl Fn(&Jail) -> bool,
    ) -> impl Iterator<Item = &'a Jail> {
        // Worked out once, and only where a jail is chosen.
        let found = std::cell::OnceCell::new();
        let matches = move |(index, jail): &(usize, &Jail)| {
            let find = || self.paths.find(asking.path).jails | self.anywhere.jails;
            choice(jail)
                && found.get_or_init(find) >> index & 1 == 1
                && jail.matcher.matches(asking)
        };
        let jails = self.jails.iter().enumerate();
        jails.filter(matches).map(|(_, jail)| jail)
    }

    /// Every rule and every list, for the metrics.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let limits = self.limits.iter().map(|limit| &limit.rule);
        let jails = self.jails.iter().map(|jail| &jail.rule);
        let lists = self.allow.sources().chain(self.deny.sources());
        let traps = self.traps.iter().map(|trap| &trap.rule);
        lists.chain(limits).chain(traps).chain(jails)
    }
}

#[cfg(test)]
mod tests;
