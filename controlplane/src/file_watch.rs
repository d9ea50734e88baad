//! Files that are read again on a change: databases, the page of a refusal. Their directories are
//! watched, because files are replaced by rename; where no events come, a slow poll finds the
//! change. The state files, which the service writes too, are looked at with more care (`state/`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::state::stat::Stat;
use crate::state::watch::{POLL, Watch};

/// A change is read once the files have lain still for this long (LOOKUP-5).
const SETTLE: Duration = Duration::from_secs(2);
/// How often while a change settles.
const TICK: Duration = Duration::from_millis(200);

/// A watch on a few files.
pub(crate) struct FileWatch {
    paths: Vec<PathBuf>,
    watching: Watching,
    wake: Sender<()>,
    woken: Receiver<()>,
    /// Events come for as long as it is held.
    _watch: Watch,
}

impl FileWatch {
    /// Watches the files as they are now. `what` names them in the warning that no events come.
    pub(crate) fn start(paths: &[PathBuf], what: &str) -> Self {
        let (wake, woken) = bounded(1);
        Self {
            paths: paths.to_vec(),
            watching: Watching::new(stamps(paths)),
            wake: wake.clone(),
            woken,
            _watch: Watch::start(directories(paths), what, wake),
        }
    }

    /// Has it look at once.
    pub(crate) fn waker(&self) -> Sender<()> {
        self.wake.clone()
    }

    /// Waits until the files have changed and lie still.
    pub(crate) fn wait_for_change(&mut self) {
        self.wait_while(|| true);
    }

    /// The same for as long as they are wanted; false where they no longer are, which is found out
    /// at the next look.
    pub(crate) fn wait_while(&mut self, are_wanted: impl Fn() -> bool) -> bool {
        while are_wanted() {
            wait(&self.woken, self.watching.pause());
            if self.has_changed() {
                return true;
            }
        }
        false
    }

    /// Whether the files have changed since this was last true, and lie still.
    #[expect(
        clippy::disallowed_methods,
        reason = "asked by threads of their own, at the edge"
    )]
    pub(crate) fn has_changed(&mut self) -> bool {
        self.watching.is_due(stamps(&self.paths), Instant::now())
    }
}

fn wait(woken: &Receiver<()>, pause: Duration) {
    if let Err(crossbeam_channel::RecvTimeoutError::Disconnected) = woken.recv_timeout(pause) {
        // The watcher is gone with its thread; the poll goes on.
        std::thread::sleep(pause);
    }
}

/// The directories of the files, each once.
fn directories(paths: &[PathBuf]) -> HashSet<&Path> {
    let mut found = HashSet::new();
    for path in paths {
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        found.insert(parent.unwrap_or(Path::new(".")));
    }
    found
}

/// The files as they are; none where there is none.
type Stamps = Vec<Option<Stat>>;

fn stamps(paths: &[PathBuf]) -> Stamps {
    paths.iter().map(|path| Stat::at(path)).collect()
}

/// When a change is due to be read: pure, but for the instants it is given.
struct Watching {
    /// The state that was read, or tried, last.
    known: Stamps,
    /// The latest other state, and since when.
    changed: Option<(Stamps, Instant)>,
}

impl Watching {
    fn new(known: Stamps) -> Self {
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
    fn is_due(&mut self, now_stamps: Stamps, now: Instant) -> bool {
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
        let of_size = |size| Stat {
            device: 1,
            inode: 1,
            uid: 1,
            size,
            modified_ns: 1,
            changed_ns: 1,
        };
        let (one, two, three) = (vec![Some(of_size(1))], vec![Some(of_size(2))], vec![None]);
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
