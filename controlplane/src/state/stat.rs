//! A file as it was last seen: what tells one state of it from the next, and its whole content.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::guarded::{self, if_there};

/// No state file comes near this; what is larger is a mistake, and reading it would take the memory
/// of the service. What could not be read again is not written either (TELL-3).
pub(crate) const MAX_BYTES: u64 = if cfg!(test) { 4 << 20 } else { 256 << 20 };
/// Far above the grain of any file system's time stamps.
const GRAIN_NS: i128 = 120_000_000;

/// SHA-256 of a file's content.
pub(crate) type Hash = [u8; 32];

/// What tells one state of a file from the next without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Who owns it.
    pub(crate) uid: u32,
    pub(crate) size: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
    /// It is a regular file.
    pub(crate) is_file: bool,
}

/// A file's content as it was last read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) stat: Stat,
    pub(super) hash: Hash,
    /// It was read so soon after its last change that another one may look the same.
    pub(super) racy: bool,
}

impl Seen {
    /// Whether a file that is like this now still has the content.
    pub(super) fn stands(&self, now: Option<Stat>) -> bool {
        now == Some(self.stat) && !self.racy
    }
}

impl Stat {
    /// The file at a path, links followed; none while there is none.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        Some(Self::of(&guarded::look(path).ok()?))
    }

    pub(crate) fn of(found: &fs::Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: found.dev(),
            inode: found.ino(),
            uid: found.uid(),
            size: found.size(),
            modified_ns: nanoseconds(found.mtime(), found.mtime_nsec()),
            changed_ns: nanoseconds(found.ctime(), found.ctime_nsec()),
            is_file: found.is_file(),
        }
    }

    /// Whether the content changed a moment ago. Time stamps have the grain of the kernel's tick:
    /// within it two contents of one size can carry the same.
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with time stamps of the disk, which no test turns"
    )]
    pub(crate) fn is_racy(&self) -> bool {
        let now_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0));
        (0..GRAIN_NS).contains(&(now_ns - self.modified_ns))
    }

    /// The same file with the same content, renames aside.
    pub(crate) fn same_content(&self, other: &Self) -> bool {
        (self.device, self.inode, self.size, self.modified_ns)
            == (other.device, other.inode, other.size, other.modified_ns)
    }
}

/// The whole content of an open file. The stat is the one from before the read: if the file grew
/// meanwhile, the next look sees a difference and reads again.
pub(super) fn content(file: &mut File) -> io::Result<(Vec<u8>, Seen)> {
    let stat = stat_of(file)?;
    let racy = stat.is_racy();
    io::Seek::rewind(file)?;
    let bytes = guarded::whole(file, MAX_BYTES)?;
    let hash = Sha256::digest(&bytes).into();
    Ok((bytes, Seen { stat, hash, racy }))
}

/// The same of the file at a path; none where there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<(Vec<u8>, Seen)>> {
    let file = if_there(guarded::open(path))?;
    file.map(|mut file| content(&mut file)).transpose()
}

/// The hash of the content of the file at a path.
pub(crate) fn hash_at(path: &Path) -> io::Result<Hash> {
    let file = guarded::open(path)?;
    let size = file.metadata()?.len();
    let mut digester = Digester::default();
    io::copy(&mut file.take(size), &mut digester)?;
    Ok(digester.finish())
}

/// The stat of an open file.
pub(super) fn stat_of(file: &File) -> io::Result<Stat> {
    Ok(Stat::of(&file.metadata()?))
}

/// The hash of what would be written.
#[derive(Default)]
pub(super) struct Digester(Sha256);

impl Digester {
    pub(super) fn finish(self) -> Hash {
        self.0.finalize().into()
    }
}

impl Write for Digester {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
