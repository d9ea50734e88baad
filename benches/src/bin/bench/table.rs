//! The tables, in Markdown: medians over the rounds, and how far the rounds lie apart.

use std::fmt::Write as _;

use weir_benches::program::Kind;
use weir_benches::statistics::{median, spread};

use crate::cases::{Case, Feature};
use crate::measure::{Figures, middle};

/// Below, the generator is what bounds the throughput: requests a second and p99 compare nothing.
const SATURATED: f64 = 0.95;

/// The rounds of one proxy in one case.
pub(crate) struct OfCase {
    pub(crate) case: &'static Case,
    pub(crate) kind: Kind,
    pub(crate) rounds: Vec<Figures>,
}

/// The rounds without a feature and with it.
pub(crate) struct OfFeature {
    pub(crate) feature: &'static Feature,
    pub(crate) without: Vec<Figures>,
    pub(crate) with: Vec<Figures>,
}

/// A figure that stands for itself: its title, its value, and what that is to stay under.
pub(crate) type Figure = (&'static str, String, &'static str);

/// Processor time: the middle, least and most.
fn cpu(rounds: &[Figures]) -> (f64, f64, f64) {
    let all: Vec<f64> = rounds.iter().map(|round| round.cpu_us).collect();
    let (least, most) = spread(&all);
    (median(all), least, most)
}

fn sum(rounds: &[Figures], member: impl Fn(&Figures) -> f64) -> f64 {
    rounds.iter().map(member).sum()
}

impl OfCase {
    /// Processor time in relation to the better of the peers: below 1 is less work than either.
    fn ratio(&self, rows: &[Self]) -> Option<f64> {
        let is_peer = |row: &&Self| row.case.name == self.case.name && row.kind != Kind::Weir;
        let peers = rows.iter().filter(is_peer).map(|row| cpu(&row.rounds).0);
        let best = peers
            .min_by(f64::total_cmp)
            .filter(|_| self.kind == Kind::Weir);
        best.map(|best| cpu(&self.rounds).0 / best)
    }
}

/// Every proxy in every case.
pub(crate) fn cases(rows: &[OfCase], versions: &[String]) -> String {
    let mut text = String::from(
        "| Case | Proxy | CPU µs a request (least–most) | of it user | ÷ better peer | Core used | Requests a second | p99 ms | System calls a request | Memory MiB |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let shown = |number: Option<f64>, digits: usize| {
        number.map_or("–".to_owned(), |number| format!("{number:.digits$}"))
    };
    let mut told = String::new();
    for row in rows {
        let of = |member: fn(&Figures) -> f64| middle(&row.rounds, member);
        let (cpu, least, most) = cpu(&row.rounds);
        let used = of(|figures| figures.utilisation);
        let saturated = |number| Some(number).filter(|_| used >= SATURATED);
        // h2load knows no p99.
        let p99 = saturated(of(|figures| figures.p99_ms)).filter(|p99| p99.is_finite());
        let calls = row.rounds.iter().find_map(|figures| figures.calls);
        let (title, proxy) = (row.case.title, row.kind.name());
        let _ = writeln!(
            text,
            "| {title} | {proxy} | {cpu:.1} ({least:.1}–{most:.1}) | {:.1} | {} | {used:.2} | {} | {} | {} | {:.1} |",
            of(|figures| figures.user_us),
            shown(row.ratio(rows), 2),
            shown(saturated(of(|figures| figures.per_second)), 0),
            shown(p99, 1),
            shown(calls, 2),
            of(|figures| figures.memory_mib),
        );
        for (count, what) in [
            (sum(&row.rounds, |figures| figures.lost), "too few"),
            (sum(&row.rounds, |figures| figures.surplus), "too many"),
        ] {
            if count > 0.0 {
                told +=
                    &format!("\n{proxy} wrote {count} log lines {what} in the case \"{title}\".\n");
            }
        }
    }
    format!(
        "{text}{told}\nVersions: {}.\n\n\
         weir: six windows (requests and bytes a minute, hour, day), ban ledger and body bound on; lookups, country lists,\n\
         exempt paths and alerts off. nginx and HAProxy: one window of requests. Logs, where on: weir writes batches of lines,\n\
         nginx through a buffer of 64 KiB, HAProxy one line a write. For large bodies nginx has proxy_buffers 16 64k, HAProxy\n\
         tune.bufsize 65536 and splicing. Core used: CPU time by the time of the run; below {SATURATED} the generator is the\n\
         limit, and requests a second and p99 are left out. System calls: of one round.\n",
        versions.join("; ")
    )
}

