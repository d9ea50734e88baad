//! Counts by a key of which a log may have any number: those with the most are kept, so that memory
//! is bounded.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;

/// The most keys that are kept. When they are full, the half with the fewest refusals and requests
/// is dropped.
const MOST: usize = 20_000;

/// Trials that are counted side by side.
pub const TRIALS: usize = 2;

/// The counts of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    pub requests: u64,
    /// Refusals in each trial.
    pub refused: [u64; TRIALS],
}

/// Counts by key.
#[derive(Debug)]
pub struct Tally<K> {
    rows: HashMap<K, Counted>,
    /// True if keys were dropped: a count is then a lower bound.
    trimmed: bool,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            trimmed: false,
        }
    }
}

impl<K: Eq + Hash + Ord + Clone> Tally<K> {
    /// Counts a request.
    pub fn add<Q>(&mut self, key: &Q, refused: [bool; TRIALS])
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(row) = self.rows.get_mut(key) {
            return count(row, refused);
        }
        if self.rows.len() >= MOST {
            self.trim();
        }
        count(self.rows.entry(key.to_owned()).or_default(), refused);
    }

    fn trim(&mut self) {
        let mut rows: Vec<_> = self.rows.drain().collect();
        let half = rows.len() / 2;
        rows.select_nth_unstable_by(half, |(a, of_a), (b, of_b)| order((a, of_a), (b, of_b)));
        rows.truncate(half);
        self.rows.extend(rows);
        self.trimmed = true;
    }

    /// Those with the most refusals, then the most requests.
    pub fn top(&self, count: usize) -> Vec<(K, Counted)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by(|a, b| order(*a, *b));
        let rows = rows.into_iter().take(count);
        rows.map(|(key, row)| (key.clone(), *row)).collect()
    }

    /// Whether there were more keys than are kept.
    pub const fn is_trimmed(&self) -> bool {
        self.trimmed
    }
}

/// The key with more refusals first, then with more requests. Of equal ones the key decides, so
/// that a log always gives the same report.
fn order<K: Ord>((a, of_a): (&K, &Counted), (b, of_b): (&K, &Counted)) -> Ordering {
    weight(of_b).cmp(&weight(of_a)).then_with(|| a.cmp(b))
}

fn weight(row: &Counted) -> (u64, u64) {
    (row.refused.iter().copied().max().unwrap_or(0), row.requests)
}

fn count(row: &mut Counted, refused: [bool; TRIALS]) {
    row.requests += 1;
    for (count, refused) in row.refused.iter_mut().zip(refused) {
        *count += u64::from(refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONTROL-6: the number of keys is always bounded, and the keys with the highest counts stay.
    #[test]
    fn those_with_the_most_are_kept() {
        let mut tally = Tally::<u64>::default();
        for step in 0..200_000u64 {
            tally.add(&step, [false, false]);
            if step % 10 == 0 {
                tally.add(&7, [true, false]);
            }
            assert!(tally.rows.len() <= MOST);
        }
        assert!(tally.is_trimmed());
        let (key, counted) = tally.top(1)[0];
        assert_eq!((key, counted.refused), (7, [20_000, 0]));
        assert_eq!(counted.requests, 20_001);
    }

    /// CONTROL-6: where all keys have the same counts, half of them stay, and one that has more
    /// stays in any case.
    #[test]
    fn of_equal_keys_half_are_kept() {
        let mut tally = Tally::<u64>::default();
        for step in 0..20_000u64 {
            tally.add(&step, [false, false]);
        }
        tally.add(&19_999, [false, false]);
        tally.add(&20_000, [false, false]);
        assert!(tally.is_trimmed());
        assert_eq!(tally.rows.len(), MOST / 2 + 1);
        assert_eq!(tally.top(1)[0].0, 19_999);
    }
}
