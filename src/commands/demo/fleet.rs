//! `weir demo --fleet`: a second instance, and an engine between both, which end with the demo.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The engines, in the order in which they are tried.
const ENGINES: [&str; 2] = ["valkey-server", "redis-server"];
/// Runs a program until standard input ends: the demo holds the other end, so the program ends
/// however the demo does.
const GUARDED: &str = r#""$@" & read -r _; kill -KILL $!; wait"#;

/// The second instance and the engine.
pub struct Second {
    address: SocketAddr,
    /// The shells that run the two programs; closing its standard input ends a shell.
    guards: Vec<(Child, Option<ChildStdin>)>,
}

impl Second {
    /// Starts both, and adds the fleet settings of the first instance to `variables`. Waits for
    /// neither: an instance serves without the engine (FLEET-3).
    pub fn start(state: &Path, variables: &mut BTreeMap<String, String>) -> Result<Self, String> {
        let engine = start_engine(state)?;
        let mut second = Self {
            address: free_address().map_err(|error| format!("no port for the fleet: {error}"))?,
            guards: vec![engine],
        };
        let key = state.join("fleet.key");
        write_key(&key).map_err(|error| format!("the key of the fleet: {error}"))?;
        let socket = state.join("engine.sock");
        for (name, value) in [
            ("WAF_FLEET", format!("unix:{}", socket.display())),
            ("WAF_FLEET_KEY_FILE", key.display().to_string()),
            ("WAF_FLEET_INSTANCE", "demo-1".to_owned()),
        ] {
            variables.insert(name.to_owned(), value);
        }
        let started = std::env::current_exe().and_then(|weir| {
            let mut command = guarded(&weir);
            command
                .envs(&*variables)
                .env("WAF_LISTEN", second.address.to_string())
                .env("WAF_FLEET_INSTANCE", "demo-2")
                .env("WAF_STATE_DIR", state.join("second"))
                // Clears the settings of the first instance: an empty value is an unset one
                // (SETTING-1).
                .env("WAF_CONTROL_SOCKET", "")
                .env("WAF_ADMIN_LISTEN", "")
                .env("WAF_LOG_FILE", state.join("second.log"))
                .env("WAF_LOG_LEVEL", "warn");
            spawn(command)
        });
        let weir = started.map_err(|error| format!("the second instance: {error}"))?;
        second.guards.push(weir);
        Ok(second)
    }

    /// Where the second instance serves.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        for (shell, input) in self.guards.iter_mut().rev() {
            drop(input.take());
            let _ = shell.wait();
        }
    }
}

/// Starts an engine that listens on a socket in this directory only, and writes nothing to disk.
fn start_engine(state: &Path) -> Result<(Child, Option<ChildStdin>), String> {
    for program in ENGINES {
        match Command::new(program).arg("--version").output() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{program} cannot be started: {error}")),
        }
        let mut command = guarded(Path::new(program));
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(state.join("engine.sock"))
            .args(["--unixsocketperm", "700", "--dir"])
            .arg(state);
        let started = spawn(command);
        return started.map_err(|error| format!("{program} cannot be started: {error}"));
    }
    Err(format!(
        "--fleet needs {} in PATH, and neither is there",
        ENGINES.join(" or ")
    ))
}

/// A command that ends with the demo. It runs in a process group of its own: Ctrl-C reaches the
/// demo alone, which then ends it.
fn guarded(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", GUARDED, "sh"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0);
    command
}

fn spawn(mut command: Command) -> io::Result<(Child, Option<ChildStdin>)> {
    let mut shell = command.spawn()?;
    let input = shell.stdin.take();
    Ok((shell, input))
}

/// A loopback address with a free port.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn write_key(path: &Path) -> io::Result<()> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let key: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(key.as_bytes())
}

/// What to try at the second instance.
pub fn lines(address: SocketAddr) -> String {
    format!("\nThe same ban, at the second instance of the fleet:\n  curl -i http://{address}/\n")
}
