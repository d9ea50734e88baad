//! Where a client connection came from.

use std::net::IpAddr;

/// Where a connection came from, and how.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The address of the peer.
    pub peer: IpAddr,
    /// Whether it came over a Unix socket.
    pub local: bool,
    /// Whether it is a trusted proxy.
    pub trusted: bool,
    /// `http` or `https`
    pub scheme: &'static str,
}

/// An address as text. Formatting that of IPv4 costs more than the rest of a connection's state.
pub(super) fn written(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else {
        return address.to_string();
    };
    let mut text = String::with_capacity(15);
    for (at, octet) in address.octets().into_iter().enumerate() {
        if at > 0 {
            text.push('.');
        }
        text.push_str(itoa::Buffer::new().format(octet));
    }
    text
}
