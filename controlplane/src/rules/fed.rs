//! The versions of feeds in force: the one taken last, or at a start the last good copy on disk
//! (FEED-4).

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use weir_shared::netblock::NetSet;
use weir_shared::rules::{Feed, Feeds, MAX_NETBLOCKS};
use weir_shared::units::Time;

use crate::feeds::copy::{Copies, Copy};
use crate::feeds::judge::bounded;
use crate::feeds::kept::Offered;
use crate::feeds::own::guard;
use crate::feeds::wanted::{FeedUrl, Wanted};

/// The versions in force, by feed.
pub(super) struct Fed {
    copies: Copies,
    /// The netblocks that no copy may cover (FEED-5).
    trusted: NetSet,
    held: Vec<Held>,
}

/// A feed with its version in force.
#[derive(Clone)]
pub(super) struct Held {
    url: FeedUrl,
    pub(super) feed: Arc<Feed>,
}

impl Fed {
    pub(super) fn new(state_dir: &Path, trusted: NetSet) -> Self {
        Self {
            copies: Copies::new(state_dir),
            trusted,
            held: Vec::new(),
        }
    }

    /// The number of netblocks of these feeds that are in force already.
    pub(super) fn count(&self, wanted: &[Wanted]) -> usize {
        let held = wanted.iter().filter_map(|wanted| self.held(wanted));
        held.map(|held| held.feed.entries()).sum()
    }

    /// The version of this feed in force.
    pub(super) fn held(&self, wanted: &Wanted) -> Option<&Held> {
        let is_it = |held: &&Held| held.feed.name == wanted.name && held.url == wanted.url;
        self.held.iter().find(is_it)
    }

    /// Reads the copy of a feed without a version in force, with at most `room` netblocks.
    pub(super) fn read(&self, wanted: &Wanted, room: usize) -> Held {
        if wanted.crowdsec.is_some() {
            return Held {
                url: wanted.url.clone(),
                feed: Arc::new(self.decisions(wanted, room)),
            };
        }
        let copy = self.copies.read(wanted);
        let copy = copy.filter(|copy| copy.netblocks.len() <= room);
        let feed = copy.map_or_else(
            || Feed::none(&wanted.name),
            |copy| {
                let Copy { head, netblocks } = copy;
                let (Time(taken), Time(confirmed)) = (head.taken, head.confirmed);
                let (hold, _) = guard(&self.trusted).part(netblocks);
                // Earlier versions of the program wrote copies without this check.
                if bounded(&hold).is_err() {
                    return Feed::none(&wanted.name);
                }
                Feed::new(&wanted.name, hold, taken, confirmed)
            },
        );
        Held {
            url: wanted.url.clone(),
            feed: Arc::new(feed),
        }
    }

    /// Reads the kept decisions of a stream (FEED-7). The thread of the feeds removes those that
    /// have ended as soon as it runs.
    fn decisions(&self, wanted: &Wanted, room: usize) -> Feed {
        let name = &wanted.name;
        let Some((head, decisions)) = self.copies.read_decisions(wanted) else {
            return Feed::none(name);
        };
        let listed = decisions.listed();
        let (Time(taken), Time(confirmed)) = (head.taken, head.confirmed);
        match listed.feed(name, &guard(&self.trusted), taken, confirmed) {
            Ok((feed, _)) if feed.entries() <= room => feed,
            _ => Feed::none(name),
        }
    }

    /// Sets the versions in force.
    pub(super) fn hold(&mut self, held: &[Held]) {
        self.held = held.to_vec();
    }
}

/// Replaces the version in force. The error is the end of a sentence: there is no such feed, or no
/// room.
pub(super) fn put(held: &mut [Held], offered: Offered, room: usize) -> Result<(), String> {
    let Offered { url, feed } = offered;
    let others = held.iter().filter(|held| held.feed.name != feed.name);
    let others: usize = others.map(|held| held.feed.entries()).sum();
    let is_it = |held: &&mut Held| held.feed.name == feed.name && held.url == url;
    let Some(place) = held.iter_mut().find(is_it) else {
        return Err("rules.json does not name it any more".to_owned());
    };
    let count = feed.entries();
    if others.saturating_add(count) > room {
        return Err(format!(
            "it has {count} entries, and {MAX_NETBLOCKS} are the most of all lists together"
        ));
    }
    place.feed = feed;
    Ok(())
}

/// The decisions of a feed that have no effect because clients are not looked up (FEED-7).
pub(super) fn idle(feed: &Feed) -> Option<String> {
    let count = feed.asns.numbers.len() + feed.countries.codes.len();
    (count > 0).then(|| {
        format!(
            "the feed {:?} has {count} decisions on autonomous systems and countries, which do nothing with WAF_LOOKUP_SOURCE=off",
            feed.name
        )
    })
}

/// Logs that, once for each feed as long as it lasts.
pub(super) fn tell_idle(feeds: &Feeds, told: &mut HashSet<String>) {
    let idle = |feed: &Arc<Feed>| Some((feed.name.clone(), idle(feed)?));
    let idle: HashMap<String, String> = feeds.iter().filter_map(idle).collect();
    told.retain(|name| idle.contains_key(name));
    for (name, sentence) in idle {
        if told.insert(name.clone()) {
            tracing::warn!(feed = name, "{sentence}");
        }
    }
}

/// The versions in force at a given time, by name. Feeds that have ended have no entries.
pub(super) fn feeds(held: &[Held], wanted: &[Wanted], now_ms: u64) -> Feeds {
    let held = held.iter().zip(wanted).map(|(held, wanted)| {
        let none = || Arc::new(Feed::none(&wanted.name));
        let ended = wanted.has_ended(now_ms).then(none);
        ended.unwrap_or_else(|| Arc::clone(&held.feed))
    });
    held.collect()
}
