//! Verified crawlers in traps and jails: an alert a day for each (CRAWL-4). Pure: time is an
//! argument, milliseconds since 1970.

use std::collections::HashMap;

use weir_shared::rules::{Crawler, Fallen, RuleSet};

use crate::alert::Alerts;

/// How long further falls of a crawler raise no alert.
const DAY_MS: u64 = 86_400_000;

/// When the last alert about each crawler of rules.json was raised.
#[derive(Default)]
pub(crate) struct Falls(HashMap<String, u64>);

impl Falls {
    /// Raises alerts about new falls. Called in every turn of the control loop: it looks at one
    /// flag of each crawler.
    pub(crate) fn turn(&mut self, rules: &RuleSet, alerts: &mut Alerts, now_ms: u64) {
        for crawler in rules.crawlers() {
            if let Some(fallen) = crawler.counts.take_fallen()
                && self.is_due(crawler, rules, now_ms)
            {
                alerts.crawler(crawler, &fallen, now_ms);
                log(crawler, &fallen);
            }
        }
    }

    fn is_due(&mut self, crawler: &Crawler, rules: &RuleSet, now_ms: u64) -> bool {
        let name = &crawler.rule.name;
        let told = self.0.get(name).copied();
        // If the clock was set back, the alert is raised again.
        let is_told = |at: u64| (at..at.saturating_add(DAY_MS)).contains(&now_ms);
        if told.is_some_and(is_told) {
            return false;
        }
        let is_there = |held: &str| rules.crawlers().any(|one| one.rule.name == held);
        self.0.retain(|held, _| is_there(held));
        self.0.insert(name.clone(), now_ms);
        true
    }
}

fn log(crawler: &Crawler, fallen: &Fallen) {
    tracing::warn!(
        crawler = crawler.rule.name, client = %fallen.client, rule = fallen.rule.name, kind = fallen.rule.kind.name(),
        "a verified crawler is in a trap or a jail: it is not banned"
    );
}
