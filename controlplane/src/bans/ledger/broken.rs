//! The moment at which a limit counts as broken.

use weir_shared::event::LimitExceeded;

/// A break that waited longer than this, or lies ahead of the clock, is banned from the moment it
/// is seen: the clock was moved, or the loop stood still, and a ban that is half over protects
/// nobody.
pub(super) const LATE_MS: u64 = 5_000;

/// When a limit was broken, unless that was long ago.
pub(super) fn broken_at(exceeded: &LimitExceeded, now_ms: u64) -> u64 {
    match now_ms.checked_sub(exceeded.at_ms) {
        Some(late) if late <= LATE_MS => exceeded.at_ms,
        _ => now_ms,
    }
}
