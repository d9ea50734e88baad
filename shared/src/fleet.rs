//! What instances of weir that act as one have counted together (FLEET-5, FLEET-6). Pure.
//!
//! A window of this instance holds what it counted itself and what it knows of others: so a limit
//! is compared with the sum, and nothing else has to know of the fleet. [`InFleet`] tells the two
//! apart: what of the own count the engine has already, and what others have added.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::clock::Now;
use crate::rules::{Rule, SharedKey};
use crate::window::{Length, Span, Window};

/// What of a window the engine has, and what others have put into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFleet {
    /// What of the own count the engine has.
    sent: Window,
    /// What of the window is the count of others.
    others: Window,
}

impl InFleet {
    /// All of the window is the own count, and the engine has it, as after a restart: nothing is
    /// sent twice.
    pub const fn sent(window: Window) -> Self {
        Self {
            sent: window,
            others: Window {
                start_ms: window.start_ms,
                current: 0,
                previous: 0,
            },
        }
    }

    /// Whether the engine has something of it.
    pub const fn is_sent(&self) -> bool {
        self.sent.current > 0 || self.sent.previous > 0
    }

    /// Whether it says nothing.
    pub const fn is_empty(&self) -> bool {
        !self.is_sent() && self.others.current == 0 && self.others.previous == 0
    }

    /// What others have counted of the window.
    pub const fn others(&self) -> Window {
        self.others
    }

    /// Moves the buckets to those of the window, which was rolled already.
    pub fn roll(&mut self, window: &Window, span: impl Length) {
        self.others.roll(span, window.start_ms);
        // A clock that was set back far began the window anew, with nothing of others in it. What
        // the engine has it has all the same.
        if window.start_ms > self.sent.start_ms {
            self.sent.roll(span, window.start_ms);
        }
    }

    /// What the instance has counted itself of the window, which was rolled already.
    #[must_use]
    pub fn own(mut self, window: &Window, span: impl Length) -> Window {
        self.roll(window, span);
        Window {
            start_ms: window.start_ms,
            current: window.current.saturating_sub(self.others.current),
            previous: window.previous.saturating_sub(self.others.previous),
        }
    }

    /// What of the own count the engine lacks, without what is not shared. The window was rolled
    /// already.
    #[must_use]
    pub fn unsent(mut self, window: &Window, not_shared: Window, span: impl Length) -> Window {
        self.roll(window, span);
        if self.sent.start_ms != window.start_ms {
            return Window {
                start_ms: window.start_ms,
                ..Window::default()
            };
        }
        let own = self.own(window, span);
        let own = own.without(not_shared, span, window.start_ms);
        Window {
            start_ms: window.start_ms,
            current: own.current.saturating_sub(self.sent.current),
            previous: own.previous.saturating_sub(self.sent.previous),
        }
    }

    /// The engine has taken `taken`, and knows this sum of all instances; the window gets what is
    /// new of others (FLEET-6). `None` for a sum that says nothing of them now. Where `is_over` the
    /// engine may have let go of the sum for its time was over: what it lacks is sent again.
    /// Whatever else it lost may come back, and is not.
    pub fn learn(
        &mut self,
        window: &mut Window,
        (taken, sum, is_over): (Window, Option<Window>, bool),
        span: impl Length,
        now_ms: u64,
    ) {
        window.roll(span, now_ms);
        self.roll(window, span);
        if self.sent.start_ms != window.start_ms {
            return;
        }
        let mut taken = taken;
        if window.start_ms > taken.start_ms {
            taken.roll(span, window.start_ms);
        }
        if taken.start_ms == window.start_ms {
            self.sent.current = self.sent.current.saturating_add(taken.current);
            self.sent.previous = self.sent.previous.saturating_add(taken.previous);
        }
        let Some(mut sum) = sum else {
            return;
        };
        if window.start_ms > sum.start_ms {
            sum.roll(span, window.start_ms);
        }
        let (current, previous) = if sum.start_ms == window.start_ms {
            (Some(sum.current), Some(sum.previous))
        } else if sum.start_ms == window.start_ms.saturating_add(span.ms()) {
            // Somebody's clock is ahead: the bucket there that is past is the one here.
            (Some(sum.previous), None)
        } else {
            (None, None)
        };
        let buckets = [
            (
                current,
                &mut self.sent.current,
                &mut self.others.current,
                &mut window.current,
            ),
            (
                previous,
                &mut self.sent.previous,
                &mut self.others.previous,
                &mut window.previous,
            ),
        ];
        for (sum, sent, others, held) in buckets {
            let Some(sum) = sum else { continue };
            // Less than was sent: the engine has lost at least the difference.
            if is_over {
                *sent = (*sent).min(sum);
            }
            let more = sum.saturating_sub(*sent).saturating_sub(*others);
            *others += more;
            *held = held.saturating_add(more);
        }
    }

