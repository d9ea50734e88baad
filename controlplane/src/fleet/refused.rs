//! Alerts about rejected data from the engine (FLEET-24, FLEET-25): an instance with another key
//! sends something each second, and should raise one alert only.

use super::event::Rejected;
use super::facts::Told;

/// The pause between two alerts for one reason.
const PAUSE_NS: u64 = 3_600_000_000_000;

/// Rejections by [`Rejected::ALL`].
type Counts = [u64; Rejected::ALL.len()];

/// For each reason: the count at the last alert, and its time on the monotonic clock.
#[derive(Default)]
pub(super) struct Refused([(u64, Option<u64>); Rejected::ALL.len()]);

impl Refused {
    /// Takes the total counts. Returns an alert about the rejections since the last one, if one of
    /// their reasons had no alert for a while.
    pub(super) fn tell(&mut self, counts: Counts, now_ns: u64) -> Option<Told> {
        let is_due = |told_ns: u64| now_ns.saturating_sub(told_ns) >= PAUSE_NS;
        let mut told = self.0.iter().zip(counts);
        if !told.any(|((told, at), count)| count > *told && at.is_none_or(is_due)) {
            return None;
        }
        let mut new = 0;
        for ((told, at), count) in self.0.iter_mut().zip(counts) {
            if count > *told {
                new += count - *told;
                (*told, *at) = (count, Some(now_ns));
            }
        }
        let counts = Rejected::ALL.into_iter().zip(counts);
        let counts = counts.filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts
            .map(|(reason, count)| format!("{} {count}", reason.name()))
            .collect();
        Some(Told {
            what: "rejected",
            detail: format!(
                "{new} entries of the engine were refused; by reason: {}",
                counts.join(", ")
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-25: repeated refusals for one reason raise one alert an hour; another reason raises
    /// one at once.
    #[test]
    fn a_reason_is_told_once_an_hour() {
        let counts = |seal: u64, clock: u64| {
            Rejected::ALL.map(|reason| match reason {
                Rejected::Seal => seal,
                Rejected::Clock => clock,
                _ => 0,
            })
        };
        let mut refused = Refused::default();
        let mut tell = |seal, clock, at_s: u64| {
            let told = refused.tell(counts(seal, clock), at_s * 1_000_000_000);
            told.map(|told| told.detail.split(' ').next().unwrap_or_default().to_owned())
        };
        assert_eq!(tell(0, 0, 1), None);
        assert_eq!(tell(1, 0, 2).as_deref(), Some("1"));
        for second in 3..3602 {
            assert_eq!(tell(second, 0, second), None);
        }
        assert_eq!(tell(3601, 0, 3602).as_deref(), Some("3600"));
        assert_eq!(tell(3601, 1, 3603).as_deref(), Some("1"));
        assert_eq!(tell(3601, 1, 9999), None);
    }
}
