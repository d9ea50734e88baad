//! Cooldowns: after one alert of a scope further ones are held back; their numbers are reported at
//! the end of the clock hour (ALERT-2).
//!
//! Pure: the time is an argument, the summary is handed back.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ahash::RandomState;
use weir_shared::units::Time;

use super::scope::{Measure, Scope};

/// The most cooldowns that are kept; beyond it the one that ends soonest is dropped.
const MAX_COOLDOWNS: usize = 20_000;
const HOUR_MS: u64 = 3_600_000;
/// A clock that is this far behind a cooldown's start is still the same clock (as in LIMIT-3).
const STEP_BACK_MS: u64 = 1000;

/// The cooldown of one scope. After its end it is kept until the clock hour ends, for its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cooldown {
    /// When its alert was raised.
    pub started: Time,
    /// The end: from then on the next alert is raised.
    pub ends: Time,
    /// The start of the clock hour that `held_back` counts.
    pub hour: Time,
    /// Alerts held back in that hour, in the order of [`Measure::ALL`].
    pub held_back: [u64; 4],
}

impl Cooldown {
    /// Whether the cooldown is running. A clock that is set back behind its start ends it:
    /// otherwise it would last as long as the clock was wrong.
    fn is_running(&self, now_ms: u64) -> bool {
        now_ms < self.ends.0 && now_ms + STEP_BACK_MS >= self.started.0
    }
}

/// The alerts that were held back in one clock hour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    /// The start of the hour.
    pub(crate) hour: Time,
    /// The scopes with held-back alerts, most first.
    pub(crate) scopes: Vec<(Scope, [u64; 4])>,
    /// Alerts held back in cooldowns that were dropped for [`MAX_COOLDOWNS`].
    pub(crate) beyond: u64,
}

