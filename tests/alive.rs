//! The service is never half alive (ALIVE): nobody who stands still outside can stop it, and what
//! ends inside is noticed.

use std::io::{PipeReader, PipeWriter, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::application::{After, Application};
use crate::support::process::{Process, has_handlers};
use crate::support::raw_client::{Connection, exchange, get, request};
use crate::support::weir::{ADMIN_TOKEN, ONE_PER_HOUR, StateDir, Weir, state_dir};
use crate::support::{free_address, wait_for, wait_until};

/// The binary with a plain environment: no harness reads what it says.
fn command(address: SocketAddr, upstream: SocketAddr, state: &StateDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env_clear();
    settings(&mut command, address, upstream, state);
    command
}

fn settings(command: &mut Command, address: SocketAddr, upstream: SocketAddr, state: &StateDir) {
    command
        .env("WAF_LISTEN", address.to_string())
        .env("WAF_UPSTREAM", format!("http://{upstream}"))
        .env("WAF_STATE_DIR", state.path())
        .env("WAF_LOOKUP_SOURCE", "off")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
}

/// The service with a standard error that is full and that nobody reads.
struct Unread {
    process: Process,
    address: SocketAddr,
    _state: StateDir,
    /// Held open, never read.
    _pipe: PipeReader,
}

impl Unread {
    fn start(upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let unread = Self::begin(free_address(), upstream, settings);
        wait_for("the listener", || TcpStream::connect(unread.address).ok());
        unread
    }

    fn begin(address: SocketAddr, upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let (pipe, standard_error) = full_pipe();
        let state = state_dir();
        let process = Process::start(
            command(address, upstream, &state)
                .envs(settings.iter().copied())
                .stderr(standard_error),
        );
        Self {
            process,
            address,
            _state: state,
            _pipe: pipe,
        }
    }

    fn wait(&mut self) -> Option<i32> {
        self.process.wait().code()
    }
}

/// A pipe of one page with a page of text in it.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a size");
    writer.write_all(&vec![b'\n'; size]).expect("it has room");
    (reader, writer)
}

/// ALIVE-1: standard error full and unread, the application down: every request is answered, what
/// was lost is counted, and SIGTERM ends the service in time.
#[test]
fn a_standard_error_that_nobody_reads_stops_nothing() {
    let mut weir = Unread::start(
        free_address(),
        &[
            ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
            ("WAF_RATE_LIMIT_PER_HOUR", "off"),
            ("WAF_SHUTDOWN_TIMEOUT", "1s"),
        ],
    );
    let address = weir.address;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                for _ in 0..625 {
                    assert_eq!(exchange(address, &get("/a", &[])).status, 502);
                }
            });
        }
    });
    assert_eq!(exchange(address, &get("/_waf/health", &[])).status, 200);
    weir.process.signal(Signal::TERM);
    assert_eq!(weir.wait(), Some(0));
}

/// ALIVE-1: a start that fails ends, whether anybody reads why or not.
#[test]
fn a_start_that_fails_unread_ends() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    for settings in [&[][..], &[("WAF_WORKERS", "none")]] {
        let mut weir = Unread::begin(address, free_address(), settings);
        assert_eq!(weir.wait(), Some(78), "{settings:?}");
    }
}

/// ALIVE-1: nor do signals keep it, each of which ends a wait for whoever should read.
#[test]
fn a_start_that_fails_unread_ends_under_signals() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let mut weir = Unread::begin(address, free_address(), &[]);
    wait_until("its handlers", || has_handlers(weir.process.pid()));
    let ended = wait_for("its end", || {
        weir.process.signal(Signal::HUP);
        weir.process.try_wait()
    });
    assert_eq!(ended.code(), Some(78));
}

/// ALIVE-1: a message that repeats is written once a second, with the number of those held back:
/// none is forgotten.
#[test]
fn a_repeated_message_is_written_with_its_number() {
    const REQUESTS: u64 = 300;
    let weir = Weir::start_at(free_address(), &state_dir(), &[]);
    for _ in 0..REQUESTS {
        assert_eq!(weir.get("/a", "203.0.113.7").status, 502);
    }
    let lines = wait_for("a line or a number for each", || {
        let lines: Vec<_> = weir
            .process_log()
            .into_iter()
            .filter(|line| line["message"] == "the application cannot be reached")
            .collect();
        let told: u64 = lines
            .iter()
            .map(|line| line["repeated"].as_u64().unwrap_or(1))
            .sum();
        (told >= REQUESTS).then_some((lines, told))
    });
    assert_eq!(lines.1, REQUESTS);
    assert!(lines.0.len() < 30, "{}", lines.0.len());
    let repeated = lines.0.last().expect("a line");
    assert_eq!(repeated["level"], "WARN");
    assert!(repeated["error"].is_string() && repeated["timestamp"].is_string());
}

/// Writes the file that the thread of the test hook waits for.
fn end_thread(file: &Path) {
    std::fs::write(file, "now").expect("it can be written");
}

