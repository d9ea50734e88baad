//! How long the next automatic ban of a netblock lasts (BAN-1): pure.
//!
//! Both planes call it: the control plane to make the ban, and the data plane to tell the client
//! the length of the ban without waiting for the control plane.

use std::time::Duration;

use crate::ban::Expiry;
use crate::units::Time;

/// The settings that decide how long a ban lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// `WAF_BAN_FIRST`
    pub first: Duration,
    /// `WAF_BAN_FACTOR`
    pub factor: u32,
    /// `WAF_BAN_REPEAT_WINDOW`
    pub repeat_window: Duration,
    /// `WAF_BAN_PERMANENT_AFTER`
    pub permanent_after: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        const HOUR: u64 = 3600;
        Self {
            first: Duration::from_secs(HOUR),
            factor: 3,
            repeat_window: Duration::from_secs(24 * HOUR),
            permanent_after: Duration::from_secs(7 * 24 * HOUR),
        }
    }
}

/// A ban that ran out: not lifted, its end in the past.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// When it ended, milliseconds since 1970.
    pub end_ms: u64,
    /// How long it lasted, milliseconds.
    pub length_ms: u64,
}

/// The ban that the application asks for (APP-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AskedBan {
    /// True for the word `ban`: as long as for an exceeded limit.
    pub plain: bool,
    /// The longest of its `ban=DURATION`.
    pub duration: Option<Duration>,
}

/// The end of a ban that the application asks for. With a duration it lasts that long, but at least
/// as long as by escalation if a ban of the netblock ended recently.
pub fn asked_expiry(policy: &Policy, last: Option<Ended>, now_ms: u64, asked: AskedBan) -> Expiry {
    let escalated = next_expiry(policy, last, now_ms);
    let Some(duration) = asked.duration else {
        return escalated;
    };
    let given = Expiry::At(Time(now_ms).plus(duration));
    if asked.plain || last.is_some_and(|last| is_recent(policy, last, now_ms)) {
        given.max(escalated)
    } else {
        given
    }
}

/// Whether a ban that ended makes the next one longer. An edited entry may have no length: it ended
/// before it was read, and has no start.
fn is_recent(policy: &Policy, last: Ended, now_ms: u64) -> bool {
    last.length_ms > 0 && now_ms.saturating_sub(last.end_ms) <= millis(policy.repeat_window)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The end of a ban made now, given the netblock's last ban that ended.
pub fn next_expiry(policy: &Policy, last: Option<Ended>, now_ms: u64) -> Expiry {
    let length = match last {
        Some(last) if is_recent(policy, last, now_ms) => {
            last.length_ms.saturating_mul(u64::from(policy.factor))
        }
        _ => millis(policy.first),
    };
    if length > millis(policy.permanent_after) {
        return Expiry::Permanent;
    }
    Expiry::At(Time(now_ms).plus(Duration::from_millis(length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000;
    const NOW: u64 = 1_795_276_800_000;

    /// APP-3: a ban lasts as long as the application says, but at least as long as escalation says
    /// if a ban ended lately or the answer says `ban` too; without a duration it lasts as long as
    /// one for an exceeded limit.
    #[test]
    fn the_application_gives_a_duration() {
        let policy = Policy::default();
        let asked = |plain, hours: Option<u64>, last_hours: Option<u64>| {
            let duration = hours.map(|hours| Duration::from_secs(3600 * hours));
            let last = last_hours.map(|hours| Ended {
                end_ms: NOW - HOUR,
                length_ms: hours * HOUR,
            });
            match asked_expiry(&policy, last, NOW, AskedBan { plain, duration }) {
                Expiry::At(Time(end_ms)) => Some((end_ms - NOW) / HOUR),
                Expiry::Permanent => None,
            }
        };
        assert_eq!(asked(true, None, None), Some(1));
        assert_eq!(asked(true, None, Some(1)), Some(3));
        assert_eq!(asked(false, Some(0), None), Some(0));
        assert_eq!(asked(true, Some(0), None), Some(1));
        assert_eq!(asked(true, Some(5), None), Some(5));
        assert_eq!(asked(false, Some(2), Some(1)), Some(3));
        assert_eq!(asked(false, Some(4), Some(1)), Some(4));
        assert_eq!(asked(false, Some(4), Some(100)), None);
        assert_eq!(asked(false, Some(1000), None), Some(1000));
    }

    /// BAN-1: with the defaults 1h, 3h, 9h, 27h, 81h, permanent.
    #[test]
    fn the_defaults_escalate_to_permanent() {
        let policy = Policy::default();
        let (mut last, mut now, mut hours) = (None, NOW, Vec::new());
        loop {
            match next_expiry(&policy, last, now) {
                Expiry::Permanent => break,
                Expiry::At(Time(end_ms)) => {
                    hours.push((end_ms - now) / HOUR);
                    last = Some(Ended {
                        end_ms,
                        length_ms: end_ms - now,
                    });
                    now = end_ms + 24 * HOUR;
                }
            }
        }
        assert_eq!(hours, [1, 3, 9, 27, 81]);
    }

    /// BAN-1: after the window a ban has the first length again.
    #[test]
    fn after_the_window_it_starts_again() {
        let last = Some(Ended {
            end_ms: NOW,
            length_ms: 9 * HOUR,
        });
        assert_eq!(
            next_expiry(&Policy::default(), last, NOW + 24 * HOUR),
            Expiry::At(Time(NOW + 51 * HOUR))
        );
        assert_eq!(
            next_expiry(&Policy::default(), last, NOW + 24 * HOUR + 1),
            Expiry::At(Time(NOW + 25 * HOUR + 1))
        );
    }

    proptest! {
        /// BAN-1 against a naive twin that walks the rule in seconds as `i128`.
        #[test]
        fn escalation_agrees_with_its_naive_twin(first in 1u64..1_000_000, factor in 1u32..10, window in 0u64..1_000_000, permanent in 1u64..10_000_000,
                                                 last in prop::option::of((0u64..2_000_000, prop_oneof![1 => Just(0), 9 => 1u64..1_000_000])), now in 0u64..3_000_000,
                                                 (edge, past) in (0u8..4, -1i64..=1)) {
            // Half of the cases lie at a bound: of the length, or of the window.
            let beside = |bound: u64| bound.saturating_add_signed(past).max(1);
            let permanent = match (edge, last) {
                (0, Some((_, length))) => beside(length * u64::from(factor)),
                (0, None) => beside(first),
                _ => permanent,
            };
            let now = match (edge, last) {
                (1, Some((end, _))) => beside(end + window),
                _ => now,
            };
            let seconds = Duration::from_secs;
            let policy = Policy { first: seconds(first), factor, repeat_window: seconds(window), permanent_after: seconds(permanent) };
            let twin = {
                let (now, window) = (i128::from(now), i128::from(window));
                let length = match last {
                    Some((end, length)) if length != 0 && now - i128::from(end) <= window => i128::from(length) * i128::from(factor),
                    _ => i128::from(first),
                };
                (length <= i128::from(permanent)).then_some(now + length)
            };
            let last = last.map(|(end, length)| Ended { end_ms: end * 1000, length_ms: length * 1000 });
            let expected = twin.map_or(Expiry::Permanent, |end| Expiry::At(Time(u64::try_from(end * 1000).unwrap())));
            prop_assert_eq!(next_expiry(&policy, last, now * 1000), expected);
        }
    }
}
