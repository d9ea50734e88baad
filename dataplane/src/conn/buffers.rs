//! What the bytes of bodies travel through: the read buffer that the connections of a worker
//! share, and pipes, through which they go from socket to socket inside the system.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::TcpStream;
use weir_shared::tls_record;

use crate::message::Piece;

/// What a pipe takes at most: what one direction of a connection may hold (CONN-1).
pub const AT_ONCE: usize = 64 * 1024;
/// Pipes of a worker at most; each is two open files. Who finds none has its bytes copied.
pub const MAX_OPEN: usize = 32;
/// Empty pipes that are kept.
const MAX_IDLE: usize = 8;

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

    /// How many are in use.
    #[cfg(any(test, fuzzing))]
    pub fn in_use(&self) -> usize {
        Rc::strong_count(&self.0) - 1
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

/// What comes next of a body.
pub enum Carried {
    /// A piece that was read.
    Read(Piece),
    /// Content that was moved into a pipe.
    Moved(Pipe),
}

impl Pipe {
    /// Bytes in it.
    pub const fn held(&self) -> usize {
        self.held
    }

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
                move_bytes(stream, write, at_most.min(AT_ONCE))
            });
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => break moved?,
            }
        };
        self.held += moved;
        Poll::Ready(Ok(moved))
    }

    /// Moves out of it what the socket takes.
    pub fn poll_drain(
        &mut self,
        stream: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(stream.poll_write_ready(cx))?;
            match stream.try_io(Interest::WRITABLE, || self.drain(stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                moved => return Poll::Ready(moved),
            }
        }
    }

    /// Moves out of it what the socket takes, whatever the runtime knows of the socket.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is no room.
    pub fn drain(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let Some(Ends { read, .. }) = &self.ends else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let moved = move_bytes(read, stream, self.held)?;
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

/// A buffer, bytes: with 4 KiB that are written before it, two records of TLS. Encrypted they are
/// held besides, until the client's socket takes them: together 64 KiB (CONN-1).
pub const SIZE: usize = 2 * tls_record::CONTENT - 4 * 1024;
/// Bytes that are read at once where much waits for the client already.
const LITTLE: usize = 4 * 1024;
/// Room that is left for a read at least.
const LEAST: usize = 8 * 1024;
/// Buffers that wait for their parts to be written. Those beyond it are freed with their last part.
const MAX_WAITING: usize = 8;
/// Buffers for requests that are kept: one for a head and one for a body.
const MAX_TEXTS: usize = 2;
/// A buffer for a request that has grown larger is not kept.
const MAX_TEXT: usize = 32 * 1024;

/// The buffers of one worker.
pub struct Buffers {
    /// The buffer that connections are read into.
    reading: RefCell<BytesMut>,
    /// Full buffers of which parts are still on their way, the oldest first.
    waiting: RefCell<Vec<BytesMut>>,
    /// The pipes for bodies that are not looked at.
    pub pipes: Pipes,
    /// Empty buffers for the text of requests.
    texts: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    /// One empty buffer.
    pub fn new() -> Self {
        Self {
            reading: RefCell::new(BytesMut::with_capacity(SIZE)),
            waiting: RefCell::default(),
            pipes: Pipes::default(),
            texts: RefCell::default(),
        }
    }

    /// Reads what is there; nothing is the end of the stream.
    pub fn poll_read(
        &self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<BytesMut>> {
        let mut buffer = self.reading.borrow_mut();
        if buffer.capacity() - buffer.len() < LEAST {
            self.make_room(&mut buffer);
        }
        let mut reading = pin!(stream.read_buf(&mut *buffer));
        ready!(reading.as_mut().poll(cx))?;
        Poll::Ready(Ok(buffer.split()))
    }

    /// Reads little of what is there, into memory of its own: the piece may wait for long.
    pub fn poll_read_little(
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<BytesMut>> {
        let mut buffer = BytesMut::with_capacity(LITTLE);
        let mut reading = pin!(stream.read_buf(&mut buffer));
        ready!(reading.as_mut().poll(cx))?;
        Poll::Ready(Ok(buffer))
    }

    /// Makes an empty buffer large enough for a read.
    fn make_room(&self, buffer: &mut BytesMut) {
        if buffer.try_reclaim(SIZE) {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        let free = waiting.iter_mut().find_map(|each| {
            let is_free = each.try_reclaim(SIZE);
            is_free.then_some(each)
        });
        if let Some(free) = free {
            std::mem::swap(free, buffer);
            return;
        }
        let full = std::mem::replace(buffer, BytesMut::with_capacity(SIZE));
        if waiting.len() < MAX_WAITING {
            waiting.push(full);
        }
    }

    /// An empty buffer for the text of a request.
    pub fn take_text(&self) -> Vec<u8> {
        self.texts.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives such a buffer back.
    pub fn give_text(&self, mut text: Vec<u8>) {
        let mut texts = self.texts.borrow_mut();
        if texts.len() < MAX_TEXTS && text.capacity() <= MAX_TEXT {
            text.clear();
            texts.push(text);
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
                left -= poll_fn(|cx| pipe.poll_drain(&to, cx)).await.unwrap();
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
            while let Ok(written) = sender.try_write(&[b'x'; AT_ONCE]) {
                waiting += written;
            }
            let ((to, mut receiver), pipes) = (connection().await, Pipes::default());
            let (mut moves, mut moved) = (0, 0);
            while moved < waiting / 2 {
                let mut pipe = pipes.take().unwrap();
                let mut left = poll_fn(|cx| pipe.poll_fill(&from, AT_ONCE, cx))
                    .await
                    .unwrap();
                (moves, moved) = (moves + 1, moved + left);
                while left > 0 {
                    left -= poll_fn(|cx| pipe.poll_drain(&to, cx)).await.unwrap();
                    let _ = receiver.read(&mut vec![0; AT_ONCE]).await.unwrap();
                }
            }
            assert!(
                moved / moves >= AT_ONCE / 4,
                "{moves} moves for {moved} bytes"
            );
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
}
