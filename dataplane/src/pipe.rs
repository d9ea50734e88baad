//! Bodies that go from one socket to another inside the system (splice(2)): nothing of them is
//! copied, nor held in this process.
//!
//! The HTTP library frames and orders what is written, and knows buffers only. So it is shown a
//! placeholder as long as what the pipe holds. The socket's half of it (`downstream/socket.rs`)
//! knows the placeholder by its address, and writes what is in the pipe in its place.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What a pipe takes at most: what one direction of a connection may hold (CONN-1).
pub const SIZE: usize = 64 * 1024;
/// Pipes of a worker at most; each is two open files. Who finds none has its bytes copied.
pub const MAX_OPEN: usize = 32;
/// Empty pipes that are kept.
const MAX_IDLE: usize = 8;

/// Stands for what is in a pipe. Its own bytes are never written.
static PLACEHOLDER: [u8; SIZE] = [0; SIZE];

/// As many bytes as a pipe holds.
pub fn placeholder(length: usize) -> Bytes {
    Bytes::from_static(PLACEHOLDER.get(..length).unwrap_or_default())
}

/// Whether these bytes are, or end, a placeholder.
pub fn is_placeholder(bytes: &[u8]) -> bool {
    !bytes.is_empty() && PLACEHOLDER.as_ptr_range().contains(&bytes.as_ptr())
}

/// Whether the system does not splice these sockets, or not for this process.
pub fn is_unable(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}

/// The pipes of one worker.
#[derive(Debug, Default)]
pub struct Pipes(Rc<Home>);

#[derive(Debug, Default)]
struct Home {
    idle: RefCell<Vec<Ends>>,
    open: Cell<usize>,
    /// One was taken since they were last looked at.
    used: Cell<bool>,
    /// The system does not splice these sockets.
    unable: Cell<bool>,
}

/// The two ends of a pipe.
#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipes {
    /// An empty pipe, if there is one.
    pub fn take(&self) -> Option<Pipe> {
        let home = &self.0;
        home.used.set(true);
        let idle = home.idle.borrow_mut().pop();
        let ends = match idle {
            Some(ends) => ends,
            None if home.unable.get() || home.open.get() == MAX_OPEN => return None,
            None => {
                let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
                let (read, write) = pipe_with(flags).ok()?;
                home.open.set(home.open.get() + 1);
                Ends { read, write }
            }
        };
        Some(Pipe {
            ends: Some(ends),
            held: 0,
            home: Rc::clone(home),
        })
    }

    /// From now on there are no more: the system does not splice.
    pub fn give_up(&self) {
        self.0.unable.set(true);
        self.0.close_idle();
    }

    /// Closes what is not used. Called on the worker's tick.
    pub fn sweep(&self) {
        if !self.0.used.take() {
            self.0.close_idle();
        }
    }
}

impl Home {
    fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.borrow_mut());
        self.open.set(self.open.get().saturating_sub(idle.len()));
    }
}

/// A pipe in use. It is kept for the next one once it is empty.
#[derive(Debug)]
pub struct Pipe {
    /// None once it is given back.
    ends: Option<Ends>,
    /// Bytes in it.
    held: usize,
    home: Rc<Home>,
}

impl Pipe {
    /// Whether nothing is in it.
    pub const fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Moves what there is into it, at most so many bytes; zero is the end of the stream. To be
    /// called while it is empty.
    pub fn poll_fill(
        &mut self,
        stream: &TcpStream,
        at_most: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let Some(Ends { write, .. }) = &self.ends else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let moved = loop {
            ready!(stream.poll_read_ready(cx))?;
            let moved = stream.try_io(Interest::READABLE, || {
                move_bytes(stream, write, at_most.min(SIZE))
            });
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => break moved?,
            }
        };
        self.held += moved;
        Poll::Ready(Ok(moved))
    }

    /// Moves at most so many bytes out of it.
    pub fn poll_drain(
        &mut self,
        stream: &TcpStream,
        at_most: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(stream.poll_write_ready(cx))?;
            match stream.try_io(Interest::WRITABLE, || self.drain(stream, at_most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => return Poll::Ready(moved),
            }
        }
    }

    /// Moves at most so many bytes out of it at once, whatever the runtime knows of the socket.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is no room.
    pub fn drain(&mut self, stream: &TcpStream, at_most: usize) -> io::Result<usize> {
        let Some(Ends { read, .. }) = &self.ends else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let moved = move_bytes(read, stream, at_most.min(self.held))?;
        self.held = self.held.saturating_sub(moved);
        Ok(moved)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut idle = self.home.idle.borrow_mut();
        let is_kept = self.held == 0 && idle.len() < MAX_IDLE && !self.home.unable.get();
        match self.ends.take() {
            Some(ends) if is_kept => idle.push(ends),
            _ => self.home.open.set(self.home.open.get().saturating_sub(1)),
        }
    }
}

