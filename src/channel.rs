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
//! It is the standard input of the new process. What ends before "s", or says nothing for half a
//! minute, or says "f" and why, has changed nothing: the old process takes its state back.
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

/// Tells a process that it is to take over, and which words the other one knows.
pub const NAME: &str = "WEIR_SUCCESSOR";
/// The words of this version. Those of the first, `1`, were "r" and "g" alone, with no lock.
pub const WORDS: &str = "2";
/// Descriptors that one message may pass.
pub const MAX_PASSED: usize = 250;
/// Room for them.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_PASSED));

/// The new process goes on with its next step.
pub const STEP: u8 = b'.';
/// It is ready for the state.
pub const READY: u8 = b'r';
/// It cannot start: a sentence follows.
pub const FAILED: u8 = b'f';
/// It serves.
pub const SERVING: u8 = b's';
/// The state is the new one's, and its lock comes with the word.
pub const GO: u8 = b'g';
/// The supervisor knows who serves.
pub const TOLD: u8 = b't';

/// A socket that is passed, and what is spoken there.
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
    /// As it is told, one byte for each socket.
    pub const fn word(self) -> u8 {
        match self {
            Self::Plain => b'p',
            Self::Tls => b't',
            Self::GivenAdmin => b'a',
            Self::Admin => b'A',
            Self::Control => b'c',
        }
    }

    /// What is not known is plain.
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

/// Waits for words, at most as long as the channel's time-out says; none where the other process
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
        // The system begins a receive with a time-out never again, whatever the signal. Signals
        // that come all the time make it no longer than twice that.
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
