//! Restarts the instance's part in the fleet while the service runs: with other settings
//! (RELOAD-2), under another name (FLEET-23), or after a panic. It keeps what it knows; its old
//! threads end by themselves.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use weir_shared::ban::Ban;
use weir_shared::clock::Now;

use super::facts::Told;
use super::kept::{Called, Found};
use super::names::{in_fleet, key_in_fleet};
use super::part::Fleet;
use super::ready::Ready;
use super::replica::Effect;
use super::sharing::Sharing;
use super::starting::{AtStart, GoesOn};
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};

/// The longest name of an instance.
const MAX_NAME: usize = 64;

impl Fleet {
    /// Whether it was started with other settings or files than these.
    pub(crate) fn is_other(&self, ready: &Ready) -> bool {
        !self.ready.is_like(ready)
    }

    /// Starts again with `ready`. The instance must rest before.
    ///
    /// # Errors
    /// See [`Fleet::start`].
    pub(crate) fn begin_anew(
        self,
        ready: Ready,
        at_start: &AtStart<'_>,
    ) -> io::Result<(Self, Vec<Effect>)> {
        let called = self.called.clone();
        self.begin_as(called, ready, at_start)
    }

    fn begin_as(
        self,
        called: Called,
        mut ready: Ready,
        at_start: &AtStart<'_>,
    ) -> io::Result<(Self, Vec<Effect>)> {
        if let Some(sharing) = &self.sharing {
            if !self.ready.counts_with(&ready) {
                sharing.counts.heed(false);
                sharing.counts.lost();
            } else if !ready.sharing.share.counts {
                sharing.counts.heed(false);
            }
        }
        let was = self.called.name.clone();
        ready.found = Some(Found {
            called: called.clone(),
            was,
            // With another engine or origin the log is read from its beginning.
            point: None,
            kept: self.core.replica().kept(),
            lists: self.lists.kept(),
            contact_ms: self.core.contact_ms(),
        });
        let goes_on = GoesOn {
            changes: self.change() + 1,
            kept: self.kept,
            waits: self.waits,
            aside: self.aside,
        };
        Self::begin(ready, at_start, goes_on)
    }

    /// Starts again under another name, because another instance has this one's. The instance must
    /// rest before.
    ///
    /// # Errors
    /// See [`Fleet::start`].
    pub(crate) fn begin_renamed(
        self,
        at_start: &AtStart<'_>,
    ) -> io::Result<(Self, Vec<Effect>, Told)> {
        let Called { name, wanted } = self.called.clone();
        let free = (2..).map(|number| {
            let end = format!("-{number}");
            let most = MAX_NAME.saturating_sub(end.len());
            let beginning: String = wanted.chars().take(most).collect();
            beginning + &end
        });
        let mut free = free.filter(|free| *free != name && !self.others.knows(free));
        let another = free.next().unwrap_or_default();
        let detail = format!(
            "another instance of the fleet is called {name}: this one is {another} from now on; give it a name of its own by WAF_FLEET_INSTANCE"
        );
        tracing::error!("{detail}");
        let ready = self.ready.clone();
        let called = Called {
            name: another,
            wanted,
        };
        let (fleet, effects) = self.begin_as(called, ready, at_start)?;
        Ok((
            fleet,
            effects,
            Told {
                what: "name",
                detail,
            },
        ))
    }

    /// Whether another instance has its name.
    pub(crate) fn is_name_taken(&self) -> bool {
        self.namesakes.is_taken() && !self.rests
    }

    /// Leaves the fleet: counts of others are no longer used. Returns the name of the fleet.
    pub(crate) fn end(self) -> String {
        let heed = |sharing: &Sharing| sharing.counts.heed(false);
        self.sharing.iter().for_each(heed);
        self.fleet
    }

    /// After a panic: compares with the ledger again.
    pub(crate) fn recover<'a>(
        &mut self,
        bans: impl Iterator<Item = (&'a BanKey, &'a Arc<Ban>)>,
        now: Now,
    ) -> Vec<Effect> {
        let mut gone: BTreeSet<BanKey> = self.core.replica().bans().map(|(key, _)| *key).collect();
        let mut changes = Vec::new();
        for (key, ban) in bans {
            let in_fleet = in_fleet(self.me, ban);
            let named = key_in_fleet(self.me, *key);
            gone.remove(&named);
            if self.core.replica().held(named) != Some(&in_fleet) {
                changes.push(LedgerChange {
                    key: *key,
                    happened: Happened::Edited,
                    ban: Some(Arc::clone(ban)),
                });
            }
        }
        for key in gone {
            self.core.dropped(key);
        }
        self.follow(&changes, now)
    }
}
