//! The inbox of faults: what a part cannot read, write or take. Whatever thread it is on, it tells
//! the fault here and goes on; the control loop raises an alert for each.

use std::fmt::Display;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Faults that may wait for the control loop. What finds no place is in the process log alone.
const MAX_WAITING: usize = 64;

/// What a fault is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultOf {
    /// A replacement of a file cannot be used; the old content stays in use.
    File,
    /// A state file cannot be written (STATE-7), or is not as it was left.
    State,
    /// A version of a feed is not taken; the one before stays (FEED-5).
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
    /// Of the file at this path.
    pub(crate) fn file(path: &(impl Display + ?Sized), error: &(impl Display + ?Sized)) -> Self {
        Self::new(FaultOf::File, path, error)
    }

    /// Of the state file of this name.
    pub(crate) fn state(file: &(impl Display + ?Sized), error: &(impl Display + ?Sized)) -> Self {
        Self::new(FaultOf::State, file, error)
    }

    /// Of the feed of this name.
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

/// The inbox, for those who tell and for the one who hears.
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
    /// Tells a fault; waits for nobody.
    pub(crate) fn tell(&self, fault: PartFault) {
        let _ = self.inbox.try_send(fault);
    }

    /// The next that was told.
    pub(crate) fn next(&self) -> Option<PartFault> {
        self.told.try_recv().ok()
    }
}
