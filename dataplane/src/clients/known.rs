//! Clients that are known: those that came back, of whose requests fewer were refused than passed
//! (SHARE-4), and those that the application trusts (APP-4). They outlive the client table, which a
//! flood empties.
//!
//! At most [`weir_shared::table::MAX_KNOWN`], each in 16 bytes. They lie in shards, each with its
//! own lock; a shard is a table of chains and a list in the order in which its clients were seen,
//! both by numbers of places (`shard.rs`). Its client that was seen longest ago goes first, exactly
//! and at constant cost. Which shard and which chain a client lies in is decided by a keyed
//! permutation of its address: nobody outside can aim at one of them, and what they say of the
//! address is not kept a second time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::table::KnownRow;
use weir_shared::units::Time;

use shard::{
    CHAIN_BITS, LEAD, REST, REST_BITS, SHARD_BITS, SHARDS, SINCE, Shard, Whereabouts, minutes,
    since_ms,
};

mod shard;

/// What a client's history says of it (SHARE-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Wall clock of its first request that passed, milliseconds; none where none did.
    pub since_ms: Option<u64>,
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

impl Standing {
    /// Whether the client is known after this time.
    pub fn is_known(self, after: Duration, wall_ms: u64) -> bool {
        let is_long_ago = |since| is_longer_ago(since, after, wall_ms);
        self.refused < self.passed && self.since_ms.is_some_and(is_long_ago)
    }
}

fn is_longer_ago(since_ms: u64, than: Duration, wall_ms: u64) -> bool {
    u128::from(wall_ms.saturating_sub(since_ms)) > than.as_millis()
}

/// The known clients.
pub struct KnownClients {
    shards: Box<[Mutex<Shard>]>,
    /// Of the permutation.
    keys: RandomState,
    /// Whether somebody was ever noted. Relaxed, as the next: a request of the same moment may miss
    /// it.
    is_used: AtomicBool,
    /// Whether somebody was ever trusted.
    trusts_some: AtomicBool,
    /// The shortest time after which a limit spares a client, milliseconds; [`NEVER`] for none.
    /// Relaxed: whoever is dropped at the moment of an edit may be judged by the rules before it.
    remembers_after_ms: AtomicU64,
}

/// No limit asks who is known.
const NEVER: u64 = u64::MAX;

impl Default for KnownClients {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: RandomState::new(),
            is_used: AtomicBool::new(false),
            trusts_some: AtomicBool::new(false),
            remembers_after_ms: AtomicU64::new(NEVER),
        }
    }
}

/// A client as 64 bits; none for the IPv6 networks under `ffff:ffff::/32`, which are no addresses
/// of anybody, and whose bits stand for IPv4.
fn bits_of(client: Client) -> Option<u64> {
    const V4: u64 = 0xffff_ffff << 32;
    match client {
        Client::V4(address) => Some(V4 | u64::from(address)),
        Client::V6(network) if network >> 32 == V4 >> 32 => None,
        Client::V6(network) => Some(network),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the address"
)]
const fn client_of(bits: u64) -> Client {
    match bits >> 32 {
        0xffff_ffff => Client::V4(bits as u32),
        _ => Client::V6(bits),
    }
}

impl KnownClients {
    fn shard(&self, number: usize) -> Option<MutexGuard<'_, Shard>> {
        // A panic under this lock would leave a list that is whole: nothing in it can panic.
        let shard = self.shards.get(number)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn whereabouts(&self, client: Client) -> Option<Whereabouts> {
        let permuted = self.permuted(bits_of(client)?, [0, 1, 2, 3]);
        let part = |shift: u32, count: u32| permuted >> shift & ((1 << count) - 1);
        Some(Whereabouts {
            shard: usize::try_from(part(REST_BITS + CHAIN_BITS, SHARD_BITS)).ok()?,
            chain: usize::try_from(part(REST_BITS, CHAIN_BITS)).ok()?,
            rest: part(0, REST_BITS),
        })
    }

