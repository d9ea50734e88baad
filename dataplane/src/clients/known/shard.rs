//! One shard of the known clients: a table of chains, and a list in the order in which its clients
//! were seen, in places of 16 bytes.

use std::time::Duration;

use weir_shared::clock::Now;
use weir_shared::table::MAX_KNOWN;

/// Bits of the permuted address that say in which shard it lies.
pub(super) const SHARD_BITS: u32 = 6;
/// Bits of it that say in which chain of the shard.
pub(super) const CHAIN_BITS: u32 = 11;
/// Bits of it that are kept.
pub(super) const REST_BITS: u32 = 64 - SHARD_BITS - CHAIN_BITS;

pub(super) const SHARDS: usize = 1 << SHARD_BITS;
pub(super) const CHAINS: usize = 1 << CHAIN_BITS;
/// Clients of one shard.
pub(super) const PLACES: usize = MAX_KNOWN / SHARDS;

/// No place: behind the last one.
const NONE: usize = 0xfff;
/// What follows is no place, but the number of the chain that ends here.
const END: usize = 0x1000;

/// First requests are noted in minutes since this: 2020-01-01.
const EPOCH_MS: u64 = 1_577_836_800_000;
const MINUTE_MS: u64 = 60_000;

/// The ends of trust are noted in steps of 2^26 ns, about 67 ms of the monotonic clock: 2^32 of
/// them are nine years.
const TRUST_STEP: u32 = 26;

/// Some bits of a place.
#[derive(Clone, Copy)]
pub(super) struct Bits {
    at: u32,
    count: u32,
}

impl Bits {
    const fn behind(self, count: u32) -> Self {
        Self {
            at: self.at + self.count,
            count,
        }
    }

    pub(super) const fn max(self) -> u64 {
        (1 << self.count) - 1
    }
}

/// What is kept of the client's address.
pub(super) const REST: Bits = Bits {
    at: 0,
    count: REST_BITS,
};
/// The place of the client that was seen before it.
const OLDER: Bits = REST.behind(12);
/// The place of the client that was seen after it.
const NEWER: Bits = OLDER.behind(12);
/// The next place of its chain, or [`END`] and the number of the chain; of a free place the next
/// free one.
const NEXT: Bits = NEWER.behind(13);
/// The first place of the chain that has this place's number.
const HEAD: Bits = NEXT.behind(12);
/// The minute of its first request that passed.
pub(super) const SINCE: Bits = HEAD.behind(24);
/// How many more of its requests passed than were refused, as far as it fits.
pub(super) const LEAD: Bits = SINCE.behind(8);

const _: () = assert!(LEAD.at + LEAD.count == 128);
const _: () = assert!(PLACES < NONE && PLACES * SHARDS == MAX_KNOWN);
const _: () = assert!(CHAINS <= PLACES && CHAINS <= END);

/// 16 bytes: one client, and the head of one chain.
#[derive(Clone, Copy)]
pub(super) struct Place(u128);

impl Place {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what is above the bits is masked off"
    )]
    const fn get(self, bits: Bits) -> u64 {
        (self.0 >> bits.at) as u64 & bits.max()
    }

    const fn set(&mut self, bits: Bits, value: u64) {
        let mask = (bits.max() as u128) << bits.at;
        self.0 = self.0 & !mask | ((value & bits.max()) as u128) << bits.at;
    }
}

/// Where a client lies.
#[derive(Clone, Copy)]
pub(super) struct Whereabouts {
    pub(super) shard: usize,
    pub(super) chain: usize,
    pub(super) rest: u64,
}

/// Clients with the same first bits.
#[derive(Default)]
pub(super) struct Shard {
    /// All of them at once, with the first client.
    places: Vec<Place>,
    /// The ends of trust, for each place; none before the first.
    trust: Vec<u32>,
    /// The moment that they are counted from, on the monotonic clock.
    trust_from_ns: u64,
    /// Places that were taken so far.
    taken: usize,
    /// The first of those that are free again.
    free: usize,
    /// The place of the client that was seen longest ago, and of the one seen last.
    oldest: usize,
    newest: usize,
    pub(super) len: usize,
}

pub(super) fn since_ms(minutes: u64) -> u64 {
    EPOCH_MS + minutes * MINUTE_MS
}

pub(super) fn minutes(since_ms: u64) -> u64 {
    let minutes = since_ms.saturating_sub(EPOCH_MS) / MINUTE_MS;
    minutes.min(SINCE.max())
}

impl Shard {
    pub(super) fn get(&self, place: usize, bits: Bits) -> u64 {
        self.places.get(place).map_or(0, |place| place.get(bits))
    }

    pub(super) fn set(&mut self, place: usize, bits: Bits, value: u64) {
        if let Some(place) = self.places.get_mut(place) {
            place.set(bits, value);
        }
    }

