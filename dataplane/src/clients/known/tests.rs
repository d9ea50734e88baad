use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use weir_shared::table::MAX_KNOWN;

use super::shard::{CHAINS, PLACES, Place};
use super::*;

const NOW: u64 = 1_795_276_800_000;
const AFTER: Duration = Duration::from_secs(600);

fn at(seconds: u64) -> Now {
    Now {
        wall_ms: NOW + seconds * 1000,
        mono_ns: seconds * 1_000_000_000,
    }
}

fn v4(address: u32) -> Client {
    Client::V4(address)
}

/// Known since long ago.
fn standing(passed: u64, refused: u64) -> Standing {
    Standing {
        since_ms: Some(NOW - 3_600_000),
        passed,
        refused,
    }
}

/// SHARE-4: a client is known once its first request that passed is longer ago than the time, and
/// while fewer of its requests were refused than passed.
#[test]
fn who_is_known() {
    let known = |since_ms, passed, refused| {
        let standing = Standing {
            since_ms,
            passed,
            refused,
        };
        standing.is_known(AFTER, NOW)
    };
    assert!(!known(None, 0, 0));
    assert!(!known(Some(NOW - 600_000), 1, 0));
    assert!(known(Some(NOW - 600_001), 1, 0));
    assert!(known(Some(0), 5, 4));
    assert!(!known(Some(0), 5, 5));
    assert!(!known(Some(0), 5, 9));
}

/// SHARE-4: 16 bytes a client, of every address that a client can have; the permutation is undone.
#[test]
fn a_known_client_takes_16_bytes() {
    assert_eq!(size_of::<Place>(), 16);
    let clients = KnownClients::default();
    let all = [
        v4(0),
        v4(u32::MAX),
        Client::V6(0),
        Client::V6(0x2001_0db8_0001_0002),
        Client::V6(0xffff_fffe_ffff_ffff),
    ];
    for client in all {
        clients.note(client, true, standing(3, 1), Some(AFTER), at(0));
        assert!(clients.knows(client, AFTER, NOW), "{client:?}");
    }
    let mut rows = clients.rows();
    rows.sort_by_key(|row| row.client);
    assert!(rows.iter().map(|row| row.client).eq(all));
    assert!(rows.iter().all(|row| row.lead == 2));
    assert!(rows.iter().all(|row| row.since == Time(NOW - 3_600_000)));
    let nobody = Client::V6(0xffff_ffff_0000_0001);
    clients.note(nobody, true, standing(3, 1), Some(AFTER), at(0));
    assert!(!clients.knows(nobody, AFTER, NOW));
}

/// SHARE-4: a client that is refused as often as it passed is forgotten, counted from what is
/// remembered where the table has forgotten it.
#[test]
fn who_is_refused_is_known_no_more() {
    let clients = KnownClients::default();
    let note = |passed, standing| clients.note(v4(7), passed, standing, Some(AFTER), at(0));
    note(true, standing(3, 0));
    // The table has forgotten it.
    for refused in 1..3 {
        note(
            false,
            Standing {
                refused,
                ..Standing::default()
            },
        );
        assert!(clients.knows(v4(7), AFTER, NOW), "{refused}");
    }
    note(
        false,
        Standing {
            refused: 3,
            ..Standing::default()
        },
    );
    assert!(!clients.knows(v4(7), AFTER, NOW));
    assert_eq!(clients.count(), 0);
    // What the table knows exactly counts, also beyond what is remembered.
    note(true, standing(1000, 0));
    for refused in 1..1000 {
        note(false, standing(1000, refused));
    }
    assert!(clients.knows(v4(7), AFTER, NOW));
    note(false, standing(1000, 1000));
    assert!(!clients.knows(v4(7), AFTER, NOW));
}

/// SHARE-4: a flood of 200,000 that are not known empties nothing; so many that are known put out
/// those seen longest ago, and no others.
#[test]
fn the_bound_holds() {
    let clients = KnownClients::default();
    let visitors = 0..1000;
    for visitor in visitors.clone() {
        clients.note(v4(visitor), true, standing(9, 0), Some(AFTER), at(0));
    }
    for address in 1_000_000..1_200_000 {
        let once = Standing {
            since_ms: Some(NOW),
            passed: 1,
            refused: 0,
        };
        clients.note(v4(address), true, once, Some(AFTER), at(1));
    }
    assert_eq!(clients.count(), 1000);
    for address in 1_000_000..1_400_000 {
        clients.note(v4(address), true, standing(9, 0), Some(AFTER), at(2));
        let visitor = address % 1000;
        clients.note(v4(visitor), true, standing(9, 0), Some(AFTER), at(2));
    }
    assert_eq!(clients.count(), MAX_KNOWN as u64);
    assert!(
        visitors
            .into_iter()
            .all(|visitor| clients.knows(v4(visitor), AFTER, NOW))
    );
    let is_held = |address| clients.knows(v4(address), AFTER, NOW);
    // What is left is the latest of each shard: hardly any of the first, nearly all of the last.
    assert!(
        (1_000_000..1_150_000)
            .filter(|address| is_held(*address))
            .count()
            < 500
    );
    assert!(
        (1_250_000..1_400_000)
            .filter(|address| is_held(*address))
            .count()
            > 149_500
    );
}

