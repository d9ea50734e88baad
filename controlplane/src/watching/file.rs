//! Files that are read again as a whole on a change: databases, certificates, the page of a
//! refusal. The state files, which the service writes too, are looked at with more care (`state/`).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::settling::Settling;
use super::{POLL, Watched};
use crate::state::stat::{Hash, Stat, hash_at};

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

/// Files as they are just before they are read.
pub(crate) struct Known {
    pub(crate) stamps: Stamps,
    pub(crate) doubts: Doubts,
}

impl Known {
    /// The current state of files.
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let stamps = stamps(paths);
        let doubts = Doubts::of(&stamps);
        Self { stamps, doubts }
    }

    /// Adds the current state of further files.
    pub(crate) fn extend<'a>(&mut self, paths: impl IntoIterator<Item = &'a PathBuf>) {
        let more = Self::of(paths);
        self.stamps.extend(more.stamps);
        self.doubts.0.extend(more.doubts.0);
    }
}

/// Files that were saved a moment before their stamps were taken, with their content: the next save
/// may have the same stamp.
#[derive(Default)]
pub(crate) struct Doubts(Vec<(PathBuf, Stat, Hash)>);

impl Doubts {
    fn of(stamps: &[(PathBuf, Option<Stat>)]) -> Self {
        let racy = stamps.iter().filter_map(|(path, stamp)| {
            let stamp = stamp.filter(Stat::is_racy)?;
            Some((path.clone(), stamp, hash_at(path).ok()?))
        });
        Self(racy.collect())
    }

    /// Whether no file is in doubt.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares the content, once a further save has another stamp. A file with other content is
    /// not known any more, so that the looks find a change.
    pub(crate) fn look(&mut self, settling: &mut Settling<Stamps>) {
        if self.0.is_empty() || self.0.iter().any(|(_, stamp, _)| stamp.is_racy()) {
            return;
        }
        let mut doubts = std::mem::take(&mut self.0);
        // The looks themselves find that a file is gone.
        doubts.retain(|(path, _, hash)| hash_at(path).is_ok_and(|now| now != *hash));
        if doubts.is_empty() {
            return;
        }
        let mut known = settling.known().clone();
        for (path, stamp) in &mut known {
            if doubts.iter().any(|(changed, ..)| changed == path) {
                *stamp = None;
            }
        }
        settling.take(known);
    }
}

/// A few files that belong together.
pub(crate) struct FileWatch {
    settling: Settling<Stamps>,
    doubts: Doubts,
    read_again: Box<dyn FnMut() + Send>,
}

impl FileWatch {
    /// Calls `read_again` at each change since this state. It must be taken before the first
    /// reading, so that a change right after it is not missed.
    pub(crate) fn new(known: Known, read_again: impl FnMut() + Send + 'static) -> Self {
        Self {
            settling: Settling::new(known.stamps),
            doubts: known.doubts,
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
        self.doubts.look(&mut self.settling);
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
        let known = Known {
            stamps: stamps([&path]),
            doubts: Doubts::default(),
        };
        let mut watch = FileWatch::new(known, move || {
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

    /// EDGE-2, LOOKUP-5: of two saves of one size within a tick of the clock the second has the
    /// stamp of the first, which was read: it is found all the same, once.
    #[test]
    fn a_save_behind_the_same_stamp_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        // A busy machine may take longer than a tick.
        let in_time = (0..50).find_map(|_| {
            fs::write(&path, "one").unwrap();
            let known = Known::of([&path]);
            (!known.doubts.is_empty()).then_some(known)
        });
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let mut watch = FileWatch::new(in_time.expect("saved in time"), move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        fs::write(&path, "two").unwrap();
        // Not every file system has a clock with such ticks.
        watch.settling.take(stamps([&path]));
        let mut now = Instant::now();
        while !watch.doubts.is_empty() {
            std::thread::sleep(TICK);
            watch.look(now, 0);
        }
        for _ in 0..20 {
            now += TICK;
            watch.look(now, 0);
        }
        assert_eq!(read.load(Ordering::SeqCst), 1);
    }
}
