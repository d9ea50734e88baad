//! A thread that speaks with the engine over one connection after the other (FLEET-2): after a
//! fault it opens another, after a pause that doubles, each with full jitter.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::engine::Fault;
use super::seal::random;

/// The shortest pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why nothing more is asked over a connection.
pub(super) enum Ended {
    /// The service ends, or needs this thread no more.
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

/// What an order says of the whole thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing is asked until [`Word::Work`].
    Rest,
    /// Goes on.
    Work,
    /// Nothing.
    None,
}

/// The thread's part.
pub(super) trait Speaker {
    /// What the control loop orders.
    type Order;

    /// Where orders come from.
    fn orders(&self) -> &Receiver<Self::Order>;

    /// What an order says of the whole thread.
    fn word(order: &Self::Order) -> Word;

    /// Opens a connection, and speaks over it until that ends. `answers` is to be called once the
    /// engine has answered.
    fn speak(&mut self, answers: &mut dyn FnMut()) -> Result<Infallible, Ended>;

    /// The connection has ended by a fault; `is_first` where the one before had answered.
    ///
    /// # Errors
    /// Nobody is there to be told.
    fn failed(&mut self, fault: Fault, is_first: bool) -> Result<(), Ended>;

    /// It rests, or does not any more.
    fn rests(&mut self, _: bool) {}
}

/// Speaks until nobody orders any more.
pub(super) fn run(mut speaker: impl Speaker) {
    let (mut pause, mut is_first) = (FIRST_PAUSE, true);
    loop {
        let spoken = speaker.speak(&mut || (pause, is_first) = (FIRST_PAUSE, true));
        let ended = match spoken {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        let goes_on = match ended {
            Ended::Stop => false,
            Ended::Rest => {
                pause = FIRST_PAUSE;
                rest(&mut speaker)
            }
            Ended::Fault(fault) => {
                let is_told = speaker.failed(fault, is_first).is_ok();
                is_first = false;
                let length = jittered(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                is_told && wait(&mut speaker, length)
            }
        };
        if !goes_on {
            return;
        }
    }
}

/// Waits for the word to go on. False where nobody orders any more.
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

/// What is ordered meanwhile is of the connection that has ended. False where nobody orders any
/// more.
#[expect(
    clippy::disallowed_methods,
    reason = "a pause between connections: no test turns its clock"
)]
fn wait(speaker: &mut impl Speaker, length: Duration) -> bool {
    let until = Instant::now() + length;
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

/// Some part of a pause, so that instances do not come back all at once.
fn jittered(pause: Duration) -> Duration {
    let part = random().unwrap_or(u128::MAX) % 1000 + 1;
    pause / 1000 * u32::try_from(part).unwrap_or(1000)
}
