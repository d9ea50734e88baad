//! lists.json in the service (FLEET-18): the loop gets its content, and has the thread of the rules
//! write it, once fleet.json holds the pending write.

use crossbeam_channel::{Receiver, Select, Sender, bounded};

use super::filing::{Filing, KeptFiling};
use crate::rules::FileChange;

/// The step of a change of the file.
pub(super) enum Step {
    Idle,
    /// It is written once fleet.json holds this change.
    Noted(u64, Vec<FileChange>),
    UnderWay,
}

/// Whether the file was changed, or why it could not be.
pub(super) type Outcome = Result<bool, String>;

/// The file.
pub(super) struct ListsFile {
    /// None if lists are not shared.
    pub(super) filing: Option<Filing>,
    /// A digest of rules.json, of which each instance has its own.
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

    /// Adds the channel of results to the loop's select.
    pub(super) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.outcomes);
    }

    /// The part for fleet.json.
    pub(super) fn kept(&self) -> Option<KeptFiling> {
        self.filing.as_ref().map(Filing::kept)
    }
}

/// Sends one result, even if it is dropped.
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
