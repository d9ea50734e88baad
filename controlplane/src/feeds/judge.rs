//! Decides what of a fetched list is used (FEED-5, ALIVE-5): whether it can be the next version at
//! all, and which entries are left out because they would refuse, or let through, nearly everybody
//! or the machine itself.

use std::net::IpAddr;

use ipnet::IpNet;
use weir_shared::netblock::Netblock;
use weir_shared::spans::Spans;

use crate::netblock_list::{self, ListText, MAX_LISTED, Unusable};

/// The widest block that entries may cover, alone or together.
const WIDEST_V4: u32 = 8;
const WIDEST_V6: u32 = 16;

/// Private and special-purpose netblocks: entries in them are left out.
const PRIVATE: [&str; 11] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::/127",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
];

/// Parses a list, which may be empty. The error, the end of a sentence, says that it is no list.
pub(super) fn read(bytes: &[u8]) -> Result<ListText, String> {
    if bytes.trim_ascii_start().first() == Some(&b'<') {
        return Err("it is a page, and a text, JSON or JSON lines is expected".to_owned());
    }
    match netblock_list::parse(bytes, MAX_LISTED) {
        Ok(list) if list.netblocks.is_empty() && list.skipped > 0 => Err(format!(
            "it has no entry, and {} lines that are no netblock",
            list.skipped
        )),
        Ok(list) => Ok(list),
        Err(Unusable::NotJson(fault)) => Err(format!("it has a fault in {fault}")),
        Err(Unusable::TooMany(most)) => Err(format!("it has more than {most} entries")),
    }
}

/// Checks whether a list with `count` usable entries may replace the one in force. The error is the
/// end of a sentence.
pub(super) fn judge(count: usize, before: Option<usize>) -> Result<(), String> {
    match before {
        Some(before) if count.saturating_mul(2) < before => Err(format!(
            "it has {count} entries that may hold, less than half of the {before} of the version before"
        )),
        Some(before) if count > before.saturating_mul(4) => Err(format!(
            "it has {count} entries that may hold, more than four times the {before} of the version before"
        )),
        _ => Ok(()),
    }
}

/// Refuses a list that covers more than half of all clients of an address family: narrow entries
/// together may cover nearly everybody. The error is the end of a sentence.
pub(crate) fn bounded(netblocks: &[Netblock]) -> Result<(), String> {
    if are_few(netblocks) {
        return Ok(());
    }
    let spans: Spans = netblocks.iter().copied().collect();
    match spans.mostly() {
        Some(family) => Err(format!(
            "its entries cover more than half of all {family} addresses"
        )),
        None => Ok(()),
    }
}

/// Whether all entries have at most half the addresses of a family, counting an address as often as
/// it is listed. This quick check needs no sorting: a stream with half a million decisions runs it
/// every ten seconds.
fn are_few(netblocks: &[Netblock]) -> bool {
    let (mut v4, mut v6) = (0_u128, 0_u128);
    for netblock in netblocks {
        let (first, last) = ends(*netblock);
        let count = match netblock.net() {
            IpNet::V4(_) => &mut v4,
            IpNet::V6(_) => &mut v6,
        };
        *count = count.saturating_add((last - first).saturating_add(1));
    }
    // Half of IPv4, and half of the IPv6 addresses in use, 2000::/3.
    v4 <= 1 << 31 && v6 <= 1 << 124
}

/// The netblocks that no entry may cover.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Guard {
    spared: Vec<Netblock>,
}

impl Guard {
    /// Loopback and private addresses, these trusted proxies, and the addresses of this machine.
    pub(crate) fn new(
        trusted: impl IntoIterator<Item = Netblock>,
        own: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let private = PRIVATE.iter().filter_map(|text| text.parse().ok());
        let own = own
            .into_iter()
            .map(|address| Netblock::masked(address, u8::MAX));
        Self {
            spared: private.chain(trusted).chain(own).collect(),
        }
    }

    /// Splits entries into usable ones and left-out ones; both keep their order.
    pub(crate) fn part(&self, netblocks: Vec<Netblock>) -> (Vec<Netblock>, Vec<Netblock>) {
        let may_hold: Vec<bool> = netblocks.iter().map(|one| self.may_hold(*one)).collect();
        let alone = netblocks.iter().zip(&may_hold);
        // Entries that are left out anyway do not count toward joint coverage.
        let wide = wide(alone.filter_map(|(netblock, may_hold)| may_hold.then_some(*netblock)));
        let (mut hold, mut left_out) = (Vec::new(), Vec::new());
        for (netblock, may_hold) in netblocks.into_iter().zip(may_hold) {
            match may_hold && !wide.has(netblock) {
                true => hold.push(netblock),
                false => left_out.push(netblock),
            }
        }
        (hold, left_out)
    }

