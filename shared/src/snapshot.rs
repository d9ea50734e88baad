//! The snapshot that the control plane publishes and every request loads once: immutable, behind
//! arc-swap.

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
    /// them, so that a request with an older snapshot starts over and cannot miss the ban
    /// (LIMIT-6).
    pub generation: u64,
    /// Every ban that counts in this mode, by netblock.
    pub bans: Arc<BanIndex>,
    /// Whether a further automatic ban can be made: false while the ledger holds only bans that may
    /// not be dropped (BAN-5).
    pub can_ban: bool,
    /// The rules of rules.json and its lists (RULE).
    pub rules: Arc<RuleSet>,
}

/// Of one netblock's bans that are not lifted, the span of the one that ends last.
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
    /// Its cause.
    pub cause: Cause,
    /// Whether it is an automatic ban.
    pub is_automatic: bool,
}

/// The ban that refuses a client: of those that cover it, the one that ends last. Small and without
/// heap memory, because the record of each refused request contains it (TELL-2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActiveBan {
    /// What is banned.
    pub netblock: Netblock,
    /// Who or what made it.
    pub cause: Cause,
    /// Its end.
    pub expires: Expiry,
}

/// Bans by prefix. A lookup checks all prefixes that cover a client: with the longest alone, an
/// expired narrow ban would hide an active wide one.
///
/// A copy shares everything with the original except later changes: the ledger publishes a copy at
/// every change, and with 100,000 bans a full copy would take milliseconds.
#[derive(Clone, Default)]
pub struct BanIndex {
    v4: Shards<Ipv4Net>,
    v6: Shards<Ipv6Net>,
    /// How far the data plane's clock is ahead of the time of the spans, in milliseconds
    /// (FLEET-22).
    ahead_ms: i64,
}

/// Spans of one address family, in maps by the first bits of the prefix. Prefixes up to the usual
/// width of a client's netblock are spread over shards, a few hundred in each with 100,000 bans;
/// wider ones, which are few, have a map of their own.
#[derive(Clone)]
struct Shards<P> {
    wide: Option<Arc<PrefixMap<P, BanSpan>>>,
    /// None for an empty shard. The list is empty until there is a span.
    narrow: Vec<Option<Arc<PrefixMap<P, BanSpan>>>>,
}

/// The number of shards of a family, as a power of two.
const SHARD_BITS: u32 = 9;

/// A prefix of this family.
trait Sharded: Prefix + Copy {
    /// The first bits, which determine its shard; none if it is wider than these.
    fn first_bits(self) -> Option<u64>;

    /// Its shard; none for a wide prefix.
    fn shard(self) -> Option<usize> {
        // Fibonacci hashing spreads neighbouring prefixes, which lists often contain.
        let spread = self.first_bits()?.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(spread >> (u64::BITS - SHARD_BITS)).ok()
    }
}

impl Sharded for Ipv4Net {
    fn first_bits(self) -> Option<u64> {
        (self.prefix_len() >= 24).then(|| u64::from(self.addr().to_bits() >> 8))
    }
}

impl Sharded for Ipv6Net {
    fn first_bits(self) -> Option<u64> {
        let bits = self.addr().to_bits() >> 80;
        (self.prefix_len() >= 48).then(|| u64::try_from(bits).unwrap_or(0))
    }
}

impl<P> Default for Shards<P> {
    fn default() -> Self {
        Self {
            wide: None,
            narrow: Vec::new(),
        }
    }
}

impl<P: Sharded> Shards<P> {
    fn of(&self, net: P) -> Option<&PrefixMap<P, BanSpan>> {
        let spans = match net.shard() {
            Some(shard) => self.narrow.get(shard)?,
            None => &self.wide,
        };
        spans.as_deref()
    }

    fn get(&self, net: P) -> Option<BanSpan> {
        self.of(net)?.get(&net).copied()
    }

