//! A listening socket as its worker accepts from it: of TCP, or a Unix socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use weir_shared::client::fold;
use weir_shared::settings::Place;

use crate::bind::Listening;

/// A listening socket.
pub struct Listener {
    socket: Socket,
    /// Whether TLS is spoken there.
    pub tls: bool,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted.
pub struct Accepted {
    /// The connection. One over a Unix socket is of the same type: all that is done with it is done
    /// with its descriptor, and what is TCP's alone (its addresses) is not asked for.
    pub stream: TcpStream,
    /// The address of the peer, folded to IPv4 where it stands for an IPv4 address; none of a Unix
    /// socket.
    pub peer: Option<IpAddr>,
}

impl Listener {
    /// The socket, in the runtime of this thread.
    ///
    /// # Errors
    /// The runtime cannot take it.
    pub fn new(listening: Listening) -> io::Result<Self> {
        let tls = listening.listen.tls;
        let socket = match listening.listen.place {
            Place::Tcp(_) => Socket::Tcp(TcpListener::from_std(listening.socket)?),
            Place::Unix(_) => {
                let socket =
                    std::os::unix::net::UnixListener::from(OwnedFd::from(listening.socket));
                Socket::Unix(UnixListener::from_std(socket)?)
            }
        };
        Ok(Self { socket, tls })
    }

    /// The next connection.
    ///
    /// # Errors
    /// That of the system.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                let peer = Some(fold(peer.ip()));
                Ok(Accepted { stream, peer })
            }
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                let stream = of_any_kind(stream.into_std()?.into())?;
                Ok(Accepted { stream, peer: None })
            }
        }
    }
}

/// A connection, whatever socket it is of.
///
/// # Errors
/// The runtime cannot take it.
pub fn of_any_kind(stream: OwnedFd) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(stream))
}
