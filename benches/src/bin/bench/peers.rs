//! The whole proxy beside nginx and HAProxy: processor time of a request in each case; and delays
//! at a fixed rate.
//!
//! The proxies take turns, in an order that changes from round to round: who comes first meets
//! another machine than who comes last.

use std::fmt::Write as _;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use weir_benches::ask::{TOKEN, metrics};
use weir_benches::beside::each_second;
use weir_benches::load::{Paced, WARM_UP};
use weir_benches::program::{Kind, PROGRAMS, Programs};
use weir_benches::statistics::{Delays, Spread, median};

use crate::cases::{self, CASES, Case};
use crate::measure::{measure, system_calls};
use crate::proxies::start;
use crate::run::{Bench, Rounds, take_turns};
use crate::table::{self, OfCase};

/// The part of nginx's rate.
const PART: f64 = 0.6;

/// Measures weir beside nginx and HAProxy.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    rounds: Rounds,
    /// Cases, separated by commas; all of them if not given
    #[arg(long, value_delimiter = ',', value_parser = names())]
    cases: Vec<String>,
    /// Proxies, separated by commas; those that are there if not given
    #[arg(long, value_delimiter = ',')]
    proxies: Vec<Kind>,
    /// Instead of the cases, the delays at a fixed rate: 60 % of what nginx answers at most, while
    /// weir is asked for its metrics and writes its state once a second
    #[arg(long)]
    steady: bool,
    /// Skip the short run under strace that counts system calls
    #[arg(long)]
    no_strace: bool,
}

/// Each of [`CASES`].
fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(CASES.each_ref().map(|case| case.name))
}

/// The table.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    let wanted = PROGRAMS.iter().map(|(name, ..)| *name).chain(["weir"]);
    for missing in wanted.filter_map(|name| programs.path(name).err()) {
        eprintln!("bench: {missing}");
    }
    let mut kinds = arguments.proxies.clone();
    if kinds.is_empty() {
        let all = Kind::value_variants().iter().copied();
        kinds.extend(all.filter(|kind| programs.path(kind.name()).is_ok()));
    }
    let bench = arguments.rounds.bench(programs)?;
    if arguments.steady {
        return steady(&bench, &kinds);
    }
    let chosen = &arguments.cases;
    let is_chosen = |case: &&Case| chosen.is_empty() || chosen.iter().any(|name| name == case.name);
    let cases = CASES.iter().filter(is_chosen);
    let rows = cases.map(|case| of_case(&bench, &kinds, case, !arguments.no_strace));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let versions = kinds.iter().map(|kind| programs.version(*kind));
    let versions: Vec<String> = versions.collect::<Result<_>>()?;
    Ok(table::cases(&rows, &versions))
}

/// All rounds of a case.
fn of_case(
    bench: &Bench,
    kinds: &[Kind],
    case: &'static Case,
    counts_calls: bool,
) -> Result<OfCase> {
    let mut kinds = kinds.to_vec();
    kinds.retain(|kind| !case.two_workers || *kind == Kind::Weir);
    let mut all: Vec<_> = kinds.into_iter().map(|kind| (kind, Vec::new())).collect();
    let (name, rounds) = (case.name, bench.rounds);
    take_turns(name, rounds, &mut all, Kind::name, |kind, round| {
        let proxy = start(kind, bench, case, &[])?;
        let mut figures = measure(&bench.load, &proxy, case, bench.time)?;
        // Counting system calls slows everything else: apart from the measurement, and once.
        if round == 1 && counts_calls {
            figures.calls = system_calls(&bench.load, &proxy, case)?;
        }
        Ok(figures)
    })?;
    Ok(OfCase { case, all })
}

/// Delays at a fixed rate, while weir is asked for its metrics and writes its state once a
/// second.
fn steady(bench: &Bench, kinds: &[Kind]) -> Result<String> {
    let further = [
        ("WAF_METRICS_TOKEN", TOKEN),
        ("WAF_STATE_COUNTER_INTERVAL", "1s"),
    ];
    let case = cases::steady();
    let start = |kind| start(kind, bench, &case, &further);
    let nginx = start(Kind::Nginx)?;
    let counted = bench.load.run(nginx.address, "", 2 * WARM_UP)?;
    drop(nginx);
    let paced = Paced {
        rate: PART * counted.rate(),
        connections: bench.load.connections,
        time: bench.time,
    };
    let mut all: Vec<_> = kinds.iter().map(|kind| (*kind, Vec::new())).collect();
    take_turns("steady", bench.rounds, &mut all, Kind::name, |kind, _| {
        let proxy = start(kind)?;
        // 20,000 clients to keep and to write.
        bench.load.run(proxy.address, case.script, WARM_UP)?;
        let run = || paced.run(proxy.address);
        match kind {
            Kind::Weir => each_second(|| metrics(proxy.address).map(drop), run),
            Kind::Nginx | Kind::Haproxy => run(),
        }
    })?;
    Ok(delays(&paced, &all))
}

/// The table of delays.
fn delays(paced: &Paced, all: &[(Kind, Vec<Delays>)]) -> String {
    let mut text = format!(
        "{:.0} requests a second, {} connections\n\n\
         | Proxy | p50 ms | p99 ms (of each round) | longest ms |\n|---|--:|--:|--:|\n",
        paced.rate, paced.connections
    );
    for (kind, delays) in all {
        let each = delays.iter().map(|delays| format!("{:.2}", delays.p99));
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} ({}) | {:.2} |",
            kind.name(),
            median(delays.iter().map(|delays| delays.p50)),
            median(delays.iter().map(|delays| delays.p99)),
            each.collect::<Vec<_>>().join(", "),
            Spread::of(delays.iter().map(|delays| delays.longest)).most
        );
    }
    text
}
