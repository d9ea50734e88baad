//! Where the engine of a fleet is: `valkey://HOST:PORT`, `valkeys://HOST:PORT` over TLS,
//! `unix:/PATH`; `redis://` and `rediss://` are the same.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The port of an engine where none is written.
const PORT: u16 = 6379;
/// What a place looks like.
pub(super) const EXPECTED: &str =
    "valkeys://HOST:PORT (TLS), valkey://HOST:PORT, redis:// and rediss:// the same, or unix:/PATH";

/// One engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnginePlace {
    /// Over TCP.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether it is asked over TLS.
        tls: bool,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl EnginePlace {
    /// Reads a place.
    ///
    /// # Errors
    /// What is wrong with it, as a predicate.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') && !path.ends_with('/') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err("has no whole path")
            };
        }
        let (scheme, rest) = text.split_once("://").ok_or("names no engine")?;
        let tls = match scheme {
            "valkey" | "redis" => false,
            "valkeys" | "rediss" => true,
            _ => return Err("has a scheme that is not known"),
        };
        // They would be shown wherever settings are.
        if rest.contains(['@', '/', '?', '#', ',']) {
            return Err("has more than a place: no password, path, query or list");
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("has no ]")?;
                host.parse::<Ipv6Addr>()
                    .map_err(|_| "has no address in [ ]")?;
                (
                    host,
                    port.strip_prefix(':').or((port.is_empty()).then_some("")),
                )
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, Some("")),
            },
        };
        let port = match port {
            Some("") if !rest.ends_with(':') => Ok(PORT),
            Some(port) => port.parse().map_err(|_| "has no port"),
            None => Err("has no port"),
        }?;
        let is_name =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
        if host.is_empty() || !host.bytes().all(is_name) || port == 0 {
            return Err("has no host or no port");
        }
        Ok(Self::Tcp {
            host: host.to_owned(),
            port,
            tls,
        })
    }

    /// Whether what is said to it could be read on the way: neither TLS, nor a Unix socket, nor
    /// loopback (FLEET-26).
    pub fn is_open(&self) -> bool {
        match self {
            Self::Tcp { host, tls, .. } => {
                let loopback = host
                    .parse()
                    .is_ok_and(|address: IpAddr| address.is_loopback());
                !tls && !loopback && host != "localhost"
            }
            Self::Unix(_) => false,
        }
    }
}

impl FromStr for EnginePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text).map_err(|what| format!("{text:?} {what}: expected {EXPECTED}"))
    }
}

impl fmt::Display for EnginePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, tls } => {
                let scheme = if *tls { "valkeys" } else { "valkey" };
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-26: a place as it may be written, and whether what is said to it can be read on the
    /// way.
    #[test]
    fn places_are_read() {
        for (text, written, is_open) in [
            ("valkey://10.0.0.5", "valkey://10.0.0.5:6379", true),
            ("redis://engine:7000", "valkey://engine:7000", true),
            ("rediss://engine", "valkeys://engine:6379", false),
            (
                "valkeys://[2001:db8::1]:1",
                "valkeys://[2001:db8::1]:1",
                false,
            ),
            ("valkey://127.0.0.1:9", "valkey://127.0.0.1:9", false),
            ("valkey://[::1]", "valkey://[::1]:6379", false),
            ("unix:/run/valkey.sock", "unix:/run/valkey.sock", false),
        ] {
            let place: EnginePlace = text.parse().unwrap();
            assert_eq!(
                (place.to_string().as_str(), place.is_open()),
                (written, is_open),
                "{text}"
            );
            assert_eq!(written.parse::<EnginePlace>().unwrap(), place);
        }
    }

    /// FLEET-3: what is no place is a fault that says what is expected; a password in it is one.
    #[test]
    fn what_is_no_place_is_a_fault() {
        for text in [
            "",
            "10.0.0.5",
            "http://engine",
            "valkey://",
            "valkey://u:p@engine",
            "valkey://engine/0",
            "valkey://engine?db=1",
            "valkey://engine:",
            "valkey://engine:0",
            "valkey://engine:65536",
            "valkey://[::1",
            "valkey://[engine]",
            "valkey://[::1]9",
            "unix:run",
            "unix:/run/",
            "valkey://a,b",
        ] {
            let fault = text.parse::<EnginePlace>().unwrap_err();
            assert!(fault.contains("expected valkeys://"), "{text}: {fault}");
        }
    }
}
