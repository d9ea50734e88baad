//! Replaces rules.json, which people and commands write, by compare and swap (CONTROL-8).
//!
//! Everything here works on descriptors (CONTROL-7): the directory is opened once, and files are
//! opened, created, chowned and renamed relative to it. So the directory's owner cannot lead a
//! writer with more rights, such as root, to a file elsewhere. A symbolic link is followed if it
//! belongs to root or to the writer, or if it leads to a directory of the link's owner.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid, fchmod,
    fchown, flock, fstat, openat, readlinkat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use sha2::{Digest, Sha256};

use super::list_file::MAX_BYTES;
use crate::guarded;
use crate::state::stat::Stat;

/// The most links that are followed in a row; the system follows 40.
const MAX_LINKS: usize = 8;
/// The pause between tries to lock: others hold the lock for one write.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const LOCK_TRIES: usize = 1000;
/// The mode of a new file.
const NEW_MODE: u32 = 0o640;

/// A file, by its open directory and its name there.
pub(super) struct Place {
    dir: OwnedFd,
    name: OsString,
}

/// The content of the file, with its owner and mode. The time of the file is left out: two saves of
/// one size within a tick of the clock have the same.
#[derive(PartialEq)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    owner: (u32, u32),
    mode: u32,
}

impl Place {
    /// Finds the file, or the place where it would be. The directory stays locked until this is
    /// dropped, so that no other caller writes meanwhile.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        let mut place = Self {
            dir: open_dir(CWD, path)?,
            name: name_of(path)?,
        };
        // A link of another user may lead only to that user's own directories.
        let mut only = None;
        for _ in 0..MAX_LINKS {
            let found = match statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::NOENT) => return place.locked(),
                Err(error) => return Err(error.into()),
            };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile => return place.locked(),
                FileType::Symlink => place = place.follow(found.st_uid, &mut only)?,
                _ => return Err(io::Error::other("it is not a file")),
            }
        }
        Err(Errno::LOOP.into())
    }

    fn follow(&self, owner: u32, only: &mut Option<u32>) -> io::Result<Self> {
        let target = readlinkat(&self.dir, &self.name, Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        let dir = open_dir(&self.dir, target)?;
        if owner != 0 && owner != geteuid().as_raw() {
            only.get_or_insert(owner);
        }
        let whose = fstat(&dir)?.st_uid;
        if only.is_some_and(|only| only != whose) {
            return Err(io::Error::other(format!(
                "it is a link of uid {owner} to {}, in a directory of uid {whose}: it is not followed; name the file itself with WAF_RULES_FILE",
                target.display()
            )));
        }
        let name = name_of(target)?;
        Ok(Self { dir, name })
    }

    /// Locks the directory, and completes or undoes a write that was killed.
    fn locked(self) -> io::Result<Self> {
        for _ in 0..LOCK_TRIES {
            match flock(&self.dir, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                // Some network file systems cannot lock a directory: the comparison still protects
                // edits.
                Ok(()) | Err(_) => {
                    self.recover()?;
                    return Ok(self);
                }
            }
        }
        Err(io::Error::other(
            "its directory is locked by another program",
        ))
    }

    /// Reads the whole file; none if there is no file.
    pub(super) fn read(&self) -> io::Result<Option<Held>> {
        match self.open(&self.name) {
            Ok(file) => held(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the content that was read by a text, with the same owner and mode; a new file gets
    /// the directory's owner. Returns false, and changes nothing, if the file has changed
    /// meanwhile.
    pub(super) fn swap(&self, old: Option<&Held>, text: &[u8]) -> io::Result<bool> {
        let new = self.name_with(".new");
        remove(&self.dir, &new)?;
        let swapped = self
            .write_new(&new, old, text)
            .and_then(|written| match old {
                Some(old) => self.exchange(&new, old, text, &written),
                None => match renameat_with(
                    &self.dir,
                    &new,
                    &self.dir,
                    &self.name,
                    RenameFlags::NOREPLACE,
                ) {
                    Ok(()) => Ok(true),
                    Err(Errno::EXIST) => Ok(false),
                    Err(error) if is_unknown(error) => self.rename_plainly(&new, None),
                    Err(error) => Err(error.into()),
                }
                .and_then(|swapped| Ok(swapped && self.stands(&written)?)),
            });
        let _ = remove(&self.dir, &new);
        let swapped = swapped?;
        // If the directory cannot be synced, the new file is there all the same.
        let _ = rustix::fs::fsync(&self.dir);
        Ok(swapped)
    }

    fn write_new(&self, name: &OsStr, old: Option<&Held>, text: &[u8]) -> io::Result<Stat> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made = openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::from(0o600))?;
        let mut file = File::from(made);
        file.write_all(text)?;
        let dir = fstat(&self.dir)?;
        let (uid, gid) = old.map_or((dir.st_uid, dir.st_gid), |old| old.owner);
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (uid, gid) {
            let given = fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            // Without root the new file belongs to the caller, as with any editor.
            if !matches!(given, Err(Errno::PERM)) {
                given?;
            }
        }
        let mode = old.map_or(NEW_MODE, |old| old.mode & 0o777);
        fchmod(&file, Mode::from(mode))?;
        file.sync_all()?;
        Ok(Stat::of(&file.metadata()?))
    }

    /// Exchanges the new file and the old one. If the displaced file is not the one that was read,
    /// it is an edit, and is put back. Meanwhile it has a name that `recover` recognizes.
    fn exchange(&self, new: &OsStr, old: &Held, text: &[u8], written: &Stat) -> io::Result<bool> {
        let is_still = self.read()?.as_ref() == Some(old);
        Ok(is_still && self.exchange_looked(new, old, text, written)?)
    }

    fn exchange_looked(
        &self,
        new: &OsStr,
        old: &Held,
        text: &[u8],
        written: &Stat,
    ) -> io::Result<bool> {
        let swap = self.name_with(&format!(".swap.{}.{}", hash(&old.bytes), hash(text)));
        renameat(&self.dir, new, &self.dir, &swap)?;
        let exchange = || {
            let (dir, flags) = (&self.dir, RenameFlags::EXCHANGE);
            renameat_with(dir, &swap, dir, &self.name, flags)
        };
        match exchange() {
            Ok(()) => {}
            Err(Errno::NOENT) => {
                remove(&self.dir, &swap)?;
                return Ok(false);
            }
            Err(error) if is_unknown(error) => return self.rename_plainly(&swap, Some(old)),
            Err(error) => {
                remove(&self.dir, &swap)?;
                return Err(error.into());
            }
        }
        let displaced = self.open(&swap).and_then(held);
        let is_old = displaced.is_ok_and(|displaced| displaced == *old);
        if !is_old {
            exchange()?;
            if !same_file(
                &statat(&self.dir, &swap, AtFlags::SYMLINK_NOFOLLOW)?,
                written,
            ) {
                // The file was saved again in between: that is newer than the edit that was put
                // back.
                exchange()?;
            }
        }
        remove(&self.dir, &swap)?;
        Ok(is_old && self.stands(written)?)
    }

    /// For a file system or kernel without exchange: compares once more, then renames.
    fn rename_plainly(&self, new: &OsStr, old: Option<&Held>) -> io::Result<bool> {
        let is_still = self.read()?.as_ref() == old;
        if is_still {
            renameat(&self.dir, new, &self.dir, &self.name)?;
        } else {
            remove(&self.dir, new)?;
        }
        Ok(is_still)
    }

    /// Whether the file at the name is the one that was written: the directory's owner may have
    /// replaced it.
    fn stands(&self, written: &Stat) -> io::Result<bool> {
        let found = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(same_file(&found, written))
    }

    /// Handles what a killed write has left: removes the old or the new file, and puts a displaced
    /// edit back, or keeps it beside the file if that was saved again.
    fn recover(&self) -> io::Result<()> {
        let begin = self.name_with(".swap.");
        let mut left = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name.as_bytes().starts_with(begin.as_bytes()) {
                left.push(name);
            }
        }
        for name in left {
            let rest = name.as_bytes().get(begin.len()..).unwrap_or_default();
            let text = String::from_utf8_lossy(rest);
            let (old, new) = text.split_once('.').unwrap_or_default();
            let lying = self.open(&name).and_then(held);
            let lying = lying.map(|held| hash(&held.bytes)).unwrap_or_default();
            if lying == old || lying == new {
                remove(&self.dir, &name)?;
                continue;
            }
            let standing = self.read()?.map(|held| hash(&held.bytes));
            if standing.as_deref() == Some(new) {
                renameat(&self.dir, &name, &self.dir, &self.name)?;
                tracing::warn!(file = ?self.name, "an edit that was displaced by a write is put back");
            } else {
                let mut kept = self.name.clone();
                kept.push(".displaced");
                renameat(&self.dir, &name, &self.dir, &kept)?;
                tracing::warn!(file = ?kept, "an edit that was displaced by a write is kept");
            }
        }
        Ok(())
    }

    /// Opens a regular file of the directory, never through a link; a pipe does not block.
    fn open(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.dir, name, flags, Mode::empty())?);
        guarded::is_regular(&file)?;
        Ok(file)
    }

    /// `.rules.json` and an end.
    fn name_with(&self, end: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(end);
        name
    }
}

