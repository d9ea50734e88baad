//! The file of a Unix socket: replaced where a kill left it, with its mode before anybody can
//! connect, removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// Connections the system queues for a listener.
pub(super) const BACKLOG: i32 = 4096;

/// The file of a socket that listens. Dropping it removes the file.
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: what another made there meanwhile is not removed.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file at this path, which from now on belongs to this process.
    ///
    /// # Errors
    /// There is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            identity: identity(path)?,
            path: path.to_owned(),
        })
    }

    /// Leaves the file where it is: another process serves the socket.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at this path. A socket that nobody serves is replaced.
///
/// # Errors
/// Another service answers there, something else lies there, or the system refuses.
pub(super) fn claim(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    occupied(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::of(path)?;
    // Before it listens: until then nobody can connect.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    Ok((socket, file))
}

/// Whether the path is free; a socket that nobody serves does not stand in the way.
///
/// # Errors
/// What stands in the way.
pub(super) fn occupied(path: &Path) -> io::Result<()> {
    let in_the_way = |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            in_the_way("it is there and is no socket; move it away")
        }
        Ok(_) if UnixStream::connect(path).is_ok() => in_the_way("another service listens there"),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-1: the mode is that of the setting; a leftover is replaced, a socket in use and another
    /// file are not; the file goes with the socket, unless another serves it.
    #[test]
    fn a_leftover_is_replaced_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("weir-socket-file-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("weir.sock");
        let fault = |path: &Path| claim(path, 0o600).err().unwrap().to_string();

        let (socket, file) = claim(&path, 0o640).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fault(&path), "another service listens there");
        drop(socket);
        file.leave();
        assert!(path.exists());
        let (_socket, file) = claim(&path, 0o600).unwrap();
        drop(file);
        assert!(!path.exists());
        fs::write(&path, "a note").unwrap();
        assert_eq!(fault(&path), "it is there and is no socket; move it away");
        fs::remove_dir_all(&dir).unwrap();
    }
}
