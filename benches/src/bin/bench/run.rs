//! What the parts of the program have in common: how long and how often, open files.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
