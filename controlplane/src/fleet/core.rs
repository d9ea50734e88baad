//! One instance of a fleet: what it has to send, how far it has read, and what it does when the
//! engine has lost something. Pure: no socket, no clock, no thread (FLEET-15).
//!
//! What is sent is always an entry as it stands, and joining one twice does nothing. So nothing has
//! to be remembered of a batch whose fate is unknown, but that its items are to be sent again.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_shared::ban::Ban;

use super::engine::{Cursor, Logged, Welcome};
use super::event::{self, Event, Rejected};
use super::replica::{Effect, Item, Outcome, Replica};
use super::stamp::Origin;
use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::LedgerChange;

/// After so many batches that were read a snapshot is due.
pub const SNAPSHOT_AFTER: u64 = 5_000;

/// A batch that is to be appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Its number.
    pub seq: u64,
    /// Events, to be sealed.
    pub bytes: Vec<u8>,
}

/// Which batch lies at a place of the log. The place alone does not name it: two masters give the
/// same one to two batches of the same millisecond.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Place {
    at: Cursor,
    origin: Origin,
    seq: u64,
    hash: u64,
}

impl Place {
    fn of(batch: &Logged) -> Self {
        let mut hasher = DefaultHasher::new();
        batch.sealed.hash(&mut hasher);
        Self {
            at: batch.at,
            origin: batch.origin.clone(),
            seq: batch.seq,
            hash: hasher.finish(),
        }
    }
}

/// Where an instance was when everything of its own was in the log, and it had read all of that: it
/// may go on from there after a restart, if its files hold what it knew then (FLEET-23).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    generation: String,
    read: Place,
    /// The last stamp that it had made or seen.
    last: (u64, u16),
}

/// What has such a stamp, or a later one, is sent after a restart: notes of a ban come behind it,
/// and have none of their own.
const SENT_AGAIN_MS: u64 = 60_000;

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

