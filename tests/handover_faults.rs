//! A hand-over that fails, hangs or is killed at each of its steps leaves a service that serves
//! (RESTART-4).

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::feeds::save;
use crate::support::application::Application;
use crate::support::command::{self, Ran};
use crate::support::process::{has_handlers, wait_for_end};
use crate::support::raw_client::{Connection, Response, exchange, get, request, try_exchange};
use crate::support::weir::{ADMIN_TOKEN, StateDir, state_dir};
use crate::support::{free_address, wait_for_within, wait_until};

/// How long one process waits for a word of the other while a test has one hang: short, and long
/// enough for a start. Else they have all their time: a machine that is busy hangs nobody.
const SILENCE_MS: u64 = 4000;
/// What takes a few of them.
const LONG: Duration = Duration::from_secs(60);
/// The file that names another one, which cannot be opened or made for as long.
const HANGING: &str = "hanging";
/// The steps of the new process.
const NEW: [&str; 8] = [
    "listen",
    "files",
    "operators",
    "ready",
    "state",
    "control",
    "workers",
    "serve",
];
/// Those of the old one, before the new one serves.
const OLD: [&str; 5] = ["save", "start", "save-again", "give", "go"];

/// A service whose process changes, or is made to fail.
struct Service {
    first: Child,
    address: SocketAddr,
    state: StateDir,
    /// What all its processes say.
    log: PathBuf,
    /// Holds the step that is to fail.
    fault: PathBuf,
    settings: PathBuf,
    /// Bans that were acknowledged.
    bans: u16,
}

