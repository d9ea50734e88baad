//! Verified crawlers (CRAWL): their entries in rules.json, requests that claim to be one, and the
//! verification.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::feed::Feed;
use super::quota::Quota;
use super::rule::Rule;
use crate::client::Client;
use crate::proof::is_below;

/// The most crawlers (CRAWL-1).
pub const MAX_CRAWLERS: usize = 64;

/// What a crawler is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The index of a search engine.
    Search,
    /// The index of an assistant that searches.
    AiSearch,
    /// Training data for models.
    AiTraining,
    /// A page that somebody asked an assistant about.
    AiUser,
    /// A preview of a link.
    Preview,
    /// A monitor that checks whether a site is up.
    Monitor,
    /// An archive.
    Archive,
}

impl Purpose {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Search,
        Self::AiSearch,
        Self::AiTraining,
        Self::AiUser,
        Self::Preview,
        Self::Monitor,
        Self::Archive,
    ];

    /// As written in rules.json and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::AiSearch => "ai_search",
            Self::AiTraining => "ai_training",
            Self::AiUser => "ai_user",
            Self::Preview => "preview",
            Self::Monitor => "monitor",
            Self::Archive => "archive",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Whether a client is the crawler that its `User-Agent` names (CRAWL-2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClaimState {
    /// It is.
    Verified,
    /// It is not.
    Fake,
    /// The verification has no result, or none yet: the client is treated like any other.
    Unproven,
}

impl ClaimState {
    /// Every one, in the order of the metrics.
    pub const ALL: [Self; 3] = [Self::Verified, Self::Fake, Self::Unproven];

    /// As written in rules.json, log and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Fake => "fake",
            Self::Unproven => "unproven",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// How a crawler is verified.
#[derive(Clone, Debug)]
pub enum Verify {
    /// A name of its address is below one of these suffixes, and resolves to the address (CRAWL-3).
    Dns(Vec<String>),
    /// Its address is in this feed.
    Feed(Arc<Feed>),
}

/// A feed that was not confirmed for so long proves nothing (CRAWL-2).
const STALE_MS: u64 = 7 * 86_400_000;

/// The evidence that an address gives.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The address.
    pub address: IpAddr,
    /// Its names confirmed by DNS; none if they are not known.
    pub names: Option<&'a [Box<str>]>,
    /// The current time, in milliseconds since 1970.
    pub now_ms: u64,
}

/// An entry of `crawlers` (CRAWL-1).
#[derive(Debug)]
pub struct Crawler {
    /// Its name; its own limits count under it.
    pub rule: Arc<Rule>,
    /// What it is for.
    pub purpose: Purpose,
    /// A client claims to be this crawler if its `User-Agent` contains one of these literals.
    pub user_agent: Vec<String>,
    /// How it is verified.
    pub verify: Verify,
    /// Its `limits`: all of its addresses are one client for them (CRAWL-4).
    pub quotas: Vec<Quota>,
    /// Its counts, which outlive edits.
    pub counts: Arc<CrawlerCounts>,
}

impl PartialEq for Crawler {
    /// Names are unique.
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule
    }
}

impl Eq for Crawler {}

impl Crawler {
    /// Whether a client is this crawler.
    pub(super) fn state(&self, evidence: Evidence<'_>) -> ClaimState {
        let is_it = match &self.verify {
            Verify::Dns(suffixes) => {
                let Some(names) = evidence.names else {
                    return ClaimState::Unproven;
                };
                let is_ours = |name: &str| suffixes.iter().any(|suffix| is_below(name, suffix));
                names.iter().any(|name| is_ours(name))
            }
            Verify::Feed(feed) => {
                let confirmed_ms = feed.confirmed_ms().unwrap_or(0);
                let is_stale = evidence.now_ms.saturating_sub(confirmed_ms) >= STALE_MS;
                if is_stale || feed.list.is_empty() {
                    return ClaimState::Unproven;
                }
                feed.contains(evidence.address)
            }
        };
        if is_it {
            ClaimState::Verified
        } else {
            ClaimState::Fake
        }
    }

