//! What a supervisor is told, and the socket that it passes (RESTART-2), with systemd's own
//! protocols and without systemd.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::application::Application;
use crate::support::process::{Process, end, wait_for_end};
use crate::support::raw_client::{Connection, exchange, get};
use crate::support::weir::{StateDir, state_dir};
use crate::support::{wait_for, wait_until};

/// A service under a supervisor.
struct Supervised {
    process: Process,
    /// Where it listens.
    address: SocketAddr,
    told: UnixDatagram,
    /// `NOTIFY_SOCKET`: no other process has this one.
    socket: PathBuf,
    _taken: TcpListener,
    _state: StateDir,
}

impl Supervised {
    /// Starts it on `listener`, passed as the first descriptor after the standard ones.
    #[track_caller]
    fn start(application: &Application, listener: &TcpListener, settings: &[(&str, &str)]) -> Self {
        let state = state_dir();
        let socket = state.path().join("notify");
        let told = UnixDatagram::bind(&socket).expect("the supervisor's socket");
        set_socket_passcred(&told, true).expect("the senders of messages");
        told.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time-out");
        let taken = self::listener();
        let passed = OwnedFd::from(listener.try_clone().expect("a second descriptor"));
        let mut command = Command::new("/bin/sh");
        command
            .args([
                "-c",
                "exec 3<&0 0</dev/null; LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$0\"",
            ])
            .arg(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .env("LISTEN_FDS", "1")
            .env("LISTEN_FDNAMES", "weir.socket")
            .env("NOTIFY_SOCKET", &socket)
            .env("WAF_UPSTREAM", format!("http://{}", application.address()))
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_LOOKUP_SOURCE", "off")
            // Taken already: it must not be bound.
            .env(
                "WAF_LISTEN",
                taken.local_addr().expect("its address").to_string(),
            )
            .envs(settings.iter().copied())
            .stdin(Stdio::from(passed))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            process: Process::start(&mut command),
            address: listener.local_addr().expect("its address"),
            told,
            socket,
            _taken: taken,
            _state: state,
        }
    }

    /// The next message to the supervisor.
    #[track_caller]
    fn told(&self) -> String {
        let mut bytes = [0; 4096];
        let count = self.told.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    /// Reads until the main process has said what is waited for; what others say is not believed. A
    /// `MAINPID` that is believed changes who that is.
    #[track_caller]
    fn believes(&self, main: &mut u32, is_it: impl Fn(u32, &str) -> bool) {
        wait_for("a message of the main process", || {
            let (sender, told) = self.told_by();
            if sender != *main {
                return None;
            }
            let named = told.lines().find_map(|line| line.strip_prefix("MAINPID="));
            if let Some(named) = named {
                *main = named.parse().expect("a number");
            }
            is_it(*main, &told).then_some(())
        });
    }

    /// The next message, and the process that sent it.
    #[track_caller]
    fn told_by(&self) -> (u32, String) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let count = recvmsg(&self.told, into, &mut beside, RecvFlags::empty());
        let count = count.expect("a message").bytes;
        let sender = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
            _ => None,
        });
        let sender = sender.expect("its sender").as_raw_nonzero().get();
        let told = String::from_utf8_lossy(&bytes[..count]).into_owned();
        (sender.cast_unsigned(), told)
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until it has ended well.
    #[track_caller]
    fn ends(&mut self) {
        let status = self.process.wait();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // A successor is nobody's child once the first has ended.
        let first = self.process.pid();
        let others = told_by_environment(&self.socket).into_iter();
        for process in others.filter(|process| *process != first) {
            let ended = end(process);
            let _ = kill_process(process, Signal::KILL);
            if !std::thread::panicking() {
                ended.unwrap_or_else(|fault| panic!("{fault}"));
            }
        }
    }
}

/// The processes that have this `NOTIFY_SOCKET`.
fn told_by_environment(socket: &Path) -> Vec<Pid> {
    let ours = format!("NOTIFY_SOCKET={}", socket.display());
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let ours = processes.filter(|process| {
        // Another user's, or one that has just ended, is not ours.
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable == ours.as_bytes())
    });
    ours.filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))
        .collect()
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// RESTART-2: READY once requests are served, RELOADING and READY around a reload, STOPPING at the
/// end; each with what systemd wants beside it.
#[test]
fn the_supervisor_is_told() {
    let (application, listener) = (Application::ok(), listener());
    let mut service = Supervised::start(&application, &listener, &[("WAF_WORKERS", "2")]);
    let ready = format!("MAINPID={}\nREADY=1", service.process.id());
    assert_eq!(service.told().trim_end(), ready);
    exchange(service.address, &get("/", &[])).expect(200);
    service.signal(Signal::HUP);
    let reloading = service.told();
    assert!(
        reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
        "{reloading}"
    );
    assert_eq!(service.told().trim_end(), ready);
    service.signal(Signal::TERM);
    assert_eq!(service.told().trim_end(), "STOPPING=1");
    service.ends();
}

