//! The entries of rules.json that match requests, one by one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use super::matcher::Matcher;
use super::paths::{Marks, Paths, Reach};
use super::quota::Quota;
use super::rule::Rule;
use super::spelling::{self, Case};
use crate::ban::Scope;
use crate::lookup::{AsNumber, Country};
use crate::netblock::Netblock;
use crate::settings::{BanResponse, OnLimit};

/// The most `limits`, and the most `jails` (RULE-2, RULE-4).
pub const MAX_LIMITS: usize = 16;
/// The most `denials`, and the most `exempt` entries (MATCH-3, MATCH-4).
pub const MAX_DENIALS: usize = 64;
/// The most names of limits, traps and jails.
pub const MAX_NAMES: usize = 64;
/// The most trap paths in all (RULE-3).
pub const MAX_TRAP_PATHS: usize = 10_000;
/// The most netblocks in all lists (RULE-1).
pub const MAX_NETBLOCKS: usize = 500_000;

/// An entry of `limits` (RULE-2).
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name.
    pub rule: Arc<Rule>,
    /// Which requests it counts.
    pub matcher: Matcher,
    /// At least one, shortest first.
    pub quotas: Vec<Quota>,
    /// The consequence of exceeding it.
    pub on_limit: OnLimit,
    /// Which clients are counted together.
    pub per: Per,
    /// The time after which a client is known and has a second count; none if known clients have no
    /// second count (SHARE-4).
    pub spare_known: Option<Duration>,
}

/// Which clients a limit counts together (SHARE-1).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Per {
    /// Each client by itself (RULE-2).
    #[default]
    Client,
    /// The clients of a netblock, as a ban would cover it.
    Netblock,
    /// The clients of an AS.
    Asn,
    /// The clients of a country.
    Country,
    /// All of them.
    All,
    /// The clients that send the same first value of this field.
    Field(HeaderName),
}

impl Per {
    /// [`SharedKey::per`] of its counts; none if each client has its own count.
    pub const fn shared(&self) -> Option<&'static str> {
        match self {
            Self::Client => None,
            Self::Netblock => Some("netblock"),
            Self::Asn => Some("asn"),
            Self::Country => Some("country"),
            Self::All => Some("all"),
            Self::Field(_) => Some("field"),
        }
    }
}

/// One count of a limit that clients share (SHARE-1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SharedKey {
    /// Of a netblock.
    Netblock(Netblock),
    /// Of an AS number; none if it is not known.
    Asn(Option<AsNumber>),
    /// Of a country; none if it is not known.
    Country(Option<Country>),
    /// Of all clients.
    All,
    /// Of a field's value, as a keyed hash of its first 4 KiB; none for requests without the field.
    Field(Option<u64>),
}

impl SharedKey {
    /// `per` of the log.
    pub const fn per(self) -> &'static str {
        match self {
            Self::Netblock(_) => "netblock",
            Self::Asn(_) => "asn",
            Self::Country(_) => "country",
            Self::All => "all",
            Self::Field(_) => "field",
        }
    }
}

/// `key` of the log.
impl fmt::Display for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Netblock(netblock) => netblock.fmt(f),
            Self::Asn(Some(asn)) => asn.fmt(f),
            Self::Country(Some(country)) => country.fmt(f),
            Self::Asn(None) | Self::Country(None) => f.write_str("unknown"),
            Self::All => f.write_str("all"),
            Self::Field(Some(hash)) => write!(f, "{hash:016x}"),
            Self::Field(None) => f.write_str("absent"),
        }
    }
}

/// An entry of `jails` (RULE-4).
#[derive(Clone, Debug)]
pub struct Jail {
    /// Its name.
    pub rule: Arc<Rule>,
    /// Which requests it counts.
    pub matcher: Matcher,
    /// The statuses that it counts; empty if it counts only the application's reports (APP-2).
    pub statuses: Vec<StatusCode>,
    /// At least one, shortest first.
    pub quotas: Vec<Quota>,
    /// What its bans cover (RULE-8).
    pub scope: Scope,
}

/// An entry of `denials` (MATCH-3).
#[derive(Clone, Debug)]
pub struct Denial {
    /// Its name.
    pub rule: Arc<Rule>,
    /// Which requests it refuses.
    pub matcher: Matcher,
    /// The response; none for `WAF_DENY_RESPONSE`.
    pub answer: Option<BanResponse>,
}

/// An entry of `exempt` (MATCH-4).
#[derive(Clone, Debug)]
pub struct Exempt {
    /// Its name.
    pub rule: Arc<Rule>,
    /// Which requests it lets through.
    pub matcher: Matcher,
}

/// The traps, in the order of the file (RULE-3).
#[derive(Clone, Debug, Default)]
pub struct Traps {
    pub(super) traps: Vec<Trap>,
    pub(super) paths: Paths,
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

    /// Adds a trap, with or without regard to case.
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

/// Whether a rule's path is `/`, in any spelling.
pub fn is_root(path: &str) -> bool {
    spelling::of_rule(path, Case::Folded).is_empty()
}
