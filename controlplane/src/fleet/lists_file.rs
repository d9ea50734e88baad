//! lists.json in the service (FLEET-18): the loop hears what it holds, and has it written by the
//! thread of the rules, once fleet.json says what is written.

use crossbeam_channel::{Receiver, Select, Sender, bounded};

use super::filing::{Filing, KeptFiling};
use crate::rules::FileChange;

/// What becomes of a change of the file.
pub(super) enum Step {
    Idle,
    /// It is to be written once fleet.json holds this change.
    Noted(u64, Vec<FileChange>),
    UnderWay,
}

/// Whether the file was changed; why it could not be.
pub(super) type Outcome = Result<bool, String>;

/// The file.
pub(super) struct ListsFile {
    /// None where lists are not shared.
    pub(super) filing: Option<Filing>,
    /// A number for rules.json, which is each instance's own.
    pub(super) rules: u64,
    pub(super) step: Step,
    pub(super) told: Sender<Outcome>,
    pub(super) outcomes: Receiver<Outcome>,
    pub(super) next_ns: u64,
    pub(super) fault: Option<String>,
}

impl ListsFile {
    pub(super) fn new(filing: Option<Filing>, rules: u64) -> Self {
        let (told, outcomes) = bounded(1);
        Self {
            filing,
            rules,
            step: Step::Idle,
            told,
            outcomes,
            next_ns: 0,
            fault: None,
        }
    }

    /// What the loop wakes for.
    pub(super) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.outcomes);
    }

    /// What fleet.json is to hold of it.
    pub(super) fn kept(&self) -> Option<KeptFiling> {
        self.filing.as_ref().map(Filing::kept)
    }
}

/// Tells once, also where it is dropped.
pub(super) struct Telling(pub(super) Option<Sender<Outcome>>);

impl Telling {
    pub(super) fn tell(&mut self, outcome: Outcome) {
        if let Some(told) = self.0.take() {
            let _ = told.try_send(outcome);
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.tell(Ok(false));
    }
}
