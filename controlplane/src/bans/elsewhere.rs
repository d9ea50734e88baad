//! Bans of other instances of the fleet, and what their counts lead to here.

use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::ban_origin::DecidedBy;
use weir_shared::clock::Now;

use super::document::BanKey;
use super::{Bans, too_wide};

impl Bans {
    /// So many instances of the fleet live. Says whether what they count holds (FLEET-27).
    pub(crate) fn heeds_others(&mut self, instances: u64, now: Now) -> bool {
        self.instances = instances;
        self.breaker.heeds(now)
    }

    /// Bans so far that only the counts of other instances have made.
    pub(crate) fn made_by_others(&self) -> u64 {
        self.breaker.decisive()
    }

    /// How far the clock of this instance is ahead of that of its fleet, by which bans are written
    /// (FLEET-22).
    pub(crate) fn set_ahead(&mut self, ahead_ms: i64) {
        if self.ahead_ms != ahead_ms {
            self.ahead_ms = ahead_ms;
            self.publisher.set_ahead(ahead_ms);
        }
    }

    /// The time by which bans are written.
    pub(crate) fn ms(&self, now: Now) -> u64 {
        now.wall_ms.saturating_add_signed(-self.ahead_ms)
    }

    /// Why a ban that another instance brings into force covers more than an edit may without a
    /// word (FLEET-24).
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

    /// Holds what the fleet has under this key, or nothing (FLEET-11). False where there is no
    /// place for it. In force with the next [`Bans::publish`].
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

    /// Holds what others have banned of verified crawlers back, and nothing more of those that are
    /// none any more (CRAWL-4). In force with the next [`Bans::publish`].
    pub(crate) fn spare_crawlers(&mut self) {
        let changes = self.spared.crawler_changes();
        if self.crawler_changes != changes {
            self.crawler_changes = changes;
            let crawlers = self.spared.crawler_rows().into_iter();
            (self.ledger).spare_crawlers(crawlers.map(|(client, _)| client).collect());
        }
    }

    /// A ban that another instance has made by itself resets its client here (FLEET-9), once it is
    /// published. One that is observed there resets nothing where bans are in force (FLEET-20).
    fn reset_with_others(&mut self, ban: &Ban, key: BanKey) {
        let is_automatic = ban.origin().by == DecidedBy::Service;
        let counts = self.settings.observe || !ban.observed;
        if let Some(client) = ban.client.filter(|_| is_automatic && counts) {
            self.to_reset.push((client, key));
        }
    }
}
