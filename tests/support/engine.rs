//! A redis-server of the test's own: on a free port of loopback, in a folder of its own, ended with
//! the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A fleet key.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A running engine.
pub(crate) struct Engine {
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

/// Ports below those that Linux gives to whoever asks for any: a connection takes one of these by
/// name alone.
const PORTS: std::ops::Range<u32> = 20_000..32_768;

/// How often an engine is started, each time on another port.
const STARTS: usize = 5;

/// A port of loopback that nobody has, and that nobody is given who asks for any.
#[track_caller]
pub(crate) fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let any = || {
        let drawn = getrandom::u32().expect("a number") % (PORTS.end - PORTS.start);
        u16::try_from(PORTS.start + drawn).expect("a port")
    };
    let mut drawn = std::iter::repeat_with(any).take(1000);
    drawn.find(is_free).expect("a free port")
}

impl Engine {
    /// One that runs; where another program was quicker to take its port, on another one.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let started = (0..STARTS).find_map(|_| {
            let mut engine = Self::away();
            engine.begins().then_some(engine)
        });
        started.expect("redis-server takes connections")
    }

    /// One that does not run yet.
    #[track_caller]
    pub(crate) fn away() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Self {
            dir,
            port: free_port(),
            process: None,
        };
        engine.write_key("key", KEY);
        engine
    }

    /// Starts it, empty, and reads its log until it takes connections.
    #[track_caller]
    pub(crate) fn begin(&mut self) {
        assert!(self.begins(), "redis-server does not take connections");
    }

    /// Whether it then takes connections.
    #[track_caller]
    fn begins(&mut self) -> bool {
        let port = self.port.to_string();
        self.begins_with(Command::new("redis-server").args(["--port", &port]))
    }

    /// The same over TLS alone, with this certificate. Who signs those of its clients may be named:
    /// then each must show one.
    #[track_caller]
    pub(crate) fn begin_with_tls(
        &mut self,
        certificate: &Path,
        key: &Path,
        clients: Option<&Path>,
    ) {
        let asks = if clients.is_some() { "yes" } else { "no" };
        let port = self.port.to_string();
        self.begin_with(
            Command::new("redis-server")
                .args(["--port", "0", "--tls-port", &port])
                .arg("--tls-cert-file")
                .arg(certificate)
                .arg("--tls-key-file")
                .arg(key)
                .arg("--tls-ca-cert-file")
                .arg(clients.unwrap_or(certificate))
                .args(["--tls-auth-clients", asks]),
        );
    }

    /// Starts it as a replica of another.
    #[track_caller]
    pub(crate) fn begin_as_replica(&mut self, of: &Self) {
        let (port, master) = (self.port.to_string(), of.port.to_string());
        self.begin_with(
            Command::new("redis-server")
                .args(["--port", &port, "--replicaof", "127.0.0.1", &master])
                .args(["--repl-diskless-sync-delay", "0"]),
        );
    }

    /// Starts a Sentinel that watches this engine alone, under this name, and needs no other
    /// Sentinel to put another in its place. It has found its replica by then.
    #[track_caller]
    pub(crate) fn begin_as_sentinel(&mut self, of: &Self, name: &str) {
        let config = self.dir.path().join("sentinel.conf");
        let (port, master) = (self.port, of.port);
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 3000\n"
        );
        std::fs::write(&config, lines).expect("writes");
        let mut command = Command::new("redis-server");
        let begins = self.begins_until("+slave slave", command.arg(config).arg("--sentinel"));
        assert!(begins, "the Sentinel finds no replica");
    }

    /// Starts it as a node of a cluster, which has no slot and knows no other node.
    #[track_caller]
    pub(crate) fn begin_as_node(&mut self) {
        let (port, bus) = (self.port.to_string(), free_port().to_string());
        self.begin_with(
            Command::new("redis-server")
                .args(["--port", &port, "--cluster-enabled", "yes"])
                .args(["--cluster-port", &bus, "--cluster-node-timeout", "2000"]),
        );
    }

    #[track_caller]
    fn begin_with(&mut self, command: &mut Command) {
        let begins = self.begins_with(command);
        assert!(begins, "redis-server does not take connections");
    }

    #[track_caller]
    fn begins_with(&mut self, command: &mut Command) -> bool {
        command
            .args(["--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"]);
        self.begins_until("Ready to accept connections", command)
    }

    /// Whether it has logged this before it ended.
    #[track_caller]
    fn begins_until(&mut self, says: &str, command: &mut Command) -> bool {
        let mut process = command
            .arg("--dir")
            .arg(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is installed");
        let log = BufReader::new(process.stdout.take().expect("its output"));
        let mut lines = log.lines().map_while(Result::ok);
        let begins = lines.any(|line| line.contains(says));
        self.process = Some(process);
        // What it logs from now on is read, so that it never waits.
        std::thread::spawn(move || lines.for_each(drop));
        begins
    }

    /// Ends it as a power cut would; it had written nothing.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// It neither answers nor ends.
    #[track_caller]
    pub(crate) fn hang(&self) {
        let process = self.process.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("a signal");
    }

    /// It answers again.
    #[track_caller]
    pub(crate) fn go_on(&self) {
        let process = self.process.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("a signal");
    }

    /// Whether a read of the log has found nothing, and whoever read asks no more.
    #[track_caller]
    pub(crate) fn has_a_reader_that_rests(&self) -> bool {
        let told = String::from_utf8(self.ask(&[b"CLIENT", b"LIST"])).expect("text");
        let rests = |line: &str| {
            let has = |word: &str| line.split(' ').any(|held| held == word);
            let idle = line.split(' ').find_map(|word| word.strip_prefix("idle="));
            let idle: u64 = idle.and_then(|idle| idle.parse().ok()).unwrap_or(0);
            has("cmd=xread") && !has("flags=b") && idle >= 2
        };
        told.lines().any(rests)
    }

    pub(crate) fn place(&self) -> String {
        format!("valkey://127.0.0.1:{}", self.port)
    }

    /// A key file.
    #[track_caller]
    pub(crate) fn write_key(&self, name: &str, key: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.dir.path().join(name);
        std::fs::write(&path, key).expect("writes");
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(&path, mode).expect("a mode");
        path
    }

    /// The key file of the fleet.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    /// Asks a command of words, and gives the answer as it came.
    #[track_caller]
    pub(crate) fn told(&self, command: &str) -> String {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        String::from_utf8(self.ask(&words)).expect("text")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Asks a command, and gives the answer as it came.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&[u8]]) -> Vec<u8> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        let mut question = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            question.extend(format!("${}\r\n", word.len()).as_bytes());
            question.extend(*word);
            question.extend(b"\r\n");
        }
        question.extend(b"*1\r\n$4\r\nQUIT\r\n");
        connection.write_all(&question).expect("it reads");
        let patience = Some(Duration::from_secs(10));
        connection.set_read_timeout(patience).expect("a time-out");
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}
