//! The lock of the state directory: two services on one directory would overwrite each other
//! (STATE-6).
//!
//! It belongs to the open file (flock(2)), not to the process: a descriptor that is passed to
//! another process is the same lock, and both hold it until both have closed it (RESTART-4).

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::error::StateError;
use crate::guarded::{self, if_there};

/// The lock file.
const LOCK: &str = "weir.lock";

/// Device and inode.
type Identity = (u64, u64);

/// A state directory that is there, and its lock, held until this is dropped.
pub struct StateLock {
    pub(super) dir: PathBuf,
    file: File,
    /// A directory that was removed and made again is another one.
    identity: Identity,
}

impl StateLock {
    /// Makes the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// [`StateError`] (STATE-6); [`StateError::InUse`] where another service holds it.
    pub fn claim(dir: &Path) -> Result<Self, StateError> {
        may_enter(dir)?;
        let file = open(dir)?;
        let locked = file.try_lock().map_err(|error| {
            let dir = dir.to_owned();
            match error {
                TryLockError::WouldBlock => StateError::InUse { dir, lock: LOCK },
                TryLockError::Error(error) => StateError::Lock { dir, error },
            }
        });
        locked.and_then(|()| Self::of(dir, file))
    }

    /// Takes the lock that another process passed. One of another directory is of no use here: then
    /// this one is locked.
    ///
    /// # Errors
    /// As [`StateLock::claim`].
    pub fn passed(dir: &Path, lock: OwnedFd) -> Result<Self, StateError> {
        let lock = File::from(lock);
        let found = open(dir)?;
        match (identity(found.metadata()), identity(lock.metadata())) {
            (Ok(found), Ok(passed)) if found == passed => Self::of(dir, lock),
            _ => Self::claim(dir),
        }
    }

    /// Whether it still keeps others out: neither the directory nor the lock file was removed, or
    /// replaced by one that another service may hold.
    pub(super) fn holds(&self) -> io::Result<bool> {
        let found = if_there(identity(fs::metadata(&self.dir)))?;
        if found != Some(self.identity) {
            return Ok(false);
        }
        Ok(match if_there(fs::metadata(self.dir.join(LOCK))) {
            Ok(Some(found)) if found.is_file() => {
                identity(Ok(found))? == identity(self.file.metadata())?
            }
            Ok(Some(_)) | Err(_) => true,
            Ok(None) => false,
        })
    }

    fn of(dir: &Path, file: File) -> Result<Self, StateError> {
        let dir = dir.to_owned();
        match identity(fs::metadata(&dir)) {
            Ok(identity) => Ok(Self {
                dir,
                file,
                identity,
            }),
            Err(error) => Err(StateError::Unreadable { dir, error }),
        }
    }

    /// The same lock, for another process.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }
}

/// Whether this user may look into the directory, where there is one. Otherwise each file in there
/// would be called unreadable, and the directory is what has to be mended.
///
/// # Errors
/// [`StateError::Closed`], [`StateError::NoDirectory`]
pub fn may_enter(dir: &Path) -> Result<(), StateError> {
    let found = fs::metadata(dir).ok();
    if found.as_ref().is_some_and(|found| !found.is_dir()) {
        return Err(StateError::NoDirectory(dir.to_owned()));
    }
    match access(dir, Access::EXEC_OK) {
        Err(Errno::ACCESS) => Err(StateError::Closed {
            dir: dir.to_owned(),
            owner: found.map(|found| found.uid()),
        }),
        _ => Ok(()),
    }
}

fn identity(found: io::Result<fs::Metadata>) -> io::Result<Identity> {
    found.map(|found| (found.dev(), found.ino()))
}

/// Makes the directory and opens the lock file.
fn open(path: &Path) -> Result<File, StateError> {
    let dir = path.to_owned();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    if let Err(error) = made {
        return Err(StateError::Make { dir, error });
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let opened = guarded::open_with(&mut options, &path.join(LOCK));
    opened.map_err(|error| {
        let error = io::Error::new(error.kind(), format!("{LOCK}: {error}"));
        StateError::Unwritable { dir, error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RESTART-4: a lock that is passed is held by both until both have let it go; that of another
    /// directory locks this one, or finds it in use.
    #[test]
    fn a_passed_lock_is_held_by_both() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let in_use = |dir: &Path| matches!(StateLock::claim(dir), Err(StateError::InUse { .. }));
        let old = StateLock::claim(dir.path()).unwrap();
        let new = StateLock::passed(dir.path(), old.share().unwrap()).unwrap();
        assert!(in_use(dir.path()));
        drop(old);
        assert!(in_use(dir.path()));

        let elsewhere = StateLock::passed(other.path(), new.share().unwrap()).unwrap();
        assert!(in_use(other.path()));
        let foreign = StateLock::passed(other.path(), new.share().unwrap());
        assert!(matches!(foreign, Err(StateError::InUse { .. })));
        drop((new, elsewhere));
        assert!(!in_use(dir.path()) && !in_use(other.path()));
    }

    /// STATE-6: a lock whose file was removed, or replaced by another, keeps nobody out any more.
    #[test]
    fn a_lock_that_is_gone_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::claim(dir.path()).unwrap();
        assert!(lock.holds().unwrap());
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        assert!(!lock.holds().unwrap());
        let other = StateLock::claim(dir.path()).unwrap();
        assert!(!lock.holds().unwrap() && other.holds().unwrap());
    }

    /// STATE-6: what is no directory is called that, whoever asks; root may enter no file either.
    #[test]
    fn a_file_in_the_place_of_the_directory_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let Err(error) = StateLock::claim(file.path()) else {
            panic!("a file was locked");
        };
        let told = format!(
            "WAF_STATE_DIR {} is no directory; move it away or set another",
            file.path().display()
        );
        assert_eq!(error.to_string(), told);
    }
}
