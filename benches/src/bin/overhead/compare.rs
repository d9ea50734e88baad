//! Rounds without and with a feature.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use tempfile::TempDir;
use weir_benches::load::{Load, WARM_UP};
use weir_benches::program::{LOAD_CORE, Programs, Running};
use weir_benches::state::{self, FILES};
use weir_benches::{config, meter};

use crate::ask::{TOKEN, metric, metrics};
use crate::feature::{Feature, Places};
use crate::report::Figures;

/// The threads that requests are served on.
const WORKERS: &str = "weir-worker-";
/// What weir counts as lost where it would have to wait otherwise.
const LOSSES: [&str; 2] = [
    "waf_log_lines_dropped_total",
    "waf_events_dropped_total{kind=\"request\"}",
];

/// What every round needs.
pub(crate) struct Bench<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) load: Load<'a>,
    /// The application's.
    pub(crate) application: SocketAddr,
    pub(crate) places: Places,
    /// A state directory with four full files.
    pub(crate) full_state: PathBuf,
}

impl Bench<'_> {
    /// One round of a feature.
    pub(crate) fn round(&self, feature: &Feature, with: bool, time: Duration) -> Result<Figures> {
        let settings = feature.settings(with, &self.places);
        let memory = feature.in_memory.then(memory_directory);
        let files: &[&str] = if feature.full { &FILES } else { &[] };
        let weir = self.weir(settings, files, memory.as_deref())?;
        let process = weir.process.0.id();
        let script = feature.script();
        let run = |time| self.load.run(weir.address, "/", &script, false, time);
        run(WARM_UP)?;
        if feature.apart {
            set_apart(process);
        }
        let cpu = meter::cpu_seconds(process)?;
        let worker = meter::thread_nanoseconds(process, WORKERS)?;
        let counted = if feature.scrape && with {
            beside(|| metrics(weir.address).map(drop), || run(time))?
        } else {
            run(time)?
        };
        let worker = meter::thread_nanoseconds(process, WORKERS)? - worker;
        let cpu = (meter::cpu_seconds(process)? - cpu).total();

        let page = metrics(weir.address)?;
        if let Some(series) = feature.proof
            && (metric(&page, series)? > 0.0) != with
        {
            bail!("{series} tells that the feature ran without being asked for, or did not run");
        }
        let mut lost = 0.0;
        for series in LOSSES {
            lost += metric(&page, series)?;
        }
        let requests = counted.requests as f64;
        Ok(Figures {
            cpu_microseconds: cpu * 1e6 / requests,
            worker_microseconds: worker as f64 / 1e3 / requests,
            requests_per_second: requests * 1e6 / counted.microseconds as f64,
            p50_milliseconds: counted.p50_microseconds / 1e3,
            p99_milliseconds: counted.p99_microseconds / 1e3,
            longest_milliseconds: counted.longest_microseconds / 1e3,
            lost,
        })
    }

    /// Starts weir with these settings on top of those of every run, and these files of the full
    /// state.
    pub(crate) fn weir(
        &self,
        settings: Vec<(&'static str, String)>,
        files: &[&str],
        directory: Option<&Path>,
    ) -> Result<Running> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("weir-overhead-");
        let directory: TempDir = match directory {
            Some(directory) => builder.tempdir_in(directory),
            None => builder.tempdir(),
        }
        .context("no temporary directory can be made")?;
        let state = directory.path().join("state");
        state::copy(&self.full_state, &state, files)?;
        let mut all = config::weir(directory.path(), self.application);
        all.push(("WAF_TRUSTED_PROXIES", "127.0.0.0/8".to_owned()));
        all.push(("WAF_METRICS_TOKEN", TOKEN.to_owned()));
        all.extend(settings);
        Running::weir(self.programs, all, directory)
    }
}

/// Where files lie in memory on Linux, or else where all temporary ones are.
fn memory_directory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    }
}

/// Does something once a second, first after half a second, on a thread of its own while `work`
/// lasts.
fn beside<T>(often: impl Fn() -> Result<()> + Send, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::thread::scope(|scope| {
        let (done, waits) = mpsc::channel::<()>();
        let beside = scope.spawn(move || {
            let mut pause = Duration::from_millis(500);
            while let Err(mpsc::RecvTimeoutError::Timeout) = waits.recv_timeout(pause) {
                often()?;
                pause = Duration::from_secs(1);
            }
            Ok(())
        });
        let result = work();
        drop(done);
        match beside.join() {
            Ok(outcome) => outcome.and(result),
            Err(_) => bail!("what was to be done beside the load ended in a panic"),
        }
    })
}

/// Every thread but the worker's goes to the core of the load; those that they start later follow
/// them.
fn set_apart(process: u32) {
    for (thread, name) in meter::threads(process) {
        if !name.starts_with(WORKERS) {
            // One that has just ended needs no core.
            let _ = sched_setaffinity(Pid::from_raw(thread), &only(LOAD_CORE));
        }
    }
}

/// Keeps this program, with all that it does itself, on the core of the load.
pub(crate) fn keep_away() -> Result<()> {
    sched_setaffinity(None, &only(LOAD_CORE))
        .with_context(|| format!("the program cannot be kept on core {LOAD_CORE}"))
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_failure_beside_the_load_is_told() {
        let asked = AtomicUsize::new(0);
        let failing = || {
            asked.fetch_add(1, Ordering::Relaxed);
            bail!("no answer")
        };
        let wait = || {
            while asked.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            Ok(())
        };
        assert_eq!(beside(failing, wait).unwrap_err().to_string(), "no answer");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(beside(|| Ok(()), || Ok(7)).unwrap(), 7);
    }
}
