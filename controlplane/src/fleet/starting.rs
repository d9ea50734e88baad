//! Starts an instance: joins the state of fleet.json with the bans of its own files. Does not wait
//! for the engine (FLEET-3).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crossbeam_channel::bounded;
use weir_shared::ban::Ban;
use weir_shared::ban_origin::Instance;
use weir_shared::clock::Clock;
use weir_shared::fleet::CountsOf;

use super::aside::Aside;
use super::claims::Claims;
use super::clocks::Clocks;
use super::core::{Core, MOST_UNDER_WAY};
use super::counting::{self, CountFacts, Counting};
use super::eviction::Eviction;
use super::filing::Filing;
use super::kept::{Called, Found, Keeper};
use super::lists_file::ListsFile;
use super::names::{here, in_fleet, key_in_fleet};
use super::namesakes::Namesakes;
use super::others::Others;
use super::part::Fleet;
use super::points::Points;
use super::reading::{Reader, Shared};
use super::ready::Ready;
use super::refused::Refused;
use super::replica::{Effect, Kept, Replica};
use super::seal::random;
use super::sharing::Sharing;
use super::stamp::Origin;
use super::standing::Standing;
use super::thread::Thread;
use super::waits::Waits;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};
use crate::rules::SharedLists;

/// Messages of the threads that may wait for the loop.
const INBOX: usize = 16;
/// Orders that may wait: at most one of each kind, and a few batches.
const ORDERS: usize = 16 + MOST_UNDER_WAY;

/// The bans and lists at the start.
pub(crate) struct AtStart<'a> {
    pub(crate) bans: &'a [Arc<Ban>],
    /// The bans before any edit of them.
    pub(crate) before: &'a [Arc<Ban>],
    /// Bans that were edited while no service ran, or while it was in no fleet.
    pub(crate) edited: &'a [BanKey],
    /// Bans that were removed meanwhile.
    pub(crate) removed: &'a [BanKey],
    /// lists.json, and a digest of rules.json.
    pub(crate) lists: (Arc<SharedLists>, u64),
    /// The data plane's counts; none if they cannot be shared.
    pub(crate) counts: Option<&'a CountsOf>,
    /// The version of weir.
    pub(crate) version: &'static str,
    pub(crate) clock: &'a Clock,
}

/// The parts that continue when an instance starts again.
pub(super) struct GoesOn {
    pub(super) kept: Keeper,
    pub(super) waits: Waits,
    pub(super) aside: Aside,
    /// The number of the last change that fleet.json must hold.
    pub(super) changes: u64,
}

impl Fleet {
    /// Starts the instance. Returns the effects for the ledger as well.
    ///
    /// # Errors
    /// The system refused a thread or has no random numbers.
    pub(crate) fn start(
        ready: Ready,
        at_start: &AtStart<'_>,
        dir: &Path,
    ) -> io::Result<(Self, Vec<Effect>)> {
        let goes_on = GoesOn {
            kept: Keeper::start(dir.to_owned())?,
            waits: Waits::default(),
            aside: Aside::new(dir.to_owned()),
            // One change already: the file must be written with this boot's name.
            changes: 1,
        };
        Self::begin(ready, at_start, goes_on)
    }

