//! The client of a connection in a test: it sends what it is told to, reads what it may, and keeps
//! both.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

/// How a connection ended, as its client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With all that was sent.
    Fin,
    /// By a reset.
    Reset,
}

/// The client's end of a connection.
pub struct Client {
    /// None once it is gone.
    socket: Option<Rc<UnixStream>>,
    /// What is to be sent.
    unsent: Vec<u8>,
    /// What is held back.
    held: Vec<u8>,
    holds: bool,
    /// So much may be read.
    may_read: usize,
    /// It ends its side behind what is to be sent.
    ends: bool,
    has_ended: bool,
    /// All that the system has taken.
    pub sent: Vec<u8>,
    /// All that was read.
    pub got: Vec<u8>,
    /// How it ended.
    pub end: Option<End>,
}

impl Client {
    /// One that reads what comes.
    pub const fn new(socket: Rc<UnixStream>) -> Self {
        Self {
            socket: Some(socket),
            unsent: Vec::new(),
            held: Vec::new(),
            holds: false,
            may_read: usize::MAX,
            ends: false,
            has_ended: false,
            sent: Vec::new(),
            got: Vec::new(),
            end: None,
        }
    }

    /// Sends these bytes, or holds them back.
    pub fn send(&mut self, bytes: &[u8]) {
        if self.ends {
            return;
        }
        let to = if self.holds {
            &mut self.held
        } else {
            &mut self.unsent
        };
        to.extend(bytes);
    }

    /// What is sent from now on is held back.
    pub const fn hold(&mut self) {
        self.holds = true;
    }

    /// So much of it goes.
    pub fn part(&mut self, bytes: usize) {
        let bytes = bytes.min(self.held.len());
        self.unsent.extend(self.held.drain(..bytes));
    }

    /// All of it goes.
    pub fn release(&mut self) {
        self.holds = false;
        self.part(usize::MAX);
    }

    /// So much may be read from now on.
    pub const fn may_read(&mut self, bytes: usize) {
        self.may_read = bytes;
    }

    /// Whether it reads all that comes.
    pub const fn reads(&self) -> bool {
        self.may_read == usize::MAX
    }

    /// Ends its side.
    pub fn close_write(&mut self) {
        self.ends = true;
        self.held.clear();
    }

    /// Whether it has ended its side, or is about to.
    pub const fn ends(&self) -> bool {
        self.ends
    }

    /// Is gone.
    pub fn reset(&mut self) {
        self.socket = None;
        self.ends = true;
        self.unsent.clear();
        self.held.clear();
    }

    /// Whether it is gone.
    pub const fn is_gone(&self) -> bool {
        self.socket.is_none()
    }

    /// Reads and writes what it can; true if something moved.
    pub fn turn(&mut self) -> bool {
        let Some(socket) = self.socket.clone() else {
            return false;
        };
        let read = self.read(&socket);
        self.write(&socket) || read
    }

    fn write(&mut self, mut socket: &UnixStream) -> bool {
        let mut moved = false;
        while !self.unsent.is_empty() {
            match socket.write(&self.unsent) {
                Ok(written) => self.sent.extend(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                // It was closed.
                Err(_) => self.unsent.clear(),
            }
            moved = true;
        }
        if self.ends && !self.has_ended {
            let _ = socket.shutdown(Shutdown::Write);
            self.has_ended = true;
            moved = true;
        }
        moved
    }

    fn read(&mut self, mut socket: &UnixStream) -> bool {
        let mut moved = false;
        let mut space = [0; 16 * 1024];
        while self.end.is_none() && self.may_read > 0 {
            let room = self.may_read.min(space.len());
            let Some(space) = space.get_mut(..room) else {
                return moved;
            };
            match socket.read(space) {
                Ok(0) => self.end = Some(End::Fin),
                Ok(read) => {
                    self.got
                        .extend_from_slice(space.get(..read).unwrap_or_default());
                    if self.may_read != usize::MAX {
                        self.may_read -= read;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                Err(_) => self.end = Some(End::Reset),
            }
            moved = true;
        }
        moved
    }
}
