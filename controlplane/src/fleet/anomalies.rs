//! Anomalies of the whole fleet (FLEET-19).

use weir_shared::clock::Now;
use weir_shared::units::Time;

use super::claims::{MOST_WAITING, SAID_NS, Settled, TELLING_MS, text};
use super::counting::MOST_OFF_MS;
use super::part::Fleet;
use super::words::Order;
use crate::anomaly::shared::{Elsewhere, Sums};
use crate::anomaly::{Over, Scope};

impl Fleet {
    /// Whether anomalies are counted together now. As with all counts, a clock that is far off
    /// prevents it (FLEET-22).
    fn shares_totals(&self, now: Now) -> bool {
        let is_off = self.clock_ms.unsigned_abs() > MOST_OFF_MS;
        self.ready.sharing.share.anomalies && self.is_linked(now) && !is_off
    }

    /// Has one instance raise the alert of a count over a threshold; this one, if the engine cannot
    /// be asked.
    pub(crate) fn claim(&mut self, over: Over, now: Now) {
        let is_asked = !self.rests && self.shares_totals(now);
        if is_asked && self.claims.waiting.len() < MOST_WAITING {
            self.claims.waiting.push_back(over);
        } else {
            self.claims.settled.push(Settled::Here(over));
        }
    }

    /// Asks the engine about the next alert.
    pub(super) fn claim_next(&mut self, now: Now) {
        if !self.is_linked(now) {
            return;
        }
        // The loop has raised the alerts that were settled before this turn.
        if self.claims.settled.is_empty()
            && let Some((name, ends)) = self.claims.untold.pop_front()
        {
            let length_ms = ends.0.saturating_sub(now.wall_ms).max(1);
            self.order(Order::Told {
                name,
                until_ms: self.fleet_ms(now).saturating_add(length_ms),
                length_ms,
            });
        }
        if self.claims.asked.is_some() {
            return;
        }
        let Some(over) = self.claims.waiting.pop_front() else {
            return;
        };
        let length_ms = over.cooldown_ends.0.saturating_sub(now.wall_ms);
        let length_ms = length_ms.clamp(1, TELLING_MS);
        self.order(Order::Claim {
            name: self.claim_name(&over),
            until_ms: self.fleet_ms(now).saturating_add(length_ms),
            length_ms,
        });
        self.claims.asked = Some(over);
    }

    /// The name of an alert in the engine. Instances in observe mode have counts and alerts of
    /// their own (FLEET-20).
    fn claim_name(&self, over: &Over) -> String {
        let mode = self.settings.get("WAF_MODE").map_or("", String::as_str);
        format!("anomaly\n{mode}\n{}", text(over.scope))
    }

    /// Takes the engine's answer: until when another instance has claimed the alert, if one has.
    pub(super) fn claimed(&mut self, until_ms: Option<u64>, now: Now) {
        let Some(over) = self.claims.asked.take() else {
            return;
        };
        let now_ms = self.fleet_ms(now);
        let left_ms = until_ms.and_then(|until_ms| until_ms.checked_sub(now_ms));
        match left_ms {
            Some(left_ms) if left_ms > TELLING_MS => {
                let ends = Time(now.wall_ms.saturating_add(left_ms)).min(over.cooldown_ends);
                let elsewhere = Settled::Elsewhere(over.scope, ends);
                self.claims.settled.push(elsewhere);
            }
            // The other instance has not raised the alert yet: the engine is asked again later.
            Some(left_ms) if left_ms > 0 => self.claims.waiting.push_back(over),
            _ => {
                let told = (self.claim_name(&over), over.cooldown_ends);
                self.claims.untold.push_back(told);
                self.claims.settled.push(Settled::Here(over));
            }
        }
    }

    /// The alerts that were settled since the last call.
    pub(crate) fn settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.claims.settled)
    }

    /// The counts of other instances, if beats of them came since the last call.
    pub(crate) fn learned(&mut self, now: Now) -> Option<Elsewhere> {
        let has_heard = std::mem::take(&mut self.claims.has_heard);
        (has_heard && self.shares_totals(now)).then(|| self.elsewhere())
    }

    /// The latest counts of other instances.
    pub(crate) fn elsewhere(&self) -> Elsewhere {
        let mode = self.settings.get("WAF_MODE");
        self.others.totals(mode.map_or("", String::as_str))
    }

    /// Whether the next beat needs the counts of this instance.
    pub(crate) fn wants_totals(&self, now: Now) -> bool {
        self.shares_totals(now) && now.mono_ns.saturating_sub(self.claims.said_ns) >= SAID_NS
    }

    /// Sets the counts for the next beats.
    pub(crate) fn say_totals(&mut self, said: Vec<(Scope, Sums)>, now: Now) {
        self.claims.said = said;
        self.claims.said_ns = now.mono_ns;
    }

    /// These counts in the form of a beat.
    pub(super) fn said_totals(&self) -> Vec<(String, Sums)> {
        let said = self.claims.said.iter();
        said.map(|(scope, sums)| (text(*scope), *sums)).collect()
    }
}
