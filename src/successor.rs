//! The process that takes over from this one, with its listening sockets (RESTART-1).
//!
//! ```text
//!   this process                              its successor
//!     writes the state, starts it,
//!     passes the sockets             ──────►  reads settings and state, opens what it may
//!                                    ◄──────  "ready"
//!     writes the state once more
//!     accepts no more, writes what
//!     changed, gives up its lock     ──────►  reads what changed, accepts
//!     ends its connections, and itself
//! ```
//!
//! They speak over the successor's standard input, a pair of sockets. Until it has said "ready",
//! nothing has changed here, and its end changes nothing.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use weir_controlplane::process::Reply;

/// Tells a process that it is a successor.
const NAME: &str = "WEIR_SUCCESSOR";
/// Sockets that one message may pass.
const MAX_SOCKETS: usize = 250;
/// Room for them.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_SOCKETS));
/// What the successor says.
const READY: u8 = b'r';
/// What it says instead, with a sentence, where it cannot start.
const FAILED: u8 = b'f';
/// The longest sentence.
const MAX_SENTENCE: u64 = 4096;
/// What it is then told.
const GO: u8 = b'g';
/// How long a successor waits for either, which takes as long as the state files are written.
const PATIENCE: Duration = Duration::from_secs(120);

/// A socket that is passed, and what is spoken there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Plain HTTP.
    Plain,
    /// TLS.
    Tls,
    /// The admin listener, where a supervisor had passed it.
    Admin,
}

impl Kind {
    /// As it is told, one byte for each socket. Whoever says something else passes plain ones.
    const fn word(self) -> u8 {
        match self {
            Self::Plain => b'p',
            Self::Tls => b't',
            Self::Admin => b'a',
        }
    }

    const fn of(word: u8) -> Self {
        match word {
            b't' => Self::Tls,
            b'a' => Self::Admin,
            _ => Self::Plain,
        }
    }
}

/// A process that is to take over.
pub struct Successor {
    child: Child,
    channel: UnixStream,
    /// The operator who asked for it, and waits for the answer.
    asked: Option<Reply<Result<u32, String>>>,
}

/// How far it is.
pub enum Progress {
    /// It starts.
    Starting,
    /// It waits for the word.
    Ready,
    /// It has ended: why, for a sentence.
    Failed(String),
}

