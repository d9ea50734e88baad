//! What the loop does for lists.json in each turn (FLEET-18).

use weir_shared::clock::Now;

use super::lists_file::{Step, Telling};
use super::part::Fleet;
use crate::rules::{FileChange, OnChanged, SharedLists};

/// Between two tries where the file is not as it was expected to be, or cannot be written.
const AGAIN_NS: u64 = 1_000_000_000;
/// The name of rules.json among the settings that are compared.
const RULES: &str = "rules.json";

impl Fleet {
    /// The files of the rules were read.
    pub(crate) fn lists_found(&mut self, listed: &SharedLists, rules: u64, now: Now) {
        self.lists.rules = rules;
        self.note_rules();
        let now_ms = self.fleet_ms(now);
        if let Some(filing) = &mut self.lists.filing
            && filing.read(listed, &mut self.core, now_ms)
        {
            self.core.note_change();
            self.kept.hurry(self.change());
        }
    }

    /// rules.json is each instance's own: that it differs is told as of a setting.
    pub(super) fn note_rules(&mut self) {
        let rules = format!("{:016x}", self.lists.rules);
        self.settings.insert(RULES.to_owned(), rules);
    }

    /// What lists.json is to hold otherwise, where it is to be written now, and whom to tell.
    pub(crate) fn file_lists(&mut self, now: Now) -> Option<(Vec<FileChange>, OnChanged)> {
        let now_ms = self.fleet_ms(now);
        self.lists_written(now);
        let change = self.change() + 1;
        let lists = &mut self.lists;
        let filing = lists.filing.as_mut()?;
        match std::mem::replace(&mut lists.step, Step::Idle) {
            Step::Idle if now.mono_ns < lists.next_ns || self.rests => None,
            Step::Idle => {
                let due = filing.due(&self.core, now_ms);
                if !due.is_empty() {
                    lists.step = Step::Noted(change, due);
                    self.core.note_change();
                    self.kept.hurry(change);
                }
                None
            }
            Step::Noted(change, due) if !self.kept.holds(change) => {
                lists.step = Step::Noted(change, due);
                None
            }
            Step::Noted(_, due) => {
                lists.step = Step::UnderWay;
                let mut told = Telling(Some(lists.told.clone()));
                let on_changed: OnChanged = Box::new(move |changed| {
                    let outcome = changed.map(|changed| changed.changed);
                    told.tell(outcome.map_err(|why| why.to_string()));
                });
                Some((due, on_changed))
            }
            Step::UnderWay => {
                lists.step = Step::UnderWay;
                None
            }
        }
    }

    fn lists_written(&mut self, now: Now) {
        let lists = &mut self.lists;
        let (Ok(outcome), Some(filing)) = (lists.outcomes.try_recv(), &mut lists.filing) else {
            return;
        };
        filing.has_written();
        lists.step = Step::Idle;
        self.core.note_change();
        match outcome {
            Ok(true) => lists.fault = None,
            Ok(false) => lists.next_ns = now.mono_ns.saturating_add(AGAIN_NS),
            Err(fault) => {
                lists.next_ns = now.mono_ns.saturating_add(AGAIN_NS);
                if lists.fault.as_ref() != Some(&fault) {
                    tracing::error!("what the fleet says of lists is not written: {fault}");
                }
                lists.fault = Some(fault);
            }
        }
    }
}
