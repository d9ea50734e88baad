//! What every state file needs of its thread, and the thread of every file.

use std::time::{Duration, Instant};

use weir_shared::clock::Clock;

use super::store::Store;
use crate::faults::Faults;

/// What every file needs.
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) faults: Faults,
    /// The service stops: nobody takes edits any more.
    pub(super) stopping: bool,
}

/// The thread's side of a file, whatever is in it.
pub(super) trait AnyFile: Send {
    /// One look and, if there is something to write, one try. Returns how long nothing needs to be
    /// done.
    fn turn(&mut self, common: &Common, now: Instant, unreachable: Option<&str>) -> Duration;
    /// A turn ended by a panic: it counts as a write that failed.
    fn fail_by_bug(&mut self, common: &Common, now: Instant) -> Duration;
    /// Whether somebody waits for the outcome of a write.
    fn is_awaited(&mut self) -> bool;
    /// Whether there is something to write.
    fn has_job(&mut self) -> bool;
    /// The stop waits no longer.
    fn give_up(&mut self);
    /// The directory was made anew: nothing in it was taken out by an administrator, and all of it
    /// has to be written.
    fn rebuild(&mut self);
}
