//! The channel between the two processes of a hand-over: the words, and descriptors beside them
//! (RESTART-1, RESTART-4).
//!
//! ```text
//!   old process                                new process
//!     writes the state, starts the other,
//!     passes the listening sockets   ──────►  opens all that needs no state, reads the state
//!                                    ◄──────  "."  with each step
//!                                    ◄──────  "r"  ready
//!     writes the state again, and a
//!     last time; gives it away, with
//!     its lock                       ──"g"──► reads what has changed, starts its threads
//!                                    ◄──────  "."  with each step
//!                                    ◄──────  "s"  it serves: the point of no return
//!     tells operator and supervisor  ──"t"──►
//!     accepts no more, ends its
//!     connections, and itself
//! ```
//!
//! The channel is the standard input of the new process. If the new process ends before "s", is
//! silent for half a minute, or says "f" and why, the hand-over has failed: the old process takes
//! its state back, and nothing has changed.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The environment variable that tells a new process to take over. Its value is the old process's
/// version of the words.
pub const NAME: &str = "WEIR_SUCCESSOR";
/// The version of the words below. Version `1` had only "r" and "g", and passed no lock.
pub const WORDS: &str = "2";
/// Descriptors that one message may pass.
pub const MAX_PASSED: usize = 250;
/// Bytes of control data that [`MAX_PASSED`] descriptors take.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_PASSED));

/// From the new process: it goes on with its next step.
pub const STEP: u8 = b'.';
/// From the new process: it is ready for the state.
pub const READY: u8 = b'r';
/// From the new process: it cannot start. A sentence that says why follows.
pub const FAILED: u8 = b'f';
/// From the new process: it serves.
pub const SERVING: u8 = b's';
/// From the old process: it gives the state away. The lock of the state directory is passed with
/// this word.
pub const GO: u8 = b'g';
/// From the old process: the supervisor knows the new process as the service.
pub const TOLD: u8 = b't';

/// What a passed listening socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Plain HTTP.
    Plain,
    /// TLS.
    Tls,
    /// The admin listener that a supervisor passed.
    GivenAdmin,
    /// The admin listener of the setting.
    Admin,
    /// The control socket.
    Control,
}

impl Kind {
    /// The byte that stands for this kind in the first message: one byte for each socket, in their
    /// order.
    pub const fn word(self) -> u8 {
        match self {
            Self::Plain => b'p',
            Self::Tls => b't',
            Self::GivenAdmin => b'a',
            Self::Admin => b'A',
            Self::Control => b'c',
        }
    }

    /// The kind that a byte stands for. An unknown byte means plain HTTP.
    pub const fn of(word: u8) -> Self {
        match word {
            b't' => Self::Tls,
            b'a' => Self::GivenAdmin,
            b'A' => Self::Admin,
            b'c' => Self::Control,
            _ => Self::Plain,
        }
    }
}

/// Sends words with descriptors beside them, without waiting.
///
/// # Errors
/// The other process has ended, or the system refused it.
pub fn send(channel: &UnixStream, words: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(passed)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(
        channel,
        &[IoSlice::new(words)],
        &mut rights,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// Waits for words, at most for the channel's read time-out. Returns 0 bytes if the other process
/// has ended.
///
/// # Errors
/// Nothing came in time, or the system refused it.
pub fn receive(channel: &UnixStream, words: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(words)];
    let until = channel.read_timeout()?.map(|wait| Instant::now() + wait);
    let received = loop {
        // Linux does not restart a receive with a time-out after a signal, even with SA_RESTART.
        // The loop does, until the deadline: with signals all the time a receive takes at most
        // twice the time-out.
        match recvmsg(channel, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) if until.is_none_or(|until| Instant::now() < until) => {}
            received => break received?,
        }
    };
    let mut passed = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            passed.extend(descriptors);
        }
    }
    Ok((received.bytes, passed))
}

/// The channel of a process that is to take over: its standard input.
///
/// # Errors
/// The system has no file descriptor left.
pub fn of_this_process() -> io::Result<UnixStream> {
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(UnixStream::from(channel))
}
