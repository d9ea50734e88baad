//! Files that are read again as a whole on a change: databases, certificates, the page of a
//! refusal. The state files, which the service writes too, are looked at with more care (`state/`).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::settling::Settling;
use super::{POLL, Watched};
use crate::state::stat::Stat;

/// A change is read once the files have not changed for this long (LOOKUP-5).
const SETTLE: Duration = Duration::from_secs(2);
/// How often the files are checked while a change settles.
const TICK: Duration = Duration::from_millis(200);

/// Files, each with its stat; none if it did not exist.
pub(crate) type Stamps = Vec<(PathBuf, Option<Stat>)>;

/// The current stamps of files.
pub(crate) fn stamps<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Stamps {
    let paths = paths.into_iter();
    paths.map(|path| (path.clone(), Stat::at(path))).collect()
}

/// A few files that belong together.
pub(crate) struct FileWatch {
    settling: Settling<Stamps>,
    read_again: Box<dyn FnMut() + Send>,
}

impl FileWatch {
    /// Calls `read_again` at each change since these stamps. They must be taken before the first
    /// reading, so that a change right after it is not missed.
    pub(crate) fn new(known: Stamps, read_again: impl FnMut() + Send + 'static) -> Self {
        Self {
            settling: Settling::new(known),
            read_again: Box::new(read_again),
        }
    }
}

impl Watched for FileWatch {
    fn files(&self) -> Vec<PathBuf> {
        let known = self.settling.known().iter();
        known.map(|(path, _)| path.clone()).collect()
    }

    fn look(&mut self, now: Instant, _: u64) -> Duration {
        let found = stamps(self.settling.known().iter().map(|(path, _)| path));
        match self.settling.look(found.clone(), now) {
            None => POLL,
            Some(still) if still < SETTLE => TICK,
            Some(_) => {
                // A change is read once, valid or not.
                self.settling.take(found);
                (self.read_again)();
                POLL
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// LOOKUP-5: a change is due once, 2 seconds after its last write, whether it is good or bad; a
    /// change that is reverted does not count.
    #[test]
    fn a_change_is_due_after_two_still_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["one", "two", "three"] {
            fs::write(at(name), name).unwrap();
        }
        let path = at("file");
        // The same file under its name again is the same state.
        let put = |name: &str| {
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(at(name), &path).unwrap();
        };
        put("one");
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let mut watch = FileWatch::new(stamps([&path]), move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let start = Instant::now();
        for (ms, name, pause, reads) in [
            (0, "one", POLL, 0),
            (100, "two", TICK, 0),
            (1500, "three", TICK, 0),
            (2000, "two", TICK, 0),
            (3999, "two", TICK, 0),
            (4000, "two", POLL, 1),
            (9000, "two", POLL, 1),
            (10_000, "three", TICK, 1),
            (11_000, "two", POLL, 1),
            (12_000, "three", TICK, 1),
            (14_000, "three", POLL, 2),
        ] {
            put(name);
            assert_eq!(
                watch.look(start + Duration::from_millis(ms), 0),
                pause,
                "{ms}"
            );
            assert_eq!(read.load(Ordering::SeqCst), reads, "{ms}");
        }
        assert_eq!(watch.files(), [path]);
    }
}
