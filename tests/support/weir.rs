//! Runs the real binary: its settings, its two logs, its state directory, its end.
//!
//! Clients are told apart by `X-Forwarded-For`, because the harness trusts loopback unless a test
//! says otherwise. Admin requests come from [`ADMIN`], which is on the allow list, so that watching
//! a limit does not break one.
//!
//! When a [`Weir`] is dropped, its process is at rest and ends by SIGTERM ([`super::process`]), and
//! its two logs are checked: every line of both is JSON (of `demo`, which prints for people, only
//! the process log), and no thread has panicked. A failing test shows the settings, both logs and
//! the state files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::application::Application;
use super::process::{self, Process};
use super::raw_client::{self, Response};
use super::tls;
use super::transport::{self, Transport};
use super::{PATIENCE, wait_for, wait_for_within, wait_until};

pub(crate) const ADMIN_TOKEN: &str = "admin-token-3f9c";
pub(crate) const METRICS_TOKEN: &str = "metrics-token-77b1";
/// Where admin requests come from.
pub(crate) const ADMIN: &str = "192.0.2.200";

/// One request an hour: the second one breaks the limit.
pub(crate) const ONE_PER_HOUR: (&str, &str) = ("WAF_RATE_LIMIT_PER_HOUR", "1");
/// Where requests are not limited, and banned all the same: asking there changes nothing.
pub(crate) const EXEMPT: (&str, &str) = ("WAF_EXEMPT_PATHS", "/exempt");

/// A running service.
pub(crate) struct Weir {
    process: Process,
    address: SocketAddr,
    /// The command and its environment, for messages.
    started_with: String,
    output: Lines,
    log: Lines,
    state: StateDir,
    /// By [`Weir::kill`]: the last line may be cut.
    was_killed: bool,
    /// Whether its standard output is its request log.
    logs_to_output: bool,
}

/// A start that was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// The state directory: the harness's own, or one that outlives a restart.
pub(crate) type StateDir = Arc<tempfile::TempDir>;

type Lines = Arc<Mutex<Vec<Line>>>;

/// One line of output.
struct Line {
    text: String,
    /// `None` for what is no JSON.
    value: Option<Value>,
    /// Whether it has its line end.
    whole: bool,
}

/// The address of a place; the harness speaks what is spoken there from now on.
#[track_caller]
fn tcp_address(place: &str, speaks_http2: bool) -> SocketAddr {
    let (address, transport) = match place.strip_prefix("https://") {
        Some(address) => (address, Transport::Tls),
        None if speaks_http2 => (place, Transport::Http2),
        None => (place, Transport::Plain),
    };
    let address = address.parse().expect("an address");
    transport::note(address, transport);
    address
}

/// In memory where that can be had: an answer waits five seconds for the disk, and a disk that
/// others keep busy can take longer.
#[track_caller]
pub(crate) fn state_dir() -> StateDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    Arc::new(
        in_memory
            .or_else(|_| tempfile::tempdir())
            .expect("a directory"),
    )
}

/// On a disk: for what is large, or is about the disk.
#[track_caller]
pub(crate) fn state_dir_on_disk() -> StateDir {
    Arc::new(tempfile::tempdir().expect("a directory"))
}

impl Weir {
    /// Starts in front of `application` with the settings given on top of the harness's own.
    #[track_caller]
    pub(crate) fn start(application: &Application, settings: &[(&str, &str)]) -> Self {
        Self::start_at(application.address(), &state_dir(), settings)
    }

    /// Starts on a state directory that holds this bans.json.
    #[track_caller]
    pub(crate) fn start_with_bans(
        application: &Application,
        bans: &Value,
        settings: &[(&str, &str)],
    ) -> Self {
        let state = state_dir();
        write_bans(state.path(), bans);
        Self::start_at(application.address(), &state, settings)
    }

    #[track_caller]
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
    #[track_caller]
    pub(crate) fn refuse(state: &StateDir, settings: &[(&str, &str)]) -> Refused {
        match Self::try_start(&[], ([127, 0, 0, 1], 9).into(), state, settings) {
            Ok(weir) => panic!("it started: {:?}", weir.process_log()),
            Err(refused) => refused,
        }
    }

