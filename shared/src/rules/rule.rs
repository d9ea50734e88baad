//! The common part of every rule: a name, a kind, and a number of hits.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// `kind` of the log and of `waf_rule_hits_total`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// An entry of `limits`.
    Limit,
    /// An entry of `traps`.
    Trap,
    /// An entry of `jails`.
    Jail,
    /// An entry of `denials`.
    Denial,
    /// An entry of `exempt`.
    Exempt,
    /// An entry of `crawlers`: its own limits.
    Crawler,
    /// A list of `allow`: rules.json itself, or a file.
    Allow,
    /// A list of `deny`.
    Deny,
}

impl RuleKind {
    /// As written in log, bans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Trap => "trap",
            Self::Jail => "jail",
            Self::Denial => "denial",
            Self::Exempt => "exempt",
            Self::Crawler => "crawler",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// One rule, or one list. It outlives edits of rules.json that keep its name, so its hits continue.
/// The counts of clients under its kind and name are kept as well, even over a restart.
#[derive(Debug)]
pub struct Rule {
    /// Its name in rules.json; of a list `rules.json`, or the file's name as written there.
    pub name: String,
    /// Its kind.
    pub kind: RuleKind,
    /// Requests that it refused, banned or let through; in observe mode, those that it would have.
    hits: AtomicU64,
}

impl Rule {
    /// A rule without hits.
    pub const fn new(kind: RuleKind, name: String) -> Self {
        Self {
            name,
            kind,
            hits: AtomicU64::new(0),
        }
    }

    /// Counts a request. All workers share the number; most requests hit nothing.
    pub fn hit(&self) {
        // Relaxed: a number for the metrics, which orders nothing else.
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests so far.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

impl PartialEq for Rule {
    /// Names are unique within a kind.
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }
}

impl Eq for Rule {}

impl Hash for Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, &self.name).hash(state);
    }
}
