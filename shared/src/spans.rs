//! Netblocks as merged spans of addresses, to check whether another netblock overlaps any of them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::netblock::Netblock;

/// Spans of addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spans {
    v4: Family,
    v6: Family,
}

/// First and last addresses, in order, without adjacent spans.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Family(Vec<(u128, u128)>);

impl Spans {
    /// Whether a netblock overlaps one of the spans.
    pub fn meet(&self, netblock: Netblock) -> bool {
        let (first, last) = ends(netblock);
        let family = match netblock.net() {
            IpNet::V4(_) => &self.v4,
            IpNet::V6(_) => &self.v6,
        };
        let begun = family.0.partition_point(|(begin, _)| *begin <= last);
        let before = begun.checked_sub(1).and_then(|at| family.0.get(at));
        before.is_some_and(|(_, end)| *end >= first)
    }

    /// The address family of which the spans contain more than half of all addresses; for IPv6, of
    /// 2000::/3, from which addresses are assigned.
    pub fn mostly(&self) -> Option<&'static str> {
        let v6 = 0x2000 << 112;
        [
            ("IPv4", &self.v4, 0, 1 << 32),
            ("IPv6", &self.v6, v6, 1 << 125),
        ]
        .into_iter()
        .find(|(_, family, first, count)| family.count_in(*first, first + (count - 1)) > count / 2)
        .map(|(name, ..)| name)
    }

    /// Whether there are no spans.
    pub fn is_empty(&self) -> bool {
        self.v4.0.is_empty() && self.v6.0.is_empty()
    }
}

impl FromIterator<Netblock> for Spans {
    fn from_iter<I: IntoIterator<Item = Netblock>>(netblocks: I) -> Self {
        let mut spans = Self::default();
        for netblock in netblocks {
            let family = match netblock.net() {
                IpNet::V4(_) => &mut spans.v4,
                IpNet::V6(_) => &mut spans.v6,
            };
            family.0.push(ends(netblock));
        }
        spans.v4.join();
        spans.v6.join();
        spans
    }
}

impl Family {
    /// How many addresses of a range the spans contain. Not for the range of all of IPv6, whose
    /// number does not fit.
    fn count_in(&self, first: u128, last: u128) -> u128 {
        let within = self.0.iter().map(|(begin, end)| {
            let (begin, end) = (first.max(*begin), last.min(*end));
            (end + 1).saturating_sub(begin)
        });
        within.sum()
    }

    /// Sorts the spans, and merges adjacent ones.
    fn join(&mut self) {
        self.0.sort_unstable();
        self.0.dedup_by(|(begin, end), (_, before)| {
            let touches = *begin <= before.saturating_add(1);
            if touches {
                *before = (*before).max(*end);
            }
            touches
        });
        self.0.shrink_to_fit();
    }
}

/// The first address and the last one.
fn ends(netblock: Netblock) -> (u128, u128) {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let net = netblock.net();
    (bits(net.network()), bits(net.broadcast()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn netblock() -> impl Strategy<Value = Netblock> {
        (0u32..1 << 12, 18u8..=32, any::<bool>()).prop_map(|(bits, length, six)| {
            if six {
                let address = (0x2001_0db8_u128 << 96) | u128::from(bits) << 64;
                Netblock::masked(IpAddr::V6(address.into()), length * 2)
            } else {
                Netblock::masked(IpAddr::V4(bits.into()), length)
            }
        })
    }

    proptest! {
        /// CRAWL-4: spans meet a netblock exactly where one of the netblocks covers it or is
        /// covered by it.
        #[test]
        fn spans_agree_with_their_list(members in prop::collection::vec(netblock(), 0..40), probes in prop::collection::vec(netblock(), 20)) {
            let spans: Spans = members.iter().copied().collect();
            prop_assert_eq!(spans.is_empty(), members.is_empty());
            for probe in probes {
                let twin = members.iter().any(|one| one.covers(probe) || probe.covers(*one));
                prop_assert_eq!(spans.meet(probe), twin, "{}", probe);
            }
        }
    }

    /// Spans that begin with the first of all addresses, and end with the last.
    #[test]
    fn everything_meets_everything() {
        let all: Spans = ["0.0.0.0/0", "::/0"]
            .map(|text| text.parse().unwrap())
            .into_iter()
            .collect();
        for text in ["0.0.0.0/32", "255.255.255.255", "::", "ffff::/16"] {
            assert!(all.meet(text.parse().unwrap()), "{text}");
        }
    }
}
