//! The programs: where they are, how they are started, and that they are ended again.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;
use serde_json::Value;
use tempfile::TempDir;

use crate::config::{self, Settings};

/// How long a program may take until it listens.
const START: Duration = Duration::from_secs(60);

/// How long a program may take to end before it is killed.
const END: Duration = Duration::from_secs(5);

/// What a server says on standard error, among its files.
const SAID: &str = "said.log";

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
pub const PROGRAMS: [(&str, &str, &str); 6] = [
    ("wrk", "wrk", "the load generator"),
    ("h2load", "nghttp2-client", "the load generator of HTTP/2"),
    ("taskset", "util-linux", "which keeps proxy and load apart"),
    ("nginx", "nginx", "the application and a peer"),
    ("haproxy", "haproxy", "a peer"),
    ("strace", "strace", "which counts system calls"),
];

/// Where the programs are.
#[derive(Args, Debug)]
pub struct Programs {
    /// The binary of weir
    #[arg(long, global = true, default_value = "target/release/weir")]
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
        let known = PROGRAMS.iter().find(|(known, ..)| *known == name);
        let (_, package, what) = known.with_context(|| format!("{name} is not known"))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
        let mut files = directories.map(|directory| directory.join(name));
        files.find(|file| file.is_file()).with_context(|| {
            format!("{name}, {what}, is missing; on Debian `apt-get install {package}` installs it")
        })
    }

    /// What a proxy says of its version.
    pub fn version(&self, kind: Kind) -> Result<String> {
        let argument = match kind {
            Kind::Weir => "--version",
            Kind::Nginx | Kind::Haproxy => "-v",
        };
        let program = self.path(kind.name())?;
        let output = Command::new(program).arg(argument).output()?;
        // nginx says it on standard error.
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().next().unwrap_or_default();
        let number = line.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        Ok(format!("{} {number}", kind.name()))
    }

    /// A command that runs a program on these cores alone. taskset becomes the program, so the
    /// process is the program's.
    pub fn pinned(&self, cores: &[usize], program: &str) -> Result<Command> {
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        let mut command = Command::new(self.path("taskset")?);
        command.args(["-c", &cores.join(",")]);
        command.arg(self.path(program)?).stdin(Stdio::null());
        Ok(command)
    }
}

/// A directory that goes with whoever has it.
pub fn directory() -> Result<TempDir> {
    TempDir::with_prefix("weir-bench-").context("no temporary directory can be made")
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
pub struct Owned(pub Child);

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
    /// Its files, removed after it: among them what it says on standard error.
    pub files: TempDir,
}

impl Running {
    /// The application: nginx on the core of the load.
    pub fn application(programs: &Programs) -> Result<Self> {
        let (files, port) = (directory()?, free_port()?);
        let file = |name| files.path().join(name);
        std::fs::write(file("1m"), vec![b'x'; 1 << 20])?;
        std::fs::write(file("upload"), "ok\n")?;
        std::fs::write(file("nginx.conf"), config::application(files.path(), port))?;
        let mut command = programs.pinned(&[LOAD_CORE], "nginx")?;
        command.arg("-c").arg(file("nginx.conf"));
        command.arg("-p").arg(files.path()).stdout(Stdio::null());
        Self::start(command, files, Some(port)).context("the application")
    }

    /// weir on the core of proxies, or on so many, with these settings.
    pub fn weir(
        cores: usize,
        programs: &Programs,
        settings: Settings,
        files: TempDir,
    ) -> Result<Self> {
        let both = [PROXY_CORE, LOAD_CORE];
        let cores = both.get(..cores).unwrap_or(&both);
        let mut command = programs.pinned(cores, "weir")?;
        command.env_clear().envs(settings.0).stdout(Stdio::null());
        Self::start(command, files, None)
    }

    /// Starts a server and waits until its port answers; weir chooses its port, and announces it.
    pub fn start(mut command: Command, files: TempDir, port: Option<u16>) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stderr(File::create(files.path().join(SAID))?);
        let mut server = Self {
            began: Instant::now(),
            process: Owned(command.spawn().context("it cannot be started")?),
            address: SocketAddr::from(([127, 0, 0, 1], port.unwrap_or(0))),
            files,
        };
        wait_until("its address", START, || {
            if let Some(status) = server.process.0.try_wait()? {
                let said = server.all_said();
                bail!("it ended with {status} before it listened: {}", said.trim());
            }
            if port.is_some() {
                return Ok(TcpStream::connect(server.address).is_ok());
            }
            let announced = server.said("listening").first().and_then(announced_address);
            server.address = announced.unwrap_or(server.address);
            Ok(announced.is_some())
        })?;
        Ok(server)
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Its request log, if it writes one.
    pub fn log(&self) -> PathBuf {
        self.files.path().join("access.log")
    }

    fn all_said(&self) -> String {
        std::fs::read_to_string(self.files.path().join(SAID)).unwrap_or_default()
    }

    /// What weir, and who took over from it, has said with this message.
    pub fn said(&self, message: &str) -> Vec<Value> {
        let said = self.all_said();
        let lines = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines
            .filter(|line: &Value| line.get("message").is_some_and(|it| it == message))
            .collect()
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
