//! Who goes first where the client table is full (LIMIT-7, LIMIT-9): the client that was seen
//! longest ago, of a network that has more than a quarter of the table before all others.
//!
//! How many clients a network has is counted as they come and go. A network of an IPv6 /48 or an
//! IPv4 /16 is cheap to have, and must not push everybody else out of the table. Whom the table
//! drops then is up to `table.rs`, which alone has the clients.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ahash::RandomState;
use weir_shared::client::Client;
use weir_shared::rules::Rule;
use weir_shared::table::MAX_CLIENTS;

/// A network may have one client in so many of the table before its own go first.
const SHARE: usize = 4;

/// An IPv4 /16 or an IPv6 /48.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Network {
    V4(u16),
    V6(u64),
}

impl Network {
    pub(super) const fn of(client: Client) -> Self {
        match client {
            Client::V4(bits) => Self::V4((bits >> 16) as u16),
            // A client is a /64: its upper half is kept.
            Client::V6(bits) => Self::V6(bits >> 16),
        }
    }
}

/// The oldest clients at the time of a pass over the table, oldest first, with the time they were
/// last seen then.
type Queue = VecDeque<(u64, Client)>;

/// Who may come in, and who goes first.
pub(super) struct Admission {
    capacity: usize,
    /// The oldest of all.
    oldest: Queue,
    /// Clients of each network.
    counts: HashMap<Network, usize, RandomState>,
    /// Networks with more than their share: fewer than [`SHARE`].
    over: Vec<Network>,
    /// The oldest clients of networks that have, or had, more than their share: at most [`SHARE`],
    /// which is how many can be about to.
    oldest_of: Vec<(Network, Queue)>,
    /// Clients put in from a file so far.
    pub(super) from_file: u64,
    /// Rules of which clients from a file have counts: each once, however many have.
    pub(super) rules_of_file: Vec<Arc<Rule>>,
}

impl Admission {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            oldest: Queue::new(),
            counts: HashMap::default(),
            over: Vec::new(),
            oldest_of: Vec::new(),
            from_file: 0,
            rules_of_file: Vec::new(),
        }
    }

    fn is_over(&self, count: usize) -> bool {
        count.saturating_mul(SHARE) > self.capacity
    }

    /// A client is in the table from now on.
    pub(super) fn note_in(&mut self, client: Client) {
        let network = Network::of(client);
        let count = self.counts.entry(network).or_default();
        *count += 1;
        let count = *count;
        if self.is_over(count) && !self.over.contains(&network) {
            self.over.push(network);
        }
    }

    /// A client is in it no longer.
    pub(super) fn note_out(&mut self, client: Client) {
        let network = Network::of(client);
        let count = self.counts.get_mut(&network).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if count == 0 {
            self.counts.remove(&network);
        }
        if !self.is_over(count) {
            self.over.retain(|over| *over != network);
        }
    }

    /// The network with most clients, if that is more than its share.
    pub(super) fn over_share(&self) -> Option<Network> {
        let over = self.over.iter().copied();
        over.max_by_key(|network| (self.counts.get(network), *network))
    }

    /// The oldest clients that are known, of a network or of all.
    pub(super) fn queue(&mut self, of: Option<Network>) -> &mut Queue {
        let Some(of) = of else {
            return &mut self.oldest;
        };
        let known = self
            .oldest_of
            .iter()
            .position(|(network, _)| *network == of);
        let at = known.unwrap_or_else(|| {
            if self.oldest_of.len() == SHARE {
                let counts = &self.counts;
                let least = |(_, (network, _)): &(usize, &(Network, Queue))| counts.get(network);
                let least = self.oldest_of.iter().enumerate().min_by_key(least);
                let least = least.map_or(0, |(at, _)| at);
                self.oldest_of.swap_remove(least);
            }
            self.oldest_of.push((of, Queue::new()));
            self.oldest_of.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "found there, or just put there")]
        &mut self.oldest_of[at].1
    }

    /// Notes a client that came in older than others. Who is not in a queue is taken for younger
    /// than all who are: an older one would be passed over until the next pass.
    pub(super) fn note_old(&mut self, seen_ns: u64, client: Client) {
        let network = Network::of(client);
        note_old(&mut self.oldest, seen_ns, client);
        for (of, queue) in &mut self.oldest_of {
            if *of == network {
                note_old(queue, seen_ns, client);
            }
        }
    }

    /// Whether the counts are those of these clients.
    #[cfg(test)]
    pub(super) fn check(&self, clients: &[Client]) {
        let mut counts: HashMap<Network, usize, RandomState> = HashMap::default();
        for client in clients {
            *counts.entry(Network::of(*client)).or_default() += 1;
        }
        assert_eq!(self.counts, counts);
        assert!(self.over.len() < SHARE && self.oldest_of.len() <= SHARE);
    }
}

fn note_old(queue: &mut Queue, seen_ns: u64, client: Client) {
    let old = (seen_ns, client);
    let at = queue.partition_point(|held| *held < old);
    if at < queue.len() {
        queue.insert(at, old);
    }
    // Those that were forgotten stay in the queue: it is bounded all the same.
    if queue.len() > MAX_CLIENTS {
        queue.clear();
    }
}
