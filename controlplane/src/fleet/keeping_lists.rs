//! lists.json in the control loop (FLEET-18).

use weir_shared::clock::Now;

use super::lists_file::{Step, Telling};
use super::part::Fleet;
use crate::rules::{FileChange, OnChanged, SharedLists};

/// The pause before another try if the file is not as expected, or cannot be written.
const AGAIN_NS: u64 = 1_000_000_000;
/// The name of rules.json among the settings that are compared.
const RULES: &str = "rules.json";

impl Fleet {
    /// Takes the lists, after the files of the rules were read.
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

    /// Each instance has its own rules.json: a difference is reported like that of a setting.
    pub(super) fn note_rules(&mut self) {
        let rules = format!("{:016x}", self.lists.rules);
        self.settings.insert(RULES.to_owned(), rules);
    }

    /// The changes to write to lists.json now, if any, and the callback for the result.
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
