//! Whether a client has gone whose upload nobody reads. While the application takes nothing of it,
//! nothing is read from the client, whose end lies behind what is unread; the system tells of it
//! without a read.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use super::Downstream;

impl Downstream {
    /// Whether the client has certainly gone before its whole body came: it has reset the
    /// connection, or has ended its side with less sent than it had announced. The end of its side
    /// alone says nothing: it may have sent all and wait for the response.
    pub(super) fn has_broken_off(&self) -> bool {
        if !self.upload.is_unread() {
            return false;
        }
        let io = self.io.borrow();
        let Some(socket) = io.inner().socket() else {
            return false;
        };
        let ready = readiness(socket);
        if ready.is_write_closed() {
            return true;
        }
        // Over TLS the bytes are those of records.
        let can_count = ready.is_read_closed() && !io.inner().is_tls();
        can_count && rustix::io::ioctl_fionread(socket).is_ok_and(|left| self.upload.lacks(left))
    }
}

/// What the runtime was told of a socket, without asking the system.
fn readiness(socket: &TcpStream) -> Ready {
    let told = pin!(socket.ready(Interest::READABLE | Interest::WRITABLE));
    match told.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready,
        Poll::Ready(Err(_)) | Poll::Pending => Ready::EMPTY,
    }
}
