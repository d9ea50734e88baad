//! Where the service listens (EDGE-1): addresses of plain HTTP, addresses of TLS, Unix sockets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::address::{self, Upstream, socket_path};
use super::kind::{Fault, Kind, each_entry, parse_whole};

/// Places in `WAF_LISTEN` at most.
const MAX_PLACES: usize = 64;

/// One place of `WAF_LISTEN`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Where.
    pub place: Place,
    /// Whether TLS is spoken there.
    pub tls: bool,
}

/// What a listening socket is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A file.
    Unix(PathBuf),
}

impl Listen {
    /// Plain HTTP on this address.
    pub const fn plain(address: SocketAddr) -> Self {
        Self {
            place: Place::Tcp(address),
            tls: false,
        }
    }

    /// The address; none of a Unix socket.
    pub const fn address(&self) -> Option<SocketAddr> {
        match self.place {
            Place::Tcp(address) => Some(address),
            Place::Unix(_) => None,
        }
    }

    /// Whether two of them cannot stand beside each other. A port that the system chooses is
    /// another each time.
    fn collides(&self, other: &Self) -> bool {
        self.place == other.place && self.address().is_none_or(|address| address.port() != 0)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(address) if self.tls => write!(f, "https://{address}"),
            Place::Tcp(address) => address.fmt(f),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            let place = Place::Unix(socket_path(path)?);
            return Ok(Self { place, tls: false });
        }
        let (tls, text) = match text.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let place = Place::Tcp(read_address(text)?);
        Ok(Self { place, tls })
    }
}

/// `127.0.0.1:8080`; `localhost:8080` is that too, and `:8080` is every address of the machine.
fn read_address(text: &str) -> Result<SocketAddr, &'static str> {
    let wrong = "is not an address and a port";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.split_once(':').ok_or(wrong)?;
    let address = match host {
        "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => return Err(wrong),
    };
    let port = parse_whole(port, &(0..=65_535)).map_err(|_| wrong)?;
    Ok(SocketAddr::new(address, port))
}

/// One address of plain HTTP.
pub(super) fn one_address() -> Kind<SocketAddr> {
    Kind::new(
        "an address and a port such as 127.0.0.1:8080, [::]:8080 or :8080",
        read_address,
    )
}

/// `WAF_LISTEN`
pub(super) fn places() -> Kind<Vec<Listen>> {
    Kind::new(
        "addresses and ports such as 127.0.0.1:8080, [::]:8080 or :8080, separated by commas, https:// before those of TLS, or unix: and a path",
        |text| {
            let mut places: Vec<Listen> = Vec::new();
            let alone = !text.contains(',');
            each_entry(text, |entry| {
                let named = |fault: &str| match fault {
                    fault if alone => fault.to_owned(),
                    fault => format!("has {entry:?}, which {fault}"),
                };
                let listen: Listen = entry.parse().map_err(named)?;
                if places.iter().any(|other| other.collides(&listen)) {
                    return Err(format!("has {entry:?}, where it listens already"));
                }
                places.push(listen);
                Ok(())
            })?;
            match places.len() {
                0 => Err(Fault::from("names no address")),
                count if count > MAX_PLACES => Err(Fault::from(format!(
                    "names {count} places, {MAX_PLACES} are the most"
                ))),
                _ => Ok(places),
            }
        },
    )
}

/// `WAF_SOCKET_MODE`: three or four octal digits.
pub(super) fn mode() -> Kind<u32> {
    Kind::new("an octal mode such as 0660", |text| {
        let digits = text.len() == 3 || text.len() == 4 && text.starts_with('0');
        let octal = digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
        mode.ok_or("is not a mode")
    })
}

/// Whether a connection to `upstream` would arrive at `listen`, as far as the two tell.
pub(super) fn reaches(listen: &Listen, upstream: &Upstream) -> bool {
    match (&listen.place, upstream) {
        (Place::Tcp(address), Upstream::Tcp { host, port }) => {
            address::reaches(*address, host, *port)
        }
        (Place::Unix(path), Upstream::Unix(application)) => path == application,
        (Place::Tcp(_), Upstream::Unix(_)) | (Place::Unix(_), Upstream::Tcp { .. }) => false,
    }
}