/// APP-4: trust holds so long and no longer, the longest of two counts, and who was trusted is
/// known; as a flood of known clients does not put out who is seen.
#[test]
fn trust_ends_with_its_time() {
    let clients = KnownClients::default();
    let hour = Duration::from_secs(3600);
    assert!(!clients.trusts(v4(7), at(0)));
    clients.trust(v4(7), hour, at(0));
    clients.trust(v4(7), Duration::from_secs(1), at(1));
    assert!(clients.trusts(v4(7), at(0)) && clients.trusts(v4(7), at(3599)));
    assert!(!clients.trusts(v4(7), at(3601)));
    assert!(!clients.trusts(v4(8), at(0)));
    assert!(clients.knows(v4(7), AFTER, NOW));
    // Refused for other reasons: the trust goes on.
    clients.note(v4(7), false, Standing::default(), None, at(1));
    clients.note(v4(7), false, Standing::default(), None, at(1));
    assert!(clients.trusts(v4(7), at(1)) && !clients.knows(v4(7), AFTER, NOW));
    // A place that is used again trusts nobody.
    clients.forget(v4(7));
    clients.trust(v4(7), Duration::from_millis(1), at(2));
    assert!(!clients.trusts(v4(7), at(4)));
}

/// SHARE-4: what is written comes back in the same order.
#[test]
fn rows_come_back() {
    let one = KnownClients::default();
    for address in 0..5000 {
        one.note(v4(address), true, standing(9, 0), Some(AFTER), at(0));
    }
    for address in (0..5000).rev() {
        one.note(v4(address), true, standing(9, 0), Some(AFTER), at(1));
    }
    let rows = one.rows();
    let other = KnownClients::default();
    rows.iter().for_each(|row| other.put(*row));
    assert_eq!(other.count(), 5000);
    assert!(other.knows(v4(0), AFTER, NOW));
    let ranks: HashMap<_, _> = (rows.iter().enumerate())
        .map(|(rank, row)| (row.client, rank))
        .collect();
    let mean = |clients: std::ops::Range<u32>| {
        let of = clients.clone().map(|address| ranks[&v4(address)]);
        of.sum::<usize>() / clients.len()
    };
    // Shards are not of one size: the order is that within each.
    assert!(mean(4500..5000) < 1000 && mean(0..500) > 3500);
}

/// One shard's worth of clients, kept in a list that is searched from end to end.
#[derive(Default)]
struct Naive {
    /// Since when, and by how many it is ahead.
    held: HashMap<u32, (u64, u64)>,
    order: VecDeque<u32>,
}

impl Naive {
    fn note(&mut self, address: u32, passed: bool, standing: Standing, wall_ms: u64) {
        let ahead = standing.passed.saturating_sub(standing.refused);
        let enters = standing.is_known(AFTER, wall_ms);
        let held = self.held.get(&address).copied();
        self.order.retain(|held| *held != address);
        let (since, lead) = match held {
            None if !enters => return,
            None => (standing.since_ms.unwrap(), ahead),
            Some((since, lead)) if passed => (since, (lead + 1).max(ahead)),
            Some((since, lead)) => (since, lead.saturating_sub(1).max(ahead)),
        };
        self.held.remove(&address);
        if lead > 0 {
            self.held.insert(address, (since, lead.min(255)));
            self.order.push_back(address);
        }
    }
}

proptest! {
    /// SHARE-4: whatever is noted, who is known, since when, and the order in which they were seen
    /// are those of a list that is searched.
    #[test]
    fn known_as_in_a_list(
        steps in prop::collection::vec((0..40u32, any::<bool>(), 0..4u64, 0..4u64, 0..2u64), 1..400),
    ) {
        let (clients, mut naive) = (KnownClients::default(), Naive::default());
        for (address, passed, passes, refusals, recent) in steps {
            let standing = Standing {
                since_ms: Some(NOW - 3_600_000 + recent * 3_600_000),
                passed: passes,
                refused: refusals,
            };
            clients.note(v4(address), passed, standing, Some(AFTER), at(0));
            naive.note(address, passed, standing, NOW);
        }
        prop_assert_eq!(clients.count(), naive.held.len() as u64);
        let rows = clients.rows();
        for row in &rows {
            let Client::V4(address) = row.client else { panic!("{row:?}") };
            prop_assert_eq!(Some(&(row.since.0, row.lead)), naive.held.get(&address));
        }
        // Of one shard in exactly this order.
        for number in 0..SHARDS {
            let of_shard = |client: &Client| {
                clients.whereabouts(*client).is_some_and(|of| of.shard == number)
            };
            let ours: Vec<Client> = rows.iter().map(|row| row.client).filter(of_shard).collect();
            let theirs = naive.order.iter().map(|address| v4(*address)).filter(of_shard);
            prop_assert_eq!(ours, theirs.collect::<Vec<_>>());
        }
    }

    /// SHARE-4: a full shard drops the one that was seen longest ago, whatever was removed before.
    #[test]
    fn the_oldest_of_a_shard_goes(removed in prop::collection::vec(0..PLACES, 0..20)) {
        let mut shard = Shard::default();
        let of = |number: usize| Whereabouts {
            shard: 0,
            chain: number * 7 % CHAINS,
            rest: number as u64,
        };
        for number in 0..PLACES {
            shard.insert(of(number), NOW, 1);
        }
        let mut gone = std::collections::BTreeSet::new();
        for number in removed {
            if let Some(place) = shard.find(of(number)) {
                shard.remove(place);
                gone.insert(number);
            }
        }
        for number in PLACES..PLACES + gone.len() + 5 {
            shard.insert(of(number), NOW, 1);
        }
        prop_assert_eq!(shard.len, PLACES);
        let left: Vec<usize> = (0..PLACES).filter(|number| !gone.contains(number)).skip(5).collect();
        let order: Vec<usize> = (shard.in_order())
            .map(|place| usize::try_from(shard.get(place, REST)).unwrap())
            .collect();
        prop_assert_eq!(&order[..left.len()], &left[..]);
        prop_assert!(left.iter().all(|number| shard.find(of(*number)).is_some()));
        prop_assert!((0..5).all(|number| shard.find(of(number)).is_none()));
    }
}