    fn set(&mut self, net: P, span: Option<BanSpan>) {
        let held = match net.shard() {
            Some(shard) => {
                if self.narrow.is_empty() {
                    self.narrow.resize(1 << SHARD_BITS, None);
                }
                let Some(held) = self.narrow.get_mut(shard) else {
                    return;
                };
                held
            }
            None => &mut self.wide,
        };
        let spans = Arc::make_mut(held.get_or_insert_default());
        match span {
            Some(span) => drop(spans.insert(net, span)),
            None => drop(spans.remove(&net)),
        }
        if spans.is_empty() {
            *held = None;
        }
    }

    fn len(&self) -> usize {
        let all = self.narrow.iter().chain([&self.wide]).flatten();
        all.map(|spans| spans.len()).sum()
    }

    /// Of all counting spans whose netblock contains `address`, the one that ends last; of equal
    /// ones the narrowest.
    fn last_to_end(
        &self,
        address: P,
        wider: impl Fn(&P) -> Option<P>,
        counts: impl Fn(&BanSpan) -> bool,
    ) -> Option<(P, BanSpan)> {
        let narrow = self.of(address);
        let wide = self.wide.as_deref();
        // Every sharded prefix is narrower than every wide one.
        [narrow, wide]
            .into_iter()
            .flatten()
            .fold(None, |last, spans| {
                last_to_end(spans, address, &wider, &counts, last)
            })
    }
}

impl BanIndex {
    /// The index for a clock that is ahead of the spans' time by `ahead_ms`.
    #[must_use]
    pub fn seen_ahead(mut self, ahead_ms: i64) -> Self {
        self.ahead_ms = ahead_ms;
        self
    }

    /// Converts a time of the spans to the clock of the caller.
    fn seen(&self, end_ms: u64) -> u64 {
        match end_ms {
            u64::MAX => u64::MAX,
            end_ms => end_ms.saturating_add_signed(self.ahead_ms),
        }
    }

    /// Of the active bans that cover the client, the one that ends last. Bans that have ended at
    /// `now_ms` do not count, whatever was published (BAN-7).
    pub fn active(&self, client: Client, now_ms: u64) -> Option<ActiveBan> {
        self.active_of(client, now_ms, |_| true)
    }

    /// The same, without automatic bans.
    pub fn active_by_hand(&self, client: Client, now_ms: u64) -> Option<ActiveBan> {
        self.active_of(client, now_ms, |span| !span.is_automatic)
    }