    /// Runs a command with arguments until it listens or ends.
    #[track_caller]
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
            // What a test leaves unanswered at its end must not hold it up.
            .env("WAF_SHUTDOWN_TIMEOUT", "1s")
            // No test may ask a service on the net.
            .env("WAF_LOOKUP_SOURCE", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let serves = arguments.is_empty();
        let transport = transport::asked_for();
        if transport == Transport::Tls && serves {
            command.env("WAF_LISTEN", "https://127.0.0.1:0");
            command.envs(tls::Pair::settings(&[tls::shared_pair()]));
        }
        let speaks_http2 = transport == Transport::Http2 && serves;
        if speaks_http2 {
            command.env("WAF_H2C", "on");
        }
        for (name, value) in settings {
            command.env(name, value);
        }
        let environment: BTreeMap<_, _> = command.get_envs().collect();
        let environment: Vec<String> = environment
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)))
            .filter(|(name, _)| name.starts_with("WAF_"))
            .map(|(name, value)| format!("  {name}={value}"))
            .collect();
        let started_with = format!("weir {arguments:?} with\n{}", environment.join("\n"));
        let mut process = Process::start(&mut command);
        let output = gather(process.child().stdout.take().expect("stdout"));
        let log = gather(process.child().stderr.take().expect("stderr"));
        let address = wait_for_within(3 * PATIENCE, "the line that says listening", || {
            let listening = first(&log, |line| line["message"] == "listening");
            if let Some(line) = listening {
                let address = line["address"].as_str().expect("the address");
                return Some(Ok(tcp_address(address, speaks_http2)));
            }
            process.try_wait().map(Err)
        });
        match address {
            Ok(address) => Ok(Self {
                process,
                address,
                started_with,
                output,
                log,
                state: Arc::clone(state),
                was_killed: false,
                logs_to_output: !arguments.contains(&"demo"),
            }),
            Err(status) => Err(Refused {
                code: status.code(),
                stderr: {
                    wait_until_gathered(&log);
                    texts(&log).join("\n")
                },
            }),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every place where it listens, as the line that says listening names them.
    #[track_caller]
    pub(crate) fn places(&self) -> Vec<String> {
        let line = first(&self.log, |line| line["message"] == "listening").expect("the line");
        let places = line["listen"].as_str().expect("a list").split(',');
        places.map(str::to_owned).collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A GET from a client, on a connection of its own.
    #[track_caller]
    pub(crate) fn get(&self, target: &str, client: &str) -> Response {
        self.send(&raw_client::get(target, &[("X-Forwarded-For", client)]))
    }

    /// Raw bytes on a connection of their own, and the answer.
    #[track_caller]
    pub(crate) fn send(&self, bytes: &[u8]) -> Response {
        raw_client::exchange(self.address, bytes)
    }

    /// An admin request with the token.
    #[track_caller]
    pub(crate) fn admin(&self, method: &str, target: &str, body: Option<&str>) -> Response {
        let bearer = format!("Bearer {ADMIN_TOKEN}");
        self.send(&raw_client::request(
            method,
            target,
            &[("X-Forwarded-For", ADMIN), ("Authorization", &bearer)],
            body.map(str::as_bytes),
        ))
    }

    /// A request over the control socket.
    #[track_caller]
    pub(crate) fn control(&self, method: &str, target: &str, body: Option<&str>) -> Response {
        let mut connection = raw_client::Connection::open_unix(&self.state_path("weir.sock"));
        connection.send(&raw_client::request(
            method,
            target,
            &[],
            body.map(str::as_bytes),
        ));
        connection.response()
    }

    /// The bans as the admin endpoint gives them.
    #[track_caller]
    pub(crate) fn bans(&self) -> Vec<Value> {
        let answer = self.admin("GET", "/_waf/bans", None).expect(200);
        answer.json()["bans"].as_array().expect("a list").clone()
    }

    /// Bans through the admin endpoint.
    #[track_caller]
    pub(crate) fn ban(&self, member: &str, whom: &str, duration: &str) -> Value {
        let body = serde_json::json!({member: whom, "duration": duration, "reason": "test"});
        let answer = self.admin("POST", "/_waf/bans", Some(&body.to_string()));
        answer.expect(201).json()
    }

    /// The ban that follows when a client breaks [`ONE_PER_HOUR`].
    #[track_caller]
    pub(crate) fn break_limit(&self, client: &str) -> Value {
        self.get("/break", client).expect(200);
        self.get("/break", client).expect(429);
        wait_for(&format!("the ban of {client}"), || {
            self.bans()
                .into_iter()
                .find(|ban| ban["client"] == client && ban["cause"] == "rate_limit")
        })
    }

    /// Waits until a client is served, asked where asking changes nothing ([`EXEMPT`]).
    #[track_caller]
    pub(crate) fn wait_until_served(&self, client: &str) {
        self.wait_for_status(client, 200);
    }

    /// Waits until a client is refused, asked where asking changes nothing ([`EXEMPT`]).
    #[track_caller]
    pub(crate) fn wait_until_refused(&self, client: &str) {
        self.wait_for_status(client, 429);
    }

    #[track_caller]
    fn wait_for_status(&self, client: &str, status: u16) {
        wait_until(&format!("{status} for {client}"), || {
            self.get("/exempt", client).status == status
        });
    }

    /// The metrics page.
    #[track_caller]
    pub(crate) fn metrics(&self) -> String {
        let bearer = format!("Bearer {METRICS_TOKEN}");
        let answer = self.send(&raw_client::get(
            "/_waf/metrics",
            &[("X-Forwarded-For", ADMIN), ("Authorization", &bearer)],
        ));
        answer.expect(200).text()
    }

    /// One sample, named as on the page: `waf_clients`, `waf_bans_total{cause="admin"}`.
    #[track_caller]
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        self.metrics().lines().find_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            (name == series).then(|| value.parse().expect("a number"))
        })
    }

    /// How many edits of a state file had this outcome: `taken`, `bad`.
    #[track_caller]
    pub(crate) fn edits(&self, file: &str, outcome: &str) -> f64 {
        self.of_file("waf_state_edits_total", file, outcome)
    }

    /// How many writes of a state file had this outcome: `ok`, `error`.
    #[track_caller]
    pub(crate) fn writes(&self, file: &str, outcome: &str) -> f64 {
        self.of_file("waf_state_writes_total", file, outcome)
    }

    #[track_caller]
    fn of_file(&self, name: &str, file: &str, outcome: &str) -> f64 {
        let series = format!("{name}{{file=\"{file}\",outcome=\"{outcome}\"}}");
        self.metric(&series)
            .unwrap_or_else(|| panic!("the metrics have no {series}"))
    }

    /// Request lines so far.
    pub(crate) fn request_log(&self) -> Vec<Value> {
        chosen(&self.output, |line| line["event"] == "request")
    }

    /// Every line of the log so far: requests, alerts, losses.
    pub(crate) fn log_lines(&self) -> Vec<Value> {
        chosen(&self.output, |_| true)
    }

    /// Everything written to standard output, unparsed.
    pub(crate) fn raw_output(&self) -> Vec<String> {
        texts(&self.output)
    }

    /// The process log so far.
    pub(crate) fn process_log(&self) -> Vec<Value> {
        chosen(&self.log, |_| true)
    }

    /// The process log as text.
    pub(crate) fn process_log_text(&self) -> String {
        texts(&self.log).join("\n")
    }

    /// The one request line of a path.
    #[track_caller]
    pub(crate) fn line_of(&self, path: &str) -> Value {
        self.lines_of(path, 1).remove(0)
    }

    /// The request lines of a path, once there are `count`.
    #[track_caller]
    pub(crate) fn lines_of(&self, path: &str, count: usize) -> Vec<Value> {
        let mut found = wait_for(&format!("{count} log lines of {path}"), || {
            let lines = chosen(&self.output, |line| {
                line["event"] == "request" && line["path"] == path
            });
            (lines.len() >= count).then_some(lines)
        });
        assert_eq!(found.len(), count, "{path}: {found:#?}");
        // Workers hand their lines over in batches of their own and read the clock a millisecond
        // apart: neither arrival nor time is an order, what was counted is.
        found.sort_by_key(|line| (line["counts"]["day"].as_u64(), ms(&line["time"])));
        found
    }

    /// Waits for a process log line whose text holds every fragment.
    #[track_caller]
    pub(crate) fn wait_for_process_log(&self, fragments: &[&str]) -> Value {
        wait_for(&format!("{fragments:?} in the process log"), || {
            first(&self.log, |line| {
                let text = line.to_string();
                fragments.iter().all(|fragment| text.contains(fragment))
            })
        })
    }

    pub(crate) fn state_path(&self, file: &str) -> PathBuf {
        self.state.path().join(file)
    }

    /// A state file as it is on disk now; `None` if there is none.
    ///
    /// # Panics
    /// On a file that is not whole (STATE-2).
    #[track_caller]
    pub(crate) fn state_file(&self, file: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.state_path(file)).ok()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}: {text}")))
    }

    /// The bans that a start would find, by their netblocks: bans.json, and what its journal says
    /// since (STATE-10). Of a netblock that was banned more than once the last.
    #[track_caller]
    pub(crate) fn bans_on_disk(&self) -> BTreeMap<String, Value> {
        let name = |ban: &Value| ban["netblock"].as_str().expect("a netblock").to_owned();
        // The journal first: what leaves it meanwhile is in the document by then.
        let journal = std::fs::read_to_string(self.state_path("bans.journal"));
        let document = self.state_file("bans.json");
        let listed = document.iter().flat_map(|file| file["bans"].as_array());
        let mut held: BTreeMap<_, _> = listed
            .flatten()
            .map(|ban| (name(ban), ban.clone()))
            .collect();
        for line in journal.unwrap_or_default().lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                break;
            };
            for key in line["remove"].as_array().into_iter().flatten() {
                held.remove(&name(key));
            }
            let put = line["put"].as_array().into_iter().flatten();
            held.extend(put.map(|ban| (name(ban), ban.clone())));
        }
        held
    }

    /// Waits until bans.json holds what is asked.
    #[track_caller]
    pub(crate) fn wait_for_bans(&self, what: &str, holds: impl Fn(&[Value]) -> bool) -> Value {
        wait_for(&format!("bans.json: {what}"), || {
            let text = std::fs::read_to_string(self.state_path("bans.json")).ok()?;
            let file: Value = serde_json::from_str(&text).ok()?;
            holds(file["bans"].as_array()?).then_some(file)
        })
    }

    /// Sends a signal by name.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success(), "kill -s {name}");
    }

    /// Waits for the process to end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Waits for the process to end, and for all that it has written.
    #[track_caller]
    pub(crate) fn wait_for_all(&mut self) -> ExitStatus {
        let status = self.wait();
        for lines in [&self.output, &self.log] {
            wait_until_gathered(lines);
        }
        status
    }

    /// Waits until none of its threads works any more.
    #[track_caller]
    pub(crate) fn wait_for_rest(&self) {
        let rests = process::comes_to_rest(self.process.pid(), PATIENCE);
        rests.unwrap_or_else(|fault| panic!("{fault}"));
    }

    /// SIGTERM, and the end in good order.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert_eq!(
            (status.code(), status.signal()),
            (Some(0), None),
            "{}",
            self.process_log_text()
        );
        // What it wrote may still be in the pipes. A successor that writes to them holds them open.
        let deadline = Instant::now() + Duration::from_secs(1);
        let all = [&self.output, &self.log];
        while !all.into_iter().all(is_gathered) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the process as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
        self.was_killed = true;
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        transport::forget(self.address);
        if std::thread::panicking() {
            self.process.kill();
            self.show();
            return;
        }
        if let Err(fault) = self.process.end() {
            self.show();
            panic!("{fault}");
        }
        // Nobody else has the other ends of the pipes: both threads meet their end at once.
        for lines in [&self.output, &self.log] {
            wait_until_gathered(lines);
        }
        let log = self.process_log_text();
        assert!(!log.contains("panicked"), "a thread panicked: {log}");
        self.check_lines("standard error", &self.log);
        if self.logs_to_output {
            self.check_lines("standard output", &self.output);
        }
    }
}

