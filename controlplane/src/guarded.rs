//! The one reader of files that others write (RELOAD-4).
//!
//! Opening a pipe blocks until its other end is open, a device has no end, and a mistaken path can
//! name a file of any size. Here an open never blocks on these, a file that is not regular is
//! refused with a sentence, and no more is read than the caller allows. A hanging mount blocks
//! every reader: so reads during service happen on threads that nobody waits for without a
//! deadline, and [`being_read`] tells which file hangs.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a regular file for reading.
///
/// # Errors
/// The system's error, or what lies there instead of a file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// Opens or creates a regular file with these options.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let _noted = Noted::new(path);
    #[cfg(debug_assertions)]
    test_hook::hang_if_asked(path);
    let opened = options.custom_flags(flags()).open(path);
    // Opening a socket, or a pipe for writing, fails with an error that does not say why.
    let file = opened.map_err(|error| match error.kind() {
        ErrorKind::NotFound if path.is_symlink() => {
            io::Error::other("it is a link that leads to nothing, and a regular file is expected")
        }
        _ => what_lies_there(path).unwrap_or(error),
    })?;
    is_regular(&file)?;
    Ok(file)
}

/// Opens or creates a file to append lines to. It may be a pipe or a device, if opening it does not
/// block.
///
/// # Errors
/// The system's error, or that nobody reads the pipe.
pub(crate) fn append(path: &Path, mode: u32) -> io::Result<File> {
    let _noted = Noted::new(path);
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(mode);
    let opened = options.custom_flags(flags()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::other("it is a named pipe that nobody reads"),
        _ => error,
    })?;
    // Writes to a pipe may block as usual.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// Reads the whole content of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`], or the file is larger.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let _noted = Noted::new(path);
    whole(&mut file, most)
}

/// The outcome of asking for a file that need not be there: none where it is not.
///
/// # Errors
/// Every other error of the system.
pub(crate) fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// The metadata of an open file, if it is regular.
///
/// # Errors
/// What it is instead.
pub fn is_regular(file: &File) -> io::Result<Metadata> {
    let found = file.metadata()?;
    other_than_file(found.file_type()).map_or(Ok(found), Err)
}

/// Reads the rest of an open file of at most `most` bytes.
///
/// # Errors
/// What the system says, or the file is larger.
pub fn whole(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    let mut bytes = Vec::new();
    if size <= most {
        bytes.reserve_exact(usize::try_from(size).unwrap_or(0).saturating_add(1));
        // The bound holds even if the file grows meanwhile.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    if size > most || bytes.len() as u64 > most {
        return Err(io::Error::other(format!(
            "it is larger than {}",
            size_text(most)
        )));
    }
    Ok(bytes)
}

/// The metadata of a path, with links followed.
///
/// # Errors
/// As the system says.
pub(crate) fn look(path: &Path) -> io::Result<Metadata> {
    let _noted = Noted::new(path);
    #[cfg(debug_assertions)]
    test_hook::hang_if_asked(path);
    fs::metadata(path)
}

/// The files that any thread is opening or reading now: for a read that hangs, this tells of which
/// file.
pub fn being_read() -> Vec<PathBuf> {
    reading().clone()
}

/// Flags of an open that does not block, and does not take over a terminal.
fn flags() -> i32 {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    i32::try_from(flags.bits()).unwrap_or(0)
}

fn what_lies_there(path: &Path) -> Option<io::Error> {
    other_than_file(fs::metadata(path).ok()?.file_type())
}

fn other_than_file(found: FileType) -> Option<io::Error> {
    let what = match found {
        found if found.is_file() => return None,
        found if found.is_dir() => "a directory",
        found if found.is_fifo() => "a named pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    Some(io::Error::other(format!(
        "it is {what}, and a regular file is expected"
    )))
}

fn size_text(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let even = |(shift, _): &(u32, &str)| bytes.trailing_zeros() >= *shift && bytes > 0;
    match units.iter().find(|unit| even(unit)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

/// At most one for each thread that reads.
static READING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn reading() -> MutexGuard<'static, Vec<PathBuf>> {
    // Nothing panics while it is held.
    READING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a file is being read, until it is dropped.
struct Noted<'a>(&'a Path);

impl<'a> Noted<'a> {
    fn new(path: &'a Path) -> Self {
        reading().push(path.to_owned());
        Self(path)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut reading = reading();
        if let Some(at) = reading.iter().position(|path| path == self.0) {
            reading.swap_remove(at);
        }
    }
}

/// A test can have a file stand for one of a mount that hangs: `WEIR_TEST_HANGING_FILE=<file>`
/// names a file whose text is a path; for as long as it says so, nobody gets past an open of that
/// path, nor past making a state file there. `<file>.reached` is there once somebody is held. Not
/// in a release build.
#[cfg(debug_assertions)]
pub(crate) mod test_hook {
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;
    use std::time::Duration;

    pub(crate) fn hang_if_asked(path: &Path) {
        let Some(asked) = std::env::var_os("WEIR_TEST_HANGING_FILE") else {
            return;
        };
        let hangs = || std::fs::read(&asked).is_ok_and(|text| text == path.as_os_str().as_bytes());
        if hangs() {
            let _ = std::fs::write(Path::new(&asked).with_extension("reached"), "");
        }
        while hangs() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode, mknodat};

    use super::*;

    /// RELOAD-4: the error about anything but a regular file names its kind, at once; a file is
    /// read up to its bound and no further.
    #[test]
    fn only_regular_files_within_their_bound_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        mknodat(
            CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from(0o666),
            0,
        )
        .unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink(at("pipe"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("none"), at("dangling")).unwrap();
        let told = |path: &Path| read(path, 4).unwrap_err().to_string();
        for (path, what) in [
            (at("pipe"), "a named pipe"),
            (at("link"), "a named pipe"),
            (at("dangling"), "a link that leads to nothing"),
            (at("socket"), "a socket"),
            (at("."), "a directory"),
            ("/dev/zero".into(), "a device"),
        ] {
            let sentence = format!("it is {what}, and a regular file is expected");
            assert_eq!(told(&path), sentence);
        }
        for (content, is_read) in [("", true), ("1234", true), ("12345", false)] {
            fs::write(at("file"), content).unwrap();
            match read(&at("file"), 4) {
                Ok(bytes) => assert!(is_read && bytes == content.as_bytes()),
                Err(error) => assert!(!is_read, "{error}"),
            }
        }
        assert_eq!(told(&at("file")), "it is larger than 4 bytes");
        // A file of /proc has no size.
        assert_eq!(
            told(Path::new("/proc/self/status")),
            "it is larger than 4 bytes"
        );
        assert_eq!(
            read(&at("none"), 4).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert!(
            being_read()
                .iter()
                .all(|path| !path.starts_with(dir.path()))
        );
        let sizes = [
            (1 << 30, "1 GiB"),
            (64 << 20, "64 MiB"),
            (32 << 10, "32 KiB"),
            (4096, "4 KiB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(size_text(bytes), text);
        }
    }
}
