//! The service under test: started with its log counted line by line, asked for its metrics and
//! for what it holds of the system.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_benches::program::{Owned, free_port};

use crate::message::{ADMIN_TOKEN, METRICS_TOKEN};

/// How long the service may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The service.
pub(crate) struct Service {
    process: Owned,
    pub(crate) address: SocketAddr,
    pub(crate) state: PathBuf,
    log: JoinHandle<BTreeMap<String, u64>>,
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

/// The service's process under `/proc`.
pub(crate) struct Process(PathBuf);

impl Process {
    /// What it holds now.
    pub(crate) fn held(&self) -> Result<Held> {
        let status = std::fs::read_to_string(self.0.join("status"))?;
        let kib = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            Ok(kib.with_context(|| format!("no {name}"))?.parse()?)
        };
        Ok(Held {
            kib: kib("VmRSS:")?,
            own_kib: kib("RssAnon:")?,
            files: std::fs::read_dir(self.0.join("fd"))?.count(),
            threads: std::fs::read_dir(self.0.join("task"))?.count(),
        })
    }
}

impl Service {
    pub(crate) fn start(
        weir: &Path,
        application: SocketAddr,
        directory: &Path,
        workers: usize,
    ) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let state = directory.join("state");
        std::fs::create_dir(&state)?;
        let banned = serde_json::json!({"version": 1, "bans": [{"netblock": "203.0.113.0/24", "ban_expires": "permanent"}]});
        std::fs::write(state.join("bans.json"), banned.to_string())?;
        let said = directory.join("said.log");
        let mut child = Command::new(weir)
            .env_clear()
            .envs([
                ("WAF_LISTEN", address.to_string()),
                ("WAF_UPSTREAM", format!("http://{application}")),
                ("WAF_STATE_DIR", state.display().to_string()),
                ("WAF_WORKERS", workers.to_string()),
                ("WAF_LOOKUP_SOURCE", "off".to_owned()),
                ("WAF_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
                ("WAF_METRICS_TOKEN", METRICS_TOKEN.to_owned()),
                ("WAF_ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
                ("WAF_RATE_LIMIT_PER_MINUTE", "1500".to_owned()),
                ("WAF_RATE_LIMIT_PER_HOUR", "off".to_owned()),
                ("WAF_RATE_LIMIT_PER_DAY", "off".to_owned()),
                ("WAF_BAN_FIRST", "5s".to_owned()),
                ("WAF_BAN_MAX", "20s".to_owned()),
                ("WAF_STATE_WRITE_INTERVAL", "5s".to_owned()),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&said)?)
            .spawn()
            .context("the service cannot be started")?;
        let lines = child.stdout.take().context("no standard output")?;
        let log = std::thread::spawn(move || count(lines));
        let mut process = Owned(child);
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if process.0.try_wait()?.is_some() || began.elapsed() > PATIENCE {
                bail!("it did not start: {}", std::fs::read_to_string(&said)?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self {
            process,
            address,
            state,
            log,
        })
    }

    /// The process, to be looked at.
    pub(crate) fn process(&self) -> Process {
        Process(PathBuf::from(format!("/proc/{}", self.process.0.id())))
    }

    /// One request of the operator, on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        ask(self.address, method, path, body)
    }

    /// The series of the metrics, with their labels as they are written.
    pub(crate) fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let (status, text) = self.ask("GET", "/_waf/metrics", "")?;
        if status != 200 {
            bail!("the metrics answered {status}");
        }
        let series = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Ok(lines.filter_map(series).collect())
    }

    /// Ends it by SIGTERM; the lines of its log by action.
    pub(crate) fn stop(mut self) -> Result<BTreeMap<String, u64>> {
        let pid = i32::try_from(self.process.0.id())?;
        let pid = rustix::process::Pid::from_raw(pid).context("a process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let began = Instant::now();
        while self.process.0.try_wait()?.is_none() {
            if began.elapsed() > PATIENCE {
                bail!("it did not end within {PATIENCE:?} of SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.log
            .join()
            .map_err(|_| anyhow::anyhow!("the reader of the log panicked"))
    }
}

/// One request of the operator to this address.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<(u16, String)> {
    let token = if path.ends_with("/metrics") {
        METRICS_TOKEN
    } else {
        ADMIN_TOKEN
    };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 192.0.2.1\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no whole head")?;
    let status = head.split(' ').nth(1).context("no status")?;
    Ok((status.parse()?, body.to_owned()))
}

/// Counts the lines of requests by their action.
fn count(lines: impl Read) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut lines = BufReader::with_capacity(1 << 16, lines);
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|count| count > 0) {
        let action = line
            .split_once("\"action\":\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map_or("(no request)", |(action, _)| action);
        match counts.get_mut(action) {
            Some(count) => *count += 1,
            None => {
                counts.insert(action.to_owned(), 1);
            }
        }
        line.clear();
    }
    counts
}
