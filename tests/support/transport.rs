//! What behaviour tests speak: plain HTTP/1.1, or what the environment asks for instead
//! (`WEIR_TEST_TRANSPORT=tls` or `h2`; `.ci/tests-over` says which tests are run so).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex};

/// What is spoken at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    Plain,
    Tls,
    /// HTTP/2 over plain TCP, with prior knowledge.
    Http2,
}

use Transport::{Http2, Plain, Tls};

/// What behaviour tests are to speak.
///
/// # Panics
/// A transport is asked for that is not known: tests that speak another one would prove nothing.
pub(crate) fn asked_for() -> Transport {
    match std::env::var("WEIR_TEST_TRANSPORT").as_deref() {
        Err(_) => Plain,
        Ok("tls") => Tls,
        Ok("h2") => Http2,
        Ok(other) => panic!("WEIR_TEST_TRANSPORT={other}: expected tls or h2"),
    }
}

/// Addresses where something else than plain HTTP/1.1 is spoken, of all services of this process.
static SPOKEN: LazyLock<Mutex<HashMap<SocketAddr, Transport>>> = LazyLock::new(Mutex::default);

/// This is spoken at this address.
pub(crate) fn note(address: SocketAddr, transport: Transport) {
    let mut spoken = SPOKEN.lock().expect("the addresses");
    spoken.insert(address, transport);
}

/// No longer: the port may be anybody's next.
pub(crate) fn forget(address: SocketAddr) {
    SPOKEN.lock().expect("the addresses").remove(&address);
}

/// What is spoken there.
pub(crate) fn spoken(address: SocketAddr) -> Transport {
    let spoken = SPOKEN.lock().expect("the addresses");
    spoken.get(&address).copied().unwrap_or(Plain)
}

/// The scheme that behaviour tests speak.
pub(crate) fn scheme() -> &'static str {
    if asked_for() == Tls { "https" } else { "http" }
}

/// The protocol that behaviour tests speak, as the request log names it.
pub(crate) fn protocol() -> &'static str {
    if asked_for() == Http2 {
        "HTTP/2.0"
    } else {
        "HTTP/1.1"
    }
}

/// Whether a test is left out because behaviour tests speak over TLS, and why. `.ci/tests-over`
/// counts what this prints.
pub(crate) fn is_left_out_over_tls(why: &str) -> bool {
    let is_left_out = asked_for() == Tls;
    if is_left_out {
        println!("left out over TLS: {why}");
    }
    is_left_out
}
