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
    let smallest = values.iter().copied().min_by(f64::total_cmp);
    let largest = values.iter().copied().max_by(f64::total_cmp);
    (smallest.unwrap_or(0.0), largest.unwrap_or(0.0))
}

/// How long answers took, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Delays {
    /// Half of the answers took no longer.
    pub p50: f64,
    /// 99 of 100 answers took no longer.
    pub p99: f64,
    /// No answer took longer.
    pub longest: f64,
}

impl Delays {
    /// Those of all answers; 0 of none.
    pub fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self {
            p50: quantile(&all, 500),
            p99: quantile(&all, 990),
            longest: quantile(&all, 1000),
        }
    }
}

/// So many of a thousand of these values, which are in order, are not larger; 0 of none.
pub fn quantile(sorted: &[f64], of_thousand: usize) -> f64 {
    let place = sorted.len() * of_thousand / 1000;
    sorted.get(place).or(sorted.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn the_spread_goes_from_the_smallest_to_the_largest() {
        assert_eq!(spread(&[3.0, 1.0, 100.0]), (1.0, 100.0));
        assert_eq!(spread(&[]), (0.0, 0.0));
    }

    #[test]
    fn delays_are_ranked() {
        let delays = Delays::of((0..200).rev().map(f64::from).collect());
        assert_eq!(
            (delays.p50, delays.p99, delays.longest),
            (100.0, 198.0, 199.0)
        );
        assert_eq!(Delays::of(Vec::new()).longest, 0.0);
    }
}
