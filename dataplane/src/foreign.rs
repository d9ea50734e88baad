//! Bytes of another protocol than the one that is spoken where they arrive (EDGE-5): a line says so
//! once a minute, since it is mostly a mistake in somebody's settings.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that tell a protocol.
pub const LONGEST: usize = 16;
/// A line of each protocol a minute.
const SILENCE_MS: u64 = 60_000;
/// How version 2 of the PROXY protocol begins.
pub const PROXY_V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// How version 1 begins.
pub const PROXY_V1: &[u8] = b"PROXY ";

/// A protocol by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// A TLS handshake.
    Tls,
    /// A PROXY header.
    Proxy,
    /// A request in HTTP/1.1, or the beginning of HTTP/2.
    Http,
}

impl Foreign {
    /// What these first bytes are of, if that can be told.
    pub fn of(first: &[u8]) -> Option<Self> {
        let v2 = PROXY_V2.get(..first.len().min(PROXY_V2.len()));
        if first.starts_with(b"\x16\x03") || first == b"\x16" {
            Some(Self::Tls)
        } else if first.starts_with(PROXY_V1)
            || first.len() >= 5 && v2.is_some_and(|beginning| first.starts_with(beginning))
            // A reader of HTTP may have skipped the empty lines.
            || first.starts_with(b"\0\r\nQUIT\n")
        {
            Some(Self::Proxy)
        } else if first.first().is_some_and(u8::is_ascii_uppercase) {
            Some(Self::Http)
        } else {
            None
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tls => "TLS",
            Self::Proxy => "the PROXY protocol",
            Self::Http => "plain HTTP",
        }
    }
}

/// When a line was written last of each protocol, milliseconds since 1970.
static LAST: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Says, once a minute for each protocol, that a peer speaks it where something else is spoken.
pub fn tell(foreign: Foreign, peer: IpAddr, spoken: &str, now_ms: u64) {
    let [tls, proxy, http] = &LAST;
    let last = match foreign {
        Foreign::Tls => tls,
        Foreign::Proxy => proxy,
        Foreign::Http => http,
    };
    let before = last.load(Relaxed);
    let is_due = now_ms.saturating_sub(before) >= SILENCE_MS;
    // Of two workers at the same moment one writes.
    if is_due
        && last
            .compare_exchange(before, now_ms, Relaxed, Relaxed)
            .is_ok()
    {
        let name = foreign.name();
        tracing::warn!(%peer, "the peer speaks {name}; this port is {spoken}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-5: each protocol is known by its first bytes, and nothing else is taken for one.
    #[test]
    fn protocols_are_known_by_their_first_bytes() {
        assert_eq!(Foreign::of(b"\x16\x03\x01\x02\x00\x01"), Some(Foreign::Tls));
        assert_eq!(Foreign::of(b"PROXY TCP4 192.0"), Some(Foreign::Proxy));
        assert_eq!(Foreign::of(PROXY_V2), Some(Foreign::Proxy));
        assert_eq!(Foreign::of(b"\0\r\nQUIT\n!"), Some(Foreign::Proxy));
        assert_eq!(Foreign::of(b"GET / HTTP/1.1\r\n"), Some(Foreign::Http));
        for other in [&b""[..], b"\r\n\r\nGET", b"\x80\x2e\x01", b"get / "] {
            assert_eq!(Foreign::of(other), None, "{other:?}");
        }
    }
}
