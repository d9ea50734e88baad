//! Spared clients in the control loop: those that the service never bans by itself.

use weir_shared::clock::Now;

use super::Control;

impl Control {
    /// Ends sparing that has expired, and raises alerts about verified crawlers in traps and jails
    /// (CRAWL-4).
    pub(super) fn turn_spared(&mut self, now: Now) {
        self.spared.end(now.wall_ms);
        let (rules, alerts) = (self.rules.current(), &mut self.detection.alerts);
        self.falls.turn(&rules, alerts, now.wall_ms);
    }
}
