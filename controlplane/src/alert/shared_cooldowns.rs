//! Cooldowns of shared limits: one alert of a key, then quiet for `WAF_ANOMALY_COOLDOWN` (ALERT-2,
//! SHARE-8). Pure: the time is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_shared::rules::{Rule, SharedKey};
use weir_shared::units::Time;

/// The most cooldowns that are kept; beyond it the one that ends soonest is dropped.
const MAX_COOLDOWNS: usize = 1024;
/// A clock that is this far behind a cooldown's start is still the same clock (as in LIMIT-3).
const STEP_BACK_MS: u64 = 1000;

/// Cooldowns by limit and key, with their starts.
pub(super) struct SharedCooldowns {
    length_ms: u64,
    started: HashMap<(String, SharedKey), u64>,
}

impl SharedCooldowns {
    pub(super) fn new(length: Duration) -> Self {
        Self {
            length_ms: millis(length),
            started: HashMap::new(),
        }
    }

    pub(super) fn set_length(&mut self, length: Duration) {
        self.length_ms = millis(length);
    }

    /// Begins the cooldown of a key and returns its end; none if one is running.
    pub(super) fn begin(&mut self, rule: &Arc<Rule>, key: SharedKey, now_ms: u64) -> Option<Time> {
        let length_ms = self.length_ms;
        let is_running = |started: &u64| {
            now_ms < started.saturating_add(length_ms) && now_ms + STEP_BACK_MS >= *started
        };
        let of = (rule.name.clone(), key);
        if self.started.get(&of).is_some_and(is_running) {
            return None;
        }
        if self.started.len() >= MAX_COOLDOWNS {
            self.started.retain(|_, started| is_running(started));
        }
        if self.started.len() >= MAX_COOLDOWNS {
            let first = self.started.iter().min_by_key(|(_, started)| **started);
            if let Some(first) = first.map(|(of, _)| of.clone()) {
                self.started.remove(&first);
            }
        }
        self.started.insert(of, now_ms);
        Some(Time(now_ms.saturating_add(length_ms)))
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use weir_shared::lookup::AsNumber;
    use weir_shared::rules::RuleKind;

    use super::*;

    /// SHARE-8, ALERT-2: one alert of a key in a cooldown; other keys have their own cooldowns;
    /// their number is bounded.
    #[test]
    fn a_key_alerts_once_in_a_cooldown() {
        let rule = Arc::new(Rule::new(RuleKind::Limit, "cloud".to_owned()));
        let mut cooldowns = SharedCooldowns::new(Duration::from_secs(60));
        let key = |number: u32| SharedKey::Asn(AsNumber::new(number));
        let mut begin = |number, now_ms| cooldowns.begin(&rule, key(number), now_ms);
        assert_eq!(begin(7, 100_000), Some(Time(160_000)));
        assert_eq!(begin(7, 159_999), None);
        assert_eq!(begin(8, 159_999), Some(Time(219_999)));
        assert_eq!(begin(7, 160_000), Some(Time(220_000)));
        // A clock that was set back.
        assert_eq!(begin(7, 100_000), Some(Time(160_000)));
        for number in 1_000..5_000 {
            begin(number, 100_000);
        }
        assert!(cooldowns.started.len() <= MAX_COOLDOWNS);
    }
}
