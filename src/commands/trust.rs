//! Decides which service a command trusts (CONTROL-7): a user with more rights than the service,
//! such as root, must not be led to other files by a socket that anybody may have made.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, fchown, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Users whose socket is believed: root, who runs the command, and the owners of the directories
/// that were named.
pub struct Believed {
    /// Each existing directory, with its owner.
    named: Vec<(PathBuf, u32)>,
}

impl Believed {
    /// Believes root, the user who runs the command, and the owners of these directories.
    pub fn owners_of(dirs: &[&Path]) -> Self {
        let owned = |dir: &&Path| {
            let found = fs::metadata(dir).ok()?;
            Some((dir.to_path_buf(), found.uid()))
        };
        Self {
            named: dirs.iter().filter_map(owned).collect(),
        }
    }

    fn is(&self, uid: u32) -> bool {
        is_own_or_root(uid) || self.named.iter().any(|(_, owner)| *owner == uid)
    }

    /// Whether only root and the user who runs the command are believed.
    pub fn is_own(&self) -> bool {
        (self.named.iter()).all(|(_, owner)| is_own_or_root(*owner))
    }

    /// Why a process of user `process` behind this socket is not believed; none if it is.
    pub fn doubt(&self, socket: &Path, process: u32) -> Option<String> {
        let whose = |place: &Path| fs::metadata(place).map(|found| found.uid()).ok();
        let link = fs::symlink_metadata(socket).map(|found| found.uid()).ok();
        let real = fs::canonicalize(socket).ok();
        let parts = [
            ("its process", Some(process)),
            ("its name", link),
            ("its directory", whose(parent(socket))),
            ("its directory", real.and_then(|real| whose(parent(&real)))),
        ];
        // A file or directory that is gone meanwhile counts as not believed.
        let wrong = |(_, owner): &(&str, Option<u32>)| owner.is_none_or(|uid| !self.is(uid));
        let (part, owner) = parts.into_iter().find(wrong)?;
        let owner = owner.map_or("nobody".to_owned(), |uid| format!("uid {uid}"));
        let named = self.named.iter();
        let named = named.map(|(dir, uid)| format!(", the owner of {} (uid {uid})", dir.display()));
        let named: String = named.collect();
        Some(format!(
            "the control socket {} is not believed: {part} belongs to {owner}; expected root, yourself{named}: run the command as that user, or name the state directory of the service with WAF_STATE_DIR",
            socket.display()
        ))
    }
}

/// Whether a directory, and a link that leads to it, belong to the user who runs the command.
pub fn is_own(dir: &Path) -> bool {
    let is_own = |found: std::io::Result<fs::Metadata>| found.is_ok_and(|it| it.uid() == own_uid());
    is_own(fs::symlink_metadata(dir)) && is_own(fs::metadata(dir))
}

/// Creates a file, or truncates the existing one. If another user may create files in its
/// directory, no link is followed: whatever has the name is removed, and the new file belongs to
/// the directory's owner (CONTROL-7).
///
/// # Errors
/// As the system says.
pub fn create(path: &Path) -> io::Result<File> {
    let dir = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, parent(path), dir, Mode::empty())?;
    let found = fstat(&dir)?;
    let is_open_to_all = found.st_mode & 0o002 != 0;
    let Some(name) = path.file_name() else {
        return Err(Errno::ISDIR.into());
    };
    if is_own_or_root(found.st_uid) && !is_open_to_all {
        return File::create(path);
    }
    match unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&dir, name, new, Mode::from(0o644))?;
    if own_uid() != found.st_uid && geteuid().is_root() {
        let (owner, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        fchown(&file, Some(owner), Some(group))?;
    }
    Ok(File::from(file))
}

fn is_own_or_root(uid: u32) -> bool {
    uid == 0 || uid == own_uid()
}

/// The user who runs the command.
fn own_uid() -> u32 {
    geteuid().as_raw()
}

/// The directory that a file lies in.
pub fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
