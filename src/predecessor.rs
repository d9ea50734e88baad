//! The old process of a hand-over, seen from the new one (RESTART-1, RESTART-4).
//!
//! The old process may end at any moment. If it ends before this process serves, its lock is free:
//! this process then takes the state as it lies on disk, and becomes the service.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_controlplane::{StateError, StateLock};

use crate::channel::{self, Kind, MAX_PASSED};
use crate::fault;

/// How long the state may stay locked after the old process has ended or has given it away.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The state may take this many times [`fault::silence`], because the old process writes it first.
const WRITES: u32 = 4;

/// The sockets that the old process passed, each with its kind.
pub type Passed = Vec<(Kind, OwnedFd)>;

/// Tells the old process why this one cannot start. Does nothing outside a hand-over.
pub fn tell_failure(why: &str) {
    if std::env::var_os(channel::NAME).is_none() {
        return;
    }
    let sentence = why.replace('\n', "; ");
    let words = [&[channel::FAILED], sentence.as_bytes()].concat();
    // The old process may have ended.
    let _ = channel::of_this_process().and_then(|channel| channel::send(&channel, &words, &[]));
}

/// The process that this one takes over from.
pub struct Predecessor {
    channel: UnixStream,
    /// True if it knows only the words of the first version.
    is_older: bool,
}

impl Predecessor {
    /// The process that started this one for a hand-over, and its listening sockets; none at an
    /// ordinary start.
    ///
    /// # Errors
    /// One sentence: the old process did not pass its sockets.
    pub fn of_environment() -> Result<Option<(Self, Passed)>, String> {
        let Some(words) = std::env::var_os(channel::NAME) else {
            return Ok(None);
        };
        let receive = || {
            let channel = channel::of_this_process()?;
            channel.set_read_timeout(Some(fault::silence() * WRITES))?;
            let mut words = [0; MAX_PASSED];
            let (count, passed) = channel::receive(&channel, &mut words)?;
            let told = words.get(..count).unwrap_or_default();
            let kinds = told.iter().copied().map(Kind::of);
            let kinds = kinds.chain(std::iter::repeat(Kind::Plain));
            Ok((channel, kinds.zip(passed).collect()))
        };
        let (channel, passed) = receive().map_err(|error: io::Error| {
            let name = channel::NAME;
            format!("{name} is set, and no process passes its listening sockets: {error}")
        })?;
        let is_older = words != channel::WORDS;
        Ok(Some((Self { channel, is_older }, passed)))
    }

    /// True for the first version, which ends before this process serves, and keeps its listeners
    /// of operators until it has given up its state.
    pub const fn is_older(&self) -> bool {
        self.is_older
    }

    /// Reports that this process goes on with its next step.
    pub fn say_step(&self) {
        if !self.is_older {
            self.say(channel::STEP);
        }
    }

    /// Reports that this process is ready, waits for the state, and takes its lock.
    ///
    /// # Errors
    /// One sentence: the old process was silent for too long, or the directory cannot be locked.
    pub fn take_lock(&self, dir: &Path) -> Result<StateLock, String> {
        self.say(channel::READY);
        let mut word = [0];
        let (count, passed) = channel::receive(&self.channel, &mut word)
            .map_err(|error| format!("the process before does not give its state away: {error}"))?;
        if count == 0 {
            tracing::warn!("the process before has ended: this one is the service now");
        }
        match passed.into_iter().next() {
            Some(lock) => StateLock::passed(dir, lock).map_err(|error| error.to_string()),
            None => claim(dir),
        }
    }

    /// Reports that this process serves: from here on the old one does not kill it any more.
    pub fn say_serving(&self) {
        if !self.is_older {
            self.say(channel::SERVING);
        }
    }

    /// Waits until the old process has told the supervisor, which believes only the old one.
    pub fn wait_until_told(self) {
        if self.is_older {
            return;
        }
        let patience = Some(fault::silence());
        let told = (self.channel.set_read_timeout(patience))
            .and_then(|()| channel::receive(&self.channel, &mut [0]));
        match told {
            Ok((1.., _)) => {}
            Ok((0, _)) => tracing::warn!("the process before has ended: this one is the service"),
            Err(error) => tracing::warn!("the process before does not answer: {error}"),
        }
    }

    /// Sends a word. If the old process has ended, the next wait for its word finds that out.
    fn say(&self, word: u8) {
        let _ = channel::send(&self.channel, &[word], &[]);
    }
}

/// Locks the directory. Retries for [`LOCK_WAIT`], because the lock of an ended process is free a
/// moment later.
fn claim(dir: &Path) -> Result<StateLock, String> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match StateLock::claim(dir) {
            Err(StateError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            claimed => return claimed.map_err(|error| error.to_string()),
        }
    }
}
