//! What weir's own features cost: weir without each of them and with it, in turn, the order
//! changing from round to round, so that what drifts on the machine falls on both.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use rustix::thread::sched_setaffinity;
use weir_benches::program::{Programs, directory, load_core};
use weir_benches::state;

use crate::cases::FEATURES;
use crate::features::Overhead;
use crate::figures::FIGURES;
use crate::run::Rounds;
use crate::{database, table};

/// Measures weir without and with each of its features.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    rounds: Rounds,
    /// What to measure, separated by commas; all of it if not given. A state write once a minute
    /// takes 60 seconds whatever is said, and at most 2 rounds
    #[arg(long, value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
}

/// Each of [`FEATURES`] and [`FIGURES`].
fn names() -> PossibleValuesParser {
    let mut names: Vec<&str> = FEATURES.iter().map(|feature| feature.name).collect();
    names.dedup();
    PossibleValuesParser::new(names.into_iter().chain(FIGURES.map(|(name, _)| name)))
}

/// The tables.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    let Arguments { rounds, only } = arguments;
    sched_setaffinity(None, &load_core()).context("no core for this program")?;
    let directory = directory()?;
    database::write(directory.path())?;
    let full_state = directory.path().join("full");
    state::write(&full_state, state::BANS)?;
    let bench = Overhead {
        bench: rounds.bench(programs)?,
        places: [
            ("{databases}", directory.path().display().to_string()),
            ("{service}", silent_service()?.to_string()),
        ],
        full_state,
    };
    let chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    for feature in FEATURES.iter().filter(|feature| chosen(feature.name)) {
        rows.push(bench.feature(feature)?);
    }
    for (name, measure) in FIGURES.iter().filter(|(name, _)| chosen(name)) {
        eprintln!("bench: {name}");
        figures.extend(measure(&bench).with_context(|| *name)?);
    }
    let tables = [
        (!rows.is_empty()).then(|| table::features(&rows)),
        (!figures.is_empty()).then(|| table::figures(&figures)),
    ];
    Ok(tables.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// A service that takes connections and never answers.
fn silent_service() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
    let address = listener.local_addr()?;
    // The breaker keeps the connections few; they are held until the program ends.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    Ok(address)
}
