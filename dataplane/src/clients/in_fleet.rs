//! What the fleet knows of what was counted here.

use weir_shared::clock::Now;
use weir_shared::fleet::InFleet;
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
