//! Requests of a hand-over to the control loop (RESTART-1, RESTART-4): to write the state files
//! while it runs on, and to give them away.
//!
//! A loop that has given the files away waits: it takes no events and no edits, and its thread
//! touches no file. Until another process has the files, the loop can take them back.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use crate::files::Which;

/// The result of the write of one file; a sentence if it failed.
pub(crate) type Written = Result<(), String>;

/// A write of all state files.
pub struct Saving {
    outcomes: Receiver<Written>,
    /// The number of files without a result.
    missing: usize,
}

impl Saving {
    pub(crate) fn new() -> (Sender<Written>, Self) {
        let missing = Which::ALL.len();
        let (told, outcomes) = bounded(missing);
        (told, Self { outcomes, missing })
    }

    /// The result for all files; none while they are being written.
    pub fn outcome(&mut self) -> Option<Result<(), String>> {
        self.outcome_within(Duration::ZERO)
    }

    /// Waits for this result for at most this time.
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

    /// The lock of the state directory, once everything is written and no file is touched any more,
    /// or why that failed; none until then.
    pub fn outcome(&self) -> Option<Result<OwnedFd, String>> {
        match self.given.try_recv() {
            Ok(given) => Some(given),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(behind())),
        }
    }

    /// Ends the loop without another write, because another process has the files.
    pub fn leave(self) {
        let _ = self.left.try_send(());
    }
}

/// The loop's side of [`Giving`].
pub(crate) struct Give {
    pub(crate) given: Sender<Result<OwnedFd, String>>,
    pub(crate) left: Receiver<()>,
}

fn behind() -> String {
    "the control loop is behind: try again".to_owned()
}
