//! How an instance begins: what fleet.json says that it knew, joined with the bans that its own
//! files hold. The engine is not waited for (FLEET-3).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crossbeam_channel::bounded;
use weir_shared::ban::Ban;
use weir_shared::ban_origin::Instance;
use weir_shared::clock::{Clock, Now};
use weir_shared::fleet::FleetCounts;

use super::aside::Aside;
use super::claims::Claims;
use super::core::Core;
use super::counting::{self, CountFacts, Counting};
use super::eviction::Eviction;
use super::filing::Filing;
use super::kept::{self, Keeper};
use super::lists_file::ListsFile;
use super::names::{here, in_fleet, key_in_fleet};
use super::others::Others;
use super::part::Fleet;
use super::reading::{Reader, Shared};
use super::ready::Ready;
use super::replica::{Effect, Kept, Replica};
use super::sharing::Sharing;
use super::stamp::Origin;
use super::standing::Standing;
use super::thread::{Thread, random};
use super::waits::Waits;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};
use crate::rules::SharedLists;

/// What the thread may have said that was not heard.
const INBOX: usize = 16;
/// Orders that may wait: of each kind one is under way at most.
const ORDERS: usize = 16;

/// What the bans were at the start.
pub(crate) struct AtStart<'a> {
    pub(crate) bans: &'a [Arc<Ban>],
    /// What was edited while no service ran.
    pub(crate) edited: &'a [BanKey],
    /// What was taken out meanwhile.
    pub(crate) removed: &'a [BanKey],
    /// lists.json, and a number for rules.json.
    pub(crate) lists: (Arc<SharedLists>, u64),
    /// What the data plane counts; none where it is not shared.
    pub(crate) counts: Option<Arc<dyn FleetCounts>>,
}

impl Fleet {
    /// Begins. Tells what the ledger is to do.
    ///
    /// # Errors
    /// The system refused a thread or has no random numbers.
    // long: a flat list of the parts
    pub(crate) fn start(
        ready: Ready,
        at_start: &AtStart<'_>,
        dir: &Path,
        version: &'static str,
        clock: &Clock,
    ) -> io::Result<(Self, Vec<Effect>)> {
        let now = clock.now();
        let Ready {
            access,
            key,
            fleet,
            instance,
            sharing,
        } = ready;
        let nonce = random().ok_or_else(|| io::Error::other("the system has no random numbers"))?;
        let me = Instance::named(&instance).map_err(io::Error::other)?;
        let origin = Origin::new(&instance, nonce).ok_or_else(|| io::Error::other("no name"))?;
        let found = kept::read(dir, &fleet).unwrap_or_else(|why| {
            tracing::error!(
                "{} cannot be used: {why}; the instance joins its fleet as a new one",
                dir.join(kept::FILE).display()
            );
            None
        });
        let was = found.as_ref().map(|found| Instance::named(&found.instance));
        let was = was.transpose().map_err(io::Error::other)?.unwrap_or(me);
        let (kept, filed, contact_ms) = found
            .map(|found| (found.kept, found.lists, found.contact_ms))
            .unwrap_or_default();
        let engine = access.place.to_string();
        let (mut core, effects) = restored(origin.clone(), kept, at_start, (me, was), now.wall_ms);
        contact_ms.into_iter().for_each(|at| core.note_contact(at));
        let (listed, rules) = &at_start.lists;
        let shares = sharing.share.lists;
        let filing = shares.then(|| Filing::begin(filed, listed, &mut core, now.wall_ms));
        // The file is written once with the name of this boot's instance.
        core.note_change();
        let (said, inbox) = bounded(INBOX);
        let (orders, ordered) = bounded(ORDERS);
        let contact_ns = Arc::new(AtomicU64::new(now.mono_ns));
        let counts = at_start.counts.clone();
        let counts = counts.map(|counts| {
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
        let kept = Keeper::start(dir.to_owned())?;
        thread.start()?;
        tracing::info!(
            %fleet, %instance, %engine,
            "this instance is one of a fleet; it serves by itself until the engine answers"
        );
        let this = Self {
            fleet,
            engine,
            me,
            version,
            core,
            inbox,
            orders,
            standing: Standing::new(contact_ns, now),
            reading: 0,
            resyncs: 0,
            own: None,
            clock_ms: 0,
            round_trip_ns: 0,
            others: Others::default(),
            has_dropped: false,
            settings: BTreeMap::new(),
            differing: BTreeSet::new(),
            last_beat_ns: 0,
            is_beating: false,
            hurries: false,
            kept,
            waits: Waits::default(),
            forgot_ns: now.mono_ns,
            mended_ns: now.mono_ns,
            rejected: 0,
            rests: false,
            aside: Aside::new(dir.to_owned()),
            kept_contact_ms: 0,
            lists: ListsFile::new(filing, *rules),
            sharing,
            eviction: Eviction::default(),
            claims: Claims::default(),
        };
        Ok((this, effects))
    }
}

impl Fleet {
    /// After a panic: what the ledger holds is followed anew.
    pub(crate) fn recover<'a>(
        &mut self,
        bans: impl Iterator<Item = (&'a BanKey, &'a Arc<Ban>)>,
        now: Now,
    ) -> Vec<Effect> {
        let mut gone: BTreeSet<BanKey> = self.core.replica().bans().map(|(key, _)| *key).collect();
        let mut changes = Vec::new();
        for (key, ban) in bans {
            let in_fleet = in_fleet(self.me, ban);
            let named = key_in_fleet(self.me, *key);
            gone.remove(&named);
            if self.core.replica().held(named) != Some(&in_fleet) {
                changes.push(LedgerChange {
                    key: *key,
                    happened: Happened::Edited,
                    ban: Some(Arc::clone(ban)),
                });
            }
        }
        for key in gone {
            self.core.dropped(key);
        }
        self.follow(&changes, now)
    }
}

/// What was known before, joined with what the file of the bans holds now.
fn restored(
    origin: Origin,
    kept: Kept,
    at_start: &AtStart<'_>,
    (me, was): (Instance, Instance),
    now_ms: u64,
) -> (Core, Vec<Effect>) {
    let bans: Vec<Arc<Ban>> = at_start.bans.iter().map(|ban| in_fleet(was, ban)).collect();
    let mut core = Core::of(Replica::restored(origin, kept, &bans));
    let held: BTreeSet<BanKey> = bans.iter().map(|ban| BanKey::of(ban)).collect();
    let mut changes = Vec::new();
    for ban in &bans {
        let key = BanKey::of(ban);
        let shown = core.replica().held(key);
        if shown == Some(ban) {
            continue;
        }
        let is_lift = shown.is_some_and(|shown| shown.lifted.is_none()) && ban.lifted.is_some();
        let is_edit = at_start
            .edited
            .iter()
            .any(|edited| key_in_fleet(was, *edited) == key);
        if is_lift || is_edit {
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

/// What the ledger is to hold otherwise, or under another name. `named` are its bans as the fleet
/// names them.
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