impl Weir {
    /// Every line is JSON. A kill may cut the last one.
    #[track_caller]
    fn check_lines(&self, name: &str, lines: &Lines) {
        let lines = lines.lock().expect("the lines");
        let stray = lines.iter().find(|line| {
            let cut = self.was_killed && !line.whole;
            !cut && line.value.is_none()
        });
        if let Some(stray) = stray {
            panic!("{name} has a line that is no JSON: {:?}", stray.text);
        }
    }

    /// What a failed test is explained by.
    #[track_caller]
    fn show(&self) {
        eprintln!("{}", self.started_with);
        eprintln!("process log:\n{}", self.process_log_text());
        eprintln!("request log:\n{}", tail(&texts(&self.output)));
        let entries = std::fs::read_dir(self.state.path());
        for entry in entries.into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            eprintln!("{} ({} bytes):", entry.path().display(), text.len());
            eprintln!("{}", tail(&lines));
        }
    }
}

/// The last lines, which tell the most.
fn tail(lines: &[String]) -> String {
    const MOST: usize = 60;
    let left_out = lines.len().saturating_sub(MOST);
    let mut text = lines[left_out..].join("\n");
    if left_out > 0 {
        text = format!("({left_out} lines before)\n{text}");
    }
    text
}

/// Writes a bans.json with these entries.
#[track_caller]
pub(crate) fn write_bans(directory: &Path, bans: &Value) {
    let file = serde_json::json!({"version": 1, "bans": bans});
    std::fs::write(directory.join("bans.json"), pretty(&file)).expect("writes bans.json");
}

