//! The table.

use weir_benches::program::Kind;
use weir_benches::statistics::{median, spread};

use crate::case::Case;

/// What one measurement gives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figures {
    pub(crate) cpu_microseconds: f64,
    /// Of it in the process itself; the rest is the kernel's.
    pub(crate) user_microseconds: f64,
    /// The part of its core that the proxy used.
    pub(crate) utilisation: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) p99_milliseconds: f64,
    pub(crate) memory_mebibytes: f64,
    pub(crate) system_calls: Option<f64>,
    pub(crate) log: Log,
}

/// How the lines of the log differ from the requests, where there is one.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Log {
    /// Requests without a line: cheap logging that loses lines is not cheaper.
    pub(crate) lost: u64,
    /// Lines without a request: something else was measured as well.
    pub(crate) surplus: u64,
}

/// Below, the generator is what bounds the throughput: requests a second and p99 compare nothing.
const SATURATED: f64 = 0.95;

/// One line of the table: the medians of one proxy in one case.
#[derive(Debug)]
pub(crate) struct Row {
    case: &'static Case,
    kind: Kind,
    /// Medians.
    figures: Figures,
    /// Least and most of the CPU time a request.
    spread: (f64, f64),
}

impl Row {
    pub(crate) fn new(case: &'static Case, kind: Kind, rounds: &[Figures]) -> Self {
        let of = |member: fn(&Figures) -> f64| median(rounds.iter().map(member).collect());
        let cpu: Vec<f64> = rounds.iter().map(|round| round.cpu_microseconds).collect();
        Self {
            case,
            kind,
            spread: spread(&cpu),
            figures: Figures {
                cpu_microseconds: of(|figures| figures.cpu_microseconds),
                user_microseconds: of(|figures| figures.user_microseconds),
                utilisation: of(|figures| figures.utilisation),
                requests_per_second: of(|figures| figures.requests_per_second),
                p99_milliseconds: of(|figures| figures.p99_milliseconds),
                memory_mebibytes: of(|figures| figures.memory_mebibytes),
                system_calls: rounds.iter().find_map(|figures| figures.system_calls),
                log: Log {
                    lost: rounds.iter().map(|figures| figures.log.lost).sum(),
                    surplus: rounds.iter().map(|figures| figures.log.surplus).sum(),
                },
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
        "| Case | Proxy | CPU µs a request (least–most) | of it user | ÷ better peer | Core used | Requests a second | p99 ms | System calls a request | Memory MiB |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let shown = |number: Option<f64>, digits: usize| {
        number.map_or("–".to_owned(), |number| format!("{number:.digits$}"))
    };
    for row in rows {
        let figures = row.figures;
        let ratio = (row.kind == Kind::Weir).then(|| row.ratio(rows)).flatten();
        let saturated = |number| (figures.utilisation >= SATURATED).then_some(number);
        // h2load knows none.
        let p99 = saturated(figures.p99_milliseconds).filter(|p99| p99.is_finite());
        text.push_str(&format!(
            "| {} | {} | {:.1} ({:.1}–{:.1}) | {:.1} | {} | {:.2} | {} | {} | {} | {:.1} |\n",
            row.case.title(),
            row.kind.name(),
            figures.cpu_microseconds,
            row.spread.0,
            row.spread.1,
            figures.user_microseconds,
            shown(ratio, 2),
            figures.utilisation,
            shown(saturated(figures.requests_per_second), 0),
            shown(p99, 1),
            shown(figures.system_calls, 2),
            figures.memory_mebibytes,
        ));
    }
    for row in rows {
        for (count, what) in [
            (row.figures.log.lost, "log lines too few"),
            (row.figures.log.surplus, "log lines too many"),
        ] {
            if count > 0 {
                let (proxy, case) = (row.kind.name(), row.case.title());
                text.push_str(&format!(
                    "\n{proxy} wrote {count} {what} in the case \"{case}\".\n"
                ));
            }
        }
    }
    text
}

/// What must be known to read the table.
pub(crate) fn explained(versions: &[String]) -> String {
    format!(
        "Versions: {}.\n\n\
         weir: six windows (requests and bytes a minute, hour, day), ban ledger and body bound on; lookups, country lists,\n\
         exempt paths and alerts off. nginx and HAProxy: one window of requests. Logs, where on: weir writes batches of lines,\n\
         nginx through a buffer of 64 KiB, HAProxy one line a write. For large bodies nginx has proxy_buffers 16 64k, HAProxy\n\
         tune.bufsize 65536 and splicing. Core used: CPU time by the time of the run; below {SATURATED} the generator is the\n\
         limit, and requests a second and p99 are left out. System calls: of one round.\n",
        versions.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::CASES;

    fn figures(cpu_microseconds: f64) -> Figures {
        Figures {
            cpu_microseconds,
            user_microseconds: cpu_microseconds / 4.0,
            utilisation: 0.99,
            requests_per_second: 1000.0,
            p99_milliseconds: 1.0,
            memory_mebibytes: 10.0,
            system_calls: None,
            log: Log::default(),
        }
    }

    /// LOG-3: a lost line is told, and so is one that nobody asked for.
    #[test]
    fn lost_and_surplus_lines_are_told() {
        let [pass, ..] = &CASES;
        let mut figures = figures(1.0);
        figures.log = Log {
            lost: 2,
            surplus: 1,
        };
        let table = table(&[Row::new(pass, Kind::Weir, &[figures, figures])]);
        assert!(table.ends_with(
            "\nweir wrote 4 log lines too few in the case \"pass\".\n\
             \nweir wrote 2 log lines too many in the case \"pass\".\n"
        ));
    }

    #[test]
    fn throughput_is_left_out_where_the_generator_is_the_limit() {
        let [pass, ..] = &CASES;
        let mut figures = figures(1.0);
        figures.utilisation = 0.94;
        let table = table(&[Row::new(pass, Kind::Weir, &[figures])]);
        assert!(table.ends_with("| 0.94 | – | – | – | 10.0 |\n"), "{table}");
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
            table.contains(
                "| pass | weir | 9.0 (8.0–50.0) | 2.2 | 0.90 | 0.99 | 1000 | 1.0 | – | 10.0 |\n"
            ),
            "{table}"
        );
        assert!(
            table.contains("| pass | nginx | 12.0 (12.0–12.0) | 3.0 | – |"),
            "{table}"
        );
    }
}
