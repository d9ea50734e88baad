//! Counts that clients share: those of limits by netblock, AS number, country, field, or of all
//! (SHARE). One lock over all of them, held for one request's look and count, so that of `limit` +
//! 1 requests at one moment one is refused, whichever workers they came to.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use arc_swap::ArcSwapOption;
use lru::LruCache;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::fleet::{SharedCount, ValueHash};
use weir_shared::lookup::Origin;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::rules::{
    Crawler, Limit, MAX_CRAWLERS, MAX_LIMITS, Per, Quota, Rule, Sent, SharedKey, Told,
};
use weir_shared::settings::OnLimit;
use weir_shared::table::SharedRefusal;
use weir_shared::window::RuleSpan;

use crate::clients::RuleWindow;
use crate::clients::known::{KnownClients, Standing};
use count::{Count, earliest, latest};

mod count;
mod telling;

/// Counts that are kept, of all limits together; the one that was seen longest ago goes first,
/// those of all clients never (SHARE-5).
const MAX_KEYS: usize = 20_000;

/// So much of a field's value is told apart.
const MAX_FIELD: usize = 4 * 1024;

/// Counts of limits that were for all clients, or for all of a crawler, and are no more: as many
/// are kept as there can be, the second ones among them.
const MAX_ALL: usize = 4 * (MAX_LIMITS + MAX_CRAWLERS);

/// What decides which of the counts a request adds to.
#[derive(Clone, Copy)]
pub struct Sharing<'a> {
    /// The counts.
    pub counts: &'a SharedCounts,
    /// Who is known, and trusted.
    pub known: &'a KnownClients,
    /// Who asks.
    pub client: Client,
    /// `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`
    pub prefixes: PrefixLengths,
    /// The request's fields.
    pub sent: &'a dyn Sent,
    /// Nothing is counted: it is only asked what would be (CONTROL-5).
    pub only_asks: bool,
}

/// A shared limit without room for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full<'a> {
    /// Its name.
    pub rule: &'a Arc<Rule>,
    /// Which of its counts.
    pub key: SharedKey,
    /// The shortest of its windows that is full.
    pub quota: Quota,
    /// Milliseconds until one more fits; none where it never will.
    pub fits_in_ms: Option<u64>,
    /// Whether a ban is to follow.
    pub bans: bool,
}

/// The counts of all shared limits.
pub struct SharedCounts {
    held: Mutex<Held>,
    /// Of the fields' values, and of how much longer who is refused is to wait: nobody outside
    /// knows its keys.
    hasher: RandomState,
    /// Of the fields' values in a fleet.
    values: ArcSwapOption<ValueHash>,
    /// Whether refusals wait to be told. Relaxed: they are asked for again soon.
    has_refusals: AtomicBool,
    /// Other instances are to be told of something.
    has_changed: AtomicBool,
    /// Whether other instances are told of them; set once, before anything is counted.
    is_shared: AtomicBool,
}

struct Held {
    keys: LruCache<Key, Count, RandomState>,
    /// Those of all clients, which no other key puts out.
    all: LruCache<(usize, Which), Count, RandomState>,
    evicted: u64,
    /// The limits that have counts of netblocks, and how wide these are.
    netblocks: Vec<(usize, PrefixLengths)>,
    /// To be told; how many at most `telling.rs` says.
    refusals: Vec<SharedRefusal>,
    /// What counted something that other instances are to know; each once.
    changed: Vec<SharedCount>,
}

/// The place of a limit's rule in memory, which the count holds, and which of the limit's counts.
type Key = (usize, SharedKey, Which);

/// Whose count it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Which {
    /// Of all requests.
    First,
    /// Of those of known clients that the first has no room for (SHARE-4).
    Second,
}

impl Default for SharedCounts {
    fn default() -> Self {
        Self::with_capacity(MAX_KEYS)
    }
}

impl SharedCounts {
    /// Counts of at most so many keys; production uses [`MAX_KEYS`].
    fn with_capacity(keys: usize) -> Self {
        Self {
            held: Mutex::new(Held {
                keys: at_most(keys),
                all: at_most(MAX_ALL),
                evicted: 0,
                netblocks: Vec::new(),
                refusals: Vec::new(),
                changed: Vec::new(),
            }),
            hasher: RandomState::new(),
            values: ArcSwapOption::empty(),
            has_refusals: AtomicBool::new(false),
            has_changed: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic under this lock leaves counts that are whole, one by one.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was counted for the netblock of a client if all of it is banned now (LIMIT-6).
    /// A ban of the client alone leaves the netblock's count: its neighbours go on.
    pub fn forget_netblock_of(&self, client: Client, banned: Netblock, epoch_ms: Option<u64>) {
        let mut held = self.held();
        let Held {
            keys, netblocks, ..
        } = &mut *held;
        for (rule, prefixes) in netblocks {
            let netblock = Netblock::of(client, *prefixes);
            if banned.covers(netblock) {
                // Limits that ban spare nobody: there is no second count.
                let key = (*rule, SharedKey::Netblock(netblock), Which::First);
                if let Some((count, epoch_ms)) = keys.pop(&key).zip(epoch_ms) {
                    // What was counted before the ban is void everywhere (FLEET-9).
                    keys.put(key, count.begun(epoch_ms));
                }
            }
        }
    }
}

/// At most so many, without room for them yet: mostly there are none.
fn at_most<K: Hash + Eq>(most: usize) -> LruCache<K, Count, RandomState> {
    let mut held = LruCache::unbounded_with_hasher(RandomState::new());
    held.resize(NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN));
    held
}

impl Held {
    /// The count of a key, made where there is none.
    fn count(&mut self, rule: &Arc<Rule>, key: SharedKey, which: Which) -> &mut Count {
        let (place, made) = (Arc::as_ptr(rule).addr(), || Count::new(rule));
        if key == SharedKey::All {
            let key = (place, which);
            if !self.all.contains(&key) {
                self.make_room();
            }
            return self.all.get_or_insert_mut(key, made);
        }
        let key = (place, key, which);
        if !self.keys.contains(&key) {
            self.make_room();
        }
        self.keys.get_or_insert_mut(key, made)
    }

