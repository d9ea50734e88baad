//! The service under test: started with its log counted line by line, asked for its metrics and
//! for what it holds of the system.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tempfile::TempDir;
use weir_benches::config::Settings;
use weir_benches::program::{Running, signal, wait_until};
use weir_benches::{ask, meter};

/// How long the service may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The service.
pub(crate) struct Service {
    running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) state: PathBuf,
    log: JoinHandle<u64>,
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
        let settings = Settings::default()
            .with("WAF_LISTEN", "127.0.0.1:0")
            .with("WAF_UPSTREAM", format!("http://{application}"))
            .with("WAF_STATE_DIR", state.display())
            .with("WAF_WORKERS", workers)
            .with("WAF_LOOKUP_SOURCE", "off")
            .with("WAF_TRUSTED_PROXIES", "127.0.0.1")
            .with("WAF_METRICS_TOKEN", ask::TOKEN)
            .with("WAF_ADMIN_TOKEN", ask::TOKEN)
            .with("WAF_RATE_LIMIT_PER_MINUTE", 1500)
            .with("WAF_RATE_LIMIT_PER_HOUR", "off")
            .with("WAF_RATE_LIMIT_PER_DAY", "off")
            .with("WAF_BAN_FIRST", "5s")
            .with("WAF_BAN_MAX", "20s")
            .with("WAF_STATE_WRITE_INTERVAL", "5s")
            // A line for each: they are counted.
            .with("WAF_LOG_REFUSED_RATE", "off");
        let mut command = Command::new(weir);
        command.env_clear().envs(settings.0).stdout(Stdio::piped());
        let mut running = Running::start(command, directory, None)?;
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
        self.running.id()
    }

    /// Processor time of a second, in milliseconds; of a few, the least.
    pub(crate) fn busy_ms(&self) -> Result<u64> {
        let used = || meter::cpu_seconds(self.process()).map(|both| both.iter().sum::<f64>());
        let of_second = |_| {
            let before = used()?;
            std::thread::sleep(Duration::from_secs(1));
            Ok(((used()? - before) * 1000.0) as u64)
        };
        let all = (0..3).map(of_second).collect::<Result<Vec<_>>>()?;
        all.into_iter().min().context("some seconds")
    }

    /// Ends it by SIGTERM: how many requests its log has.
    pub(crate) fn stop(mut self) -> Result<u64> {
        let process = &mut self.running.process.0;
        signal(process, Signal::TERM)?;
        wait_until("its end", PATIENCE, || Ok(process.try_wait()?.is_some()))?;
        let log = self.log.join();
        log.map_err(|_| anyhow::anyhow!("the reader of the log panicked"))
    }
}

/// Counts the lines of requests: those of an action.
fn count(lines: impl Read) -> u64 {
    let lines = BufReader::with_capacity(1 << 16, lines).lines();
    let requests = lines
        .map_while(Result::ok)
        .filter(|line| line.contains("\"action\":\""));
    requests.count() as u64
}