/// RESTART-1, RESTART-2: after a hand-over the new process is the service for a supervisor that, as
/// systemd with `NotifyAccess=main`, believes the main process alone: it serves on the passed
/// socket, calls the watchdog, and obeys a stop.
#[test]
fn a_hand_over_changes_the_main_process() {
    let (application, listener) = (Application::ok(), listener());
    let settings = [("WAF_WORKERS", "1"), ("WATCHDOG_USEC", "2000000")];
    let mut service = Supervised::start(&application, &listener, &settings);
    let old = service.process.id();
    let mut main = old;
    service.believes(&mut main, |_, told| told.contains("READY=1"));
    assert_eq!(main, old);
    service.signal(Signal::USR2);
    service.believes(&mut main, |main, _| main != old);
    let new = Pid::from_raw(main.cast_signed()).expect("a process");
    service.believes(&mut main, |_, told| told.contains("READY=1"));
    service.believes(&mut main, |_, told| told.contains("WATCHDOG=1"));
    exchange(service.address, &get("/", &[])).expect(200);
    kill_process(new, Signal::TERM).expect("it is there");
    service.believes(&mut main, |_, told| told.contains("STOPPING=1"));
    wait_for_end(new);
    service.ends();
}

/// A test that ends after a hand-over, and knows of no other process, leaves none behind.
#[test]
fn what_a_test_leaves_behind_ends_with_it() {
    let (application, listener) = (Application::ok(), listener());
    let service = Supervised::start(&application, &listener, &[("WAF_WORKERS", "1")]);
    let old = service.process.id();
    let mut main = old;
    service.believes(&mut main, |_, told| told.contains("READY=1"));
    service.signal(Signal::USR2);
    service.believes(&mut main, |main, told| {
        main != old && told.contains("READY=1")
    });
    let socket = service.socket.clone();
    assert!(!told_by_environment(&socket).is_empty());
    drop(service);
    wait_until("the end of the successor", || {
        told_by_environment(&socket).is_empty()
    });
}

/// RESTART-2: a watchdog is called in time, again and again.
#[test]
fn the_watchdog_is_called() {
    let (application, listener) = (Application::ok(), listener());
    let service = Supervised::start(&application, &listener, &[("WATCHDOG_USEC", "2000000")]);
    assert!(service.told().contains("READY=1"));
    for _ in 0..3 {
        assert_eq!(service.told().trim_end(), "WATCHDOG=1");
    }
}

/// RESTART-2: the socket stays with the supervisor: a connection made while nobody serves waits for
/// the next service, and is answered by it.
#[test]
fn a_restart_behind_a_passed_socket_refuses_no_connection() {
    let (application, listener) = (Application::ok(), listener());
    let mut first = Supervised::start(&application, &listener, &[]);
    assert!(first.told().contains("READY=1"));
    exchange(first.address, &get("/first", &[])).expect(200);
    first.signal(Signal::TERM);
    first.ends();
    let mut waiting = Connection::open(first.address);
    waiting.send(&get("/second", &[]));
    let _second = Supervised::start(&application, &listener, &[]);
    waiting.response().expect(200);
}

/// CONN-14, RESTART-2: over stops and starts with a passed socket, while clients ask on fresh
/// connections, each of them is answered.
#[test]
fn stops_and_starts_close_no_connection_unanswered() {
    const CLIENTS: usize = 4;
    let (application, listener) = (Application::ok(), listener());
    let settings = [
        ("WAF_WORKERS", "2"),
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
    ];
    let address = listener.local_addr().expect("its address");
    let asked = Arc::new(AtomicUsize::new(0));
    let stopping = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (asked, stopping) = (Arc::clone(&asked), Arc::clone(&stopping));
            std::thread::spawn(move || {
                let ask = get("/", &[("Connection", "close")]);
                while !stopping.load(Ordering::SeqCst) {
                    let number = asked.fetch_add(1, Ordering::SeqCst);
                    let mut connection = Connection::open(address);
                    // So that a stop finds connections on which nothing was sent yet.
                    std::thread::sleep(Duration::from_millis(3));
                    connection.send_what_is_taken(&ask);
                    let answer = (connection.try_response(false))
                        .unwrap_or_else(|ended| panic!("request {number}: {ended:?}"));
                    assert_eq!(answer.status, 200, "request {number}");
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let mut service = Supervised::start(&application, &listener, &settings);
        let before = asked.load(Ordering::SeqCst);
        wait_until("requests", || asked.load(Ordering::SeqCst) >= before + 100);
        service.signal(Signal::TERM);
        service.ends();
    }
    let _last = Supervised::start(&application, &listener, &settings);
    stopping.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().expect("each request is answered");
    }
}

/// RESTART-2: what is no listening socket stops the start with one sentence.
#[test]
fn what_is_no_socket_stops_the_start() {
    let state = state_dir();
    let output = Command::new("/bin/sh")
        .args(["-c", "exec 3</dev/null; LISTEN_PID=$$ exec \"$0\""])
        .arg(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDNAMES", "weir.socket")
        .env("WAF_UPSTREAM", "http://127.0.0.1:9")
        .env("WAF_STATE_DIR", state.path())
        .env("WAF_LOOKUP_SOURCE", "off")
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(78));
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().last().unwrap_or_default();
    assert!(
        line.starts_with("weir: LISTEN_FDS=1 (weir.socket): listening sockets are expected, "),
        "{said}"
    );
}
