//! Read-only questions to the ledger.

use std::ops::Bound;
use std::sync::Arc;

use weir_shared::ban::{Ban, Cause};
use weir_shared::client::Client;
use weir_shared::event::LimitExceeded;
use weir_shared::netblock::Netblock;

use super::broken::broken_at;
use super::{Ledger, oldest_first};
use crate::bans::document::BanKey;

impl Ledger {
    /// Whether a netblock was banned already when a client of it exceeded a limit.
    pub(crate) fn is_banned(
        &self,
        exceeded: &LimitExceeded,
        netblock: Netblock,
        now_ms: u64,
    ) -> bool {
        let span = self.index.span(netblock);
        span.is_some_and(|span| span.end_ms > broken_at(exceeded, now_ms))
    }

    /// Every ban, in no reliable order: the thread that writes them sorts them.
    pub(crate) fn all(&self) -> Vec<Arc<Ban>> {
        #[cfg(test)]
        self.gathered.set(self.gathered.get() + 1);
        self.bans.values().cloned().collect()
    }

    /// Bans made since the start, by position in [`Cause::ALL`].
    pub(crate) fn made(&self) -> [u64; Cause::ALL.len()] {
        self.made
    }

    /// Bans dropped for `max_bans` since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of held bans.
    pub(crate) fn len(&self) -> usize {
        self.bans.len()
    }

    /// Every ban whose netblock covers the client, whether it still refuses or not, oldest first.
    pub(crate) fn covering(&self, client: Client) -> Vec<Arc<Ban>> {
        let covers = |ban: &&Arc<Ban>| ban.netblock.covers_client(client);
        let covering = self.bans.values().filter(covers);
        oldest_first(covering.map(|ban| self.shown(ban)).collect())
    }

    /// Every ban after this key, by key, for work in pieces.
    pub(crate) fn after(&self, key: Option<BanKey>) -> impl Iterator<Item = (&BanKey, &Arc<Ban>)> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.bans.range((from, Bound::Unbounded))
    }

    /// The ban of this key.
    pub(crate) fn ban(&self, key: BanKey) -> Option<&Arc<Ban>> {
        self.bans.get(&key)
    }

    /// How many bans refuse at this moment, or would in observe mode.
    pub(crate) fn active(&self, now_ms: u64) -> usize {
        self.bans
            .values()
            .filter(|ban| ban.is_active(now_ms) && self.matters(ban))
            .count()
    }
}
