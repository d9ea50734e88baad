//! The watched netblocks of `WAF_WATCH_NETS`, found by address: for their counters and for
//! `client_group` (ALERT-3).

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use weir_shared::client::fold;
use weir_shared::settings::WatchNet;

/// The watched netblocks.
pub(crate) struct Watches {
    v4: PrefixMap<Ipv4Net, WatchNet>,
    v6: PrefixMap<Ipv6Net, WatchNet>,
}

impl Watches {
    pub(crate) fn new(nets: &[WatchNet]) -> Self {
        let mut watches = Self {
            v4: PrefixMap::new(),
            v6: PrefixMap::new(),
        };
        for net in nets {
            match net.netblock.net() {
                IpNet::V4(v4) => drop(watches.v4.insert(v4, net.clone())),
                IpNet::V6(v6) => drop(watches.v6.insert(v6, net.clone())),
            }
        }
        watches
    }

    /// Every watched netblock that an address lies in, the widest first.
    pub(crate) fn covering(&self, address: IpAddr) -> impl Iterator<Item = &WatchNet> {
        let (v4, v6) = match fold(address) {
            IpAddr::V4(v4) => (
                Some(self.v4.cover_values(&Ipv4Net::from(v4)).collect()),
                None,
            ),
            IpAddr::V6(v6) => (
                None,
                Some(self.v6.cover_values(&Ipv6Net::from(v6)).collect()),
            ),
        };
        let all: Vec<&WatchNet> = v4.or(v6).unwrap_or_default();
        all.into_iter()
    }

    /// The name of the narrowest watched netblock that an address lies in.
    pub(crate) fn name(&self, address: IpAddr) -> Option<&str> {
        let found = match fold(address) {
            IpAddr::V4(v4) => self.v4.get_lpm(&Ipv4Net::from(v4)).map(|(_, net)| net),
            IpAddr::V6(v6) => self.v6.get_lpm(&Ipv6Net::from(v6)).map(|(_, net)| net),
        };
        found.map(|net| net.name.as_str())
    }

    /// Whether nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ALERT-3: all covering netblocks count a request; the log names the client by the narrowest.
    #[test]
    fn the_narrowest_names_and_all_count() {
        let net = |name: &str, netblock: &str| WatchNet {
            name: name.to_owned(),
            netblock: netblock.parse().unwrap(),
        };
        let watches = Watches::new(&[
            net("narrow", "203.0.113.0/24"),
            net("wide", "203.0.0.0/16"),
            net("six", "2001:db8::/32"),
        ]);
        let names = |address: &str| -> Vec<&str> {
            let covering = watches.covering(address.parse().unwrap());
            covering.map(|net| net.name.as_str()).collect()
        };
        assert_eq!(names("203.0.113.7"), ["wide", "narrow"]);
        assert_eq!(names("::ffff:203.0.1.1"), ["wide"]);
        assert_eq!(names("2001:db8::1"), ["six"]);
        assert_eq!(names("198.51.100.7"), [""; 0]);
        assert_eq!(watches.name("203.0.113.7".parse().unwrap()), Some("narrow"));
        assert_eq!(watches.name("198.51.100.7".parse().unwrap()), None);
        assert!(!watches.is_empty() && Watches::new(&[]).is_empty());
    }
}