#[track_caller]
pub(crate) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("JSON")
}

/// A moment relative to now, as state files write it.
#[track_caller]
pub(crate) fn from_now(seconds: i64) -> String {
    seconds_after(now_ms(), seconds)
}

/// A moment so many seconds after another; before it, where they are negative.
#[track_caller]
pub(crate) fn seconds_after(moment_ms: u64, seconds: i64) -> String {
    let moment_ms = i64::try_from(moment_ms).expect("a time") + seconds * 1000;
    weir_shared::units::Time(u64::try_from(moment_ms).expect("a time")).to_string()
}

#[track_caller]
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("a time")
}

/// A time as a state file or an answer writes it, in milliseconds since 1970.
#[track_caller]
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
            let whole = line.last() == Some(&b'\n');
            if whole {
                line.pop();
            }
            // Lossy: that lines are UTF-8 is LOG-2's own test.
            let text = String::from_utf8_lossy(&line).into_owned();
            let value = serde_json::from_str(&text).ok();
            held.lock()
                .expect("the lines")
                .push(Line { text, value, whole });
            line.clear();
        }
    });
    lines
}

/// Whether the thread that gathers met the end of the pipe and let go of the lines.
fn is_gathered(lines: &Lines) -> bool {
    Arc::strong_count(lines) == 1
}

/// Waits until they are.
#[track_caller]
fn wait_until_gathered(lines: &Lines) {
    wait_until("the end of the output", || is_gathered(lines));
}

#[track_caller]
fn texts(lines: &Lines) -> Vec<String> {
    let lines = lines.lock().expect("the lines");
    lines.iter().map(|line| line.text.clone()).collect()
}

/// The lines that are wanted.
#[track_caller]
fn chosen(lines: &Lines, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let lines = lines.lock().expect("the lines");
    let values = lines.iter().filter_map(|line| line.value.as_ref());
    values.filter(|value| wanted(value)).cloned().collect()
}

/// The first line that is wanted.
#[track_caller]
fn first(lines: &Lines, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
    let lines = lines.lock().expect("the lines");
    let mut values = lines.iter().filter_map(|line| line.value.as_ref());
    values.find(|value| wanted(value)).cloned()
}

/// How long something took, for the tests that print a measurement.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
