//! How much of what an instance has counted is due to be sent, and how urgently (FLEET-7).

use weir_shared::clock::Now;
use weir_shared::fleet::{Report, Reporting, span_at};
use weir_shared::window::Window;

/// The part of what is left of a limit that all instances together hold back: a tenth (FLEET-7).
const HELD_BACK: u64 = 10;
/// How much is due of what was not sent, and how urgently.
pub struct Due<'a> {
    reporting: &'a Reporting,
    urgency: u64,
    asks: bool,
    is_empty: bool,
}

impl<'a> Due<'a> {
    /// Nothing yet.
    pub const fn of(reporting: &'a Reporting) -> Self {
        Self {
            reporting,
            urgency: 0,
            asks: false,
            is_empty: true,
        }
    }

    /// So much of a window was not sent, so much of it is known, and this is its limit.
    pub fn note(&mut self, unsent: Window, known: u64, limit: Option<u64>, refuses: bool) {
        let unsent = unsent.current.saturating_add(unsent.previous);
        self.is_empty &= unsent == 0;
        let Some(limit) = limit else { return };
        let instances = self.reporting.instances.max(1);
        let left = limit.saturating_sub(known);
        self.asks |= refuses && known >= limit / 2;
        if unsent > left / (HELD_BACK * instances) {
            let urgency =
                u128::from(unsent) * u128::from(instances) * 1000 / u128::from(left.max(1));
            let urgency = u64::try_from(urgency).unwrap_or(u64::MAX);
            self.urgency = self.urgency.max(urgency).max(1);
        }
    }

    /// All in all; 0 where nothing is due. The engine was asked then last; what it was told before
    /// a restart is asked for at once.
    pub fn urgency(&self, asked_ns: u64, is_restored: bool, now: Now) -> u64 {
        let asks = self.asks && now.mono_ns.saturating_sub(asked_ns) >= self.reporting.ask_after_ns;
        let is_last = self.reporting.is_last && !self.is_empty;
        let is_unknown = is_restored && asked_ns == 0;
        self.urgency.max(u64::from(asks || is_last || is_unknown))
    }
}

/// All of them in the buckets of the latest.
pub fn aligned(mut windows: Vec<Window>) -> Vec<Window> {
    let latest = windows.iter().map(|window| window.start_ms).max();
    for (place, window) in windows.iter_mut().enumerate() {
        window.roll(span_at(place), latest.unwrap_or_default());
    }
    windows
}

/// Whether the time is over for which the engine keeps a sum that it was asked for then last; 0 is
/// never.
pub fn is_over(asked_ns: u64, report: &Report, now: Now) -> bool {
    let asked_ago = u128::from(now.mono_ns.saturating_sub(asked_ns));
    asked_ns > 0 && asked_ago >= report.keep.as_nanos()
}
