//! What weir's own features cost: weir without each of them and with it, measured in one run:
//! `cargo run --release -p weir-benches --bin overhead`.
//!
//! Each round starts weir anew, without and with the feature in turn, the order changing from round
//! to round, so that what drifts on the machine falls on both. As in `peers`, core 0 belongs to
//! weir, the whole process; core 1 to the load generator (wrk), the application (nginx) and this
//! program. The load saturates weir: on one core, CPU time a request is what bounds the throughput.
//!
//! It installs nothing, listens on loopback only, keeps its files in temporary directories, and
//! ends only processes that it started.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use weir_benches::load::Load;
use weir_benches::program::{Programs, Running};
use weir_benches::state;

mod ask;
mod compare;
mod database;
mod feature;
mod figures;
mod ledger;
mod report;

use compare::Bench;
use feature::{FEATURES, Feature, Places};
use report::{Figure, Row};

/// Measures weir without and with each of its features and prints Markdown tables.
#[derive(Parser)]
#[command(name = "overhead")]
struct Arguments {
    /// What to measure, separated by commas: scrape, state-writes, file-lookups, silent-lookups,
    /// anomalies, log, start, memory, bans, edits; all of it if not given
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds a measurement lasts; a state write once a minute takes 60 whatever is said here
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Rounds of which the median is taken; of a state write once a minute at most 2
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Connections that wrk holds
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// The binary of weir
    #[arg(default_value = "target/release/weir")]
    weir: PathBuf,
}

/// Measures figures that stand for themselves.
type Measure = fn(&Bench) -> Result<Vec<Figure>>;

/// Those, as `--only` names them.
const FIGURES: [(&str, Measure); 4] = [
    ("start", figures::start),
    ("memory", figures::memory),
    ("bans", ledger::new_bans),
    ("edits", ledger::edits),
];

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(tables) => {
            println!("{tables}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("overhead: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<String> {
    if arguments.rounds == 0 || arguments.seconds == 0 || arguments.connections == 0 {
        bail!("--rounds, --seconds and --connections are at least 1");
    }
    check_names(&arguments.only)?;
    let programs = Programs::find(&arguments.weir);
    let missing = programs.missing(&["wrk", "taskset", "nginx"]);
    if !missing.is_empty() {
        bail!("{}", missing.join("\noverhead: "));
    }
    compare::keep_away()?;
    let directory = tempfile::Builder::new()
        .prefix("weir-overhead-")
        .tempdir()
        .context("no temporary directory can be made")?;
    database::write(directory.path())?;
    let full_state = directory.path().join("full");
    state::write(&full_state, state::BANS)?;
    let application = Running::application(&programs, directory.path())?;
    let bench = Bench {
        programs: &programs,
        load: Load {
            programs: &programs,
            connections: arguments.connections,
            directory: directory.path(),
        },
        application: application.address,
        places: Places {
            databases: directory.path().display().to_string(),
            service: silent_service()?.to_string(),
        },
        full_state,
    };

    let chosen =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let mut rows = Vec::new();
    for feature in FEATURES.iter().filter(|feature| chosen(feature.name)) {
        let row = rounds(&bench, feature, arguments);
        rows.push(row.with_context(|| feature.title)?);
    }
    let mut figures = Vec::new();
    for (name, measure) in FIGURES.iter().filter(|(name, _)| chosen(name)) {
        eprintln!("overhead: {name}");
        figures.extend(measure(&bench).with_context(|| *name)?);
    }
    let tables = [
        (!rows.is_empty()).then(|| report::features(&rows)),
        (!figures.is_empty()).then(|| report::figures(&figures)),
    ];
    Ok(tables.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// All rounds of a feature, without and with it in turn.
fn rounds(bench: &Bench, feature: &Feature, arguments: &Arguments) -> Result<Row> {
    let (seconds, most) = feature.long.unwrap_or((arguments.seconds, usize::MAX));
    let count = arguments.rounds.min(most);
    let mut row = Row {
        title: feature.title,
        without: Vec::new(),
        with: Vec::new(),
    };
    for round in 1..=count {
        for with in [round % 2 == 0, round % 2 == 1] {
            let how = if with { "with" } else { "without" };
            eprintln!(
                "overhead: {}, {how}, round {round} of {count}",
                feature.title
            );
            let figures = bench
                .round(feature, with, Duration::from_secs(seconds))
                .with_context(|| how)?;
            if with {
                &mut row.with
            } else {
                &mut row.without
            }
            .push(figures);
        }
    }
    Ok(row)
}

fn check_names(names: &[String]) -> Result<()> {
    let mut known: Vec<&str> = FEATURES.iter().map(|feature| feature.name).collect();
    known.extend(FIGURES.map(|(name, _)| name));
    known.dedup();
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => bail!("{name:?} cannot be measured: {} can", known.join(", ")),
        None => Ok(()),
    }
}

/// A service that takes connections and never answers.
fn silent_service() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
    let address = listener.local_addr()?;
    // The breaker keeps the connections few; they are held until the program ends.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_and_the_message_name_what_can_be_measured() {
        let message = check_names(&["speed".to_owned()]).unwrap_err().to_string();
        assert_eq!(
            message,
            "\"speed\" cannot be measured: scrape, state-writes, file-lookups, silent-lookups, anomalies, log, start, memory, bans, edits can"
        );
        let help = <Arguments as clap::CommandFactory>::command()
            .render_help()
            .to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let names = message.split(": ").nth(1).unwrap().trim_end_matches(" can");
        assert!(help.contains(names), "{help}");
        assert!(check_names(&["log".to_owned(), "memory".to_owned()]).is_ok());
    }

    #[test]
    fn the_silent_service_takes_connections_and_says_nothing() {
        use std::io::Read;
        let mut stream = std::net::TcpStream::connect(silent_service().unwrap()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
}
