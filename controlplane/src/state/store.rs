//! The state directory on disk: its lock, whole-file reads, and the write that leaves a whole old or a whole new file
//! whatever happens in between (STATE-2). What the bytes mean is left to [`super::text`]; when to read and write is
//! left to [`super::file`].
//!
//! A write swaps the new file with the old one (`renameat2` with `RENAME_EXCHANGE`) instead of replacing it, where the
//! file system can: a plain rename would silently destroy an edit saved between the last look and the rename. After the
//! swap the old file is looked at once more; if it is not the one that was read, the swap is undone. Until it was looked
//! at it lies under a name that says what it should be, so that a kill in between loses no edit either ([`Left`]).

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sha2::{Digest, Sha256};

use super::error::StateError;

/// The lock file: two services on one directory would overwrite each other (STATE-6).
const LOCK: &str = "weir.lock";
/// No state file comes near this; what is larger is a mistake, and reading it would take the memory of the service.
const MAX_BYTES: u64 = 256 << 20;
/// Files set aside that are kept for each state file: `.bad`, `.bad.1` … `.bad.9` (STATE-5).
const MAX_BAD: usize = 10;

/// Far above the grain of any file system's time stamps.
const GRAIN_NS: i128 = 120_000_000;

/// SHA-256 of a file's content.
pub(super) type Hash = [u8; 32];

/// The directory, locked.
pub(super) struct Store {
    dir: PathBuf,
    /// Held for as long as the service runs.
    lock: File,
    /// Device and inode: a directory that was removed and made again is another one.
    identity: (u64, u64),
    #[cfg(test)]
    pub(super) faults: std::sync::Arc<faults::Faults>,
}

/// What tells one state of a file from the next without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: i128,
    changed_ns: i128,
}

/// A file's content as it was last read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) stat: Stat,
    pub(super) hash: Hash,
}

/// A new file, whole and synced under a temporary name. Removed when dropped without [`Store::commit`].
pub(super) struct Staged {
    path: PathBuf,
    seen: Seen,
    keep: bool,
}

/// What became of a [`Store::commit`].
pub(super) enum Commit {
    /// The new file stands; `displaced` is the old one, whose name is gone. An editor may still hold it open.
    Done { seen: Seen, displaced: Option<File> },
    /// The file is not the one that was last read: nothing was written.
    Changed,
}

/// What a write that did not come to its end left behind, under a name that says which file was to be replaced by which:
/// `.bans.json.swap.<old>.<new>`, both as SHA-256 in hexadecimal. Until the swap the new file lies there, whole and
/// synced; from then on the old one, or an edit that was saved in the last moment.
struct Left {
    path: PathBuf,
    /// The old file was judged bad and is to be kept (STATE-5).
    set_aside: bool,
    old: String,
    new: String,
}

/// The steps of a write, in order; the points at which a test lets the disk fail or the process die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Create,
    Write,
    SyncFile,
    Name,
    Swap,
    Look,
    SwapBack,
    Remove,
    SyncDir,
}

impl Store {
    /// Makes the directory if it is missing, locks it and checks that it can be written (STATE-6).
    pub(super) fn open(dir: &Path) -> Result<Self, StateError> {
        let (lock, identity) = claim(dir)?;
        let store = Self {
            dir: dir.to_owned(),
            lock,
            identity,
            #[cfg(test)]
            faults: std::sync::Arc::default(),
        };
        let probe = dir.join(".weir-probe.tmp");
        let _ = fs::remove_file(&probe);
        create(&probe)
            .and_then(|mut file| file.write_all(b"1"))
            .and_then(|()| fs::remove_file(&probe))
            .map_err(|error| StateError::Unwritable {
                dir: dir.to_owned(),
                error,
            })?;
        Ok(store)
    }

