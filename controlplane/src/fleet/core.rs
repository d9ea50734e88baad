//! One instance of a fleet: what it has to send, how far it has read, and what it does when the
//! engine has lost something. Pure: no socket, no clock, no thread (FLEET-15).
//!
//! What is sent is always an entry as it stands, and joining one twice does nothing. So nothing has
//! to be remembered of a batch whose fate is unknown, but that its items are to be sent again.

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

/// After so many batches that were read a snapshot is due.
pub const SNAPSHOT_AFTER: u64 = 5_000;

/// So many batches are under way at most: where the engine is far, one does not wait for the
/// answers to those before it (FLEET-11).
pub const MOST_UNDER_WAY: usize = 8;

/// Edits of one member that are not told again.
const MAX_TOLD: usize = 256;

/// A batch that is to be appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Its number.
    pub seq: u64,
    /// Events, to be sealed.
    pub bytes: Vec<u8>,
}

/// What has happened so far, for the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Events that the engine has taken.
    pub sent: u64,
    /// Events that were read.
    pub received: u64,
    /// Events that were not taken in, by [`Rejected::ALL`].
    pub rejected: [u64; Rejected::ALL.len()],
    /// How often the log was read from its beginning.
    pub resyncs: u64,
}

/// A batch that was handed out.
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
    /// What is to be sent, in this order, each item once.
    queue: VecDeque<Item>,
    queued: BTreeSet<Item>,
    /// Edits that fleet.json does not hold yet, by the change that it is to hold. They are sent
    /// behind it: an edit that the others have, and this instance has forgotten after a kill, would
    /// undo a later one (FLEET-23).
    unkept: BTreeMap<Item, u64>,
    /// The batches that were handed out, in this order.
    in_flight: VecDeque<UnderWay>,
    /// The engine has lost what it had: nothing is handed out before the answers to all of these
    /// have come, and what is in them is to be sent again already.
    has_lost: bool,
    /// What this connection has said hello with.
    hello: u128,
    /// The last batch of this origin that the engine has, and over which connection it came.
    acked: u64,
    acked_by: Option<u128>,
    cursor: Cursor,
    /// The batch at the cursor.
    read: Option<Place>,
    /// The last batch of this origin that was read back.
    own: u64,
    generation: Option<u128>,
    /// While the log is read from its beginning: what was not yet seen to be in it.
    unseen: Option<BTreeSet<Item>>,
    since_snapshot: u64,
    /// How often something was read that was made long before.
    late: u64,
    counts: Counts,
    /// When the log was last read to its end, or the engine has done all of its work, in its time.
    contact_ms: Option<u64>,
    /// When it said hello, while the log was not read to its end since.
    welcomed_ms: Option<u64>,
    stale: Option<Stale>,
    /// What only this instance holds, and is to be put aside.
    aside: Vec<Item>,
    /// Edits of one member, not yet told, and those that were.
    conflicts: Vec<Conflict>,
    told: VecDeque<(Stamp, Stamp)>,
}

/// The last contact was so long ago that the fleet has forgotten what was taken out meanwhile: what
/// it does not have, and is older, is put aside (FLEET-17).
#[derive(Clone, Debug)]
struct Stale {
    contact_ms: u64,
    /// What the log has something of.
    named: BTreeSet<Item>,
}

impl Core {
    /// An instance that holds these bans and has not met the fleet yet.
    pub fn new(origin: Origin, bans: &[Arc<Ban>]) -> (Self, Vec<Effect>) {
        let mut replica = Replica::new(origin);
        let effects = bans.iter().flat_map(|ban| replica.found(ban)).collect();
        (Self::of(replica), effects)
    }

    /// The same, of what is known already.
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

    /// Edits of one member at two instances, each once.
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

    /// What it knows.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Who it is.
    pub fn origin(&self) -> &Origin {
        self.replica.origin()
    }

    /// Up to where it has read the log.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The last batch of this origin that the engine has.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many items wait to be sent, those under way included.
    pub fn waiting(&self) -> usize {
        let in_flight = self.in_flight.iter().map(|sent| sent.items.len());
        self.queue.len() + self.unkept.len() + in_flight.sum::<usize>()
    }

