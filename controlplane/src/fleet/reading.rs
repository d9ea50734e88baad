//! The thread `weir-fleet-read`: it reads the log continuously, over a connection of its own, so
//! that a waiting read does not delay sending. An idle engine checks only ten times a second
//! whether a blocking read has timed out, and commands behind it would be late by that (FLEET-11).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use weir_shared::clock::Clock;
use weir_shared::threads;

use super::engine::{Cursor, Engine, Fault, SnapshotAt};
use super::event::{self, Rejected};
use super::link::{Access, Link};
use super::seal::{self, FleetKey, Kind};
use super::words::{Opened, Said};

/// Batches that are read at once.
const MOST_READ: usize = 64;
/// Batches of one read before the end was reached: so many full ones pass over a slow network
/// within the time-out. A larger read could time out each time, and never make progress.
const AT_FIRST: usize = 16;
/// How long a read waits for entries. The thread notices only then that the reading is no longer
/// wanted.
const WAIT: Duration = Duration::from_secs(1);
/// The least time of a read of 16 batches, once the end was reached; larger reads take longer. So
/// no instance can make another one read more than 800 batches a second (FLEET-24). Further batches
/// wait in the engine.
const PAUSE: Duration = Duration::from_millis(20);
const IN_A_PAUSE: usize = 16;
/// The most batches that are read without these pauses: more than any log holds, because an engine
/// may give one without an end.
const MOST_WITHOUT_PAUSE: usize = 400_000;
/// The most snapshots that are begun one after the other: one is replaced at most once a minute.
const MOST_BEGUN: usize = 4;

/// The values shared by the two threads of the log.
pub(super) struct Shared {
    pub(super) access: Access,
    pub(super) key: FleetKey,
    pub(super) clock: Clock,
    /// The bounded channel to the control loop.
    pub(super) said: Sender<Said>,
    /// When the engine last answered, on the monotonic clock.
    pub(super) contact_ns: Arc<AtomicU64>,
}

impl Shared {
    /// Notes an answer of the engine.
    pub(super) fn note_contact(&self) {
        // Relaxed: it is only compared with a time.
        self.contact_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// The monotonic clock.
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now().mono_ns
    }
}

/// An order to read the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) number: u64,
    pub(super) cursor: Cursor,
    /// Read the snapshot first.
    pub(super) snapshot: bool,
}

/// The current order; none while nothing must be read.
#[derive(Default)]
struct Wanted {
    reading: Mutex<Option<Reading>>,
    changed: Condvar,
    /// True once the thread must end.
    is_over: AtomicBool,
}

