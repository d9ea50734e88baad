//! The thread `weir-fleet-read`: it reads the log on and on, over a connection of its own, so that
//! a read that waits holds up nobody who sends. An engine that has nothing else to do looks ten
//! times a second whether a read has waited enough: what waits behind one is late by as much
//! (FLEET-11).

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
/// And before the end was read: so many full ones pass over a narrow way within the time that an
/// answer has. Who reads too much at once is late, and begins with these anew.
const AT_FIRST: usize = 16;
/// How long a read waits for something to come. It is not seen before that nobody wants it any
/// more.
const WAIT: Duration = Duration::from_secs(1);
/// A read of 16 batches takes so long at least, a larger one longer, once the end was read: so no
/// instance, whatever it sends, has another one read more than 800 batches a second (FLEET-24). The
/// rest waits in the engine.
const PAUSE: Duration = Duration::from_millis(20);
const IN_A_PAUSE: usize = 16;

/// What both threads of the log have.
pub(super) struct Shared {
    pub(super) access: Access,
    pub(super) key: FleetKey,
    pub(super) clock: Clock,
    /// To the control loop; bounded.
    pub(super) said: Sender<Said>,
    /// When the engine has answered last, on the monotonic clock.
    pub(super) contact_ns: Arc<AtomicU64>,
}

impl Shared {
    /// The engine has answered.
    pub(super) fn note_contact(&self) {
        // Relaxed: it is only compared with a time.
        self.contact_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// The monotonic clock.
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now().mono_ns
    }
}

/// A reading of the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) number: u64,
    pub(super) cursor: Cursor,
    /// The snapshot is read before.
    pub(super) snapshot: bool,
}

/// What is to be read; none while nothing is.
#[derive(Default)]
struct Wanted {
    reading: Mutex<Option<Reading>>,
    changed: Condvar,
    /// Nothing is to be read any more, ever.
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

    /// Waits for one that is not this; none where there will be no more.
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

/// What the thread `weir-fleet` has of it.
pub(super) struct Reader {
    wanted: Arc<Wanted>,
    /// Faults, each with the number of the reading that it has ended.
    pub(super) faults: Receiver<(u64, Fault)>,
}

/// The thread ends.
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

    /// Reads from here on.
    pub(super) fn read(&self, reading: Reading) {
        self.wanted.set(Some(reading));
    }

    /// Reads nothing more. What is being read may still be said.
    pub(super) fn rest(&self) {
        self.wanted.set(None);
    }

    /// Whether this fault is of what is being read.
    pub(super) fn concerns(&self, number: u64) -> bool {
        self.wanted.is(number)
    }
}

struct Thread {
    shared: Arc<Shared>,
    wanted: Arc<Wanted>,
    told: Sender<(u64, Fault)>,
}

/// Why nothing more is read.
enum Ended {
    /// Nobody is there to be told: the service ends.
    Stop,
    /// Something else is wanted, or nothing.
    Unwanted,
    Fault(Fault),
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The next place in the log: an engine that gives one again would have it read without an end.
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
                // It waits while one of an earlier reading lies there, which nobody misses.
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
        loop {
            // The end is told at once; only behind it there is something to wait for.
            let wait = if is_end_told { WAIT } else { Duration::ZERO };
            let begun_ns = self.shared.now_ns();
            let most = if has_caught_up { MOST_READ } else { AT_FIRST };
            let batches = link.read_after(cursor, most, wait)?;
            if !self.wanted.is(number) {
                return Err(Ended::Unwanted);
            }
            self.shared.note_contact();
            let count = batches.len();
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
            if has_caught_up {
                // An engine that says at once that there is nothing is asked no more often.
                let parts = u32::try_from(count.div_ceil(IN_A_PAUSE)).unwrap_or(u32::MAX);
                let parts = if wait.is_zero() { parts } else { parts.max(1) };
                let took = Duration::from_nanos(self.shared.now_ns().saturating_sub(begun_ns));
                std::thread::sleep((PAUSE * parts).saturating_sub(took));
            }
        }
    }

    /// Reads the snapshot, and up to where it holds the log. Where another takes its place
    /// meanwhile that one is read, too; without one the log has the rest.
    fn read_snapshot(&self, number: u64, link: &mut Link) -> Result<Option<Cursor>, Ended> {
        let mut before = None;
        loop {
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
    }

    /// False where it has gone meanwhile.
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

    /// Waits while the loop has much to do.
    fn say(&self, said: Said) -> Result<(), Ended> {
        self.shared.said.send(said).map_err(|_| Ended::Stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-24: a log is read forward alone, whatever the engine gives.
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
