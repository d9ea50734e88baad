//! Networks about which the DNS server said nothing that can be used since it last did (CRAWL-3).
//! Silence may be the server's, or that of one zone whose owner has made it so: the server waits
//! longer for it than anybody here. So may an answer that is too large for UDP, and is cut over
//! TCP, or cannot be read. So that nobody shuts the breaker for others with addresses of
//! his own, each network counts once, and is asked about again after the others. Pure: time is an
//! argument, nanoseconds of the monotonic clock.

use std::net::IpAddr;

use weir_shared::netblock::Netblock;

/// The networks that are remembered, more than failures in a row that open the breaker.
const MAX_NETWORKS: usize = 64;
/// How wide a network is: what one owner of addresses often has.
const NETWORK_V4: u8 = 16;
const NETWORK_V6: u8 = 32;
/// After so long a network may be the one that is asked about first, as long as the breaker is
/// open, which is half of it.
const AFTER_OTHERS_NS: u64 = 60_000_000_000;

/// The networks, each with the time of its last silence, the newest last.
#[derive(Debug, Default)]
pub(super) struct Silent(Vec<(Netblock, u64)>);

impl Silent {
    /// Nothing was said about an address. Whether its network is a new one.
    pub(super) fn note(&mut self, address: IpAddr, now_ns: u64) -> bool {
        let network = network(address);
        let before = self.0.iter().position(|(held, _)| *held == network);
        if let Some(before) = before {
            self.0.remove(before);
        } else if self.0.len() >= MAX_NETWORKS {
            self.0.remove(0);
        }
        self.0.push((network, now_ns));
        before.is_none()
    }

    /// Until when others go before an address; none where it is as good as they are.
    pub(super) fn until(&self, address: IpAddr, now_ns: u64) -> Option<u64> {
        let network = network(address);
        let (_, since_ns) = self.0.iter().find(|(held, _)| *held == network)?;
        let until_ns = since_ns.saturating_add(AFTER_OTHERS_NS);
        (now_ns < until_ns).then_some(until_ns)
    }
}

fn network(address: IpAddr) -> Netblock {
    let length = match address {
        IpAddr::V4(_) => NETWORK_V4,
        IpAddr::V6(_) => NETWORK_V6,
    };
    Netblock::masked(address, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// CRAWL-3: a network counts once, whichever of its addresses is asked about, and waits for the
    /// others; 64 are remembered.
    #[test]
    fn a_network_counts_once() {
        let mut silent = Silent::default();
        assert!(silent.note(address("2001:db8:1::1"), 0));
        assert!(!silent.note(address("2001:db8:2::1"), SECOND_NS));
        assert!(silent.note(address("203.0.113.1"), SECOND_NS));
        let own = address("2001:db8:3::1");
        assert_eq!(silent.until(own, 0), Some(61 * SECOND_NS));
        assert_eq!(silent.until(own, 61 * SECOND_NS), None);
        assert_eq!(silent.until(address("2001:db9::1"), 0), None);
        for number in 0..100 {
            silent.note(address(&format!("11.{number}.0.1")), SECOND_NS);
        }
        assert_eq!(silent.0.len(), MAX_NETWORKS);
        assert_eq!(silent.until(own, 0), None);
    }
}