    /// The place that a place names.
    fn link(&self, place: usize, bits: Bits) -> usize {
        usize::try_from(self.get(place, bits)).unwrap_or(NONE)
    }

    fn set_link(&mut self, place: usize, bits: Bits, link: usize) {
        self.set(place, bits, link as u64);
    }

    pub(super) fn trusts(&self, place: usize, now: Now) -> bool {
        let until = self.trust.get(place).copied().unwrap_or(0);
        u64::from(until) > self.trust_step(now.mono_ns)
    }

    /// Trusts a client so long; the longer of two holds.
    pub(super) fn trust_until(&mut self, place: usize, duration: Duration, now: Now) {
        if self.trust.is_empty() {
            self.trust = vec![0; PLACES];
            self.trust_from_ns = now.mono_ns;
        }
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let until = self.trust_step(now.mono_ns.saturating_add(nanos));
        let until = u32::try_from(until).map_or(u32::MAX, |until| until.saturating_add(1));
        if let Some(held) = self.trust.get_mut(place) {
            *held = until.max(*held);
        }
    }

    const fn trust_step(&self, mono_ns: u64) -> u64 {
        mono_ns.saturating_sub(self.trust_from_ns) >> TRUST_STEP
    }

    pub(super) fn find(&self, of: Whereabouts) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut place = self.link(of.chain, HEAD);
        while place < NONE {
            if self.get(place, REST) == of.rest {
                return Some(place);
            }
            place = self.link(place, NEXT);
        }
        None
    }

    /// The chain that a place lies in: the end of the chain says it.
    pub(super) fn chain_of(&self, mut place: usize) -> usize {
        while place < NONE {
            place = self.link(place, NEXT);
        }
        place & !END
    }

    /// Puts a client in that is not there. The one that was seen longest ago goes where there is no
    /// room.
    pub(super) fn insert(&mut self, of: Whereabouts, since_ms: u64, lead: u64) -> Option<usize> {
        if self.places.is_empty() {
            let mut empty = Place(0);
            for link in [OLDER, NEWER, NEXT, HEAD] {
                empty.set(link, NONE as u64);
            }
            self.places = vec![empty; PLACES];
            (self.free, self.oldest, self.newest) = (NONE, NONE, NONE);
        }
        if self.len == PLACES {
            self.remove(self.oldest);
        }
        let place = if self.free == NONE {
            self.taken += 1;
            self.taken - 1
        } else {
            let place = self.free;
            self.free = self.link(place, NEXT);
            place
        };
        if place >= PLACES {
            return None;
        }
        self.len += 1;
        self.set(place, REST, of.rest);
        self.set(place, SINCE, minutes(since_ms));
        self.set(place, LEAD, lead.min(LEAD.max()));
        let next = match self.link(of.chain, HEAD) {
            NONE => END | of.chain,
            first => first,
        };
        self.set_link(place, NEXT, next);
        self.set_link(of.chain, HEAD, place);
        self.append(place);
        Some(place)
    }

    /// Puts a place behind all others in the order.
    fn append(&mut self, place: usize) {
        self.set_link(place, OLDER, self.newest);
        self.set_link(place, NEWER, NONE);
        match self.newest {
            NONE => self.oldest = place,
            newest => self.set_link(newest, NEWER, place),
        }
        self.newest = place;
    }

    /// Takes a place out of the order.
    fn take_out(&mut self, place: usize) {
        let (older, newer) = (self.link(place, OLDER), self.link(place, NEWER));
        match older {
            NONE => self.oldest = newer,
            older => self.set_link(older, NEWER, newer),
        }
        match newer {
            NONE => self.newest = older,
            newer => self.set_link(newer, OLDER, older),
        }
    }

    pub(super) fn make_newest(&mut self, place: usize) {
        if place != self.newest {
            self.take_out(place);
            self.append(place);
        }
    }

    pub(super) fn remove(&mut self, place: usize) {
        let chain = self.chain_of(place);
        let (mut before, mut at) = (NONE, self.link(chain, HEAD));
        while at < NONE && at != place {
            (before, at) = (at, self.link(at, NEXT));
        }
        if at != place {
            return;
        }
        let next = self.link(place, NEXT);
        match before {
            NONE if next < NONE => self.set_link(chain, HEAD, next),
            NONE => self.set_link(chain, HEAD, NONE),
            before => self.set_link(before, NEXT, next),
        }
        self.take_out(place);
        self.set_link(place, NEXT, self.free);
        self.free = place;
        self.len -= 1;
        if let Some(trust) = self.trust.get_mut(place) {
            *trust = 0;
        }
    }

    /// All places, the one seen longest ago first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = usize> {
        let first = if self.places.is_empty() {
            NONE
        } else {
            self.oldest
        };
        let next = |place: &usize| Some(self.link(*place, NEWER)).filter(|next| *next < NONE);
        std::iter::successors(Some(first).filter(|first| *first < NONE), next)
    }
}
