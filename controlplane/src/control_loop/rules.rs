//! New rules in the control loop (RULE).

use weir_shared::clock::Now;

use super::Control;

impl Control {
    /// Publishes rules that were loaded since the last turn (RULE).
    pub(super) fn take_rules(&mut self, now: Now) {
        while let Some(found) = self.rules.next() {
            self.tell_fleet_of_lists(&found.lists, found.digest, now);
            (self.spared).set_crawler_ranges(found.rules.crawler_ranges());
            self.bans.publish_rules(found.rules);
            if let Some(told) = found.told {
                told();
            }
        }
    }
}
