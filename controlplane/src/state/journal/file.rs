//! The journal on disk: read once at a start, appended to, emptied.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::guarded::{if_there, is_regular, whole};
use crate::state::error::StateError;
use crate::state::stat::MAX_BYTES;
use crate::state::step::{Faults, Step};
use crate::state::store::create;

/// The file's name.
pub(crate) const JOURNAL: &str = "bans.journal";
/// The document that its lines come behind.
const DOCUMENT: &str = "bans.json";
/// Where a damaged one is kept.
const BAD: &str = "bans.journal.bad";
/// Where a directory that lay in its place is kept.
const DIRECTORY: &str = "bans.journal.directory";
/// The most bytes that are written at once. What is larger goes into a document.
const MAX_APPEND: usize = 32 << 20;

/// The largest number that is believed, of a line or of a base. The service itself writes no line
/// with a number above half of it, so it never comes to a number that it would not read.
pub(crate) const LAST_NUMBER: u64 = 1 << 48;

/// A batch of changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Line<E, K> {
    /// Larger than that of the line before.
    pub(crate) number: u64,
    /// Entries that were added or changed, as they are now.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub(crate) put: Vec<E>,
    /// Entries that are held no more.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub(crate) remove: Vec<K>,
}

impl<E, K> Line<E, K> {
    pub(super) fn len(&self) -> usize {
        self.put.len() + self.remove.len()
    }
}

/// Why lines were lost, until the journal is emptied. A document must hold them.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// Somebody removed the file, or wrote to it, or removed the document.
    #[error("the journal is not as it was left, or bans.json is gone")]
    Gone,
    /// What the system said.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Lines of the journal that a file does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// None of them: the file was taken out, or a version without a journal has written it.
    Nothing,
    /// Those after this number.
    After(u64),
    /// Nobody knows what was last written: all of them.
    Every,
}

impl Standing {
    /// The last line that the file holds.
    pub(in crate::state) const fn last(self) -> u64 {
        match self {
            Self::After(number) => number,
            Self::Nothing | Self::Every => 0,
        }
    }
}

/// What a start finds in the journal.
pub(crate) struct Found<E, K> {
    /// Those that the document does not hold, by number.
    pub(crate) lines: Vec<Line<E, K>>,
    /// Where whole lines end.
    pub(crate) end: u64,
    /// The last number in it.
    pub(crate) last: u64,
}

/// Reads the lines that the document does not hold. A torn last line is cut off: it was never
/// acknowledged. A line that is no line is told and left out.
///
/// # Errors
/// [`StateError::Read`]
pub(crate) fn read<E: DeserializeOwned, K: DeserializeOwned>(
    dir: &Path,
    standing: Standing,
) -> Result<Found<E, K>, StateError> {
    let path = dir.join(JOURNAL);
    let failed = |error| StateError::Read {
        path: path.clone(),
        error,
    };
    if standing == Standing::Nothing {
        forget(dir).map_err(failed)?;
    }
    let bytes = bytes(&path).map_err(failed)?;
    let (found, damaged) = lines(&bytes, standing.last());
    if damaged > 0 {
        tracing::error!(
            file = JOURNAL,
            "lines of the journal left out, as they are damaged: {damaged}; it is kept as {BAD}"
        );
        // What is left out may be worth a look; the start does not hang on it.
        let _ = fs::remove_file(dir.join(BAD));
        let _ = create(&dir.join(BAD)).and_then(|mut copy| copy.write_all(&bytes));
    }
    if found.end < bytes.len() as u64 {
        tracing::info!(
            file = JOURNAL,
            "a line that was cut off by a kill is left out"
        );
        let cut = open(&path, OpenOptions::new().write(true));
        cut.and_then(|file| file.set_len(found.end))
            .map_err(failed)?;
    }
    Ok(found)
}

/// The lines that the document does not hold, for somebody who only looks.
///
/// # Errors
/// [`StateError::Read`]
pub(crate) fn look<E: DeserializeOwned, K: DeserializeOwned>(
    dir: &Path,
    standing: Standing,
) -> Result<Vec<Line<E, K>>, StateError> {
    let path = dir.join(JOURNAL);
    if standing == Standing::Nothing {
        return Ok(Vec::new());
    }
    let bytes = bytes(&path).map_err(|error| StateError::Read { path, error })?;
    Ok(lines(&bytes, standing.last()).0.lines)
}

/// Removes the journal: it says nothing any more.
///
/// # Errors
/// Those of the system.
pub(in crate::state) fn forget(dir: &Path) -> io::Result<()> {
    if_there(fs::remove_file(dir.join(JOURNAL))).map(drop)
}

/// The whole file; nothing where there is none.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = if_there(open(path, OpenOptions::new().read(true)))?;
    file.map_or(Ok(Vec::new()), |mut file| whole(&mut file, MAX_BYTES))
}

/// Opens it, if it is a regular file. No link is followed, which may be another's, and no pipe is
/// waited for.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let opened = options.custom_flags(NO_FOLLOW).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other("it is a link, and a regular file is expected"),
        _ => error,
    })?;
    is_regular(&file)?;
    Ok(file)
}

/// The lines after a number, and how many are no lines. One whose number is not larger than those
/// before was written twice.
pub(super) fn lines<E: DeserializeOwned, K: DeserializeOwned>(
    bytes: &[u8],
    after: u64,
) -> (Found<E, K>, usize) {
    let last = bytes.iter().rposition(|byte| *byte == b'\n');
    let end = last.map_or(0, |last| last + 1);
    let mut found = Found {
        lines: Vec::new(),
        end: end as u64,
        last: after,
    };
    let mut damaged = 0;
    let whole = bytes.get(..end).unwrap_or_default();
    for text in whole.split(|byte| *byte == b'\n') {
        if text.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Line<E, K>>(text) {
            Ok(line) if line.number > LAST_NUMBER => damaged += 1,
            Ok(line) if line.number > found.last => {
                found.last = line.number;
                found.lines.push(line);
            }
            Ok(_) => {}
            Err(_) => damaged += 1,
        }
    }
    (found, damaged)
}

