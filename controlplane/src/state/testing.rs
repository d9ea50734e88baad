//! The thread of the state files without a disk: the test plays it.

use std::sync::Arc;

use crossbeam_channel::bounded;

use super::StateThread;

impl StateThread {
    /// A thread that is none.
    pub(crate) fn without_disk() -> Self {
        Self {
            stop: Arc::default(),
            wake: bounded(1).0,
            holds: bounded(1).0,
            held: None,
            thread: None,
        }
    }
}
