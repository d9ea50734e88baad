//! The inbox of faults: files and versions that a part cannot read, write or apply. Any thread
//! reports a fault here and goes on; the control loop raises an alert for each.

use std::fmt::Display;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Faults that may wait for the control loop. Further ones are in the process log only.
const MAX_WAITING: usize = 64;

/// What a fault is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultOf {
    /// A replacement of a file cannot be used; the old content stays in use.
    File,
    /// A state file cannot be written (STATE-7), or has changed unexpectedly.
    State,
    /// A version of a feed is refused; the previous one stays in force (FEED-5).
    Feed,
}

/// A fault of a part, for its alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PartFault {
    pub(crate) about: FaultOf,
    /// The path of a file, or the name of a state file or a feed.
    pub(crate) of: String,
    /// The whole sentence.
    pub(crate) error: String,
}

impl PartFault {
    /// The fault of the file at this path.
    pub(crate) fn file(path: &(impl Display + ?Sized), error: &(impl Display + ?Sized)) -> Self {
        Self::new(FaultOf::File, path, error)
    }

    /// The fault of the state file of this name.
    pub(crate) fn state(file: &(impl Display + ?Sized), error: &(impl Display + ?Sized)) -> Self {
        Self::new(FaultOf::State, file, error)
    }

    /// The fault of the feed of this name.
    pub(crate) fn feed(name: &(impl Display + ?Sized), error: &(impl Display + ?Sized)) -> Self {
        Self::new(FaultOf::Feed, name, error)
    }

    fn new(about: FaultOf, of: &(impl Display + ?Sized), error: &(impl Display + ?Sized)) -> Self {
        Self {
            about,
            of: of.to_string(),
            error: error.to_string(),
        }
    }
}

/// The inbox: any thread reports, the control loop reads.
#[derive(Clone, Debug)]
pub struct Faults {
    inbox: Sender<PartFault>,
    told: Receiver<PartFault>,
}

impl Default for Faults {
    fn default() -> Self {
        let (inbox, told) = bounded(MAX_WAITING);
        Self { inbox, told }
    }
}

impl Faults {
    /// Reports a fault. Never blocks.
    pub(crate) fn tell(&self, fault: PartFault) {
        let _ = self.inbox.try_send(fault);
    }

    /// The next fault.
    pub(crate) fn next(&self) -> Option<PartFault> {
        self.told.try_recv().ok()
    }
}