    /// Whether something waits while batches are under way.
    pub fn holds_back(&self) -> bool {
        !self.queue.is_empty() && self.is_under_way()
    }

    /// Whether the answer to a batch has not come.
    pub fn is_under_way(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether everything that the log had was read, and nothing waits.
    pub fn is_in_step(&self) -> bool {
        let waits = self.waiting() > 0 || self.is_under_way();
        self.generation.is_some() && self.unseen.is_none() && !waits
    }

    /// The engine has answered. Where it lacks what it had, or never had what is known here, the
    /// log is read from its beginning, and what is not in it is sent.
    pub fn welcome(&mut self, welcome: Welcome) {
        self.settle_in_flight(&welcome);
        let holds_cursor = if self.cursor == Cursor::default() {
            welcome.is_whole
        } else {
            // A place that a snapshot named was not read here: nobody knows what was there.
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
            // What the fleet lacks is sent, or put aside, once that is known.
            self.queue.clear();
            self.queued.clear();
            return self.resync();
        }
        if !is_same {
            self.resync();
        }
    }

    /// Reads the log from its beginning. What is to be put aside is not sent for that.
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

    /// Whether the snapshot is to be read before the log.
    pub fn wants_snapshot(&self) -> bool {
        self.unseen.is_some() && self.cursor == Cursor::default()
    }

    /// What somebody says, from the log or a snapshot. Tells what the ledger is to do.
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

    /// Counts something that was not taken in.
    pub fn reject(&mut self, rejected: Rejected) {
        for (count, of) in self.counts.rejected.iter_mut().zip(Rejected::ALL) {
            *count += u64::from(of == rejected);
        }
    }

    /// The snapshot was read: it holds the log up to this place.
    pub fn has_read_snapshot(&mut self, upto: Cursor) {
        self.cursor = upto;
        self.read = None;
    }

    /// This batch of the log was read, the next one behind the cursor.
    pub fn has_read(&mut self, batch: Logged) {
        self.cursor = batch.at;
        if batch.origin == *self.origin() {
            self.own = batch.seq;
        }
        self.read = Some(Place::of(&batch));
        self.since_snapshot += 1;
    }

    /// The log has nothing more now: what it does not hold is to be sent.
    pub fn at_the_end(&mut self) {
        let unseen = self.unseen.take().unwrap_or_default();
        // An engine that has nothing is no fleet of which anything could be learnt.
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
        // Whoever says hello alone, and gives nothing, is no contact.
        if let Some(at_ms) = self.welcomed_ms.take() {
            self.note_contact(at_ms);
        }
    }

    /// The chunks of a snapshot, where one is due and this instance could write it. What is to be
    /// put aside is in none.
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

    /// The ledger has changed. Tells what it is to do besides.
    pub fn follow(&mut self, changes: &[LedgerChange], now_ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for change in changes {
            let outcome = self.replica.follow(change, now_ms);
            let is_edit = matches!(change.happened, Happened::Edited | Happened::Forgotten);
            effects.extend(self.send_outcome(outcome, is_edit));
        }
        effects
    }

    /// Somebody lifts here.
    pub fn lift(&mut self, subject: Subject, now_ms: u64) -> Vec<Effect> {
        let outcome = self.replica.lift(subject, now_ms);
        self.send_outcome(outcome, false)
    }

    /// The ledger has no place for this ban.
    pub fn dropped(&mut self, key: BanKey) {
        self.replica.dropped(key);
    }

    /// fleet.json is to hold something else that this core does not know.
    pub fn note_change(&mut self) {
        self.replica.note_change();
    }

    /// What is kept for a while only goes.
    pub fn forget_old(&mut self, now_ms: u64) {
        self.replica.forget_old(now_ms);
    }

    fn send_outcome(&mut self, outcome: Outcome, is_edit: bool) -> Vec<Effect> {
        for item in outcome.items {
            // It is new: the log cannot hold it.
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
