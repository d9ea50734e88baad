//! An instance that begins anew while it runs: with other settings (RELOAD-2), or under another name
//! (FLEET-23). What it knows goes with it; its threads end by themselves.

use std::io;

use super::facts::Told;
use super::kept::{Called, Found};
use super::part::Fleet;
use super::ready::Ready;
use super::replica::Effect;
use super::sharing::Sharing;
use super::starting::{AtStart, GoesOn};

/// The longest name of an instance.
const MAX_NAME: usize = 64;

impl Fleet {
    /// Whether it was begun with something else than this.
    pub(crate) fn is_other(&self, ready: &Ready) -> bool {
        !self.ready.is_like(ready)
    }

    /// Another one in its place. It was sent to rest before.
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
            // Another engine, or another origin: the log is read from its beginning.
            point: None,
            kept: self.core.replica().kept(),
        });
        let goes_on = GoesOn {
            changes: self.change() + 1,
            kept: self.kept,
            waits: self.waits,
        };
        Self::begin(ready, at_start, goes_on)
    }

    /// It goes and comes back under another name, where another instance has its own. It was sent
    /// to rest before.
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

    /// Whether it is to be begun anew under another name.
    pub(crate) fn is_name_taken(&self) -> bool {
        self.namesakes.is_taken() && !self.rests
    }

    /// It is in no fleet any more: what others have counted does not hold.
    pub(crate) fn end(self) {
        let heed = |sharing: &Sharing| sharing.counts.heed(false);
        self.sharing.iter().for_each(heed);
    }
}
