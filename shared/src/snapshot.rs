//! What the control plane publishes and every request reads once: immutable, behind arc-swap.

use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};

use crate::ban::{Cause, Expiry};
use crate::client::Client;
use crate::escalation::Ended;
use crate::netblock::Netblock;
use crate::rules::RuleSet;

/// One generation of everything that changes while the service runs.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Grows by one with each publication. A client's counters remember the generation that reset
    /// them, so that a request that still holds an older one starts over instead of slipping
    /// between (LIMIT-6).
    pub generation: u64,
    /// Every ban that matters in this mode, by netblock.
    pub bans: Arc<BanIndex>,
    /// Whether a further automatic ban can be made: false while the ledger holds only bans that may
    /// not be dropped (BAN-5).
    pub can_ban: bool,
    /// What rules.json and its lists say (RULE).
    pub rules: Arc<RuleSet>,
}

/// The span of the ban of one netblock that ends last, lifted ones left out.
///
/// One pair is enough for both questions: the netblock is banned while the latest end is ahead;
/// once it is past, the ban with the latest end is the one that ended last, which is what
/// escalation asks for (BAN-1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BanSpan {
    /// End in milliseconds since 1970; `u64::MAX` for a permanent ban.
    pub end_ms: u64,
    /// Length in milliseconds.
    pub length_ms: u64,
    /// Who or what made it.
    pub cause: Cause,
}

/// The ban that refuses a client: of those that cover it the one that ends last. Small and without
/// memory of its own, as it is named in the record of each request that it refuses (TELL-2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActiveBan {
    /// What is banned.
    pub netblock: Netblock,
    /// Who or what made it.
    pub cause: Cause,
    /// Its end.
    pub expires: Expiry,
}

/// Bans by prefix. All prefixes that cover a client are asked: the longest alone would let a lapsed
/// narrow ban hide an active wide one.
#[derive(Clone, Default)]
pub struct BanIndex {
    v4: PrefixMap<Ipv4Net, BanSpan>,
    v6: PrefixMap<Ipv6Net, BanSpan>,
}

impl BanIndex {
    /// Of the active bans that cover the client the one that ends last. Bans that are past at
    /// `now_ms` do not count, whatever was published (BAN-7).
    pub fn active(&self, client: Client, now_ms: u64) -> Option<ActiveBan> {
        self.active_of(client, now_ms, |_| true)
    }

    /// The same of those that the service did not make by itself.
    pub fn active_by_hand(&self, client: Client, now_ms: u64) -> Option<ActiveBan> {
        self.active_of(client, now_ms, |cause| !cause.is_automatic())
    }

    fn active_of(
        &self,
        client: Client,
        now_ms: u64,
        counts: impl Fn(Cause) -> bool,
    ) -> Option<ActiveBan> {
        let counts = |span: &BanSpan| counts(span.cause);
        let length = match client {
            Client::V4(_) => 32,
            Client::V6(_) => 64,
        };
        let (net, span) = match IpNet::new_assert(client.first_address(), length) {
            IpNet::V4(v4) => {
                let (net, span) = last_to_end(&self.v4, v4, Ipv4Net::supernet, counts)?;
                (IpNet::V4(net), span)
            }
            IpNet::V6(v6) => {
                let (net, span) = last_to_end(&self.v6, v6, Ipv6Net::supernet, counts)?;
                (IpNet::V6(net), span)
            }
        };
        (span.end_ms > now_ms).then(|| ActiveBan {
            netblock: Netblock::masked(net.addr(), net.prefix_len()),
            cause: span.cause,
            expires: Expiry::from_end_ms(span.end_ms),
        })
    }

    /// The end of [`Self::active`], in milliseconds since 1970; `u64::MAX` if it is permanent.
    pub fn active_until(&self, client: Client, now_ms: u64) -> Option<u64> {
        let ban = self.active(client, now_ms)?;
        Some(ban.expires.end_ms())
    }

    /// The ban of exactly this netblock that ended last, for escalation; none while one is active.
    pub fn last_ended(&self, netblock: Netblock, now_ms: u64) -> Option<Ended> {
        self.span(netblock)
            .filter(|span| span.end_ms <= now_ms)
            .map(|span| Ended {
                end_ms: span.end_ms,
                length_ms: span.length_ms,
            })
    }