impl Wanted {
    fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, reading: Option<Reading>) {
        *self.reading() = reading;
        self.changed.notify_one();
    }

    /// Waits for an order other than this one; none if the thread must end.
    fn after(&self, number: u64) -> Option<Reading> {
        let mut held = self.reading();
        loop {
            // Relaxed: it is set under the lock.
            match *held {
                _ if self.is_over.load(Ordering::Relaxed) => return None,
                Some(reading) if reading.number != number => return Some(reading),
                _ => {
                    let woken = self.changed.wait(held);
                    held = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn is(&self, number: u64) -> bool {
        self.reading().is_some_and(|wanted| wanted.number == number)
    }
}

/// The handle for the thread `weir-fleet`.
pub(super) struct Reader {
    wanted: Arc<Wanted>,
    /// Faults, each with the number of the reading that it ended.
    pub(super) faults: Receiver<(u64, Fault)>,
}

/// Ends the thread.
impl Drop for Reader {
    fn drop(&mut self) {
        let mut held = self.wanted.reading();
        *held = None;
        self.wanted.is_over.store(true, Ordering::Relaxed);
        self.wanted.changed.notify_one();
    }
}

impl Reader {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refused it.
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let wanted = Arc::new(Wanted::default());
        let (told, faults) = bounded(1);
        let thread = Thread {
            shared,
            wanted: Arc::clone(&wanted),
            told,
        };
        threads::spawn_while_needed("weir-fleet-read", move || thread.run()).map(drop)?;
        Ok(Self { wanted, faults })
    }

    /// Orders this reading.
    pub(super) fn read(&self, reading: Reading) {
        self.wanted.set(Some(reading));
    }

    /// Stops reading. The current batch may still be reported.
    pub(super) fn rest(&self) {
        self.wanted.set(None);
    }

    /// Whether a fault with this number concerns the current reading.
    pub(super) fn concerns(&self, number: u64) -> bool {
        self.wanted.is(number)
    }
}

struct Thread {
    shared: Arc<Shared>,
    wanted: Arc<Wanted>,
    told: Sender<(u64, Fault)>,
}

/// Why a reading ended.
enum Ended {
    /// The receiver is gone: the service ends.
    Stop,
    /// Another reading is wanted, or none.
    Unwanted,
    Fault(Fault),
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Checks the next place in the log: an engine that repeats places could make the thread read
/// without end.
fn forward(cursor: Cursor, next: Cursor) -> Result<Cursor, Fault> {
    let backward = || {
        Fault(format!(
            "the engine gives {next} of its log behind {cursor}"
        ))
    };
    (next > cursor).then_some(next).ok_or_else(backward)
}

impl Thread {
    fn run(self) {
        // The control loop counts from 1.
        let mut number = 0;
        while let Some(reading) = self.wanted.after(number) {
            number = reading.number;
            let ended = match self.read(reading) {
                Ok(never) => match never {},
                Err(ended) => ended,
            };
            match ended {
                Ended::Stop => return,
                Ended::Unwanted => {}
                // If a fault of an earlier reading is still queued, this one is dropped: nobody
                // misses it.
                Ended::Fault(fault) => {
                    if self.told.send((number, fault)).is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn read(&self, reading: Reading) -> Result<std::convert::Infallible, Ended> {
        let Reading {
            number,
            mut cursor,
            snapshot,
        } = reading;
        let mut link = Link::open(&self.shared.access, WAIT)?;
        if snapshot && let Some(upto) = self.read_snapshot(number, &mut link)? {
            cursor = upto;
        }
        let mut is_end_told = false;
        let mut has_caught_up = false;
        let mut read = 0;
        loop {
            // The end is reported at once; only after that a read waits for entries.
            let wait = if is_end_told { WAIT } else { Duration::ZERO };
            let begun_ns = self.shared.now_ns();
            let most = if has_caught_up { MOST_READ } else { AT_FIRST };
            let batches = link.read_after(cursor, most, wait)?;
            if !self.wanted.is(number) {
                return Err(Ended::Unwanted);
            }
            self.shared.note_contact();
            let count = batches.len();
            read += count;
            for batch in batches {
                cursor = forward(cursor, batch.at)?;
                is_end_told = false;
                let origin = batch.origin.as_str();
                let events = self.open(Kind::Log, origin, batch.seq, &batch.sealed);
                self.say(Said::Read {
                    reading: number,
                    batch,
                    events,
                })?;
            }
            if count < most && !is_end_told {
                is_end_told = true;
                has_caught_up = true;
                self.say(Said::AtEnd { reading: number })?;
            }
            has_caught_up |= read > MOST_WITHOUT_PAUSE;
            if has_caught_up {
                // Also for an engine that answers at once that there is nothing.
                let parts = u32::try_from(count.div_ceil(IN_A_PAUSE)).unwrap_or(u32::MAX);
                let parts = if wait.is_zero() { parts } else { parts.max(1) };
                let took = Duration::from_nanos(self.shared.now_ns().saturating_sub(begun_ns));
                std::thread::sleep((PAUSE * parts).saturating_sub(took));
            }
        }
    }

    /// Reads the snapshot, and returns the place up to which it covers the log. If it is replaced
    /// meanwhile, the new one is read as well. Without a snapshot the log has everything.
    fn read_snapshot(&self, number: u64, link: &mut Link) -> Result<Option<Cursor>, Ended> {
        let mut before = None;
        for _ in 0..MOST_BEGUN {
            let Some(at) = link.snapshot()?.filter(|at| before != Some(*at)) else {
                return Ok(None);
            };
            self.shared.note_contact();
            if self.read_chunks(number, at, link)? {
                let upto = at.upto;
                let reading = number;
                self.say(Said::SnapshotRead { reading, upto })?;
                return Ok(Some(upto));
            }
            before = Some(at);
        }
        let why = "each snapshot of the engine is gone before it is read";
        Err(Fault(why.to_owned()).into())
    }

    /// Reads the chunks of a snapshot. False if it is gone meanwhile.
    fn read_chunks(&self, number: u64, at: SnapshotAt, link: &mut Link) -> Result<bool, Ended> {
        let mut place = 0;
        while place < at.count {
            let Some(chunks) = link.snapshot_chunks(at, place)? else {
                return Ok(false);
            };
            if !self.wanted.is(number) {
                return Err(Ended::Unwanted);
            }
            self.shared.note_contact();
            for chunk in chunks {
                let origin = at.upto.to_string();
                let events = self.open(Kind::Snapshot, &origin, place as u64, &chunk);
                place += 1;
                self.say(Said::Chunk {
                    reading: number,
                    events,
                })?;
            }
        }
        Ok(true)
    }

    fn open(&self, kind: Kind, origin: &str, number: u64, sealed: &[u8]) -> Opened {
        if sealed.len() > event::MAX_BATCH + seal::OVERHEAD {
            return Err(Rejected::Size);
        }
        event::read(&self.shared.key.open(kind, origin, number, sealed)?)
    }

    /// Sends to the loop; waits if the channel is full.
    fn say(&self, said: Said) -> Result<(), Ended> {
        self.shared.said.send(said).map_err(|_| Ended::Stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-24: a log is read only forward, whatever the engine answers.
    #[test]
    fn a_log_is_read_forward() {
        let at = |ms, count| Cursor { ms, count };
        for (next, is_forward) in [
            (at(7, 3), true),
            (at(8, 0), true),
            (at(7, 2), false),
            (at(7, 1), false),
            (at(6, 9), false),
        ] {
            let read = forward(at(7, 2), next).ok();
            assert_eq!(read, is_forward.then_some(next), "{next}");
        }
    }
}
