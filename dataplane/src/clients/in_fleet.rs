//! What the fleet knows of what was counted here.

use weir_shared::fleet::InFleet;
use weir_shared::window::{PerSpan, Span};

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
