//! What a hand-over asks of the control loop (RESTART-1, RESTART-4): to write the state files while
//! it goes on, and to give them away.
//!
//! The loop that has given them away stands still: it takes no events and no edits, and its thread
//! touches no file. Until it is told that they are another process's, it can take them back.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use crate::files::Which;

/// What became of the write of one file, in a sentence where it failed.
pub(crate) type Written = Result<(), String>;

/// A write of all state files.
pub struct Saving {
    outcomes: Receiver<Written>,
    /// Files of which nothing has been told.
    missing: usize,
}

impl Saving {
    pub(crate) fn new() -> (Sender<Written>, Self) {
        let missing = Which::ALL.len();
        let (told, outcomes) = bounded(missing);
        (told, Self { outcomes, missing })
    }

    /// Whether all of them are on disk; none while they are written.
    pub fn outcome(&mut self) -> Option<Result<(), String>> {
        self.outcome_within(Duration::ZERO)
    }

    /// The same, once it is there or this time is over.
    pub(crate) fn outcome_within(&mut self, wait: Duration) -> Option<Result<(), String>> {
        while self.missing > 0 {
            match self.outcomes.recv_timeout(wait) {
                Ok(Ok(())) => self.missing -= 1,
                Ok(Err(why)) => return Some(Err(why)),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(Err(behind())),
            }
        }
        Some(Ok(()))
    }
}

/// The state files are being given away. If this is dropped, the loop takes them back.
pub struct Giving {
    given: Receiver<Result<OwnedFd, String>>,
    left: Sender<()>,
}

impl Giving {
    pub(crate) fn new() -> (Give, Self) {
        let (told, given) = bounded(1);
        let (left, leaving) = bounded(1);
        let give = Give {
            given: told,
            left: leaving,
        };
        (give, Self { given, left })
    }

    /// The lock of the state directory, once everything is written and the files are touched no
    /// more, or why not; none until then.
    pub fn outcome(&self) -> Option<Result<OwnedFd, String>> {
        match self.given.try_recv() {
            Ok(given) => Some(given),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(behind())),
        }
    }

    /// They are another process's: the loop ends, and writes nothing more.
    pub fn leave(self) {
        let _ = self.left.try_send(());
    }
}

/// [`Giving`], on the side of the loop.
pub(crate) struct Give {
    pub(crate) given: Sender<Result<OwnedFd, String>>,
    pub(crate) left: Receiver<()>,
}

fn behind() -> String {
    "the control loop is behind: try again".to_owned()
}
