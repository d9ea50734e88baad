//! The bans and lifts of a fleet as one instance knows them. The ledger's content is derived from
//! it, and it follows the ledger's own changes.
//!
//! [`Replica::join`] takes events of others and returns orders to the ledger; [`Replica::follow`]
//! takes the ledger's changes. Replicas that know the same events are equal, in whatever order and
//! however often the events came (FLEET-16). Time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::ban_origin::BanOrigin;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::digest::Digest;
use super::entry::{Entry, EntryId, MAX_PLACE, SLOT_MS, WhichBan};
use super::event::{Event, Rejected};
pub use super::lift::KEPT_MS;
use super::lift::{LiftRecord, MAX_KEPT};
use super::lists::Lists;
pub use super::outcome::{Effect, Item, Kept, Outcome};
use super::stamp::{Origin, Stamp, StampClock};
use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};

mod listing;

/// The known state of the fleet.
#[derive(Clone, Debug)]
pub struct Replica {
    clock: StampClock,
    entries: BTreeMap<EntryId, Entry>,
    lifts: BTreeMap<Stamp, LiftRecord>,
    lists: Lists,
    /// The ledger's bans, each with its entry.
    shown: BTreeMap<BanKey, (EntryId, Arc<Ban>)>,
    /// The digest of these bans.
    digest: Digest,
    /// The number of removed entries.
    gone: usize,
    /// The number of changes of what bans.json does not hold.
    kept_changes: u64,
}

impl Replica {
    /// An empty replica.
    pub fn new(origin: Origin) -> Self {
        Self {
            clock: StampClock::new(origin),
            entries: BTreeMap::new(),
            lifts: BTreeMap::new(),
            lists: Lists::default(),
            shown: BTreeMap::new(),
            digest: Digest::default(),
            gone: 0,
            kept_changes: 0,
        }
    }

    /// The replica of an instance that has ended, from what it kept and from the bans of its file.
    /// It also has the kept bans that the file lacks.
    pub fn restored(origin: Origin, kept: Kept, bans: &[Arc<Ban>]) -> Self {
        let mut replica = Self::new(origin);
        for event in kept.events {
            for stamp in event.stamps() {
                replica.clock.see(stamp, u64::MAX);
            }
            match event {
                Event::Lift(lift) => drop(replica.lifts.insert(lift.stamp.clone(), lift)),
                Event::Entry(entry) => drop(replica.entries.insert(entry.id, *entry)),
                Event::List(record) => drop(replica.lists.join(record)),
            }
        }
        for entry in replica.entries.values_mut() {
            entry.lift_by(replica.lifts.values());
        }
        replica.gone = (replica.entries.values())
            .filter(|entry| entry.is_gone())
            .count();
        let mut netblocks: Vec<Netblock> = replica.entries.keys().map(|id| id.netblock).collect();
        netblocks.dedup();
        for netblock in netblocks {
            replica.show(netblock);
        }
        let made: BTreeMap<BanKey, Stamp> = kept.made.into_iter().collect();
        for ban in bans {
            let key = BanKey::of(ban);
            if !replica.shown.contains_key(&key) {
                let stamp = made.get(&key).cloned();
                let stamp = stamp.unwrap_or_else(|| Stamp::of_time(key.ban_started.0));
                replica.clock.see(&stamp, u64::MAX);
                replica.make(key, ban, stamp);
                replica.show(key.netblock);
            }
        }
        replica
    }

    /// What to keep beyond bans.json.
    pub fn kept(&self) -> Kept {
        let entries = self.entries.values();
        let (more, plain): (Vec<&Entry>, Vec<&Entry>) = entries.partition(|entry| entry.has_more());
        let lifts = self.lifts.values().cloned().map(Event::Lift);
        let more = more
            .into_iter()
            .filter_map(|entry| self.event(&Item::Entry(entry.id)));
        let lists = self.lists.records().cloned().map(Event::List);
        let made = (plain.into_iter()).filter(|entry| !entry.is_made_at_its_start());
        Kept {
            events: lifts.chain(more).chain(lists).collect(),
            made: made
                .filter_map(|entry| Some((entry.key()?, entry.made.clone())))
                .collect(),
        }
    }

    /// The number of changes of it.
    pub fn kept_changes(&self) -> u64 {
        self.kept_changes
    }

    /// Counts a change of fleet.json's other content.
    pub fn note_change(&mut self) {
        self.kept_changes += 1;
    }

