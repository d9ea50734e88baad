//! The programs: where they are, how they are started, and that they are ended again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;
use serde_json::Value;
use tempfile::TempDir;

use crate::config::{self, Settings};

/// How long a program may take until it listens.
const START: Duration = Duration::from_secs(60);

/// How long a program may take to end before it is killed.
const END: Duration = Duration::from_secs(5);

/// The core of the proxy under test, and that of everything else.
pub const PROXY_CORE: usize = 0;
/// See [`PROXY_CORE`].
pub const LOAD_CORE: usize = 1;

/// Which proxy is measured: the one at hand and its peers, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Kind {
    Weir,
    Nginx,
    Haproxy,
}

impl Kind {
    /// As it is written on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }
}

/// A program that is started, and what is said where it is missing: its name, the package of Debian
/// that it is in, and what it is for.
const PROGRAMS: [(&str, &str, &str); 6] = [
    ("wrk", "wrk", "the load generator"),
    ("h2load", "nghttp2-client", "the load generator of HTTP/2"),
    ("taskset", "util-linux", "which keeps proxy and load apart"),
    ("nginx", "nginx", "the application and a peer"),
    ("haproxy", "haproxy", "a peer"),
    ("strace", "strace", "which counts system calls"),
];

/// Where the programs are.
#[derive(Debug)]
pub struct Programs {
    /// The binary that is measured.
    pub weir: PathBuf,
}

impl Programs {
    /// Where a program is: on `PATH`, or where Debian keeps servers, which is not on everybody's.
    /// Of one that is missing it is said what it is for, and how to get it.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        if name == "weir" {
            let weir = Some(self.weir.clone()).filter(|file| file.is_file());
            return weir.context("weir is missing; `cargo build --release` builds it");
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
        let mut files = directories.map(|directory| directory.join(name));
        let found = files.find(|file| file.is_file());
        found.with_context(
            || match PROGRAMS.iter().find(|(known, ..)| *known == name) {
                Some((_, package, what)) => format!(
                    "{name}, {what}, is missing; on Debian `apt-get install {package}` installs it"
                ),
                None => format!("{name} is missing"),
            },
        )
    }

    /// What a proxy says of its version.
    pub fn version(&self, kind: Kind) -> Result<String> {
        let argument = match kind {
            Kind::Weir => "--version",
            Kind::Nginx | Kind::Haproxy => "-v",
        };
        let output = Command::new(self.path(kind.name())?)
            .arg(argument)
            .output()?;
        // nginx says it on standard error.
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().next().unwrap_or_default();
        let number = line.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        Ok(format!("{} {number}", kind.name()))
    }

    /// A command that runs `program` on these cores alone. taskset becomes the program, so the
    /// process is the program's.
    pub fn pinned(&self, cores: &[usize], program: &Path) -> Result<Command> {
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        let mut command = Command::new(self.path("taskset")?);
        command.args(["-c", &cores.join(",")]).arg(program);
        command.stdin(Stdio::null());
        Ok(command)
    }
}

/// A directory that goes with whoever has it.
pub fn directory() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("weir-bench-")
        .tempdir()
        .context("no temporary directory can be made")
}

/// The core of the load, for a thread that is to be on it.
pub fn load_core() -> CpuSet {
    let mut set = CpuSet::new();
    set.set(LOAD_CORE);
    set
}

/// A process of ours. When it goes out of scope it is asked to end, so that it can write what it
/// has to write, and then made to.
#[derive(Debug)]
pub struct Owned(
    /// The process.
    pub Child,
);

