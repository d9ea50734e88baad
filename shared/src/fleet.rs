//! Counts that the instances of a fleet share (FLEET-5, FLEET-6). Pure.
//!
//! A window of this instance contains its own count and the known counts of others: so a limit is
//! compared with the sum, and no other code depends on the fleet. [`InFleet`] separates the two:
//! the part of the own count that the engine has already, and the part that others have added.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::clock::Now;
use crate::rules::{Rule, SharedKey};
use crate::window::{Length, Span, Window};

/// The part of a window that the engine has, and the part that others have added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFleet {
    /// The part of the own count that the engine has.
    sent: Window,
    /// The part of the window that others have counted.
    others: Window,
}

impl InFleet {
    /// Treats all of the window as own counts that the engine has, as after a restart: nothing is
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

    /// Whether the engine has a part of it.
    pub const fn is_sent(&self) -> bool {
        self.sent.current > 0 || self.sent.previous > 0
    }

    /// Whether both parts are empty.
    pub const fn is_empty(&self) -> bool {
        !self.is_sent() && self.others.current == 0 && self.others.previous == 0
    }

    /// What others have counted of the window.
    pub const fn others(&self) -> Window {
        self.others
    }

    /// Rolls both parts to the buckets of `window`, which must be rolled already.
    pub fn roll(&mut self, window: &Window, span: impl Length) {
        self.others.roll(span, window.start_ms);
        // If a clock was set back far, the window has started again without counts of others. The
        // engine still has what it had.
        if window.start_ms > self.sent.start_ms {
            self.sent.roll(span, window.start_ms);
        }
    }

    /// The instance's own count of the window, which must be rolled already.
    #[must_use]
    pub fn own(mut self, window: &Window, span: impl Length) -> Window {
        self.roll(window, span);
        Window {
            start_ms: window.start_ms,
            current: window.current.saturating_sub(self.others.current),
            previous: window.previous.saturating_sub(self.others.previous),
        }
    }

    /// The part of the own count that the engine lacks, without what is not shared. The window must
    /// be rolled already.
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

    /// Takes the engine's sum of all instances, after it took `taken`; the window gets the new
    /// counts of others (FLEET-6). `None` for a sum that does not concern the current buckets. With
    /// `is_over` the engine may have dropped the sum because its time was over: the missing part is
    /// sent again. Anything else it lost may come back, and is not sent again.
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
            // Another instance's clock is ahead: its previous bucket is the current one here.
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
            // The sum is less than what was sent: the engine has lost at least the difference.
            if is_over {
                *sent = (*sent).min(sum);
            }
            let more = sum.saturating_sub(*sent).saturating_sub(*others);
            *others += more;
            *held = held.saturating_add(more);
        }
    }

    /// Resets the own count while the engine's sum stays: its part from this instance still counts
    /// as sent.
    pub fn begin_again(&mut self) {
        self.others = Window::default();
    }

    /// Notes that the engine has nothing of it: all of the own count must be sent again.
    pub const fn lost(&mut self) {
        self.sent.current = 0;
        self.sent.previous = 0;
    }

    /// Notes that the engine may have any part of the own count: nothing of it is sent again.
    pub fn may_be_sent(&mut self, window: &Window, span: impl Length) {
        self.roll(window, span);
        if self.sent.start_ms == window.start_ms {
            self.sent = self.own(window, span);
        }
    }

    /// Removes the counts of others from the window.
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
    /// The key of the count.
    pub key: SharedKey,
    /// True for the second count of the key, for known clients (SHARE-4).
    pub is_second: bool,
}

/// The owner of a changed count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Changed {
    /// A client, by its own windows or those of rules.
    Client(Client),
    /// A count that clients share.
    Shared(SharedCount),
}

/// The owner of the windows.
#[derive(Clone, PartialEq, Debug)]
pub enum CountOf {
    /// The six windows of a client: requests a minute, an hour and a day, then bytes.
    Client(Client),
    /// The windows of a client by a rule: a minute, an hour, a day.
    Rule(Client, Arc<Rule>),
    /// The windows of a shared count: the same.
    Shared(SharedCount),
}

/// Counts of an instance that the engine lacks.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The owner of the windows.
    pub of: CountOf,
    /// The start of the last ban that reset them, in milliseconds since 1970; 0 if there was none
    /// (FLEET-9).
    pub epoch_ms: u64,
    /// True if the client is known here (SHARE-4): then it is known at all instances.
    pub known: bool,
    /// In the order of [`Span::ALL`], once or twice.
    pub windows: Vec<Window>,
    /// How long the engine keeps their sum (FLEET-28).
    pub keep: Duration,
    /// The share of the rest of a limit that these counts take, in the scale of [`URGENT`]; 0 if no
    /// count is above the share that is held back.
    pub urgency: u64,
}

/// The urgency from which counts do not wait for the next interval: half of an instance's share of
/// the rest of a limit.
pub const URGENT: u64 = 500;

impl Report {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        let has_counted = |window: &Window| window.current > 0 || window.previous > 0;
        !self.windows.iter().any(has_counted)
    }
}

/// The engine's sum of the same windows over all instances.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sum {
    /// As in a report.
    pub epoch_ms: u64,
    /// True if an instance knows the client.
    pub known: bool,
    /// As many as were reported.
    pub windows: Vec<Window>,
}

/// The parameters of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reporting {
    /// The number of live instances, this one included: at least 1.
    pub instances: u64,
    /// True if everything must be sent because the instance leaves.
    pub is_last: bool,
    /// After so many nanoseconds the engine is asked about a client near a limit that only refuses.
    pub ask_after_ns: u64,
}

/// Hashes a field's value with a key: in a fleet the same key at each instance, otherwise the same
/// over a restart.
pub type ValueHash = Box<dyn Fn(&[u8]) -> u64 + Send + Sync>;

/// The fleet thread's interface to the counts of this instance.
pub trait FleetCounts: Send + Sync {
    /// Makes limits by a field's value count by this hash, starting again from 0.
    fn tell_values_by(&self, hash: ValueHash);

    /// The next owner whose counts have changed since it was last returned; waits at most `wait`
    /// for one.
    fn changed(&self, wait: Duration) -> Option<Changed>;

    /// All owners of counts.
    fn all(&self) -> Vec<Changed>;

    /// The reports that are due for an owner.
    fn reports(&self, of: &Changed, reporting: Reporting, now: Now) -> Vec<Report>;

    /// Takes the engine's sum, and whether the engine took the report. A limit that is exceeded by
    /// that is reported like any other (FLEET-8). `instances` is for the notes.
    fn learn(&self, report: &Report, is_taken: bool, sum: &Sum, instances: u64, now: Now);

    /// Notes that the engine has lost everything that was sent.
    fn lost(&self);

    /// Notes that the engine may have any part of the counts.
    fn may_be_sent(&self);

    /// Sets whether the counts of others are used (FLEET-27).
    fn heed(&self, others: bool);
}

/// Returns the counts of this instance. They are made at the first call, and are the same from then
/// on.
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