    /// Makes room for one count: the one that was seen longest ago goes, never one of all clients.
    fn make_room(&mut self) {
        let is_full = self.keys.len() + self.all.len() >= self.keys.cap().get();
        if is_full && self.keys.pop_lru().is_some() {
            self.evicted += 1;
        }
    }

    /// Why a count has no room for the request of a client, which is given by its hash; none of a
    /// question. See [`Count::full`].
    fn full(
        &mut self,
        (limit, key, which): (&Limit, SharedKey, Which),
        client: Option<u64>,
        wall_ms: u64,
    ) -> Option<(Quota, Option<u64>)> {
        let Some(client) = client else {
            let copy = self.copy(&limit.rule, key, which);
            return copy.full(&limit.quotas, wall_ms);
        };
        let count = self.count(&limit.rule, key, which);
        count.seen(client, &limit.quotas, wall_ms);
        count.full(&limit.quotas, wall_ms)
    }

    /// A copy of it, which counts nothing.
    fn copy(&self, rule: &Arc<Rule>, key: SharedKey, which: Which) -> Count {
        let place = Arc::as_ptr(rule).addr();
        let held = match key {
            SharedKey::All => self.all.peek(&(place, which)),
            _ => self.keys.peek(&(place, key, which)),
        };
        held.cloned().unwrap_or_else(|| Count::new(rule))
    }

    fn note_netblocks(&mut self, rule: &Arc<Rule>, prefixes: PrefixLengths) {
        let of = (Arc::as_ptr(rule).addr(), prefixes);
        if !self.netblocks.contains(&of) {
            if self.netblocks.len() == MAX_ALL {
                self.netblocks.remove(0);
            }
            self.netblocks.push(of);
        }
    }
}

impl<'a> Sharing<'a> {
    /// Which count of a limit is that of the request; none where its clients count by themselves,
    /// or where it is not known what a request of the past sent.
    fn key(&self, limit: &Limit, origin: Origin) -> Option<SharedKey> {
        Some(match &limit.per {
            Per::Client => return None,
            Per::Netblock => SharedKey::Netblock(Netblock::of(self.client, self.prefixes)),
            Per::Asn => SharedKey::Asn(origin.asn),
            Per::Country => SharedKey::Country(origin.country),
            Per::All => SharedKey::All,
            Per::Field(name) => {
                let mut first = None;
                let told = self.sent.each_line(name, &mut |line| {
                    let line = line.get(..MAX_FIELD).unwrap_or(line);
                    first.get_or_insert_with(|| self.counts.hash(line));
                });
                match told {
                    Told::Known(()) => SharedKey::Field(first),
                    Told::Unknown => return None,
                }
            }
        })
    }

    /// What the windows of a limit hold for the request; none where its clients count by
    /// themselves.
    pub fn windows(
        &self,
        limit: &Limit,
        origin: Origin,
        now: Now,
    ) -> Option<impl Fn(RuleSpan) -> RuleWindow> {
        let key = self.key(limit, origin)?;
        let count = self.counts.held().copy(&limit.rule, key, Which::First);
        Some(move |span| count.window(span, now))
    }

    /// Whether the application trusts the client: its requests are outside all shared limits
    /// (APP-4).
    pub fn is_trusted(&self, now: Now) -> bool {
        self.known.trusts(self.client, now)
    }

