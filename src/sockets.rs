//! The process's own handles of the listening sockets, beside those of the workers: to pass to a
//! successor, and to remove the files of Unix sockets at the end.

use std::os::fd::{AsFd, BorrowedFd};

use weir_dataplane::{Bound, Listening, SocketFile};
use weir_shared::settings::Place;

use crate::channel::Kind;

/// The listening sockets of the service. Dropping them removes the files of Unix sockets.
#[derive(Default)]
pub struct Sockets {
    service: Vec<Listening>,
    files: Vec<SocketFile>,
}

impl Sockets {
    /// Takes the sockets that were bound or passed. The files of passed sockets belong to whoever
    /// passed them.
    pub fn of(bound: &mut Bound) -> Self {
        let (service, files) = bound.take_sockets();
        Self { service, files }
    }

    /// Each socket with its kind.
    pub fn each(&self) -> Vec<(Kind, BorrowedFd<'_>)> {
        let service = self.service.iter().map(|listening| {
            let kind = if listening.listen.tls {
                Kind::Tls
            } else {
                Kind::Plain
            };
            (kind, listening.socket.as_fd())
        });
        service.collect()
    }

    /// From now on this process owns the files of passed Unix sockets, and removes them at its end.
    pub fn adopt(&mut self) {
        let paths = self
            .service
            .iter()
            .filter_map(|listening| match &listening.listen.place {
                Place::Unix(path) => Some(path),
                Place::Tcp(_) => None,
            });
        self.files
            .extend(paths.filter_map(|path| SocketFile::of(path).ok()));
    }

    /// Drops the sockets without removing their files: another process serves them from now on.
    pub fn give_away(self) {
        for file in self.files {
            file.leave();
        }
    }
}