/// ALIVE-2: whichever thread ends, the service says which, and ends with 70 so that a supervisor
/// starts it anew.
#[test]
fn a_thread_that_ends_takes_the_service_with_it() {
    let application = Application::ok();
    std::thread::scope(|scope| {
        for thread in [
            "weir-worker-1",
            "weir-control",
            "weir-state",
            "weir-log",
            "weir-answers",
            "weir-operator",
            "weir-lookup",
            "weir-files",
            "weir-process-log",
        ] {
            let application = &application;
            scope.spawn(move || {
                let directory = tempfile::tempdir().expect("a directory");
                let file = directory.path().join("now");
                let hook = format!("{thread}:{}", file.display());
                let mut settings = vec![
                    ("WAF_WORKERS", "2"),
                    ("WAF_LOOKUP_SOURCE", "url"),
                    ("WAF_LOOKUP_URL", "http://127.0.0.1:9/{ip}"),
                    ("WEIR_TEST_END_THREAD", hook.as_str()),
                ];
                if thread == "weir-process-log" {
                    // It says nothing, not even where it listens.
                    let mut weir = Unread::start(application.address(), &settings);
                    end_thread(&file);
                    assert_eq!(weir.wait(), Some(70), "{thread}");
                    return;
                }
                settings.push(("WAF_TRUSTED_PROXIES", ""));
                let mut weir = Weir::start(application, &settings);
                end_thread(&file);
                assert_eq!(weir.wait().code(), Some(70), "{thread}");
                let said = format!("the thread {thread} ended by a panic");
                weir.wait_for_process_log(&["ERROR", &said]);
                if thread == "weir-state" {
                    // Nobody waits for what it will never write.
                    weir.wait_for_process_log(&["ERROR", "they were not written"]);
                }
            });
        }
    });
}

/// ALIVE-2: the end of a thread costs no ban: the state files are written first.
#[test]
fn the_state_is_written_when_a_thread_ends() {
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("now");
    let hook = format!("weir-log:{}", file.display());
    let mut weir = Weir::start(
        &application,
        &[
            ONE_PER_HOUR,
            ("WAF_STATE_WRITE_DELAY", "1h"),
            ("WAF_STATE_COUNTER_INTERVAL", "1h"),
            ("WEIR_TEST_END_THREAD", &hook),
        ],
    );
    assert_eq!(weir.get("/a", "203.0.113.7").status, 200);
    assert_eq!(weir.get("/a", "203.0.113.7").status, 429);
    wait_until("the ban", || weir.bans().len() == 1);
    end_thread(&file);
    assert_eq!(weir.wait().code(), Some(70));
    let bans = weir.state_file("bans.json").expect("bans.json");
    assert_eq!(bans["bans"][0]["netblock"], "203.0.113.0/24");
}

/// ALIVE-3: signals that would end a process, and that nobody means for it, are told and change
/// nothing.
#[test]
fn signals_that_nobody_means_are_ignored() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[]);
    for name in ["ALRM", "VTALRM", "PROF", "IO", "STKFLT", "PWR", "XCPU"] {
        weir.signal(name);
        let said = format!("SIG{name} was received and is ignored");
        weir.wait_for_process_log(&["WARN", &said]);
    }
    for number in 34..=64 {
        weir.signal(&number.to_string());
        let said = format!("real-time signal {number} was received and is ignored");
        weir.wait_for_process_log(&["WARN", &said]);
    }
    weir.signal("PIPE");
    assert_eq!(weir.get("/a", "203.0.113.7").status, 200);
    weir.stop();
}

/// ALIVE-3: a signal that comes in the middle of the start is handled when the start is done. The
/// token file hangs here, which holds the start.
#[test]
fn signals_are_handled_from_the_first_moment() {
    let (state, address) = (state_dir(), free_address());
    let token = state.path().join("token");
    std::fs::write(&token, "a-token-of-enough-letters").expect("writes");
    let hangs = state.path().join("hangs");
    std::fs::write(&hangs, token.to_str().expect("a path")).expect("writes");
    let mut process = Process::start(
        command(address, free_address(), &state)
            .env("WAF_ADMIN_TOKEN_FILE", &token)
            .env("WEIR_TEST_HANGING_FILE", &hangs)
            .stderr(Stdio::null()),
    );
    wait_until("the start is on its way", || {
        hangs.with_extension("reached").exists()
    });
    for signal in [Signal::USR1, Signal::USR2, Signal::TERM] {
        process.signal(signal);
    }
    std::fs::remove_file(&hangs).expect("removes");
    assert_eq!(process.wait().code(), Some(0));
}