/// Every feature. Where the two spans overlap, the difference is within the noise.
pub(crate) fn features(rows: &[OfFeature]) -> String {
    let mut text = String::from(
        "| Feature | CPU µs a request without (least–most) | with (least–most) | ÷ | Worker µs a request | Requests a second | p50 ms | p99 ms | Longest ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut told = String::new();
    for row in rows {
        let (title, both) = (row.feature.title, [&row.without, &row.with]);
        let pair = |member: fn(&Figures) -> f64, digits: usize| {
            let both = both.map(|rounds| format!("{:.digits$}", middle(rounds, member)));
            both.join(" → ")
        };
        let [(before, of_before), (after, of_after)] = both.map(|rounds| {
            let (cpu, least, most) = cpu(rounds);
            (cpu, format!("{cpu:.2} ({least:.2}–{most:.2})"))
        });
        let _ = writeln!(
            text,
            "| {title} | {of_before} | {of_after} | {:.3} | {} | {} | {} | {} | {} |",
            after / before,
            pair(|figures| figures.worker_us, 2),
            pair(|figures| figures.per_second, 0),
            pair(|figures| figures.p50_ms, 2),
            pair(|figures| figures.p99_ms, 2),
            pair(|figures| figures.longest_ms, 0),
        );
        let lost: f64 = both
            .iter()
            .map(|rounds| sum(rounds, |figures| figures.lost))
            .sum();
        if lost > 0.0 {
            told += &format!("\nLost in \"{title}\": {lost:.0} log lines or events.\n");
        }
    }
    text + &told
}

/// Figures that stand for themselves.
pub(crate) fn figures(figures: &[Figure]) -> String {
    let mut text = String::from("| Figure | Measured | At most |\n|---|--:|--:|\n");
    for (title, value, at_most) in figures {
        let _ = writeln!(text, "| {title} | {value} | {at_most} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{CASES, FEATURES};

    fn of(cpu_us: f64, lost: f64) -> Figures {
        Figures {
            cpu_us,
            user_us: cpu_us / 4.0,
            worker_us: cpu_us / 2.0,
            utilisation: 0.99,
            per_second: 1000.0,
            p50_ms: 1.0,
            p99_ms: 2.0,
            longest_ms: 9.6,
            memory_mib: 10.0,
            lost,
            ..Figures::default()
        }
    }

    fn row(place: usize, kind: Kind, rounds: &[Figures]) -> OfCase {
        let (case, rounds) = (&CASES[place], rounds.to_vec());
        OfCase { case, kind, rounds }
    }

    /// LOG-3: a lost line is told; weir is compared with the better peer of its case.
    #[test]
    fn a_case_beside_its_peers() {
        let rows = [
            row(0, Kind::Weir, &[of(9.0, 1.0), of(8.0, 1.0), of(50.0, 0.0)]),
            row(0, Kind::Nginx, &[of(12.0, 0.0)]),
            row(0, Kind::Haproxy, &[of(10.0, 0.0)]),
            row(1, Kind::Nginx, &[of(1.0, 0.0)]),
        ];
        let table = cases(&rows, &[]);
        for line in [
            "| pass | weir | 9.0 (8.0–50.0) | 2.2 | 0.90 | 0.99 | 1000 | 2.0 | – | 10.0 |\n",
            "| pass | nginx | 12.0 (12.0–12.0) | 3.0 | – |",
            "\nweir wrote 2 log lines too few in the case \"pass\".\n",
        ] {
            assert!(table.contains(line), "{table}");
        }
        let bounded = Figures {
            utilisation: 0.94,
            ..of(9.0, 0.0)
        };
        let table = cases(&[row(0, Kind::Weir, &[bounded])], &[]);
        assert!(table.contains("| 0.94 | – | – | – | 10.0 |\n"), "{table}");
    }

    #[test]
    fn a_feature_stands_beside_going_without() {
        let row = OfFeature {
            feature: &FEATURES[0],
            without: vec![of(10.0, 0.0), of(30.0, 0.0), of(8.0, 0.0)],
            with: vec![of(11.0, 2.0), of(12.0, 0.0), of(9.0, 0.0)],
        };
        let table = features(&[row]);
        let line = "| 10.00 (8.00–30.00) | 11.00 (9.00–12.00) | 1.100 | 5.00 → 5.50 | 1000 → 1000 | 1.00 → 1.00 | 2.00 → 2.00 | 10 → 10 |\n";
        assert!(table.contains(line), "{table}");
        assert!(table.contains(": 2 log lines or events."), "{table}");
    }
}