    /// Sees to it that the directory is there; true if it had to be made anew, or is another one than before.
    pub(super) fn ensure_dir(&mut self) -> io::Result<bool> {
        match fs::metadata(&self.dir) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let (lock, identity) = claim(&self.dir).map_err(io::Error::other)?;
        self.lock = lock;
        self.identity = identity;
        Ok(true)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The file as it stands now; none where there is no file.
    pub(super) fn stat(&self, name: &str) -> io::Result<Option<Stat>> {
        match fs::metadata(self.path(name)) {
            Ok(found) if found.is_file() => Ok(Some(Stat::of(&found))),
            Ok(_) => Err(io::Error::other("it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The whole content.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<(Vec<u8>, Seen)>> {
        // The stat comes first: opening a pipe that somebody put there would block for ever.
        if self.stat(name)?.is_none() {
            return Ok(None);
        }
        match File::open(self.path(name)) {
            Ok(mut file) => content(&mut file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a new file under a temporary name and syncs it.
    pub(super) fn stage(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<Staged> {
        self.recover(name)?;
        // One thread, one lock: a fixed name can leave no heap of leftovers behind.
        let path = self.dir.join(format!(".{name}.tmp"));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.step(Step::Create)?;
        let file = create(&path)?;
        let mut guard = Unfinished {
            path: &path,
            store: self,
            done: false,
        };
        let mut out = BufWriter::with_capacity(
            1 << 16,
            Hashing {
                file,
                hasher: Sha256::new(),
                store: self,
            },
        );
        write(&mut out)?;
        let Hashing { file, hasher, .. } = out.into_inner().map_err(|error| error.into_error())?;
        self.step(Step::SyncFile)?;
        file.sync_all()?;
        let stat = Stat::of(&file.metadata()?);
        guard.done = true;
        drop(guard);
        Ok(Staged {
            path,
            seen: Seen {
                stat,
                hash: hasher.finalize().into(),
            },
            keep: false,
        })
    }

    /// Puts the new file in the place of the one that was last seen, and syncs the directory. With `set_aside` the old
    /// file was judged bad: it is kept as `<name>.bad`, older ones as `.bad.1` … (STATE-5).
    ///
    /// There is no moment without a whole file: a bad edit leaves only when the new file already stands.
    pub(super) fn commit(
        &self,
        name: &str,
        mut staged: Staged,
        expected: Option<&Seen>,
        set_aside: bool,
    ) -> io::Result<Commit> {
        let target = self.path(name);
        if self.stat(name)? != expected.map(|seen| seen.stat) {
            return Ok(Commit::Changed);
        }
        let swap = match expected {
            Some(old) => {
                self.step(Step::Name).inspect_err(|_| {
                    staged.keep = self.crashed();
                })?;
                let left = Left::new(&self.dir, name, set_aside, old, &staged.seen);
                fs::rename(&staged.path, &left.path)?;
                staged.path = left.path;
                RenameFlags::EXCHANGE
            }
            None => RenameFlags::NOREPLACE,
        };
        self.step(Step::Swap).inspect_err(|_| {
            staged.keep = self.crashed();
        })?;
        let mut displaced = None;
        match renameat_with(CWD, &staged.path, CWD, &target, swap).map_err(io::Error::from) {
            Ok(()) => {
                staged.keep = true;
                if let Some(expected) = expected {
                    let is_expected = self.is_expected(&staged.path, expected);
                    if !matches!(is_expected, Ok(true)) {
                        self.swap_back(&staged, &target)?;
                        return is_expected.map(|_| Commit::Changed);
                    }
                    displaced = File::open(&staged.path).ok();
                    self.step(Step::Remove)?;
                    if set_aside {
                        self.rotate(name, &staged.path)?;
                    } else {
                        fs::remove_file(&staged.path)?;
                    }
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(Commit::Changed);
            }
            // A file system or a kernel without these flags: the plain rename, after one more look.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
                ) =>
            {
                if self.stat(name)? != expected.map(|seen| seen.stat) {
                    return Ok(Commit::Changed);
                }
                let bad = self.linked(name);
                if set_aside {
                    let _ = fs::remove_file(&bad);
                    fs::hard_link(&target, &bad)?;
                }
                fs::rename(&staged.path, &target)?;
                staged.keep = true;
                if set_aside {
                    self.rotate(name, &bad)?;
                }
            }
            Err(error) => return Err(error),
        }
        self.step(Step::SyncDir)?;
        File::open(&self.dir)?.sync_all()?;
        // The rename moved the change time. If somebody replaced the file already, the difference is seen at the next look.
        let mut seen = staged.seen;
        if let Some(stat) = self.stat(name)?
            && stat.same_content(&seen.stat)
        {
            seen.stat = stat;
        }
        Ok(Commit::Done { seen, displaced })
    }

    /// Ends what a write left behind when it was killed or failed (STATE-2, STATE-4). An edit that it displaced is put back
    /// in its place; if that was saved anew meanwhile, it is kept as a bad one is.
    pub(super) fn recover(&self, name: &str) -> io::Result<()> {
        let target = self.path(name);
        for left in self.left(name)? {
            let lying = hash_of(&left.path);
            if lying == left.new || (lying == left.old && !left.set_aside) {
                fs::remove_file(&left.path)?;
            } else if lying != left.old && hash_of(&target) == left.new {
                tracing::warn!(
                    file = name,
                    "an edit that was saved while the file was written is put back"
                );
                renameat_with(CWD, &left.path, CWD, &target, RenameFlags::EXCHANGE)?;
                fs::remove_file(&left.path)?;
            } else {
                tracing::warn!(
                    file = name,
                    "a file that was replaced by a write is kept as {name}.bad"
                );
                self.rotate(name, &left.path)?;
            }
        }
        let linked = self.linked(name);
        if let Ok(bad) = fs::metadata(&linked) {
            match fs::metadata(&target) {
                Ok(standing) if standing.ino() == bad.ino() => fs::remove_file(&linked)?,
                Ok(_) | Err(_) => self.rotate(name, &linked)?,
            }
        }
        Ok(())
    }

    /// A second name of a bad file, where files cannot be swapped.
    fn linked(&self, name: &str) -> PathBuf {
        self.dir.join(format!(".{name}.linked"))
    }

    /// What lies there of an unfinished write.
    fn left(&self, name: &str) -> io::Result<Vec<Left>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let left = entry.file_name().to_str().and_then(|file| {
                let rest = file
                    .strip_prefix('.')?
                    .strip_prefix(name)?
                    .strip_prefix('.')?;
                let (kind, hashes) = rest.split_once('.')?;
                let (old, new) = hashes.split_once('.')?;
                Some(Left {
                    path: entry.path(),
                    set_aside: match kind {
                        SWAP => false,
                        ASIDE => true,
                        _ => return None,
                    },
                    old: old.to_owned(),
                    new: new.to_owned(),
                })
            });
            found.extend(left);
        }
        Ok(found)
    }

    /// Moves a bad file into the row of those set aside: the newest is `.bad`, the eleventh is dropped.
    fn rotate(&self, name: &str, bad: &Path) -> io::Result<()> {
        let numbered = |number: usize| match number {
            0 => self.dir.join(format!("{name}.bad")),
            _ => self.dir.join(format!("{name}.bad.{number}")),
        };
        for number in (0..MAX_BAD - 1).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        fs::rename(bad, numbered(0))
    }

    /// Whether the old file, after a swap, is the one that was last seen.
    fn is_expected(&self, path: &Path, expected: &Seen) -> io::Result<bool> {
        self.step(Step::Look)?;
        // The swap itself moved the change time, so size and modification time decide, and the content in doubt.
        if Stat::of(&fs::metadata(path)?).same_content(&expected.stat) {
            return Ok(true);
        }
        let (_, seen) = content(&mut File::open(path)?)?;
        Ok(seen.hash == expected.hash)
    }

    /// Undoes a swap that displaced an edit.
    fn swap_back(&self, staged: &Staged, target: &Path) -> io::Result<()> {
        self.step(Step::SwapBack)?;
        renameat_with(CWD, &staged.path, CWD, target, RenameFlags::EXCHANGE)?;
        if fs::metadata(&staged.path)?.ino() != staged.seen.stat.inode {
            // Another save replaced our file in between; it is newer than the edit that was put back, so it counts.
            renameat_with(CWD, &staged.path, CWD, target, RenameFlags::EXCHANGE)?;
        }
        self.step(Step::Remove)?;
        fs::remove_file(&staged.path)
    }

    #[cfg(not(test))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "the twin for tests lets the disk fail here"
    )]
    fn step(&self, _: Step) -> io::Result<()> {
        Ok(())
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the twin for tests dies here")]
    fn crashed(&self) -> bool {
        false
    }

    #[cfg(test)]
    fn step(&self, step: Step) -> io::Result<()> {
        self.faults.step(step)
    }

    /// A process that died cleans nothing up.
    #[cfg(test)]
    fn crashed(&self) -> bool {
        self.faults.crashed()
    }
}

/// Kinds of [`Left`]: the old file is to go, or to be kept as a bad one.
const SWAP: &str = "swap";
const ASIDE: &str = "aside";

impl Left {
    fn new(dir: &Path, name: &str, set_aside: bool, old: &Seen, new: &Seen) -> Self {
        let kind = if set_aside { ASIDE } else { SWAP };
        let (old, new) = (hex(&old.hash), hex(&new.hash));
        Self {
            path: dir.join(format!(".{name}.{kind}.{old}.{new}")),
            set_aside,
            old,
            new,
        }
    }
}

/// Of the content of a file; zeros where it cannot be read, as for an edit that nobody may read.
fn hash_of(path: &Path) -> String {
    // Opening a pipe that somebody put there would block for ever.
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    let read = is_file.then(|| {
        File::open(path)
            .and_then(|mut file| content(&mut file))
            .ok()
    });
    hex(&read.flatten().map_or([0; 32], |(_, seen)| seen.hash))
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Stat {
    fn of(found: &fs::Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified_ns: nanoseconds(found.mtime(), found.mtime_nsec()),
            changed_ns: nanoseconds(found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether the content changed a moment ago. Time stamps have the grain of the kernel's tick: within it two contents
    /// of one size can carry the same.
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with time stamps of the disk, which no test turns"
    )]
    pub(super) fn is_racy(&self) -> bool {
        let now_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0));
        (0..GRAIN_NS).contains(&(now_ns - self.modified_ns))
    }

    /// The same file with the same content, renames aside.
    fn same_content(&self, other: &Self) -> bool {
        (self.device, self.inode, self.size, self.modified_ns)
            == (other.device, other.inode, other.size, other.modified_ns)
    }
}

/// The whole content of an open file. The stat is the one from before the read: if the file grew meanwhile, the next
/// look sees a difference and reads again.
pub(super) fn content(file: &mut File) -> io::Result<(Vec<u8>, Seen)> {
    let before = file.metadata()?;
    if before.size() > MAX_BYTES {
        return Err(io::Error::other(format!(
            "it is larger than {} MiB",
            MAX_BYTES >> 20
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(before.size()).unwrap_or(0) + 1);
    io::Seek::rewind(file)?;
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let hash = Sha256::digest(&bytes).into();
    Ok((
        bytes,
        Seen {
            stat: Stat::of(&before),
            hash,
        },
    ))
}

/// Whether an open file still is what `seen` says.
pub(super) fn unchanged(file: &File, seen: &Stat) -> io::Result<bool> {
    Ok(Stat::of(&file.metadata()?).same_content(seen))
}

/// The stat of an open file.
pub(super) fn stat_of(file: &File) -> io::Result<Stat> {
    Ok(Stat::of(&file.metadata()?))
}

/// Makes and locks the directory.
fn claim(path: &Path) -> Result<(File, (u64, u64)), StateError> {
    let dir = path.to_owned();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    if let Err(error) = made {
        return Err(StateError::Make { dir, error });
    }
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path.join(LOCK));
    let lock = match opened {
        Ok(lock) => lock,
        Err(error) => return Err(StateError::Unwritable { dir, error }),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StateError::InUse { dir, lock: LOCK }),
        Err(TryLockError::Error(error)) => return Err(StateError::Lock { dir, error }),
    }
    match fs::metadata(path) {
        Ok(found) => Ok((lock, (found.dev(), found.ino()))),
        Err(error) => Err(StateError::Unreadable { dir, error }),
    }
}

/// A new file that nobody else can read: state holds addresses of visitors.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Removes a half-written temporary file when the write failed.
struct Unfinished<'a> {
    path: &'a Path,
    store: &'a Store,
    done: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.done && !self.store.crashed() {
            // The full disk gets its room back; if even this fails, the next write removes the file.
            let _ = fs::remove_file(self.path);
        }
    }
}

impl Staged {
    /// Of its content.
    pub(super) fn hash(&self) -> Hash {
        self.seen.hash
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_file(&self.path);
        }
    }
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

/// Hashes what is written, so that no second copy of a large file is needed in memory.
struct Hashing<'a> {
    file: File,
    hasher: Sha256,
    store: &'a Store,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.store.step(Step::Write) {
            // A full disk takes a part before it refuses.
            let (part, _) = bytes.split_at(bytes.len() / 2);
            self.file.write_all(part)?;
            return Err(error);
        }
        let written = self.file.write(bytes)?;
        if let Some(part) = bytes.get(..written) {
            self.hasher.update(part);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
pub(super) mod faults {
    //! Lets the disk fail, or the process die, at a step of a write.

    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Step;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Fault {
        Fail(i32),
        Die,
    }

    type Meanwhile = Box<dyn FnOnce() + Send>;

    #[derive(Default)]
    pub(in crate::state) struct Faults {
        at: Mutex<Option<(Step, Fault)>>,
        dead: AtomicBool,
        meanwhile: Mutex<Option<(Step, Meanwhile)>>,
    }

    impl Faults {
        pub(in crate::state) fn fail(&self, step: Step, errno: i32) {
            *self.at.lock().unwrap() = Some((step, Fault::Fail(errno)));
        }

        pub(in crate::state) fn die(&self, step: Step) {
            *self.at.lock().unwrap() = Some((step, Fault::Die));
        }

        pub(in crate::state) fn heal(&self) {
            *self.at.lock().unwrap() = None;
        }

        /// Somebody else does something just before a step.
        pub(in crate::state) fn meanwhile(&self, step: Step, act: impl FnOnce() + Send + 'static) {
            *self.meanwhile.lock().unwrap() = Some((step, Box::new(act)));
        }

        pub(super) fn step(&self, step: Step) -> io::Result<()> {
            let due = self
                .meanwhile
                .lock()
                .unwrap()
                .take_if(|(at, _)| *at == step);
            if let Some((_, act)) = due {
                act();
            }
            if self.dead.load(Ordering::SeqCst) {
                return Err(io::Error::other("killed"));
            }
            match *self.at.lock().unwrap() {
                Some((at, Fault::Fail(errno))) if at == step => {
                    Err(io::Error::from_raw_os_error(errno))
                }
                Some((at, Fault::Die)) if at == step => {
                    self.dead.store(true, Ordering::SeqCst);
                    Err(io::Error::other("killed"))
                }
                _ => Ok(()),
            }
        }

        pub(super) fn crashed(&self) -> bool {
            matches!(*self.at.lock().unwrap(), Some((_, Fault::Die)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn put(store: &Store, text: &str, expected: Option<&Seen>) -> io::Result<Commit> {
        let staged = store.stage("x.json", |out| out.write_all(text.as_bytes()))?;
        store.commit("x.json", staged, expected, false)
    }

    fn seen(store: &Store) -> Option<Seen> {
        store.read("x.json").unwrap().map(|(_, seen)| seen)
    }

    fn text(dir: &Path) -> String {
        fs::read_to_string(dir.join("x.json")).unwrap()
    }

    const STEPS: [Step; 8] = [
        Step::Create,
        Step::Write,
        Step::SyncFile,
        Step::Name,
        Step::Swap,
        Step::Look,
        Step::Remove,
        Step::SyncDir,
    ];

    /// What lies there beside the file and the lock.
    fn leftovers(dir: &Path) -> Vec<String> {
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with('.'))
            .collect()
    }

    /// STATE-2: a process killed at any step of a write leaves the old or the new file whole, and what it left behind
    /// hinders nobody.
    #[test]
    fn a_kill_at_any_step_leaves_a_whole_file() {
        for step in STEPS {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path()).unwrap();
            assert!(matches!(put(&store, "old", None), Ok(Commit::Done { .. })));
            store.faults.die(step);
            assert!(put(&store, "new", seen(&store).as_ref()).is_err());
            drop(store);
            let swapped = matches!(step, Step::Look | Step::Remove | Step::SyncDir);
            let expected = if swapped { "new" } else { "old" };
            assert_eq!(text(dir.path()), expected, "{step:?}");
            let store = Store::open(dir.path()).unwrap();
            store.recover("x.json").unwrap();
            assert_eq!(text(dir.path()), expected, "{step:?}");
            let again = put(&store, "newer", seen(&store).as_ref());
            assert!(matches!(again, Ok(Commit::Done { .. })), "{step:?}");
            assert_eq!(text(dir.path()), "newer");
            assert_eq!(leftovers(dir.path()), [""; 0], "{step:?}");
        }
    }

    /// STATE-4, STATE-5: an edit that was saved in the last moment before the swap survives a kill at any step after it:
    /// the next start puts it back. So does one after which somebody saved once more, as a bad file, and a bad one.
    #[test]
    fn a_kill_after_the_swap_loses_no_edit() {
        let dir = || tempfile::tempdir().unwrap();
        let save = |dir: &Path, text: &'static str| {
            let (edit, target) = (dir.join("edit"), dir.join("x.json"));
            move || {
                fs::write(&edit, text).unwrap();
                fs::rename(&edit, &target).unwrap();
            }
        };
        for step in [Step::Swap, Step::Look, Step::SwapBack, Step::Remove] {
            let dir = dir();
            let store = Store::open(dir.path()).unwrap();
            let _ = put(&store, "old", None).unwrap();
            store.faults.meanwhile(Step::Swap, save(dir.path(), "edit"));
            store.faults.die(step);
            assert!(put(&store, "new", seen(&store).as_ref()).is_err());
            drop(store);
            let swapped = matches!(step, Step::Look | Step::SwapBack);
            assert_eq!(
                text(dir.path()),
                if swapped { "new" } else { "edit" },
                "{step:?}"
            );
            let store = Store::open(dir.path()).unwrap();
            store.recover("x.json").unwrap();
            assert_eq!(text(dir.path()), "edit", "{step:?}");
            assert_eq!(leftovers(dir.path()), [""; 0], "{step:?}");
        }
        for step in [Step::Look, Step::SwapBack] {
            let dir = dir();
            let store = Store::open(dir.path()).unwrap();
            let _ = put(&store, "old", None).unwrap();
            store.faults.meanwhile(Step::Swap, save(dir.path(), "edit"));
            store.faults.die(step);
            assert!(put(&store, "new", seen(&store).as_ref()).is_err());
            drop(store);
            save(dir.path(), "later")();
            let store = Store::open(dir.path()).unwrap();
            store.recover("x.json").unwrap();
            assert_eq!(text(dir.path()), "later", "{step:?}");
            let bad = fs::read_to_string(dir.path().join("x.json.bad"));
            assert_eq!(bad.unwrap(), "edit", "{step:?}");
        }
        for step in [
            Step::Name,
            Step::Swap,
            Step::Look,
            Step::Remove,
            Step::SyncDir,
        ] {
            let dir = dir();
            let store = Store::open(dir.path()).unwrap();
            fs::write(dir.path().join("x.json"), "bad").unwrap();
            store.faults.die(step);
            let staged = store.stage("x.json", |out| out.write_all(b"good")).unwrap();
            let known = seen(&store);
            assert!(
                store
                    .commit("x.json", staged, known.as_ref(), true)
                    .is_err()
            );
            drop(store);
            let store = Store::open(dir.path()).unwrap();
            store.recover("x.json").unwrap();
            let bad =
                ["x.json", "x.json.bad"].map(|name| fs::read_to_string(dir.path().join(name)).ok());
            assert!(
                bad.iter().flatten().any(|text| text == "bad"),
                "{step:?}: {bad:?}"
            );
        }
    }

    /// STATE-5: where files cannot be swapped, a bad file has a second name until the new one stands.
    #[test]
    fn a_kill_leaves_a_bad_file_by_its_second_name() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::write(dir.path().join("x.json"), "bad").unwrap();
        fs::hard_link(dir.path().join("x.json"), store.linked("x.json")).unwrap();
        store.recover("x.json").unwrap();
        assert_eq!(text(dir.path()), "bad");
        assert_eq!(leftovers(dir.path()), [""; 0]);
        fs::write(dir.path().join("good"), "good").unwrap();
        fs::hard_link(dir.path().join("x.json"), store.linked("x.json")).unwrap();
        fs::rename(dir.path().join("good"), dir.path().join("x.json")).unwrap();
        store.recover("x.json").unwrap();
        assert_eq!(text(dir.path()), "good");
        let bad = fs::read_to_string(dir.path().join("x.json.bad"));
        assert_eq!(bad.unwrap(), "bad");
        assert_eq!(leftovers(dir.path()), [""; 0]);
    }

    /// STATE-7: a write that fails at any step leaves the old or the new file whole and no leftovers.
    #[test]
    fn a_failure_at_any_step_leaves_a_whole_file_and_nothing_else() {
        for step in STEPS {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path()).unwrap();
            let _ = put(&store, "old", None).unwrap();
            store.faults.fail(step, 28);
            let error = put(&store, "new", seen(&store).as_ref()).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            let swapped = matches!(step, Step::Remove | Step::SyncDir);
            assert_eq!(
                text(dir.path()),
                if swapped { "new" } else { "old" },
                "{step:?}"
            );
            // What could not be removed goes with the next write.
            store.recover("x.json").unwrap();
            assert_eq!(leftovers(dir.path()), [""; 0], "{step:?}");
        }
    }

    /// STATE-4: a file saved between the last look and the swap is never replaced, whichever way it was saved.
    #[test]
    fn an_edit_in_the_last_moment_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let _ = put(&store, "old", None).unwrap();
        let known = seen(&store).unwrap();
        let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
        fs::write(dir.path().join("edit"), "edit").unwrap();
        fs::rename(dir.path().join("edit"), dir.path().join("x.json")).unwrap();
        assert!(matches!(
            store.commit("x.json", staged, Some(&known), false),
            Ok(Commit::Changed)
        ));
        // The same past the look: what is known is made to agree with the edit in everything but the content.
        let known = Seen {
            stat: store.stat("x.json").unwrap().unwrap(),
            hash: known.hash,
        };
        let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
        let lying = Seen {
            stat: Stat {
                modified_ns: 0,
                ..known.stat
            },
            hash: known.hash,
        };
        assert!(
            !store
                .is_expected(&dir.path().join("x.json"), &lying)
                .unwrap()
        );
        renameat_with(
            CWD,
            &staged.path,
            CWD,
            dir.path().join("x.json"),
            RenameFlags::EXCHANGE,
        )
        .unwrap();
        store
            .swap_back(&staged, &dir.path().join("x.json"))
            .unwrap();
        assert_eq!(text(dir.path()), "edit");
        // And a file that appears where none was.
        fs::remove_file(dir.path().join("x.json")).unwrap();
        let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
        fs::write(dir.path().join("x.json"), "edit").unwrap();
        assert!(matches!(
            store.commit("x.json", staged, None, false),
            Ok(Commit::Changed)
        ));
        assert_eq!(text(dir.path()), "edit");
    }

    /// STATE-5: bad files are kept, the newest as `.bad`, at most ten.
    #[test]
    fn at_most_ten_bad_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for number in 0..12 {
            fs::write(dir.path().join("x.json"), format!("bad {number}")).unwrap();
            let staged = store.stage("x.json", |out| out.write_all(b"good")).unwrap();
            let done = store.commit("x.json", staged, seen(&store).as_ref(), true);
            assert!(matches!(done, Ok(Commit::Done { .. })));
            assert_eq!(text(dir.path()), "good");
        }
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).ok();
        assert_eq!(read("x.json.bad").as_deref(), Some("bad 11"));
        assert_eq!(read("x.json.bad.1").as_deref(), Some("bad 10"));
        assert_eq!(read("x.json.bad.9").as_deref(), Some("bad 2"));
        assert_eq!(read("x.json.bad.10"), None);
    }

    /// STATE-6: a missing directory is made for the service alone; the second service is refused; files are 0600.
    #[test]
    fn one_service_owns_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("deep/state");
        let store = Store::open(&dir).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        let _ = put(&store, "x", None).unwrap();
        assert_eq!(mode(&dir.join("x.json")), 0o600);
        let error = Store::open(&dir).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "state directory {} is in use by another service (it holds weir.lock); stop it or set WAF_STATE_DIR",
                dir.display()
            )
        );
        drop(store);
        assert!(Store::open(&dir).is_ok());
    }

    /// STATE-6: a directory that cannot be written stops the start.
    #[test]
    fn a_directory_that_cannot_be_written_stops_the_start() {
        let error = Store::open(Path::new("/dev/null/state")).err().unwrap();
        let error = error.to_string();
        assert!(
            error.starts_with("state directory /dev/null/state cannot be made: "),
            "{error}"
        );
    }
}