/// One instance.
#[derive(Clone, Debug)]
pub struct Core {
    replica: Replica,
    /// What is to be sent, in this order, each item once.
    queue: VecDeque<Item>,
    queued: BTreeSet<Item>,
    /// The batch that was handed out, and what is in it.
    in_flight: Option<(u64, Vec<Item>)>,
    /// The last batch of this origin that the engine has.
    acked: u64,
    cursor: Cursor,
    /// The batch at the cursor.
    read: Option<Place>,
    /// The last batch of this origin that was read back.
    own: u64,
    generation: Option<u128>,
    /// While the log is read from its beginning: what was not yet seen to be in it.
    unseen: Option<BTreeSet<Item>>,
    since_snapshot: u64,
    counts: Counts,
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
            in_flight: None,
            acked: 0,
            cursor: Cursor::default(),
            read: None,
            own: 0,
            generation: None,
            unseen: None,
            since_snapshot: 0,
            counts: Counts::default(),
        }
    }

    /// The same, which goes on from this point. What it knows beyond that is sent.
    #[must_use]
    pub fn from_point(mut self, point: Point) -> Self {
        let Ok(generation) = u128::from_str_radix(&point.generation, 16) else {
            return self;
        };
        let (ms, _) = point.last;
        let last = (ms.saturating_sub(SENT_AGAIN_MS), 0);
        for item in self.replica.later_than(last) {
            self.send(item);
        }
        self.generation = Some(generation);
        self.cursor = point.read.at;
        self.read = Some(point.read);
        self
    }

    /// Where it is, if it could go on from there.
    pub fn point(&self) -> Option<Point> {
        let read = self.read.clone()?;
        let is_whole = self.is_in_step() && self.own == self.acked;
        let generation = self.generation.filter(|_| is_whole)?;
        Some(Point {
            generation: format!("{generation:032x}"),
            read,
            last: self.replica.last_stamp(),
        })
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
        self.queue.len() + self.in_flight.as_ref().map_or(0, |(_, items)| items.len())
    }

    /// Whether everything that the log had was read, and nothing waits.
    pub fn is_in_step(&self) -> bool {
        self.generation.is_some() && self.unseen.is_none() && self.waiting() == 0
    }

    /// The engine has answered. Where it lacks what it had, or never had what is known here, the
    /// log is read from its beginning, and what is not in it is sent.
    pub fn welcome(&mut self, welcome: Welcome) {
        if let Some((seq, items)) = self.in_flight.take() {
            if welcome.last == seq {
                self.taken(seq, &items);
            } else {
                self.send_first(items);
            }
        }
        let holds_cursor = if self.cursor == Cursor::default() {
            welcome.is_whole
        } else {
            // A place that a snapshot named was not read here: nobody knows what was there.
            self.read.is_some() && welcome.at_cursor.as_ref().map(Place::of) == self.read
        };
        let is_same = self.generation == Some(welcome.generation)
            && welcome.last == self.acked
            && holds_cursor;
        self.generation = Some(welcome.generation);
        self.acked = welcome.last;
        if !is_same {
            self.resync();
        }
    }

    /// Reads the log from its beginning.
    pub fn resync(&mut self) {
        self.cursor = Cursor::default();
        self.read = None;
        self.unseen = Some(self.replica.items().collect());
        self.counts.resyncs += 1;
    }

    /// Whether the snapshot is to be read before the log.
    pub fn wants_snapshot(&self) -> bool {
        self.unseen.is_some() && self.cursor == Cursor::default()
    }

    /// The next batch to be appended; none while one is under way.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if self.in_flight.is_some() || self.generation.is_none() {
            return None;
        }
        // What was dropped meanwhile is not sent.
        while let Some(item) = self.queue.front()
            && self.replica.event(item).is_none()
        {
            self.unqueue();
        }
        if self.queue.is_empty() {
            return None;
        }
        let events = self.queue.iter().map_while(|item| self.replica.event(item));
        let (bytes, count) = event::write(events);
        let items: Vec<Item> = (0..count).filter_map(|_| self.unqueue()).collect();
        let seq = self.acked + 1;
        self.in_flight = Some((seq, items));
        Some(Batch { seq, bytes })
    }

    fn unqueue(&mut self) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.queued.remove(&item);
        Some(item)
    }

    /// The engine has answered to an append: the number of the last batch that it has.
    pub fn appended(&mut self, seq: u64, last: u64) {
        let Some((_, items)) = self.in_flight.take_if(|(sent, _)| *sent == seq) else {
            return;
        };
        if last == seq {
            return self.taken(seq, &items);
        }
        // It has lost what it had acknowledged.
        self.send_first(items);
        self.acked = last;
        self.resync();
    }

    fn taken(&mut self, seq: u64, items: &[Item]) {
        self.acked = seq;
        self.counts.sent += items.len() as u64;
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
                let (effects, is_whole) = self.replica.join(&event, now_ms)?;
                if let (true, Some(unseen)) = (is_whole, &mut self.unseen) {
                    unseen.remove(&name(&event));
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
        for item in self.unseen.take().unwrap_or_default() {
            self.send(item);
        }
    }

    /// The chunks of a snapshot, where one is due and this instance could write it.
    pub fn snapshot(&mut self) -> Option<Vec<Vec<u8>>> {
        if self.since_snapshot < SNAPSHOT_AFTER || !self.is_in_step() {
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
            effects.extend(self.send_outcome(outcome));
        }
        effects
    }

    /// Somebody lifts here.
    pub fn lift(&mut self, subject: Subject, now_ms: u64) -> Vec<Effect> {
        let outcome = self.replica.lift(subject, now_ms);
        self.send_outcome(outcome)
    }

    /// The ledger has no place for this ban.
    pub fn dropped(&mut self, key: BanKey) {
        self.replica.dropped(key);
    }

    /// What is kept for a while only goes.
    pub fn forget_old(&mut self, now_ms: u64) {
        self.replica.forget_old(now_ms);
    }

    fn send_outcome(&mut self, outcome: Outcome) -> Vec<Effect> {
        for item in outcome.items {
            // It is new: the log cannot hold it.
            if let Some(unseen) = &mut self.unseen {
                unseen.remove(&item);
            }
            self.send(item);
        }
        outcome.effects
    }

    fn send(&mut self, item: Item) {
        if self.queued.insert(item.clone()) {
            self.queue.push_back(item);
        }
    }

    fn send_first(&mut self, items: Vec<Item>) {
        for item in items.into_iter().rev() {
            if self.queued.insert(item.clone()) {
                self.queue.push_front(item);
            }
        }
    }
}

fn name(event: &Event) -> Item {
    match event {
        Event::Entry(entry) => Item::Entry(entry.id),
        Event::Lift(lift) => Item::Lift(lift.stamp.clone()),
    }
}