    // long: a flat list of the parts
    pub(super) fn begin(
        mut ready: Ready,
        at_start: &AtStart<'_>,
        goes_on: GoesOn,
    ) -> io::Result<(Self, Vec<Effect>)> {
        let clock = at_start.clock;
        let now = clock.now();
        let found = ready.found.take();
        let Ready {
            access,
            key,
            fleet,
            instance,
            sharing,
            ..
        } = ready.clone();
        let nonce = random().ok_or_else(|| io::Error::other("the system has no random numbers"))?;
        let called = called(found.as_ref(), instance);
        let me = Instance::named(&called.name).map_err(io::Error::other)?;
        let origin = Origin::new(&called.name, nonce).ok_or_else(|| io::Error::other("no name"))?;
        let was = (found.as_ref()).map(|found| Instance::named(&found.was));
        let was = was.transpose().map_err(io::Error::other)?.unwrap_or(me);
        let is_edited = !at_start.edited.is_empty() || !at_start.removed.is_empty();
        let point = (found.as_ref())
            .filter(|_| !is_edited && was == me)
            .and_then(|found| found.point.clone());
        let (kept, filed, contact_ms) = found
            .map(|found| (found.kept, found.lists, found.contact_ms))
            .unwrap_or_default();
        let engine = access.place.to_string();
        let (mut core, effects) = restored(origin.clone(), kept, at_start, (me, was), now.wall_ms);
        if let Some(point) = point {
            core = core.from_point(point);
        }
        contact_ms.into_iter().for_each(|at| core.note_contact(at));
        let (listed, rules) = &at_start.lists;
        let shares = sharing.share.lists;
        let filing = shares.then(|| Filing::begin(filed, listed, &mut core, now.wall_ms));
        let (said, inbox) = bounded(INBOX);
        let (orders, ordered) = bounded(ORDERS);
        let contact_ns = Arc::new(AtomicU64::new(now.mono_ns));
        let counts = (at_start.counts).filter(|_| sharing.share.counts);
        let counts = counts.map(|counts| {
            let counts = counts();
            counts.heed(true);
            let (orders, ordered) = counting::orders();
            let facts: Arc<CountFacts> = Arc::default();
            Counting {
                access: access.clone(),
                key: key.clone(),
                me: origin.clone(),
                clock: clock.clone(),
                counts: Arc::clone(&counts),
                orders: ordered,
                facts: Arc::clone(&facts),
                interval: sharing.interval,
                rate: sharing.rate,
            }
            .start()?;
            Ok::<_, io::Error>(Sharing {
                orders,
                facts,
                counts,
                heeds: true,
            })
        });
        let sharing = counts.transpose()?;
        let shared = Arc::new(Shared {
            access,
            key,
            clock: clock.clone(),
            said,
            contact_ns: Arc::clone(&contact_ns),
        });
        let thread = Thread {
            reader: Reader::start(Arc::clone(&shared))?,
            shared,
            me: origin,
            orders: ordered,
        };
        thread.start()?;
        let instance = &called.name;
        tracing::info!(
            %fleet, %instance, %engine,
            "this instance is one of a fleet; it serves by itself until the engine answers"
        );
        let this = Self {
            fleet,
            engine,
            me,
            called,
            ready,
            version: at_start.version,
            core,
            inbox,
            orders,
            standing: Standing::new(contact_ns, now),
            reading: 0,
            resyncs: 0,
            own: None,
            clock_ms: 0,
            round_trip_ns: 0,
            clocks: Clocks::default(),
            others: Others::default(),
            namesakes: Namesakes::default(),
            has_dropped: false,
            settings: BTreeMap::new(),
            differing: BTreeSet::new(),
            last_batch_ns: 0,
            last_beat_ns: 0,
            is_beating: false,
            hurries: false,
            kept: goes_on.kept,
            changes: goes_on.changes,
            waits: goes_on.waits,
            points: Points::default(),
            forgot_ns: now.mono_ns,
            mended_ns: now.mono_ns,
            refused: Refused::default(),
            rests: false,
            aside: goes_on.aside,
            kept_contact_ms: 0,
            lists: ListsFile::new(filing, *rules),
            sharing,
            eviction: Eviction::default(),
            claims: Claims::default(),
        };
        Ok((this, effects))
    }
}

/// The name of an instance: that before its restart, if its settings have not changed it.
fn called(found: Option<&Found>, wanted: String) -> Called {
    let same = found.filter(|found| found.called.wanted == wanted);
    same.map_or_else(
        || Called {
            name: wanted.clone(),
            wanted: wanted.clone(),
        },
        |found| {
            let called = found.called.clone();
            if called.name != called.wanted {
                let Called { name, wanted } = &called;
                tracing::warn!(
                    "this instance goes on as {name}: another had the name {wanted}; give it a name of its own by WAF_FLEET_INSTANCE"
                );
            }
            called
        },
    )
}