    /// The ban that the ledger must hold under this key.
    pub fn held(&self, key: BanKey) -> Option<&Arc<Ban>> {
        self.shown.get(&key).map(|(_, ban)| ban)
    }

    /// Every ban that the ledger must hold.
    pub fn bans(&self) -> impl Iterator<Item = (&BanKey, &Arc<Ban>)> {
        self.shown.iter().map(|(key, (_, ban))| (key, ban))
    }

    /// The replica after a restart, with the origin of the new boot. Its stamps will be later than
    /// all known ones.
    #[must_use]
    pub fn restarted(&self, origin: Origin) -> Self {
        let mut replica = self.clone();
        replica.clock = self.clock.restarted(origin);
        replica
    }

    /// The origin of its own changes.
    pub fn origin(&self) -> &Origin {
        self.clock.origin()
    }

    /// The keys of all known events.
    pub fn items(&self) -> impl Iterator<Item = Item> + '_ {
        let entries = self.entries.keys().copied().map(Item::Entry);
        let lists = self.lists.records().map(|record| Item::List(record.key));
        (entries.chain(self.lifts.keys().cloned().map(Item::Lift))).chain(lists)
    }

    /// The last stamp that was made here or seen.
    pub fn last_stamp(&self) -> (u64, u16) {
        self.clock.last()
    }

    /// The items with a later stamp than this.
    pub fn later_than(&self, last: (u64, u16)) -> Vec<Item> {
        let is_later = |item: &Item| {
            let event = self.event(item);
            event.is_some_and(|event| event.stamps().any(|stamp| stamp.time() > last))
        };
        self.items().filter(is_later).collect()
    }

    /// The number of known entries, lifts and list records.
    pub fn len(&self) -> usize {
        self.entries.len() + self.lifts.len() + self.lists.len()
    }

    /// Whether it knows nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The current event of this item.
    pub fn event(&self, item: &Item) -> Option<Event> {
        match item {
            Item::Entry(id) => {
                let mut entry = self.entries.get(id)?.clone();
                entry.lift = None;
                Some(Event::Entry(Box::new(entry)))
            }
            Item::Lift(stamp) => self.lifts.get(stamp).cloned().map(Event::Lift),
            Item::List(key) => self.lists.record(*key).cloned().map(Event::List),
        }
    }

    /// The digest of unexpired bans and of lists: the same at all instances that hold the same
    /// (FLEET-16).
    pub fn digest(&self, now_ms: u64) -> u64 {
        let lists = self.lists.digest(now_ms);
        self.digest.at(now_ms).wrapping_add(lists)
    }

    /// Every entry.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Joins an event of another instance. Returns the effects for the ledger, and whether the
    /// state of this item is now exactly that of the event.
    ///
    /// # Errors
    /// [`Rejected::Clock`]
    pub fn join(&mut self, event: &Event, now_ms: u64) -> Result<(Vec<Effect>, bool), Rejected> {
        let mut stamps = event.stamps();
        if !stamps.all(|stamp| self.clock.see(stamp, now_ms)) {
            return Err(Rejected::Clock);
        }
        Ok(match event {
            Event::Entry(said) => {
                let effects = self.join_entry(said);
                let known = self.event(&Item::Entry(said.id));
                (effects, known.as_ref() == Some(event))
            }
            Event::Lift(record) => (self.join_lift(record.clone()), true),
            Event::List(said) => {
                self.kept_changes += u64::from(self.join_list(said)?);
                (Vec::new(), self.lists.record(said.key) == Some(said))
            }
        })
    }

    fn join_entry(&mut self, said: &Entry) -> Vec<Effect> {
        let id = said.id;
        let was_gone = self.entries.get(&id).is_some_and(Entry::is_gone);
        let entry = self.entries.entry(id).or_insert_with(|| said.clone());
        entry.join(said);
        entry.lift_by(self.lifts.values());
        if entry.is_gone() && !was_gone {
            self.gone += 1;
        }
        if entry.has_more() || !entry.is_made_at_its_start() {
            self.kept_changes += 1;
        }
        self.show(id.netblock)
    }

    fn join_lift(&mut self, record: LiftRecord) -> Vec<Effect> {
        match self.lifts.get(&record.stamp) {
            Some(held) if held.text() >= record.text() => return Vec::new(),
            Some(_) => return self.replace_lift(record),
            None => {}
        }
        self.kept_changes += 1;
        let mut touched: Vec<Netblock> = Vec::new();
        for (id, entry) in &mut self.entries {
            if record.covers(id.netblock) {
                entry.lift_by([&record].into_iter());
                touched.push(id.netblock);
            }
        }
        self.lifts.insert(record.stamp.clone(), record);
        touched.dedup();
        touched
            .into_iter()
            .flat_map(|netblock| self.show(netblock))
            .collect()
    }

    /// Handles two different lifts of one stamp, which only a dishonest instance can make. All
    /// instances keep the same one, and recompute its effects.
    fn replace_lift(&mut self, record: LiftRecord) -> Vec<Effect> {
        self.kept_changes += 1;
        self.lifts.insert(record.stamp.clone(), record);
        self.lift_anew(|_| true)
    }

    /// Recomputes the lifts of these entries from the known records. Returns the effects for the
    /// ledger.
    fn lift_anew(&mut self, which: impl Fn(&Entry) -> bool) -> Vec<Effect> {
        let mut netblocks: Vec<Netblock> = Vec::new();
        for (id, entry) in self.entries.iter_mut().filter(|(_, entry)| which(entry)) {
            entry.lift = None;
            entry.lift_by(self.lifts.values());
            netblocks.push(id.netblock);
        }
        netblocks.dedup();
        (netblocks.into_iter())
            .flat_map(|netblock| self.show(netblock))
            .collect()
    }

    /// Lifts at this instance: every ban of the subject, and covered ones that arrive later
    /// (FLEET-13).
    pub fn lift(&mut self, subject: Subject, now_ms: u64) -> Outcome {
        let stamp = self.clock.next(now_ms);
        let record = LiftRecord::new(subject, stamp.clone(), Time(now_ms));
        let effects = self.join_lift(record);
        Outcome {
            effects,
            items: vec![Item::Lift(stamp)],
        }
    }

    /// Follows a change of the ledger. Changes that come from [`Replica::join`]'s own effects are
    /// not new.
    pub fn follow(&mut self, change: &LedgerChange, now_ms: u64) -> Outcome {
        let shown = self.shown.get(&change.key).cloned();
        let (id, is_new) = match (&change.ban, shown) {
            (None, None) => return Outcome::default(),
            (None, Some((id, _))) if change.happened == Happened::Dropped => {
                self.drop_entry(change.key, id);
                return Outcome::default();
            }
            (None, Some((id, _))) => {
                let stamp = self.clock.next(now_ms);
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.forget(stamp);
                    self.gone += 1;
                }
                (id, true)
            }
            (Some(ban), Some((id, before))) => {
                let clock = &mut self.clock;
                let edited = **ban != *before
                    && (self.entries.get_mut(&id)).is_some_and(|entry| {
                        let edited = entry.edit(&before, ban, now_ms, || clock.next(now_ms));
                        entry.lift_by(self.lifts.values());
                        edited
                    });
                (id, edited)
            }
            (Some(ban), None) => {
                let stamp = self.clock.at(change.key.ban_started.0, now_ms);
                (self.make(change.key, ban, stamp), true)
            }
        };
        let plain = |entry: &Entry| !entry.has_more() && entry.is_made_at_its_start();
        if is_new && !self.entries.get(&id).is_some_and(plain) {
            self.kept_changes += 1;
        }
        let items = is_new.then_some(Item::Entry(id));
        Outcome {
            effects: self.show_beside(change.key, change.ban.as_ref()),
            items: items.into_iter().collect(),
        }
    }

    /// The effects if the ledger holds this by its own change.
    fn show_beside(&mut self, key: BanKey, held: Option<&Arc<Ban>>) -> Vec<Effect> {
        let mut effects = self.show(key.netblock);
        effects.retain(|effect| effect.key != key);
        let wanted = self.shown.get(&key).map(|(_, ban)| ban);
        if wanted != held {
            let ban = wanted.cloned();
            effects.push(Effect { key, ban });
        }
        effects
    }

    /// Takes a ban that the file held before there was a fleet: as [`Replica::follow`] of a ban
    /// that was made at its start.
    pub fn found(&mut self, ban: &Arc<Ban>) -> Vec<Effect> {
        let key = BanKey::of(ban);
        if self.shown.contains_key(&key) {
            return Vec::new();
        }
        self.make(key, ban, Stamp::of_time(key.ban_started.0));
        self.show_beside(key, Some(ban))
    }

    fn make(&mut self, key: BanKey, ban: &Ban, made: Stamp) -> EntryId {
        let id = self.free_id(key, ban);
        let by = ban.origin().instance.map(|instance| instance.name().into());
        let entry = Entry::new(id, made, ban, by);
        // A known twin, or the first one.
        self.entries
            .entry(id)
            .or_insert_with(|| entry.clone())
            .join(&entry);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.lift_by(self.lifts.values());
        }
        id
    }

    /// The key of a new ban: that of its twin, if one is still active.
    fn free_id(&self, key: BanKey, ban: &Ban) -> EntryId {
        let start = key.ban_started;
        let at = |place| EntryId {
            netblock: key.netblock,
            which: if ban.origin().is_automatic() {
                WhichBan::Automatic(start.0 / SLOT_MS, ban.observed, place)
            } else {
                WhichBan::Made(start, ban.origin(), place)
            },
        };
        let is_over = |id: EntryId| match self.entries.get(&id).map(Entry::ban) {
            None => false,
            Some(None) => true,
            Some(Some(held)) => ban.origin().is_automatic() && !held.is_active(start.0),
        };
        (0..MAX_PLACE)
            .map(at)
            .find(|id| !is_over(*id))
            .unwrap_or_else(|| at(MAX_PLACE))
    }

    /// Removes a ban without a trace, because the ledger has no room for it (BAN-5).
    pub fn dropped(&mut self, key: BanKey) {
        if let Some((id, _)) = self.shown.get(&key) {
            self.drop_entry(key, *id);
        }
    }

    fn drop_entry(&mut self, key: BanKey, id: EntryId) {
        self.entries.remove(&id);
        self.shown.remove(&key);
        self.digest.remove(key);
    }

    /// Recomputes the ledger's bans of this netblock, and returns the differences.
    fn show(&mut self, netblock: Netblock) -> Vec<Effect> {
        let id = |which| EntryId { netblock, which };
        let (first, last) = BanOrigin::RANGE;
        let all_of_it = id(WhichBan::Automatic(0, false, 0))
            ..=id(WhichBan::Made(Time(u64::MAX), last, u32::MAX));
        let mut wanted: BTreeMap<BanKey, (EntryId, Arc<Ban>)> = BTreeMap::new();
        for (id, entry) in self.entries.range(all_of_it) {
            if let (Some(key), Some(ban)) = (entry.key(), entry.ban()) {
                wanted.insert(key, (*id, ban));
            }
        }
        let all_of_it = BanKey::new(netblock, 0, first)..=BanKey::new(netblock, u64::MAX, last);
        let held: Vec<BanKey> = (self.shown.range(all_of_it)).map(|(key, _)| *key).collect();
        let mut effects = Vec::new();
        for key in held.into_iter().filter(|key| !wanted.contains_key(key)) {
            self.shown.remove(&key);
            self.digest.remove(key);
            effects.push(Effect { key, ban: None });
        }
        for (key, (id, ban)) in wanted {
            let held = self.shown.insert(key, (id, Arc::clone(&ban)));
            if held.as_ref() != Some(&(id, Arc::clone(&ban))) {
                self.digest.put(key, id, &ban);
            }
            if held.is_none_or(|(_, held)| *held != *ban) {
                effects.push(Effect {
                    key,
                    ban: Some(ban),
                });
            }
        }
        effects
    }

    /// Removes records of lifts and removals after [`KEPT_MS`], and the oldest beyond [`MAX_KEPT`].
    pub fn forget_old(&mut self, now_ms: u64) {
        self.digest.forget_past(now_ms);
        self.kept_changes += u64::from(self.lists.forget_old(now_ms));
        let since = now_ms.saturating_sub(KEPT_MS);
        while let Some((stamp, _)) = self.lifts.first_key_value()
            && (stamp.ms() < since || self.lifts.len() > MAX_KEPT)
            && let Some((stamp, _)) = self.lifts.pop_first()
        {
            for entry in self.entries.values_mut() {
                if entry.lift.as_ref().is_some_and(|(held, _)| *held == stamp) {
                    entry.keep_lift();
                }
            }
        }
        if self.gone == 0 {
            return;
        }
        self.kept_changes += 1;
        let mut gone: Vec<(Stamp, EntryId)> = (self.entries.values())
            .filter_map(|entry| entry.gone.clone().map(|stamp| (stamp, entry.id)))
            .collect();
        gone.sort_unstable();
        let beyond = gone.len().saturating_sub(MAX_KEPT);
        for (place, (stamp, id)) in gone.iter().enumerate() {
            if place < beyond || stamp.ms() < since {
                self.entries.remove(id);
            }
        }
        self.gone = (self.entries.values())
            .filter(|entry| entry.is_gone())
            .count();
    }
}
