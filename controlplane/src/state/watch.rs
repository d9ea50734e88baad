//! Seeing that somebody saved a state file (STATE-3): a watch on the directory, because editors
//! save by rename, and the time a file must lie still before it is judged. Where no events come the
//! slow poll finds the edit.

use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use super::stat::Stat;

/// What the warning calls them.
const STATE_FILES: &str = "state files";
/// How often files are looked at without any event.
pub(crate) const POLL: Duration = Duration::from_secs(2);
/// How often while something is not settled.
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

/// The watch on directories.
pub(crate) struct Watch {
    /// None where the system refused; the poll goes on.
    watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Wakes a thread at every event that can mean a save in one of these directories. `what`
    /// names what is looked for in the warning that no events come.
    pub(crate) fn start<'a>(
        directories: impl IntoIterator<Item = &'a Path>,
        what: &str,
        wake: Sender<()>,
    ) -> Self {
        let handler = move |event: notify::Result<notify::Event>| {
            let counts = match event {
                // Our own reads are no news; what a writer closed is.
                Ok(event) => match event.kind {
                    EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
                    EventKind::Access(_) => false,
                    _ => true,
                },
                // An overflow: something happened, nobody knows what.
                Err(_) => true,
            };
            if counts {
                // Full means that the thread is to wake already.
                let _ = wake.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(handler).and_then(|mut watcher| {
            for directory in directories {
                watcher.watch(directory, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        Self {
            watcher: watcher.inspect_err(|error| warn_of_poll(what, error)).ok(),
        }
    }

    /// Watches the directory of the state files.
    pub(super) fn of_state(dir: &Path, wake: Sender<()>) -> Self {
        Self::start([dir], STATE_FILES, wake)
    }

    /// No events at all, as on some network file systems.
    #[cfg(test)]
    pub(super) fn blind() -> Self {
        Self { watcher: None }
    }

    /// Watches a directory that was made anew.
    pub(super) fn again(&mut self, dir: &Path) {
        if let Some(watcher) = &mut self.watcher {
            // The old watch went with the old directory.
            let _ = watcher.unwatch(dir);
            if let Err(error) = watcher.watch(dir, RecursiveMode::NonRecursive) {
                warn_of_poll(STATE_FILES, &error);
            }
        }
    }
}

fn warn_of_poll(what: &str, error: &notify::Error) {
    tracing::warn!(
        "edits of {what} are looked for every {} seconds only: {error}",
        POLL.as_secs()
    );
}

/// How long a file has been lying still.
#[derive(Default)]
pub(super) struct Stillness(Option<(Option<Stat>, Instant)>);

impl Stillness {
    /// Time since the file was first seen as it is now.
    pub(super) fn of(&mut self, stat: Option<Stat>, now: Instant) -> Duration {
        match self.0 {
            Some((held, since)) if held == stat => now.saturating_duration_since(since),
            _ => {
                self.0 = Some((stat, now));
                Duration::ZERO
            }
        }
    }

    /// The file is what is known.
    pub(super) fn settle(&mut self) {
        self.0 = None;
    }
}
