//! The answers of the service: at most 20,000, kept for `WAF_LOOKUP_TTL`, and saved in lookups.json
//! (LOOKUP-2). Pure: time is an argument, milliseconds since 1970, because answers outlive a
//! restart.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use weir_shared::client::Client;
use weir_shared::lookup::Lookup;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::budget::network;

/// The most answers that are kept.
pub(crate) const MAX_LOOKUPS: usize = 20_000;

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// One answer.
#[derive(Clone, PartialEq, Debug)]
pub struct LookupRow {
    /// The client.
    pub client: Client,
    /// The answer.
    pub lookup: Arc<Lookup>,
    /// When the answer came.
    pub answered: Time,
}

/// The cache of answers.
pub(super) struct Cache {
    ttl_ms: u64,
    answers: HashMap<Client, (u64, Arc<Lookup>)>,
    /// The same answers, oldest first: the oldest is dropped first.
    order: BTreeSet<(u64, Client)>,
    /// The same answers by network, oldest first: the newest of a network stands in for clients
    /// that cannot be looked up (ALIVE-6).
    by_network: BTreeSet<(Netblock, u64, Client)>,
}

impl Cache {
    /// An empty cache whose answers are valid for `ttl`.
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            ttl_ms: millis(ttl),
            answers: HashMap::new(),
            order: BTreeSet::new(),
            by_network: BTreeSet::new(),
        }
    }

    /// Sets the time to live, also of answers that are kept already.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl_ms = millis(ttl);
    }

    /// The answer about a client, and how many milliseconds it is still valid. An expired answer is
    /// dropped.
    pub(super) fn fresh(&mut self, client: Client, now_ms: u64) -> Option<(Arc<Lookup>, u64)> {
        let (answered_ms, lookup) = self.answers.get(&client)?;
        // An answer from the future, after a clock was set back, counts as new.
        let age_ms = now_ms.saturating_sub(*answered_ms);
        if age_ms < self.ttl_ms {
            return Some((Arc::clone(lookup), self.ttl_ms - age_ms));
        }
        self.remove(client);
        None
    }

    /// Keeps an answer; beyond the bound the oldest is dropped.
    pub(super) fn put(&mut self, row: LookupRow) {
        self.remove(row.client);
        while self.answers.len() >= MAX_LOOKUPS {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            self.remove_of_network(oldest);
        }
        let at_ms = row.answered.0;
        self.by_network
            .insert((network(row.client), at_ms, row.client));
        self.order.insert((row.answered.0, row.client));
        self.answers
            .insert(row.client, (row.answered.0, row.lookup));
    }

    pub(super) fn remove(&mut self, client: Client) {
        if let Some(answered_ms) = self.remove_of_network(client) {
            self.order.remove(&(answered_ms, client));
        }
    }

    fn remove_of_network(&mut self, client: Client) -> Option<u64> {
        let (answered_ms, _) = self.answers.remove(&client)?;
        self.by_network
            .remove(&(network(client), answered_ms, client));
        Some(answered_ms)
    }

    /// The newest answer about a client of the same network, if it is still valid.
    pub(super) fn newest_beside(&self, client: Client, now_ms: u64) -> Option<Arc<Lookup>> {
        let network = network(client);
        let all_of_it = (network, 0, Client::V4(0))..=(network, u64::MAX, Client::V6(u64::MAX));
        let (_, answered_ms, newest) = self.by_network.range(all_of_it).next_back()?;
        let holds = now_ms.saturating_sub(*answered_ms) < self.ttl_ms;
        let (_, lookup) = self.answers.get(newest).filter(|_| holds)?;
        Some(Arc::clone(lookup))
    }

    /// Every valid answer, in no order: new clients wait for the lock meanwhile, so the thread that
    /// writes the file sorts.
    pub(super) fn rows(&self, now_ms: u64) -> Vec<LookupRow> {
        self.answers
            .iter()
            .filter(|(_, (answered_ms, _))| now_ms.saturating_sub(*answered_ms) < self.ttl_ms)
            .map(|(client, (answered_ms, lookup))| LookupRow {
                client: *client,
                lookup: Arc::clone(lookup),
                answered: Time(*answered_ms),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(client: u32, answered: u64) -> LookupRow {
        LookupRow {
            client: Client::V4(client),
            lookup: Arc::new(Lookup {
                country: Some("DE".to_owned()),
                ..Lookup::default()
            }),
            answered: Time(answered),
        }
    }

    /// LOOKUP-2: an answer is valid for its time to live, to the millisecond; a clock that is set
    /// back makes no answer old.
    #[test]
    fn answers_hold_for_the_time_to_live() {
        let mut cache = Cache::new(Duration::from_secs(1));
        cache.put(row(1, 5000));
        assert_eq!(cache.fresh(Client::V4(1), 5999).unwrap().1, 1);
        assert_eq!(cache.fresh(Client::V4(1), 100).unwrap().1, 1000);
        assert_eq!(cache.rows(5999), [row(1, 5000)]);
        assert_eq!(cache.rows(6000), []);
        assert_eq!(cache.fresh(Client::V4(1), 6000), None);
        assert_eq!(cache.fresh(Client::V4(1), 5000), None, "it was dropped");
    }

    /// LOOKUP-2: never more than 20,000; the oldest answer goes first, and a newer answer replaces
    /// the older one.
    #[test]
    fn the_oldest_of_20000_goes() {
        let mut cache = Cache::new(Duration::MAX);
        for number in 0..20_000 {
            cache.put(row(number, u64::from(number)));
        }
        cache.put(row(0, 50_000));
        cache.put(row(30_000, 50_000));
        assert_eq!(cache.rows(0).len(), MAX_LOOKUPS);
        assert!(cache.fresh(Client::V4(0), 0).is_some());
        assert!(cache.fresh(Client::V4(1), 0).is_none());
        assert!(cache.fresh(Client::V4(2), 0).is_some());
    }

    proptest! {
        /// The cache agrees with a plain list of answers.
        #[test]
        fn the_cache_agrees_with_a_list(steps in prop::collection::vec((0u32..8, 0u8..3, 0u64..400), 1..60)) {
            let mut cache = Cache::new(Duration::from_secs(1));
            let mut list: Vec<(u32, u64)> = Vec::new();
            let mut now = 1000;
            for (client, what, step) in steps {
                now += step;
                match what {
                    0 => {
                        cache.put(row(client, now));
                        list.retain(|(held, _)| *held != client);
                        list.push((client, now));
                    }
                    1 => {
                        cache.remove(Client::V4(client));
                        list.retain(|(held, _)| *held != client);
                    }
                    _ => {
                        let expected = list.iter().find(|(held, _)| *held == client).filter(|(_, at)| now - at < 1000);
                        let found = cache.fresh(Client::V4(client), now);
                        prop_assert_eq!(found.map(|(_, left)| left), expected.map(|(_, at)| 1000 - (now - at)));
                    }
                }
                prop_assert_eq!(cache.order.len(), cache.answers.len());
                prop_assert_eq!(cache.by_network.len(), cache.answers.len());
            }
        }
    }
}