/// The end of the file, to which lines are appended.
pub(in crate::state) struct Tail {
    dir: PathBuf,
    /// Opened with the first line.
    file: Option<File>,
    /// Where the last whole line ends.
    end: u64,
    /// Its number.
    last: u64,
    /// A write failed, or somebody else wrote: nothing is appended until the file is emptied.
    is_stale: bool,
    faults: Faults,
}

impl Tail {
    pub(in crate::state) fn new<E, K>(dir: &Path, found: &Found<E, K>, faults: Faults) -> Self {
        Self {
            dir: dir.to_owned(),
            file: None,
            end: found.end,
            last: found.last,
            is_stale: false,
            faults,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Appends these lines, all or none, and syncs them.
    pub(super) fn append<'a, L: Serialize + 'a>(
        &mut self,
        lines: impl Iterator<Item = (u64, &'a L)>,
    ) -> Result<(), Lost> {
        if self.is_stale {
            return Err(Lost::Gone);
        }
        let mut bytes = Vec::new();
        let mut last = self.last;
        for (number, line) in lines {
            serde_json::to_writer(&mut bytes, line).map_err(io::Error::from)?;
            bytes.push(b'\n');
            last = number;
        }
        // Whatever goes wrong from here on, a document holds them, and what lies there then counts
        // for nothing.
        self.is_stale = true;
        let file = self.file.take();
        if bytes.len() > MAX_APPEND {
            return Err(io::Error::other(format!("{} bytes at once", bytes.len())).into());
        }
        // A start takes no line behind a document that is not there (STATE-11), nor behind what is
        // none.
        let document = if_there(fs::metadata(self.dir.join(DOCUMENT)))?;
        if !document.is_some_and(|found| found.is_file()) {
            return Err(Lost::Gone);
        }
        let mut file = self.as_left(file)?.ok_or(Lost::Gone)?;
        if let Err(error) = self.write(&mut file, &bytes) {
            // A full disk gets its room back.
            let _ = file.set_len(self.end);
            return Err(error.into());
        }
        self.file = Some(file);
        self.end += bytes.len() as u64;
        self.last = last;
        self.is_stale = false;
        Ok(())
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        self.faults.step(Step::Append)?;
        file.write_all(bytes)?;
        self.faults.step(Step::SyncJournal)?;
        file.sync_data()
    }

    /// The file, opened, if it is the one that was left. It is made where it was never there.
    fn as_left(&self, file: Option<File>) -> io::Result<Option<File>> {
        let path = self.dir.join(JOURNAL);
        let standing = if_there(fs::symlink_metadata(&path))?;
        if standing.as_ref().is_some_and(is_no_file) {
            return Err(io::Error::other("it is no regular file"));
        }
        match (file, standing) {
            (Some(file), Some(standing)) => {
                let open = file.metadata()?;
                let is_same = (open.dev(), open.ino()) == (standing.dev(), standing.ino());
                Ok((is_same && open.len() == self.end).then_some(file))
            }
            (None, Some(standing)) if standing.is_file() && standing.len() == self.end => {
                open(&path, OpenOptions::new().append(true)).map(Some)
            }
            (None, None) if self.end == 0 => {
                let made = OpenOptions::new()
                    .append(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&path)?;
                File::open(&self.dir)?.sync_all()?;
                Ok(Some(made))
            }
            (Some(_) | None, _) => Ok(None),
        }
    }

    /// Empties the file, where a document on disk holds all lines up to this one and there is no
    /// later one. A kill before it is on disk costs nothing: their numbers say that they are old.
    pub(super) fn empty(&mut self, held: u64) {
        if self.last > held || (self.end == 0 && !self.is_stale) {
            return;
        }
        let path = self.dir.join(JOURNAL);
        let emptied = self.faults.step(Step::EmptyJournal).and_then(|()| {
            self.set_aside(&path)?;
            if let Some(file) = if_there(open(&path, OpenOptions::new().write(true)))?
                && file.metadata()?.len() > 0
            {
                file.set_len(0)?;
                file.sync_data()?;
            }
            Ok(())
        });
        match emptied {
            Ok(()) => {
                self.file = None;
                self.end = 0;
                self.is_stale = false;
            }
            Err(error) => tracing::warn!(
                file = JOURNAL,
                "the journal cannot be emptied: {error}; its lines count for nothing"
            ),
        }
    }

    /// What is no file goes out of the place, as out of that of a document (STATE-11).
    fn set_aside(&self, path: &Path) -> io::Result<()> {
        let Some(found) = fs::symlink_metadata(path).ok().filter(is_no_file) else {
            return Ok(());
        };
        let aside = if found.is_dir() { DIRECTORY } else { BAD };
        fs::rename(path, self.dir.join(aside))?;
        tracing::warn!(
            file = JOURNAL,
            "what lay in the place of the journal is no regular file and is kept as {aside}"
        );
        Ok(())
    }
}

/// A directory, a pipe or a device. A link may be somebody's: it stays, and is not followed.
fn is_no_file(found: &fs::Metadata) -> bool {
    !found.is_file() && !found.is_symlink()
}

/// A link is not followed, and a pipe that somebody put there does not block.
const NO_FOLLOW: i32 = {
    let flags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK);
    flags.bits() as i32
};

/// What is larger than a document may be was not written by this service.
const _: () = assert!((MAX_APPEND as u64) < MAX_BYTES || cfg!(test));
