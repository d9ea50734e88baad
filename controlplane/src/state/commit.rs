//! The write that leaves a whole old or a whole new file, whatever happens in between (STATE-2).
//!
//! A write swaps the new file with the old one (`renameat2` with `RENAME_EXCHANGE`) instead of
//! replacing it, where the file system can: a plain rename would silently destroy an edit saved
//! between the last look and the rename. After the swap the old file is looked at once more; if it
//! is not the one that was read, the swap is undone. Until it was looked at it lies under a name
//! that says what it should be, so that a kill in between loses no edit either ([`Leftover`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::stat::{self, Seen, Stat, content};
use super::step::Step;
use super::store::{Staged, Store};
use crate::{beside, guarded};

/// What became of a [`Store::commit`].
pub(super) enum Commit {
    /// The new file stands; `displaced` is the old one, whose name is gone. An editor may still
    /// hold it open.
    Done { seen: Seen, displaced: Option<File> },
    /// The file is not the one that was last read: nothing was written.
    Changed,
}

/// What a write that did not come to its end left behind, under a name that says which file was to
/// be replaced by which: `.bans.json.swap.<old>.<new>`, both as SHA-256 in hexadecimal. Until the
/// swap the new file lies there, whole and synced; from then on the old one, or an edit that was
/// saved in the last moment.
struct Leftover {
    path: PathBuf,
    /// The old file was judged bad and is to be kept (STATE-5).
    set_aside: bool,
    old: String,
    new: String,
}

