//! What the fleet knows of what was counted here, and how much is due to be sent to it (FLEET-7).

use weir_shared::clock::Now;
use weir_shared::fleet::{InFleet, Report, Reporting, span_at};
use weir_shared::window::{Length, PerSpan, Span, Window};

/// As long a ban says that what was counted before it is void.
const EPOCH_MS: u64 = 2 * 86_400_000;

/// What the fleet knows of the six windows of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientInFleet {
    /// When the ban began that reset them last; 0 for never.
    pub epoch_ms: u64,
    /// When the engine was asked last, on the monotonic clock; 0 for never.
    pub asked_ns: u64,
    /// Requests.
    pub requests: PerSpan<InFleet>,
    /// Bytes.
    pub bytes: PerSpan<InFleet>,
}

impl ClientInFleet {
    /// Whether it says nothing any more. The windows are those of a client that is not asked for.
    pub fn is_past(&self, wall_ms: u64) -> bool {
        let is_past = |span: Span, in_fleet: &InFleet| {
            // Rolled as the window of a client that asks nothing is.
            let (mut in_fleet, mut window) = (*in_fleet, in_fleet.others());
            window.roll(span, wall_ms);
            in_fleet.roll(&window, span);
            in_fleet.is_empty()
        };
        let all = [&self.requests, &self.bytes];
        let windows = all.map(|windows| windows.map(is_past));
        wall_ms.saturating_sub(self.epoch_ms) > EPOCH_MS
            && windows
                .iter()
                .all(|past| past.minute && past.hour && past.day)
    }

    /// Each window.
    pub fn each(&mut self) -> impl Iterator<Item = &mut InFleet> {
        let all = [&mut self.requests, &mut self.bytes];
        all.into_iter()
            .flat_map(|of| [&mut of.minute, &mut of.hour, &mut of.day])
    }
}

/// A window of a rule, with what others have counted of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuleWindow {
    /// What all have counted.
    pub all: Window,
    /// What others have, as an estimate, and how long ago the engine has said so, milliseconds;
    /// none where it was not asked yet.
    pub elsewhere: Option<(u64, u64)>,
}

impl RuleWindow {
    /// Of which the engine was asked at this time of the monotonic clock; 0 for never.
    pub fn of(
        all: Window,
        of: Option<&InFleet>,
        span: impl Length,
        asked_ns: u64,
        now: Now,
    ) -> Self {
        let elsewhere = of.filter(|_| asked_ns > 0).map(|of| {
            let (mut window, mut of) = (all, *of);
            window.roll(span, now.wall_ms);
            of.roll(&window, span);
            let age_ms = now.mono_ns.saturating_sub(asked_ns) / 1_000_000;
            (of.others().estimate(span, now.wall_ms), age_ms)
        });
        Self { all, elsewhere }
    }
}

/// What the fleet knows of a count that clients share.
#[derive(Clone, Default)]
pub struct CountInFleet {
    /// When the ban began that reset it last; 0 for never.
    pub epoch_ms: u64,
    /// When the engine was asked last, on the monotonic clock; 0 for never.
    pub asked_ns: u64,
    /// Something was counted since it was looked at last.
    pub is_changed: bool,
    /// Its windows.
    pub windows: PerSpan<InFleet>,
}

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
