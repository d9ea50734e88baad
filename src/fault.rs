//! The steps of a hand-over by name, and a hook for tests that makes one of them fail (RESTART-4).
//!
//! `WEIR_TEST_FAULT` names a file that holds `<side>:<step>:<how>`, such as `new:workers:kill`: the
//! step of this name fails, pauses, hangs, exits or is killed as long as the file says so. For
//! `hang` the file adds how many milliseconds the other process waits: `new:workers:hang:4000`. Not
//! in a release build.

use std::time::Duration;

/// A step of a hand-over: those of the old process, then those of the new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The state files are written.
    Save,
    /// The new process is started.
    Start,
    /// The state files are written once more.
    SaveAgain,
    /// The state is given away.
    Give,
    /// The new process is told that the state is given away.
    Go,
    /// The old process knows that the new one serves.
    Taken,
    /// The new process takes the passed listeners.
    Listen,
    /// Files are read: page, certificates, rules, databases, state files.
    Files,
    /// The listeners of operators are taken or bound, and the log is opened.
    Operators,
    /// The new process reports that it is ready.
    Ready,
    /// The new process takes the lock and reads the state.
    State,
    /// The control loop is made.
    Control,
    /// The workers are started.
    Workers,
    /// Everything is ready, and it is about to serve.
    Serve,
    /// It is about to report that it serves.
    Serving,
}

/// How long one process waits for a word of the other before the hand-over fails.
pub fn silence() -> Duration {
    const SILENCE: Duration = Duration::from_secs(30);
    hook::patience().unwrap_or(SILENCE)
}

#[cfg(not(debug_assertions))]
mod hook {
    use std::time::Duration;

    pub(super) const fn patience() -> Option<Duration> {
        None
    }
}

/// The step is about to be done.
///
/// # Errors
/// A test has it fail.
#[cfg(not(debug_assertions))]
#[expect(clippy::unnecessary_wraps, reason = "its twin lets tests have it fail")]
pub const fn at(_: Step) -> Result<(), String> {
    Ok(())
}

#[cfg(debug_assertions)]
pub use hook::at;

#[cfg(debug_assertions)]
mod hook {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::{Step, silence};

    /// Long enough for a signal in the middle.
    const PAUSE: Duration = Duration::from_secs(1);

    impl Step {
        /// `<side>:<step>`
        const fn name(self) -> &'static str {
            match self {
                Self::Save => "old:save",
                Self::Start => "old:start",
                Self::SaveAgain => "old:save-again",
                Self::Give => "old:give",
                Self::Go => "old:go",
                Self::Taken => "old:taken",
                Self::Listen => "new:listen",
                Self::Files => "new:files",
                Self::Operators => "new:operators",
                Self::Ready => "new:ready",
                Self::State => "new:state",
                Self::Control => "new:control",
                Self::Workers => "new:workers",
                Self::Serve => "new:serve",
                Self::Serving => "new:serving",
            }
        }
    }

    /// What a test asks for.
    fn asked() -> String {
        let asked = std::env::var_os("WEIR_TEST_FAULT").and_then(|file| std::fs::read(file).ok());
        String::from_utf8(asked.unwrap_or_default()).unwrap_or_default()
    }

    /// The wait that a test asks for, by its file or by `WEIR_TEST_SILENCE_MS`: it need not wait
    /// for half a minute.
    pub(super) fn patience() -> Option<Duration> {
        let asked = asked();
        let of_file = asked.trim().split(':').nth(3).map(str::to_owned);
        let milliseconds = of_file.or_else(|| std::env::var("WEIR_TEST_SILENCE_MS").ok())?;
        milliseconds.parse().ok().map(Duration::from_millis)
    }

    /// The step is about to be done.
    ///
    /// # Errors
    /// A test has it fail.
    pub fn at(step: Step) -> Result<(), String> {
        let asked = asked();
        let how = asked.trim().strip_prefix(step.name());
        let how = how.and_then(|rest| rest.strip_prefix(':'));
        match how.and_then(|how| how.split(':').next()) {
            Some("fail") => return Err(format!("a test has the step {} fail", step.name())),
            Some("exit") => std::process::exit(3),
            Some("kill") => {
                let _ = kill_process(getpid(), Signal::KILL);
            }
            // The new process hangs for longer than the other waits, the old one for less.
            Some("hang") if step.name().starts_with("new") => std::thread::sleep(silence() * 3),
            Some("hang") => std::thread::sleep(silence() * 3 / 2),
            Some("pause") => std::thread::sleep(PAUSE),
            Some(_) | None => {}
        }
        Ok(())
    }
}