    /// Whether an entry is usable, regardless of the other entries.
    fn may_hold(&self, netblock: Netblock) -> bool {
        let widest = match netblock.net() {
            IpNet::V4(_) => WIDEST_V4,
            IpNet::V6(_) => WIDEST_V6,
        };
        let mut spared = self.spared.iter();
        u32::from(netblock.net().prefix_len()) >= widest
            && !spared.any(|spared| netblock.covers(*spared) || spared.covers(netblock))
    }
}

/// The fully covered ranges that are wider than a list may cover. They are few, because each is
/// wide.
struct Wide {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl Wide {
    /// Whether the netblock overlaps one of these ranges.
    fn has(&self, netblock: Netblock) -> bool {
        let ranges = match netblock.net() {
            IpNet::V4(_) => &self.v4,
            IpNet::V6(_) => &self.v6,
        };
        let (first, last) = ends(netblock);
        ranges
            .iter()
            .any(|(from, to)| first <= *to && last >= *from)
    }
}

/// The ranges that entries cover too widely together: four /9 can form a /7, which is wider than a
/// /8.
fn wide(netblocks: impl Iterator<Item = Netblock>) -> Wide {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for netblock in netblocks {
        match netblock.net() {
            IpNet::V4(_) => v4.push(ends(netblock)),
            IpNet::V6(_) => v6.push(ends(netblock)),
        }
    }
    Wide {
        v4: wide_of(v4, 1 << (32 - WIDEST_V4 + 1)),
        v6: wide_of(v6, 1 << (128 - WIDEST_V6 + 1)),
    }
}

/// The parts of these ranges that cover blocks of this size whole.
fn wide_of(mut ranges: Vec<(u128, u128)>, block: u128) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u128, u128)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    let whole = joined.into_iter().filter_map(|(first, last)| {
        let from = first.checked_next_multiple_of(block)?;
        // The end of the last whole block in this range.
        let to = match last % block == block - 1 {
            true => last,
            false => (last - last % block).checked_sub(1)?,
        };
        (from < to).then_some((from, to))
    });
    whole.collect()
}

