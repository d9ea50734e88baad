//! A feed: a list of netblocks that is fetched from elsewhere, by its name, as rules ask it
//! (FEED-1).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::list::NetList;
use crate::netblock::Netblock;
use crate::settings::{Asns, Countries};

/// The most feeds (FEED-1).
pub const MAX_FEEDS: usize = 32;

/// One version of a feed: immutable, but for when it was last confirmed.
#[derive(Debug)]
pub struct Feed {
    /// Its name in rules.json.
    pub name: String,
    /// Its netblocks; none while there is no version of it.
    pub list: NetList,
    /// Autonomous systems that it lists (FEED-7).
    pub asns: Asns,
    /// Countries that it lists (FEED-7).
    pub countries: Countries,
    /// When this version was taken, in milliseconds since 1970; 0 while there is none.
    taken_ms: u64,
    /// When its publisher last said that this is the version, or it was fetched; 0 while there is
    /// none.
    confirmed_ms: AtomicU64,
}

impl Feed {
    /// A version of a feed: what was taken when, and when it was last confirmed.
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

    /// The same version, which lists these autonomous systems and countries beside its netblocks.
    #[must_use]
    pub fn with_places(mut self, asns: Asns, countries: Countries) -> Self {
        (self.asns, self.countries) = (asns, countries);
        self
    }

    /// How many entries hold: netblocks, autonomous systems and countries.
    pub fn entries(&self) -> usize {
        self.list.len() + self.asns.numbers.len() + self.countries.codes.len()
    }

    /// A feed of which no version is there: it covers nobody.
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

    /// The publisher says that this is still the version.
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
