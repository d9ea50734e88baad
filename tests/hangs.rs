//! A thread that stands still is noticed, and does not keep the service from its end (ALIVE-7).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::application::Application;
use crate::support::raw_client::{Connection, get};
use crate::support::wait_until;
use crate::support::weir::{ONE_PER_HOUR, Weir, state_dir};

/// A service of two workers whose first hangs while the file exists, and the file.
#[track_caller]
fn start(application: &Application, settings: &[(&str, &str)]) -> (Weir, PathBuf) {
    let state = state_dir();
    let file = state.path().join("hang");
    let hook = format!("weir-worker-0:{}", file.display());
    let two = [
        ("WAF_WORKERS", "2"),
        ("WEIR_TEST_HANG", hook.as_str()),
        ONE_PER_HOUR,
    ];
    let weir = Weir::start_at(
        application.address(),
        &state,
        &[&two[..], settings].concat(),
    );
    (weir, file)
}

fn hang(file: &Path) {
    std::fs::write(file, "").expect("writes");
}

/// Whether bans.json holds the ban that was made before.
fn holds_ban(weir: &Weir) -> bool {
    let bans = weir.state_file("bans.json").expect("bans.json");
    bans["bans"][0]["cause"] == "rate_limit"
}

/// The status of the public health check, of the worker that answers.
fn public_health(weir: &Weir) -> Option<u16> {
    let mut connection = Connection::try_open(weir.address())?;
    connection.set_patience(Duration::from_millis(300));
    connection.send(&get("/_waf/health", &[]));
    Some(connection.try_response(false).ok()?.status)
}

/// ALIVE-7: health fails on every door while a worker hangs, then the service ends by itself with
/// status 70, having said which thread it was, and with its state written.
#[test]
fn a_worker_that_hangs_ends_the_service() {
    let application = Application::ok();
    // A look of 300 ms stands for one of a second.
    let looks = [
        ("WEIR_TEST_LOOK_MS", "300"),
        ("WAF_STATE_WRITE_DELAY", "1h"),
    ];
    let (mut weir, file) = start(&application, &looks);
    weir.break_limit("192.0.2.7");
    assert_eq!(weir.control("GET", "/v1/health", None).status, 200);
    hang(&file);
    wait_until("a health that fails", || {
        weir.control("GET", "/v1/health", None).status == 503
    });
    let told = weir.control("GET", "/v1/health", None).expect(503).json();
    assert_eq!(told["status"], "fail");
    let command = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["health", "--socket"])
        .arg(weir.state_path("weir.sock"))
        .output()
        .expect("runs");
    assert_eq!(command.status.code(), Some(1), "{command:?}");
    wait_until("a worker that tells", || public_health(&weir) == Some(503));
    let status = weir.wait();
    assert_eq!(status.code(), Some(70));
    let log = weir.process_log_text();
    assert!(log.contains("the thread weir-worker-0 hangs"), "{log}");
    assert!(holds_ban(&weir));
}

/// ALIVE-7: a stop ends in its time although a worker hangs, with the state written.
#[test]
fn a_stop_ends_although_a_worker_hangs() {
    let application = Application::ok();
    let settings = [
        ("WAF_SHUTDOWN_TIMEOUT", "1s"),
        ("WAF_STATE_WRITE_DELAY", "1h"),
        // Only the stop is to notice it.
        ("WEIR_TEST_LOOK_MS", "3600000"),
    ];
    let (mut weir, file) = start(&application, &settings);
    weir.break_limit("192.0.2.7");
    hang(&file);
    wait_until("a worker that answers nobody", || {
        public_health(&weir).is_none()
    });
    weir.signal("TERM");
    let status = weir.wait();
    assert_eq!(status.code(), Some(70));
    let log = weir.process_log_text();
    assert!(log.contains("a worker hangs"), "{log}");
    assert!(holds_ban(&weir));
}
