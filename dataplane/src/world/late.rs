//! What a connection waits for, and whether it has waited for too long: its time-outs, asked from
//! outside.

use crate::worker::Stop;
use crate::world::client::Client;
use crate::world::seen::{Seen, closes};
use crate::world::service::{BEAT_MS, SECONDS};
use crate::world::strict::Tail;

/// Time passes in steps of at most so long, milliseconds: what came of a beat is seen behind one.
pub const STEP_MS: u64 = 500;
/// A lingering close ends where nothing more is sent for so long,
pub const LINGER_MS: u64 = 2_000;
/// and whatever is sent after so long.
pub const LINGER_MOST_MS: u64 = 30_000;
/// The pace of a client is judged after 30 s in which it was waited for, and what it took beyond
/// the least counts in four more such windows, at most: some seconds behind them a connection has
/// ended on which nothing moves.
const SLOW_MS: u64 = 5 * 30_000 + 36_000;
/// The connection of somebody who was refused is idle for so long at most (CONN-3), unless it is a
/// proxy's.
const REFUSED_MS: u64 = 5_000;
/// So long one that is idle is left for a last request at a hand-over (RESTART-1),
const LAST_USE_MS: u64 = 3_000;
/// and one that was never used at a stop (CONN-14), also behind a hand-over.
pub const FIRST_USE_MS: u64 = 1_000;
/// What is late is noticed a step later, and so is each thing that it waits for: a hand-over begins
/// with one, a connection that it leaves alone ends with two more.
const SLACK_MS: u64 = 4 * STEP_MS;

/// What a connection waits for, as far as that is known for certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    /// A request, behind so many answers; for so many milliseconds.
    Request(usize, u64),
    /// The rest of the head behind so many answers.
    Head(usize),
    /// To see that its client has gone.
    Gone,
    /// Its end, which was told to it at once.
    Abort,
    /// The end of a WebSocket whose client is banned (CONN-6).
    Banned,
    /// The client's end behind the last answer.
    Linger,
    /// Something else.
    Other,
}

impl Waits {
    fn of(seen: &Seen, client: &Client) -> Self {
        let answered = seen.answers.finals();
        let asked = seen.requests.messages.len();
        let is_answered = answered == asked && client.reads() && seen.answers.part.is_none();
        let is_tunnel = seen.answers.tail == Tail::Tunnel;
        if seen.stop == Stop::Abort {
            return Self::Abort;
        }
        if is_tunnel && seen.banned_ms.is_some() {
            return Self::Banned;
        }
        // What was sent behind a request hides that its client has gone.
        let is_one = match seen.requests.tail {
            Tail::Nothing => asked <= answered + 1,
            Tail::Body => asked <= answered,
            _ => false,
        };
        if client.is_gone() && is_one {
            return Self::Gone;
        }
        if !is_tunnel && seen.finals().last().is_some_and(closes) {
            return Self::Linger;
        }
        match seen.requests.tail {
            Tail::Nothing if is_answered => Self::Request(answered, idle_ms(seen)),
            Tail::Head if is_answered => Self::Head(answered),
            _ => Self::Other,
        }
    }

    const fn most_ms(self) -> u64 {
        match self {
            Self::Request(_, most_ms) => most_ms,
            Self::Head(_) => SECONDS.head * 1000,
            // The sweeper asks at every tenth beat.
            Self::Banned => 10 * BEAT_MS + LINGER_MS,
            Self::Gone | Self::Abort => 0,
            Self::Linger => LINGER_MOST_MS + LINGER_MS,
            Self::Other => u64::MAX / 2,
        }
    }
}

/// For how long a connection may be idle.
fn idle_ms(seen: &Seen) -> u64 {
    let is_unused = seen.requests.messages.is_empty();
    let last = seen.finals().last();
    let is_refusal = last.is_some_and(|answer| {
        matches!(answer.status(), 403 | 429) && answer.field("x-id").is_none()
    });
    let mut most_ms = SECONDS.idle * 1000;
    if seen.is_alone && is_refusal {
        most_ms = most_ms.min(REFUSED_MS);
    }
    match seen.stop {
        Stop::Drain if is_unused => most_ms.min(FIRST_USE_MS),
        Stop::Drain => 0,
        Stop::HandOver if is_unused => most_ms.min(LAST_USE_MS + FIRST_USE_MS),
        Stop::HandOver => most_ms.min(LAST_USE_MS),
        _ => most_ms,
    }
}

/// What is waited for, and since when.
pub struct Late(Waits, u64);

impl Late {
    /// Nothing is waited for yet.
    pub const fn new() -> Self {
        Self(Waits::Other, 0)
    }

    /// What an open connection waits for has not been waited for for longer than it may be; in
    /// `quiet_ms` nothing has moved.
    ///
    /// # Errors
    /// It has.
    pub fn check(&mut self, seen: &Seen, client: &Client, quiet_ms: u64) -> Result<(), String> {
        let waits = Waits::of(seen, client);
        if waits != self.0 {
            *self = Self(waits, seen.now_ms);
        }
        let waited_ms = seen.now_ms - self.1;
        if waited_ms > waits.most_ms() + SLACK_MS {
            return Err(format!("it is open, {waited_ms} ms behind {waits:?}"));
        }
        let silent_ms = seen.now_ms - seen.answered_ms.max(seen.sent_ms);
        if waits == Waits::Linger && silent_ms > LINGER_MS + SLACK_MS {
            return Err(format!("it is open, silent for {silent_ms} ms"));
        }
        let most_ms = if client.reads() && seen.requests.tail == Tail::Nothing {
            // It waits for the application, or lingers.
            (SECONDS.upstream.max(SECONDS.idle) + 1) * 1000 + LINGER_MS
        } else {
            SLOW_MS
        };
        if quiet_ms > most_ms {
            return Err(format!("it is open, and nothing moves for {quiet_ms} ms"));
        }
        Ok(())
    }
}
