//! The table.

use weir_benches::program::Kind;
use weir_benches::statistics::median;

use crate::case::Case;

/// What one measurement gives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figures {
    pub(crate) cpu_microseconds: f64,
    pub(crate) requests_per_second: f64,
    /// With the proxy saturated.
    pub(crate) p99_milliseconds: f64,
    pub(crate) memory_mebibytes: f64,
    pub(crate) system_calls: Option<f64>,
    /// Requests without a line in the log, where there is one: cheap logging that loses lines is not cheaper.
    pub(crate) lost_lines: u64,
}

/// One line of the table: the medians of one proxy in one case.
#[derive(Debug)]
pub(crate) struct Row {
    case: &'static Case,
    kind: Kind,
    figures: Figures,
}

impl Row {
    pub(crate) fn new(case: &'static Case, kind: Kind, rounds: &[Figures]) -> Self {
        let of = |member: fn(&Figures) -> f64| median(rounds.iter().map(member).collect());
        Self {
            case,
            kind,
            figures: Figures {
                cpu_microseconds: of(|figures| figures.cpu_microseconds),
                requests_per_second: of(|figures| figures.requests_per_second),
                p99_milliseconds: of(|figures| figures.p99_milliseconds),
                memory_mebibytes: of(|figures| figures.memory_mebibytes),
                system_calls: rounds.iter().find_map(|figures| figures.system_calls),
                lost_lines: rounds.iter().map(|figures| figures.lost_lines).sum(),
            },
        }
    }

    /// CPU time in relation to the better of the peers: below 1 is less work than either.
    fn ratio(&self, rows: &[Self]) -> Option<f64> {
        let peers = rows.iter().filter(|row| {
            std::ptr::eq(row.case, self.case) && row.kind != Kind::Weir && row.kind != self.kind
        });
        peers
            .map(|row| row.figures.cpu_microseconds)
            .min_by(f64::total_cmp)
            .map(|best| self.figures.cpu_microseconds / best)
    }
}

/// The table in Markdown.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| Case | Proxy | CPU µs a request | ÷ better peer | Requests a second | p99 ms, saturated | System calls a request | Memory MiB |\n\
         |---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    let two =
        |number: Option<f64>| number.map_or("–".to_owned(), |number| format!("{number:.2}"));
    for row in rows {
        let figures = row.figures;
        let ratio = (row.kind == Kind::Weir).then(|| row.ratio(rows)).flatten();
        text.push_str(&format!(
            "| {} | {} | {:.1} | {} | {:.0} | {:.1} | {} | {:.1} |\n",
            row.case.title(),
            row.kind.name(),
            figures.cpu_microseconds,
            two(ratio),
            figures.requests_per_second,
            figures.p99_milliseconds,
            two(figures.system_calls),
            figures.memory_mebibytes,
        ));
    }
    for row in rows.iter().filter(|row| row.figures.lost_lines > 0) {
        text.push_str(&format!(
            "\n{} lost {} log lines in the case \"{}\".\n",
            row.kind.name(),
            row.figures.lost_lines,
            row.case.title()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::CASES;

    fn figures(cpu_microseconds: f64) -> Figures {
        Figures {
            cpu_microseconds,
            requests_per_second: 1000.0,
            p99_milliseconds: 1.0,
            memory_mebibytes: 10.0,
            system_calls: None,
            lost_lines: 0,
        }
    }

    /// LOG-3: a lost line is told.
    #[test]
    fn lost_lines_are_told() {
        let [pass, ..] = &CASES;
        let mut figures = figures(1.0);
        figures.lost_lines = 2;
        assert!(
            table(&[Row::new(pass, Kind::Weir, &[figures, figures])])
                .ends_with("\nweir lost 4 log lines in the case \"pass\".\n")
        );
    }

    #[test]
    fn weir_is_compared_with_the_better_peer_of_its_case() {
        let [pass, other, ..] = &CASES;
        let rows = [
            Row::new(
                pass,
                Kind::Weir,
                &[figures(9.0), figures(8.0), figures(50.0)],
            ),
            Row::new(pass, Kind::Nginx, &[figures(12.0)]),
            Row::new(pass, Kind::Haproxy, &[figures(10.0)]),
            Row::new(other, Kind::Nginx, &[figures(1.0)]),
        ];
        let table = table(&rows);
        assert!(
            table.contains("| pass | weir | 9.0 | 0.90 | 1000 | 1.0 | – | 10.0 |\n"),
            "{table}"
        );
        assert!(table.contains("| pass | nginx | 12.0 | – |"), "{table}");
    }
}
