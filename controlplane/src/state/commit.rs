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

use super::stat::{Seen, Stat, content};
use super::store::{Staged, Step, Store};
use crate::beside;

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

/// Outcome of a rename onto the target.
enum Replaced {
    /// The new file stands; with the old one, where it was swapped.
    Yes(Option<File>),
    /// The target was not the file that was last seen; it stands as it was.
    No,
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
                let left = Leftover::new(&self.dir, name, set_aside, old, &staged.seen);
                fs::rename(&staged.path, &left.path)?;
                staged.path = left.path;
                RenameFlags::EXCHANGE
            }
            None => RenameFlags::NOREPLACE,
        };
        self.step(Step::Swap).inspect_err(|_| {
            staged.keep = self.crashed();
        })?;
        let renamed = renameat_with(CWD, &staged.path, CWD, &target, swap).map_err(io::Error::from);
        let replaced = match renamed {
            Ok(()) => {
                staged.keep = true;
                match expected {
                    Some(old) => self.check_swapped(name, &staged, old, set_aside)?,
                    None => Replaced::Yes(None),
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) =>
            {
                Replaced::No
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
                ) =>
            {
                self.rename_plainly(name, &mut staged, expected, set_aside)?
            }
            Err(error) => return Err(error),
        };
        let Replaced::Yes(displaced) = replaced else {
            return Ok(Commit::Changed);
        };
        let seen = self.sync_dir(name, staged.seen)?;
        Ok(Commit::Done { seen, displaced })
    }

    /// Makes the rename last; returns the new file as it stands.
    fn sync_dir(&self, name: &str, mut seen: Seen) -> io::Result<Seen> {
        self.step(Step::SyncDir)?;
        File::open(&self.dir)?.sync_all()?;
        // The rename moved the change time. If somebody replaced the file already, the difference
        // is seen at the next look.
        if let Some(stat) = self.stat(name)?
            && stat.same_content(&seen.stat)
        {
            seen.stat = stat;
        }
        Ok(seen)
    }

    /// After a swap: the old file goes if it is the one that was last seen. If not, it is an edit
    /// and is put back.
    fn check_swapped(
        &self,
        name: &str,
        staged: &Staged,
        expected: &Seen,
        set_aside: bool,
    ) -> io::Result<Replaced> {
        let is_expected = self.is_expected(&staged.path, expected);
        if !matches!(is_expected, Ok(true)) {
            self.swap_back(staged, &self.path(name))?;
            return is_expected.map(|_| Replaced::No);
        }
        let displaced = File::open(&staged.path).ok();
        self.step(Step::Remove)?;
        if set_aside {
            self.rotate(name, &staged.path)?;
        } else {
            fs::remove_file(&staged.path)?;
        }
        Ok(Replaced::Yes(displaced))
    }

    /// A file system or a kernel without these flags: the plain rename, after one more look.
    fn rename_plainly(
        &self,
        name: &str,
        staged: &mut Staged,
        expected: Option<&Seen>,
        set_aside: bool,
    ) -> io::Result<Replaced> {
        let target = self.path(name);
        if self.stat(name)? != expected.map(|seen| seen.stat) {
            return Ok(Replaced::No);
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
        Ok(Replaced::Yes(None))
    }

    /// Ends what a write left behind when it was killed or failed (STATE-2, STATE-4). An edit that
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
            let entry = entry?;
            let left = entry.file_name().to_str().and_then(|file| {
                let rest = file
                    .strip_prefix('.')?
                    .strip_prefix(name)?
                    .strip_prefix('.')?;
                let (kind, hashes) = rest.split_once('.')?;
                let (old, new) = hashes.split_once('.')?;
                Some(Leftover {
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
        self.step(Step::Look)?;
        // The swap itself moved the change time, so size and modification time decide, and the
        // content in doubt.
        let stat = Stat::of(&fs::metadata(path)?);
        if stat.same_content(&expected.stat) && !stat.is_racy() {
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
            // Another save replaced our file in between; it is newer than the edit that was put
            // back, so it counts.
            renameat_with(CWD, &staged.path, CWD, target, RenameFlags::EXCHANGE)?;
        }
        self.step(Step::Remove)?;
        fs::remove_file(&staged.path)
    }
}

/// Kinds of [`Leftover`]: the old file is to go, or to be kept as a bad one.
const SWAP: &str = "swap";
const ASIDE: &str = "aside";

impl Leftover {
    fn new(dir: &Path, name: &str, set_aside: bool, old: &Seen, new: &Seen) -> Self {
        let kind = if set_aside { ASIDE } else { SWAP };
        let (old, new) = (HEXLOWER.encode(&old.hash), HEXLOWER.encode(&new.hash));
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
    HEXLOWER.encode(&read.flatten().map_or([0; 32], |(_, seen)| seen.hash))
}

#[cfg(test)]
mod tests;
