//! The file of the control socket: created with mode 0600, replaced if a killed process left it,
//! removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A bound socket. Dropping it removes its file, unless the file belongs to another process.
pub(super) struct Socket {
    pub(super) path: PathBuf,
    listener: UnixListener,
    /// Device and inode of the file: a file that another process has created there since is not
    /// removed.
    identity: Identity,
    /// Whether dropping the socket removes the file. Shared with the code that hands the socket
    /// over.
    pub(super) is_own: Arc<AtomicBool>,
}

/// Device and inode.
type Identity = (u64, u64);

/// Why the control socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another service answers there.
    #[error(
        "WAF_CONTROL_SOCKET: {} is held by another service; stop it, or set another path or off", path.display()
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Another kind of file lies there.
    #[error(
        "WAF_CONTROL_SOCKET: {} is there and is no socket; move it away, or set another path or off", path.display()
    )]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused it.
    #[error(
        "WAF_CONTROL_SOCKET: {} cannot be made: {error}; set another path or off", path.display()
    )]
    System {
        /// The path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Whether a peer of this uid may use the socket: the service's own user and root may.
pub(super) const fn may_speak(peer_uid: u32, own_uid: u32) -> bool {
    peer_uid == own_uid || peer_uid == 0
}

impl Socket {
    /// Binds the socket. A leftover socket that nobody serves is replaced.
    ///
    /// # Errors
    /// [`SocketError`]
    pub(super) fn claim(path: PathBuf) -> Result<Self, SocketError> {
        if let Some(error) = occupied(path.clone()) {
            return Err(error);
        }
        match bind(&path) {
            Ok((listener, identity)) => Ok(Self {
                path,
                listener,
                identity,
                is_own: Arc::new(AtomicBool::new(true)),
            }),
            Err(error) => Err(SocketError::System { path, error }),
        }
    }

    /// The socket that another process passed and still serves: the file belongs to that process
    /// until [`Socket::is_own`] is set. None if its file is gone.
    pub(super) fn passed(listener: OwnedFd) -> Option<Self> {
        let listener = UnixListener::from(listener);
        let path = listener.local_addr().ok()?.as_pathname()?.to_owned();
        listener.set_nonblocking(true).ok()?;
        Some(Self {
            identity: identity(&path).ok()?,
            path,
            listener,
            is_own: Arc::default(),
        })
    }

    /// Whether its file is the one at this path.
    pub(super) fn is_at(&self, path: &PathBuf) -> bool {
        identity(path).is_ok_and(|there| there == self.identity)
    }

    /// A handle of the same socket, to pass to a successor.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.listener.try_clone().map(OwnedFd::from)
    }

    /// Whether the file at the path is still that of this socket.
    pub(super) fn is_there(&self) -> bool {
        self.is_at(&self.path)
    }

    /// The socket as a listener of the runtime.
    pub(super) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_own.load(Ordering::Relaxed) && self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What prevents a bind at this path, if anything; a socket that nobody serves does not.
pub(crate) fn occupied(path: PathBuf) -> Option<SocketError> {
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.file_type().is_socket() => Some(SocketError::NoSocket { path }),
        Ok(_) if UnixStream::connect(&path).is_ok() => Some(SocketError::InUse { path }),
        Ok(_) | Err(_) => None,
    }
}

fn bind(path: &PathBuf) -> io::Result<(UnixListener, Identity)> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    // Until the mode is set, another user may connect: so the uid of each peer is checked as well.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok((listener, identity(path)?))
}

fn identity(path: &PathBuf) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONTROL-1: the service's own user and root may use the socket, nobody else.
    #[test]
    fn only_the_own_user_and_root_speak() {
        assert!(may_speak(1000, 1000) && may_speak(0, 1000) && may_speak(0, 0));
        assert!(!may_speak(1001, 1000) && !may_speak(1000, 0));
    }

    /// CONTROL-1: the mode is 0600; a leftover socket is replaced, a socket in use or another file
    /// is not; the file is removed with the socket, unless another has replaced it.
    #[test]
    fn a_leftover_is_replaced_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.sock");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::claim(path.clone()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = Socket::claim(path.clone()).err().unwrap().to_string();
        assert!(taken.contains("is held by another service"), "{taken}");
        assert!(socket.is_there());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a note").unwrap();
        assert!(!socket.is_there());
        drop(socket);
        assert!(path.exists());
        let other = Socket::claim(path.clone()).err().unwrap().to_string();
        assert!(other.contains("is there and is no socket"), "{other}");
        fs::remove_file(&path).unwrap();
        drop(Socket::claim(path.clone()).unwrap());
        assert!(!path.exists());
    }

    /// RESTART-4: a passed socket keeps its file if the new process does not accept it; if it does,
    /// the file belongs to the new process; a socket without a file is not used.
    #[test]
    fn a_passed_socket_leaves_its_file_until_it_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.sock");
        let old = Socket::claim(path.clone()).unwrap();
        let passed = Socket::passed(old.share().unwrap()).unwrap();
        assert!(passed.is_at(&path));
        drop(passed);
        assert!(old.is_there());
        let new = Socket::passed(old.share().unwrap()).unwrap();
        old.is_own.store(false, Ordering::Relaxed);
        new.is_own.store(true, Ordering::Relaxed);
        drop(old);
        assert!(UnixStream::connect(&path).is_ok());
        let last = new.share().unwrap();
        drop(new);
        assert!(!path.exists() && Socket::passed(last).is_none());
    }
}
