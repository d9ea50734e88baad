//! Where the application is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::kind::{Fault, Kind, each_entry, parse_whole};
use crate::client::fold;

/// The application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Upstream {
    /// `http://host:port`. The name is resolved when a connection is made.
    Tcp {
        /// Host name or address, an IPv6 address without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// `unix:/path`
    Unix(PathBuf),
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The longest path that the system takes for a socket, in bytes (unix(7)).
pub const LONGEST_SOCKET_PATH: usize = 107;

/// The path of a Unix socket.
pub(super) fn socket_path(path: &str) -> Result<PathBuf, &'static str> {
    match path {
        "" => Err("names no file"),
        _ if path.ends_with('/') => Err("is a directory"),
        _ if path.len() > LONGEST_SOCKET_PATH => {
            Err("is longer than 107 bytes, the longest path of a socket")
        }
        _ => Ok(PathBuf::from(path)),
    }
}

/// `http://host:port`. Without a scheme the port has to be there, or any word would be an address;
/// without a host it is a port of this machine.
pub(super) fn upstream() -> Kind<Upstream> {
    Kind::new("http://host:port or unix:/path", |text| {
        if let Some(path) = text.strip_prefix("unix:") {
            return socket_path(path).map(Upstream::Unix);
        }
        if text.starts_with("https://") {
            return Err("asks for TLS, which is not spoken to the application");
        }
        let wrong = "is not the address of an application";
        let (authority, default_port) = match text.strip_prefix("http://") {
            Some(authority) => (authority.strip_suffix('/').unwrap_or(authority), Some(80)),
            None => (text, None),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once(']').ok_or(wrong)?;
                host.parse::<Ipv6Addr>().map_err(|_| wrong)?;
                (host, port)
            }
            None => {
                let end = authority.find(':').unwrap_or(authority.len());
                let (host, port) = authority.split_at(end);
                match host {
                    "" if default_port.is_none() => ("localhost", port),
                    host if is_host(host) => (host, port),
                    _ => return Err(wrong),
                }
            }
        };
        let port = match (port.strip_prefix(':'), default_port) {
            (Some(digits), _) => parse_whole(digits, &(1..=65_535)).map_err(|_| wrong)?,
            (None, Some(default)) if port.is_empty() => default,
            (None, _) => return Err(wrong),
        };
        let host = host.to_owned();
        Ok(Upstream::Tcp { host, port })
    })
}

/// An IPv4 address, or a name of letters, digits, hyphens and the underscores that container
/// networks like.
fn is_host(host: &str) -> bool {
    let last_is_number = host
        .rsplit('.')
        .next()
        .is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if last_is_number {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    host.len() <= 253
        && host.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        })
}

/// Whether a connection to this host and port would arrive at `listen`, as far as the addresses
/// tell: the addresses of the machine's interfaces are not asked for.
pub(super) fn reaches(listen: SocketAddr, host: &str, port: u16) -> bool {
    if listen.port() != port {
        return false;
    }
    let name = host.to_ascii_lowercase();
    let upstreams: &[IpAddr] = if name == "localhost" || name.ends_with(".localhost") {
        &[
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ]
    } else {
        match name.parse() {
            // A connection to the unspecified address goes to the loopback address.
            Ok(IpAddr::V4(v4)) if v4.is_unspecified() => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
            Ok(IpAddr::V6(v6)) if v6.is_unspecified() => &[IpAddr::V6(Ipv6Addr::LOCALHOST)],
            Ok(address) => &[fold(address)],
            Err(_) => return false,
        }
    };
    let listen = fold(listen.ip());
    upstreams.iter().any(|upstream| match (listen, upstream) {
        (IpAddr::V4(any), IpAddr::V4(to)) if any.is_unspecified() => to.is_loopback(),
        // A listener on [::] takes IPv4 connections too.
        (IpAddr::V6(any), to) if any.is_unspecified() => to.is_loopback(),
        (listen, to) => listen == *to,
    })
}

/// The port of DNS.
const DNS_PORT: u16 = 53;

/// Servers that are asked for names.
pub(super) fn name_servers() -> Kind<Vec<SocketAddr>> {
    Kind::new(
        "a list of addresses such as 192.0.2.53,[2001:db8::53]:5353",
        |text| {
            let mut servers = Vec::new();
            each_entry(text, |entry| {
                let with_port = entry.parse::<SocketAddr>().ok();
                let alone = || entry.parse::<IpAddr>().ok();
                let server = with_port.or_else(|| Some((alone()?, DNS_PORT).into()));
                let wrong = || format!("has {entry:?}, which is not an address");
                servers.push(server.ok_or_else(wrong)?);
                Ok(())
            })?;
            Ok::<_, Fault>(servers)
        },
    )
}
