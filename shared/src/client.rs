//! The client that limits and bans apply to: one IPv4 address or one IPv6 /64 (CLIENT-1).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One IPv4 address, or one IPv6 /64. Addresses that stand for an IPv4 address are IPv4 clients
/// ([`fold`], CLIENT-1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Client {
    /// The address, in host order.
    V4(u32),
    /// The upper 64 bits of the address, in host order.
    V6(u64),
}

impl Client {
    /// The client an address belongs to.
    pub fn of(address: IpAddr) -> Self {
        match fold(address) {
            IpAddr::V4(v4) => Self::V4(u32::from(v4)),
            IpAddr::V6(v6) => Self::V6((u128::from(v6) >> 64) as u64),
        }
    }

    /// The first address of the client: the address itself, or the /64 with a zero interface part.
    pub fn first_address(self) -> IpAddr {
        match self {
            Self::V4(bits) => IpAddr::V4(Ipv4Addr::from(bits)),
            Self::V6(bits) => IpAddr::V6(Ipv6Addr::from(u128::from(bits) << 64)),
        }
    }
}

/// Folds an IPv6 address that stands for an IPv4 address to the latter: IPv4-mapped
/// (`::ffff:a.b.c.d`, RFC 4291 §2.5.5.2), and translated by NAT64 under its well-known prefix
/// (`64:ff9b::a.b.c.d`, RFC 6052 §2.1), where one /64 would be the whole IPv4 internet (FORWARD-2).
pub fn fold(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

impl fmt::Display for Client {
    /// An IPv4 address, or the /64 in CIDR form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(bits) => Ipv4Addr::from(*bits).fmt(f),
            Self::V6(bits) => write!(f, "{}/64", Ipv6Addr::from(u128::from(*bits) << 64)),
        }
    }
}

/// Neither an address nor an IPv6 /64.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a client: expected an IPv4 address, an IPv6 address or an IPv6 /64")]
pub struct NotAClient(String);

impl FromStr for Client {
    type Err = NotAClient;

    fn from_str(text: &str) -> Result<Self, NotAClient> {
        let address = text
            .strip_suffix("/64")
            .map_or(text, |v6| if v6.contains(':') { v6 } else { text });
        address
            .parse::<IpAddr>()
            .map(Self::of)
            .map_err(|_| NotAClient(text.to_owned()))
    }
}

impl Serialize for Client {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Client {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CLIENT-1: IPv4-mapped IPv6 folds to IPv4, and one /64 is one client.
    #[test]
    fn a_client_is_an_ipv4_address_or_a_64() {
        let of = |text: &str| Client::of(text.parse().unwrap());
        assert_eq!(of("::ffff:203.0.113.7"), of("203.0.113.7"));
        // FORWARD-2
        assert_eq!(of("64:ff9b::203.0.113.7"), of("203.0.113.7"));
        assert_eq!(of("64:ff9b:1::203.0.113.7").to_string(), "64:ff9b:1::/64");
        assert_eq!(of("64:ff9b::1:cb00:7107").to_string(), "64:ff9b::/64");
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
        assert_eq!(of("203.0.113.7").to_string(), "203.0.113.7");
    }

    /// CLIENT-1: a client that is written and read back is the same client.
    #[test]
    fn a_client_survives_its_text() {
        for text in ["203.0.113.7", "2001:db8:1:2::/64"] {
            assert_eq!(text.parse::<Client>().unwrap().to_string(), text);
        }
        assert!("203.0.113.7/64".parse::<Client>().is_err());
        assert!("example.org".parse::<Client>().is_err());
    }
}