impl Summary {
    /// The number of all held-back alerts.
    pub(crate) fn held_back(&self) -> u64 {
        let of_scopes = self.scopes.iter().flat_map(|(_, held)| held);
        of_scopes.fold(self.beyond, |sum, held| sum.saturating_add(*held))
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Cooldowns by scope.
pub(crate) struct Cooldowns {
    length_ms: u64,
    held: HashMap<Scope, Cooldown, RandomState>,
    /// The same cooldowns in the order of their ends.
    ends: BTreeSet<(Time, Scope)>,
    /// The start of the running clock hour.
    hour: Time,
    beyond: u64,
}

impl Cooldowns {
    pub(crate) fn new(length: Duration, now_ms: u64) -> Self {
        Self {
            length_ms: millis(length),
            held: HashMap::default(),
            ends: BTreeSet::new(),
            hour: hour_of(now_ms),
            beyond: 0,
        }
    }

    /// Sets the length of new cooldowns.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length_ms = millis(length);
    }

    /// Notes that a scope went over a threshold. Returns the end of the cooldown that starts now if
    /// an alert must be raised, none if it is held back.
    pub(crate) fn over(&mut self, scope: Scope, measure: Measure, now_ms: u64) -> Option<Time> {
        let held_back = match self.held.get_mut(&scope) {
            Some(cooldown) if cooldown.is_running(now_ms) => {
                if let Some(held) = cooldown.held_back.get_mut(measure as usize) {
                    *held = held.saturating_add(1);
                }
                return None;
            }
            // The cooldown has ended; its held-back alerts of this hour are still to be reported.
            Some(cooldown) => cooldown.held_back,
            None => [0; 4],
        };
        let ends = Time(now_ms.saturating_add(self.length_ms));
        let cooldown = Cooldown {
            started: Time(now_ms),
            ends,
            hour: self.hour,
            held_back,
        };
        self.insert(scope, cooldown);
        Some(ends)
    }

    /// Whether an alert of this scope would be held back.
    pub(crate) fn is_running(&self, scope: Scope, now_ms: u64) -> bool {
        (self.held.get(&scope)).is_some_and(|cooldown| cooldown.is_running(now_ms))
    }

    /// Whether a cooldown of this scope has been running for longer than `ms`.
    pub(crate) fn has_run_for(&self, scope: Scope, ms: u64, now_ms: u64) -> bool {
        let began = |cooldown: &Cooldown| now_ms.saturating_sub(cooldown.started.0) > ms;
        self.is_running(scope, now_ms) && self.held.get(&scope).is_some_and(began)
    }

    /// Notes that another instance raised the alert of this scope: the cooldown ends with that
    /// instance's, but not later than it would by itself.
    pub(crate) fn ends_by(&mut self, scope: Scope, ends: Time) {
        if let Some(mut cooldown) = self.held.get(&scope).copied()
            && ends < cooldown.ends
        {
            cooldown.ends = ends;
            self.insert(scope, cooldown);
        }
    }

    /// After the end of a clock hour: returns its held-back alerts, if any, and drops the cooldowns
    /// that have ended.
    pub(crate) fn turn(&mut self, now_ms: u64) -> Option<Summary> {
        let hour = hour_of(now_ms);
        if hour == self.hour {
            return None;
        }
        let mut summary = Summary {
            hour: std::mem::replace(&mut self.hour, hour),
            scopes: Vec::new(),
            beyond: std::mem::take(&mut self.beyond),
        };
        self.held.retain(|scope, cooldown| {
            let held_back = std::mem::take(&mut cooldown.held_back);
            if held_back != [0; 4] {
                summary.scopes.push((*scope, held_back));
            }
            cooldown.hour = hour;
            cooldown.is_running(now_ms)
        });
        self.ends.retain(|(_, scope)| self.held.contains_key(scope));
        let sum = |held: &[u64; 4]| held.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        summary
            .scopes
            .sort_by_key(|(scope, held)| (std::cmp::Reverse(sum(held)), *scope));
        (summary.held_back() > 0).then_some(summary)
    }

    /// Inserts a cooldown of alerts.json. If its hour has ended meanwhile, the next turn reports
    /// it.
    pub(crate) fn put(&mut self, scope: Scope, cooldown: Cooldown) {
        if cooldown.held_back != [0; 4] {
            self.hour = self.hour.min(hour_of(cooldown.hour.0));
        }
        self.insert(scope, cooldown);
    }

    /// Removes the cooldown of a scope.
    pub(crate) fn remove(&mut self, scope: Scope) {
        if let Some(cooldown) = self.held.remove(&scope) {
            self.ends.remove(&(cooldown.ends, scope));
        }
    }

    /// Every cooldown, by its end.
    pub(crate) fn rows(&self) -> Vec<(Scope, Cooldown)> {
        self.ends
            .iter()
            .filter_map(|(_, scope)| Some((*scope, *self.held.get(scope)?)))
            .collect()
    }

    fn insert(&mut self, scope: Scope, cooldown: Cooldown) {
        self.remove(scope);
        while self.held.len() >= MAX_COOLDOWNS
            && let Some((_, soonest)) = self.ends.pop_first()
        {
            if let Some(dropped) = self.held.remove(&soonest) {
                let sum = dropped
                    .held_back
                    .iter()
                    .fold(0u64, |sum, n| sum.saturating_add(*n));
                self.beyond = self.beyond.saturating_add(sum);
            }
        }
        self.ends.insert((cooldown.ends, scope));
        self.held.insert(scope, cooldown);
    }
}

fn hour_of(at_ms: u64) -> Time {
    Time(at_ms - at_ms % HOUR_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::NOW;

    const MINUTE: u64 = 60_000;
    const SCOPE: Scope = Scope::Asn(64_496);
    const OTHER: Scope = Scope::Total;
    const REQUESTS: Measure = Measure::RequestsPerMinute;

    fn cooldowns(minutes: u64) -> Cooldowns {
        Cooldowns::new(Duration::from_secs(60 * minutes), NOW)
    }

    /// ALERT-2, table 3.2, first row: a count goes over its threshold: an alert is raised and a
    /// cooldown starts, for that scope alone.
    #[test]
    fn the_first_time_over_is_an_alert() {
        let mut cooldowns = cooldowns(60);
        let ends = Some(Time(NOW + HOUR_MS));
        assert_eq!(cooldowns.over(SCOPE, REQUESTS, NOW), ends);
        assert_eq!(cooldowns.over(OTHER, REQUESTS, NOW), ends);
        assert_eq!(cooldowns.rows().len(), 2);
    }

    /// ALERT-2, table 3.2, second row: during the cooldown every alert of the scope is held back,
    /// and the hour's summary lists the repeats, most first.
    #[test]
    fn repeats_are_held_back_and_summed_up() {
        let mut cooldowns = cooldowns(60);
        cooldowns.over(OTHER, REQUESTS, NOW);
        cooldowns.over(OTHER, REQUESTS, NOW + 1);
        cooldowns.over(SCOPE, REQUESTS, NOW);
        for minute in 1..=3 {
            let at = NOW + minute * MINUTE;
            assert_eq!(cooldowns.over(SCOPE, REQUESTS, at), None);
            assert_eq!(cooldowns.over(SCOPE, Measure::BytesPerHour, at), None);
        }
        assert_eq!(cooldowns.turn(NOW + HOUR_MS - 1), None);
        let summary = cooldowns.turn(NOW + HOUR_MS).unwrap();
        assert_eq!(summary.hour, Time(NOW));
        assert_eq!(summary.held_back(), 7);
        assert_eq!(
            summary.scopes,
            [(SCOPE, [3, 0, 0, 3]), (OTHER, [1, 0, 0, 0])]
        );
        assert_eq!(cooldowns.turn(NOW + HOUR_MS), None, "once");
    }

    /// ALERT-2, table 3.2, third row: at the end of the hour an ended cooldown is dropped with the
    /// alerts it held back; a running one continues, and the next hour's summary has only its new
    /// repeats.
    #[test]
    fn the_end_of_the_hour_drops_what_has_run_out() {
        let mut cooldowns = cooldowns(60);
        cooldowns.over(SCOPE, REQUESTS, NOW);
        cooldowns.over(OTHER, REQUESTS, NOW + 30 * MINUTE);
        cooldowns.over(OTHER, REQUESTS, NOW + 31 * MINUTE);
        assert_eq!(cooldowns.rows().len(), 2);
        let summary = cooldowns.turn(NOW + HOUR_MS).unwrap();
        assert_eq!(summary.scopes, [(OTHER, [1, 0, 0, 0])]);
        let left: Vec<Scope> = cooldowns
            .rows()
            .into_iter()
            .map(|(scope, _)| scope)
            .collect();
        assert_eq!(left, [OTHER]);
        assert_eq!(cooldowns.over(OTHER, REQUESTS, NOW + 89 * MINUTE), None);
        let summary = cooldowns.turn(NOW + 2 * HOUR_MS).unwrap();
        assert_eq!(summary.hour, Time(NOW + HOUR_MS));
        assert_eq!(summary.scopes, [(OTHER, [1, 0, 0, 0])]);
        assert!(cooldowns.rows().is_empty());
        assert_eq!(cooldowns.turn(NOW + 3 * HOUR_MS), None, "a quiet hour");
    }

    /// ALERT-2: an ended cooldown holds nothing back, even within the same hour; alerts that it
    /// held back before are still in the summary.
    #[test]
    fn over_again_after_the_cooldown_is_a_new_alert() {
        let mut cooldowns = cooldowns(5);
        assert!(cooldowns.over(SCOPE, REQUESTS, NOW).is_some());
        assert_eq!(cooldowns.over(SCOPE, REQUESTS, NOW + 5 * MINUTE - 1), None);
        assert_eq!(
            cooldowns.over(SCOPE, REQUESTS, NOW + 5 * MINUTE),
            Some(Time(NOW + 10 * MINUTE))
        );
        assert_eq!(cooldowns.over(SCOPE, REQUESTS, NOW + 6 * MINUTE), None);
        let summary = cooldowns.turn(NOW + HOUR_MS).unwrap();
        assert_eq!(summary.scopes, [(SCOPE, [2, 0, 0, 0])]);
    }

    /// ALERT-2: the rows of the table hold across a restart; an hour that ended in between is
    /// summed up at the next turn.
    #[test]
    fn a_restart_keeps_the_cooldowns() {
        let mut before = cooldowns(60);
        before.over(SCOPE, REQUESTS, NOW);
        before.over(OTHER, REQUESTS, NOW + 30 * MINUTE);
        before.over(OTHER, REQUESTS, NOW + 31 * MINUTE);
        let restart = |at: u64| {
            let mut after = Cooldowns::new(Duration::from_secs(3600), at);
            for (scope, cooldown) in before.rows() {
                after.put(scope, cooldown);
            }
            after
        };
        let mut same_hour = restart(NOW + 40 * MINUTE);
        assert_eq!(same_hour.over(OTHER, REQUESTS, NOW + 40 * MINUTE), None);
        let summary = same_hour.turn(NOW + HOUR_MS).unwrap();
        assert_eq!(summary.scopes, [(OTHER, [2, 0, 0, 0])]);

        let mut next_hour = restart(NOW + 70 * MINUTE);
        let summary = next_hour.turn(NOW + 70 * MINUTE).unwrap();
        assert_eq!((summary.hour, summary.held_back()), (Time(NOW), 1));
        assert_eq!(next_hour.rows().len(), 1);
        assert_eq!(next_hour.over(OTHER, REQUESTS, NOW + 71 * MINUTE), None);
        assert!(next_hour.over(SCOPE, REQUESTS, NOW + 71 * MINUTE).is_some());
    }

    /// LIMIT-3: a clock set back does not make a cooldown longer.
    #[test]
    fn a_clock_set_back_ends_a_cooldown() {
        let mut cooldowns = cooldowns(60);
        cooldowns.over(SCOPE, REQUESTS, NOW);
        assert_eq!(cooldowns.over(SCOPE, REQUESTS, NOW - 1000), None);
        assert!(cooldowns.over(SCOPE, REQUESTS, NOW - 1001).is_some());
    }

    /// ALERT-2: the number of cooldowns is bounded; alerts that a dropped one held back are still
    /// in the sum.
    #[test]
    fn cooldowns_are_bounded() {
        let mut cooldowns = cooldowns(60);
        for number in 0..30_000 {
            let at = NOW + u64::from(number);
            cooldowns.over(Scope::Asn(number), REQUESTS, at);
            cooldowns.over(Scope::Asn(number), REQUESTS, at);
        }
        assert_eq!(cooldowns.rows().len(), MAX_COOLDOWNS);
        assert_eq!(cooldowns.rows()[0].0, Scope::Asn(10_000));
        let summary = cooldowns.turn(NOW + HOUR_MS).unwrap();
        assert_eq!((summary.held_back(), summary.beyond), (30_000, 10_000));
    }
}
