//! The whole proxy beside nginx and HAProxy: processor time of a request in each case; and delays
//! at a fixed rate.
//!
//! The proxies take turns, in an order that changes from round to round: who comes first meets
//! another machine than who comes last.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use weir_benches::ask::metrics;
use weir_benches::beside::each_second;
use weir_benches::load::{Load, WARM_UP};
use weir_benches::paced::Paced;
use weir_benches::program::{Kind, Programs, Running, directory};
use weir_benches::statistics::{Delays, median, spread};

use crate::cases::{CASES, Case, STEADY};
use crate::measure::{measure, system_calls};
use crate::proxies::{TOKEN, start};
use crate::run::Rounds;
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
    let is_chosen = |case: &&Case| {
        arguments.cases.is_empty() || arguments.cases.iter().any(|name| name == case.name)
    };
    let cases = CASES.iter().filter(is_chosen);
    let wanted = [
        "weir", "wrk", "h2load", "taskset", "nginx", "haproxy", "strace",
    ];
    for missing in wanted.iter().filter_map(|name| programs.path(name).err()) {
        eprintln!("bench: {missing}");
    }
    let kinds = chosen_kinds(&arguments.proxies, programs);
    let (time, rounds) = arguments.rounds.checked()?;
    // The user may have set a directory that is a real disk: the logs of a run can be some hundred
    // megabytes.
    let directory = directory()?;
    let application = Running::application(programs, directory.path())?;
    let load = Load {
        programs,
        connections: arguments.rounds.connections,
        directory: directory.path(),
    };
    if arguments.steady {
        return steady(programs, &kinds, application.address, &load, time, rounds);
    }
    let mut rows = Vec::new();
    for case in cases {
        let mut kinds = kinds.clone();
        kinds.retain(|kind| !case.two_workers || *kind == Kind::Weir);
        let rounds_of = |kind| OfCase {
            case,
            kind,
            rounds: Vec::new(),
        };
        let mut of_case: Vec<_> = kinds.into_iter().map(rounds_of).collect();
        for round in 1..=rounds {
            of_case.rotate_left(usize::from(round > 1));
            for row in &mut of_case {
                let (name, proxy) = (case.name, row.kind.name());
                eprintln!("bench: {name} through {proxy}, round {round} of {rounds}");
                let proxy = start(row.kind, programs, case, application.address, &[])?;
                let mut figures = measure(&load, &proxy, case, time)
                    .with_context(|| format!("{name} through {}", row.kind.name()))?;
                // Counting system calls slows everything else: apart from the measurement, and
                // once.
                if round == 1 && !arguments.no_strace {
                    figures.calls = system_calls(&load, &proxy, case)?;
                }
                row.rounds.push(figures);
            }
        }
        of_case.sort_by_key(|row| row.kind);
        rows.extend(of_case);
    }
    let versions = kinds.iter().map(|kind| programs.version(*kind));
    let versions: Vec<String> = versions.collect::<Result<_>>()?;
    Ok(table::cases(&rows, &versions))
}

/// The proxies that were asked for, or those that are there.
fn chosen_kinds(asked: &[Kind], programs: &Programs) -> Vec<Kind> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let mut kinds = Kind::value_variants().to_vec();
    kinds.retain(|kind| programs.path(kind.name()).is_ok());
    kinds
}

/// Delays at a fixed rate, while weir is asked for its metrics and writes its state once a second.
fn steady(
    programs: &Programs,
    kinds: &[Kind],
    application: SocketAddr,
    load: &Load,
    time: Duration,
    rounds: usize,
) -> Result<String> {
    // All of its state, each second.
    let further = [
        ("WAF_METRICS_TOKEN", TOKEN),
        ("WAF_STATE_COUNTER_INTERVAL", "1s"),
    ];
    let start = |kind| start(kind, programs, &STEADY, application, &further);
    let nginx = start(Kind::Nginx)?;
    let counted = load.run(nginx.address, "", 2 * WARM_UP)?;
    drop(nginx);
    let paced = Paced {
        rate: PART * counted.requests as f64 * 1e6 / counted.microseconds as f64,
        connections: u32::try_from(load.connections)?,
        time,
    };
    let mut all: Vec<(Kind, Vec<Delays>)> = kinds.iter().map(|kind| (*kind, Vec::new())).collect();
    for round in 1..=rounds {
        all.rotate_left(usize::from(round > 1));
        for (kind, delays) in &mut all {
            let name = kind.name();
            eprintln!("bench: steady through {name}, round {round} of {rounds}");
            let proxy = start(*kind)?;
            // 20,000 clients to keep and to write.
            load.run(proxy.address, STEADY.script, WARM_UP)?;
            let run = || paced.run(proxy.address);
            delays.push(match kind {
                Kind::Weir => each_second(|| metrics(proxy.address, TOKEN).map(drop), run)?,
                Kind::Nginx | Kind::Haproxy => run()?,
            });
        }
    }
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
        let of = |member: fn(&Delays) -> f64| -> Vec<f64> {
            delays.iter().map(|delays| member(delays) / 1e3).collect()
        };
        let p99s = of(|delays| delays.p99);
        let each: Vec<String> = p99s.iter().map(|ms| format!("{ms:.2}")).collect();
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} ({}) | {:.2} |",
            kind.name(),
            median(of(|delays| delays.p50)),
            median(p99s),
            each.join(", "),
            spread(&of(|delays| delays.longest)).1
        );
    }
    text
}
