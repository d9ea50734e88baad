//! The time at which a limit counts as exceeded.

use weir_shared::event::LimitExceeded;

/// If a limit was exceeded longer ago than this, or in the future, its ban starts now instead: the
/// clock was moved or the loop was stuck, and a ban that is half over protects nobody.
pub(super) const LATE_MS: u64 = 5_000;

/// When a limit was exceeded, or now if that was too long ago.
pub(super) fn broken_at(exceeded: &LimitExceeded, now_ms: u64) -> u64 {
    match now_ms.checked_sub(exceeded.at_ms) {
        Some(late) if late <= LATE_MS => exceeded.at_ms,
        _ => now_ms,
    }
}
