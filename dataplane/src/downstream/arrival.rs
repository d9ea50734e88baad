//! Where a client connection came from.

use std::net::IpAddr;

use weir_shared::settings::IdentitySettings;

use crate::identity::Sender;

/// Where a connection came from, and how.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The address of the peer.
    pub peer: IpAddr,
    /// What the peer is.
    pub peer_is: PeerIs,
    /// Whether what it says of clients is believed.
    pub trusted: bool,
    /// `http` or `https`
    pub scheme: &'static str,
}

impl Arrival {
    /// The peer, as the sender of a request.
    pub fn sender(&self) -> Sender {
        Sender {
            peer: self.peer,
            trusted: self.trusted,
            is_proxy: self.trusted || self.peer_is == PeerIs::ProxyItself,
            scheme: self.scheme,
        }
    }
}

/// What the peer of a connection is, as far as the connection itself tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerIs {
    /// Whoever has that address: the settings say whether it is trusted.
    Anybody,
    /// Whoever may write to a Unix socket: a trusted proxy of this machine (EDGE-1).
    Local,
    /// A trusted proxy that says by the PROXY protocol that it speaks for itself: it is not
    /// believed on what it says of clients (EDGE-4).
    ProxyItself,
}

impl PeerIs {
    /// Whether what the peer says of clients is believed.
    pub fn trusted(self, peer: IpAddr, settings: &IdentitySettings) -> bool {
        match self {
            Self::Anybody => settings.trusts(peer),
            Self::Local => true,
            Self::ProxyItself => false,
        }
    }
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