fn move_bytes(from: impl AsFd, to: impl AsFd, at_most: usize) -> io::Result<usize> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        match splice(&from, None, &to, None, at_most, flags) {
            Err(rustix::io::Errno::INTR) => {}
            moved => return moved.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await;
        (near.unwrap(), listener.accept().await.unwrap().0)
    }

    fn block_on(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        runtime.unwrap().block_on(test);
    }

    /// What goes into a pipe comes out of it, in order and no more; empty, it is used again.
    #[test]
    fn bytes_go_from_socket_to_socket() {
        block_on(async {
            let ((mut sender, from), (to, mut receiver)) = (connection().await, connection().await);
            let pipes = Pipes::default();
            sender.write_all(b"one piece and more").await.unwrap();
            let mut pipe = pipes.take().unwrap();
            let moved = poll_fn(|cx| pipe.poll_fill(&from, 9, cx)).await.unwrap();
            assert_eq!((moved, pipe.is_empty()), (9, false));
            let mut left = moved;
            while left > 0 {
                left -= poll_fn(|cx| pipe.poll_drain(&to, left, cx)).await.unwrap();
            }
            assert!(pipe.is_empty());
            let mut came = [0; 9];
            receiver.read_exact(&mut came).await.unwrap();
            assert_eq!(&came, b"one piece");
            drop(pipe);
            assert_eq!((pipes.0.open.get(), pipes.0.idle.borrow().len()), (1, 1));
            let again = pipes.take().unwrap();
            assert_eq!((pipes.0.open.get(), pipes.0.idle.borrow().len()), (1, 0));
            drop(again);
        });
    }

    /// What waits in a socket is moved in large pieces.
    #[test]
    fn a_move_takes_what_a_pipe_holds() {
        block_on(async {
            let (sender, from) = connection().await;
            let mut waiting = 0;
            sender.writable().await.unwrap();
            while let Ok(written) = sender.try_write(&[b'x'; SIZE]) {
                waiting += written;
            }
            let ((to, mut receiver), pipes) = (connection().await, Pipes::default());
            let (mut moves, mut moved) = (0, 0);
            while moved < waiting / 2 {
                let mut pipe = pipes.take().unwrap();
                let mut left = poll_fn(|cx| pipe.poll_fill(&from, SIZE, cx)).await.unwrap();
                (moves, moved) = (moves + 1, moved + left);
                while left > 0 {
                    left -= poll_fn(|cx| pipe.poll_drain(&to, left, cx)).await.unwrap();
                    let _ = receiver.read(&mut vec![0; SIZE]).await.unwrap();
                }
            }
            assert!(moved / moves >= SIZE / 4, "{moves} moves for {moved} bytes");
        });
    }

    /// A pipe with something in it is never used for another body; there is a bound on those open.
    #[test]
    fn what_is_left_in_a_pipe_is_thrown_away_with_it() {
        block_on(async {
            let (mut sender, from) = connection().await;
            let pipes = Pipes::default();
            sender.write_all(b"left").await.unwrap();
            let mut pipe = pipes.take().unwrap();
            poll_fn(|cx| pipe.poll_fill(&from, 100, cx)).await.unwrap();
            drop(pipe);
            assert_eq!((pipes.0.open.get(), pipes.0.idle.borrow().len()), (0, 0));
            let all: Vec<Pipe> = std::iter::from_fn(|| pipes.take()).collect();
            assert_eq!(all.len(), MAX_OPEN);
            drop(all);
            assert_eq!(pipes.0.open.get(), MAX_IDLE);
            pipes.sweep();
            assert_eq!(pipes.0.open.get(), MAX_IDLE);
            pipes.sweep();
            assert_eq!(pipes.0.open.get(), 0);
        });
    }

    /// A placeholder is known, and what is left of one; nothing else is.
    #[test]
    fn a_placeholder_is_known_by_its_place() {
        let mut piece = placeholder(1000);
        assert!(is_placeholder(&piece) && piece.len() == 1000);
        assert!(is_placeholder(&piece.split_off(999)));
        assert!(!is_placeholder(&[0; 1000]) && !is_placeholder(b""));
        assert!(!is_placeholder(&placeholder(0)));
    }
}
