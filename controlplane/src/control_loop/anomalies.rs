//! Anomalies in the control loop: in a fleet they are counted together, and one instance raises the
//! alert (FLEET-19).

use weir_shared::clock::Now;

use super::Control;
use crate::fleet::Settled;

impl Control {
    /// Raises an alert for each anomaly, or lets the fleet decide which instance raises it.
    pub(super) fn tell_anomalies(&mut self, now: Now) {
        let Some(fleet) = &mut self.fleet else {
            for over in self.detection.take_over() {
                self.detection.tell(&over, now);
            }
            return;
        };
        if let Some(elsewhere) = fleet.learned(now) {
            self.detection.learn(&elsewhere, now);
        }
        for over in self.detection.take_over() {
            fleet.claim(over, now);
        }
        for settled in fleet.settled() {
            match settled {
                Settled::Here(over) => self.detection.tell(&over, now),
                Settled::Elsewhere(scope, ends) => self.detection.told_elsewhere(scope, ends),
            }
        }
        if fleet.wants_totals(now) {
            let (instances, elsewhere) = (fleet.instances(), fleet.elsewhere());
            let said = self.detection.totals(instances, &elsewhere, now);
            fleet.say_totals(said, now);
        }
    }
}
