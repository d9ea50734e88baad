//! What the worker's sweeper sees of a client connection, and what it asks of its task. Pure but
//! for the waker: time is an argument.

use std::task::Waker;

use crate::conn::deadlines::{Deadlines, Missed};
use crate::request::identity::Who;

/// Why a connection is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It goes on.
    No,
    /// The head took too long: 408.
    HeadTimeout,
    /// Nothing is under way, and it was idle for too long, or another takes its place.
    Idle,
    /// A tunnel carried nothing, or nothing was taken, for too long.
    Stalled,
    /// Nothing came of a body for too long: 408 where nothing of a response was written.
    BodyTimeout,
    /// A body was sent, or a response taken, at less than `WAF_MIN_RATE`: 408 where nothing of a
    /// response was written.
    TooSlow,
    /// The body of a request does not come, and another connection takes the place: as one that is
    /// too slow, and nobody waits for the client to close (CONN-16).
    Displaced,
    /// The client of a WebSocket was banned or denied.
    Refused,
    /// The service stops: end after the running answer.
    Drain,
    /// The service stops now.
    Abort,
    /// A bug of ours ended it.
    Panicked,
}

impl Ending {
    /// Whether the connection ends at once, whatever is under way.
    pub const fn is_cut(self) -> bool {
        match self {
            Self::No | Self::Drain => false,
            Self::HeadTimeout
            | Self::Idle
            | Self::Stalled
            | Self::BodyTimeout
            | Self::TooSlow
            | Self::Displaced
            | Self::Refused
            | Self::Abort
            | Self::Panicked => true,
        }
    }
}

/// How long a connection is idle before what it holds for a request is given back: less would make
/// every request of a busy client begin anew.
const REST_NS: u64 = 100_000_000;

/// Whether a task serves the requests of a connection, and holds more than an idle one may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    No,
    Yes,
    /// The sweeper found the connection idle: its task gives back what it holds.
    Idle,
}

/// The part of a connection that its task and the sweeper share.
#[derive(Debug)]
pub struct Watch {
    pub deadlines: Deadlines,
    /// How it is to end.
    pub ending: Ending,
    /// Its next answer is the last.
    pub ends_with_next: bool,
    /// It lingers: whatever it was cut for, it gives way to others.
    pub lingers: bool,
    pub served: Served,
    /// The task tries a write that waits again, until there is no room.
    pub retries: bool,
    /// Whose WebSocket it is, once it is one.
    pub tunnel_of: Option<Who>,
    /// The task that serves it, once it has waited.
    pub waker: Option<Waker>,
}

impl Watch {
    /// Of a connection that nobody serves yet.
    pub const fn new(deadlines: Deadlines) -> Self {
        Self {
            deadlines,
            ending: Ending::No,
            ends_with_next: false,
            lingers: false,
            served: Served::No,
            retries: false,
            tunnel_of: None,
            waker: None,
        }
    }

    /// Whether nobody has asked it to end.
    pub fn is_open(&self) -> bool {
        self.ending == Ending::No
    }

    /// Since when it may be closed for another, if it may.
    pub fn gives_way_since(&self, now_ns: u64) -> Option<u64> {
        let since = self.deadlines.gives_way_since(now_ns);
        since.filter(|_| self.is_open() || self.gives_way_by_lingering())
    }

    fn gives_way_by_lingering(&self) -> bool {
        self.lingers && !matches!(self.ending, Ending::Idle | Ending::Abort)
    }

    /// Whether the sweeper found it idle for a while, and it still is: its task gives back what it
    /// holds for a request (CONN-1).
    pub fn rests(&mut self, now_ns: u64) -> bool {
        if self.served != Served::Idle {
            return false;
        }
        self.served = Served::Yes;
        self.is_at_rest(now_ns)
    }

    fn is_at_rest(&self, now_ns: u64) -> bool {
        let is_late = |since: u64| since.saturating_add(REST_NS) <= now_ns;
        self.deadlines.idle_since().is_some_and(is_late)
    }

    /// Wakes the task where a deadline has passed, or the client has `broken_off`.
    pub fn sweep(&mut self, now_ns: u64, broken_off: impl FnOnce() -> bool) {
        match self.deadlines.sweep(now_ns) {
            // A connection that lingers is read, which finds its end.
            None if !self.lingers && broken_off() => self.finish(Ending::Abort, now_ns),
            None if self.deadlines.is_retry_due(now_ns) => {
                if std::mem::replace(&mut self.retries, true) {
                    // Who writes does not try: the system has told that there is no room.
                    self.deadlines.has_no_room(now_ns);
                }
                self.wake();
            }
            None if self.served != Served::No && self.is_at_rest(now_ns) => {
                self.served = Served::Idle;
                self.wake();
            }
            None => {}
            Some(Missed::Head) => self.finish(Ending::HeadTimeout, now_ns),
            Some(Missed::Next) => self.finish(Ending::Idle, now_ns),
            Some(Missed::Client) => self.finish(Ending::Stalled, now_ns),
            Some(Missed::Body) => self.finish(Ending::BodyTimeout, now_ns),
            Some(Missed::TooSlow) => self.finish(Ending::TooSlow, now_ns),
            Some(Missed::Upstream) => self.wake(),
        }
    }

    /// Asks the connection to end for another, and wakes its task.
    pub fn give_way(&mut self, now_ns: u64) {
        let ending = match self.deadlines.gathers_since() {
            Some(_) => Ending::Displaced,
            None => Ending::Idle,
        };
        self.finish(ending, now_ns);
    }

    /// Asks the connection to end, and wakes its task. A weaker ending changes nothing.
    pub fn finish(&mut self, ending: Ending, now_ns: u64) {
        if ending == Ending::Drain && self.is_open() {
            self.deadlines.begin_drain(now_ns);
        }
        let gives_way = ending == Ending::Idle && self.lingers;
        if !self.ending.is_cut() || ending == Ending::Abort || gives_way {
            self.ending = ending;
            self.wake();
        }
    }

    /// Wakes the task, if it waits.
    pub fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
