//! What the behaviour tests stand on: the real binary, a client that writes raw bytes, and an
//! application that can be told to misbehave. Blocking sockets and threads only, so that nothing
//! here shares code with what is tested.
//!
//! A helper that can fail has `#[track_caller]`: a failure names the line of the test. What must
//! hold in every test is checked where [`weir::Weir`] and [`application::Application`] are dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

pub(crate) mod application;
pub(crate) mod clocks;
pub(crate) mod command;
pub(crate) mod covering;
pub(crate) mod dns;
pub(crate) mod engine;
pub(crate) mod frames;
pub(crate) mod geo;
pub(crate) mod http2;
pub(crate) mod moved;
pub(crate) mod process;
pub(crate) mod raw_client;
pub(crate) mod tls;
pub(crate) mod traffic;
pub(crate) mod translator;
pub(crate) mod transport;
pub(crate) mod unread;
pub(crate) mod weir;

/// How long anything that must happen may take before a test calls it missing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An address where nobody listens, for who is to listen there later. It is one of this process
/// alone: a port of 127.0.0.1 may be another's by then.
#[track_caller]
pub(crate) fn free_address() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let of_process = Ipv4Addr::new(127, 64 + a % 64, b, c);
    let free = TcpListener::bind((of_process, 0)).expect("a port");
    free.local_addr().expect("its address")
}

/// So much of a body is gathered before the application has any of it (CONN-13).
pub(crate) const GATHERED: usize = 32 * 1024;

/// Asks until the answer is there.
///
/// # Panics
/// After [`PATIENCE`], naming what was waited for.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    wait_for_within(PATIENCE, what, ask)
}

/// The same with another patience: a start on full files takes long in a debug build.
#[track_caller]
pub(crate) fn wait_for_within<T>(
    patience: Duration,
    what: &str,
    mut ask: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Asks until it is so.
///
/// # Panics
/// After [`PATIENCE`], naming what was waited for.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}