impl Drop for Owned {
    fn drop(&mut self) {
        // Failure means that it ended by itself.
        let _ = signal(&self.0, Signal::TERM);
        let _ = wait_until("its end", END, || Ok(self.0.try_wait()?.is_some()));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for `what`, and looks every few milliseconds.
pub fn wait_until(
    what: &str,
    longest: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > longest {
            bail!("{what} is waited for longer than {longest:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Sends a signal to a process of ours.
pub fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process id")?;
    Ok(kill_process(pid, signal)?)
}

/// A server that listens.
#[derive(Debug)]
pub struct Running {
    /// Its process.
    pub process: Owned,
    /// When it was started.
    pub began: Instant,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its request log, if it writes one.
    pub log: PathBuf,
    /// Its files, removed after it.
    files: Option<TempDir>,
    /// The lines of its standard error, of weir.
    said: Arc<Mutex<Vec<String>>>,
}

impl Running {
    /// The application: nginx on the core of the load.
    pub fn application(programs: &Programs, directory: &Path) -> Result<Self> {
        let directory = directory.join("application");
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("1m"), vec![b'x'; 1 << 20])?;
        std::fs::write(directory.join("upload"), "ok\n")?;
        let port = free_port()?;
        let file = directory.join("nginx.conf");
        std::fs::write(&file, config::application(&directory, port))?;
        let mut command = programs.pinned(&[LOAD_CORE], &programs.path("nginx")?)?;
        command.arg("-c").arg(&file).arg("-p").arg(&directory);
        Self::start(command, port, &directory, None).context("the application")
    }

    /// weir on the core of proxies, or on so many, with these settings, its files in `directory`.
    pub fn weir(
        cores: usize,
        programs: &Programs,
        settings: Settings,
        directory: TempDir,
    ) -> Result<Self> {
        let both = [PROXY_CORE, LOAD_CORE];
        let cores = both.get(..cores).unwrap_or(&both);
        let mut command = programs.pinned(cores, &programs.path("weir")?)?;
        command.env_clear().envs(settings.0).stdout(Stdio::null());
        Self::start_weir(command, directory)
    }

    /// Where its files are, if they are removed after it.
    pub fn directory(&self) -> Option<&Path> {
        self.files.as_ref().map(TempDir::path)
    }

    /// Starts a peer and waits until its port answers.
    pub fn start(
        mut command: Command,
        port: u16,
        files: &Path,
        directory: Option<TempDir>,
    ) -> Result<Self> {
        let said = files.join("said.log");
        command
            .stdout(File::create(files.join("access.out"))?)
            .stderr(File::create(&said)?);
        let began = Instant::now();
        let mut process = Owned(command.spawn().context("it cannot be started")?);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        wait_until("its port", START, || {
            if let Some(status) = process.0.try_wait()? {
                let said = std::fs::read_to_string(&said).unwrap_or_default();
                bail!("it ended with {status} before it listened: {}", said.trim());
            }
            Ok(TcpStream::connect(address).is_ok())
        })?;
        let logs = [files.join("access.log"), files.join("access.out")];
        Ok(Self {
            process,
            began,
            address,
            log: logs
                .into_iter()
                .find(|file| file.exists())
                .unwrap_or_default(),
            files: directory,
            said: Arc::default(),
        })
    }

    /// Starts weir and waits until it announces its address on standard error.
    pub fn start_weir(mut command: Command, directory: TempDir) -> Result<Self> {
        let log = directory.path().join("access.log");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut process = Owned(command.spawn().context("it cannot be started")?);
        let stderr = process.0.stderr.take().context("no standard error")?;
        let said = Arc::<Mutex<Vec<String>>>::default();
        let gathered = Arc::clone(&said);
        // The thread reads on until weir ends, and those that take over: a full pipe would stop it.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Ok(mut gathered) = gathered.lock() {
                    gathered.push(line);
                }
            }
        });
        let mut weir = Self {
            process,
            began,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
            files: Some(directory),
            said,
        };
        wait_until("its address", START, || {
            if weir.process.0.try_wait()?.is_some() {
                let said = weir.said.lock().map(|said| said.join("\n"));
                bail!("it did not listen: {}", said.unwrap_or_default());
            }
            let announced = weir.said("listening").first().and_then(announced_address);
            weir.address = announced.unwrap_or(weir.address);
            Ok(announced.is_some())
        })?;
        Ok(weir)
    }

    /// What weir, and who took over from it, has said with this message.
    pub fn said(&self, message: &str) -> Vec<Value> {
        let said = self.said.lock().map(|said| said.clone());
        let lines = said.unwrap_or_default().into_iter();
        let lines = lines.filter_map(|line| serde_json::from_str(&line).ok());
        let named = |line: &Value| line.get("message").and_then(Value::as_str) == Some(message);
        lines.filter(named).collect()
    }
}

/// The address of the line that says listening; `https://` before it is left out.
fn announced_address(line: &Value) -> Option<SocketAddr> {
    let place = line.get("address")?.as_str()?;
    place.trim_start_matches("https://").parse().ok()
}

/// A port of loopback that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announcement_is_found() {
        for place in ["127.0.0.1:4711", "https://127.0.0.1:4711"] {
            let line = serde_json::json!({"message": "listening", "address": place});
            assert_eq!(announced_address(&line), "127.0.0.1:4711".parse().ok());
        }
        assert_eq!(announced_address(&serde_json::json!({})), None);
    }

    #[test]
    fn what_is_missing_is_said_with_the_way_to_get_it() {
        let weir = "/nowhere".into();
        let missing = Programs { weir }.path("weir").unwrap_err().to_string();
        assert!(missing.contains("is missing; `cargo"), "{missing}");
    }
}
