//! Replaces a file by a new one written beside it, on a thread of its own if the caller must not
//! wait (STATE-2).

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::guarded::if_there;
use crate::state::create;

/// Replaces a file as a whole or not at all: `write` fills `.NAME.tmp` in its directory, which is
/// synced and renamed. The file has mode 0600. One caller at a time for each path.
///
/// # Errors
/// Errors of the system. The old file is unchanged then, and the temporary file is removed.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".tmp");
    let new = path.with_file_name(name);
    if_there(fs::remove_file(&new))?;
    let mut out = BufWriter::new(create(&new)?);
    let written = write(&mut out)
        .and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error))
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// The most files that are set aside for each name: `.bad`, `.bad.1` … `.bad.9` (STATE-5).
const MAX_BAD: usize = 10;

/// Makes `NAME.bad` free to set a file aside: earlier ones move on by one number, and the oldest is
/// removed. Returns that path.
///
/// # Errors
/// Those of the system.
pub(crate) fn room_aside(path: &Path) -> io::Result<PathBuf> {
    let numbered = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(".bad");
        if number > 0 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    for number in (0..MAX_BAD - 1).rev() {
        if_there(fs::rename(numbered(number), numbered(number + 1)))?;
    }
    Ok(numbered(0))
}

/// A write on a thread of its own, so that a hanging disk holds up nobody else.
pub(crate) struct Writing(Receiver<io::Result<()>>);

impl Writing {
    /// Begins it.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn begin(
        thread: &str,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (told, done) = bounded(1);
        let thread = std::thread::Builder::new().name(thread.to_owned());
        thread.spawn(move || told.send(work()))?;
        Ok(Self(done))
    }

    /// The result of the write, waiting at most `patience`; none while it is under way. No other
    /// write may begin before its end.
    pub(crate) fn ended(&self, patience: Duration) -> Option<io::Result<()>> {
        match self.0.recv_timeout(patience) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(lost())),
        }
    }
}

/// The file of this name is still being written: nobody else may write it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is still being written")]
pub(crate) struct UnderWay(pub(crate) &'static str);

/// The error of a write that takes too long.
pub(crate) fn late() -> io::Error {
    io::Error::other("it took too long")
}

fn lost() -> io::Error {
    io::Error::other("its thread ended before it was written")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// STATE-2: a file is replaced whole, whatever lay beside it; if the write fails, the file
    /// stays as it was, and nothing is left beside it.
    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.json");
        let names = || fs::read_dir(dir.path()).unwrap().count();
        fs::write(dir.path().join(".kept.json.tmp"), "half of an earlier one").unwrap();
        replace(&path, |out| out.write_all(b"first")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names()), (b"first".to_vec(), 1));
        let failed = replace(&path, |out| {
            out.write_all(b"sec")?;
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
        assert_eq!((fs::read(&path).unwrap(), names()), (b"first".to_vec(), 1));
    }

    /// RESTART-4: a writer for the next process gets an error if the thread ends without an answer,
    /// or fails.
    #[test]
    fn a_thread_that_ends_is_told() {
        let patience = Duration::from_secs(60);
        let told = |writing: &Writing| writing.ended(patience).unwrap();
        let failed = Writing::begin("test", || Err(io::Error::other("read-only"))).unwrap();
        assert_eq!(told(&failed).unwrap_err().to_string(), "read-only");
        let done = Writing::begin("test", || Ok(())).unwrap();
        assert!(told(&done).is_ok());
        assert_eq!(told(&done).unwrap_err().to_string(), lost().to_string());
    }
}