    /// Four rounds of a Feistel network: each key gives another permutation. With the rounds turned
    /// round it is undone.
    fn permuted(&self, bits: u64, rounds: [u32; 4]) -> u64 {
        let (mut left, mut right) = (bits >> 32, bits & 0xffff_ffff);
        for round in rounds {
            let mixed = self.keys.hash_one((round, right)) & 0xffff_ffff;
            (left, right) = (right, left ^ mixed);
        }
        // The halves are not swapped behind the last round.
        right << 32 | left
    }

    fn client(&self, shard: usize, chain: usize, rest: u64) -> Client {
        let place = (shard << CHAIN_BITS | chain) as u64;
        client_of(self.permuted(place << REST_BITS | rest, [3, 2, 1, 0]))
    }

    /// Whether somebody was ever noted here.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// How many are held.
    pub fn count(&self) -> u64 {
        let shards = 0..SHARDS;
        let len = |number| self.shard(number).map_or(0, |shard| shard.len as u64);
        if self.is_used() {
            shards.map(len).sum()
        } else {
            0
        }
    }

    /// A client's request has ended: it is the latest seen. One that is not held is taken in where
    /// its history says that it is known `after` this time; one of whose requests as many were
    /// refused as passed goes, unless it is trusted.
    pub fn note(
        &self,
        client: Client,
        passed: bool,
        standing: Standing,
        after: Option<Duration>,
        now: Now,
    ) {
        let enters = after.is_some_and(|after| standing.is_known(after, now.wall_ms));
        if !enters && !self.is_used() {
            return;
        }
        let Some(of) = self.whereabouts(client) else {
            return;
        };
        let Some(mut shard) = self.shard(of.shard) else {
            return;
        };
        // What its history in the table says, which may be shorter than what is held.
        let ahead = standing.passed.saturating_sub(standing.refused);
        match shard.find(of) {
            Some(place) => {
                shard.make_newest(place);
                let held = shard.get(place, LEAD);
                let lead = if passed {
                    held + 1
                } else {
                    held.saturating_sub(1)
                };
                let lead = lead.max(ahead).min(LEAD.max());
                shard.set(place, LEAD, lead);
                if lead == 0 && !shard.trusts(place, now) {
                    shard.remove(place);
                }
            }
            None if enters => {
                let since_ms = standing.since_ms.unwrap_or(now.wall_ms);
                shard.insert(of, since_ms, ahead);
                self.is_used.store(true, Ordering::Relaxed);
            }
            None => {}
        }
    }

    /// From now on who is dropped from the client table is remembered if it is known after this
    /// time; nobody is where there is none.
    pub fn remember_after(&self, after: Option<Duration>) {
        let millis = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(NEVER);
        let after_ms = after.map_or(NEVER, millis);
        self.remembers_after_ms.store(after_ms, Ordering::Relaxed);
    }

