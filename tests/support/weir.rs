//! Runs the real binary: its settings, its two logs, its state directory, its end.
//!
//! Clients are told apart by `X-Forwarded-For`, because the harness trusts loopback unless a test says otherwise. Admin
//! requests come from [`ADMIN`], which is on the allow list, so that watching a limit does not break one.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::application::Application;
use super::raw_client::{self, Response};
use super::wait_for;

pub(crate) const ADMIN_TOKEN: &str = "admin-token-3f9c";
pub(crate) const METRICS_TOKEN: &str = "metrics-token-77b1";
/// Where admin requests come from.
pub(crate) const ADMIN: &str = "192.0.2.200";

/// A running service.
pub(crate) struct Weir {
    child: Child,
    address: SocketAddr,
    output: Lines,
    log: Lines,
    state: StateDir,
    stopped: bool,
}

/// A start that was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// The state directory: the harness's own, or one that outlives a restart.
pub(crate) type StateDir = Arc<tempfile::TempDir>;

type Lines = Arc<Mutex<Vec<String>>>;

/// In memory where that can be had: an answer waits five seconds for the disk, and a disk that others keep busy can take
/// longer.
pub(crate) fn state_dir() -> StateDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    Arc::new(
        in_memory
            .or_else(|_| tempfile::tempdir())
            .expect("a directory"),
    )
}

/// On a disk: for what is large, or is about the disk.
pub(crate) fn state_dir_on_disk() -> StateDir {
    Arc::new(tempfile::tempdir().expect("a directory"))
}

impl Weir {
    /// Starts in front of `application` with the settings given on top of the harness's own.
    pub(crate) fn start(application: &Application, settings: &[(&str, &str)]) -> Self {
        Self::start_at(application.address(), &state_dir(), settings)
    }

    /// Starts on a state directory that holds this bans.json.
    pub(crate) fn start_with_bans(
        application: &Application,
        bans: &Value,
        settings: &[(&str, &str)],
    ) -> Self {
        let state = state_dir();
        write_bans(state.path(), bans);
        Self::start_at(application.address(), &state, settings)
    }

    pub(crate) fn start_at(
        upstream: SocketAddr,
        state: &StateDir,
        settings: &[(&str, &str)],
    ) -> Self {
        match Self::try_start(&[], upstream, state, settings) {
            Ok(weir) => weir,
            Err(refused) => panic!("the start was refused: {refused:?}"),
        }
    }

    /// Starts and expects the start to be refused.
    pub(crate) fn refuse(state: &StateDir, settings: &[(&str, &str)]) -> Refused {
        match Self::try_start(&[], ([127, 0, 0, 1], 9).into(), state, settings) {
            Ok(weir) => panic!("it started: {:?}", weir.process_log()),
            Err(refused) => refused,
        }
    }

    /// Runs a command with arguments until it listens or ends.
    pub(crate) fn try_start(
        arguments: &[&str],
        upstream: SocketAddr,
        state: &StateDir,
        settings: &[(&str, &str)],
    ) -> Result<Self, Refused> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("WAF_LISTEN", "127.0.0.1:0")
            .env("WAF_UPSTREAM", format!("http://{upstream}"))
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_TRUSTED_PROXIES", "127.0.0.0/8")
            .env("WAF_ALLOW_NETS", ADMIN)
            .env("WAF_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("WAF_METRICS_TOKEN", METRICS_TOKEN)
            // No test may ask a service on the net.
            .env("WAF_LOOKUP_SOURCE", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in settings {
            command.env(name, value);
        }
        let mut child = command.spawn().expect("the binary runs");
        let output = gather(child.stdout.take().expect("stdout"));
        let log = gather(child.stderr.take().expect("stderr"));
        let address = wait_for("the line that says listening", || {
            let listening = parsed(&log)
                .into_iter()
                .find(|line| line["message"] == "listening");
            if let Some(line) = listening {
                let address = line["address"].as_str().expect("the address");
                return Some(Ok(address.parse().expect("an address")));
            }
            child.try_wait().expect("its state").map(Err)
        });
        match address {
            Ok(address) => Ok(Self {
                child,
                address,
                output,
                log,
                state: Arc::clone(state),
                stopped: false,
            }),
            Err(status) => Err(Refused {
                code: status.code(),
                stderr: wait_for_end(&log),
            }),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A GET from a client, on a connection of its own.
    pub(crate) fn get(&self, target: &str, client: &str) -> Response {
        self.send(&raw_client::get(target, &[("X-Forwarded-For", client)]))
    }

    /// Raw bytes on a connection of their own, and the answer.
    pub(crate) fn send(&self, bytes: &[u8]) -> Response {
        raw_client::exchange(self.address, bytes)
    }

    /// An admin request with the token.
    pub(crate) fn admin(&self, method: &str, target: &str, body: Option<&str>) -> Response {
        let bearer = format!("Bearer {ADMIN_TOKEN}");
        self.send(&raw_client::request(
            method,
            target,
            &[("X-Forwarded-For", ADMIN), ("Authorization", &bearer)],
            body.map(str::as_bytes),
        ))
    }

    /// The bans as the admin endpoint gives them.
    pub(crate) fn bans(&self) -> Vec<Value> {
        let answer = self.admin("GET", "/_waf/bans", None);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["bans"].as_array().expect("a list").clone()
    }

    /// Bans through the admin endpoint.
    pub(crate) fn ban(&self, member: &str, whom: &str, duration: &str) -> Value {
        let body = serde_json::json!({member: whom, "duration": duration, "reason": "test"});
        let answer = self.admin("POST", "/_waf/bans", Some(&body.to_string()));
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    }

    /// The metrics page.
    pub(crate) fn metrics(&self) -> String {
        let bearer = format!("Bearer {METRICS_TOKEN}");
        let answer = self.send(&raw_client::get(
            "/_waf/metrics",
            &[("X-Forwarded-For", ADMIN), ("Authorization", &bearer)],
        ));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.text()
    }

    /// One sample, named as on the page: `waf_clients`, `waf_bans_total{cause="admin"}`.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        self.metrics().lines().find_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            (name == series).then(|| value.parse().expect("a number"))
        })
    }

