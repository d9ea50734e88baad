//! What the parts of the program have in common: how long and how often, good traffic beside
//! something else, open files.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_benches::paced::Paced;
use weir_benches::statistics::{Delays, median};

/// How long, how often, and by how many connections.
#[derive(Args)]
pub(crate) struct Rounds {
    /// Seconds a measurement lasts
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds of which the median is taken
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections that wrk holds
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: usize,
}

impl Rounds {
    /// The time and the number of rounds.
    pub(crate) fn checked(&self) -> Result<(Duration, usize)> {
        if self.rounds == 0 || self.seconds == 0 || self.connections == 0 {
            bail!("--rounds, --seconds and --connections are at least 1");
        }
        Ok((Duration::from_secs(self.seconds), self.rounds))
    }
}

/// Good traffic at a fixed rate, which is timed alone and beside something else in turns.
#[derive(Args)]
pub(crate) struct Good {
    /// Good requests a second
    #[arg(long, default_value_t = 4000)]
    rate: u32,
    /// Connections of the good traffic
    #[arg(long, default_value_t = 32)]
    connections: u32,
    /// Seconds a measurement lasts
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Rounds of both
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
}

impl Good {
    pub(crate) fn checked(&self) -> Result<Paced> {
        if self.rounds == 0 || self.connections == 0 || self.rate == 0 {
            bail!("--rounds, --connections and --rate are at least 1");
        }
        Ok(Paced {
            rate: f64::from(self.rate),
            connections: self.connections,
            time: Duration::from_secs(self.seconds),
        })
    }

    /// The table of both: this traffic, beside `what`.
    pub(crate) fn table(&self, what: &str, alone: &[Delays], beside: &[Delays]) -> String {
        let mut text = format!(
            "{} requests a second on {} connections, medians of {} rounds of {} s\n{what}\n\
             ms           alone    beside   ratio\n",
            self.rate, self.connections, self.rounds, self.seconds
        );
        let mut row = |name: &str, of: fn(&Delays) -> f64| {
            let [alone, beside] =
                [alone, beside].map(|all| median(all.iter().map(of).collect()) / 1e3);
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

/// This program's, which weir inherits.
pub(crate) fn raise_file_limit(wanted: u64) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let current = Some(wanted);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).with_context(|| {
        format!("{wanted} open files are needed, and cannot be had: see `ulimit -Hn`")
    })
}
