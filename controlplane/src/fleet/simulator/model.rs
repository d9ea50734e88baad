//! An engine in memory that fails: the second implementation of [`Engine`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::random::Random;
use crate::fleet::engine::{Answer, Cursor, Engine, Fault, Logged, SnapshotAt, Welcome};
use crate::fleet::stamp::Origin;

/// What the engine holds.
#[derive(Clone, Default)]
pub(super) struct Store {
    generation: Option<u128>,
    log: Vec<Logged>,
    last: BTreeMap<Origin, u64>,
    /// What the latest connection of each origin has said hello with, and that of each batch.
    hellos: BTreeMap<Origin, u128>,
    brought_by: BTreeMap<(Origin, u64), u128>,
    /// Batches on their way of connections that were given up: each is obeyed later.
    late: VecDeque<(u128, Logged)>,
    /// Nothing at or before this place is in the log any more.
    trimmed: Cursor,
    snapshot: Option<(Cursor, Vec<Vec<u8>>)>,
    next: u64,
}

impl Store {
    /// The last batches are gone, as after a failover to a replica that was behind.
    pub(super) fn roll_back(&mut self, batches: usize) {
        for _ in 0..batches {
            let Some(lost) = self.log.pop() else { return };
            self.last.insert(lost.origin, lost.seq - 1);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.log.len()
    }

    /// Answers the last batch of the origin, or nothing to a connection that is not its latest.
    fn append(&mut self, hello: u128, batch: Logged, now_ms: u64) -> Option<u64> {
        let latest = self.hellos.get(&batch.origin);
        if latest.is_some_and(|latest| *latest != hello) {
            return None;
        }
        let last = self.last.get(&batch.origin).copied().unwrap_or(0);
        if batch.seq != last + 1 {
            return Some(last);
        }
        self.next += 1;
        // A master whose clock is behind gives ids that are no smaller than the last one's.
        let ms = self.log.last().map_or(0, |last| last.at.ms).max(now_ms);
        let count = self.next;
        self.last.insert(batch.origin.clone(), batch.seq);
        (self.brought_by).insert((batch.origin.clone(), batch.seq), hello);
        self.log.push(Logged {
            at: Cursor { ms, count },
            ..batch
        });
        Some(last + 1)
    }

    /// Whether the log has a batch behind this place.
    pub(super) fn has_behind(&self, cursor: Cursor) -> bool {
        self.log.iter().any(|logged| logged.at > cursor)
    }
}

/// The way of one instance to it.
pub(super) struct Model<'a> {
    pub(super) store: &'a mut Store,
    pub(super) random: &'a mut Random,
    /// One call in so many fails, and half of those have been obeyed all the same; 0 is none.
    pub(super) fails: usize,
    pub(super) now_ms: u64,
    /// The answers that this connection has for the instance.
    pub(super) answers: &'a mut VecDeque<Answer>,
}

impl Model<'_> {
    fn call<T>(&mut self, obey: impl FnOnce(&mut Store, u64) -> T) -> Result<T, Fault> {
        let lost = || Fault("no answer within 1 s".to_owned());
        if self.random.one_in(4)
            && let Some((hello, batch)) = self.store.late.pop_front()
        {
            self.store.append(hello, batch, self.now_ms);
        }
        if self.fails == 0 || !self.random.one_in(self.fails) {
            return Ok(obey(self.store, self.now_ms));
        }
        if self.random.one_in(2) {
            obey(self.store, self.now_ms);
        }
        Err(lost())
    }
}

impl Engine for Model<'_> {
    fn hello(&mut self, me: &Origin, cursor: Cursor, found: u128) -> Result<Welcome, Fault> {
        // Another connection.
        self.answers.clear();
        self.call(|store, now_ms| {
            store.hellos.insert(me.clone(), found);
            let last = store.last.get(me).copied().unwrap_or(0);
            Welcome {
                generation: *store.generation.get_or_insert(found),
                hello: found,
                last,
                last_by: store.brought_by.get(&(me.clone(), last)).copied(),
                at_cursor: store.log.iter().find(|logged| logged.at == cursor).cloned(),
                is_whole: store.trimmed == Cursor::default(),
                time_ms: now_ms,
            }
        })
    }

    fn append(&mut self, me: &Origin, seq: u64, sealed: &[u8]) -> Result<(), Fault> {
        let batch = Logged {
            at: Cursor::default(),
            origin: me.clone(),
            seq,
            sealed: sealed.to_vec(),
        };
        let hello = self.store.hellos.get(me).copied().unwrap_or(0);
        let sent = batch.clone();
        let answer = self.call(|store, now_ms| store.append(hello, batch, now_ms));
        if answer.is_err() && self.random.one_in(3) {
            self.store.late.push_back((hello, sent));
        }
        let other = || Fault("a later connection of this instance is there".to_owned());
        let last = answer?.ok_or_else(other)?;
        self.answers.push_back(Answer::Appended { seq, last });
        Ok(())
    }

    fn answer(&mut self, _: Duration) -> Result<Option<Answer>, Fault> {
        self.call(|_, _| ())?;
        Ok(self.answers.pop_front())
    }

    fn is_asked(&self) -> bool {
        !self.answers.is_empty()
    }

    /// It never waits.
    fn read_after(
        &mut self,
        cursor: Cursor,
        most: usize,
        _: Duration,
    ) -> Result<Vec<Logged>, Fault> {
        self.call(|store, _| {
            let behind = store.log.iter().filter(|logged| logged.at > cursor);
            behind.take(most).cloned().collect()
        })
    }

    fn snapshot(&mut self) -> Result<Option<SnapshotAt>, Fault> {
        self.call(|store, _| {
            let (upto, chunks) = store.snapshot.as_ref()?;
            let (upto, count) = (*upto, chunks.len());
            Some(SnapshotAt { upto, count })
        })
    }

    /// One at once.
    fn snapshot_chunks(
        &mut self,
        at: SnapshotAt,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        self.call(|store, _| {
            let (_, chunks) = store.snapshot.as_ref().filter(|held| held.0 == at.upto)?;
            Some(chunks.iter().skip(from).take(1).cloned().collect())
        })
    }

    fn snapshot_put(&mut self, upto: Cursor, chunks: Vec<Vec<u8>>) -> Result<(), Fault> {
        self.call(|store, _| {
            if let Some((before, _)) = store.snapshot.replace((upto, chunks)) {
                store.log.retain(|logged| logged.at > before);
                store.trimmed = before;
            }
        })
    }

    fn beat(&mut self, _: &Origin, _: &[u8]) -> Result<(), Fault> {
        self.call(|_, _| ())
    }

    fn leave(&mut self, _: &Origin) -> Result<(), Fault> {
        self.call(|_, _| ())
    }
}
