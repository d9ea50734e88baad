//! The tables.

use std::fmt::Write as _;

use weir_benches::statistics::{median, spread};

/// A figure, and what it is to stay under.
pub(crate) struct Figure {
    pub(crate) title: &'static str,
    pub(crate) value: String,
    pub(crate) at_most: &'static str,
}

/// What one round gives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figures {
    /// Of the whole process, a request.
    pub(crate) cpu_microseconds: f64,
    /// Of the thread that requests are served on, a request.
    pub(crate) worker_microseconds: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) p50_milliseconds: f64,
    pub(crate) p99_milliseconds: f64,
    pub(crate) longest_milliseconds: f64,
    /// Log lines and events that were dropped: a feature that loses its work is not cheap.
    pub(crate) lost: f64,
}

/// The rounds of one feature.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) without: Vec<Figures>,
    pub(crate) with: Vec<Figures>,
}

/// The features in Markdown: medians over the rounds, and how far the rounds lie apart. Where the
/// two spans overlap, the difference is within the noise.
pub(crate) fn features(rows: &[Row]) -> String {
    let mut text = String::from(
        "| Feature | CPU µs a request without (least–most) | with (least–most) | ÷ | Worker µs a request | Requests a second | p50 ms | p99 ms | Longest ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let of = |rounds: &[Figures], member: fn(&Figures) -> f64| {
            median(rounds.iter().map(member).collect())
        };
        let pair = |member, digits: usize| {
            let (without, with) = (of(&row.without, member), of(&row.with, member));
            format!("{without:.digits$} → {with:.digits$}")
        };
        let cpu = |rounds: &[Figures]| -> Vec<f64> {
            rounds.iter().map(|round| round.cpu_microseconds).collect()
        };
        let (least, most) = spread(&cpu(&row.without));
        let (with_least, with_most) = spread(&cpu(&row.with));
        let (without, with) = (median(cpu(&row.without)), median(cpu(&row.with)));
        let _ = writeln!(
            text,
            "| {} | {without:.2} ({least:.2}–{most:.2}) | {with:.2} ({with_least:.2}–{with_most:.2}) | {:.3} | {} | {} | {} | {} | {} |",
            row.title,
            with / without,
            pair(|figures| figures.worker_microseconds, 2),
            pair(|figures| figures.requests_per_second, 0),
            pair(|figures| figures.p50_milliseconds, 2),
            pair(|figures| figures.p99_milliseconds, 2),
            pair(|figures| figures.longest_milliseconds, 0),
        );
    }
    for row in rows {
        let lost: f64 = row
            .without
            .iter()
            .chain(&row.with)
            .map(|figures| figures.lost)
            .sum();
        if lost > 0.0 {
            let _ = writeln!(
                text,
                "\nLost in \"{}\": {lost:.0} log lines or events.",
                row.title
            );
        }
    }
    text
}

/// The figures in Markdown.
pub(crate) fn figures(figures: &[Figure]) -> String {
    let mut text = String::from("| Figure | Measured | At most |\n|---|--:|--:|\n");
    for Figure {
        title,
        value,
        at_most,
    } in figures
    {
        let _ = writeln!(text, "| {title} | {value} | {at_most} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cpu_microseconds: f64, lost: f64) -> Figures {
        Figures {
            cpu_microseconds,
            worker_microseconds: cpu_microseconds / 2.0,
            requests_per_second: 1000.0,
            p50_milliseconds: 1.0,
            p99_milliseconds: 2.0,
            longest_milliseconds: 9.6,
            lost,
        }
    }

    #[test]
    fn medians_stand_side_by_side_with_their_ratio_and_the_spread() {
        let row = Row {
            title: "log",
            without: vec![of(10.0, 0.0), of(30.0, 0.0), of(8.0, 0.0)],
            with: vec![of(11.0, 0.0), of(12.0, 0.0), of(9.0, 0.0)],
        };
        let table = features(&[row]);
        let line = "| log | 10.00 (8.00–30.00) | 11.00 (9.00–12.00) | 1.100 | 5.00 → 5.50 | 1000 → 1000 | 1.00 → 1.00 | 2.00 → 2.00 | 10 → 10 |\n";
        assert!(table.ends_with(line), "{table}");
        let columns = |line: &str| line.matches('|').count();
        assert!(table.lines().all(|other| columns(other) == columns(line)));
    }

    #[test]
    fn what_was_lost_is_told() {
        let row = Row {
            title: "log",
            without: vec![of(1.0, 0.0)],
            with: vec![of(1.0, 2.0), of(1.0, 1.0)],
        };
        assert!(features(&[row]).ends_with("\nLost in \"log\": 3 log lines or events.\n"));
    }

    #[test]
    fn a_figure_stands_beside_its_bound() {
        let figure = Figure {
            title: "start",
            value: "90 ms".to_owned(),
            at_most: "500 ms",
        };
        assert!(figures(&[figure]).ends_with("| start | 90 ms | 500 ms |\n"));
    }
}