    /// Request lines so far.
    pub(crate) fn request_log(&self) -> Vec<Value> {
        parsed(&self.output)
            .into_iter()
            .filter(|line| line["event"] == "request")
            .collect()
    }

    /// Every line of the log so far: requests, alerts, losses.
    pub(crate) fn log_lines(&self) -> Vec<Value> {
        parsed(&self.output)
    }

    /// Everything written to standard output, unparsed.
    pub(crate) fn raw_output(&self) -> Vec<String> {
        self.output.lock().expect("the lines").clone()
    }

    /// The process log so far.
    pub(crate) fn process_log(&self) -> Vec<Value> {
        parsed(&self.log)
    }

    /// The process log as text.
    pub(crate) fn process_log_text(&self) -> String {
        self.log.lock().expect("the lines").join("\n")
    }

    /// The one request line of a path.
    pub(crate) fn line_of(&self, path: &str) -> Value {
        self.lines_of(path, 1).remove(0)
    }

    /// The request lines of a path, once there are `count`.
    pub(crate) fn lines_of(&self, path: &str, count: usize) -> Vec<Value> {
        let mut found = wait_for(&format!("{count} log lines of {path}"), || {
            let lines: Vec<_> = self
                .request_log()
                .into_iter()
                .filter(|line| line["path"] == path)
                .collect();
            (lines.len() >= count).then_some(lines)
        });
        assert_eq!(found.len(), count, "{path}: {found:#?}");
        // Workers hand their lines over in batches of their own and read the clock a millisecond apart: neither arrival
        // nor time is an order, what was counted is.
        found.sort_by_key(|line| (line["counts"]["day"].as_u64(), ms(&line["time"])));
        found
    }

    /// Waits for a process log line whose text holds every fragment.
    pub(crate) fn wait_for_process_log(&self, fragments: &[&str]) -> Value {
        wait_for(&format!("{fragments:?} in the process log"), || {
            self.process_log().into_iter().find(|line| {
                let text = line.to_string();
                fragments.iter().all(|fragment| text.contains(fragment))
            })
        })
    }

    pub(crate) fn state_path(&self, file: &str) -> PathBuf {
        self.state.path().join(file)
    }

    /// A state file as it is on disk now; `None` if there is none. Panics on a file that is not whole (STATE-2).
    pub(crate) fn state_file(&self, file: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.state_path(file)).ok()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}: {text}")))
    }

    /// Waits until bans.json holds what is asked.
    pub(crate) fn wait_for_bans(&self, what: &str, holds: impl Fn(&[Value]) -> bool) -> Value {
        wait_for(&format!("bans.json: {what}"), || {
            let text = std::fs::read_to_string(self.state_path("bans.json")).ok()?;
            let file: Value = serde_json::from_str(&text).ok()?;
            holds(file["bans"].as_array()?).then_some(file)
        })
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success(), "kill -s {name}");
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = wait_for("the end of the process", || {
            child.try_wait().expect("its state")
        });
        self.stopped = true;
        status
    }

    /// SIGTERM, and the end in good order.
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert_eq!(
            (status.code(), status.signal()),
            (Some(0), None),
            "{}",
            self.process_log_text()
        );
    }

    /// Ends the process as a power cut would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stopped = true;
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if !self.stopped {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("process log:\n{}", self.process_log_text());
        }
    }
}

/// Writes a bans.json with these entries.
pub(crate) fn write_bans(directory: &Path, bans: &Value) {
    let file = serde_json::json!({"version": 1, "bans": bans});
    std::fs::write(directory.join("bans.json"), pretty(&file)).expect("writes bans.json");
}

pub(crate) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("JSON")
}

/// A moment relative to now, as state files write it.
pub(crate) fn from_now(seconds: i64) -> String {
    weir_shared::units::Time(
        u64::try_from(i64::try_from(now_ms()).expect("a time") + seconds * 1000).expect("a time"),
    )
    .to_string()
}

pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("a time")
}

/// A time as a state file or an answer writes it, in milliseconds since 1970.
pub(crate) fn ms(time: &Value) -> u64 {
    let text = time.as_str().unwrap_or_else(|| panic!("no time: {time}"));
    text.parse::<weir_shared::units::Time>()
        .expect("RFC 3339")
        .0
}

fn gather(stream: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let held = Arc::clone(&lines);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(count) if count > 0) {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            // Lossy: that lines are UTF-8 is LOG-2's own test.
            let text = String::from_utf8_lossy(&line).into_owned();
            held.lock().expect("the lines").push(text);
            line.clear();
        }
    });
    lines
}

/// The whole text, once the thread that gathers it met the end of the pipe and let go of it.
fn wait_for_end(log: &Lines) -> String {
    wait_for("the end of the process log", || {
        (Arc::strong_count(log) == 1).then_some(())
    });
    log.lock().expect("the lines").join("\n")
}

fn parsed(lines: &Lines) -> Vec<Value> {
    lines
        .lock()
        .expect("the lines")
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// How long something took, for the tests that print a measurement.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
