//! A feed as rules use it: a fetched list of netblocks, by its name (FEED-1).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::list::NetList;
use crate::netblock::Netblock;
use crate::settings::{Asns, Countries};

/// The most feeds (FEED-1).
pub const MAX_FEEDS: usize = 32;

/// One version of a feed: immutable, except for the time of its last confirmation.
#[derive(Debug)]
pub struct Feed {
    /// Its name in rules.json.
    pub name: String,
    /// Its netblocks; empty while there is no version.
    pub list: NetList,
    /// Autonomous systems that it lists (FEED-7).
    pub asns: Asns,
    /// Countries that it lists (FEED-7).
    pub countries: Countries,
    /// When this version was taken, in milliseconds since 1970; 0 while there is none.
    taken_ms: u64,
    /// When its publisher last confirmed this version, or it was fetched; 0 while there is none.
    confirmed_ms: AtomicU64,
}

impl Feed {
    /// A version of a feed, with the times at which it was taken and last confirmed.
    pub fn new(
        name: &str,
        netblocks: impl IntoIterator<Item = Netblock>,
        taken_ms: u64,
        confirmed_ms: u64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            list: NetList::unnamed(netblocks),
            asns: Asns::default(),
            countries: Countries::default(),
            taken_ms,
            confirmed_ms: AtomicU64::new(confirmed_ms.max(taken_ms)),
        }
    }

    /// Adds these autonomous systems and countries to the version.
    #[must_use]
    pub fn with_places(mut self, asns: Asns, countries: Countries) -> Self {
        (self.asns, self.countries) = (asns, countries);
        self
    }

    /// The number of entries: netblocks, autonomous systems and countries.
    pub fn entries(&self) -> usize {
        self.list.len() + self.asns.numbers.len() + self.countries.codes.len()
    }

    /// A feed without a version: it covers nobody.
    pub fn none(name: &str) -> Self {
        Self::new(name, [], 0, 0)
    }

    /// Whether an entry covers the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.list.contains(address)
    }

    /// The narrowest entry that covers the address.
    pub fn find(&self, address: IpAddr) -> Option<Netblock> {
        self.list.netblock(address)
    }

    /// When this version was taken; none while there is none.
    pub fn taken_ms(&self) -> Option<u64> {
        Some(self.taken_ms).filter(|at| *at != 0)
    }

    /// When it was last fetched or confirmed; none while there is no version.
    pub fn confirmed_ms(&self) -> Option<u64> {
        // Relaxed: a time by itself.
        Some(self.confirmed_ms.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Notes that the publisher confirmed this version.
    pub fn confirm(&self, now_ms: u64) {
        self.confirmed_ms.store(now_ms, Ordering::Relaxed);
    }
}

/// The feeds of rules.json, by name.
#[derive(Clone, Debug, Default)]
pub struct Feeds(Vec<Arc<Feed>>);

impl Feeds {
    /// The feed of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Feed>> {
        // At most 32, and asked where rules are made.
        self.0.iter().find(|feed| feed.name == name)
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Feed>> {
        self.0.iter()
    }
}

impl FromIterator<Arc<Feed>> for Feeds {
    fn from_iter<I: IntoIterator<Item = Arc<Feed>>>(feeds: I) -> Self {
        Self(feeds.into_iter().collect())
    }
}