    /// The client table drops a client: it is taken in if its history says that it is known by now.
    /// Its requests may all have ended before that time had passed.
    ///
    /// It stands as the latest seen, which it is not: the places have no room for a time. One that
    /// is held keeps its place.
    pub fn remember(&self, client: Client, standing: impl FnOnce() -> Standing, wall_ms: u64) {
        let after_ms = self.remembers_after_ms.load(Ordering::Relaxed);
        if after_ms == NEVER {
            return;
        }
        let standing = standing();
        if !standing.is_known(Duration::from_millis(after_ms), wall_ms) {
            return;
        }
        let Some(of) = self.whereabouts(client) else {
            return;
        };
        let Some(mut shard) = self.shard(of.shard) else {
            return;
        };
        if shard.find(of).is_none() {
            let since_ms = standing.since_ms.unwrap_or(wall_ms);
            shard.insert(
                of,
                since_ms,
                standing.passed.saturating_sub(standing.refused),
            );
            drop(shard);
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a client is held whose first request is longer ago than this.
    pub fn knows(&self, client: Client, after: Duration, wall_ms: u64) -> bool {
        let since_ms = self.read(client, |shard, place| {
            (shard.get(place, LEAD) > 0).then(|| since_ms(shard.get(place, SINCE)))
        });
        since_ms.is_some_and(|since| is_longer_ago(since, after, wall_ms))
    }

    /// The application trusts a client until then; it is known from now on (APP-4). The longer of
    /// two holds.
    pub fn trust(&self, client: Client, duration: Duration, now: Now) {
        let Some(of) = self.whereabouts(client) else {
            return;
        };
        let Some(mut shard) = self.shard(of.shard) else {
            return;
        };
        let place = match shard.find(of) {
            Some(place) => {
                shard.make_newest(place);
                Some(place)
            }
            None => shard.insert(of, 0, 1),
        };
        let Some(place) = place else { return };
        // Known whatever is asked for.
        shard.set(place, SINCE, 0);
        let lead = shard.get(place, LEAD).max(1);
        shard.set(place, LEAD, lead);
        shard.trust_until(place, duration, now);
        drop(shard);
        self.is_used.store(true, Ordering::Relaxed);
        self.trusts_some.store(true, Ordering::Relaxed);
    }

    /// Whether the application trusts a client now.
    pub fn trusts(&self, client: Client, now: Now) -> bool {
        self.trusts_some.load(Ordering::Relaxed)
            && (self.read(client, |shard, place| {
                shard.trusts(place, now).then_some(())
            }))
            .is_some()
    }

    /// All of them, the one seen longest ago first. The order of those of one shard is exact; the
    /// shards are put together by how far back in its shard each lies. Locks one shard at a time.
    pub fn rows(&self) -> Vec<KnownRow> {
        if !self.is_used() {
            return Vec::new();
        }
        let mut rows: Vec<(u64, KnownRow)> = Vec::new();
        for number in 0..SHARDS {
            let Some(shard) = self.shard(number) else {
                continue;
            };
            rows.reserve(shard.len);
            for (rank, place) in shard.in_order().enumerate() {
                let lead = shard.get(place, LEAD);
                if lead == 0 {
                    continue;
                }
                let (chain, rest) = (shard.chain_of(place), shard.get(place, REST));
                let row = KnownRow {
                    client: self.client(number, chain, rest),
                    since: Time(since_ms(shard.get(place, SINCE))),
                    lead,
                };
                // The newest of all shards stand together at the end.
                rows.push(((shard.len - rank) as u64, row));
            }
        }
        rows.sort_by_key(|(from_the_end, _)| std::cmp::Reverse(*from_the_end));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Takes one in that comes from a file, as the latest seen; in place of what is held of it.
    pub fn put(&self, row: KnownRow) {
        let Some(of) = self.whereabouts(row.client) else {
            return;
        };
        let Some(mut shard) = self.shard(of.shard) else {
            return;
        };
        let place = match shard.find(of) {
            Some(place) => Some(place),
            None => shard.insert(of, row.since.0, row.lead),
        };
        if let Some(place) = place {
            shard.make_newest(place);
            shard.set(place, SINCE, minutes(row.since.0));
            shard.set(place, LEAD, row.lead.clamp(1, LEAD.max()));
        }
        drop(shard);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Forgets a client.
    pub fn forget(&self, client: Client) {
        self.read(client, |shard, place| {
            shard.remove(place);
            Some(())
        });
    }

    fn read<R>(
        &self,
        client: Client,
        read: impl FnOnce(&mut Shard, usize) -> Option<R>,
    ) -> Option<R> {
        if !self.is_used() {
            return None;
        }
        let of = self.whereabouts(client)?;
        let mut shard = self.shard(of.shard)?;
        let place = shard.find(of)?;
        read(&mut shard, place)
    }
}

#[cfg(test)]
mod tests;
