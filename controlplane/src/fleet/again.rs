//! A thread that talks to the engine over one connection after the other (FLEET-2). After a fault
//! it opens another one, after a pause that doubles each time, with full jitter. The pauses start
//! over only once a connection has lasted, because an engine may answer the first question and
//! refuse the next.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::engine::Fault;
use super::seal::random;

/// The shortest pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection has lasted if the engine still answers over it after this time.
const LASTED: Duration = Duration::from_secs(2);

/// Why the use of a connection ended.
pub(super) enum Ended {
    /// The service ends, or no longer needs this thread.
    Stop,
    /// The control loop has ordered rest.
    Rest,
    /// The engine gave no answer.
    Fault(Fault),
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What an order means for the thread itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing is asked until [`Word::Work`].
    Rest,
    /// Goes on.
    Work,
    /// Nothing.
    None,
}

/// The part of the work that differs by thread.
pub(super) trait Speaker {
    /// What the control loop orders.
    type Order;

    /// The channel of orders.
    fn orders(&self) -> &Receiver<Self::Order>;

    /// What an order means for the thread itself.
    fn word(order: &Self::Order) -> Word;

    /// Opens a connection, and uses it until it ends. Must call `answers` at each answer of the
    /// engine.
    fn speak(&mut self, answers: &mut dyn FnMut()) -> Result<Infallible, Ended>;

    /// Reports that the connection ended by a fault. `is_first` is true if it, or the previous one,
    /// had lasted.
    ///
    /// # Errors
    /// The receiver of reports is gone.
    fn failed(&mut self, fault: Fault, is_first: bool) -> Result<(), Ended>;

    /// Reports that the thread rests, or goes on.
    fn rests(&mut self, _: bool) {}
}

/// The pauses between connections.
struct Pauses {
    next: Duration,
    /// True until a connection ends after one has lasted.
    is_first: bool,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            next: FIRST_PAUSE,
            is_first: true,
        }
    }
}

impl Pauses {
    /// Notes an answer over a connection of this age.
    fn answered(&mut self, age: Duration) {
        if age >= LASTED {
            *self = Self::default();
        }
    }

    /// Notes that a connection ended by a fault. Returns whether it is the first, and the longest
    /// pause before the next one.
    fn failed(&mut self) -> (bool, Duration) {
        let failed = (self.is_first, self.next);
        self.is_first = false;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        failed
    }
}

/// Runs until the channel of orders is closed.
pub(super) fn run(mut speaker: impl Speaker) {
    let mut pauses = Pauses::default();
    loop {
        let begun = now();
        let spoken = speaker.speak(&mut || pauses.answered(now() - begun));
        let ended = match spoken {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        let goes_on = match ended {
            Ended::Stop => false,
            Ended::Rest => {
                pauses = Pauses::default();
                rest(&mut speaker)
            }
            Ended::Fault(fault) => {
                let (is_first, pause) = pauses.failed();
                let is_told = speaker.failed(fault, is_first).is_ok();
                is_told && wait(&mut speaker, jittered(pause))
            }
        };
        if !goes_on {
            return;
        }
    }
}

/// Waits for the order to go on. False if the channel of orders is closed.
fn rest(speaker: &mut impl Speaker) -> bool {
    speaker.rests(true);
    loop {
        match speaker.orders().recv().map(|order| word(speaker, &order)) {
            Ok(Word::Work) => break,
            Ok(Word::Rest | Word::None) => {}
            Err(_) => return false,
        }
    }
    speaker.rests(false);
    true
}

fn word<S: Speaker>(_: &S, order: &S::Order) -> Word {
    S::word(order)
}

/// Waits for a pause, and drops the orders that come meanwhile: they are for the ended connection.
/// False if the channel of orders is closed.
fn wait(speaker: &mut impl Speaker, length: Duration) -> bool {
    let until = now() + length;
    loop {
        let ordered = speaker.orders().recv_deadline(until);
        match ordered.map(|order| word(speaker, &order)) {
            Ok(Word::Rest) => return rest(speaker),
            Ok(Word::Work | Word::None) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a pause between connections: no test turns its clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// A random part of a pause, so that instances do not reconnect all at once.
fn jittered(pause: Duration) -> Duration {
    let part = random().unwrap_or(u128::MAX) % 1000 + 1;
    pause / 1000 * u32::try_from(part).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-2: the pauses double from 100 ms to 5 s while connections keep ending, although each
    /// was answered at first; they start from 100 ms again once a connection has lasted.
    #[test]
    fn pauses_grow_while_no_connection_lasts() {
        let mut pauses = Pauses::default();
        let failed: Vec<_> = (0..8)
            .map(|_| {
                pauses.answered(Duration::from_millis(1_999));
                let (is_first, pause) = pauses.failed();
                (is_first, pause.as_millis())
            })
            .collect();
        let told = [100, 200, 400, 800, 1600, 3200, 5000, 5000].map(|ms| (ms == 100, ms));
        assert_eq!(failed, told);
        pauses.answered(Duration::from_secs(2));
        assert_eq!(pauses.failed(), (true, FIRST_PAUSE));
    }
}
