//! Counts of a whole fleet (FLEET-19): which counts this instance tells the others, and what
//! follows from theirs. Pure: the fleet's code exchanges them.

use std::cmp::Reverse;
use std::collections::HashMap;

use ahash::RandomState;
use weir_shared::settings::Thresholds;

use super::{Anomalies, Measure, Over, Scope};

/// How long a scope's counts are still told after its alert: several beats, so that all other
/// instances reach the same sum and begin its cooldown.
const SAID_AFTER_MS: u64 = 10_000;
/// The counts of one scope: the estimates, in the order of [`Measure::ALL`].
pub(crate) type Sums = [u64; 4];
/// The sums of the other instances' counts.
pub(crate) type Elsewhere = HashMap<Scope, Sums, RandomState>;

/// The most scopes that an instance tells in one beat.
pub(crate) const MOST_TOTALS: usize = 64;

impl Anomalies {
    /// The scopes to tell the others, those nearest to a threshold first. If the sum of all
    /// instances is over a threshold, at least one instance has its proportional part of it and
    /// tells so; then the others tell theirs, too. A scope in its cooldown raises no alert
    /// anywhere, and is left out after a while.
    pub(crate) fn totals(
        &mut self,
        instances: u64,
        elsewhere: &Elsewhere,
        now_ms: u64,
    ) -> Vec<(Scope, Sums)> {
        if !self.settings.is_on() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (scope, counter) in self.counters.rows() {
            let Some(thresholds) = self.thresholds(scope) else {
                continue;
            };
            let mut sums = [0; 4];
            for ((measure, window), sum) in
                Measure::ALL.into_iter().zip(counter.windows).zip(&mut sums)
            {
                *sum = window.estimate(measure.span(), now_ms);
            }
            let share = share(&sums, &thresholds);
            let is_near = share.saturating_mul(instances) >= WHOLE;
            let is_asked = sums != [0; 4] && elsewhere.contains_key(&scope);
            if (is_near || is_asked) && !self.cooldowns.has_run_for(scope, SAID_AFTER_MS, now_ms) {
                found.push((Reverse(share), scope, sums));
            }
        }
        found.sort_unstable();
        found.truncate(MOST_TOTALS);
        let said = found.into_iter().map(|(_, scope, sums)| (scope, sums));
        said.collect()
    }

    /// Takes the others' counts, and calls `tell` for each scope whose sum is over a threshold. A
    /// scope that this instance has not counted is left to those that have.
    pub(crate) fn learn(&mut self, elsewhere: &Elsewhere, now_ms: u64, mut tell: impl FnMut(Over)) {
        let mut scopes: Vec<&Scope> = elsewhere.keys().collect();
        scopes.sort_unstable();
        for scope in scopes {
            let (Some(thresholds), Some(others)) = (self.thresholds(*scope), elsewhere.get(scope))
            else {
                continue;
            };
            let Some(counter) = self.counters.get(*scope) else {
                continue;
            };
            for ((measure, window), others) in
                Measure::ALL.into_iter().zip(counter.windows).zip(others)
            {
                let here = window.estimate(measure.span(), now_ms);
                let count = here.saturating_add(*others);
                if let Some(threshold) = measure.threshold(&thresholds)
                    && here > 0
                    && count > threshold
                    && !self.cooldowns.is_running(*scope, now_ms)
                    && let Some(cooldown_ends) = self.cooldowns.over(*scope, measure, now_ms)
                {
                    tell(Over {
                        scope: *scope,
                        watch: self.watch_name(*scope),
                        measure,
                        count,
                        threshold,
                        cooldown_ends,
                    });
                }
            }
        }
    }

    fn thresholds(&self, scope: Scope) -> Option<Thresholds> {
        let of = match scope {
            Scope::Client(_) => self.settings.client,
            Scope::Net(_) => self.settings.net,
            Scope::Asn(_) => self.settings.asn,
            Scope::Total => self.settings.total,
            Scope::Watch(_) => {
                self.watch_name(scope)?;
                self.settings.watch
            }
        };
        of.is_on().then_some(of)
    }

    fn watch_name(&self, scope: Scope) -> Option<String> {
        let Scope::Watch(netblock) = scope else {
            return None;
        };
        let mut watches = self.settings.watch_nets.iter();
        let watch = watches.find(|watch| watch.netblock == netblock)?;
        Some(watch.name.clone())
    }
}

/// A whole threshold, in millionths.
const WHOLE: u64 = 1_000_000;