impl Service {
    #[track_caller]
    fn start(application: &Application) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_weir"));
        Self::start_at(program, application, state_dir(), "")
    }

    /// The same with this program, on this state, with these lines of its settings file.
    #[track_caller]
    fn start_at(
        program: &Path,
        application: &Application,
        state: StateDir,
        settings: &str,
    ) -> Self {
        let place = |name: &str| state.path().join(name);
        let (log, fault, file) = (place("said.log"), place("fault"), place("settings"));
        fs::write(&file, settings).expect("writes");
        let address = free_address();
        let first = Command::new(program)
            .env_clear()
            .env("WAF_SETTINGS_FILE", &file)
            .env(
                "WAF_LISTEN",
                format!("{address},unix:{}", place("in.sock").display()),
            )
            .env("WAF_UPSTREAM", format!("http://{}", application.address()))
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_LOOKUP_SOURCE", "off")
            .env("WAF_TRUSTED_PROXIES", "127.0.0.1")
            .env("WAF_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("WAF_WORKERS", "2")
            .env("WAF_RATE_LIMIT_PER_MINUTE", "off")
            .env("WAF_RATE_LIMIT_PER_HOUR", "off")
            .env("WAF_RATE_LIMIT_PER_DAY", "off")
            .env("WEIR_TEST_FAULT", &fault)
            .env("WEIR_TEST_HANGING_FILE", place(HANGING))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(
                File::options()
                    .append(true)
                    .create(true)
                    .open(&log)
                    .expect("a file"),
            )
            .spawn()
            .expect("the binary runs");
        let service = Self {
            first,
            address,
            state,
            log,
            fault,
            settings: file,
            bans: 0,
        };
        service.wait_for_answer();
        service
    }

    /// A service on the state that this one leaves, after its end.
    #[track_caller]
    fn start_again(self, application: &Application) -> Self {
        let (state, bans) = (Arc::clone(&self.state), self.bans);
        drop(self);
        let program = Path::new(env!("CARGO_BIN_EXE_weir"));
        let mut service = Self::start_at(program, application, state, "");
        service.bans = bans;
        service
    }

    /// Each line that a process said with this beginning.
    #[track_caller]
    fn said(&self, beginning: &str) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).expect("the log");
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let named = |line: &Value| {
            let message = line["message"].as_str();
            message.is_some_and(|text| text.starts_with(beginning))
        };
        lines.filter(named).collect()
    }

    /// Waits until a process says so.
    #[track_caller]
    fn wait_for_word(&self, beginning: &str) {
        wait_until(beginning, || !self.said(beginning).is_empty());
    }

    /// The first process ends, in good order.
    #[track_caller]
    fn first_ends(&mut self) {
        let status = self.first.wait().expect("its end");
        assert_eq!(status.code(), Some(0));
    }

    /// Every process that there was.
    #[track_caller]
    fn processes(&self) -> Vec<Pid> {
        let started = self.said("a new process is started");
        let started = started.iter().map(|line| line["process"].as_i64());
        let all = [Some(i64::from(self.first.id()))]
            .into_iter()
            .chain(started);
        let pid = |id: Option<i64>| Pid::from_raw(i32::try_from(id?).ok()?);
        all.map(|id| pid(id).expect("a process")).collect()
    }

    /// The process that serves, as the log tells.
    #[track_caller]
    fn serving(&self) -> Pid {
        let handed = self.said("handing over");
        let last = handed.last().and_then(|line| line["process"].as_i64());
        let id = last.unwrap_or_else(|| i64::from(self.first.id()));
        Pid::from_raw(i32::try_from(id).expect("a number")).expect("a process")
    }

    fn fail_at(&self, side: &str, step: &str, how: &str) {
        let silence = match how {
            "hang" => format!(":{SILENCE_MS}"),
            _ => String::new(),
        };
        fs::write(&self.fault, format!("{side}:{step}:{how}{silence}")).expect("writes");
    }

    /// Something hangs that is no step.
    fn is_impatient(&self) {
        self.fail_at("no", "step", "hang");
    }

    fn fail_no_more(&self) {
        let _ = fs::remove_file(&self.fault);
    }

    #[track_caller]
    fn wait_for_answer(&self) {
        let ask = get(
            "/",
            &[("X-Forwarded-For", "192.0.2.1"), ("Connection", "close")],
        );
        wait_for_within(LONG, "an answer", || {
            let mut connection = Connection::try_open(self.address)?;
            connection.send_what_is_taken(&ask);
            let answer = connection.try_response(false).ok()?;
            (answer.status == 200).then_some(())
        });
    }

    fn upgrade(&self) -> Ran {
        command::run(self.state.path(), &["upgrade", "--json"])
    }

    /// A hand-over in which the new process gets these signals, once or again and again.
    #[track_caller]
    fn upgrade_under(&self, signals: &[Signal], again: bool) -> Ran {
        let before = self.processes().len();
        let path = self.state.path().to_owned();
        let upgrade = move || command::run(&path, &["upgrade", "--json"]);
        let upgrading = std::thread::spawn(upgrade);
        let new = wait_for_within(LONG, "a process that has its handlers", || {
            let new = *self.processes().get(before)?;
            has_handlers(new).then_some(new)
        });
        while !upgrading.is_finished() {
            for signal in signals {
                // It may have ended.
                let _ = kill_process(new, *signal);
            }
            std::thread::sleep(Duration::from_millis(20));
            if !again {
                break;
            }
        }
        upgrading.join().expect("it has run")
    }

    /// A hand-over that nothing disturbs.
    #[track_caller]
    fn upgrade_well(&self) {
        let before = self.serving();
        let ran = self.upgrade();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let told: Value = serde_json::from_str(&ran.out).expect("JSON");
        // The process log has a queue of its own: its line may come behind the answer.
        wait_until("the process that the answer names", || {
            let process = i64::from(self.serving().as_raw_nonzero().get());
            told == json!({ "process": process })
        });
        assert_ne!(self.serving(), before);
        // STATE-10: what is passed on is in the document.
        let journal = fs::read(self.state.path().join("bans.journal"));
        assert_eq!(journal.unwrap_or_default(), b"");
    }

    /// A ban that is acknowledged.
    #[track_caller]
    fn ban(&mut self) {
        let answer = self.post_ban().expect(201).json();
        assert_eq!(answer.get("persisted"), None, "{answer}");
    }

    #[track_caller]
    fn post_ban(&mut self) -> Response {
        let order = self.next_ban();
        exchange(self.address, &order)
    }

    /// The status of the answer; none where the connection breaks.
    fn try_post_ban(&mut self) -> Option<u16> {
        let order = self.next_ban();
        let answer = try_exchange(self.address, &order).ok();
        answer.map(|answer| answer.status)
    }

    /// The request for a further ban.
    fn next_ban(&mut self) -> Vec<u8> {
        let netblock = banned(self.bans);
        self.bans += 1;
        let order = json!({"netblock": netblock, "duration": "permanent", "reason": "r"});
        let token = format!("Bearer {ADMIN_TOKEN}");
        let fields = [
            ("Authorization", &*token),
            ("X-Forwarded-For", "192.0.2.250"),
            ("Connection", "close"),
        ];
        request(
            "POST",
            "/_waf/bans",
            &fields,
            Some(order.to_string().as_bytes()),
        )
    }

    /// Every ban that was acknowledged is in force, one process holds the lock, operators are
    /// answered, and a further ban is taken in.
    #[track_caller]
    fn is_whole(&mut self) {
        for number in 0..self.bans {
            let client = banned(number);
            let ask = get(
                "/",
                &[("X-Forwarded-For", &client), ("Connection", "close")],
            );
            exchange(self.address, &ask).expect(429);
        }
        let lock = File::open(self.state.path().join("weir.lock")).expect("the lock");
        assert!(lock.try_lock().is_err(), "nobody holds the lock");
        UnixStream::connect(self.state.path().join("in.sock")).expect("its Unix socket");
        let ran = command::run(self.state.path(), &["bans", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        self.ban();
    }

    /// The process serves that served, and no other is left.
    #[track_caller]
    fn goes_on(&self, serving: Pid, earlier: &[Pid]) {
        assert_eq!(self.serving(), serving);
        for pid in self.processes() {
            if pid != serving && !earlier.contains(&pid) {
                wait_for_end(pid);
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pids: HashSet<Pid> = self.processes().into_iter().collect();
        for pid in &pids {
            let _ = kill_process(*pid, Signal::KILL);
        }
        let _ = self.first.wait();
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        if std::thread::panicking() {
            eprintln!("what the processes said:\n{log}");
        } else {
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}

fn banned(number: u16) -> String {
    format!("198.51.{}.{}", number / 256, number % 256)
}

/// Clients that ask on a fresh connection each time; each answer must be 200.
struct Asking {
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Asking {
    fn start(address: SocketAddr, asked: Vec<u8>) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let ask = move |stopping: Arc<AtomicBool>, asked: Vec<u8>| {
            let mut count = 0;
            while !stopping.load(Ordering::SeqCst) {
                let answer = try_exchange(address, &asked)
                    .unwrap_or_else(|ended| panic!("request {count}: {ended:?}"));
                assert_eq!(answer.status, 200, "request {count}");
                count += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            count
        };
        let threads = (0..2).map(|_| {
            let (stopping, asked) = (Arc::clone(&stopping), asked.clone());
            std::thread::spawn(move || ask(stopping, asked))
        });
        Self {
            threads: threads.collect(),
            stopping,
        }
    }

    /// Of the service.
    fn service(service: &Service) -> Self {
        let fields = [("X-Forwarded-For", "10.1.1.1"), ("Connection", "close")];
        Self::start(service.address, get("/", &fields))
    }

    #[track_caller]
    fn finish(self) {
        self.stopping.store(true, Ordering::SeqCst);
        for thread in self.threads {
            assert!(thread.join().expect("every request is answered") > 0);
        }
    }
}

/// RESTART-4: the new process fails in this way at each of its steps: the old one goes on with all
/// that it has and says why, and the next upgrade succeeds.
#[track_caller]
fn the_new_process(how: &str, sentence: &str) {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let asking = Asking::service(&service);
    for step in NEW {
        println!("new:{step}:{how}");
        service.ban();
        let (serving, earlier) = (service.serving(), service.processes());
        service.fail_at("new", step, how);
        let ran = service.upgrade();
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains("this process goes on: "), "{}", ran.err);
        assert!(ran.err.contains(sentence), "{}", ran.err);
        service.goes_on(serving, &earlier);
        service.is_whole();
        service.fail_no_more();
        service.upgrade_well();
        service.is_whole();
    }
    asking.finish();
}

/// RESTART-4: see [`the_new_process`].
#[test]
fn a_new_process_that_fails_changes_nothing() {
    the_new_process("fail", "a test has the step new:");
}

/// RESTART-4: see [`the_new_process`].
#[test]
fn a_new_process_that_exits_changes_nothing() {
    the_new_process("exit", "it ended with exit status: 3");
}

/// RESTART-4: see [`the_new_process`].
#[test]
fn a_new_process_that_is_killed_changes_nothing() {
    the_new_process("kill", "it ended with signal: 9");
}

/// RESTART-4: see [`the_new_process`].
#[test]
fn a_new_process_that_hangs_changes_nothing() {
    the_new_process("hang", "it has said nothing for 4s");
}

/// RESTART-4: a signal to stop that comes before the new process serves ends it, at whichever step,
/// and the old one goes on; any other changes nothing, also while it waits for the state.
#[test]
fn a_signal_to_the_new_process_ends_no_service() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let asking = Asking::service(&service);
    let stops = [
        ("listen", Signal::TERM),
        ("ready", Signal::INT),
        ("serve", Signal::TERM),
    ];
    for (step, signal) in stops {
        println!("new:{step}");
        let (serving, earlier) = (service.serving(), service.processes());
        service.fail_at("new", step, "pause");
        let ran = service.upgrade_under(&[signal], false);
        service.fail_no_more();
        assert_eq!(ran.code, 1, "{}", ran.err);
        let sentence = "this process goes on: it was told to stop before it served";
        assert!(ran.err.contains(sentence), "{}", ran.err);
        service.goes_on(serving, &earlier);
        service.is_whole();
    }
    service.fail_at("old", "save-again", "pause");
    let ran = service.upgrade_under(&[Signal::CONT, Signal::USR1, Signal::ALARM], true);
    service.fail_no_more();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    service.is_whole();
    asking.finish();
}

/// RESTART-4: a step of the old process that fails ends the new one, and the old one goes on; one
/// that hangs is waited for.
#[test]
fn an_old_process_that_fails_or_hangs_goes_on() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let asking = Asking::service(&service);
    for step in OLD {
        for how in ["fail", "hang"] {
            println!("old:{step}:{how}");
            service.ban();
            let (serving, earlier) = (service.serving(), service.processes());
            service.fail_at("old", step, how);
            let ran = service.upgrade();
            service.fail_no_more();
            if how == "fail" {
                let sentence = format!("this process goes on: a test has the step old:{step} fail");
                assert_eq!(ran.code, 1, "{}", ran.err);
                assert!(ran.err.contains(&sentence), "{}", ran.err);
                service.goes_on(serving, &earlier);
            } else {
                assert_eq!(ran.code, 0, "{}", ran.err);
                wait_until("another process", || service.serving() != serving);
            }
            service.is_whole();
            service.upgrade_well();
            service.is_whole();
        }
    }
    asking.finish();
}

/// RESTART-4: an old process that ends in the middle leaves a new one that is ready as the service,
/// with every ban; before there is one, the next start has them.
#[track_caller]
fn the_old_process_ends(how: &str) {
    let application = Application::ok();
    for step in OLD.into_iter().chain(["taken"]) {
        println!("old:{step}:{how}");
        let mut service = Service::start(&application);
        service.ban();
        service.fail_at("old", step, how);
        let ran = service.upgrade();
        // The answer may be on its way when the process ends, once the other one serves.
        let codes: &[i32] = if step == "taken" { &[0, 69] } else { &[69] };
        assert!(codes.contains(&ran.code), "{}: {}", ran.code, ran.err);
        service.fail_no_more();
        let old = service.processes()[0];
        wait_for_end(old);
        if ["save", "start"].contains(&step) {
            assert_eq!(service.processes().len(), 1);
            service = service.start_again(&application);
        }
        service.wait_for_answer();
        service.is_whole();
        let started = service.said("a new process is started").len();
        assert_eq!(service.upgrade().code, 0);
        // The log of the one that was killed does not say who serves; the lines of this upgrade may
        // come behind its answer.
        wait_until("the process that was started serves", || {
            let begun = service.said("a new process is started");
            let handed = service.said("handing over").pop();
            begun.len() == started + 1
                && handed.map(|line| line["process"].clone())
                    == begun.last().map(|line| line["process"].clone())
        });
        service.is_whole();
    }
}

/// RESTART-4: see [`the_old_process_ends`].
#[test]
fn an_old_process_that_exits_leaves_a_service() {
    the_old_process_ends("exit");
}

/// RESTART-4: see [`the_old_process_ends`].
#[test]
fn an_old_process_that_is_killed_leaves_a_service() {
    the_old_process_ends("kill");
}

/// RESTART-4: a full disk refuses the upgrade: bans that are in memory alone are in force all
/// along, and once the disk has room the upgrade hands them over.
#[test]
fn a_full_disk_refuses_the_upgrade() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let asking = Asking::service(&service);
    service.ban();
    let pid = service.first.id().to_string();
    let limit = |limit: &str| {
        let ran = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--fsize={limit}")])
            .status();
        assert!(ran.expect("prlimit runs").success());
    };
    limit("0:unlimited");
    let answer = service.post_ban().expect(201).json();
    assert_eq!(answer["persisted"], false, "{answer}");
    let ran = service.upgrade();
    assert_eq!(ran.code, 1, "{}", ran.err);
    let sentence = "this process goes on: the state was not written: bans.json: File too large";
    assert!(ran.err.contains(sentence), "{}", ran.err);
    limit("unlimited:unlimited");
    service.upgrade_well();
    service.is_whole();
    asking.finish();
}

/// RESTART-4: a write that does not come to its end refuses the upgrade; here an editor holds it
/// up, who saves half of a file again and again.
#[test]
fn a_write_that_takes_too_long_refuses_the_upgrade() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let asking = Asking::service(&service);
    service.ban();
    let (file, serving) = (service.state.path().join("bans.json"), service.serving());
    let whole = fs::read(&file).expect("the file");
    let is_edited = Arc::new(AtomicBool::new(true));
    let editor = std::thread::spawn({
        let (is_edited, file) = (Arc::clone(&is_edited), file.clone());
        move || {
            for count in 0.. {
                if !is_edited.load(Ordering::SeqCst) {
                    return;
                }
                fs::write(&file, " ".repeat(count % 100 + 1)).expect("writes");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    wait_until("half a file", || {
        fs::read(&file).is_ok_and(|bytes| bytes != whole)
    });
    service.is_impatient();
    let ran = service.upgrade();
    service.fail_no_more();
    is_edited.store(false, Ordering::SeqCst);
    editor.join().expect("it writes");
    fs::write(&file, whole).expect("writes");
    assert_eq!(ran.code, 1, "{}", ran.err);
    let sentence = "this process goes on: the state was not written: it took longer than 4s";
    assert!(ran.err.contains(sentence), "{}", ran.err);
    service.goes_on(serving, &[]);
    service.upgrade_well();
    service.is_whole();
    asking.finish();
}

/// RESTART-4, CONTROL-11, SHARE-8: a write of history.json or shared.json that hangs could replace
/// the new process's file at any later time: it refuses the upgrade, as often as one is asked for,
/// and holds up nothing else. It is written once, and by one thread.
#[test]
fn a_write_that_hangs_beside_the_state_refuses_the_upgrade() {
    let application = Application::ok();
    for (name, thread) in [
        ("history.json", "weir-history"),
        ("shared.json", "weir-shared"),
    ] {
        println!("{name}");
        let state = state_dir();
        // Without one, and without anything to keep, it is not written.
        fs::write(state.path().join("shared.json"), "{}").expect("writes");
        let program = Path::new(env!("CARGO_BIN_EXE_weir"));
        let mut service = Service::start_at(program, &application, state, "");
        let asking = Asking::service(&service);
        service.ban();
        let (serving, earlier) = (service.serving(), service.processes());
        let hanging = service.state.path().join(HANGING);
        let path = service.state.path().join(format!(".{name}.tmp"));
        fs::write(&hanging, path.as_os_str().as_encoded_bytes()).expect("writes");
        for _ in 0..3 {
            let ran = service.upgrade();
            assert_eq!(ran.code, 1, "{}", ran.err);
            let why = format!("this process goes on: the state was not written: {name} is still");
            assert!(ran.err.contains(&why), "{}", ran.err);
            service.goes_on(serving, &earlier);
            service.is_whole();
            assert_eq!(threads_of(serving, thread), 1);
        }
        fs::remove_file(&hanging).expect("removes");
        // The write that hung may need another moment.
        wait_for_within(LONG, "an upgrade", || {
            (service.upgrade().code == 0).then_some(())
        });
        wait_until("another process", || service.serving() != serving);
        service.is_whole();
        asking.finish();
    }
}

/// How many threads of this process have this name.
fn threads_of(process: Pid, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("threads");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

/// RESTART-4: settings that gain an admin listener on a port in use, or a control socket where
/// there is no directory, are found before the old process gives anything up.
#[test]
fn settings_that_cannot_be_listened_on_change_nothing() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let asking = Asking::service(&service);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = taken.local_addr().expect("its address");
    for (settings, sentence) in [
        (
            format!("WAF_ADMIN_LISTEN={busy}\n"),
            format!("WAF_ADMIN_LISTEN: {busy} cannot be bound: "),
        ),
        (
            "WAF_CONTROL_SOCKET=/nonexistent/weir.sock\n".to_owned(),
            "WAF_CONTROL_SOCKET: /nonexistent/weir.sock cannot be made: ".to_owned(),
        ),
    ] {
        service.ban();
        let (serving, earlier) = (service.serving(), service.processes());
        fs::write(&service.settings, settings).expect("writes");
        let ran = service.upgrade();
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains(&sentence), "{}", ran.err);
        service.goes_on(serving, &earlier);
        service.is_whole();
    }
    fs::write(&service.settings, "").expect("writes");
    service.upgrade_well();
    service.is_whole();
    asking.finish();
}

/// RESTART-4: a program that sleeps for ever is ended after a while, and so is one of an older
/// version, which is ready without a word before; the upgrade behind it begins anew.
#[test]
fn a_program_that_says_nothing_is_ended() {
    let application = Application::ok();
    let directory = state_dir();
    let program = directory.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).expect("a copy");
    let mut service = Service::start_at(&program, &application, state_dir(), "");
    let asking = Asking::service(&service);
    let replace = |content: &[u8]| {
        let beside = directory.path().join("next");
        fs::copy("/bin/sh", &beside).expect("a program's mode");
        fs::write(&beside, content).expect("writes");
        fs::rename(&beside, &program).expect("replaces");
    };
    for (content, sentence) in [
        (
            &b"#!/bin/sh\nexec sleep 600\n"[..],
            "it has said nothing for 4s",
        ),
        (
            b"#!/bin/sh\nprintf r >&0\nexec sleep 600\n",
            "the program is of an older version",
        ),
    ] {
        replace(content);
        let (serving, earlier) = (service.serving(), service.processes());
        service.is_impatient();
        let ran = service.upgrade();
        service.fail_no_more();
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains(sentence), "{}", ran.err);
        service.goes_on(serving, &earlier);
        service.is_whole();
    }
    replace(&fs::read(env!("CARGO_BIN_EXE_weir")).expect("the binary"));
    service.upgrade_well();
    service.is_whole();
    asking.finish();
}

/// RESTART-4: a stop in the middle of a hand-over ends the new process first, and every ban is
/// written.
#[test]
fn a_stop_in_the_middle_writes_the_state() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    service.ban();
    service.fail_at("new", "state", "hang");
    let old = service.serving();
    kill_process(old, Signal::USR2).expect("it is there");
    service.wait_for_word("the state files are written and given away");
    kill_process(old, Signal::TERM).expect("it is there");
    service.first_ends();
    service.processes().into_iter().for_each(wait_for_end);
    service.fail_no_more();
    service = service.start_again(&application);
    service.is_whole();
}

/// RESTART-4: what operators ask while the state is given away is 503 and says when to try again;
/// health is answered, and so is what was asked before.
#[test]
fn operators_are_told_of_the_hand_over() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    let feed = json!({"name": "drop", "url": "http://127.0.0.1:9/list"});
    let rules = json!({"version": 1, "feeds": [feed]}).to_string();
    save(service.state.path(), "rules.json", &rules);
    wait_until("the feed", || {
        let ran = command::run(service.state.path(), &["feeds"]);
        ran.out.contains("drop")
    });
    service.fail_at("new", "state", "hang");
    kill_process(service.serving(), Signal::USR2).expect("it is there");
    service.wait_for_word("the state files are written and given away");
    // The new process has read the copy: it would know nothing of another version.
    let ran = command::run(service.state.path(), &["feeds", "accept", "drop"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    let refused = service.post_ban().expect(503);
    service.bans = 0;
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(
        refused
            .text()
            .contains("a hand-over to another process is under way")
    );
    let ran = command::run(service.state.path(), &["health"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = command::run(service.state.path(), &["reload"]);
    assert_eq!(ran.code, 78, "{}", ran.err);
    assert!(
        ran.err
            .contains("a hand-over to another process is under way")
    );
    service.wait_for_word("the new process does not take over");
    service.fail_no_more();
    service.is_whole();
}

/// RESTART-4, RELOAD-2: the new process has read its settings when it says its first word: a reload
/// behind that would be answered as taken, and not hold in it. It is refused, and taken again once
/// the old process goes on.
#[test]
fn a_reload_behind_the_start_of_the_new_process_is_refused() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    service.fail_at("new", "operators", "hang");
    kill_process(service.serving(), Signal::USR2).expect("it is there");
    service.wait_for_word("a new process is started");
    let ran = command::run(service.state.path(), &["reload"]);
    assert_eq!(ran.code, 78, "{}", ran.err);
    assert!(
        ran.err
            .contains("a hand-over to another process is under way")
    );
    service.wait_for_word("the new process does not take over");
    service.fail_no_more();
    let ran = command::run(service.state.path(), &["reload"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    service.is_whole();
}

/// RESTART-4, CONTROL-8: a list that is changed while the state is given away is changed in a file
/// of its own: whoever asks is answered, and the new process has it.
#[test]
fn a_list_is_changed_while_the_state_is_given_away() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    service.fail_at("new", "workers", "pause");
    kill_process(service.serving(), Signal::USR2).expect("it is there");
    service.wait_for_word("the state files are written and given away");
    let ran = command::run(service.state.path(), &["deny", "198.51.100.77"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ask = get(
        "/",
        &[
            ("X-Forwarded-For", "198.51.100.77"),
            ("Connection", "close"),
        ],
    );
    service.first_ends();
    wait_until("the new process has it", || {
        exchange(service.address, &ask).status == 429
    });
    service.fail_no_more();
    service.is_whole();
}

/// RESTART-4, LOG-4: a log that is moved away while the new process waits, which has opened it, is
/// told to the old one alone: the new one opens it anew all the same.
#[test]
fn a_log_that_is_rotated_meanwhile_is_opened_anew() {
    let (application, state) = (Application::ok(), state_dir());
    let log = state.path().join("requests.log");
    let settings = format!("WAF_LOG_REQUESTS=all\nWAF_LOG_FILE={}\n", log.display());
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    let mut service = Service::start_at(program, &application, state, &settings);
    service.fail_at("new", "serve", "pause");
    let old = service.serving();
    kill_process(old, Signal::USR2).expect("it is there");
    service.wait_for_word("the state files are written and given away");
    fs::rename(&log, log.with_extension("1")).expect("renames");
    kill_process(old, Signal::USR1).expect("it is there");
    // What the old one writes goes into a new file, too.
    service.first_ends();
    let ask = get("/behind", &[("Connection", "close")]);
    wait_until("a line of the new process", || {
        exchange(service.address, &ask).expect(200);
        fs::read_to_string(&log).is_ok_and(|text| text.contains("/behind"))
    });
    service.fail_no_more();
    service.is_whole();
}

/// RESTART-4, STATE-2: the new process acknowledges nothing before it has reported that it serves.
/// Until then the old one may kill it and take its state back, which would lack such a ban.
#[test]
fn a_ban_is_acknowledged_by_the_process_that_stays() {
    let application = Application::ok();
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    // Only the journal holds a new ban.
    let settings = "WAF_STATE_WRITE_DELAY=1h\n";
    let mut service = Service::start_at(program, &application, state_dir(), settings);
    service.ban();
    service.fail_at("new", "serving", "hang");
    let before = service.serving();
    let (path, upgrading) = (service.state.path().to_owned(), AtomicBool::new(true));
    let (ran, acknowledged) = std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| {
            let ran = command::run(&path, &["upgrade", "--json"]);
            upgrading.store(false, Ordering::Relaxed);
            ran
        });
        let mut acknowledged = Vec::new();
        while upgrading.load(Ordering::Relaxed) {
            let netblock = banned(service.bans);
            // The connection of a process that is killed breaks.
            if service.try_post_ban().is_some_and(|status| status == 201) {
                acknowledged.push(netblock);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        (upgrade.join().expect("it has run"), acknowledged)
    });
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("it has said nothing for"), "{}", ran.err);
    service.goes_on(before, &[]);
    for client in acknowledged {
        let ask = get(
            "/",
            &[("X-Forwarded-For", &client), ("Connection", "close")],
        );
        assert_eq!(exchange(service.address, &ask).status, 429, "{client}");
    }
    service.fail_no_more();
    service.upgrade_well();
}

/// RESTART-4: once `weir upgrade` has answered, whoever asks next reaches the process that serves,
/// although the old one is still there.
#[test]
fn who_asks_behind_the_answer_reaches_the_new_process() {
    let application = Application::ok();
    let mut service = Service::start(&application);
    service.ban();
    service.fail_at("old", "taken", "hang");
    let ran = service.upgrade();
    assert_eq!(ran.code, 0, "{}", ran.err);
    for _ in 0..20 {
        let ran = command::run(service.state.path(), &["bans", "--json"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }
    service.fail_no_more();
    service.is_whole();
}

/// RESTART-4: the listeners of operators are handed over, too: no connection to them is refused.
#[test]
fn operators_are_answered_all_along() {
    let application = Application::ok();
    let admin = free_address();
    let settings = format!("WAF_ADMIN_LISTEN={admin}\n");
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    let mut service = Service::start_at(program, &application, state_dir(), &settings);
    let token = format!("Bearer {ADMIN_TOKEN}");
    let fields = [("Host", "localhost"), ("Authorization", &*token)];
    let asked = format!(
        "GET /v1/health HTTP/1.1\r\n{}\r\n",
        fields
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .concat()
    );
    let asking = Asking::start(admin, asked.into_bytes());
    for _ in 0..3 {
        service.upgrade_well();
        service.is_whole();
    }
    asking.finish();
    // The file of the socket stays through all of it, and goes with the last process.
    let socket = service.state.path().join("weir.sock");
    let last = service.serving();
    let mut before = service.processes();
    before.retain(|pid| *pid != last);
    before.into_iter().for_each(wait_for_end);
    assert!(UnixStream::connect(&socket).is_ok());
    kill_process(last, Signal::TERM).expect("it is there");
    wait_for_end(last);
    assert!(!socket.exists());
}

/// RESTART-4: a process of the first version gives up its lock and its own listeners before it says
/// so, and knows no other word: this one takes over from it as that one did.
#[test]
fn a_process_of_the_first_version_is_taken_over_from() {
    let application = Application::ok();
    let state = state_dir();
    let lock = File::create(state.path().join("weir.lock")).expect("a file");
    lock.lock().expect("nobody has it");
    let control = state.path().join("weir.sock");
    let old_control = std::os::unix::net::UnixListener::bind(&control).expect("a socket");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (mut ours, theirs) = UnixStream::pair().expect("a channel");
    let passed = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    assert!(rights.push(SendAncillaryMessage::ScmRights(&passed)));
    let words = [IoSlice::new(b"p")];
    sendmsg(&ours, &words, &mut rights, SendFlags::empty()).expect("it is sent");
    let mut new = Command::new(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .env("WEIR_SUCCESSOR", "1")
        .env("WAF_UPSTREAM", format!("http://{}", application.address()))
        .env("WAF_STATE_DIR", state.path())
        .env("WAF_LOOKUP_SOURCE", "off")
        .env("WAF_WORKERS", "2")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let mut word = [0];
    ours.read_exact(&mut word).expect("a word");
    assert_eq!(&word, b"r", "the first and only word");
    drop((lock, old_control));
    fs::remove_file(&control).expect("it is there");
    ours.write_all(b"g").expect("it listens");
    exchange(address, &get("/", &[("Connection", "close")])).expect(200);
    wait_until("the control socket", || {
        UnixStream::connect(&control).is_ok()
    });
    let lock = File::open(state.path().join("weir.lock")).expect("the lock");
    assert!(lock.try_lock().is_err());
    new.kill().expect("it runs");
    new.wait().expect("its end");
    assert_eq!(
        ours.read(&mut word).expect("the end"),
        0,
        "it said nothing more"
    );
}