    fn active_of(
        &self,
        client: Client,
        now_ms: u64,
        counts: impl Fn(&BanSpan) -> bool,
    ) -> Option<ActiveBan> {
        let length = match client {
            Client::V4(_) => 32,
            Client::V6(_) => 64,
        };
        let (net, span) = match IpNet::new_assert(client.first_address(), length) {
            IpNet::V4(v4) => {
                let last = self.v4.last_to_end(v4, Ipv4Net::supernet, counts);
                let (net, span) = last?;
                (IpNet::V4(net), span)
            }
            IpNet::V6(v6) => {
                let last = self.v6.last_to_end(v6, Ipv6Net::supernet, counts);
                let (net, span) = last?;
                (IpNet::V6(net), span)
            }
        };
        let end_ms = self.seen(span.end_ms);
        (end_ms > now_ms).then(|| ActiveBan {
            netblock: Netblock::masked(net.addr(), net.prefix_len()),
            cause: span.cause,
            expires: Expiry::from_end_ms(end_ms),
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
            .map(|span| (self.seen(span.end_ms), span))
            .filter(|(end_ms, _)| *end_ms <= now_ms)
            .map(|(end_ms, span)| Ended {
                end_ms,
                length_ms: span.length_ms,
            })
    }

    /// The span of exactly this netblock.
    pub fn span(&self, netblock: Netblock) -> Option<BanSpan> {
        match netblock.net() {
            IpNet::V4(v4) => self.v4.get(v4),
            IpNet::V6(v6) => self.v6.get(v6),
        }
    }

    /// Sets or removes the span of exactly this netblock.
    pub fn set(&mut self, netblock: Netblock, span: Option<BanSpan>) {
        match netblock.net() {
            IpNet::V4(v4) => self.v4.set(v4, span),
            IpNet::V6(v6) => self.v6.set(v6, span),
        }
    }

    /// The number of netblocks.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether it has no netblock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Searches one map, with the result so far in `last`. Goes from the narrowest to the widest prefix
/// without an allocation: most clients are in none, and refused ones mostly in one.
fn last_to_end<P: Prefix + Copy>(
    spans: &PrefixMap<P, BanSpan>,
    address: P,
    wider: impl Fn(&P) -> Option<P>,
    counts: impl Fn(&BanSpan) -> bool,
    mut last: Option<(P, BanSpan)>,
) -> Option<(P, BanSpan)> {
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
            is_automatic: false,
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

    /// FLEET-22: under a clock that is ahead a ban lasts as long as under its own clock, and a
    /// permanent ban does not end.
    #[test]
    fn a_ban_lasts_as_long_by_another_clock() {
        let mut index = BanIndex::default();
        index.set(block("203.0.113.0/24"), until(1000));
        index.set(block("198.51.100.0/24"), until(u64::MAX));
        for (ahead_ms, end_ms) in [(0, 1000), (300, 1300), (-300, 700)] {
            let index = index.clone().seen_ahead(ahead_ms);
            let client = "203.0.113.7".parse().unwrap();
            assert_eq!(index.active_until(client, end_ms - 1), Some(end_ms));
            assert_eq!(index.active_until(client, end_ms), None);
            let ended = index.last_ended(block("203.0.113.0/24"), end_ms);
            assert_eq!(ended.map(|ended| ended.end_ms), Some(end_ms));
            assert!(
                index
                    .last_ended(block("203.0.113.0/24"), end_ms - 1)
                    .is_none()
            );
            let client = "198.51.100.7".parse().unwrap();
            assert_eq!(index.active_until(client, 5000), Some(u64::MAX));
        }
    }

    /// BAN-8: a published snapshot does not change with the ledger, and a change copies only the
    /// parts near it.
    #[test]
    fn a_copy_shares_what_does_not_change() {
        let mut index = BanIndex::default();
        for number in 0..200u8 {
            index.set(block(&format!("10.{number}.0.0/24")), until(10));
        }
        let published = index.clone();
        index.set(block("10.7.0.0/24"), None);
        index.set(block("10.8.0.0/24"), until(20));
        index.set(block("192.0.0.0/8"), until(5));
        let span = |index: &BanIndex, text: &str| index.span(block(text)).map(|span| span.end_ms);
        assert_eq!(span(&published, "10.7.0.0/24"), Some(10));
        assert_eq!(span(&published, "10.8.0.0/24"), Some(10));
        assert_eq!((published.len(), index.len()), (200, 200));
        assert_eq!(span(&index, "10.7.0.0/24"), None);
        let shards = published.v4.narrow.iter().zip(&index.v4.narrow);
        let copied = shards.filter(|(before, after)| match (before, after) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            (before, after) => before.is_some() || after.is_some(),
        });
        assert!((1..=2).contains(&copied.count()));
        assert!(published.v6.narrow.is_empty());
    }

    proptest! {
        /// The index answers as a walk over all bans does, IPv4 and IPv6.
        #[test]
        fn the_index_agrees_with_its_list(bans in prop::collection::vec((0u32..4096, 16u8..=32, any::<bool>(), 0u64..100), 0..40), wider in 0u8..9, probes in prop::collection::vec((0u32..4096, any::<bool>()), 20), now in 0u64..100) {
            let address = |bits: u32, six: bool| -> IpAddr {
                if six { IpAddr::V6((u128::from(0x2001_0db8_0000_0000u64 | u64::from(bits)) << 64).into()) } else { IpAddr::V4((0xcb00_0000 | bits).into()) }
            };
            let mut index = BanIndex::default();
            let mut list: Vec<(Netblock, u64)> = Vec::new();
            for (bits, length, six, end) in bans {
                let netblock = Netblock::masked(address(bits, six), if six { length * 2 - wider } else { length - wider });
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
