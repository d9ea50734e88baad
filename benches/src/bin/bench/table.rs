//! The tables, in Markdown: medians over the rounds, and how far the rounds lie apart.

use std::fmt::Write as _;

use weir_benches::program::Kind;
use weir_benches::statistics::{Spread, median};

use crate::cases::{Case, Feature};
use crate::measure::Figures;

/// Below, the generator is what bounds the throughput: requests a second and p99 compare nothing.
const SATURATED: f64 = 0.95;

/// The rounds of each proxy in one case.
pub(crate) struct OfCase {
    pub(crate) case: &'static Case,
    pub(crate) all: Vec<(Kind, Vec<Figures>)>,
}

/// The rounds without a feature and with it.
pub(crate) struct OfFeature {
    pub(crate) feature: &'static Feature,
    pub(crate) both: [Vec<Figures>; 2],
}

/// A figure that stands for itself: its title, its value, and what that is to stay under.
pub(crate) type Figure = (&'static str, String, &'static str);

/// Processor time.
fn cpu(rounds: &[Figures]) -> Spread {
    Spread::of(rounds.iter().map(|round| round.cpu_us))
}

fn sum(rounds: &[Figures], member: impl Fn(&Figures) -> f64) -> f64 {
    rounds.iter().map(member).sum()
}

impl OfCase {
    /// Processor time of the better of the peers: less is less work than either.
    fn better_peer(&self) -> Option<f64> {
        let peers = self.all.iter().filter(|(kind, _)| *kind != Kind::Weir);
        let cpus = peers.map(|(_, rounds)| cpu(rounds).median);
        cpus.min_by(f64::total_cmp)
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
    let all = rows
        .iter()
        .flat_map(|row| row.all.iter().map(move |of| (row, of)));
    for (row, (kind, rounds)) in all {
        let (title, proxy) = (row.case.title, kind.name());
        let of = |member: fn(&Figures) -> f64| median(rounds.iter().map(member));
        let Spread {
            least,
            median: cpu,
            most,
        } = cpu(rounds);
        let ratio = row.better_peer().filter(|_| *kind == Kind::Weir);
        let used = of(|figures| figures.utilisation);
        let saturated = |number| Some(number).filter(|_| used >= SATURATED);
        // h2load knows no p99.
        let p99 = saturated(of(|figures| figures.delays.p99)).filter(|p99| p99.is_finite());
        let calls = rounds.iter().find_map(|figures| figures.calls);
        let _ = writeln!(
            text,
            "| {title} | {proxy} | {cpu:.1} ({least:.1}–{most:.1}) | {:.1} | {} | {used:.2} | {} | {} | {} | {:.1} |",
            of(|figures| figures.user_us),
            shown(ratio.map(|peer| cpu / peer), 2),
            shown(saturated(of(|figures| figures.per_second)), 0),
            shown(p99, 1),
            shown(calls, 2),
            of(|figures| figures.memory_mib),
        );
        for (count, what) in [
            (sum(rounds, |figures| figures.lost), "too few"),
            (sum(rounds, |figures| figures.surplus), "too many"),
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
        let (title, both) = (row.feature.title, row.both.each_ref());
        let pair = |member: fn(&Figures) -> f64, digits: usize| {
            let medians = both.map(|rounds| median(rounds.iter().map(member)));
            medians
                .map(|median| format!("{median:.digits$}"))
                .join(" → ")
        };
        let [without, with] = both.map(|rounds| cpu(rounds));
        let told_cpu =
            |cpu: Spread| format!("{:.2} ({:.2}–{:.2})", cpu.median, cpu.least, cpu.most);
        let _ = writeln!(
            text,
            "| {title} | {} | {} | {:.3} | {} | {} | {} | {} | {} |",
            told_cpu(without),
            told_cpu(with),
            with.median / without.median,
            pair(|figures| figures.worker_us, 2),
            pair(|figures| figures.per_second, 0),
            pair(|figures| figures.delays.p50, 2),
            pair(|figures| figures.delays.p99, 2),
            pair(|figures| figures.delays.longest, 0),
        );
        let lost = sum(&both.map(Vec::as_slice).concat(), |figures| figures.lost);
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
            delays: [1.0, 2.0, 3.0, 9.6].into(),
            memory_mib: 10.0,
            lost,
            ..Figures::default()
        }
    }

    fn of_case(all: &[(Kind, &[Figures])]) -> OfCase {
        let all = all.iter().map(|(kind, rounds)| (*kind, rounds.to_vec()));
        let (case, all) = (&CASES[0], all.collect());
        OfCase { case, all }
    }

    /// LOG-3: a lost line is told; weir is compared with the better peer of its case.
    #[test]
    fn a_case_beside_its_peers() {
        let weir = [of(9.0, 1.0), of(8.0, 1.0), of(50.0, 0.0)];
        let rows = [
            of_case(&[
                (Kind::Weir, &weir),
                (Kind::Nginx, &[of(12.0, 0.0)]),
                (Kind::Haproxy, &[of(10.0, 0.0)]),
            ]),
            of_case(&[(Kind::Nginx, &[of(1.0, 0.0)])]),
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
        let table = cases(&[of_case(&[(Kind::Weir, &[bounded])])], &[]);
        assert!(table.contains("| 0.94 | – | – | – | 10.0 |\n"), "{table}");
    }

    #[test]
    fn a_feature_stands_beside_going_without() {
        let row = OfFeature {
            feature: &FEATURES[0],
            both: [
                vec![of(10.0, 0.0), of(30.0, 0.0), of(8.0, 0.0)],
                vec![of(11.0, 2.0), of(12.0, 0.0), of(9.0, 0.0)],
            ],
        };
        let table = features(&[row]);
        let line = "| 10.00 (8.00–30.00) | 11.00 (9.00–12.00) | 1.100 | 5.00 → 5.50 | 1000 → 1000 | 1.00 → 1.00 | 2.00 → 2.00 | 10 → 10 |\n";
        assert!(table.contains(line), "{table}");
        assert!(table.contains(": 2 log lines or events."), "{table}");
    }
}