    /// Counts a request against the limits that ban, as each of them counts every request
    /// (LIMIT-2); gives the first that is full, one that bans before one that does not.
    pub fn charge_bans(
        &self,
        limits: impl Iterator<Item = &'a Limit>,
        origin: Origin,
        other_site: bool,
        now: Now,
    ) -> Option<Full<'a>> {
        let mut found: Option<Full<'a>> = None;
        for limit in limits.filter(|limit| limit.on_limit == OnLimit::Ban) {
            let Some(key) = self.key(limit, origin) else {
                continue;
            };
            let mut held = self.counts.held();
            let mut copy;
            let count = if self.only_asks {
                copy = held.copy(&limit.rule, key, Which::First);
                &mut copy
            } else {
                held.note_netblocks(&limit.rule, self.prefixes);
                held.count(&limit.rule, key, Which::First)
            };
            let full = count.full(&limit.quotas, now.wall_ms);
            count.add(&limit.quotas, now.wall_ms, other_site);
            let own = full.and_then(|_| count.own_over(&limit.quotas, now.wall_ms));
            if !self.only_asks {
                self.counts.note(&mut held, &limit.rule, key, Which::First);
            }
            let Some((quota, fits_in_ms)) = full else {
                continue;
            };
            let bans = own.is_some() && !other_site;
            if found.is_none_or(|found| bans && !found.bans) {
                found = Some(Full {
                    rule: &limit.rule,
                    key,
                    quota: own.filter(|_| bans).unwrap_or(quota),
                    fits_in_ms: self.later(fits_in_ms, now),
                    bans,
                });
            }
        }
        found
    }

    /// Whether the client is known to a limit after this time (SHARE-4).
    fn is_known(&self, standing: Standing, after: Duration, now: Now) -> bool {
        standing.is_known(after, now.wall_ms) || self.known.knows(self.client, after, now.wall_ms)
    }

    /// Counts a request against the limits that refuse, if all of them have room; else gives the
    /// first that has none, with the time until all have, and counts nothing. A known client has a
    /// second count where the first has no room.
    pub fn take(
        &self,
        limits: impl Iterator<Item = &'a Limit>,
        (origin, standing): (Origin, Standing),
        now: Now,
    ) -> Option<Full<'a>> {
        let refuses = limits.filter(|limit| limit.on_limit == OnLimit::Refuse);
        let mut asked: Vec<(&Limit, SharedKey, Which)> = refuses
            .filter_map(|limit| Some((limit, self.key(limit, origin)?, Which::First)))
            .collect();
        if asked.is_empty() {
            return None;
        }
        let client = (!self.only_asks).then(|| self.counts.hasher.hash_one(self.client));
        let mut held = self.counts.held();
        let mut found: Option<Full<'a>> = None;
        for one in &mut asked {
            let Some((quota, mut fits)) = held.full(*one, client, now.wall_ms) else {
                continue;
            };
            let (limit, key, which) = one;
            let spares = |after| self.is_known(standing, after, now);
            if limit.spare_known.is_some_and(spares) {
                let second = (*limit, *key, Which::Second);
                match held.full(second, client, now.wall_ms) {
                    None => {
                        *which = Which::Second;
                        continue;
                    }
                    Some((_, second_fits)) => fits = earliest(fits, second_fits),
                }
            }
            let full = found.get_or_insert(Full {
                rule: &limit.rule,
                key: *key,
                quota,
                fits_in_ms: fits,
                bans: false,
            });
            full.fits_in_ms = latest(full.fits_in_ms, fits);
        }
        if found.is_none() && !self.only_asks {
            for (limit, key, which) in &asked {
                held.count(&limit.rule, *key, *which)
                    .add(&limit.quotas, now.wall_ms, false);
            }
        }
        self.note(&mut held, &asked);
        let is_new = |full: &Full<'_>| !self.only_asks && held.tell(full, now.wall_ms);
        if found.as_ref().is_some_and(is_new) {
            self.counts.has_refusals.store(true, Ordering::Relaxed);
        }
        drop(held);
        let full = found?;
        Some(Full {
            fits_in_ms: self.later(full.fits_in_ms, now),
            ..full
        })
    }

    /// Other instances are to know of these.
    fn note(&self, held: &mut Held, asked: &[(&Limit, SharedKey, Which)]) {
        for (limit, key, which) in asked.iter().filter(|_| !self.only_asks) {
            self.counts.note(held, &limit.rule, *key, *which);
        }
    }

    /// Counts a request of a verified crawler, whichever of its addresses it came from, against its
    /// own limits if they have room (CRAWL-4).
    pub fn take_crawler(&self, crawler: &'a Crawler, now: Now) -> Option<Full<'a>> {
        let (rule, quotas) = (&crawler.rule, &crawler.quotas);
        if quotas.is_empty() {
            return None;
        }
        let key = SharedKey::All;
        let mut held = self.counts.held();
        let mut copy;
        let count = if self.only_asks {
            copy = held.copy(rule, key, Which::First);
            &mut copy
        } else {
            held.count(rule, key, Which::First)
        };
        let Some((quota, fits)) = count.full(quotas, now.wall_ms) else {
            count.add(quotas, now.wall_ms, false);
            return None;
        };
        Some(Full {
            rule,
            key,
            quota,
            fits_in_ms: self.later(fits, now),
            bans: false,
        })
    }

    /// The time until it fits, and up to a quarter more: the refused are not to come back in one
    /// moment (SHARE-7).
    fn later(&self, fits_in_ms: Option<u64>, now: Now) -> Option<u64> {
        let fits = fits_in_ms?;
        let random = self.counts.hasher.hash_one((self.client, now.mono_ns));
        Some(fits.saturating_add(random % (fits / 4 + 1)))
    }
}

#[cfg(test)]
mod tests;
