//! What the loop does with the rules that were found (RULE).

use weir_shared::clock::Now;

use super::Control;
use crate::rules::Found;

impl Control {
    /// Publishes what rules.json says now, or tells why an edit of it is not taken (RULE).
    pub(super) fn take_rules(&mut self, now: Now) {
        while let Some(found) = self.rules.next() {
            match found {
                Found::Taken {
                    rules,
                    lists,
                    digest,
                    told,
                    ..
                } => {
                    self.tell_fleet_of_lists(&lists, digest, now);
                    self.spared.set_crawler_ranges(rules.crawler_ranges());
                    self.bans.publish_rules(rules);
                    if let Some(told) = told {
                        told();
                    }
                }
                Found::Fault { file, error } => {
                    self.detection.alerts.file_error(&file, &error, now.wall_ms);
                }
                Found::FeedError { feed, error } => {
                    self.detection.alerts.feed_error(&feed, &error, now.wall_ms);
                }
            }
        }
    }
}