    /// One of its addresses, if a feed has them.
    pub(super) fn some_address(&self) -> Option<IpAddr> {
        match &self.verify {
            Verify::Dns(_) => None,
            Verify::Feed(feed) => {
                let first = feed.list.netblocks().next()?;
                Some(first.net().network())
            }
        }
    }
}

/// The claim of a request, with the result of the verification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The crawler.
    pub crawler: Arc<Crawler>,
    /// The result.
    pub state: ClaimState,
}

impl Claim {
    /// The crawler, if it is verified.
    pub fn verified(&self) -> Option<&Arc<Crawler>> {
        (self.state == ClaimState::Verified).then_some(&self.crawler)
    }

    /// Counts a finished request with this claim.
    pub fn count(&self, is_refused: bool) {
        let state = self.state as usize * 2 + usize::from(is_refused);
        if let Some(counter) = self.crawler.counts.requests.get(state) {
            // Relaxed: a number for the metrics, which orders nothing else.
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A word of `match.crawler` (CRAWL-5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CrawlerWord {
    /// A claim to be any crawler, with this result.
    State(ClaimState),
    /// Verified crawlers of this purpose.
    Purpose(Purpose),
    /// The verified crawler of this name.
    Name(String),
}

impl CrawlerWord {
    /// A word as it is written.
    pub fn of(word: &str) -> Self {
        let state = ClaimState::of(word).map(Self::State);
        let word_or_name = state.or_else(|| Purpose::of(word).map(Self::Purpose));
        word_or_name.unwrap_or_else(|| Self::Name(word.to_owned()))
    }

    /// Whether the word matches a claim.
    pub fn matches(&self, claim: &Claim) -> bool {
        let is_verified = claim.state == ClaimState::Verified;
        match self {
            Self::State(state) => claim.state == *state,
            Self::Purpose(purpose) => is_verified && claim.crawler.purpose == *purpose,
            Self::Name(name) => is_verified && claim.crawler.rule.name == *name,
        }
    }
}

/// A jail or a trap that a verified crawler fell into: nobody is banned for it (CRAWL-4).
#[derive(Clone, Debug)]
pub struct Fallen {
    /// The jail or the trap.
    pub rule: Arc<Rule>,
    /// The crawler's address.
    pub client: Client,
}

/// The counts of a crawler.
#[derive(Debug, Default)]
pub struct CrawlerCounts {
    /// Requests by state, passed and refused.
    requests: [AtomicU64; ClaimState::ALL.len() * 2],
    /// Whether a fall waits to be taken.
    has_fallen: AtomicBool,
    /// The first fall since it was last taken.
    fallen: Mutex<Option<Fallen>>,
}

impl CrawlerCounts {
    /// Requests so far, by state and outcome.
    pub fn requests(&self) -> impl Iterator<Item = (ClaimState, &'static str, u64)> {
        let outcomes = ClaimState::ALL
            .into_iter()
            .flat_map(|state| [(state, "passed"), (state, "refused")]);
        let counts = self.requests.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        outcomes
            .zip(counts)
            .map(|((state, outcome), count)| (state, outcome, count))
    }

    /// Notes that a verified crawler fell into a jail or a trap. The first fall is kept until it is
    /// taken.
    pub fn fall(&self, fallen: impl FnOnce() -> Fallen) {
        // Relaxed: the lock orders the access to the fall itself.
        if !self.has_fallen.load(Ordering::Relaxed) {
            let mut held = self.fallen.lock().unwrap_or_else(PoisonError::into_inner);
            held.get_or_insert_with(fallen);
            self.has_fallen.store(true, Ordering::Relaxed);
        }
    }

    /// The first fall since the last call.
    pub fn take_fallen(&self) -> Option<Fallen> {
        if !self.has_fallen.load(Ordering::Relaxed) {
            return None;
        }
        let mut held = self.fallen.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_fallen.store(false, Ordering::Relaxed);
        held.take()
    }
}
