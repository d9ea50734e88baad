//! Why the state files cannot be used. Each is a sentence an operator can act on (STATE-6).

use std::io;
use std::path::PathBuf;

use super::fault::Fault;

/// Why the start stops.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The directory is missing and cannot be made.
    #[error("state directory {} cannot be made: {error}; make it or set WAF_STATE_DIR", dir.display())]
    Make { dir: PathBuf, error: io::Error },
    /// Nothing can be written into it.
    #[error(
        "state directory {} cannot be written: {error}; make it writable or set WAF_STATE_DIR", dir.display()
    )]
    Unwritable { dir: PathBuf, error: io::Error },
    /// It belongs to another user, who keeps it to himself.
    #[error(
        "state directory {} is closed to this user: run as its owner{}, or set WAF_STATE_DIR",
        dir.display(), owner.map(|uid| format!(" (uid {uid})")).unwrap_or_default()
    )]
    Closed { dir: PathBuf, owner: Option<u32> },
    /// Something else has its name.
    #[error("WAF_STATE_DIR {} is no directory; move it away or set another", .0.display())]
    NoDirectory(PathBuf),
    /// It cannot be looked at.
    #[error("state directory {} cannot be read: {error}", dir.display())]
    Unreadable { dir: PathBuf, error: io::Error },
    /// Another service holds the lock.
    #[error(
        "state directory {} is in use by another service (it holds {lock}); stop it or set WAF_STATE_DIR",
        dir.display()
    )]
    InUse { dir: PathBuf, lock: &'static str },
    /// The file system has no locks, or they failed.
    #[error("state directory {} cannot be locked: {error}", dir.display())]
    Lock { dir: PathBuf, error: io::Error },
    /// A file cannot be read.
    #[error("state file {} cannot be read: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file does not parse, or does not fit its schema.
    #[error("state file {} does not fit: {fault}; mend it or move it away", path.display())]
    DoesNotFit { path: PathBuf, fault: Fault },
    /// The system refused the thread.
    #[error("the thread of the state files cannot be started: {0}")]
    Thread(io::Error),
    /// A bug of ours.
    #[error("the reading of {file} ended by a panic")]
    Panicked { file: &'static str },
}
