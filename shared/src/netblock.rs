//! Netblocks, and sets of netblocks.
//!
//! A [`Netblock`] is always masked, always folded to IPv4 where it was IPv4-mapped. Ban lookups use
//! [`crate::snapshot::BanIndex`]; the sets here hold static lists, which are asked for containment
//! only.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixSet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::client::{Client, fold};

/// A masked prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Netblock(IpNet);

/// The prefix lengths of the netblock of a client: `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixLengths {
    /// 8 to 32.
    pub v4: u8,
    /// 16 to 64.
    pub v6: u8,
}

impl Default for PrefixLengths {
    fn default() -> Self {
        Self { v4: 24, v6: 56 }
    }
}

impl Netblock {
    /// The netblock of a client: its address masked to the ban prefix lengths.
    pub fn of(client: Client, lengths: PrefixLengths) -> Self {
        let length = match client {
            Client::V4(_) => lengths.v4,
            Client::V6(_) => lengths.v6,
        };
        Self::masked(client.first_address(), length)
    }

    /// The client alone: its address (/32), or its /64.
    pub fn alone(client: Client) -> Self {
        Self::of(client, PrefixLengths { v4: 32, v6: 64 })
    }

    /// `address` masked to `length` bits. A length beyond the address's own means the address
    /// alone.
    pub fn masked(address: IpAddr, length: u8) -> Self {
        Self(
            IpNet::new(address, length)
                .unwrap_or_else(|_| IpNet::from(address))
                .trunc(),
        )
    }

    /// The prefix itself.
    pub fn net(self) -> IpNet {
        self.0
    }

    /// Whether it is wider than a prefix of this length.
    pub fn is_wider_than(self, lengths: PrefixLengths) -> bool {
        let length = match self.0 {
            IpNet::V4(_) => lengths.v4,
            IpNet::V6(_) => lengths.v6,
        };
        self.0.prefix_len() < length
    }

    /// Whether the address lies inside.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&fold(address))
    }

    /// Whether every address of `other` lies inside.
    pub fn covers(self, other: Self) -> bool {
        self.0.contains(&other.0)
    }

    /// The netblock that a ban can refuse: a client is a whole /64, so a narrower netblock is
    /// widened to a /64 (BAN-4).
    #[must_use]
    pub fn widened_to_clients(self) -> Self {
        match self.0 {
            IpNet::V6(v6) if v6.prefix_len() > 64 => Self::masked(IpAddr::V6(v6.addr()), 64),
            IpNet::V4(_) | IpNet::V6(_) => self,
        }
    }

    /// Its clients, from the first to the last.
    pub fn clients(self) -> RangeInclusive<Client> {
        let (first, last) = match self.0 {
            IpNet::V4(net) => (net.network().into(), net.broadcast().into()),
            IpNet::V6(net) => (net.network().into(), net.broadcast().into()),
        };
        Client::of(first)..=Client::of(last)
    }

    /// Whether the netblock covers the client whole.
    pub fn covers_client(self, client: Client) -> bool {
        self.covers(Self::alone(client))
    }
}

impl fmt::Display for Netblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is no netblock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotANetblock {
    /// The text is neither an address nor a prefix.
    #[error(
        "{0:?} is not a netblock: expected an address or a prefix such as 192.0.2.0/24 or 2001:db8::/32"
    )]
    Syntax(String),
    /// The address carries a zone (`fe80::1%eth0`, RFC 4007 §11).
    #[error("{0:?} carries a zone: expected an address or a prefix without one")]
    Zone(String),
}

impl FromStr for Netblock {
    type Err = NotANetblock;

    /// Reads an address or a prefix; host bits are masked off, and an IPv4-mapped prefix of at
    /// least 96 bits is IPv4.
    fn from_str(text: &str) -> Result<Self, NotANetblock> {
        if text.contains('%') {
            return Err(NotANetblock::Zone(text.to_owned()));
        }
        let net = match text.parse::<IpNet>() {
            Ok(net) => net,
            Err(_) => IpNet::from(
                text.parse::<IpAddr>()
                    .map_err(|_| NotANetblock::Syntax(text.to_owned()))?,
            ),
        };
        Ok(match (fold(net.addr()), net) {
            (IpAddr::V4(v4), IpNet::V6(v6)) if v6.prefix_len() >= 96 => {
                Self::masked(IpAddr::V4(v4), v6.prefix_len() - 96)
            }
            _ => Self(net.trunc()),
        })
    }
}

impl Serialize for Netblock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Netblock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A static list of netblocks: allow, deny, trusted proxies.
#[derive(Clone, Default)]
pub struct NetSet {
    v4: PrefixSet<Ipv4Net>,
    v6: PrefixSet<Ipv6Net>,
    blocks: Vec<Netblock>,
}

impl NetSet {
    /// Whether the set has no member; an empty set costs one comparison a request.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether a member covers the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        match fold(address) {
            IpAddr::V4(v4) => self.v4.get_lpm(&Ipv4Net::from(v4)).is_some(),
            IpAddr::V6(v6) => self.v6.get_lpm(&Ipv6Net::from(v6)).is_some(),
        }
    }

    /// The members, as they were given.
    pub fn blocks(&self) -> &[Netblock] {
        &self.blocks
    }
}

impl FromIterator<Netblock> for NetSet {
    fn from_iter<I: IntoIterator<Item = Netblock>>(blocks: I) -> Self {
        let mut set = Self::default();
        for block in blocks {
            match block.net() {
                IpNet::V4(v4) => set.v4.insert(v4),
                IpNet::V6(v6) => set.v6.insert(v6),
            };
            set.blocks.push(block);
        }
        set
    }
}

impl fmt::Debug for NetSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.blocks.iter().map(ToString::to_string))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(text: &str) -> Netblock {
        text.parse().unwrap()
    }

    #[test]
    fn a_netblock_is_masked_folded_and_without_zone() {
        assert_eq!(block("203.0.113.7/24").to_string(), "203.0.113.0/24");
        assert_eq!(block("203.0.113.7").to_string(), "203.0.113.7/32");
        assert_eq!(
            block("::ffff:203.0.113.7/120").to_string(),
            "203.0.113.0/24"
        );
        assert_eq!(
            "fe80::1%eth0".parse::<Netblock>(),
            Err(NotANetblock::Zone("fe80::1%eth0".to_owned()))
        );
        assert!("203.0.113.0/33".parse::<Netblock>().is_err());
    }

    /// BAN-4: a ban narrower than a client refuses the whole client.
    #[test]
    fn a_netblock_narrower_than_a_client_widens() {
        assert_eq!(
            block("2001:db8::1").widened_to_clients(),
            block("2001:db8::/64")
        );
        assert_eq!(
            block("203.0.113.7").widened_to_clients(),
            block("203.0.113.7/32")
        );
    }

    proptest! {
        /// The trie answers as a walk over the list does.
        #[test]
        fn a_set_agrees_with_its_list(blocks in prop::collection::vec((any::<u32>(), 0u8..=32), 0..20), probe in any::<u32>()) {
            let blocks: Vec<_> = blocks.into_iter().map(|(bits, length)| Netblock::masked(IpAddr::V4(bits.into()), length)).collect();
            let set: NetSet = blocks.iter().copied().collect();
            let probe = IpAddr::V4(probe.into());
            prop_assert_eq!(set.contains(probe), blocks.iter().any(|block| block.contains(probe)));
            for block in &blocks {
                prop_assert!(set.contains(block.net().addr()));
            }
        }
    }
}
