//! The listening sockets as the process holds them beside its workers: for a successor, and until
//! the files of Unix sockets are to be removed.

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
    /// Those that were bound or passed. The files of those that were passed are left to whoever
    /// passed them.
    pub fn of(bound: &mut Bound) -> Self {
        let (service, files) = bound.take_sockets();
        Self { service, files }
    }

    /// Each with what is spoken there.
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

    /// The files are this process's from now on.
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

    /// Another process serves them from now on.
    pub fn give_away(self) {
        for file in self.files {
            file.leave();
        }
    }
}
