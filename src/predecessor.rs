//! The process that this one takes over from (RESTART-1, RESTART-4).
//!
//! It may end at any moment. One that ended before this process serves has given up its lock with
//! its end: this one then takes the state as it lies on disk, and is the service.
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

/// How long the state may stay locked by a process that has ended, or has said that it is free.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// So many silences are waited for the state, which takes the other process some writes.
const WRITES: u32 = 4;

/// The sockets that a process was passed.
pub type Passed = Vec<(Kind, OwnedFd)>;

/// Tells the process before why this one cannot start; nothing where there is none.
pub fn tell_failure(why: &str) {
    if std::env::var_os(channel::NAME).is_none() {
        return;
    }
    let sentence = why.replace('\n', "; ");
    let words = [&[channel::FAILED], sentence.as_bytes()].concat();
    // Nobody may be left who listens.
    let _ = channel::of_this_process().and_then(|channel| channel::send(&channel, &words, &[]));
}

/// The process that this one takes over from.
pub struct Predecessor {
    channel: UnixStream,
    /// It knows the words of the first version alone.
    is_older: bool,
}

impl Predecessor {
    /// The one that started this process to take over, and its listening sockets; none if nobody
    /// did.
    ///
    /// # Errors
    /// One sentence: it did not pass them.
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

    /// Whether it is of a version that ends before this process serves: its listeners for operators
    /// are its own until it has given up its state.
    pub const fn is_older(&self) -> bool {
        self.is_older
    }

    /// Says that this process goes on with its next step.
    pub fn say_step(&self) {
        if !self.is_older {
            self.say(channel::STEP);
        }
    }

    /// Says that this process is ready, waits until the state is given to it, and takes the lock.
    ///
    /// # Errors
    /// One sentence: the other process says nothing, or the directory cannot be locked.
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

    /// Says that this process serves, and waits until the other one has told its supervisor, which
    /// believes nobody else.
    pub fn say_serving(self) {
        if self.is_older {
            return;
        }
        self.say(channel::SERVING);
        let patience = Some(fault::silence());
        let told = (self.channel.set_read_timeout(patience))
            .and_then(|()| channel::receive(&self.channel, &mut [0]));
        match told {
            Ok((1.., _)) => {}
            Ok((0, _)) => tracing::warn!("the process before has ended: this one is the service"),
            Err(error) => tracing::warn!("the process before does not answer: {error}"),
        }
    }

    /// It may have ended: that is found where its word is waited for.
    fn say(&self, word: u8) {
        let _ = channel::send(&self.channel, &[word], &[]);
    }
}

/// Locks the directory, which is free in a moment where it is not.
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
