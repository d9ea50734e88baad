//! The service under test: started with its log counted line by line, asked for its metrics and
//! for what it holds of the system.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tempfile::TempDir;
use weir_benches::program::{Running, signal};
use weir_benches::{ask, meter};

use crate::message::{ADMIN_TOKEN, METRICS_TOKEN};

/// How long the service may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The service.
pub(crate) struct Service {
    running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) state: PathBuf,
    log: JoinHandle<u64>,
}

/// What a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Resident memory.
    pub(crate) kib: u64,
    /// What of it is the program's own: not pages of its file, which come in as they are used.
    pub(crate) own_kib: u64,
    /// Open files.
    pub(crate) files: usize,
    /// Threads.
    pub(crate) threads: usize,
}

/// What a process holds now.
pub(crate) fn held(process: u32) -> Result<Held> {
    let place = PathBuf::from(format!("/proc/{process}"));
    let status = std::fs::read_to_string(place.join("status"))?;
    let kib = |name| meter::status_member(&status, name).with_context(|| format!("no {name}"));
    Ok(Held {
        kib: kib("VmRSS:")?,
        own_kib: kib("RssAnon:")?,
        files: std::fs::read_dir(place.join("fd"))?.count(),
        threads: std::fs::read_dir(place.join("task"))?.count(),
    })
}

impl Service {
    pub(crate) fn start(
        weir: &Path,
        application: SocketAddr,
        directory: TempDir,
        workers: usize,
    ) -> Result<Self> {
        let state = directory.path().join("state");
        std::fs::create_dir(&state)?;
        let banned = serde_json::json!({"version": 1, "bans": [{"netblock": "203.0.113.0/24", "ban_expires": "permanent"}]});
        std::fs::write(state.join("bans.json"), banned.to_string())?;
        let mut command = Command::new(weir);
        command
            .env_clear()
            .envs([
                ("WAF_LISTEN", "127.0.0.1:0"),
                ("WAF_UPSTREAM", &format!("http://{application}")),
                ("WAF_STATE_DIR", &state.display().to_string()),
                ("WAF_WORKERS", &workers.to_string()),
                ("WAF_LOOKUP_SOURCE", "off"),
                ("WAF_TRUSTED_PROXIES", "127.0.0.1"),
                ("WAF_METRICS_TOKEN", METRICS_TOKEN),
                ("WAF_ADMIN_TOKEN", ADMIN_TOKEN),
                ("WAF_RATE_LIMIT_PER_MINUTE", "1500"),
                ("WAF_RATE_LIMIT_PER_HOUR", "off"),
                ("WAF_RATE_LIMIT_PER_DAY", "off"),
                ("WAF_BAN_FIRST", "5s"),
                ("WAF_BAN_MAX", "20s"),
                ("WAF_STATE_WRITE_INTERVAL", "5s"),
                // A line for each: they are counted.
                ("WAF_LOG_REFUSED_RATE", "off"),
            ])
            .stdout(Stdio::piped());
        let mut running = Running::start_weir(command, directory)?;
        let lines = running.process.0.stdout.take();
        let lines = lines.context("no standard output")?;
        Ok(Self {
            address: running.address,
            running,
            state,
            log: std::thread::spawn(move || count(lines)),
        })
    }

    /// The id of its process.
    pub(crate) fn process(&self) -> u32 {
        self.running.process.0.id()
    }

    /// Processor time of a second, in milliseconds; of a few, the least.
    pub(crate) fn busy_ms(&self) -> Result<u64> {
        let used = || meter::cpu_seconds(self.process()).map(meter::CpuSeconds::total);
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            let before = used()?;
            std::thread::sleep(Duration::from_secs(1));
            least = least.min(used()? - before);
        }
        Ok((least * 1000.0) as u64)
    }

    /// The page of the metrics.
    pub(crate) fn metrics(&self) -> Result<String> {
        ask::metrics(self.address, METRICS_TOKEN)
    }

    /// Ends it by SIGTERM: how many requests its log has.
    pub(crate) fn stop(mut self) -> Result<u64> {
        let process = &mut self.running.process.0;
        signal(process, Signal::TERM)?;
        let began = Instant::now();
        while process.try_wait()?.is_none() {
            if began.elapsed() > PATIENCE {
                bail!("it did not end within {PATIENCE:?} of SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = self.log.join();
        log.map_err(|_| anyhow::anyhow!("the reader of the log panicked"))
    }
}

/// One request of the operator.
pub(crate) fn operator(address: SocketAddr, line: &str, body: &str) -> Result<ask::Answer> {
    ask::operator(address, ADMIN_TOKEN, line, body)
}

/// Counts the lines of requests: those of an action.
fn count(lines: impl Read) -> u64 {
    let lines = BufReader::with_capacity(1 << 16, lines).lines();
    let requests = lines
        .map_while(Result::ok)
        .filter(|line| line.contains("\"action\":\""));
    requests.count() as u64
}
