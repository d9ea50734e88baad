//! What several rounds, or several answers, come to.

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
    let half = values.len() / 2;
    match values.len() % 2 {
        0 => at(half.saturating_sub(1)).midpoint(at(half)),
        _ => at(half),
    }
}

/// The smallest and the largest; 0 of nothing.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let all = || values.iter().copied();
    let smallest = all().min_by(f64::total_cmp).unwrap_or(0.0);
    (smallest, all().max_by(f64::total_cmp).unwrap_or(0.0))
}

/// How long answers took, in microseconds: no more for half of them, for 99 of 100, for 999 of
/// 1000, and for all.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Delays {
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub longest: f64,
}

impl Delays {
    /// Those of all answers; 0 of none.
    pub fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |of_thousand: usize| {
            let place = all.len() * of_thousand / 1000;
            all.get(place).or(all.last()).copied().unwrap_or(0.0)
        };
        let [p50, p99, p99_9, longest] = [500, 990, 999, 1000].map(at);
        Self {
            p50,
            p99,
            p99_9,
            longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_delays_are_ranked() {
        assert_eq!(median(vec![3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(spread(&[3.0, 1.0, 100.0]), (1.0, 100.0));
        assert_eq!(spread(&[]), (0.0, 0.0));
        let delays = Delays::of((0..200).rev().map(f64::from).collect());
        let found = [delays.p50, delays.p99, delays.p99_9, delays.longest];
        assert_eq!(found, [100.0, 198.0, 199.0, 199.0]);
        assert_eq!(Delays::of(Vec::new()).longest, 0.0);
    }
}
