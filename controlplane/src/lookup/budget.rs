//! Bounds the questions a minute about one network (ALIVE-6): an IPv6 /48 has 65,536 clients to
//! look up, and all clients share the service. Pure: time is an argument, nanoseconds of the
//! monotonic clock.

use std::collections::HashMap;

use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};

/// The width of the networks that are counted.
const NETWORKS: PrefixLengths = PrefixLengths { v4: 24, v6: 48 };
/// Questions about one of them in any 60 seconds.
const MOST_V4: u64 = 256;
const MOST_V6: u64 = 60;
/// The most networks that are counted at once. For a further one, the count of another is dropped:
/// an attacker with so many networks gains nothing by that.
const MAX_NETWORKS: usize = 20_000;
/// Questions are counted in pieces of ten seconds. Any 60 seconds lie within seven pieces.
const PIECE_NS: u64 = 10_000_000_000;
const PIECES: usize = 7;

/// Questions about each network.
#[derive(Default)]
pub(crate) struct Budget {
    spent: HashMap<Netblock, Spent>,
    /// When expired counts were last removed.
    swept: u64,
}

/// Questions about one network.
#[derive(Clone, Copy, Default)]
struct Spent {
    /// The piece of the last question.
    piece: u64,
    /// Questions in that piece and in those before it, newest first.
    counts: [u16; PIECES],
}

/// The network of a client.
pub(crate) fn network(client: Client) -> Netblock {
    Netblock::of(client, NETWORKS)
}

impl Budget {
    /// Until when no further question about the client's network may be asked; none if one may be
    /// asked now.
    pub(crate) fn spent_until(&self, client: Client, now_ns: u64) -> Option<u64> {
        let most = match client {
            Client::V4(_) => MOST_V4,
            Client::V6(_) => MOST_V6,
        };
        let piece = now_ns / PIECE_NS;
        let spent = self.spent.get(&network(client))?.at(piece);
        let mut left: u64 = spent.counts.iter().map(|count| u64::from(*count)).sum();
        if left < most {
            return None;
        }
        // The oldest pieces expire first, one with each piece of time.
        let mut after = 0;
        for count in spent.counts.iter().rev() {
            after += 1;
            left -= u64::from(*count);
            if left < most {
                break;
            }
        }
        Some((piece + after) * PIECE_NS)
    }

    /// Counts a question about the client.
    pub(crate) fn spend(&mut self, client: Client, now_ns: u64) {
        let piece = now_ns / PIECE_NS;
        let network = network(client);
        if self.spent.len() >= MAX_NETWORKS && !self.spent.contains_key(&network) {
            self.make_room(piece);
        }
        let spent = self.spent.entry(network).or_default();
        *spent = spent.at(piece);
        if let Some(newest) = spent.counts.first_mut() {
            *newest = newest.saturating_add(1);
        }
    }

    fn make_room(&mut self, piece: u64) {
        if piece > self.swept {
            self.swept = piece;
            self.spent
                .retain(|_, spent| piece - spent.piece.min(piece) < PIECES as u64);
        }
        if self.spent.len() >= MAX_NETWORKS
            && let Some(any) = self.spent.keys().next().copied()
        {
            self.spent.remove(&any);
        }
    }
}

impl Spent {
    /// The counts, moved on to this piece.
    fn at(self, piece: u64) -> Self {
        let passed = usize::try_from(piece.saturating_sub(self.piece)).unwrap_or(PIECES);
        let mut counts = [0; PIECES];
        for (moved, count) in counts.iter_mut().skip(passed).zip(self.counts) {
            *moved = count;
        }
        Self {
            piece: piece.max(self.piece),
            counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MINUTE: u64 = 60 * SECOND;

    fn client(net: u8, host: u8) -> Client {
        if net.is_multiple_of(2) {
            Client::V4(0xcb00_0000 | u32::from(net) << 8 | u32::from(host))
        } else {
            Client::V6(0x2001_0db8_0000_0000 | u64::from(net) << 16 | u64::from(host))
        }
    }

    /// Mostly many questions within a second, and now and then a pause.
    fn step() -> impl Strategy<Value = u64> {
        prop_oneof![400 => 0..SECOND / 20, 1 => 0..30 * SECOND]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// ALIVE-6: beside a twin that remembers every question: no more than 256 about a /24, 60
        /// about a /48, in any minute; one is held back only if the last 70 seconds had as many;
        /// and at the moment that is named a question is asked.
        #[test]
        fn the_budget_agrees_with_its_twin(asks in prop::collection::vec((0u8..4, any::<u8>(), step()), 1..3000)) {
            let mut budget = Budget::default();
            let mut asked: HashMap<u8, Vec<u64>> = HashMap::new();
            let mut now = 5 * MINUTE;
            for (net, host, step) in asks {
                now += step;
                let who = client(net, host);
                let most = if net.is_multiple_of(2) { 256 } else { 60 };
                let twin = asked.entry(net).or_default();
                let within = |twin: &[u64], span: u64| twin.iter().filter(|at| **at + span > now).count();
                match budget.spent_until(who, now) {
                    None => {
                        prop_assert!(within(twin, MINUTE) < most);
                        budget.spend(who, now);
                        twin.push(now);
                    }
                    Some(until) => {
                        prop_assert!(within(twin, 70 * SECOND) >= most);
                        prop_assert!(until > now && until <= now + 70 * SECOND);
                        prop_assert_eq!(budget.spent_until(who, until), None);
                        prop_assert!(budget.spent_until(who, until - 1).is_some());
                    }
                }
            }
        }
    }

    /// ALIVE-6: questions from more networks than are counted take no more memory; the networks
    /// that asked longest ago are dropped first.
    #[test]
    fn the_networks_are_bounded() {
        let mut budget = Budget::default();
        let of = |number: u32| Client::V4(number << 8);
        for number in 0..30_000 {
            budget.spend(of(number), MINUTE);
        }
        assert_eq!(budget.spent.len(), MAX_NETWORKS);
        budget.spend(of(40_000), MINUTE + 70 * SECOND);
        assert_eq!(budget.spent.len(), 1);
    }
}