/// The earlier state, joined with the bans of the file and with the edits since. An edit counts
/// even if the fleet has kept nothing of its ban.
fn restored(
    origin: Origin,
    kept: Kept,
    at_start: &AtStart<'_>,
    (me, was): (Instance, Instance),
    now_ms: u64,
) -> (Core, Vec<Effect>) {
    let named = |bans: &[Arc<Ban>]| -> Vec<Arc<Ban>> {
        bans.iter().map(|ban| in_fleet(was, ban)).collect()
    };
    let bans = named(at_start.bans);
    let mut core = Core::of(Replica::restored(origin, kept, &named(at_start.before)));
    let edited = at_start.edited.iter().map(|key| key_in_fleet(was, *key));
    let edited: BTreeSet<BanKey> = edited.collect();
    let held: BTreeSet<BanKey> = bans.iter().map(|ban| BanKey::of(ban)).collect();
    let mut changes = Vec::new();
    for ban in &bans {
        let key = BanKey::of(ban);
        let shown = core.replica().held(key);
        if shown == Some(ban) {
            continue;
        }
        let is_lift = shown.is_some_and(|shown| shown.lifted.is_none()) && ban.lifted.is_some();
        if is_lift || edited.contains(&key) {
            changes.push(LedgerChange {
                key,
                happened: Happened::Edited,
                ban: Some(Arc::clone(ban)),
            });
        }
    }
    for removed in at_start.removed {
        let key = key_in_fleet(was, *removed);
        if !held.contains(&key) && core.replica().held(key).is_some() {
            changes.push(LedgerChange {
                key,
                happened: Happened::Forgotten,
                ban: None,
            });
        }
    }
    core.follow(&changes, now_ms);
    let effects = differences(&core, at_start.bans, &bans, me);
    (core, effects)
}

/// The effects for bans that the ledger must hold differently, or under another name. `named` are
/// its bans with their names in the fleet.
fn differences(core: &Core, bans: &[Arc<Ban>], named: &[Arc<Ban>], me: Instance) -> Vec<Effect> {
    let mut held: BTreeSet<BanKey> = named.iter().map(|ban| BanKey::of(ban)).collect();
    let mut effects = Vec::new();
    for (ban, named) in bans.iter().zip(named) {
        let shown = core.replica().held(BanKey::of(named)).cloned();
        let key = BanKey::of(named);
        let effect = here(me, Effect { key, ban: shown });
        let stands = BanKey::of(ban);
        if effect.key != stands {
            effects.push(Effect {
                key: stands,
                ban: None,
            });
            effects.push(effect);
        } else if core.replica().held(key) != Some(named) {
            effects.push(effect);
        }
    }
    let missing = core.replica().bans();
    let missing = missing.filter(|(key, _)| held.insert(**key));
    effects.extend(missing.map(|(key, ban)| {
        let ban = Some(Arc::clone(ban));
        here(me, Effect { key: *key, ban })
    }));
    effects
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::NOW;

    /// FLEET-15, FLEET-17: a ban that was removed or changed while no service ran is an edit, even
    /// if fleet.json does not name the ban: the others get the content of the file, and the ledger
    /// has nothing to do.
    #[test]
    fn an_edit_while_no_service_ran_is_one_for_the_fleet() {
        let ban = |netblock: &str, reason: &str| -> Arc<Ban> {
            let ban = serde_json::from_value(json!({
                "netblock": netblock, "client": null, "ban_started": weir_shared::units::Time(NOW),
                "ban_expires": "permanent", "cause": "admin", "reason": reason}));
            Arc::new(ban.unwrap())
        };
        let (gone, stays) = (ban("203.0.113.0/24", "r"), ban("192.0.2.0/24", "r"));
        let before = [gone, ban("198.51.100.0/24", "r"), stays.clone()];
        let bans = [ban("198.51.100.0/24", "looked into"), stays];
        let (clock, _) = Clock::manual(NOW);
        let at_start = AtStart {
            bans: &bans,
            before: &before,
            edited: &[BanKey::of(&bans[0])],
            removed: &[BanKey::of(&before[0])],
            lists: (Arc::default(), 0),
            counts: None,
            version: "",
            clock: &clock,
        };
        let me = Instance::named("a").unwrap();
        let of = |name| Origin::new(name, 1).unwrap();
        let (core, effects) = restored(of("a"), Kept::default(), &at_start, (me, me), NOW + 1);
        assert_eq!((core.waiting(), effects), (2, Vec::new()));
        let in_fleet = |bans: &[Arc<Ban>]| -> Vec<Arc<Ban>> {
            bans.iter().map(|ban| in_fleet(me, ban)).collect()
        };
        let mut other = Replica::restored(of("b"), Kept::default(), &in_fleet(&before));
        for event in core.replica().kept().events {
            other.join(&event, NOW + 1).unwrap();
        }
        for replica in [core.replica(), &other] {
            let mut held: Vec<_> = replica.bans().map(|(_, ban)| Arc::clone(ban)).collect();
            held.sort_by_key(|ban| std::cmp::Reverse(ban.netblock));
            assert_eq!(held, in_fleet(&bans));
        }
    }
}
