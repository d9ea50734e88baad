//! The windows of one client against its limits: pure arithmetic over the three lengths.

use weir_shared::verdict::AppliedPercent;
use weir_shared::window::{PerSpan, Span, Window};

/// Adds to the three windows; names the shortest that is over, and its limit.
pub fn charge(
    windows: &mut PerSpan<Window>,
    limits: &PerSpan<Option<u64>>,
    wall_ms: u64,
    amount: u64,
) -> Option<(Span, u64)> {
    let mut over = None;
    for span in Span::ALL {
        let window = windows.get_mut(span);
        window.add(span, wall_ms, amount);
        if let Some(limit) = *limits.get(span)
            && over.is_none()
            && window.is_over(span, wall_ms, limit)
        {
            over = Some((span, limit));
        }
    }
    over
}

/// Of windows of which one is `over`, the shortest that is over without a part of what they have
/// counted, and its limit.
pub fn own_break(
    over: (Span, u64),
    windows: &PerSpan<Window>,
    part: Option<&PerSpan<Window>>,
    limits: &PerSpan<Option<u64>>,
    wall_ms: u64,
) -> Option<(Span, u64)> {
    let Some(part) = part else {
        return Some(over);
    };
    Span::ALL.into_iter().find_map(|span| {
        let limit = (*limits.get(span))?;
        let own = windows.get(span).without(*part.get(span), span, wall_ms);
        own.is_over(span, wall_ms, limit).then_some((span, limit))
    })
}

/// The estimates of the three windows, rounded down.
pub fn estimates(windows: &PerSpan<Window>, wall_ms: u64) -> PerSpan<u64> {
    windows.map(|span, window| window.estimate(span, wall_ms))
}

/// Each limit times the percentage, rounded down; `off` stays off (LIMIT-4).
pub fn lowered(
    limits: &PerSpan<Option<u64>>,
    applied: Option<AppliedPercent>,
) -> PerSpan<Option<u64>> {
    let percent = applied.map_or(100, |applied| u128::from(applied.percent.min(100)));
    // At most the limit itself, so it fits again.
    let lowered = |limit| u64::try_from(u128::from(limit) * percent / 100).unwrap_or(limit);
    limits.map(|_, limit| limit.map(lowered))
}