fn ends(netblock: Netblock) -> (u128, u128) {
    match netblock.net() {
        IpNet::V4(net) => (
            net.network().to_bits().into(),
            net.broadcast().to_bits().into(),
        ),
        IpNet::V6(net) => (net.network().to_bits(), net.broadcast().to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(texts: &[&str]) -> Vec<Netblock> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// FEED-5: a version has not less than half, and not more than four times, the entries of the
    /// one before.
    #[test]
    fn a_version_is_like_the_one_before() {
        for (count, before, is_good) in [
            (1, None, true),
            (500_000, None, true),
            (1, Some(1), true),
            (4, Some(1), true),
            (5, Some(1), false),
            (50, Some(100), true),
            (49, Some(100), false),
            (50, Some(101), false),
            (400, Some(100), true),
            (401, Some(100), false),
        ] {
            assert_eq!(judge(count, before).is_ok(), is_good, "{count} {before:?}");
        }
    }

    /// FEED-5, ALIVE-5: entries that cover, or lie in, a trusted proxy, loopback, private addresses
    /// or those of this machine are left out, and so are those wider than a /8, or a /16 of IPv6,
    /// alone or together.
    #[test]
    fn entries_that_cover_too_much_are_left_out() {
        let guard = Guard::new(
            blocks(&["198.51.100.0/28", "2001:db8:9::1"]),
            ["203.0.113.7".parse().unwrap(), "2a00::7".parse().unwrap()],
        );
        for (out, texts) in [
            (true, &["0.0.0.0/0"][..]),
            (true, &["::/0"]),
            (true, &["0.0.0.0/1", "128.0.0.0/1"]),
            (true, &["8000::/1", "::/1"]),
            (true, &["8.0.0.0/7"]),
            (true, &["9.0.0.0/8", "8.0.0.0/8"]),
            (
                true,
                &["8.0.0.0/9", "9.128.0.0/9", "8.128.0.0/9", "9.0.0.0/9"],
            ),
            (false, &["9.0.0.0/8"]),
            (false, &["8.0.0.0/8", "9.0.0.0/9"]),
            // Side by side, and not one block.
            (false, &["9.128.0.0/9", "8.128.0.0/9"]),
            (true, &["2a02::/15"]),
            (true, &["2a02::/16", "2a03::/16"]),
            (false, &["2a03::/16"]),
            (true, &["198.51.100.0/24"]),
            (true, &["198.51.100.3"]),
            (false, &["198.51.100.16/28"]),
            (true, &["2001:db8:9::/64"]),
            (true, &["203.0.113.7"]),
            (true, &["203.0.113.0/24"]),
            (false, &["203.0.113.8"]),
            (true, &["2a00::/56"]),
            (true, &["127.0.0.1"]),
            (true, &["::1"]),
            (true, &["10.1.2.0/24"]),
            (true, &["192.168.7.7"]),
            (true, &["fd00:1::/48"]),
            (true, &["169.254.169.254"]),
            (false, &["172.32.0.0/16"]),
        ] {
            let given = blocks(texts);
            let (kept, left_out) = guard.part(given.clone());
            let (expected, none) = if out {
                (left_out, kept)
            } else {
                (kept, left_out)
            };
            assert_eq!(expected, given, "{texts:?}");
            assert!(none.is_empty(), "{texts:?}");
        }
        // A slip costs the list nothing but itself.
        let (kept, left_out) = guard.part(blocks(&["192.0.2.1", "0.0.0.0/0", "192.0.2.2"]));
        assert_eq!(kept, blocks(&["192.0.2.1", "192.0.2.2"]));
        assert_eq!(left_out, blocks(&["0.0.0.0/0"]));
    }

    /// FEED-5: netblocks that are each allowed are no list if together they cover more than half of
    /// all addresses.
    #[test]
    fn nearly_everybody_is_no_list() {
        let every_other: Vec<Netblock> = (0..128u32)
            .map(|at| Netblock::masked(IpAddr::V4((at << 25).into()), 8))
            .collect();
        assert_eq!(bounded(&every_other), Ok(()));
        let more = [every_other, blocks(&["1.0.0.0/32"])].concat();
        let told = bounded(&more).unwrap_err();
        assert_eq!(
            told,
            "its entries cover more than half of all IPv4 addresses"
        );
        assert!(bounded(&blocks(&["2000::/4", "3000::/16"])).is_err());
        assert_eq!(
            bounded(&blocks(&["2000::/4", "2001::/16", "fc00::/7"])),
            Ok(())
        );
    }

    /// FEED-5: half a million entries are checked in one pass; overlapping ones are counted once
    /// where it matters.
    #[test]
    fn many_entries_are_few() {
        let many: Vec<Netblock> = (0..500_000u32)
            .map(|at| Netblock::masked(IpAddr::V4((0x0b00_0000 + (at << 8)).into()), 24))
            .collect();
        assert!(are_few(&many));
        let again = [&many[..], &many, &many, &many, &many, &many[..]].concat();
        assert!(are_few(&again));
        let wide = [blocks(&["64.0.0.0/2"; 3]), blocks(&["::/0"])].concat();
        assert!(!are_few(&wide[..3]) && !are_few(&wide[3..]));
        assert_eq!(bounded(&wide[..3]), Ok(()));
        assert!(bounded(&wide[3..]).is_err());
    }

    /// A netblock near others, so that some join.
    fn netblock() -> impl Strategy<Value = Netblock> {
        prop_oneof![
            (0u32..16, 5u8..13).prop_map(|(at, length)| {
                let bits = 0x4000_0000 | at << 22 | (at % 5) << 25;
                Netblock::masked(IpAddr::V4(bits.into()), length)
            }),
            (0u128..16, 12u8..20).prop_map(|(at, length)| {
                let bits = 0x2a00_u128 << 112 | at << 110;
                Netblock::masked(IpAddr::V6(bits.into()), length)
            }),
        ]
    }

    proptest! {
        /// FEED-5: entries are left out if they cover, or lie in, a block that is wider than a list
        /// may cover and that the list covers completely.
        #[test]
        fn wide_parts_agree_with_a_naive_twin(netblocks in prop::collection::vec(netblock(), 0..24)) {
            let widest = |netblock: &Netblock| if netblock.net().addr().is_ipv4() { 8 } else { 16 };
            let narrow = |netblock: &&Netblock| netblock.net().prefix_len() >= widest(netblock);
            let covered = |part: Netblock| {
                let mut alone = netblocks.iter().filter(narrow);
                alone.any(|netblock| netblock.covers(part))
            };
            // Parts as narrow as the narrowest that is drawn.
            let is_whole = |block: Netblock| {
                let narrow = if block.net().addr().is_ipv4() { 13 } else { 20 };
                let mut parts = block.net().subnets(narrow).unwrap();
                parts.all(|part| covered(Netblock::masked(part.addr(), narrow)))
            };
            let naive = |netblock: &Netblock| {
                let block = Netblock::masked(netblock.net().addr(), widest(netblock) - 1);
                narrow(&netblock) && !is_whole(block)
            };
            let (kept, left_out) = Guard::default().part(netblocks.clone());
            prop_assert_eq!(kept, netblocks.iter().copied().filter(|one| naive(one)).collect::<Vec<_>>());
            prop_assert_eq!(left_out, netblocks.iter().copied().filter(|one| !naive(one)).collect::<Vec<_>>());
        }
    }
}
