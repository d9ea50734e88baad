//! A large body of known length is read past hyper: hyper would copy it, in small steps.
//!
//! hyper has read the head, and with it a part of the body, which it hands over. When it asks the
//! socket for more it gets nothing, now and ever after: what is left of the body, and not a byte
//! more, is read where the body is sent on. hyper does not learn that the body has ended, so its
//! connection takes no other request; with the response written, it is left for a new one.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::Downstream;
use crate::client_body::ClientBody;
use crate::pipe::Pipe;

/// A body that may be read past hyper.
pub struct Direct {
    downstream: Rc<Downstream>,
    /// Bytes of it that are to come.
    left: u64,
}

impl Direct {
    /// For a body of this length, of which nothing came yet.
    pub fn new(downstream: &Rc<Downstream>, length: u64) -> Self {
        downstream.reader.change();
        Self {
            downstream: Rc::clone(downstream),
            left: length,
        }
    }

    /// Whether hyper has handed over all it had.
    pub fn is_ready(&self) -> bool {
        self.downstream.reader.is_past_hyper()
    }

    /// Whether all of the body came.
    pub const fn is_end(&self) -> bool {
        self.left == 0
    }

    /// So much came.
    pub const fn took(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }

    /// So much came from hyper; none if that was all of it.
    pub fn after(mut self, bytes: usize) -> Option<Self> {
        self.took(bytes);
        (!self.is_end()).then_some(self)
    }

    /// Keeps hyper's half of a body that has ended until the response is written.
    pub fn park(&self, incoming: ClientBody) {
        self.downstream.reader.park(incoming);
    }

    /// Moves what there is into an empty pipe; zero is the end of the connection.
    pub fn poll_move(&self, pipe: &mut Pipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let io = self.downstream.io.borrow();
        let Some(socket) = io.inner().socket() else {
            return Poll::Ready(Ok(0));
        };
        let outcome = pipe.poll_fill(socket, self.at_most(usize::MAX), cx);
        if matches!(outcome, Poll::Ready(Ok(1..))) {
            self.downstream.note_read();
        }
        outcome
    }

    /// Reads what there is into `buffer`, as long as there is room and more is ready: over TLS each
    /// record is read by itself, and may hold one byte (CONN-9). Nothing is the end of the
    /// connection.
    pub fn poll_read(&self, buffer: &mut [u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let at_most = self.at_most(buffer.len());
        let mut read = ReadBuf::new(buffer.get_mut(..at_most).unwrap_or_default());
        gather(&mut read, |read| self.downstream.poll_read(cx, read))
    }

    fn at_most(&self, length: usize) -> usize {
        usize::try_from(self.left).map_or(length, |left| left.min(length))
    }
}

/// Reads as long as there is room and more is ready: how much came. An error or the end behind
/// something is found again by the next read.
fn gather(
    read: &mut ReadBuf<'_>,
    mut more: impl FnMut(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
) -> Poll<io::Result<usize>> {
    loop {
        let before = read.filled().len();
        match more(read) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) if before == 0 => return Poll::Ready(Err(error)),
            Poll::Pending if before == 0 => return Poll::Pending,
            Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(Ok(before)),
        }
        let length = read.filled().len();
        if length == before || read.remaining() == 0 {
            return Poll::Ready(Ok(length));
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.downstream.reader.keep();
    }
}

impl Downstream {
    /// Whether hyper is to read nothing. That it asks says that it has nothing left.
    pub fn keeps_from_hyper(&self) -> bool {
        if self.reader.has_changed() {
            self.wake();
        }
        self.reader.is_past_hyper()
    }

    /// Whether the client has closed the connection behind a body that was read past hyper, which
    /// would see it otherwise.
    pub fn has_left(&self, cx: &mut Context<'_>) -> bool {
        self.reader.has_parked() && self.poll_peek(cx) == Poll::Ready(false)
    }

    /// Whether the client has closed the connection while its request, which has no body, is being
    /// answered without hyper. What it sent behind the request hides a close behind that.
    pub fn has_gone(&self, cx: &mut Context<'_>) -> bool {
        if self.is_idle() || self.sent_more.get() {
            return false;
        }
        match self.poll_peek(cx) {
            Poll::Pending => false,
            Poll::Ready(false) => true,
            Poll::Ready(true) => {
                self.sent_more.set(true);
                false
            }
        }
    }

    /// Waits until something has come: true if it is something to read, false if it is the end.
    fn poll_peek(&self, cx: &mut Context<'_>) -> Poll<bool> {
        self.io.borrow_mut().inner_mut().poll_peek(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a read brings in turn; an empty piece is the end.
    fn gathered(room: usize, pieces: &[Poll<io::Result<&str>>]) -> (Poll<Option<String>>, usize) {
        let (mut buffer, mut looks) = (vec![0; room], 0);
        let mut read = ReadBuf::new(&mut buffer);
        let outcome = gather(&mut read, |read| {
            let piece = pieces.get(looks).expect("it does not look again");
            looks += 1;
            match piece {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Err(error.kind().into())),
                Poll::Ready(Ok(piece)) => {
                    let fits = piece.len().min(read.remaining());
                    read.put_slice(&piece.as_bytes()[..fits]);
                    Poll::Ready(Ok(()))
                }
            }
        });
        let text = |length| String::from_utf8(buffer[..length].to_vec()).unwrap();
        (outcome.map(|read| read.ok().map(text)), looks)
    }

    /// CONN-9: small pieces are one read while more is ready and there is room; what is no piece
    /// keeps nothing back.
    #[test]
    fn small_pieces_are_one_read() {
        let piece = |text| Poll::Ready(Ok(text));
        let failed = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        let read = |text: &str| Poll::Ready(Some(text.to_owned()));
        for (pieces, expected) in [
            (vec![piece("a"), piece("b"), Poll::Pending], (read("ab"), 3)),
            (vec![piece("a"), piece("bcd")], (read("abcd"), 2)),
            (vec![piece("abcdef")], (read("abcd"), 1)),
            (vec![piece("a"), piece("")], (read("a"), 2)),
            (vec![piece("a"), failed()], (read("a"), 2)),
            (vec![piece("")], (read(""), 1)),
            (vec![failed()], (Poll::Ready(None), 1)),
            (vec![Poll::Pending], (Poll::Pending, 1)),
        ] {
            assert_eq!(gathered(4, &pieces), expected, "{pieces:?}");
        }
    }
}
