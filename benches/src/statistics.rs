//! What several rounds, or several answers, come to.

use std::time::Duration;

/// The least, the middle one or the mean of the two in the middle, and the most; 0 of nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = values.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let at = |place: usize| all.get(place).copied().unwrap_or(0.0);
        let last = all.len().saturating_sub(1);
        Self {
            least: at(0),
            median: at(last / 2).midpoint(at(all.len() / 2)),
            most: at(last),
        }
    }
}

/// The median alone.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).median
}

/// A time in milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// How long answers took, in milliseconds: no more for half of them, for 99 of 100, for 999 of
/// 1000, and for all.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Delays {
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub longest: f64,
}

impl From<[f64; 4]> for Delays {
    fn from([p50, p99, p99_9, longest]: [f64; 4]) -> Self {
        Self {
            p50,
            p99,
            p99_9,
            longest,
        }
    }
}

impl Delays {
    /// Those of all answers; 0 of none.
    pub fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |of_thousand: usize| {
            let place = all.len() * of_thousand / 1000;
            all.get(place).or(all.last()).copied().unwrap_or(0.0)
        };
        [500, 990, 999, 1000].map(at).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_delays_are_ranked() {
        let spread = |values: &[f64]| {
            let found = Spread::of(values.iter().copied());
            [found.least, found.median, found.most]
        };
        assert_eq!(spread(&[3.0, 1.0, 100.0]), [1.0, 3.0, 100.0]);
        assert_eq!(spread(&[4.0, 1.0]), [1.0, 2.5, 4.0]);
        assert_eq!(spread(&[]), [0.0; 3]);
        let delays = Delays::of((0..200).rev().map(f64::from).collect());
        assert_eq!(delays, [100.0, 198.0, 199.0, 199.0].into());
        assert_eq!(Delays::of(Vec::new()), Delays::default());
    }
}
