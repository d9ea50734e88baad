//! Bans of other instances that are held and not in force here: those that cover a trusted proxy,
//! and automatic ones that cover a crawler verified here. A ban that was forced is in force
//! (FLEET-24, ALIVE-5, CRAWL-4).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::netblock::Netblock;

use super::Ledger;
use crate::bans::too_wide::is_forced;

/// The member of answers that marks a ban which is not in force here.
const SPARED: &str = "spared";

impl Ledger {
    /// Sets the trusted proxies.
    pub(crate) fn trust(&mut self, trusted: Vec<Netblock>) {
        if self.trusted != trusted {
            self.trusted = trusted;
            self.rebuild();
        }
    }

    /// Sets the crawlers that were verified within the last day.
    pub(crate) fn spare_crawlers(&mut self, crawlers: BTreeSet<Client>) {
        let others = crawlers.symmetric_difference(&self.crawlers).copied();
        let others: BTreeSet<Client> = others.collect();
        self.crawlers = crawlers;
        let is_concerned = |ban: &&Arc<Ban>| {
            is_made_elsewhere(ban) && others.range(ban.netblock.clients()).next().is_some()
        };
        let concerned = self.bans.values().filter(is_concerned);
        let concerned: BTreeSet<Netblock> = concerned.map(|ban| ban.netblock).collect();
        for netblock in concerned {
            self.index_again(netblock);
        }
    }

    /// Whether the ban is another instance's, and covers a trusted proxy, or is automatic and
    /// covers a verified crawler.
    pub(super) fn spares(&self, ban: &Ban) -> bool {
        let covers = |one: &Netblock| ban.netblock.covers(*one) || one.covers(ban.netblock);
        let has_crawler = || self.crawlers.range(ban.netblock.clients()).next().is_some();
        ban.origin().instance.is_some()
            && !is_forced(ban)
            && (self.trusted.iter().any(covers) || (is_made_elsewhere(ban) && has_crawler()))
    }

    /// The ban as answers show it.
    pub(crate) fn shown(&self, ban: &Arc<Ban>) -> Arc<Ban> {
        if !self.spares(ban) {
            return Arc::clone(ban);
        }
        let mut shown = Ban::clone(ban);
        shown.unknown = shown.unknown.with(SPARED, Value::Bool(true));
        Arc::new(shown)
    }
}

/// Whether this is an automatic ban of another instance.
fn is_made_elsewhere(ban: &Ban) -> bool {
    let origin = ban.origin();
    origin.instance.is_some() && origin.is_automatic()
}

#[cfg(test)]
mod tests {
    use weir_shared::ban_origin::{BanOrigin, Instance};

    use super::super::LedgerSettings;
    use super::*;
    use crate::bans::document::BanKey;
    use crate::testing::settings;

    const NOW: u64 = 1_795_276_800_000;

    fn refuses(ledger: &Ledger, address: &str) -> bool {
        let client = Client::of(address.parse().unwrap());
        ledger.index.active(client, NOW).is_some()
    }

    fn ban(netblock: &str, more: &str) -> Arc<Ban> {
        let text = format!(
            "{{\"netblock\":{netblock:?},\"ban_started\":\"2026-11-22T00:00:00Z\",\"ban_expires\":\"permanent\"{more}}}"
        );
        let mut ban: Ban = serde_json::from_str(&text).unwrap();
        let instance = Some(Instance::named("edge-2").unwrap());
        ban.origin = Some(BanOrigin {
            instance,
            ..ban.origin()
        });
        Arc::new(ban)
    }

    /// FLEET-24: a ban of another instance that covers a proxy trusted here, or lies in a trusted
    /// net, is held and refuses nobody. It refuses once the proxy is not trusted any more, or if it
    /// was forced.
    #[test]
    fn what_others_ban_of_a_trusted_proxy_is_held_and_not_in_force() {
        let mut ledger = Ledger::new(LedgerSettings::from(&settings()), Vec::new(), NOW).unwrap();
        let trusted = |of: &[&str]| of.iter().map(|net| net.parse().unwrap()).collect();
        ledger.trust(trusted(&["203.0.113.9/32", "10.0.0.0/8"]));
        for held in [
            ban("203.0.113.0/24", ""),
            ban("10.1.2.0/24", ""),
            ban("198.51.100.0/24", ""),
            ban("10.9.0.0/16", ",\"force\":true"),
        ] {
            assert!(ledger.take_in(BanKey::of(&held), Some(held), NOW));
        }
        assert_eq!((ledger.len(), ledger.active(NOW)), (4, 2));
        for (address, expected) in [
            ("203.0.113.7", false),
            ("10.1.2.3", false),
            ("198.51.100.7", true),
            ("10.9.1.1", true),
        ] {
            assert_eq!(refuses(&ledger, address), expected, "{address}");
        }
        let all: Vec<Arc<Ban>> = ledger.all().iter().map(|ban| ledger.shown(ban)).collect();
        let spared = all.iter().filter(|ban| ban.unknown.get(SPARED).is_some());
        assert_eq!(spared.count(), 2);
        // The written form has no such member.
        assert!(
            ledger
                .all()
                .iter()
                .all(|ban| ban.unknown.get(SPARED).is_none())
        );
        ledger.trust(trusted(&["10.0.0.0/8"]));
        assert!(refuses(&ledger, "203.0.113.7") && !refuses(&ledger, "10.1.2.3"));
    }

    /// CRAWL-4: an automatic ban of another instance is held, and not in force, while it covers a
    /// crawler that was verified here within the last day, in either order. A ban by hand there, or
    /// any ban of this instance, is in force.
    #[test]
    fn what_others_ban_of_a_verified_crawler_is_held_and_not_in_force() {
        let mut ledger = Ledger::new(LedgerSettings::from(&settings()), Vec::new(), NOW).unwrap();
        let crawlers = |of: &[&str]| of.iter().map(|one| one.parse().unwrap()).collect();
        let automatic = ",\"cause\":\"rate_limit\"";
        let own = |ban: Arc<Ban>| {
            let mut ban = Ban::clone(&ban);
            ban.origin = Some(BanOrigin {
                instance: None,
                ..ban.origin()
            });
            Arc::new(ban)
        };
        let take = |ledger: &mut Ledger, ban: Arc<Ban>| {
            assert!(ledger.take_in(BanKey::of(&ban), Some(ban), NOW));
        };
        take(&mut ledger, ban("203.0.113.0/24", automatic));
        assert!(refuses(&ledger, "203.0.113.7"));
        ledger.spare_crawlers(crawlers(&[
            "203.0.113.7",
            "192.0.2.7",
            "198.51.100.7",
            "10.0.0.7",
        ]));
        take(&mut ledger, ban("192.0.2.0/24", automatic));
        take(&mut ledger, ban("198.51.100.0/24", ",\"cause\":\"admin\""));
        take(&mut ledger, own(ban("10.0.0.0/24", automatic)));
        let refused = |ledger: &Ledger| {
            ["203.0.113.7", "192.0.2.8", "198.51.100.7", "10.0.0.7"]
                .map(|address| refuses(ledger, address))
        };
        assert_eq!(refused(&ledger), [false, false, true, true]);
        ledger.spare_crawlers(crawlers(&["192.0.2.7"]));
        assert_eq!(refused(&ledger), [true, false, true, true]);
        ledger.spare_crawlers(BTreeSet::new());
        assert_eq!(refused(&ledger), [true; 4]);
    }
}