/// The highest share of a threshold that the sums reach, in millionths, rounded up.
fn share(sums: &Sums, thresholds: &Thresholds) -> u64 {
    let of = |(measure, sum): (Measure, &u64)| {
        let threshold = measure.threshold(thresholds)?.max(1);
        let share = (u128::from(*sum) * u128::from(WHOLE)).div_ceil(u128::from(threshold));
        Some(u64::try_from(share).unwrap_or(u64::MAX))
    };
    let shares = Measure::ALL.into_iter().zip(sums).filter_map(of);
    shares.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use weir_shared::event::Finished;

    use super::*;
    use crate::testing::{NOW, settings};

    fn instances(count: usize, threshold: u64) -> Vec<Anomalies> {
        let mut settings = settings();
        settings.anomalies.cooldown = std::time::Duration::from_secs(3600);
        settings.anomalies.client.requests = [None, Some(threshold)];
        (0..count).map(|_| Anomalies::new(&settings, NOW)).collect()
    }

    fn count(anomalies: &mut Anomalies, address: &str, requests: u64) -> usize {
        let finished = Finished {
            address: address.parse().unwrap(),
            lookup: None,
            bytes: 1,
        };
        let mut told = 0;
        for _ in 0..requests {
            anomalies.count(&finished, NOW, |_| told += 1);
        }
        told
    }

    /// One beat of each: what each has said, as the others have it, and how many then find a sum
    /// over the threshold, with that sum.
    fn beat(all: &mut [Anomalies], said: &mut [Vec<(Scope, Sums)>]) -> Vec<u64> {
        let elsewhere = |said: &[Vec<(Scope, Sums)>], me: usize| {
            let mut sums = Elsewhere::default();
            let others = said.iter().enumerate().filter(|(of, _)| *of != me);
            for (scope, more) in others.flat_map(|(_, said)| said) {
                let held = sums.entry(*scope).or_default();
                held.iter_mut()
                    .zip(more)
                    .for_each(|(sum, more)| *sum += more);
            }
            sums
        };
        let mut over = Vec::new();
        let instances = all.len() as u64;
        for (me, one) in all.iter_mut().enumerate() {
            let known = elsewhere(said, me);
            one.learn(&known, NOW, |passed| over.push(passed.count));
            said[me] = one.totals(instances, &known, NOW);
        }
        over
    }

    /// FLEET-19: a sum above the threshold is found within three beats, and is exact, in any
    /// distribution over the instances: one instance sends its part of it, and then the others send
    /// theirs. A sum equal to the threshold is not above it, and no instance sends a scope that is
    /// far from its threshold.
    #[test]
    fn a_sum_over_the_threshold_is_found() {
        for (spread, is_over) in [
            ([34, 33, 34], true),
            ([99, 1, 1], true),
            ([50, 26, 25], true),
            ([34, 33, 33], false),
            ([100, 0, 0], false),
            ([30, 30, 30], false),
        ] {
            let mut all = instances(3, 100);
            let mut said = vec![Vec::new(); 3];
            for (one, requests) in all.iter_mut().zip(spread) {
                assert_eq!(count(one, "203.0.113.7", requests), 0);
                assert_eq!(count(one, "198.51.100.7", 3), 0);
            }
            let mut found = Vec::new();
            for _ in 0..4 {
                found.extend(beat(&mut all, &mut said));
            }
            assert_eq!(!found.is_empty(), is_over, "{spread:?}");
            assert!(found.iter().all(|sum| *sum == 101), "{spread:?} {found:?}");
            let near = said.iter().flatten();
            let client = Scope::Client("203.0.113.7".parse().unwrap());
            assert!(near.into_iter().all(|(scope, _)| *scope == client));
        }
    }

    /// FLEET-19: the number of sent scopes is bounded, those nearest to a threshold first; a scope
    /// in its cooldown is not sent.
    #[test]
    fn what_is_said_is_bounded() {
        let mut all = instances(1, 1000);
        for client in 0..200u64 {
            count(&mut all[0], &format!("203.0.113.{client}"), 500 + client);
        }
        let said = all[0].totals(2, &Elsewhere::default(), NOW);
        assert_eq!(said.len(), MOST_TOTALS);
        assert_eq!(said[0].1[1], 699);
        let first = said[0].0;
        let others = Elsewhere::from_iter([(first, [0, 302, 0, 0])]);
        let mut over = Vec::new();
        for _ in 0..3 {
            all[0].learn(&others, NOW, |passed| over.push(passed.count));
        }
        assert_eq!(over, [1001]);
        let mut is_said = |after_ms| {
            let said = all[0].totals(2, &Elsewhere::default(), NOW + after_ms);
            said.iter().any(|(scope, _)| *scope == first)
        };
        assert!(is_said(SAID_AFTER_MS) && !is_said(SAID_AFTER_MS + 1));
    }
}
