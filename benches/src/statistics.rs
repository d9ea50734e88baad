//! What several rounds come to.

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or(0.0);
    if values.len() % 2 == 1 {
        return upper;
    }
    let lower = values
        .len()
        .checked_div(2)
        .and_then(|half| half.checked_sub(1))
        .and_then(|index| values.get(index).copied())
        .unwrap_or(upper);
    lower.midpoint(upper)
}

/// The smallest and the largest; 0 of nothing.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let smallest = values.iter().copied().min_by(f64::total_cmp);
    let largest = values.iter().copied().max_by(f64::total_cmp);
    (smallest.unwrap_or(0.0), largest.unwrap_or(0.0))
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
}
