//! Covering arrays: few rows in which the values of any few factors meet.

use std::collections::BTreeSet;

/// Values of some factors: the number of the factor, and that of its value; in order.
pub(crate) type Meeting = Vec<(usize, usize)>;

/// What comes together where as many of these as `strength` are taken.
fn subsets(of: &[(usize, usize)], strength: usize) -> Vec<Meeting> {
    let Some((first, rest)) = of.split_first() else {
        return if strength == 0 {
            vec![Meeting::new()]
        } else {
            Vec::new()
        };
    };
    if strength == 0 {
        return vec![Meeting::new()];
    }
    let with = subsets(rest, strength - 1).into_iter();
    let with = with.map(|meeting| [&[*first], &meeting[..]].concat());
    with.chain(subsets(rest, strength)).collect()
}

/// All meetings of as many factors as `strength`, with so many values of each.
pub(crate) fn meetings(levels: &[usize], strength: usize) -> BTreeSet<Meeting> {
    let values = levels.iter().enumerate();
    let values = values.flat_map(|(factor, count)| (0..*count).map(move |value| (factor, value)));
    let all = subsets(&values.collect::<Meeting>(), strength).into_iter();
    all.filter(|meeting| meeting.windows(2).all(|two| two[0].0 != two[1].0))
        .collect()
}

/// Rows that have every meeting, of so many values of each factor; the same ones each time. Greedy:
/// a row begins with a meeting that no row has yet, and takes for each further factor the value
/// that brings most new ones.
pub(crate) fn rows<const N: usize>(levels: [usize; N], strength: usize) -> Vec<[usize; N]> {
    let mut missing = meetings(&levels, strength);
    let mut rows: Vec<[usize; N]> = Vec::new();
    while let Some(mut chosen) = missing.first().cloned() {
        for (factor, count) in levels.into_iter().enumerate() {
            if chosen.iter().any(|(taken, _)| *taken == factor) {
                continue;
            }
            let new = |value: usize| {
                let others = subsets(&chosen, strength - 1).into_iter();
                let meetings = others.map(|mut others| {
                    others.push((factor, value));
                    others.sort_unstable();
                    others
                });
                meetings.filter(|meeting| missing.contains(meeting)).count()
            };
            // Of values that are as good, each has its turn.
            let values = (0..count).map(|value| (value + rows.len()) % count);
            let best = values.max_by_key(|value| new(*value)).expect("a value");
            chosen.push((factor, best));
        }
        chosen.sort_unstable();
        for meeting in subsets(&chosen, strength) {
            missing.remove(&meeting);
        }
        let mut row = [0; N];
        chosen
            .iter()
            .for_each(|(factor, value)| row[*factor] = *value);
        rows.push(row);
    }
    rows
}

/// Whether some row has this meeting.
pub(crate) fn has<const N: usize>(rows: &[[usize; N]], meeting: &Meeting) -> bool {
    let mut rows = rows.iter();
    rows.any(|row| meeting.iter().all(|(factor, value)| row[*factor] == *value))
}

#[test]
fn all_values_meet() {
    for (levels, strength, count) in [
        ([2, 2, 2], 2, 3 * 4),
        ([7, 3, 5], 2, 21 + 35 + 15),
        ([1, 1, 9], 2, 1 + 9 + 9),
        ([3, 2, 4], 3, 24),
    ] {
        let (rows, all) = (rows(levels, strength), meetings(&levels, strength));
        assert_eq!(all.len(), count);
        for meeting in all {
            assert!(has(&rows, &meeting), "{meeting:?} of {levels:?}");
        }
        assert!(
            rows.len() <= levels.iter().product(),
            "{} rows of {levels:?}",
            rows.len()
        );
    }
}
