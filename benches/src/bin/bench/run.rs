//! What the parts of the program have in common: how long, how often and in which turns is
//! measured, and good traffic beside something else.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use weir_benches::load::{Load, Paced};
use weir_benches::program::{Programs, Running};
use weir_benches::statistics::{Delays, median};

/// How long, how often, and by how many connections.
#[derive(Args)]
pub(crate) struct Rounds {
    /// Seconds a measurement lasts
    #[arg(long, default_value_t = 3, value_parser = positive::<u64>())]
    pub(crate) seconds: u64,
    /// Rounds, of which medians are taken
    #[arg(long, default_value_t = 3, value_parser = positive::<usize>())]
    pub(crate) rounds: usize,
    /// Connections of the load
    #[arg(long, default_value_t = 64, value_parser = positive::<u32>())]
    pub(crate) connections: u32,
}

/// What comparisons need.
pub(crate) struct Bench<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) application: Running,
    pub(crate) load: Load<'a>,
    pub(crate) time: Duration,
    pub(crate) rounds: usize,
}

impl Rounds {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) fn bench<'a>(&self, programs: &'a Programs) -> Result<Bench<'a>> {
        let connections = self.connections;
        Ok(Bench {
            programs,
            application: Running::application(programs)?,
            load: Load {
                programs,
                connections,
            },
            time: self.time(),
            rounds: self.rounds,
        })
    }
}

/// Reads a number of at least 1.
pub(crate) fn positive<T: TryFrom<u64>>() -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(1..)
}

/// Measures each of `all` once a round, in an order that changes from round to round, so that what
/// drifts on the machine falls on all of them. `measure` is told the round, from 1 on.
pub(crate) fn take_turns<W: Copy, T>(
    what: &str,
    rounds: usize,
    all: &mut [(W, Vec<T>)],
    name: impl Fn(W) -> &'static str,
    mut measure: impl FnMut(W, usize) -> Result<T>,
) -> Result<()> {
    for round in 1..=rounds {
        let (last, first) = all.split_at_mut((round - 1) % all.len().max(1));
        for (who, measured) in first.iter_mut().chain(last) {
            let title = format!("{what}, {}, round {round} of {rounds}", name(*who));
            eprintln!("bench: {title}");
            measured.push(measure(*who, round).context(title)?);
        }
    }
    Ok(())
}

/// The same of something that is left out, and then there: the rounds without it, and with it.
pub(crate) fn without_and_with<T>(
    what: &str,
    rounds: usize,
    mut measure: impl FnMut(bool) -> Result<T>,
) -> Result<[Vec<T>; 2]> {
    let mut both = [false, true].map(|with| (with, Vec::new()));
    let name = |with| if with { "with" } else { "without" };
    take_turns(what, rounds, &mut both, name, |with, _| measure(with))?;
    Ok(both.map(|(_, measured)| measured))
}

/// Good traffic at a fixed rate, which is timed alone and beside something else in turns.
#[derive(Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("5")))]
#[command(mut_arg("seconds", |seconds| seconds.default_value("10")))]
#[command(mut_arg("connections", |connections| connections.default_value("32")))]
pub(crate) struct Good {
    /// Good requests a second
    #[arg(long, default_value_t = 4000, value_parser = positive::<u32>())]
    rate: u32,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

impl Good {
    pub(crate) fn load(&self) -> Paced {
        Paced {
            rate: f64::from(self.rate),
            connections: self.rounds.connections,
            time: self.rounds.time(),
        }
    }

    /// The table of both: this traffic alone, and beside `what`.
    pub(crate) fn table(&self, what: &str, both: &[Vec<Delays>; 2]) -> String {
        let mut text = format!(
            "{} requests a second on {} connections, medians of {} rounds of {} s\n{what}\n\
             ms           alone    beside   ratio\n",
            self.rate, self.rounds.connections, self.rounds.rounds, self.rounds.seconds
        );
        let mut row = |name: &str, of: fn(&Delays) -> f64| {
            let [alone, beside] = both.each_ref().map(|rounds| median(rounds.iter().map(of)));
            let ratio = beside / alone;
            let _ = writeln!(text, "{name:8} {alone:9.3} {beside:9.3} {ratio:7.2}");
        };
        row("p50", |delays| delays.p50);
        row("p99", |delays| delays.p99);
        row("p99.9", |delays| delays.p99_9);
        row("longest", |delays| delays.longest);
        text
    }
}
