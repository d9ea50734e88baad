//! The state directory on disk: its lock, and new files under a temporary name. What the bytes
//! mean is left to [`super::text`]; when to read and write is left to
//! [`super::look`] and [`super::write`]; how a new file takes the place of the old one is in
//! [`super::commit`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::StateError;
use super::lock::StateLock;
use super::stat::{MAX_BYTES, Seen, Stat, stat_of};
use super::step::{Faults, Step};
use crate::guarded::{self, if_there};

/// The directory, locked.
pub(super) struct Store {
    pub(super) dir: PathBuf,
    /// Held for as long as the service runs.
    pub(super) lock: StateLock,
    pub(super) faults: Faults,
}

/// A new file that has no name of its own yet. Dropping it removes the file, half-written or whole:
/// a full disk gets its room back. If even this fails, the next write removes the file.
pub(super) struct Temporary<'a> {
    pub(super) path: PathBuf,
    /// Dropping it leaves the file.
    pub(super) keep: bool,
    faults: &'a Faults,
}

/// A new file, whole and synced.
pub(super) struct Staged<'a> {
    pub(super) file: Temporary<'a>,
    pub(super) seen: Seen,
}

impl Store {
    /// The directory of this lock, once it was checked that it can be written (STATE-6).
    pub(super) fn open(lock: StateLock) -> Result<Self, StateError> {
        let dir = lock.dir.clone();
        let probe = dir.join(".weir-probe.tmp");
        let store = Self {
            dir,
            lock,
            faults: Faults::default(),
        };
        let _ = fs::remove_file(&probe);
        create(&probe)
            .and_then(|mut file| file.write_all(b"1"))
            .and_then(|()| fs::remove_file(&probe))
            .map_err(|error| StateError::Unwritable {
                dir: store.dir.clone(),
                error,
            })?;
        Ok(store)
    }

    /// Sees to it that the directory is there, and locked; true if it had to be made anew, or is
    /// another one than before, or its lock is.
    pub(super) fn ensure_dir(&mut self) -> io::Result<bool> {
        if self.lock.holds()? {
            return Ok(false);
        }
        self.lock = StateLock::claim(&self.dir).map_err(io::Error::other)?;
        Ok(true)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The file as it stands now; none where there is no file. A link that leads to nothing is no
    /// regular file: nothing can be written in its place before it is set aside.
    pub(super) fn stat(&self, name: &str) -> io::Result<Option<Stat>> {
        let path = self.path(name);
        let found = if_there(guarded::look(&path))?;
        let found = found.or_else(|| fs::symlink_metadata(&path).ok());
        Ok(found.as_ref().map(Stat::of))
    }

    /// Writes a new file under a temporary name and syncs it.
    pub(super) fn stage(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Staged<'_>> {
        self.recover(name)?;
        let (file, open) = self.temporary(&format!(".{name}.tmp"), Step::Create)?;
        let hashing = Hashing {
            file: open,
            hasher: Sha256::new(),
            room: MAX_BYTES,
            faults: &self.faults,
        };
        let mut out = BufWriter::with_capacity(1 << 16, hashing);
        write(&mut out)?;
        let written = out.into_inner().map_err(|error| error.into_error())?;
        self.faults.step(Step::SyncFile)?;
        written.file.sync_all()?;
        let stat = stat_of(&written.file)?;
        let hash = written.hasher.finalize().into();
        let racy = false;
        let seen = Seen { stat, hash, racy };
        Ok(Staged { file, seen })
    }

    /// Makes renames in the directory last.
    pub(super) fn sync_dir(&self) -> io::Result<()> {
        self.faults.step(Step::SyncDir)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Makes an empty file of this name. One thread, one lock: a fixed name can leave no heap of
    /// leftovers behind.
    pub(super) fn temporary(&self, name: &str, step: Step) -> io::Result<(Temporary<'_>, File)> {
        let path = self.path(name);
        if_there(fs::remove_file(&path))?;
        self.faults.step(step)?;
        let open = create(&path)?;
        let file = Temporary {
            path,
            keep: false,
            faults: &self.faults,
        };
        Ok((file, open))
    }
}

/// A new file that nobody else can read: state holds addresses of visitors.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    #[cfg(debug_assertions)]
    guarded::test_hook::hang_if_asked(path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.keep && !self.faults.crashed() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Hashes what is written, so that no second copy of a large file is needed in memory.
struct Hashing<'a> {
    file: File,
    hasher: Sha256,
    /// Bytes that a start still reads.
    room: u64,
    faults: &'a Faults,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.faults.step(Step::Write) {
            // A full disk takes a part before it refuses.
            let (part, _) = bytes.split_at(bytes.len() / 2);
            self.file.write_all(part)?;
            return Err(error);
        }
        if bytes.len() as u64 > self.room {
            return Err(io::Error::other(format!(
                "it would be larger than {} MiB, which the next start refuses",
                MAX_BYTES >> 20
            )));
        }
        let written = self.file.write(bytes)?;
        self.room -= written as u64;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
