//! Networks about which the DNS server has given no usable answer since its last one (CRAWL-3). The
//! cause may be the server, or one zone whose owner wants it so: the server waits for a silent zone
//! for longer than the time-out here. The same holds for answers that are too large for UDP and cut
//! over TCP, or unreadable. So that nobody can open the breaker for others with addresses of his
//! own, each network counts once, and is asked about again after the others. Pure: time is an
//! argument, nanoseconds of the monotonic clock.

use std::net::IpAddr;

use weir_shared::netblock::Netblock;

/// The most networks that are remembered: more than the failures in a row that open the breaker.
const MAX_NETWORKS: usize = 64;
/// The width of a network: as many addresses as one owner often has.
const NETWORK_V4: u8 = 16;
const NETWORK_V6: u8 = 32;
/// How long other networks come first while the breaker is open: twice the time that it stays open.
const AFTER_OTHERS_NS: u64 = 60_000_000_000;

/// The networks, each with the time of its last silence, the newest last.
#[derive(Debug, Default)]
pub(super) struct Silent(Vec<(Netblock, u64)>);

impl Silent {
    /// Notes that an address got no usable answer. Returns whether its network is new.
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

    /// Until when other addresses come first; none if this one need not wait.
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

    /// CRAWL-3: a network counts once, for any of its addresses, and waits for other networks; 64
    /// networks are remembered.
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
