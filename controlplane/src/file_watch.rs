//! Files that are read again on a change: databases, the page of a refusal. Their directories are
//! watched, because files are replaced by rename; where no events come, a slow poll finds the
//! change. State files, which the service writes too, have a watch of their own (`state/watch.rs`).

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

/// A change is read once the files have lain still for this long (LOOKUP-5).
const SETTLE: Duration = Duration::from_secs(2);
/// How often the files are looked at where no event tells of a change.
const POLL: Duration = Duration::from_secs(2);
/// How often while a change settles.
const TICK: Duration = Duration::from_millis(200);

/// A watch on a few files.
pub(crate) struct FileWatch {
    paths: Vec<PathBuf>,
    watching: Watching,
    woken: Receiver<()>,
    /// None where the system refused; the poll goes on.
    _watcher: Option<RecommendedWatcher>,
}

impl FileWatch {
    /// Watches the files as they are now. `what` names them in the warning that no events come.
    pub(crate) fn start(paths: &[PathBuf], what: &str) -> Self {
        let (wake, woken) = bounded(1);
        Self {
            paths: paths.to_vec(),
            watching: Watching::new(stamps(paths)),
            woken,
            _watcher: watcher(paths, what, wake),
        }
    }

    /// Waits until the files have changed and lie still.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, at the edge"
    )]
    pub(crate) fn wait_for_change(&mut self) {
        loop {
            wait(&self.woken, self.watching.pause());
            if self.watching.is_due(stamps(&self.paths), Instant::now()) {
                return;
            }
        }
    }
}

fn wait(woken: &Receiver<()>, pause: Duration) {
    if let Err(crossbeam_channel::RecvTimeoutError::Disconnected) = woken.recv_timeout(pause) {
        // The watcher is gone with its thread; the poll goes on.
        std::thread::sleep(pause);
    }
}

/// Watches the directories, because files are replaced by rename.
fn watcher(paths: &[PathBuf], what: &str, wake: Sender<()>) -> Option<RecommendedWatcher> {
    let handler = move |event: notify::Result<notify::Event>| {
        // An error is an overflow: something happened, nobody knows what. Our own reads are no
        // news.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            // Full means that the thread is to wake already.
            let _ = wake.try_send(());
        }
    };
    let directories: HashSet<&Path> = paths
        .iter()
        .map(|path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        })
        .collect();
    let watcher = notify::recommended_watcher(handler).and_then(|mut watcher| {
        for directory in directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    watcher
        .inspect_err(|error| {
            tracing::warn!(
                "changes of {what} are looked for every {} seconds only: {error}",
                POLL.as_secs()
            );
        })
        .ok()
}

/// What tells one state of a file from another; none while there is no file.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ))
    };
    paths.iter().map(stamp).collect()
}

/// When a change is due to be read: pure, but for the instants it is given.
struct Watching {
    /// The state that was read, or tried, last.
    known: Vec<Stamp>,
    /// The latest other state, and since when.
    changed: Option<(Vec<Stamp>, Instant)>,
}

impl Watching {
    fn new(known: Vec<Stamp>) -> Self {
        Self {
            known,
            changed: None,
        }
    }

    fn pause(&self) -> Duration {
        if self.changed.is_some() { TICK } else { POLL }
    }

    /// Whether the files changed and have lain still since for [`SETTLE`]. A state is due once,
    /// good or bad.
    fn is_due(&mut self, now_stamps: Vec<Stamp>, now: Instant) -> bool {
        if now_stamps == self.known {
            self.changed = None;
            return false;
        }
        match &self.changed {
            Some((stamps, since)) if *stamps == now_stamps => {
                let due = now.saturating_duration_since(*since) >= SETTLE;
                if due {
                    self.known = now_stamps;
                    self.changed = None;
                }
                due
            }
            _ => {
                self.changed = Some((now_stamps, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LOOKUP-5: a change is due 2 seconds after the last of it, once, whether it was good or bad;
    /// a change that is taken back is none.
    #[test]
    fn a_change_is_due_after_two_still_seconds() {
        let (one, two, three) = (
            vec![Some((1, 1, 1, 1, 1, 1, 1))],
            vec![Some((1, 1, 2, 1, 1, 1, 1))],
            vec![None],
        );
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut watching = Watching::new(one.clone());
        assert!(!watching.is_due(one.clone(), at(0)));
        assert_eq!(watching.pause(), POLL);
        assert!(!watching.is_due(two.clone(), at(100)));
        assert_eq!(watching.pause(), TICK);
        assert!(!watching.is_due(three.clone(), at(1500)));
        assert!(!watching.is_due(two.clone(), at(2000)));
        assert!(!watching.is_due(two.clone(), at(3999)));
        assert!(watching.is_due(two.clone(), at(4000)));
        assert!(!watching.is_due(two.clone(), at(9000)));
        assert!(!watching.is_due(three.clone(), at(10_000)));
        assert!(!watching.is_due(two, at(11_000)));
        assert!(!watching.is_due(three.clone(), at(12_000)));
        assert!(watching.is_due(three, at(14_000)));
    }
}
