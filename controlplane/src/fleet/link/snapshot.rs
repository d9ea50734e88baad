//! The snapshot, over the link: in parts, so that no ban waits for all of it (FLEET-11).
//!
//! A chunk is as large as a batch. With a distant engine, one round trip for each of some hundred
//! chunks takes seconds; on a slow network, all of them at once exceed the time-out of a second.

use redis::{Cmd, Value};

use super::{Ahead, Link, Step, fault, is_of_another_type, strange, text};
use crate::fleet::engine::{Cursor, Fault, SnapshotAt};

/// The most chunks of a snapshot.
const MAX_CHUNKS: usize = 16_384;
/// Chunks of one read: half as many bytes as the first read of the log.
const READ_AT_ONCE: usize = 8;
/// The next part is sent if at most so many bytes are then under way, or if nothing is: a ban waits
/// for one chunk at most.
const MOST_BYTES_UNDER_WAY: usize = 64 * 1024;
/// Chunks that are deleted by one command.
const DELETED_AT_ONCE: usize = 256;
/// A snapshot is due at all instances at once: the first one writes it, and the others do not for
/// this time.
const TURN_SECONDS: u64 = 60;
/// A snapshot expires after a week without renewal.
const SECONDS: u64 = 7 * 86_400;
/// The most batches of the log: beyond them it is cut in any case.
const MAX_LOG: u64 = 200_000;

impl Link {
    /// The current snapshot. A value of another program counts as none.
    pub(super) fn pointer(&mut self) -> Result<Option<SnapshotAt>, Fault> {
        self.is_free()?;
        let command = redis::cmd("GET").arg(self.key("snap")).to_owned();
        match command.query(&mut self.connection) {
            Ok(pointer) => Ok(read(&pointer)),
            Err(error) if is_of_another_type(&error) => Ok(None),
            Err(error) => Err(fault(error)),
        }
    }

    /// Some chunks of a snapshot; none if one of them is gone.
    pub(super) fn chunks(
        &mut self,
        at: SnapshotAt,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        self.is_free()?;
        let mut gets = redis::pipe();
        for place in (from..at.count).take(READ_AT_ONCE) {
            gets.cmd("GET").arg(self.chunk_key(at.upto, place));
        }
        let chunks: Vec<Value> = gets.query(&mut self.connection).map_err(fault)?;
        let chunk = |chunk| match chunk {
            Value::BulkString(chunk) => Ok(Some(chunk)),
            Value::Nil => Ok(None),
            _ => Err(strange()),
        };
        chunks.into_iter().map(chunk).collect()
    }

    /// Prepares a snapshot that [`Link::go_on`] then stores. Does nothing while one is being
    /// stored; if another instance has begun one, it is left to that instance.
    pub(super) fn put(&mut self, upto: Cursor, chunks: Vec<Vec<u8>>) {
        if self.is_putting() {
            return;
        }
        let mut turn = redis::cmd("SET");
        turn.arg(self.key("snap:turn")).arg("");
        turn.arg("NX").arg("EX").arg(TURN_SECONDS);
        self.then(Ahead::Turn, turn, false);
        let get = redis::cmd("GET").arg(self.key("snap")).to_owned();
        self.then(Ahead::Pointer { upto }, get, true);
        let count = chunks.len().min(MAX_CHUNKS);
        for (place, chunk) in chunks.into_iter().take(count).enumerate() {
            self.then(
                Ahead::Step,
                set(&self.chunk_key(upto, place), &chunk),
                false,
            );
        }
        // The pointer to the snapshot.
        let pointer = format!("{upto} {count}");
        let pointer = set(&self.key("snap"), pointer.as_bytes());
        self.then(Ahead::Step, pointer, true);
    }

    /// Cleans up once the snapshot up to `upto` has replaced the one of `pointer`: cuts the log
    /// before the replaced snapshot, and deletes its chunks. The log after it stays, for instances
    /// that have just read it.
    pub(super) fn clear_before(&mut self, pointer: &Value, upto: Cursor) {
        let Some(old) = read(pointer).filter(|old| old.upto != upto) else {
            return;
        };
        let (log, old_upto) = (self.key("log"), old.upto.to_string());
        let mut note = redis::cmd("HSET");
        note.arg(self.key("meta")).arg("trimmed").arg(&old_upto);
        // Notes in the engine that the log was cut.
        self.then(Ahead::Step, note, true);
        let mut cut = redis::cmd("XTRIM");
        cut.arg(&log).arg("MINID").arg("~").arg(old_upto);
        self.then(Ahead::Step, cut, true);
        let mut bound = redis::cmd("XTRIM");
        bound.arg(log).arg("MAXLEN").arg("~").arg(MAX_LOG);
        self.then(Ahead::Step, bound, false);
        let keys: Vec<String> = (0..old.count)
            .map(|place| self.chunk_key(old.upto, place))
            .collect();
        for keys in keys.chunks(DELETED_AT_ONCE) {
            self.then(Ahead::Step, redis::cmd("DEL").arg(keys).to_owned(), false);
        }
    }

    /// Whether a snapshot is being stored.
    pub fn is_putting(&self) -> bool {
        !self.steps.is_empty() || self.has_steps_under_way()
    }

    /// Sends the next parts of a snapshot, as far as there is room.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn go_on(&mut self) -> Result<(), Fault> {
        while let Some(step) = self.steps.front() {
            let bytes: usize = self.asked.iter().map(|asked| asked.bytes).sum();
            let is_full = bytes > 0 && bytes + step.bytes > MOST_BYTES_UNDER_WAY;
            if is_full || (step.waits && self.has_steps_under_way()) {
                break;
            }
            if let Some(step) = self.steps.pop_front() {
                self.ask_ahead(step.question, &step.command)?;
            }
        }
        Ok(())
    }

    fn has_steps_under_way(&self) -> bool {
        let is_step = |question: &Ahead| {
            matches!(question, Ahead::Turn | Ahead::Pointer { .. } | Ahead::Step)
        };
        self.asked.iter().any(|asked| is_step(&asked.question))
    }

    fn then(&mut self, question: Ahead, command: Cmd, waits: bool) {
        let bytes = command.get_packed_command().len();
        self.steps.push_back(Step {
            question,
            command,
            bytes,
            waits,
        });
    }

    fn chunk_key(&self, upto: Cursor, place: usize) -> String {
        self.key(&format!("snap:{upto}:{place}"))
    }
}

fn set(key: &str, text: &[u8]) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(text).arg("EX").arg(SECONDS);
    command
}

/// Parses a pointer.
fn read(pointer: &Value) -> Option<SnapshotAt> {
    let pointer = text(pointer).ok()?;
    let (upto, count) = pointer.split_once(' ')?;
    let count = count.parse().ok().filter(|count| *count <= MAX_CHUNKS)?;
    let upto = upto.parse().ok()?;
    Some(SnapshotAt { upto, count })
}
