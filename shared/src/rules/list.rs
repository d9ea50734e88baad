//! Lists of netblocks: which member covers an address, and which list it came from (RULE-1).
//!
//! A tree of prefixes would be walked one level for each bit, each with a cache miss. Here the
//! nested netblocks are cut into ranges that do not overlap, each with the narrowest netblock that
//! covers it: one search in a sorted list answers. For IPv4 a directory by the upper half of the
//! address leaves a handful of ranges to search.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::rule::{Rule, RuleKind};
use crate::client::fold;
use crate::netblock::Netblock;

/// A list, compiled.
#[derive(Clone, Default)]
pub struct NetList {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
    /// For each upper half of an IPv4 address, how many ranges begin before it; empty for a short
    /// list, which needs none.
    directory: Vec<u32>,
    /// The netblocks, each with the index of its list in `sources`.
    entries: Vec<(Netblock, u16)>,
    sources: Vec<Arc<Rule>>,
}

/// A member of a list that covers an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListHit {
    /// The narrowest member that covers it.
    pub netblock: Netblock,
    /// The list that has it: `rules.json`, or a file.
    pub source: Arc<Rule>,
}

/// Up to this length a list is searched without a directory, whose 256 KiB would be larger than the
/// list.
const SHORT: usize = 256;

/// Ranges by their first address, each with its entry plus one; 0 where no entry covers it.
#[derive(Clone, Default)]
struct Ranges<A> {
    starts: Vec<A>,
    owners: Vec<u32>,
}

impl NetList {
    /// A list of these netblocks, each with the list that it came from. Of equal ones the first
    /// counts.
    pub fn new(members: impl IntoIterator<Item = (Netblock, Arc<Rule>)>) -> Self {
        let mut list = Self::default();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (netblock, source) in members {
            // As many as the names of all lists, and rules.json: a few hundred at most.
            let held = list.sources.iter().position(|held| *held == source);
            let at = held.unwrap_or_else(|| {
                list.sources.push(source);
                list.sources.len() - 1
            });
            let entry = u32::try_from(list.entries.len()).unwrap_or(u32::MAX);
            match netblock.net() {
                IpNet::V4(net) => {
                    v4.push((net.network().to_bits(), net.broadcast().to_bits(), entry));
                }
                IpNet::V6(net) => {
                    v6.push((net.network().to_bits(), net.broadcast().to_bits(), entry));
                }
            }
            list.entries
                .push((netblock, u16::try_from(at).unwrap_or(u16::MAX)));
        }
        list.v4 = Ranges::cut(v4, |address| address.checked_add(1));
        list.v6 = Ranges::cut(v6, |address| address.checked_add(1));
        if list.v4.starts.len() > SHORT {
            list.directory = (0..=1u64 << 16)
                .map(|upper| {
                    let before = |start: &u32| u64::from(*start) < upper << 16;
                    u32::try_from(list.v4.starts.partition_point(before)).unwrap_or(u32::MAX)
                })
                .collect();
        }
        list
    }

    /// A list of one source, such as a setting.
    pub fn of(kind: RuleKind, name: &str, netblocks: impl IntoIterator<Item = Netblock>) -> Self {
        let source = Arc::new(Rule::new(kind, name.to_owned()));
        let member = |netblock| (netblock, Arc::clone(&source));
        Self::new(netblocks.into_iter().map(member))
    }

    /// A list without named sources: it finds netblocks only.
    pub fn unnamed(netblocks: impl IntoIterator<Item = Netblock>) -> Self {
        Self {
            sources: Vec::new(),
            ..Self::of(RuleKind::Deny, "", netblocks)
        }
    }

    /// Whether the list has no member.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The members, as they were given.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a member covers the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.entry(address).is_some()
    }

    /// The narrowest member that covers the address.
    pub fn find(&self, address: IpAddr) -> Option<ListHit> {
        let (netblock, source) = self.entries.get(self.entry(address)?)?;
        Some(ListHit {
            netblock: *netblock,
            source: Arc::clone(self.sources.get(usize::from(*source))?),
        })
    }

    /// The netblock of the narrowest member that covers the address.
    pub fn netblock(&self, address: IpAddr) -> Option<Netblock> {
        let (netblock, _) = self.entries.get(self.entry(address)?)?;
        Some(*netblock)
    }

    /// The members' netblocks, as they were given.
    pub fn netblocks(&self) -> impl Iterator<Item = Netblock> {
        self.entries.iter().map(|(netblock, _)| *netblock)
    }

    fn entry(&self, address: IpAddr) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let owner = match fold(address) {
            IpAddr::V4(v4) => self.v4_owner(v4.to_bits()),
            IpAddr::V6(v6) => self.v6.owner(0, self.v6.starts.len(), v6.to_bits()),
        };
        usize::try_from(owner?).ok()?.checked_sub(1)
    }

    fn v4_owner(&self, address: u32) -> Option<u32> {
        let upper = (address >> 16) as usize;
        let between = self.directory.get(upper).zip(self.directory.get(upper + 1));
        let (from, to) = match between {
            Some((from, to)) => (*from as usize, *to as usize),
            None => (0, self.v4.starts.len()),
        };
        self.v4.owner(from, to, address)
    }

    /// The lists that members came from.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.sources.iter()
    }
}

impl<A: Copy + Ord> Ranges<A> {
    /// Cuts nested ranges (first, last, entry) into ranges that do not overlap. Two prefixes are
    /// nested or disjoint, so a stack of open ones suffices.
    fn cut(mut nets: Vec<(A, A, u32)>, next: impl Fn(A) -> Option<A>) -> Self {
        // The wider first; of equal ones the first entry last, so that it lies on top.
        nets.sort_unstable_by_key(|(first, last, entry)| {
            (*first, std::cmp::Reverse(*last), std::cmp::Reverse(*entry))
        });
        let mut ranges = Self {
            starts: Vec::new(),
            owners: Vec::new(),
        };
        let mut open: Vec<(A, u32)> = Vec::new();
        for (first, last, entry) in nets {
            while let Some((end, _)) = open.pop_if(|(end, _)| *end < first) {
                ranges.begin(next(end), open.last().map_or(0, |(_, entry)| *entry));
            }
            ranges.begin(Some(first), entry + 1);
            open.push((last, entry + 1));
        }
        while let Some((end, _)) = open.pop() {
            ranges.begin(next(end), open.last().map_or(0, |(_, entry)| *entry));
        }
        ranges
    }

    /// Begins a range of this owner; none begins after the last address.
    fn begin(&mut self, start: Option<A>, owner: u32) {
        let Some(start) = start else { return };
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.owners.pop();
        }
        self.starts.push(start);
        self.owners.push(owner);
    }

    /// The owner of the last range that begins at or before the address. All ranges before `from`
    /// begin earlier, and none from `to` on does.
    fn owner(&self, from: usize, to: usize, address: A) -> Option<u32> {
        let between = self.starts.get(from..to)?;
        let at = from + between.partition_point(|start| *start <= address);
        self.owners.get(at.checked_sub(1)?).copied()
    }
}

impl fmt::Debug for NetList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} netblocks of {:?}", self.entries.len(), self.sources)
    }
}
