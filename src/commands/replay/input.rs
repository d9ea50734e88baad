//! Reads the logs as a stream on a thread of its own, so that the command can be interrupted while
//! a pipe is silent.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::commands::common::{EXIT_USAGE, Failure};

/// Bytes of one read.
const PIECE: usize = 256 << 10;
/// Pieces that may wait for the replay.
const PIECES: usize = 4;
/// The most bytes of a line; a longer one is counted as unreadable.
pub const MAX_LINE: usize = 1 << 20;
/// How often the command looks for an interruption.
const LOOK: Duration = Duration::from_millis(100);

/// The magic numbers of compressed files: gzip, zstd, bzip2, xz.
const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"];

/// A message of the reading thread.
enum Piece {
    /// The next of the files begins.
    Begin(usize),
    Bytes(Vec<u8>),
    Failed(usize, io::Error),
}

/// The next item of the logs.
pub enum Next<'a> {
    /// The log of this number begins.
    Begin(usize),
    /// A line, without its end; none where it is too long.
    Line(Option<&'a [u8]>),
    /// So many bytes of the logs were read.
    Read(usize),
}

/// The logs in their order; `-` is standard input.
pub struct Input {
    paths: Vec<PathBuf>,
    pieces: Receiver<Piece>,
    interrupted: Arc<AtomicBool>,
    /// The line that is not whole yet.
    partial: Vec<u8>,
    /// The partial line is too long: the rest of it is skipped.
    too_long: bool,
}

/// The size of all logs together; none if one of them is not a file.
pub fn size(paths: &[PathBuf]) -> Option<u64> {
    let size = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        found.is_file().then_some(found.len())
    };
    paths.iter().map(size).sum()
}

impl Input {
    /// Starts the reading thread.
    pub fn start(paths: Vec<PathBuf>, interrupted: Arc<AtomicBool>) -> Result<Self, Failure> {
        for path in paths.iter().filter(|path| *path != Path::new("-")) {
            let found = std::fs::metadata(path).map_err(|error| unread(path, &error))?;
            if found.is_dir() {
                return Err(unread(path, &io::Error::other("it is a directory")));
            }
        }
        let (out, pieces) = bounded(PIECES);
        let of_thread = paths.clone();
        std::thread::Builder::new()
            .name("replay-input".to_owned())
            .spawn(move || read_all(&of_thread, &out))
            .map_err(|error| Failure::new(1, format!("the system refused a thread: {error}")))?;
        Ok(Self {
            paths,
            pieces,
            interrupted,
            partial: Vec::new(),
            too_long: false,
        })
    }

    /// Hands everything to `take` until the end or an interruption; true if it was interrupted.
    pub fn each(
        &mut self,
        mut take: impl FnMut(Next<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let mut at_start = None;
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(true);
            }
            match self.pieces.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.last_line(&mut take)?;
                    return Ok(false);
                }
                Ok(Piece::Failed(at, error)) => return Err(unread(self.path(at), &error)),
                Ok(Piece::Begin(at)) => {
                    self.last_line(&mut take)?;
                    at_start = Some(at);
                    take(Next::Begin(at))?;
                }
                Ok(Piece::Bytes(bytes)) => {
                    if let Some(at) = at_start.take() {
                        plain(self.path(at), &bytes)?;
                    }
                    self.lines(&bytes, &mut take)?;
                    take(Next::Read(bytes.len()))?;
                }
            }
        }
    }

    fn path(&self, at: usize) -> &Path {
        self.paths.get(at).map_or(Path::new("-"), PathBuf::as_path)
    }

    fn lines(
        &mut self,
        bytes: &[u8],
        take: &mut impl FnMut(Next<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        // The bytes after the last line end begin the next line.
        let rest = lines.next_back().unwrap_or_default();
        for line in lines {
            if self.partial.is_empty() && !self.too_long && line.len() <= MAX_LINE {
                take(Next::Line(Some(line)))?;
            } else {
                self.add(line);
                self.last_line(take)?;
            }
        }
        self.add(rest);
        Ok(())
    }

    fn add(&mut self, more: &[u8]) {
        self.too_long |= self.partial.len() + more.len() > MAX_LINE;
        if !self.too_long {
            self.partial.extend_from_slice(more);
        }
    }

    /// Hands out the assembled line, or the last line of a file, which may lack its line end.
    fn last_line(
        &mut self,
        take: &mut impl FnMut(Next<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let is_line = self.too_long || !self.partial.is_empty();
        let line = (!self.too_long).then_some(self.partial.as_slice());
        let taken = if is_line {
            take(Next::Line(line))
        } else {
            Ok(())
        };
        self.partial.clear();
        self.too_long = false;
        taken
    }
}

fn read_all(paths: &[PathBuf], out: &Sender<Piece>) {
    for (at, path) in paths.iter().enumerate() {
        // A send fails only once the receiver is gone, at the end of the command.
        if out.send(Piece::Begin(at)).is_err() {
            return;
        }
        if let Err(error) = read(path, out) {
            let _ = out.send(Piece::Failed(at, error));
            return;
        }
    }
}

fn read(path: &Path, out: &Sender<Piece>) -> io::Result<()> {
    let mut file: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path)?),
    };
    loop {
        let mut bytes = vec![0; PIECE];
        match file.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                bytes.truncate(count);
                if out.send(Piece::Bytes(bytes)).is_err() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn plain(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if COMPRESSED.iter().any(|begin| bytes.starts_with(begin)) {
        let path = path.display();
        let sentence = format!("{path} is compressed: zcat {path} | weir replay -");
        return Err(Failure::new(EXIT_USAGE, sentence));
    }
    Ok(())
}

fn unread(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        EXIT_USAGE,
        format!("{} cannot be read: {error}", path.display()),
    )
}
