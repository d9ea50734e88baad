//! The steps of a write, at which a test lets the disk fail or the process die.

#[cfg(not(test))]
use std::io;

/// The steps, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Create,
    Write,
    SyncFile,
    CopyBase,
    NameBase,
    Name,
    Swap,
    Look,
    SwapBack,
    Remove,
    SyncDir,
    Append,
    SyncJournal,
    EmptyJournal,
}

/// What a test has happen at a step.
#[cfg(test)]
pub(super) type Faults = std::sync::Arc<testing::Faults>;

/// Outside of tests nothing happens at a step but what the system does.
#[cfg(not(test))]
#[derive(Clone, Default)]
pub(super) struct Faults(());

#[cfg(not(test))]
impl Faults {
    pub(super) fn step(&self, _: Step) -> io::Result<()> {
        Ok(())
    }

    /// Whether the process has died: then it cleans nothing up.
    pub(super) fn crashed(&self) -> bool {
        false
    }
}

#[cfg(test)]
pub(super) mod testing;
