//! The thread `weir-fleet`: it alone speaks with the engine. It does what the control loop orders,
//! reads the log on and on, and opens and reads what comes from there.
//!
//! After a fault it drops the connection, says so, and opens another after a pause that doubles,
//! each with full jitter (FLEET-2). It knows nothing that would be lost with it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use ring::rand::{SecureRandom, SystemRandom};
use weir_shared::clock::Clock;
use weir_shared::threads;

use super::beat::{Beat, Seen};
use super::engine::{Cursor, Engine, Fault};
use super::event::{self, Rejected};
use super::link::{Access, Link};
use super::seal::{FleetKey, Kind};
use super::stamp::Origin;
use super::words::{Opened, Order, Said};

/// The shortest pause, and the longest.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Batches that are read at once.
const MOST_READ: usize = 16;
/// How long the loop may take to say what it wants of an open link.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an open link waits for an order while it reads nothing.
const IDLE: Duration = Duration::from_millis(50);

/// What the thread is made from.
pub(super) struct Thread {
    pub(super) access: Access,
    pub(super) key: FleetKey,
    pub(super) me: Origin,
    pub(super) clock: Clock,
    /// To the control loop; bounded.
    pub(super) said: Sender<Said>,
    pub(super) orders: Receiver<Order>,
    /// When the engine has answered last, on the monotonic clock.
    pub(super) contact_ns: Arc<AtomicU64>,
}

/// Why nothing more is asked over a connection.
enum Ended {
    /// Nobody is there to be told: the service ends.
    Stop,
    /// The control loop has said so.
    Rest,
    /// No answer.
    Fault(Fault),
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Where the log is being read.
struct Reading {
    number: u64,
    cursor: Cursor,
    /// Whether its end was told since something was read.
    end_told: bool,
}

impl Thread {
    /// Starts it.
    ///
    /// # Errors
    /// The system refused it.
    pub(super) fn start(self) -> io::Result<()> {
        threads::spawn("weir-fleet", move || self.run()).map(drop)
    }

    fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.speak(&mut pause) {
                Ended::Stop => return,
                Ended::Rest => {
                    if !self.rest() {
                        return;
                    }
                    pause = FIRST_PAUSE;
                }
                Ended::Fault(fault) => {
                    if self.said.send(Said::Away(fault.to_string())).is_err()
                        || !self.pause(jittered(pause))
                    {
                        return;
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Waits for the word to go on. False where the service ends.
    fn rest(&self) -> bool {
        loop {
            match self.orders.recv() {
                Ok(Order::Work) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// What is ordered meanwhile is of the connection that has ended.
    fn pause(&self, length: Duration) -> bool {
        let until_ns = self.now_ns() + nanos(length);
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
            match self.orders.recv_timeout(left) {
                Ok(Order::Rest) => return self.rest(),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Opens a connection, and asks over it until that ends.
    fn speak(&self, pause: &mut Duration) -> Ended {
        match self.ask_on(pause) {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    fn ask_on(&self, pause: &mut Duration) -> Result<std::convert::Infallible, Ended> {
        let mut link = Link::open(&self.access)?;
        self.say(Said::Open)?;
        // Orders before this one are of the connection before.
        let cursor = loop {
            match self.orders.recv_timeout(PATIENCE) {
                Ok(Order::Hello { cursor }) => break cursor,
                Ok(Order::Rest) => return Err(Ended::Rest),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Fault("the control loop is behind".to_owned()).into());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Ended::Stop),
            }
        };
        let found = random().ok_or_else(|| Fault("the system has no random numbers".to_owned()))?;
        let begun_ns = self.now_ns();
        let welcome = link.hello(&self.me, cursor, found)?;
        let round_trip_ns = self.answered(begun_ns);
        self.say(Said::Welcome {
            welcome,
            round_trip_ns,
        })?;
        *pause = FIRST_PAUSE;
        let mut reading = None;
        loop {
            // A read waits for what comes; without one, orders are waited for.
            let order = if reading.is_some() {
                match self.orders.try_recv() {
                    Ok(order) => Some(order),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => return Err(Ended::Stop),
                }
            } else {
                match self.orders.recv_timeout(IDLE) {
                    Ok(order) => Some(order),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Err(Ended::Stop),
                }
            };
            if let Some(order) = order {
                self.obey(order, &mut link, &mut reading)?;
            } else if let Some(reading) = &mut reading {
                self.read_on(&mut link, reading)?;
            }
        }
    }

    // long: one arm for each order
    fn obey(
        &self,
        order: Order,
        link: &mut Link,
        reading: &mut Option<Reading>,
    ) -> Result<(), Ended> {
        let begun_ns = self.now_ns();
        match order {
            Order::ReadFrom {
                reading: number,
                mut cursor,
                snapshot,
            } => {
                if snapshot && let Some((upto, chunks)) = link.snapshot_get()? {
                    self.answered(begun_ns);
                    for (place, chunk) in (0..).zip(chunks) {
                        let origin = upto.to_string();
                        let text = self.key.open(Kind::Snapshot, &origin, place, &chunk);
                        let events = text.and_then(|text| event::read(&text));
                        self.say(Said::Chunk {
                            reading: number,
                            events,
                        })?;
                    }
                    self.say(Said::SnapshotRead {
                        reading: number,
                        upto,
                    })?;
                    cursor = upto;
                }
                *reading = Some(Reading {
                    number,
                    cursor,
                    end_told: false,
                });
            }
            Order::Append(batch) => {
                let sealed = self.seal(Kind::Log, self.me.as_str(), batch.seq, &batch.bytes)?;
                let last = link.append(&self.me, batch.seq, &sealed)?;
                self.answered(begun_ns);
                let seq = batch.seq;
                self.say(Said::Appended { seq, last })?;
            }
            Order::Beat(text) => {
                let sealed = self.seal(Kind::Beat, self.me.as_str(), 0, &text)?;
                let time_ms = link.beat(&self.me, &sealed)?;
                let round_trip_ns = self.answered(begun_ns);
                let others = link.members()?.into_iter().map(|beat| {
                    let text = (self.key).open(Kind::Beat, beat.origin.as_str(), 0, &beat.sealed);
                    Seen {
                        beat: text.and_then(|text| Beat::read(&text)),
                        origin: beat.origin,
                        age_ms: beat.age_ms,
                    }
                });
                self.say(Said::Beaten {
                    time_ms,
                    round_trip_ns,
                    others: others.collect(),
                })?;
            }
            Order::Snapshot { upto, chunks } => {
                let origin = upto.to_string();
                let sealed: Result<Vec<Vec<u8>>, Ended> = (0..)
                    .zip(chunks)
                    .map(|(place, chunk)| self.seal(Kind::Snapshot, &origin, place, &chunk))
                    .collect();
                link.snapshot_put(upto, &sealed?)?;
                self.answered(begun_ns);
            }
            Order::Rest => {
                let _ = link.leave(&self.me);
                return Err(Ended::Rest);
            }
            // Of the connection that is open already.
            Order::Hello { .. } | Order::Work => {}
        }
        Ok(())
    }

    fn read_on(&self, link: &mut Link, reading: &mut Reading) -> Result<(), Ended> {
        let begun_ns = self.now_ns();
        let batches = link.read_after(reading.cursor, MOST_READ)?;
        self.answered(begun_ns);
        let count = batches.len();
        for batch in batches {
            reading.cursor = batch.at;
            reading.end_told = false;
            let events = self.open(&batch.origin, batch.seq, &batch.sealed);
            self.say(Said::Read {
                reading: reading.number,
                batch,
                events,
            })?;
        }
        if count < MOST_READ && !reading.end_told {
            reading.end_told = true;
            self.say(Said::AtEnd {
                reading: reading.number,
            })?;
        }
        Ok(())
    }

    fn open(&self, origin: &Origin, seq: u64, sealed: &[u8]) -> Opened {
        if sealed.len() > event::MAX_BATCH + super::seal::OVERHEAD {
            return Err(Rejected::Size);
        }
        let text = self.key.open(Kind::Log, origin.as_str(), seq, sealed)?;
        event::read(&text)
    }

    fn seal(&self, kind: Kind, origin: &str, number: u64, text: &[u8]) -> Result<Vec<u8>, Ended> {
        let sealed = self.key.seal(kind, origin, number, text);
        sealed.ok_or_else(|| Fault("the system has no random numbers".to_owned()).into())
    }

    /// Waits while the loop has much to do.
    fn say(&self, said: Said) -> Result<(), Ended> {
        self.said.send(said).map_err(|_| Ended::Stop)
    }

    /// The engine has answered; returns how long that took.
    fn answered(&self, begun_ns: u64) -> u64 {
        let now_ns = self.now_ns();
        // Relaxed: it is only compared with a time.
        self.contact_ns.store(now_ns, Ordering::Relaxed);
        now_ns.saturating_sub(begun_ns)
    }

    fn now_ns(&self) -> u64 {
        self.clock.now().mono_ns
    }
}

/// A number that nobody can guess.
pub(super) fn random() -> Option<u128> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(u128::from_le_bytes(bytes))
}

/// Some part of a pause, so that instances do not come back all at once.
pub(super) fn jittered(pause: Duration) -> Duration {
    let part = random().unwrap_or(u128::MAX) % 1000 + 1;
    pause / 1000 * u32::try_from(part).unwrap_or(1000)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
