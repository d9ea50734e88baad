//! The new process of a hand-over, seen from the old one, which passes its listening sockets
//! (RESTART-1, RESTART-4). `channel.rs` has the words that the two exchange.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use weir_controlplane::process::Reply;

use crate::channel::{self, Kind, MAX_PASSED};
use crate::fault;

/// The most words of one read of the channel: more than a start has steps.
const MAX_STEPS: usize = 64;
/// The most bytes of the sentence that follows "f".
const MAX_SENTENCE: u64 = 4096;
/// How long a process may take to end once it has closed its channel, or was killed.
const END_WAIT: Duration = Duration::from_secs(1);
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How often to look whether the process has ended.
const END_LOOK: Duration = Duration::from_millis(10);

/// The reply to the operator who asked for a hand-over; none for a signal.
pub type Asked = Option<Reply<Result<u32, String>>>;

/// The new process of a hand-over.
pub struct Successor {
    child: Child,
    channel: UnixStream,
    /// The reply to the operator who asked for the hand-over.
    asked: Asked,
    /// When the last word was received or sent.
    heard: Instant,
    /// True once it has sent a step: a process of the first version sends only "ready".
    knows_words: bool,
}

/// How far the new process is.
#[derive(PartialEq, Eq, Debug)]
pub enum Progress {
    /// It is starting.
    Going,
    /// It waits for the state.
    Ready,
    /// It serves.
    Serving,
    /// It has ended, cannot start, or is silent: the reason, as part of a sentence.
    Failed(String),
}

impl Successor {
    /// Starts `program` with the arguments and the environment of this process, and passes it the
    /// sockets.
    ///
    /// # Errors
    /// The system refused it.
    pub fn start(program: &Path, sockets: &[(Kind, BorrowedFd<'_>)]) -> io::Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        if sockets.len() > MAX_PASSED {
            return Err(io::Error::other(format!(
                "{} listening sockets cannot be passed, {MAX_PASSED} at most",
                sockets.len()
            )));
        }
        let child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(channel::NAME, channel::WORDS)
            // The sockets are passed over the channel instead of by `LISTEN_FDS`, and
            // `WATCHDOG_PID` names this process: without it, the new one may call the watchdog.
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let successor = Self {
            child,
            channel,
            asked: None,
            heard: Instant::now(),
            knows_words: false,
        };
        let words: Vec<u8> = sockets.iter().map(|(kind, _)| kind.word()).collect();
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, socket)| *socket).collect();
        if let Err(error) = channel::send(&successor.channel, &words, &sockets) {
            // The process has ended already, or ends without the sockets: `progress` finds that.
            tracing::warn!("the listening sockets were not passed: {error}");
        }
        successor.channel.set_nonblocking(true)?;
        Ok(successor)
    }

    /// Sets the reply to whoever asked for the hand-over.
    pub fn asked_by(mut self, asked: Asked) -> Self {
        self.asked = asked;
        self
    }

    /// Replies to whoever asked for the hand-over.
    pub fn answer(&mut self, ended: Result<u32, String>) {
        if let Some(reply) = self.asked.take() {
            reply(ended);
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Looks how far the new process is, without blocking. Silence for too long is a failure,
    /// unless `waits` says that it waits for this process.
    pub fn progress(&mut self, waits: bool) -> Progress {
        let heard = self.hear();
        let silence = fault::silence();
        if heard == Progress::Going && !waits && self.heard.elapsed() >= silence {
            return Progress::Failed(format!("it has said nothing for {silence:?}"));
        }
        heard
    }

    fn hear(&mut self) -> Progress {
        let mut word = [0];
        // Bounded: a process that sends steps without end must not hold up this one.
        for _ in 0..MAX_STEPS {
            match self.channel.read(&mut word) {
                Ok(1) if word == [channel::STEP] => {
                    self.knows_words = true;
                    self.heard = Instant::now();
                }
                Ok(1) if word == [channel::READY] && self.knows_words => return Progress::Ready,
                Ok(1) if word == [channel::READY] => {
                    return Progress::Failed(
                        "the program is of an older version, which would have nobody serve where \
                         it fails: stop the service and start it again instead"
                            .to_owned(),
                    );
                }
                Ok(1) if word == [channel::SERVING] => return Progress::Serving,
                Ok(1) if word == [channel::FAILED] => return Progress::Failed(self.reason()),
                Ok(1..) => return Progress::Failed("it says what is no word".to_owned()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Going,
                // The channel is closed: it closes when the process ends.
                Ok(0) | Err(_) => return Progress::Failed(self.how_it_ended()),
            }
        }
        Progress::Going
    }

    /// The sentence in which the new process says why it cannot start. It ends after that.
    fn reason(&mut self) -> String {
        let mut sentence = Vec::new();
        let read = (self.channel.set_nonblocking(false))
            .and_then(|()| self.channel.set_read_timeout(Some(END_WAIT)))
            .and_then(|()| {
                (&self.channel)
                    .take(MAX_SENTENCE)
                    .read_to_end(&mut sentence)
            });
        match read {
            // The process may end after the time-out of the read, but its sentence is whole by
            // then.
            _ if !sentence.is_empty() => String::from_utf8_lossy(&sentence).into_owned(),
            Ok(_) | Err(_) => self.how_it_ended(),
        }
    }

    /// The exit status of the new process, which comes a moment after its channel is closed.
    fn how_it_ended(&mut self) -> String {
        match self.wait(END_WAIT) {
            Ok(Some(status)) => format!("it ended with {status}"),
            Ok(None) => "it closed its channel".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + at_most;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(END_LOOK),
                status => return status,
            }
        }
    }

    /// Kills the new process, and gives back the reply to whoever asked. With `may_serve`, a
    /// process that serves by now is not killed but given back.
    pub fn end(mut self, may_serve: bool) -> Result<Self, Asked> {
        if may_serve && self.hear() == Progress::Serving {
            return Ok(self);
        }
        let _ = self.child.kill();
        if let Ok(None) = self.wait(KILL_WAIT) {
            tracing::error!("the new process is killed and does not end: it waits for the system");
            let mut child = self.child;
            let waiting = std::thread::Builder::new().name("weir-last-child".to_owned());
            let _ = waiting.spawn(move || child.wait());
        }
        Err(self.asked)
    }

    /// Gives the state with this lock to the new process.
    ///
    /// # Errors
    /// The new process has ended meanwhile.
    pub fn give(&mut self, lock: &OwnedFd) -> io::Result<()> {
        self.heard = Instant::now();
        channel::send(&self.channel, &[channel::GO], &[lock.as_fd()])
    }

    /// Tells the new process that the supervisor knows it as the service.
    pub fn say_told(&self) {
        // The new process may have ended.
        let _ = channel::send(&self.channel, &[channel::TOLD], &[]);
    }
}