impl Successor {
    /// Starts `program` with the arguments and the environment of this process, and passes it the
    /// sockets.
    ///
    /// # Errors
    /// The system refused it.
    pub fn start(program: &PathBuf, sockets: &[(Kind, BorrowedFd<'_>)]) -> io::Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        if sockets.len() > MAX_SOCKETS {
            return Err(io::Error::other(format!(
                "{} listening sockets cannot be passed, {MAX_SOCKETS} at most",
                sockets.len()
            )));
        }
        let child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(NAME, "1")
            // The sockets come another way, and the watchdog of systemd is for whoever is the
            // service.
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let successor = Self {
            child,
            channel,
            asked: None,
        };
        if let Err(error) = successor.pass(sockets) {
            // It has ended already, or ends without them: that is found where it is looked at.
            tracing::warn!("the listening sockets were not passed: {error}");
        }
        successor.channel.set_nonblocking(true)?;
        Ok(successor)
    }

    fn pass(&self, sockets: &[(Kind, BorrowedFd<'_>)]) -> io::Result<()> {
        let words: Vec<u8> = sockets.iter().map(|(kind, _)| kind.word()).collect();
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, socket)| *socket).collect();
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !rights.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("too many listening sockets"));
        }
        let words = [IoSlice::new(&words)];
        sendmsg(&self.channel, &words, &mut rights, SendFlags::empty())?;
        Ok(())
    }

    /// Who waits for it.
    pub fn asked_by(mut self, asked: Option<Reply<Result<u32, String>>>) -> Self {
        self.asked = asked;
        self
    }

    /// Answers whoever asked for it.
    pub fn answer(&mut self, ended: Result<u32, String>) {
        if let Some(reply) = self.asked.take() {
            reply(ended);
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How far it is, without waiting.
    pub fn progress(&mut self) -> Progress {
        let mut word = [0];
        match self.channel.read(&mut word) {
            Ok(1) if word == [READY] => Progress::Ready,
            Ok(1) if word == [FAILED] => Progress::Failed(self.reason()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Progress::Starting,
            // The end of the channel, which ends with the process.
            Ok(_) | Err(_) => Progress::Failed(self.end()),
        }
    }

    /// Why it cannot start, as it says itself; it ends then.
    fn reason(&mut self) -> String {
        let mut sentence = Vec::new();
        let patience = Some(Duration::from_secs(1));
        let read = (self.channel.set_nonblocking(false))
            .and_then(|()| self.channel.set_read_timeout(patience))
            .and_then(|()| {
                (&self.channel)
                    .take(MAX_SENTENCE)
                    .read_to_end(&mut sentence)
            });
        let how = self.end();
        match read {
            Ok(count) if count > 0 => String::from_utf8_lossy(&sentence).into_owned(),
            _ => how,
        }
    }

    /// Ends it, if it has not ended; how it ended.
    fn end(&mut self) -> String {
        // It has closed its end before its status is there.
        let mut status = self.child.try_wait();
        for _ in 0..100 {
            if !matches!(status, Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            status = self.child.try_wait();
        }
        match status {
            Ok(Some(status)) => format!("it ended with {status}"),
            Ok(None) => {
                self.abandon();
                "it did not speak".to_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    /// Ends it: it is not wanted any more.
    pub fn abandon(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The state is its own now, and so are the connections to come.
    ///
    /// # Errors
    /// It has ended meanwhile.
    pub fn go(&mut self) -> io::Result<()> {
        self.channel.set_nonblocking(false)?;
        self.channel.write_all(&[GO])
    }
}

/// The sockets that a process was passed.
pub type Passed = Vec<(Kind, OwnedFd)>;

/// Tells the process before why this one cannot start; nothing where there is none.
pub fn tell_failure(why: &str) {
    if std::env::var_os(NAME).is_none() {
        return;
    }
    let Ok(channel) = io::stdin().as_fd().try_clone_to_owned() else {
        return;
    };
    let sentence = why.replace('\n', "; ");
    // Nobody may be left who listens.
    let _ = UnixStream::from(channel).write_all(&[&[FAILED], sentence.as_bytes()].concat());
}

/// The process that this one takes over from.
pub struct Predecessor {
    channel: UnixStream,
}

impl Predecessor {
    /// The one that started this process to take over, and its listening sockets; none if nobody
    /// did.
    ///
    /// # Errors
    /// One sentence: it did not pass them.
    pub fn of_environment() -> Result<Option<(Self, Passed)>, String> {
        if std::env::var_os(NAME).is_none() {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| {
            format!("{NAME} is set, and no process passes its listening sockets: {error}")
        };
        let channel = io::stdin().as_fd().try_clone_to_owned();
        let channel = UnixStream::from(channel.map_err(|error| failed(&error))?);
        let sockets = receive(&channel).map_err(|error| failed(&error))?;
        Ok(Some((Self { channel }, sockets)))
    }

    /// Says that everything is ready, and waits until the state may be read.
    ///
    /// # Errors
    /// One sentence: the other process has ended without a word.
    pub fn take_over(mut self) -> Result<(), String> {
        let mut word = [0];
        let gone = |error: io::Error| {
            format!("the process to take over from ended before it gave its state away: {error}")
        };
        self.channel.write_all(&[READY]).map_err(gone)?;
        self.channel.read_exact(&mut word).map_err(gone)
    }
}

fn receive(channel: &UnixStream) -> io::Result<Passed> {
    channel.set_read_timeout(Some(PATIENCE))?;
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut words = [0; MAX_SOCKETS];
    let mut into = [IoSliceMut::new(&mut words)];
    let received = recvmsg(channel, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let told = words.get(..received.bytes).unwrap_or_default();
    let kinds = told.iter().copied().map(Kind::of);
    let mut kinds = kinds.chain(std::iter::repeat(Kind::Plain));
    let mut sockets = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            sockets.extend(kinds.by_ref().zip(passed));
        }
    }
    Ok(sockets)
}