    /// What is held for exactly this netblock.
    pub fn span(&self, netblock: Netblock) -> Option<BanSpan> {
        match netblock.net() {
            IpNet::V4(v4) => self.v4.get(&v4).copied(),
            IpNet::V6(v6) => self.v6.get(&v6).copied(),
        }
    }

    /// Sets or removes what is held for exactly this netblock.
    pub fn set(&mut self, netblock: Netblock, span: Option<BanSpan>) {
        match (netblock.net(), span) {
            (IpNet::V4(v4), Some(span)) => drop(self.v4.insert(v4, span)),
            (IpNet::V6(v6), Some(span)) => drop(self.v6.insert(v6, span)),
            (IpNet::V4(v4), None) => drop(self.v4.remove(&v4)),
            (IpNet::V6(v6), None) => drop(self.v6.remove(&v6)),
        }
    }

    /// Netblocks held.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

/// Of all spans that count and whose netblock holds `address` the one that ends last; of equal ones
/// the narrowest.
/// It goes from the narrowest to the widest without memory: most clients are in none, and those
/// that are refused are mostly in one.
fn last_to_end<P: Prefix + Copy>(
    spans: &PrefixMap<P, BanSpan>,
    address: P,
    wider: impl Fn(&P) -> Option<P>,
    counts: impl Fn(&BanSpan) -> bool,
) -> Option<(P, BanSpan)> {
    let mut last: Option<(P, BanSpan)> = None;
    let mut inside = Some(address);
    while let Some((net, span)) = inside.and_then(|net| spans.get_lpm(&net)) {
        if counts(span) && last.is_none_or(|(_, known)| span.end_ms > known.end_ms) {
            last = Some((net, *span));
        }
        inside = wider(&net);
    }
    last
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use proptest::prelude::*;

    fn block(text: &str) -> Netblock {
        text.parse().unwrap()
    }

    fn until(end_ms: u64) -> Option<BanSpan> {
        Some(BanSpan {
            end_ms,
            length_ms: 1,
            cause: Cause::Admin,
        })
    }

    /// A lapsed narrow ban does not hide an active wide one.
    #[test]
    fn every_covering_ban_is_asked() {
        let mut index = BanIndex::default();
        index.set(block("203.0.113.0/24"), until(10));
        index.set(block("203.0.0.0/16"), until(100));
        let client = "203.0.113.7".parse().unwrap();
        assert_eq!(index.active_until(client, 50), Some(100));
        assert_eq!(index.active_until(client, 100), None);
        let active = |now_ms| index.active(client, now_ms).map(|ban| ban.netblock);
        assert_eq!(active(50), Some(block("203.0.0.0/16")));
        assert_eq!(active(100), None);
        index.set(block("203.0.0.0/16"), None);
        assert_eq!(index.active_until(client, 5), Some(10));
    }

    proptest! {
        /// The index answers as a walk over all bans does, IPv4 and IPv6.
        #[test]
        fn the_index_agrees_with_its_list(bans in prop::collection::vec((0u32..4096, 16u8..=32, any::<bool>(), 0u64..100), 0..40), probes in prop::collection::vec((0u32..4096, any::<bool>()), 20), now in 0u64..100) {
            let address = |bits: u32, six: bool| -> IpAddr {
                if six { IpAddr::V6((u128::from(0x2001_0db8_0000_0000u64 | u64::from(bits)) << 64).into()) } else { IpAddr::V4((0xcb00_0000 | bits).into()) }
            };
            let mut index = BanIndex::default();
            let mut list: Vec<(Netblock, u64)> = Vec::new();
            for (bits, length, six, end) in bans {
                let netblock = Netblock::masked(address(bits, six), if six { length * 2 } else { length });
                list.retain(|(held, _)| *held != netblock);
                list.push((netblock, end));
                index.set(netblock, until(end));
            }
            prop_assert_eq!(index.len(), list.len());
            for (bits, six) in probes {
                let client = Client::of(address(bits, six));
                let twin = list.iter().filter(|(netblock, end)| netblock.covers_client(client) && *end > now).map(|(_, end)| *end).max();
                prop_assert_eq!(index.active_until(client, now), twin);
                let active = index.active(client, now);
                prop_assert_eq!(active.map(|ban| ban.expires.end_ms()), twin);
                let is_held = |ban: ActiveBan| list.contains(&(ban.netblock, ban.expires.end_ms()));
                prop_assert!(active.is_none_or(|ban| is_held(ban) && ban.netblock.covers_client(client)));
            }
        }
    }
}
