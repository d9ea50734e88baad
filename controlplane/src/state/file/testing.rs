//! A state file without a disk: the test plays the thread.

use std::cell::Cell;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded, unbounded};

use super::{Edit, Job, Shared, Stand, StateFile};
use crate::state::diff::Change;
use crate::state::document::Document;

/// The thread's side.
pub(crate) struct TestFile<D: Document> {
    edits: Sender<Edit<D>>,
    shared: Arc<Shared<D>>,
    revision: Cell<u64>,
}

impl<D: Document> TestFile<D> {
    pub(crate) fn pair() -> (Self, StateFile<D>) {
        let (edits_out, edits) = unbounded();
        let shared = Arc::<Shared<D>>::default();
        let file = StateFile {
            edits,
            shared: Arc::clone(&shared),
            wake: bounded(1).0,
        };
        let thread = Self {
            edits: edits_out,
            shared,
            revision: Cell::new(0),
        };
        (thread, file)
    }

    /// The document that waits, taken as the thread takes it.
    pub(crate) fn take(&self) -> Option<Job<D>> {
        self.shared.queued().take()
    }

    /// A document with this stand is on disk.
    pub(crate) fn wrote(&self, stand: Stand) {
        *self.shared.durable() = stand;
    }

    /// An edit was found.
    pub(crate) fn edit(&self, changes: Vec<Change<D>>) -> u64 {
        let revision = self.revision.get() + 1;
        self.revision.set(revision);
        drop(self.edits.send(Edit { revision, changes }));
        revision
    }
}
