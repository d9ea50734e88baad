//! TCP keep-alive, the same on both sides: a peer that vanished without a word is noticed after two
//! minutes, whatever the connection is used for (CONN-6).

use std::time::Duration;

use socket2::TcpKeepalive;

/// The first question after a minute of silence, then every 15 seconds; after four without an
/// answer the system ends the connection.
pub const fn tcp_keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4)
}