    /// The count begins anew, and the engine's does not: what it has of this instance stays sent.
    pub fn begin_again(&mut self) {
        self.others = Window::default();
    }

    /// The engine has nothing of it: all of the own count is to be sent again.
    pub const fn lost(&mut self) {
        self.sent.current = 0;
        self.sent.previous = 0;
    }

    /// The engine may have any part of the own count: nothing of it is sent again.
    pub fn may_be_sent(&mut self, window: &Window, span: impl Length) {
        self.roll(window, span);
        if self.sent.start_ms == window.start_ms {
            self.sent = self.own(window, span);
        }
    }

    /// What others have counted does not hold.
    pub fn without_others(&mut self, window: &mut Window, span: impl Length) {
        self.roll(window, span);
        *window = self.own(window, span);
        self.others = Window {
            start_ms: window.start_ms,
            ..Window::default()
        };
    }
}

/// A count that clients share (SHARE-1).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SharedCount {
    /// The limit.
    pub rule: Arc<Rule>,
    /// Which of its counts.
    pub key: SharedKey,
    /// It is the second one, of known clients (SHARE-4).
    pub is_second: bool,
}

/// What has counted something.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Changed {
    /// A client, by its own windows or those of rules.
    Client(Client),
    /// A count that clients share.
    Shared(SharedCount),
}

/// Whose windows they are.
#[derive(Clone, PartialEq, Debug)]
pub enum CountOf {
    /// The six of a client: requests a minute, an hour and a day, then bytes.
    Client(Client),
    /// Those of a client that a rule counts: a minute, an hour, a day.
    Rule(Client, Arc<Rule>),
    /// Those of all clients that share them: the same.
    Shared(SharedCount),
}

/// What an instance has counted, and the engine lacks.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Whose windows.
    pub of: CountOf,
    /// When the ban began that reset them last, milliseconds since 1970; 0 for never (FLEET-9).
    pub epoch_ms: u64,
    /// The client is known here (SHARE-4): it is so everywhere.
    pub known: bool,
    /// In the order of [`Span::ALL`], once or twice.
    pub windows: Vec<Window>,
    /// How long the engine is to keep their sum (FLEET-28).
    pub keep: Duration,
    /// How much of what is left of a limit it is, as [`URGENT`] says; 0 where nothing is over the
    /// share that is held back.
    pub urgency: u64,
}

/// The urgency of what does not wait for the next interval: half of an instance's share of what is
/// left of a limit.
pub const URGENT: u64 = 500;

impl Report {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        let has_counted = |window: &Window| window.current > 0 || window.previous > 0;
        !self.windows.iter().any(has_counted)
    }
}

/// What the engine knows of the same windows: of all instances together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sum {
    /// As of a report.
    pub epoch_ms: u64,
    /// Some instance knows the client.
    pub known: bool,
    /// As many as were reported.
    pub windows: Vec<Window>,
}

/// What a report is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reporting {
    /// Instances that live, this one included: at least 1.
    pub instances: u64,
    /// Everything is sent: the instance goes.
    pub is_last: bool,
    /// A client near a limit that only refuses is asked about after so long, nanoseconds.
    pub ask_after_ns: u64,
}

/// Gives the number that stands for a field's value, by a key: in a fleet the same at each
/// instance, else the same over a restart.
pub type ValueHash = Box<dyn Fn(&[u8]) -> u64 + Send + Sync>;

/// The counts of this instance, as the fleet's thread sees them.
pub trait FleetCounts: Send + Sync {
    /// Limits by a field's value count under these numbers from now on, and anew.
    fn tell_values_by(&self, hash: ValueHash);

    /// What has counted something since it was named here last; waits so long for a client.
    fn changed(&self, wait: Duration) -> Option<Changed>;

    /// Everything that is kept.
    fn all(&self) -> Vec<Changed>;

    /// What is due of it.
    fn reports(&self, of: &Changed, reporting: Reporting, now: Now) -> Vec<Report>;

    /// The engine has taken a report, or none of it, and knows this sum. A limit that is broken now
    /// is reported as any other (FLEET-8). `instances` is for the notes.
    fn learn(&self, report: &Report, is_taken: bool, sum: &Sum, instances: u64, now: Now);

    /// The engine has nothing of what was sent.
    fn lost(&self);

    /// The engine may have any part of what was counted.
    fn may_be_sent(&self);

    /// What others count holds, or does not (FLEET-27).
    fn heed(&self, others: bool);
}

/// The counts of this instance: made where they are asked for the first time, and the same from
/// then on.
pub type CountsOf = Arc<dyn Fn() -> Arc<dyn FleetCounts> + Send + Sync>;

/// The length of the window at this place of a report.
pub fn span_at(place: usize) -> Span {
    match place % 3 {
        0 => Span::Minute,
        1 => Span::Hour,
        _ => Span::Day,
    }
}

#[cfg(test)]
mod tests;
