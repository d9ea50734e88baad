//! Requests by country and by AS number for the metrics: exact counts of all, series for the first
//! N (METRIC).
//!
//! Which keys have a series is decided by count when Prometheus asks. A key without a series gets
//! one only if its count is a quarter above the lowest shown one, so that two close ones do not
//! alternate. A series always shows the exact count of its key; `other` has the requests that came
//! while their key had no series, and never goes down, so that the rate of every series stays right
//! across a change.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The counts of one kind of key.
pub(crate) struct Top<K> {
    most: usize,
    counts: HashMap<K, Held>,
    shown: Vec<K>,
    other: u64,
}

struct Held {
    count: u64,
    /// Whether the key has a series.
    shown: bool,
}

impl<K: Copy + Eq + Hash + Ord> Top<K> {
    /// `most` is `WAF_METRICS_TOP_N`.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            counts: HashMap::new(),
            shown: Vec::new(),
            other: 0,
        }
    }

    /// Applies another `WAF_METRICS_TOP_N`: the lowest series are dropped if it is smaller.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
        while self.shown.len() > most {
            let leaving = self.shown.pop();
            leaving.into_iter().for_each(|key| self.mark(key, false));
        }
    }

    /// Adds the counts since the last scrape. `most_keys` bounds the held keys; further keys count
    /// as `other`.
    pub(crate) fn take_in(&mut self, news: impl IntoIterator<Item = (K, u64)>, most_keys: usize) {
        let mut hidden = Vec::new();
        for (key, news) in news {
            let room = self.counts.len() < most_keys;
            match self.counts.get_mut(&key) {
                Some(held) => held.count += news,
                None if room => {
                    let shown = false;
                    self.counts.insert(key, Held { count: news, shown });
                }
                None => self.other += news,
            }
            if let Some(Held {
                count,
                shown: false,
            }) = self.counts.get(&key)
            {
                hidden.push((*count, key, news));
            }
        }
        // Only keys that grew can get a series; once one gets none, no later one does.
        hidden.sort_unstable_by_key(|(count, key, _)| (Reverse(*count), *key));
        let mut places = true;
        for (count, key, news) in hidden {
            places = places && self.show(key, count);
            if !places {
                self.other += news;
            }
        }
    }

    /// Adds requests whose key is not held.
    pub(crate) fn add_other(&mut self, count: u64) {
        self.other += count;
    }

    /// Every series by its label, including `other` once it is used.
    pub(crate) fn series(&self, label: impl Fn(K) -> String) -> BTreeMap<String, u64> {
        let mut series: BTreeMap<String, u64> = self
            .shown
            .iter()
            .map(|key| (label(*key), self.count(key)))
            .collect();
        if self.other > 0 {
            series.insert("other".to_owned(), self.other);
        }
        series
    }

    /// Gives a key a series if its count is high enough.
    fn show(&mut self, key: K, count: u64) -> bool {
        if self.shown.len() < self.most {
            self.shown.push(key);
        } else {
            let least = (0..)
                .zip(&self.shown)
                .map(|(place, shown): (usize, _)| (self.count(shown), Reverse(*shown), place))
                .min();
            let Some((least, Reverse(leaving), place)) = least else {
                return false;
            };
            if count <= least.saturating_add(least / 4) {
                return false;
            }
            if let Some(shown) = self.shown.get_mut(place) {
                *shown = key;
            }
            self.mark(leaving, false);
        }
        self.mark(key, true);
        true
    }

    fn mark(&mut self, key: K, shown: bool) {
        if let Some(held) = self.counts.get_mut(&key) {
            held.shown = shown;
        }
    }

    fn count(&self, key: &K) -> u64 {
        self.counts.get(key).map_or(0, |held| held.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scrape(top: &mut Top<u32>, news: &[(u32, u64)]) -> Vec<(String, u64)> {
        top.take_in(news.iter().copied(), usize::MAX);
        top.series(|key| key.to_string()).into_iter().collect()
    }

    fn all(series: &[(&str, u64)]) -> Vec<(String, u64)> {
        series
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    /// METRIC: the first N by count have a series, the rest is `other`; the sum is the number of
    /// requests.
    #[test]
    fn the_first_are_shown_and_the_rest_is_other() {
        let mut top = Top::new(2);
        let series = scrape(&mut top, &[(1, 10), (2, 30), (3, 20), (4, 1)]);
        assert_eq!(series, all(&[("2", 30), ("3", 20), ("other", 11)]));
    }

    /// METRIC: a key that enters late has its own count, not that of the key it replaces, and
    /// `other` never goes down.
    #[test]
    fn a_late_entrant_inherits_nothing() {
        let mut top = Top::new(2);
        scrape(&mut top, &[(1, 100), (2, 50), (3, 10)]);
        let series = scrape(&mut top, &[(3, 60)]);
        assert_eq!(series, all(&[("1", 100), ("3", 70), ("other", 10)]));
        let series = scrape(&mut top, &[(2, 5)]);
        assert_eq!(series, all(&[("1", 100), ("3", 70), ("other", 15)]));
        let series = scrape(&mut top, &[(2, 45)]);
        assert_eq!(series, all(&[("1", 100), ("2", 100), ("other", 15)]));
    }

    /// METRIC: two keys with close counts do not replace each other in turns.
    #[test]
    fn close_counts_do_not_flap() {
        let mut top = Top::new(1);
        scrape(&mut top, &[(1, 100), (2, 99)]);
        let mut changes = 0;
        let mut before = "1".to_owned();
        for round in 0..1000 {
            let series = scrape(&mut top, &[(2 - round % 2, 3)]);
            changes += usize::from(series[0].0 != before);
            before.clone_from(&series[0].0);
        }
        assert_eq!(changes, 0);
    }

    /// METRIC: 100,000 keys leave the series bounded, and the keys that are held.
    #[test]
    fn a_flood_of_keys_stays_bounded() {
        let mut top = Top::new(20);
        top.take_in((0..100_000).map(|key| (key, 1)), 4096);
        top.take_in([(7, 5)], 4096);
        let series = top.series(|key| key.to_string());
        assert_eq!(series.len(), 21);
        assert_eq!(top.counts.len(), 4096);
        assert!(
            top.counts.values().map(|held| held.count).sum::<u64>() + series["other"] >= 100_005
        );
    }

    proptest! {
        /// METRIC: over any scrapes no series goes down while it is there, each shows its exact own
        /// count, there are never more than N, and none that is hidden is a quarter above one that
        /// is shown.
        #[test]
        fn series_are_exact_and_monotone(scrapes in prop::collection::vec(prop::collection::vec((0u32..12, 1u64..50), 0..8), 1..40), most in 1usize..6) {
            let mut top = Top::new(most);
            let mut exact: HashMap<u32, u64> = HashMap::new();
            let mut other = 0;
            for news in scrapes {
                let mut sums: HashMap<u32, u64> = HashMap::new();
                for (key, count) in news {
                    *sums.entry(key).or_default() += count;
                    *exact.entry(key).or_default() += count;
                }
                top.take_in(sums, usize::MAX);
                let mut series = top.series(|key| key.to_string());
                let now = series.remove("other").unwrap_or(0);
                prop_assert!(now >= other);
                other = now;
                prop_assert!(series.len() <= most);
                prop_assert_eq!(series.len(), exact.len().min(most));
                let least = series.values().min().copied().unwrap_or(0);
                for (key, count) in &exact {
                    match series.get(&key.to_string()) {
                        Some(shown) => prop_assert_eq!(shown, count),
                        None => prop_assert!(*count <= least + least / 4),
                    }
                }
            }
        }
    }
}