fn name_of(path: &Path) -> io::Result<OsString> {
    let name = path.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| io::Error::other("it is not the name of a file"))
}

/// Opens the directory that a file lies in.
fn open_dir(at: impl std::os::fd::AsFd, file: &Path) -> io::Result<OwnedFd> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(at, dir, flags, Mode::empty())?)
}

fn held(mut file: File) -> io::Result<Held> {
    let found = file.metadata()?;
    let bytes = guarded::whole(&mut file, MAX_BYTES)?;
    Ok(Held {
        bytes,
        owner: (found.uid(), found.gid()),
        mode: found.mode(),
    })
}

fn remove(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn same_file(found: &rustix::fs::Stat, written: &Stat) -> bool {
    (found.st_dev, found.st_ino) == (written.device, written.inode)
}

/// Whether a rename was refused because its flags are not known.
fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Enough of SHA-256 to tell one edit from another.
fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let first = digest.iter().take(8);
    first.map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Dir {
        dir: tempfile::TempDir,
    }

    impl Dir {
        fn with(text: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("rules.json"), text).unwrap();
            Self { dir }
        }

        fn place(&self) -> io::Result<Place> {
            Place::find(&self.dir.path().join("rules.json"))
        }

        fn text(&self) -> String {
            fs::read_to_string(self.dir.path().join("rules.json")).unwrap()
        }

        /// Every name in it.
        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.dir.path()).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    /// CONTROL-8: an edit saved between the reading and the swap stays, whether by a rename or in
    /// place; a file that was created or removed meanwhile is noticed too. No other file is left.
    #[test]
    fn an_edit_in_between_is_not_lost() {
        let dir = Dir::with("old");
        let place = dir.place().unwrap();
        let held = place.read().unwrap();
        fs::write(dir.dir.path().join("mine"), "hand").unwrap();
        fs::rename(
            dir.dir.path().join("mine"),
            dir.dir.path().join("rules.json"),
        )
        .unwrap();
        assert!(!place.swap(held.as_ref(), b"new").unwrap());
        assert_eq!(
            (dir.text(), dir.names()),
            ("hand".to_owned(), vec!["rules.json".to_owned()])
        );
        let held = place.read().unwrap();
        fs::write(dir.dir.path().join("rules.json"), "in place").unwrap();
        assert!(!place.swap(held.as_ref(), b"new").unwrap());
        assert_eq!(dir.text(), "in place");
        let held = place.read().unwrap();
        assert!(!place.swap(None, b"new").unwrap(), "there was none");
        assert!(place.swap(held.as_ref(), b"new").unwrap());
        assert_eq!(dir.text(), "new");
        fs::remove_file(dir.dir.path().join("rules.json")).unwrap();
        assert!(!place.swap(held.as_ref(), b"newer").unwrap(), "it is gone");
        assert!(place.swap(None, b"newer").unwrap());
        assert_eq!(
            (dir.text(), dir.names()),
            ("newer".to_owned(), vec!["rules.json".to_owned()])
        );
    }

    /// CONTROL-8: an edit saved at the last moment, after the last check, is put back by the swap,
    /// also if it has the size and the time of what was read: editors save within one tick of the
    /// clock, too.
    #[test]
    fn an_edit_in_the_last_moment_is_put_back() {
        let dir = Dir::with("old!");
        let place = dir.place().unwrap();
        let held = place.read().unwrap().unwrap();
        let new = place.name_with(".new");
        let written = place.write_new(&new, Some(&held), b"new").unwrap();
        let path = dir.dir.path().join("rules.json");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "hand").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
        let swapped = place.exchange_looked(&new, &held, b"new", &written);
        assert!(!swapped.unwrap());
        assert_eq!(dir.text(), "hand");
        assert_eq!(dir.names(), ["rules.json"]);
        assert!(!place.swap(Some(&held), b"newer").unwrap());
        assert_eq!(dir.text(), "hand");
    }

    /// CONTROL-8: a killed write leaves the old or the new file under another name, which is
    /// removed later; an edit that it displaced is put back, or is kept beside a newer one.
    #[test]
    fn a_killed_write_is_ended() {
        let left = |lying: &str, standing: &str| {
            let dir = Dir::with(standing);
            let name = format!(".rules.json.swap.{}.{}", hash(b"old"), hash(b"new"));
            fs::write(dir.dir.path().join(name), lying).unwrap();
            drop(dir.place().unwrap());
            dir
        };
        for (lying, standing) in [("new", "old"), ("old", "new"), ("old", "later")] {
            let dir = left(lying, standing);
            assert_eq!(dir.text(), standing);
            assert_eq!(dir.names(), ["rules.json"], "{lying} {standing}");
        }
        let dir = left("edit", "new");
        assert_eq!(
            (dir.text(), dir.names()),
            ("edit".to_owned(), vec!["rules.json".to_owned()])
        );
        let dir = left("edit", "later");
        assert_eq!(dir.text(), "later");
        assert_eq!(dir.names(), ["rules.json", "rules.json.displaced"]);
    }

    /// CONTROL-7: the swap neither waits for nor overwrites a pipe or a directory, and follows a
    /// bounded number of links.
    #[test]
    fn only_a_file_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.json");
        let refused = |path: &Path| Place::find(path).err().unwrap().to_string();
        std::os::unix::fs::symlink("rules.json", &path).unwrap();
        assert!(
            refused(&path).contains("symbolic link"),
            "{}",
            refused(&path)
        );
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(refused(&path), "it is not a file");
        fs::remove_dir(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        assert_eq!(refused(&path), "it is not a file");
        assert!(Place::find(&dir.path().join("missing/rules.json")).is_err());
    }
}
