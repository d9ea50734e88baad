//! A build without the feature `fleet`: no fleet can exist, and its settings are a fault.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Select;
use weir_shared::ban::Ban;
use weir_shared::clock::{Clock, Now};
use weir_shared::fleet::CountsOf;
use weir_shared::settings::{FleetSettings, Listed};
use weir_shared::units::Time;

use super::facts::{FleetFacts, Told};
use super::replica::Effect;
use crate::admin::bans::Pending;
use crate::anomaly::shared::{Elsewhere, Sums};
use crate::anomaly::{Over, Scope};
use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::LedgerChange;
use crate::rules::{Entries, FileChange, OnChanged, SharedLists};

/// Nothing is known of lists.json.
pub(crate) fn held_lists(_: &Path) -> Entries {
    Entries::new()
}

/// None can be had.
#[derive(Debug)]
pub enum Ready {}

impl Ready {
    /// Nothing, where there is no fleet.
    ///
    /// # Errors
    /// There is one.
    pub fn read(settings: &FleetSettings) -> Result<Option<Self>, String> {
        match settings.engine {
            None => Ok(None),
            Some(_) => Err(
                "WAF_FLEET is set, and this weir was built without the feature fleet: expected a build with it, or WAF_FLEET=off"
                    .to_owned(),
            ),
        }
    }
}

impl Ready {
    /// Nothing.
    pub(crate) fn read_kept(&mut self, _: &Path) {
        match *self {}
    }

    /// Nothing.
    pub(crate) fn fleet(&self) -> &str {
        match *self {}
    }

    /// Nothing.
    pub fn warnings(&self) -> Vec<String> {
        match *self {}
    }
}

/// What the bans were at the start.
pub(crate) struct AtStart<'a> {
    pub(crate) bans: &'a [Arc<Ban>],
    pub(crate) before: &'a [Arc<Ban>],
    pub(crate) edited: &'a [BanKey],
    pub(crate) removed: &'a [BanKey],
    pub(crate) lists: (Arc<SharedLists>, u64),
    pub(crate) counts: Option<&'a CountsOf>,
    pub(crate) version: &'static str,
    pub(crate) clock: &'a Clock,
}

/// What became of an alert.
#[expect(dead_code, reason = "whoever has no fleet settles nothing")]
pub(crate) enum Settled {
    Here(Over),
    Elsewhere(Scope, Time),
}

/// None can be had.
pub(crate) enum Fleet {}

impl Fleet {
    pub(crate) fn start(
        ready: Ready,
        at_start: &AtStart<'_>,
        _: &Path,
    ) -> std::io::Result<(Self, Vec<Effect>)> {
        let _ = (
            at_start.bans,
            at_start.before,
            at_start.edited,
            at_start.removed,
            &at_start.lists,
            &at_start.counts,
            at_start.version,
            at_start.clock,
        );
        match ready {}
    }

    pub(crate) fn is_other(&self, _: &Ready) -> bool {
        match *self {}
    }

    pub(crate) fn begin_anew(
        self,
        _: Ready,
        _: &AtStart<'_>,
    ) -> std::io::Result<(Self, Vec<Effect>)> {
        match self {}
    }

    pub(crate) fn begin_renamed(
        self,
        _: &AtStart<'_>,
    ) -> std::io::Result<(Self, Vec<Effect>, Told)> {
        match self {}
    }

    pub(crate) fn ahead_ms(&self) -> i64 {
        match *self {}
    }

    pub(crate) fn is_name_taken(&self) -> bool {
        match *self {}
    }

    pub(crate) fn end(self) -> String {
        match self {}
    }

    pub(crate) fn take_settings(&mut self, _: &[Listed]) {
        match *self {}
    }

    pub(crate) fn select<'a>(&'a self, _: &mut Select<'a>) {
        match *self {}
    }

    pub(crate) fn wait(&self, _: Duration) -> Duration {
        match *self {}
    }

    pub(crate) fn hear(&mut self, _: Now) -> Vec<Effect> {
        match *self {}
    }

    pub(crate) fn follow(&mut self, _: &[LedgerChange], _: Now) -> Vec<Effect> {
        match *self {}
    }

    pub(crate) fn lift(&mut self, _: Subject, _: Now) -> Vec<Effect> {
        match *self {}
    }

    pub(crate) fn dropped(&mut self, _: BanKey) {
        match *self {}
    }

    pub(crate) fn recover<'a>(
        &mut self,
        _: impl Iterator<Item = (&'a BanKey, &'a Arc<Ban>)>,
        _: Now,
    ) -> Vec<Effect> {
        match *self {}
    }

    pub(crate) fn note_documents(&mut self, _: u64, _: u64, _: Now) {
        match *self {}
    }

    pub(crate) fn await_others(&self, _: &mut Pending) {
        match *self {}
    }

    pub(crate) fn turn(&mut self, _: Now) -> Vec<Told> {
        match *self {}
    }

    pub(crate) fn lists_found(&mut self, _: &SharedLists, _: u64, _: Now) {
        match *self {}
    }

    pub(crate) fn file_lists(&mut self, _: Now) -> Option<(Vec<FileChange>, OnChanged)> {
        match *self {}
    }

    pub(crate) fn instances(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn heed(&mut self, _: bool) -> Option<Told> {
        match *self {}
    }

    pub(crate) fn rest_counting(&self) {
        match *self {}
    }

    pub(crate) fn claim(&mut self, _: Over, _: Now) {
        match *self {}
    }

    pub(crate) fn settled(&mut self) -> Vec<Settled> {
        match *self {}
    }

    pub(crate) fn learned(&mut self, _: Now) -> Option<Elsewhere> {
        match *self {}
    }

    pub(crate) fn elsewhere(&self) -> Elsewhere {
        match *self {}
    }

    pub(crate) fn wants_totals(&self, _: Now) -> bool {
        match *self {}
    }

    pub(crate) fn say_totals(&mut self, _: Vec<(Scope, Sums)>, _: Now) {
        match *self {}
    }

    pub(crate) fn has_more(&self, _: Now) -> bool {
        match *self {}
    }

    pub(crate) fn rest(&mut self, _: Now) {
        match *self {}
    }

    pub(crate) fn is_at_rest(&mut self, _: Now) -> bool {
        match *self {}
    }

    pub(crate) fn work(&mut self, _: Now) {
        match *self {}
    }

    pub(crate) fn told(&self, _: Now) -> serde_json::Value {
        match *self {}
    }

    pub(crate) fn facts(&self, _: Now) -> FleetFacts {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-3: in a build without fleets, a setting that names an engine ends the start with a
    /// sentence that names it; without the setting there is no fault.
    #[test]
    fn the_setting_is_a_fault_in_one_sentence() {
        let mut settings = FleetSettings::default();
        assert!(matches!(Ready::read(&settings), Ok(None)));
        settings.engine = Some("valkey://127.0.0.1:6379".parse().unwrap());
        let fault = Ready::read(&settings).unwrap_err();
        assert_eq!(
            fault,
            "WAF_FLEET is set, and this weir was built without the feature fleet: expected a build with it, or WAF_FLEET=off"
        );
    }
}
