//! Bans of other instances of the fleet, and the effect of their counts on this one.

use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::ban_origin::DecidedBy;
use weir_shared::clock::Now;

use super::document::BanKey;
use super::{Bans, too_wide};

impl Bans {
    /// Sets the number of live instances of the fleet, and returns whether their counts are used
    /// (FLEET-27).
    pub(crate) fn heeds_others(&mut self, instances: u64, now: Now) -> bool {
        self.instances = instances;
        self.breaker.heeds(now)
    }

    /// Bans since the start that only the counts of other instances have made.
    pub(crate) fn made_by_others(&self) -> u64 {
        self.breaker.decisive()
    }

    /// Sets how far this instance's clock is ahead of the fleet's time, by which bans are written
    /// (FLEET-22).
    pub(crate) fn set_ahead(&mut self, ahead_ms: i64) {
        if self.ahead_ms != ahead_ms {
            self.ahead_ms = ahead_ms;
            self.publisher.set_ahead(ahead_ms);
        }
    }

    /// The fleet's time, in milliseconds since 1970, by which bans are written.
    pub(crate) fn ms(&self, now: Now) -> u64 {
        now.wall_ms.saturating_add_signed(-self.ahead_ms)
    }

    /// Why a ban from another instance is wider than an edit may be without an alert (FLEET-24).
    pub(crate) fn too_wide_from_elsewhere(
        &self,
        key: BanKey,
        ban: Option<&Ban>,
        now: Now,
    ) -> Option<String> {
        let ban = ban.filter(|ban| ban.is_active(self.ms(now)) && !too_wide::is_forced(ban))?;
        let stood = self.ledger.ban(key);
        if stood.is_some_and(|ban| ban.is_active(self.ms(now))) {
            return None;
        }
        too_wide::width(ban.netblock)
    }

    /// Takes the fleet's ban of this key, or its absence (FLEET-11). False if there is no room for
    /// it. In force with the next [`Bans::publish`].
    pub(crate) fn take_in(&mut self, key: BanKey, ban: Option<Arc<Ban>>, now: Now) -> bool {
        if let Some(ban) = &ban
            && self.ledger.ban(key).is_none()
            && ban.is_active(self.ms(now))
        {
            self.reset_with_others(ban, key);
            if self.made_lines.allow() {
                let wide = match too_wide::is_wider_than_own(ban, self.settings.prefixes) {
                    true => ", wider than this one would make",
                    false => "",
                };
                tracing::warn!(
                    netblock = %ban.netblock, ban_expires = %ban.ban_expires,
                    cause = ban.cause.name(), reason = ban.reason, origin = %ban.origin(),
                    observed = ban.observed, "ban of another instance{wide}"
                );
            }
        }
        let now_ms = self.ms(now);
        self.ledger.take_in(key, ban, now_ms)
    }

    /// Keeps automatic bans of other instances out of force while they cover a verified crawler,
    /// and puts them into force once it is none any more (CRAWL-4). In force with the next
    /// [`Bans::publish`].
    pub(crate) fn spare_crawlers(&mut self) {
        let changes = self.spared.crawler_changes();
        if self.crawler_changes != changes {
            self.crawler_changes = changes;
            let crawlers = self.spared.crawler_rows().into_iter();
            (self.ledger).spare_crawlers(crawlers.map(|(client, _)| client).collect());
        }
    }

    /// Notes that an automatic ban of another instance must reset its client here (FLEET-9), once
    /// it is published. In enforce mode a ban that is observed there resets nothing (FLEET-20).
    fn reset_with_others(&mut self, ban: &Ban, key: BanKey) {
        let is_automatic = ban.origin().by == DecidedBy::Service;
        let counts = self.settings.observe || !ban.observed;
        if let Some(client) = ban.client.filter(|_| is_automatic && counts) {
            self.to_reset.push((client, key));
        }
    }
}
