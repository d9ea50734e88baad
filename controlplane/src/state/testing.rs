//! The thread of the state files without a disk: the test plays it.

use crossbeam_channel::bounded;

use super::StateThread;

impl StateThread {
    /// A thread that is none.
    pub(crate) fn without_disk() -> Self {
        Self {
            wake: bounded(1).0,
            holds: None,
            held: None,
            thread: None,
        }
    }
}
