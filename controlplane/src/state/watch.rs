//! Seeing that somebody saved a state file (STATE-3): the thread is woken by what happens in the
//! directory, because editors save by rename, and a file must lie still before it is judged. Where
//! no events come the slow poll finds the edit.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::stat::Stat;
use crate::watching::{Watched, settling};

pub(super) use crate::watching::POLL;

/// How long a state file has been lying still.
pub(super) type Stillness = settling::Stillness<Option<Stat>>;

/// The time between two looks while something is not settled.
pub(super) const TICK: Duration = Duration::from_millis(25);
/// A file that fits is taken in after it has not changed for this long.
pub(super) const SETTLE: Duration = Duration::from_millis(120);
/// A file that does not fit may be half of one that does: it is reported after it has not changed
/// for this long.
pub(super) const SETTLE_BAD: Duration = Duration::from_millis(500);
/// A file that is gone may be about to come back: some editors delete and create.
pub(super) const SETTLE_GONE: Duration = Duration::from_millis(500);
/// A bad file may still be in the hands of a slow writer, who would go on writing to the file set
/// aside.
pub(super) const SETTLE_ASIDE: Duration = Duration::from_secs(1);
/// How long a file that was replaced is kept open: an editor that opened it before may write to it
/// after.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// The directory as it is watched; the files in it are looked at by their own thread.
pub(super) struct Directory {
    /// A file in it.
    file: PathBuf,
    wake: Sender<()>,
}

impl Directory {
    /// Wakes the thread at what happens in the directory.
    pub(super) fn new(directory: &Path, wake: Sender<()>) -> Self {
        Self {
            file: directory.join("bans.json"),
            wake,
        }
    }
}

impl Watched for Directory {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn look(&mut self, _: Instant, _: u64) -> Duration {
        POLL
    }

    fn event(&mut self) {
        // Full means that the thread is to wake already.
        let _ = self.wake.try_send(());
    }
}