/// ALIVE-3: a second SIGTERM within a second is the same one: the running answer is whole.
#[test]
fn two_sigterms_in_a_row_are_one() {
    // On a machine that is too busy to send both within the second, it is tried again.
    let tried = (0..5).any(|_| {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let application = Application::start(move |exchange| {
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            let _ = held.lock().expect("the channel").recv();
            exchange.send(b"half");
            After::KeepAlive
        });
        let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_TIMEOUT", "20s")]);
        let mut running = Connection::open(weir.address());
        running.send(&get("/held", &[]));
        assert_eq!(running.head().expect("its head").status, 200);
        let first = Instant::now();
        weir.signal("TERM");
        wait_until("closed listeners", || {
            TcpStream::connect(weir.address()).is_err()
        });
        weir.signal("TERM");
        let in_time = first.elapsed() < Duration::from_millis(900);
        if in_time {
            // What is to be seen is that nothing happens.
            std::thread::sleep(Duration::from_millis(300));
            release.send(()).expect("released");
            assert_eq!(running.bytes(8).expect("all of it"), b"halfhalf");
            assert_eq!(weir.wait().code(), Some(0));
        }
        in_time
    });
    assert!(tried, "never within a second");
}

/// ALIVE-4: for WAF_SHUTDOWN_DELAY after SIGTERM health answers 503, on new connections too, and
/// every request is served; then the listeners close.
#[test]
fn a_stop_is_announced_before_the_listeners_close() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[("WAF_SHUTDOWN_DELAY", "5s")]);
    assert_eq!(weir.get("/_waf/health", "203.0.113.7").status, 200);
    weir.signal("TERM");
    let health = wait_for("health that says so", || {
        let answer = weir.get("/_waf/health", "203.0.113.7");
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(health.json()["status"], "draining");
    assert_eq!(weir.get("/served", "203.0.113.7").status, 200);
    wait_until("closed listeners", || {
        TcpStream::connect(weir.address()).is_err()
    });
    assert_eq!(weir.wait().code(), Some(0));
    assert_eq!(weir.line_of("/served")["status"], 200);
}

/// CONN-4: the soft limit of open files is raised to the hard one; the connections that it allows
/// are the bound, which is told, and with all of them taken a ban is still written and the control
/// socket answers.
#[test]
fn open_files_are_never_short() {
    let (state, address) = (state_dir(), free_address());
    let application = Application::ok();
    let log = state.path().join("stderr");
    let mut shell = Command::new("sh");
    settings(&mut shell, address, application.address(), &state);
    shell
        .args(["-c", "ulimit -Sn 256 && ulimit -Hn 1024 && exec \"$0\""])
        .arg(env!("CARGO_BIN_EXE_weir"))
        .env("WAF_WORKERS", "2")
        .env("WAF_TRUSTED_PROXIES", "127.0.0.0/8")
        .env("WAF_ADMIN_TOKEN", ADMIN_TOKEN)
        .stderr(std::fs::File::create(&log).expect("a file"));
    let weir = Process::start(&mut shell);
    wait_for("the listener", || TcpStream::connect(address).ok());
    // The process log has a thread of its own, which may be behind the listener.
    wait_until("the warning", || {
        let text = std::fs::read_to_string(&log).expect("the log");
        text.contains("WAF_MAX_CONNECTIONS=10000 and WAF_MAX_UPSTREAM=512 need more open files")
            && text.contains("182 connections and 290 requests at the application are the bounds")
    });
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", weir.id()));
    let limits = limits.expect("its limits");
    let open_files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<_> = open_files.expect("a line").split_whitespace().collect();
    assert_eq!(numbers[3..5], ["1024", "1024"]);

    // Each has had a request served by the application, which holds a connection of its own.
    let mut held = Vec::new();
    let mut admin = None;
    for number in 0..600 {
        let mut connection = Connection::open(address);
        connection.send_what_is_taken(&get("/a", &[("X-Forwarded-For", "203.0.113.7")]));
        let served = connection.try_response(false).is_ok();
        if number == 500 {
            admin = Some(connection);
        } else if served {
            held.push(connection);
        }
    }
    assert!(held.len() >= 160, "{}", held.len());
    let files = std::fs::read_dir(format!("/proc/{}/fd", weir.id())).expect("its files");
    assert!(files.count() <= 1024 - 64);
    let mut admin = admin.expect("a connection");
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    admin.send(&request(
        "POST",
        "/_waf/bans",
        &[
            ("X-Forwarded-For", "192.0.2.200"),
            ("Authorization", &bearer),
        ],
        Some(br#"{"client":"198.51.100.7","duration":"1h","reason":"r"}"#),
    ));
    assert_eq!(admin.response().status, 201);
    let bans = std::fs::read_to_string(state.path().join("bans.json")).expect("bans.json");
    assert!(bans.contains("198.51.100.0/24"), "{bans}");
    let mut control = Connection::open_unix(&state.path().join("weir.sock"));
    control.send(&get("/v1/status", &[]));
    let status = control.response().expect(200).json();
    assert_eq!(status["connections"]["max"], 182);
    assert!(
        status["connections"]["open"].as_u64() >= Some(160),
        "{status}"
    );
    let text = std::fs::read_to_string(&log).expect("the log");
    assert!(!text.contains("accept failed"), "{text}");
}
