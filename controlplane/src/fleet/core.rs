//! The core of one instance of a fleet: what it must send, how far it has read, and what it does if
//! the engine has lost something. Pure: no socket, no clock, no thread (FLEET-15).
//!
//! The core always sends the current state of an item, and joining it twice changes nothing. So if
//! the fate of a batch is unknown, it is enough to send its items again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use weir_shared::ban::Ban;

use super::conflict::{self, Conflict};
use super::engine::{Cursor, Logged, Welcome};
use super::event::{self, Event, Rejected};
use super::place::Place;
use super::replica::{Effect, Item, KEPT_MS, Outcome, Replica};
use super::stamp::{Origin, Stamp};
use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};

mod listing;
mod resuming;
mod sending;
mod stale;

/// A snapshot is due after so many batches were read.
pub const SNAPSHOT_AFTER: u64 = 5_000;

/// The most batches under way: with a distant engine, a batch does not wait for the answers to
/// earlier ones (FLEET-11).
pub const MOST_UNDER_WAY: usize = 8;

/// The most conflicts that are remembered, so that they are not reported again.
const MAX_TOLD: usize = 256;

/// A batch to append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Its number.
    pub seq: u64,
    /// Events, to be sealed.
    pub bytes: Vec<u8>,
}

/// Counts since the start, for the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Events that the engine has taken.
    pub sent: u64,
    /// Events that were read.
    pub received: u64,
    /// Rejected events, by [`Rejected::ALL`].
    pub rejected: [u64; Rejected::ALL.len()],
    /// How often the log was read from its beginning.
    pub resyncs: u64,
}

/// A batch that was sent.
#[derive(Clone, Debug)]
struct UnderWay {
    seq: u64,
    items: Vec<Item>,
    bytes: usize,
}

/// One instance.
#[derive(Clone, Debug)]
pub struct Core {
    replica: Replica,
    /// The items to send, in order, each once.
    queue: VecDeque<Item>,
    queued: BTreeSet<Item>,
    /// Edits that fleet.json does not hold yet, with the number of the change that must be on disk.
    /// They are sent after that write: if the others had an edit that this instance forgets by a
    /// kill, it would undo a later one (FLEET-23).
    unkept: BTreeMap<Item, u64>,
    /// The batches that were sent, in order.
    in_flight: VecDeque<UnderWay>,
    /// The engine has lost what it had. Nothing is sent before all of these batches are answered;
    /// their items are queued again already.
    has_lost: bool,
    /// The number of this connection's hello.
    hello: u128,
    /// The last batch of this origin that the engine has.
    acked: u64,
    acked_by: Option<u128>,
    cursor: Cursor,
    /// The batch at the cursor.
    read: Option<Place>,
    /// The last batch of this origin that was read back.
    own: u64,
    generation: Option<u128>,
    /// While the log is read from its beginning: the items that were not found in it yet.
    unseen: Option<BTreeSet<Item>>,
    since_snapshot: u64,
    /// How often an item was read that was made long before.
    late: u64,
    counts: Counts,
    /// When the log was last read to its end, or the engine last did all of its work, by its clock.
    contact_ms: Option<u64>,
    /// When the engine answered hello; set until the log is read to its end.
    welcomed_ms: Option<u64>,
    stale: Option<Stale>,
    /// Items that only this instance holds, and that must be put aside.
    aside: Vec<Item>,
    /// Conflicts that are not reported yet.
    conflicts: Vec<Conflict>,
    told: VecDeque<(Stamp, Stamp)>,
}

/// Set if the last contact was so long ago that the fleet has forgotten removals since then: older
/// items that the fleet lacks are put aside (FLEET-17).
#[derive(Clone, Debug)]
struct Stale {
    contact_ms: u64,
    /// The items that the log mentions.
    named: BTreeSet<Item>,
}

impl Core {
    /// An instance that holds these bans and has not met the fleet yet.
    pub fn new(origin: Origin, bans: &[Arc<Ban>]) -> (Self, Vec<Effect>) {
        let mut replica = Replica::new(origin);
        let effects = bans.iter().flat_map(|ban| replica.found(ban)).collect();
        (Self::of(replica), effects)
    }

