//! Where the engine of a fleet is: `valkey://HOST:PORT`, `valkeys://HOST:PORT` over TLS,
//! `unix:/PATH`; `redis://` and `rediss://` are the same. With `+sentinel` behind the scheme the
//! hosts are Sentinels, which know where the engine of a name is; with `+cluster` they are nodes of
//! a cluster, of which one has all keys of a fleet.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The port of an engine where none is written.
const PORT: u16 = 6379;
/// The same of a Sentinel.
const SENTINEL_PORT: u16 = 26379;
/// The most Sentinels, or nodes of a cluster.
const MAX_PLACES: usize = 16;
/// What a place looks like.
pub(super) const EXPECTED: &str = "valkeys://HOST:PORT (TLS), valkey://HOST:PORT, redis:// and rediss:// the same, valkeys+sentinel://HOST:PORT,HOST:PORT/NAME, valkeys+cluster://HOST:PORT,HOST:PORT, or unix:/PATH";

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
    /// Where Sentinels say that the engine of a name is.
    Sentinels {
        /// Each by host and port.
        places: Vec<(String, u16)>,
        /// The name.
        name: String,
        /// Whether they are asked over TLS, and the engine, too.
        tls: bool,
    },
    /// A cluster.
    Cluster {
        /// Nodes that are asked which one has the keys of the fleet, each by host and port.
        places: Vec<(String, u16)>,
        /// Whether all of them are asked over TLS.
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
        let (scheme, way) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match scheme {
            "valkey" | "redis" => false,
            "valkeys" | "rediss" => true,
            _ => return Err("has a scheme that is not known"),
        };
        // They would be shown wherever settings are.
        if rest.contains(['@', '?', '#']) {
            return Err("has more than a place: no password and no query");
        }
        match way {
            "sentinel" => {
                let (list, name) = rest.split_once('/').ok_or("lacks the name of the engine")?;
                if !is_engine_name(name) {
                    return Err("has no name of an engine");
                }
                let places = places(list, SENTINEL_PORT)?;
                let name = name.to_owned();
                Ok(Self::Sentinels { places, name, tls })
            }
            "cluster" => {
                let places = places(rest, PORT)?;
                Ok(Self::Cluster { places, tls })
            }
            "" if rest.contains(['/', ',']) => Err("has more than a place: no path and no list"),
            "" => {
                let (host, port) = host_and_port(rest, PORT)?;
                Ok(Self::Tcp { host, port, tls })
            }
            _ => Err("has a scheme that is not known"),
        }
    }

    /// Whether what is said to it could be read on the way: neither TLS, nor a Unix socket, nor
    /// loopback (FLEET-26).
    pub fn is_open(&self) -> bool {
        match self {
            Self::Tcp { host, tls, .. } => !tls && !is_loopback(host),
            Self::Sentinels { places, tls, .. } | Self::Cluster { places, tls } => {
                !tls && !places.iter().all(|(host, _)| is_loopback(host))
            }
            Self::Unix(_) => false,
        }
    }
}

/// Whether a host is this machine.
pub fn is_loopback(host: &str) -> bool {
    let address = host.parse();
    address.is_ok_and(|address: IpAddr| address.is_loopback()) || host == "localhost"
}

fn is_engine_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

/// Several of them, between commas.
fn places(list: &str, default: u16) -> Result<Vec<(String, u16)>, &'static str> {
    let places: Vec<(String, u16)> = list
        .split(',')
        .map(|place| host_and_port(place, default))
        .collect::<Result<_, _>>()?;
    match places.len() {
        0..=MAX_PLACES => Ok(places),
        _ => Err("has more than 16 places"),
    }
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`
fn host_and_port(text: &str, default: u16) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("has no ]")?;
            host.parse::<Ipv6Addr>()
                .map_err(|_| "has no address in [ ]")?;
            (
                host,
                port.strip_prefix(':').or((port.is_empty()).then_some("")),
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port {
        Some("") if !text.ends_with(':') => Ok(default),
        Some(port) => port.parse().map_err(|_| "has no port"),
        None => Err("has no port"),
    }?;
    let is_name =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || !host.bytes().all(is_name) || port == 0 {
        return Err("has no host or no port");
    }
    Ok((host.to_owned(), port))
}

/// A host and a port as they are written.
struct Written<'a>(&'a str, u16);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

fn written(places: &[(String, u16)]) -> String {
    let written = |(host, port): &(String, u16)| Written(host, *port).to_string();
    let places: Vec<String> = places.iter().map(written).collect();
    places.join(",")
}

const fn scheme(tls: bool) -> &'static str {
    if tls { "valkeys" } else { "valkey" }
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
                write!(f, "{}://{}", scheme(*tls), Written(host, *port))
            }
            Self::Sentinels { places, name, tls } => {
                let places = written(places);
                write!(f, "{}+sentinel://{places}/{name}", scheme(*tls))
            }
            Self::Cluster { places, tls } => {
                write!(f, "{}+cluster://{}", scheme(*tls), written(places))
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-26: the notations of a place, and whether traffic to it can be read on its way.
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
            (
                "redis+sentinel://10.0.0.5,[::1]:7000/main",
                "valkey+sentinel://10.0.0.5:26379,[::1]:7000/main",
                true,
            ),
            (
                "rediss+sentinel://engine/main",
                "valkeys+sentinel://engine:26379/main",
                false,
            ),
            (
                "valkey+sentinel://127.0.0.1:1,[::1]:2/a.b-c_9",
                "valkey+sentinel://127.0.0.1:1,[::1]:2/a.b-c_9",
                false,
            ),
            (
                "redis+cluster://a,10.0.0.5:7000",
                "valkey+cluster://a:6379,10.0.0.5:7000",
                true,
            ),
            ("rediss+cluster://a", "valkeys+cluster://a:6379", false),
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

    /// FLEET-3: the fault of an invalid place names the expected form; a password in a place is a
    /// fault.
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
            "valkey+cluster://a,b/0",
            "valkey+cluster://",
            "valkey+other://a",
            "valkey+sentinel://a,b",
            "valkey+sentinel://a,b/",
            "valkey+sentinel://a,/main",
            "valkey+sentinel:///main",
            "valkey+sentinel://u:p@a/main",
            "valkey+sentinel://a/main/0",
            "valkey+sentinel://a/ma in",
        ] {
            let fault = text.parse::<EnginePlace>().unwrap_err();
            assert!(fault.contains("expected valkeys://"), "{text}: {fault}");
        }
    }
}