impl Store {
    /// Puts the new file in the place of the one that was last seen, and syncs the directory. With
    /// `set_aside` the old file was judged bad: it is kept as `<name>.bad`, older ones as `.bad.1`
    /// … (STATE-5).
    ///
    /// There is no moment without a whole file: a bad edit leaves only when the new file already
    /// stands.
    pub(super) fn commit(
        &self,
        name: &str,
        mut staged: Staged<'_>,
        expected: Option<&Seen>,
        set_aside: bool,
    ) -> io::Result<Commit> {
        let target = self.path(name);
        if self.stat(name)? != expected.map(|seen| seen.stat) {
            return Ok(Commit::Changed);
        }
        let swap = match expected {
            Some(old) => {
                self.faults.step(Step::Name)?;
                let left = self.leftover(name, set_aside, old, &staged.seen);
                fs::rename(&staged.file.path, &left)?;
                staged.file.path = left;
                RenameFlags::EXCHANGE
            }
            None => RenameFlags::NOREPLACE,
        };
        self.faults.step(Step::Swap)?;
        match renameat_with(CWD, &staged.file.path, CWD, &target, swap).map_err(io::Error::from) {
            Ok(()) => {
                staged.file.keep = true;
                match expected {
                    Some(old) => self.check_swapped(name, &staged, old, set_aside),
                    None => self.done(name, staged.seen, None),
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => Ok(Commit::Changed),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => {
                    self.rename_plainly(name, staged, expected, set_aside)
                }
                _ => Err(error),
            },
        }
    }

    /// The new file stands: makes that last.
    fn done(&self, name: &str, mut seen: Seen, displaced: Option<File>) -> io::Result<Commit> {
        self.sync_dir()?;
        // The rename moved the change time. If somebody replaced the file already, the difference
        // is seen at the next look.
        if let Some(stat) = self.stat(name)?
            && stat.same_content(&seen.stat)
        {
            seen.stat = stat;
        }
        Ok(Commit::Done { seen, displaced })
    }

    /// After a swap: the old file goes if it is the one that was last seen. If not, it is an edit
    /// and is put back.
    fn check_swapped(
        &self,
        name: &str,
        staged: &Staged<'_>,
        expected: &Seen,
        set_aside: bool,
    ) -> io::Result<Commit> {
        let old = &staged.file.path;
        let is_expected = self.is_expected(old, expected);
        if !matches!(is_expected, Ok(true)) {
            self.swap_back(staged, &self.path(name))?;
            return is_expected.map(|_| Commit::Changed);
        }
        let displaced = File::open(old).ok();
        self.faults.step(Step::Remove)?;
        if set_aside {
            self.rotate(name, old)?;
        } else {
            fs::remove_file(old)?;
        }
        self.done(name, staged.seen, displaced)
    }

    /// A file system or a kernel without these flags: the plain rename, after one more look.
    fn rename_plainly(
        &self,
        name: &str,
        mut staged: Staged<'_>,
        expected: Option<&Seen>,
        set_aside: bool,
    ) -> io::Result<Commit> {
        let target = self.path(name);
        if self.stat(name)? != expected.map(|seen| seen.stat) {
            return Ok(Commit::Changed);
        }
        let bad = self.linked(name);
        if set_aside {
            let _ = fs::remove_file(&bad);
            fs::hard_link(&target, &bad)?;
        }
        fs::rename(&staged.file.path, &target)?;
        staged.file.keep = true;
        if set_aside {
            self.rotate(name, &bad)?;
        }
        self.done(name, staged.seen, None)
    }

    /// Cleans up behind a write that was killed or failed (STATE-2, STATE-4). An edit that
    /// it displaced is put back in its place; if that was saved anew meanwhile, it is kept as a bad
    /// one is.
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
    fn left(&self, name: &str) -> io::Result<Vec<Leftover>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            found.extend(Leftover::read(name, entry?.path()));
        }
        Ok(found)
    }

    /// The name of a [`Leftover`] of this file.
    fn leftover(&self, name: &str, set_aside: bool, old: &Seen, new: &Seen) -> PathBuf {
        let kind = if set_aside { ASIDE } else { SWAP };
        let [old, new] = [old, new].map(|seen| HEXLOWER.encode(&seen.hash));
        self.path(&format!(".{name}.{kind}.{old}.{new}"))
    }

    /// Moves away what lies in the place of a file and is none. Returns under which name. A
    /// directory has a name of its own, and is never replaced: it may hold anything.
    pub(super) fn set_aside(&self, name: &str) -> io::Result<String> {
        let path = self.path(name);
        if fs::symlink_metadata(&path)?.is_dir() {
            let aside = format!("{name}.directory");
            let place = self.dir.join(&aside);
            renameat_with(CWD, &path, CWD, &place, RenameFlags::NOREPLACE)?;
            return Ok(aside);
        }
        self.rotate(name, &path)?;
        Ok(format!("{name}.bad"))
    }

    /// Moves a bad file into the row of those set aside: the newest is `.bad`, the eleventh is
    /// dropped.
    fn rotate(&self, name: &str, bad: &Path) -> io::Result<()> {
        fs::rename(bad, beside::room_aside(&self.path(name))?)
    }

    /// Whether the old file, after a swap, is the one that was last seen.
    fn is_expected(&self, path: &Path, expected: &Seen) -> io::Result<bool> {
        self.faults.step(Step::Look)?;
        // The swap itself moved the change time, so size and modification time decide, and the
        // content in doubt.
        let stat = Stat::of(&fs::metadata(path)?);
        if stat.same_content(&expected.stat) && !stat.is_racy() {
            return Ok(true);
        }
        // A pipe that somebody put there at the last moment is not waited for (RELOAD-4).
        let (_, seen) = content(&mut guarded::open(path)?)?;
        Ok(seen.hash == expected.hash)
    }

    /// Undoes a swap that displaced an edit.
    fn swap_back(&self, staged: &Staged<'_>, target: &Path) -> io::Result<()> {
        let old = &staged.file.path;
        self.faults.step(Step::SwapBack)?;
        renameat_with(CWD, old, CWD, target, RenameFlags::EXCHANGE)?;
        if fs::metadata(old)?.ino() != staged.seen.stat.inode {
            // Another save replaced our file in between; it is newer than the edit that was put
            // back, so it counts.
            renameat_with(CWD, old, CWD, target, RenameFlags::EXCHANGE)?;
        }
        self.faults.step(Step::Remove)?;
        fs::remove_file(old)
    }
}

/// Kinds of [`Leftover`]: the old file is to go, or to be kept as a bad one.
const SWAP: &str = "swap";
const ASIDE: &str = "aside";

impl Leftover {
    /// None where the file at this path is none.
    fn read(name: &str, path: PathBuf) -> Option<Self> {
        let file = path.file_name()?.to_str()?;
        let (kind, hashes) = file.strip_prefix(&format!(".{name}."))?.split_once('.')?;
        let (old, new) = hashes.split_once('.')?;
        let set_aside = match kind {
            SWAP => false,
            ASIDE => true,
            _ => return None,
        };
        Some(Self {
            set_aside,
            old: old.to_owned(),
            new: new.to_owned(),
            path,
        })
    }
}

/// SHA-256 of a file's content, in hexadecimal; zeros where it cannot be read.
fn hash_of(path: &Path) -> String {
    let read = stat::read(path).ok().flatten();
    HEXLOWER.encode(&read.map_or([0; 32], |(_, seen)| seen.hash))
}

#[cfg(test)]
mod tests;