    /// An instance that starts with this replica.
    pub fn of(replica: Replica) -> Self {
        Self {
            replica,
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            unkept: BTreeMap::new(),
            in_flight: VecDeque::new(),
            has_lost: false,
            hello: 0,
            acked: 0,
            acked_by: None,
            cursor: Cursor::default(),
            read: None,
            own: 0,
            generation: None,
            unseen: None,
            since_snapshot: 0,
            late: 0,
            counts: Counts::default(),
            contact_ms: None,
            welcomed_ms: None,
            stale: None,
            aside: Vec::new(),
            conflicts: Vec::new(),
            told: VecDeque::new(),
        }
    }

    /// Takes the new conflicts, each once.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.conflicts)
    }

    fn note_conflicts(&mut self, event: &Event) {
        for conflict in conflict::between(&self.replica, event) {
            let (holds, replaced) = conflict.stamps();
            let stamps = (holds.clone(), replaced.clone());
            if self.told.contains(&stamps) {
                continue;
            }
            if self.told.len() >= MAX_TOLD {
                self.told.pop_front();
            }
            self.told.push_back(stamps);
            self.conflicts.push(conflict);
        }
    }

    /// The replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The origin of this instance.
    pub fn origin(&self) -> &Origin {
        self.replica.origin()
    }

    /// The place up to which it has read the log.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The last batch of this origin that the engine has.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// The counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The number of items to send, including those under way.
    pub fn waiting(&self) -> usize {
        let in_flight = self.in_flight.iter().map(|sent| sent.items.len());
        self.queue.len() + self.unkept.len() + in_flight.sum::<usize>()
    }

    /// Whether items wait while batches are under way.
    pub fn holds_back(&self) -> bool {
        !self.queue.is_empty() && self.is_under_way()
    }

    /// Whether a batch is not answered yet.
    pub fn is_under_way(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether all of the log was read, and nothing waits to be sent.
    pub fn is_in_step(&self) -> bool {
        let waits = self.waiting() > 0 || self.is_under_way();
        self.generation.is_some() && self.unseen.is_none() && !waits
    }

    /// Takes the engine's answer to hello. If the engine has lost something, or never had what is
    /// known here, the log is read from its beginning, and items that are not in it are sent.
    pub fn welcome(&mut self, welcome: Welcome) {
        self.settle_in_flight(&welcome);
        let holds_cursor = if self.cursor == Cursor::default() {
            welcome.is_whole
        } else {
            // A place taken from a snapshot was not read here, so its batch is not known.
            self.read.is_some() && welcome.at_cursor.as_ref().map(Place::of) == self.read
        };
        let is_same = self.generation == Some(welcome.generation)
            && (welcome.last, welcome.last_by) == (self.acked, self.acked_by)
            && holds_cursor;
        self.generation = Some(welcome.generation);
        self.hello = welcome.hello;
        (self.acked, self.acked_by) = (welcome.last, welcome.last_by);
        self.welcomed_ms = Some(welcome.time_ms);
        let contact_ms = self.contact_ms;
        let is_stale = |at_ms: &u64| welcome.time_ms.saturating_sub(*at_ms) > KEPT_MS;
        if let Some(contact_ms) = contact_ms.filter(is_stale)
            && self.aside.is_empty()
        {
            let named = BTreeSet::new();
            self.stale = Some(Stale { contact_ms, named });
            // Items that the fleet lacks are sent or put aside once the log is read.
            self.queue.clear();
            self.queued.clear();
            return self.resync();
        }
        if !is_same {
            self.resync();
        }
    }

    /// Starts to read the log from its beginning. Items to put aside are not sent.
    pub fn resync(&mut self) {
        self.cursor = Cursor::default();
        self.read = None;
        let mut unseen: BTreeSet<Item> = self.replica.items().collect();
        for item in &self.aside {
            unseen.remove(item);
        }
        self.unseen = Some(unseen);
        self.counts.resyncs += 1;
    }

    /// Whether the snapshot must be read before the log.
    pub fn wants_snapshot(&self) -> bool {
        self.unseen.is_some() && self.cursor == Cursor::default()
    }

    /// Takes events from the log or a snapshot. Returns the effects for the ledger.
    pub fn take(
        &mut self,
        batch: Result<Vec<Result<Event, Rejected>>, Rejected>,
        now_ms: u64,
    ) -> Vec<Effect> {
        let events = batch.unwrap_or_else(|rejected| vec![Err(rejected)]);
        let mut effects = Vec::new();
        for event in events {
            let joined = event.and_then(|event| {
                if let Some(stale) = &mut self.stale {
                    stale.named.insert(name(&event));
                }
                if self.unseen.is_none() {
                    self.note_conflicts(&event);
                }
                let item = name(&event);
                let before = self.replica.event(&item);
                let (effects, is_whole) = self.replica.join(&event, now_ms)?;
                self.note_late(&item, before.as_ref());
                if let (true, Some(unseen)) = (is_whole, &mut self.unseen) {
                    unseen.remove(&item);
                }
                Ok(effects)
            });
            match joined {
                Ok(more) => {
                    self.counts.received += 1;
                    effects.extend(more);
                }
                Err(rejected) => self.reject(rejected),
            }
        }
        effects
    }

    /// Counts a rejected event.
    pub fn reject(&mut self, rejected: Rejected) {
        for (count, of) in self.counts.rejected.iter_mut().zip(Rejected::ALL) {
            *count += u64::from(of == rejected);
        }
    }

    /// Notes that the snapshot was read. It covers the log up to this place.
    pub fn has_read_snapshot(&mut self, upto: Cursor) {
        self.cursor = upto;
        self.read = None;
    }

    /// Notes that this batch of the log was read, the next one after the cursor.
    pub fn has_read(&mut self, batch: Logged) {
        self.cursor = batch.at;
        if batch.origin == *self.origin() {
            self.own = batch.seq;
        }
        self.read = Some(Place::of(&batch));
        self.since_snapshot += 1;
    }

    /// Notes that the end of the log was reached: items that it lacks are sent.
    pub fn at_the_end(&mut self) {
        let unseen = self.unseen.take().unwrap_or_default();
        // An empty engine says nothing about removals.
        let stale = self
            .stale
            .take()
            .filter(|_| self.cursor != Cursor::default());
        for item in unseen {
            if stale
                .as_ref()
                .is_some_and(|stale| self.is_aside(&item, stale))
            {
                self.aside.push(item);
            } else {
                self.send(item);
            }
        }
        // An engine that only answers hello, and gives none of its log, is no contact.
        if let Some(at_ms) = self.welcomed_ms.take() {
            self.note_contact(at_ms);
        }
    }

    /// The chunks of a snapshot, if one is due and this instance may write it. Items to put aside
    /// are left out.
    pub fn snapshot(&mut self) -> Option<Vec<Vec<u8>>> {
        if self.since_snapshot < SNAPSHOT_AFTER || !self.is_in_step() || self.has_aside() {
            return None;
        }
        self.since_snapshot = 0;
        let items: Vec<Item> = self.replica.items().collect();
        let (mut rest, mut chunks) = (items.as_slice(), Vec::new());
        while !rest.is_empty() {
            let (bytes, count) =
                event::write(rest.iter().map_while(|item| self.replica.event(item)));
            chunks.push(bytes);
            rest = rest.get(count.max(1)..).unwrap_or_default();
        }
        Some(chunks)
    }

    /// Follows changes of the ledger. Returns further effects for it.
    pub fn follow(&mut self, changes: &[LedgerChange], now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for change in changes {
            let outcome = self.replica.follow(change, now_ms);
            let is_edit = matches!(change.happened, Happened::Edited | Happened::Forgotten);
            effects.extend(self.send_outcome(outcome, is_edit));
        }
        effects
    }

    /// A lift at this instance.
    pub fn lift(&mut self, subject: Subject, now_ms: u64) -> Vec<Effect> {
        let outcome = self.replica.lift(subject, now_ms);
        self.send_outcome(outcome, false)
    }

    /// Notes that the ledger has no room for this ban.
    pub fn dropped(&mut self, key: BanKey) {
        self.replica.dropped(key);
    }

    /// Notes a change of fleet.json's other content.
    pub fn note_change(&mut self) {
        self.replica.note_change();
    }

    /// Removes what is remembered for a limited time only.
    pub fn forget_old(&mut self, now_ms: u64) {
        self.replica.forget_old(now_ms);
    }

    fn send_outcome(&mut self, outcome: Outcome, is_edit: bool) -> Vec<Effect> {
        for item in outcome.items {
            // The item is new: the log cannot have it.
            if let Some(unseen) = &mut self.unseen {
                unseen.remove(&item);
            }
            if is_edit {
                self.unkept.insert(item, self.replica.kept_changes());
            } else {
                self.send(item);
            }
        }
        outcome.effects
    }
}

fn name(event: &Event) -> Item {
    match event {
        Event::Entry(entry) => Item::Entry(entry.id),
        Event::Lift(lift) => Item::Lift(lift.stamp.clone()),
        Event::List(record) => Item::List(record.key),
    }
}
