//! What the loop does about those who are not banned by the service itself.

use weir_shared::clock::Now;

use super::Control;

impl Control {
    /// Ends what is spared no longer, and tells of verified crawlers in traps and jails (CRAWL-4).
    pub(super) fn turn_spared(&mut self, now: Now) {
        self.spared.end(now.wall_ms);
        let (rules, alerts) = (self.rules.current(), &mut self.detection.alerts);
        self.falls.turn(&rules, alerts, now.wall_ms);
    }
}
