//! The two addresses: where the service listens, and where the application is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::kind::{Kind, parse_whole};
use crate::client::fold;

/// The application: `http://host:port`. The name is resolved when a connection is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// Host name or address, an IPv6 address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// `127.0.0.1:8080`; `localhost:8080` is that too, and `:8080` is every address of the machine.
pub(super) fn listen() -> Kind<SocketAddr> {
    Kind::new(
        "an address and a port such as 127.0.0.1:8080, [::]:8080 or :8080",
        |text| {
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
        },
    )
}

/// `http://host:port`. Without a scheme the port has to be there, or any word would be an address;
/// without a host it is a port of this machine.
pub(super) fn upstream() -> Kind<Upstream> {
    Kind::new("http://host:port", |text| {
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
        Ok(Upstream {
            host: host.to_owned(),
            port,
        })
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

/// Whether a connection to `upstream` would arrive at `listen`, as far as the addresses tell: the
/// addresses of the machine's interfaces are not asked for.
pub(super) fn reaches(listen: SocketAddr, upstream: &Upstream) -> bool {
    if listen.port() != upstream.port {
        return false;
    }
    let name = upstream.host.to_ascii_lowercase();
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
