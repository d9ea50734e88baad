//! Rounds of weir without a feature and with it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::thread::{Pid, sched_setaffinity};
use tempfile::TempDir;
use weir_benches::ask::{TOKEN, metric, metrics};
use weir_benches::beside::each_second;
use weir_benches::config::{self, Settings};
use weir_benches::load::WARM_UP;
use weir_benches::meter;
use weir_benches::program::{Running, directory, load_core};
use weir_benches::state::{self, FILES};

use crate::cases::{Feature, Places};
use crate::measure::{Figures, WORKERS, around};
use crate::run::{Bench, without_and_with};
use crate::table::OfFeature;

/// What weir counts as lost where it would have to wait otherwise.
const LOSSES: [&str; 2] = [
    "waf_log_lines_dropped_total",
    "waf_events_dropped_total{kind=\"request\"}",
];

/// What every round needs.
pub(crate) struct Overhead<'a> {
    pub(crate) bench: Bench<'a>,
    pub(crate) places: Places,
    /// A state directory with four full files.
    pub(crate) full_state: PathBuf,
}

impl Overhead<'_> {
    /// All rounds of a feature.
    pub(crate) fn feature(&self, feature: &'static Feature) -> Result<OfFeature> {
        let (mut time, mut rounds) = (self.bench.time, self.bench.rounds);
        if let Some((seconds, most)) = feature.long {
            (time, rounds) = (Duration::from_secs(seconds), rounds.min(most));
        }
        let measure = |with| self.round(feature, with, time);
        let both = without_and_with(feature.title, rounds, measure)?;
        Ok(OfFeature { feature, both })
    }

    fn round(&self, feature: &Feature, with: bool, time: Duration) -> Result<Figures> {
        let settings = feature.settings(with, &self.places);
        let files: &[&str] = if feature.full { &FILES } else { &[] };
        let weir = self.weir(settings, files, feature.in_memory)?;
        let run = |time| self.bench.load.run(weir.address, feature.script, time);
        run(WARM_UP)?;
        if feature.apart {
            set_apart(weir.id())?;
        }
        let page = || metrics(weir.address);
        let (mut figures, _) = around(&weir, || match feature.scrape && with {
            true => each_second(|| page().map(drop), || run(time)),
            false => run(time),
        })?;
        let page = page()?;
        if let Some(series) = feature.proof
            && (metric(&page, series)? > 0.0) != with
        {
            bail!("{series} tells that the feature ran without being asked for, or did not run");
        }
        for series in LOSSES {
            figures.lost += metric(&page, series)?;
        }
        Ok(figures)
    }

    /// Starts weir with these settings on top of those of every run, and these files of the full
    /// state.
    pub(crate) fn weir(
        &self,
        settings: Settings,
        files: &[&str],
        in_memory: bool,
    ) -> Result<Running> {
        // In memory on Linux, or else where all temporary files are.
        let memory = Path::new("/dev/shm");
        let directory = match in_memory && memory.is_dir() {
            true => TempDir::with_prefix_in("weir-bench-", memory)?,
            false => directory()?,
        };
        state::copy(&self.full_state, &directory.path().join("state"), files)?;
        let mut all = config::weir(directory.path(), self.bench.application.address)
            .with("WAF_TRUSTED_PROXIES", "127.0.0.0/8")
            .with("WAF_METRICS_TOKEN", TOKEN);
        all.0.extend(settings.0);
        Running::weir(1, self.bench.programs, all, directory)
    }
}

/// Every thread but the worker's goes to the core of the load; those that they start later follow
/// them.
fn set_apart(process: u32) -> Result<()> {
    for (thread, name) in meter::threads(process)? {
        if !name.starts_with(WORKERS) {
            // One that has just ended needs no core.
            let _ = sched_setaffinity(Pid::from_raw(thread.tid), &load_core());
        }
    }
    Ok(())
}
