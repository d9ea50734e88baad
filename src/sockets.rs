//! The listening sockets as the process holds them beside its workers: for a successor, and until
//! the files of Unix sockets are to be removed.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};

use weir_dataplane::{Bound, Listening, SocketFile};

use crate::successor::Kind;

/// The listening sockets. Dropping them removes the files of Unix sockets.
#[derive(Default)]
pub struct Sockets {
    service: Vec<Listening>,
    files: Vec<SocketFile>,
    /// The admin listener, where a supervisor passed it: nobody could bind it a second time.
    admin: Option<TcpListener>,
}

impl Sockets {
    /// Those of the service, and the admin listener that was passed.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn of(bound: &mut Bound, admin: Option<&TcpListener>) -> io::Result<Self> {
        let (service, files) = bound.take_sockets();
        Ok(Self {
            service,
            files,
            admin: admin.map(TcpListener::try_clone).transpose()?,
        })
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
        let admin = self.admin.iter().map(|admin| (Kind::Admin, admin.as_fd()));
        service.chain(admin).collect()
    }

    /// Another process serves them from now on.
    pub fn give_away(self) {
        for file in self.files {
            file.leave();
        }
    }
}
