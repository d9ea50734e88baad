//! The service is never half alive (ALIVE): nobody who stands still outside can stop it, and what
//! ends inside is noticed.

use std::io::{PipeReader, PipeWriter, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use crate::support::raw_client::{exchange, get};
use crate::support::wait_for;
use crate::support::weir::{METRICS_TOKEN, StateDir, Weir, state_dir};

/// An address where nobody listens.
fn nobody() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    free.local_addr().expect("its address")
}

/// The service with a standard error that is full and that nobody reads.
struct Unread {
    child: Child,
    address: SocketAddr,
    _state: StateDir,
    /// Held open, never read.
    _pipe: PipeReader,
}

impl Unread {
    fn start(upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let (pipe, standard_error) = full_pipe();
        let (address, state) = (nobody(), state_dir());
        let child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .env("WAF_LISTEN", address.to_string())
            .env("WAF_UPSTREAM", format!("http://{upstream}"))
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_METRICS_TOKEN", METRICS_TOKEN)
            .env("WAF_LOOKUP_SOURCE", "off")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(standard_error)
            .spawn()
            .expect("the binary runs");
        wait_for("the listener", || {
            std::net::TcpStream::connect(address).ok()
        });
        Self {
            child,
            address,
            _state: state,
            _pipe: pipe,
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        nobody(),
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
    let pid = weir.child.id().to_string();
    let killed = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(killed.expect("kill runs").success());
    let status = wait_for("the end", || weir.child.try_wait().expect("its state"));
    assert_eq!(status.code(), Some(0));
}

/// ALIVE-1: a message that repeats is written once a second, with the number of those held back:
/// none is forgotten.
#[test]
fn a_repeated_message_is_written_with_its_number() {
    const REQUESTS: u64 = 300;
    let weir = Weir::start_at(nobody(), &state_dir(), &[]);
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
